# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False
# mypy: disallow-untyped-decorators=False, disallow-incomplete-defs=False
# Kernel arguments are untyped on purpose: their docstrings give dtype and shape.
"""Join numbered words to texts."""

from sample.kernels.jit import kernel

COMMA = 44


@kernel
def joined_lengths(start, stop, pool, offsets, lengths):
    """Bytes of the values pool[start[i]:stop[i]] joined by commas; offsets: int64, of the words."""
    for i in range(start.size):
        length = 0
        for at in range(start[i], stop[i]):
            length += offsets[pool[at] + 1] - offsets[pool[at]] + 1
        lengths[i] = max(length - 1, 0)


@kernel
def join_words(start, stop, pool, offsets, words, out):
    """Write those texts one after the other; words, out: uint8."""
    to = 0
    for i in range(start.size):
        for at in range(start[i], stop[i]):
            if at > start[i]:
                out[to] = COMMA
                to += 1
            for k in range(offsets[pool[at]], offsets[pool[at] + 1]):
                out[to] = words[k]
                to += 1
