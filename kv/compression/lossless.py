"""Zstandard over the parts of a packet: an extra, loaded when a scheme asks for it.

Bytes of one place in all numbers go together, as the first bytes of floats are much alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.compression.packets import Frame, Head
from kv.errors import PacketError, SettingError

HOW_TO_GET = "pip install 'pslite[compression]' on every node"


def library() -> Any:
    """The zstandard module.

    Raises:
        SettingError: it is not installed.
    """
    try:
        import zstandard
    except ImportError:
        problem = f"the scheme zstd needs the package zstandard: {HOW_TO_GET}"
        raise SettingError("compression", problem) from None
    return zstandard


def shrink(sections: Sequence[NDArray[Any]], head: Head, level: int) -> Frame | None:
    """The sections compressed; None where that makes them no smaller.

    Args:
        sections: the second of them are the numbers.
    """
    plain = [section.reshape(-1) for section in sections]
    plain[1] = _by_place(plain[1].view(np.uint8), plain[1].itemsize)
    whole = np.concatenate([section.view(np.uint8) for section in plain])
    small = library().ZstdCompressor(level=level, write_content_size=False).compress(whole)
    if len(small) + 4 >= whole.size:
        return None
    return np.frombuffer(small, np.uint8)


def stretch(rest: Frame, head: Head) -> Frame:
    """What `shrink` made smaller; of exactly the size that its header says.

    Raises:
        PacketError: it is anything else.
    """
    zstandard = library()
    try:
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 23).stream_reader(rest.tobytes())
        found = reader.read(head.plain)
        is_longer = bool(reader.read(1))
    except zstandard.ZstdError as error:
        raise PacketError(f"Zstandard's bytes ({error})") from None
    if len(found) != head.plain or is_longer:
        raise PacketError(f"{head.plain} bytes without compression")
    plain = np.frombuffer(found, np.uint8)
    start, size = 4 * head.scales, head.values_nbytes
    width = size // head.chosen if head.chosen and size >= head.chosen else 1
    if width > 1:
        plain = plain.copy()
        numbers = plain[start : start + size].reshape(width, -1)
        plain[start : start + size] = numbers.T.reshape(-1)
    return plain


def _by_place(values: Frame, width: int) -> Frame:
    """The first bytes of all numbers, then the second ones, and so on."""
    return values if width == 1 else np.ascontiguousarray(values.reshape(-1, width).T).reshape(-1)
