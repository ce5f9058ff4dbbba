"""A worker's own state as bytes: msgpack types with NumPy arrays and bytes anywhere inside."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np

from kv.errors import KVError

_ARRAY = 1  # msgpack's extension type of an array


def pack_state(value: Any) -> bytes:
    """The bytes of `value`.

    Raises:
        KVError: it is made of other types.
    """
    try:
        packed: bytes = msgpack.packb(value, default=_extension)
    except (TypeError, ValueError, OverflowError) as error:
        raise KVError(
            f"a checkpoint cannot hold this state ({error}); it takes numbers, text, bytes, "
            f"lists, dicts and arrays"
        ) from None
    return packed


def unpack_state(data: bytes) -> Any:
    """What `pack_state` was given; tuples come back as lists.

    Raises:
        ValueError: these are no such bytes.
    """
    return msgpack.unpackb(data, ext_hook=_array, strict_map_key=False)


def _extension(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        head = msgpack.packb([value.dtype.str, list(value.shape)])
        return msgpack.ExtType(_ARRAY, head + np.ascontiguousarray(value).tobytes())
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"of type {type(value).__name__}")


def _array(code: int, data: bytes) -> Any:
    if code != _ARRAY:
        raise ValueError(f"an unknown extension {code}")
    unpacker = msgpack.Unpacker()
    unpacker.feed(data)
    kind, shape = unpacker.unpack()
    dtype = np.dtype(kind)
    if dtype.kind not in "biufc":
        raise ValueError(f"an array of {kind}")
    return np.frombuffer(data, dtype, offset=unpacker.tell()).reshape(shape).copy()
