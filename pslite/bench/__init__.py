"""`pslite bench`: pslite and its peers measured in one run, against the targets of this project.

run         one whole run: starts the peers, takes the workloads in turn, gathers the results
workloads   what is measured: each is a function over the `Bench` of `run`
cases       one timed case and its lists of keys, the same for all peers
children    the processes that measure, seen from the command
driver      such a process from within: it holds one peer and times it
own         pslite as a peer; other peers are files of a folder, `bench/peers` in the source tree
parts       the store's parts alone: look-ups, rows, optimisers beside NumPy
stages      where the time of a request goes
startup     how long imports, `--help` and a server take to start
results     what was measured, as JSON
targets     results against targets: met or missed
report      tables for terminals and for docs/performance.md
plot        the picture
"""
