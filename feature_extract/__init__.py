"""Samples to features, as a feature ini defines them. Knows nothing of the network.

    ini, definition, conf, input_spec   the feature ini, read and checked
    readers                             sample files as chunks of text columns
    columns, operators, samples         the features of a chunk, column by column
    vocabulary, counting, index         from feature values to numbers
    text_output, parquet_output         what is written
    passes, earlier, extract            the passes over the files: `extract`, `apply`
    explain, split                      one sample's features; a file in two
    schema                              what the written columns mean (cheap to import)
    cli                                 `pslite-features`

Import from the modules: this package itself loads nothing.
"""
