"""Dispatchers: nodes between workers and servers that make one push of many.

Towards a worker a dispatcher is a server that owns everything, towards servers it is a worker.
`docs/dispatcher.md` has the whole of it. What workers ask is taken by

    dispatcher    the node, which hands it on
    pushes        PUSH and PUSH_PULL, into buffers
    pulls         PULL
    ends          STEP, FINISH, BEGIN, and what servers hear of them
    joining       JOIN and LEAVE
    relaying      requests that are passed on as they are, such as DEFINE
    defining      tables that servers have taken

A push takes five steps:

    receiving     a worker's push becomes a shard, a view of the frames that came
    packing       what came compressed is unpacked, what goes on is compressed anew
    aggregating   the shards of a buffer are added up, each part of the keys by a thread
    resolving     what their difference in base version means, and which may be merged at all
    versions      the clocks that servers have answered with
    upstream      one push of the dispatcher's own, that lists those inside

    merging       makes one push of each buffer that is due
    sending       has servers take it, and answers those whose pushes are inside
    buffers       one fills while the other is merged and sent
    hotkeys       rows of frequent keys, which leave first
    ahead         these on their way
    flushing      when a buffer is sent
    stepping      the ends of workers' steps, behind the pushes that belong before them
    cache         rows that were pulled for one worker, for the others
    copies        rows with their versions
    refreshing    pulls of what has changed since
    reading       pulls, from the cache or from servers
    answering     answers to workers
    refusing      servers' errors as workers hear them
    assignment    which worker has which dispatcher
    way           a worker's way through its dispatcher, and around it when that is dead
    changing      from one way to another
    members       workers that come and go, as the dispatcher sees them
    restarting    workers that begin again
    measuring     what waits, and how long sums take

and when it has too much to do:

    balance       marks and hysteresis
    balancing     a dispatcher that lets workers go past it
    balance_desk  which worker gets which other dispatcher
    balance_app   the same on the scheduler, and the file of all decisions
    journal       a node's own decisions
"""
