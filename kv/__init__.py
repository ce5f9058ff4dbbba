"""The parameters: keys, tables, servers that hold them and workers that use them.

What needs no network:

    protocols      what a worker and its tables look like to programs
    optimizers, schedules, initializers, policies, spec     the definition of a table
    placement, routing    keys -> slots -> servers
    keylist        any list of keys -> increasing unique keys, and back
    kernels        loops over keys and rows (Numba)
    store          rows in memory
    consistency    when a push is applied and a pull answered
    engine         all tables of one server: pulls and pushes, over
    catalogue, settling     tables by name and number; steps, and the rounds that they close
    engine_table, keyed_table, block_table   what it asks of a table; a sparse one; a dense one
    executor, fairlock      who works on long requests: in turns, each worker's in order
    rehearsal      a table's kernels loaded before its first request
    local, local_worker, local_tables   a whole cluster in this process
    checkpoint     all of it on disk, and back
    requests       how a push counts exactly once, as pure state machines

On a cluster:

    remote_worker, tables    a worker's side of tables
    conversation   whom it asks, and by which map
    question, lines, cutting, composing, asking   one request: about what, to whom; its messages,
                   and what becomes of their answers
    table_server   a server's side, over the engine: who works on a request, and when
    serving        what is done then, by command
    replication    copies of its rows on other servers, and slots that change hands
    worker, server           ps-lite's KVWorker and KVServer, keys and values in `pairs`
    gather         a value of each worker at rank 0

Importing the package itself loads none of it.
"""
