"""Who is in the cluster: roles, ids, groups, registration, lives and deaths, barriers, requests.

    node             roles, ids, groups, the node table's entries
    view             what a node knows of the cluster
    shape, config    what it is told before

A node:
    participant      who it is and who is there, waiting, its end
    sender, receiver             messages out; in: to customers, and past former selves
    exchange         the above; its customers, and what a new view changes for them
    postoffice       the above, and what ties a node to its scheduler
    attending, pulse, repeats    its barriers, heartbeats, and what it says again (pure)
    request, tracker             one numbered request; those of a conversation
    customer         sends them, and again, and takes their answers
    resending, rerouting         when a message goes again; who is asked in another's place
    queries, observer            questions from outside

The scheduler:
    gathering        registrations until all have come (pure)
    membership       the book of nodes: seats, lives, fences, goodbyes (pure)
    failure          what a death means (pure)
    liveness         who was heard when (pure)
    barrier, barrier_desk        barriers as sets of senders (pure)
    scheduler        control messages in, replies out (pure)
    scheduler_app    what else is decided there
    books, journal, keeping      what another scheduler needs to go on (pure; a file; both joined)
    etcd             the same in etcd, where standbys wait
    head             the scheduler's node

errors
"""
