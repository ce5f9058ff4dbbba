"""Who is in the cluster: roles, ids, groups, registration, barriers, requests, goodbyes.

node         roles, ids, groups, the node table's entries
membership   the scheduler's book of nodes (pure)
barrier      barriers as sets of senders (pure)
scheduler    control messages in, replies out (pure)
customer     numbered requests and their answers
postoffice   a node: the above on a van
errors
"""
