"""Click-through models on a parameter server: train, test, predict. See docs/ctr.md.

    modelconf, inifile                  the model ini
    batch, schema, columns              rows as arrays, and which features they have
    parquet_source, text_source         files of final features, in windows
    dataset                             batches of a file, in order or shuffled
    kernels, lookup                     merging keys, averaging embeddings, spreading gradients
    models, losses                      networks, and what their outputs mean
    tables, learner, snapshot           a network on the tables of a cluster
    trainer, metrics, progress          the training loop, its figures, its reports
    job, inputs, run, command           a run: its folder, its data, its modes
    savedmodel, predict                 a trained model as files, and its use
    pipeline                            from raw logs to a tested model, all stages
    cli, report                         `pslite-ctr`

Import from the modules: this package itself loads nothing.
"""
