"""Copies of rows on other servers: the log that carries them, and what happens when one fails.

protocol, records    what servers say to each other
log                  records of one server to another, in order, again until acknowledged (pure)
outgoing, filling    the copies that others keep: changes, and all rows at first
incoming, copies, leaving    the copies kept here: rows, what else belongs to them, their end
replica, ownership, orders   a server with all of these; maps; orders of the scheduler
replicator           the above, over a node
"""
