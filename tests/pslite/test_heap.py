"""Memory that was freed is used again without page faults, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource, sys
from pslite.heap import keep_freed_memory

if sys.argv[1] == "kept" and not keep_freed_memory():
    raise SystemExit("another C library")
libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None
SIZE = 4 << 20

def receive():
    blocks = [libc.malloc(SIZE) for _ in range(4)]
    for block in blocks:
        ctypes.memset(block, 1, SIZE)
    for block in blocks:
        libc.free(block)

receive()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    receive()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
TOUCHED = 10 * 4 * (4 << 20) // 4096  # pages that are written after the first time


def faults(how: str) -> int:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=120
    )
    if run.stderr.strip() == "another C library":
        pytest.skip("no mallopt here")
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


def test_large_blocks_that_were_freed_are_written_again_without_page_faults() -> None:
    assert faults("kept") < TOUCHED // 20
