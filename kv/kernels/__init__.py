"""Loops over keys and rows, compiled by Numba; the only place in `kv` that knows Numba.

    jit       the `kernel` decorator and the prefetch hint
    hash      mix64 and the open-addressing index
    records   the record beside each row: key, version, shows, last seen
    tiers     which rows go to disk, and their way there and back
    batches   whole rows with their records, out of a store and into one
    bloom     sightings of keys, counted in little memory
    merge     a key list -> increasing unique keys, their inverse, their summed gradients
    slots     slots of keys, and keys grouped by the server that owns them
    rows      gather, scatter, initial values
    halves    the same for rows with float16 weights, and their rounding
    sums      gradient parts whose key lists differ, made one
    gradients clipping and weight decay, before an optimiser
    sgd, momentum, adagrad, rowwise, adam, rmsprop, adadelta, ftrl
              optimisers, each one fused pass over rows
    updates   which kernel serves which optimiser
    warmup    compiles them all before the first request

Kernels allocate nothing, raise nothing and write only into arrays they are given. Numba compiles a
kernel anew for each combination of argument types, and a read-only array is another type than a
writable one. So there is one rule: **keys and values that come from outside are passed as
read-only views** (`jit.frozen`), everything else is writable, all arrays are C-contiguous. Each
kernel then has a single signature, which `warmup` compiles.
"""
