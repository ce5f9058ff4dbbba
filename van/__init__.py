"""Moves messages between nodes; knows nothing of what they mean.

message         header and arrays
codec           messages to frames and back, trusting nothing
van             what a van is
courier         the van over real sockets: one thread at a time owns them
endpoints       all ways from and to one node, and which peer is reached by which
poller          waiting for file descriptors
outgoing        what waits for one peer, by priority
drops           what arrived and was not for us
zmq_sockets     ZeroMQ's sockets
chunks          large messages in pieces, for ZeroMQ
local_lane      nodes of one host: Unix sockets and shared memory
    lane_connection, lane_sender, lane_receiver, lane_packets
    shared_memory, slabs
loopback        a seeded network in one process, for tests
wires           how long messages take between lines of latency and bandwidth
virtual         a network in one process that keeps to them, on a virtual clock
linked          a van whose messages take the time of such lines
    intake      when what has come is through a node's own line
faults          messages that are lost, late or come twice, on purpose
config, errors
"""
