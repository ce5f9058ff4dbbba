"""Moves messages between nodes; knows nothing of what they mean.

message         header and arrays
codec           messages to frames and back, trusting nothing
van             what a van is
courier         the van over ZeroMQ: one thread at a time owns the sockets
zmq_sockets     the sockets themselves
loopback        a seeded network in one process, for tests
config, errors
"""
