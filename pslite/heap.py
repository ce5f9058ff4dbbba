"""Memory that a server has freed stays with the process, for the next message.

ZeroMQ takes the memory of each large message from the C library and gives it back when the message
is dropped. By default the GNU C library then returns what is free at a heap's end to the system, so
that every request is received into fresh pages, a page fault for each 4 KiB: a tenth to a fifth of
the processor time that a server spent on a push of 100 000 keys over tcp.
"""

from __future__ import annotations

import ctypes
import logging

log = logging.getLogger(__name__)

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
KEPT = 256 << 20  # bytes that may lie free at a heap's end
LARGEST = 32 << 20  # bytes of a block that is still taken from a heap, the most there can be


def keep_freed_memory() -> bool:
    """Let this process keep freed memory, up to `KEPT` bytes a heap; whether that was possible."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    is_set = bool(mallopt(TRIM_THRESHOLD, KEPT) and mallopt(MMAP_THRESHOLD, LARGEST))
    if not is_set:
        log.debug("the C library keeps no freed memory")
    return is_set
