"""Messages to frames and back: frame 0 a msgpack list, the others raw little-endian arrays.

Pure: no socket. Nothing here trusts its input: every field is checked for type and range, and a
header names the size of each array before the array is looked at.

Source: the layout of the header is this project's own (`docs/requests.md`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from van.config import VanConfig
from van.errors import CodecError, ProtocolVersionError
from van.message import PROTOCOL_VERSION, Control, Flag, Kind, Message, Meta

Buffer = bytes | bytearray | memoryview
Frame = Buffer | NDArray[Any]

DTYPES = tuple(
    np.dtype(code)
    for code in ("u1", "i1", "?", "<u2", "<i2", "<f2", "<u4", "<i4", "<f4", "<u8", "<i8", "<f8")
)
"""The types an array may have on the wire; a header names them by position."""

_NUMBER = {dtype: number for number, dtype in enumerate(DTYPES)}
_UINT64 = (1 << 64) - 1
_INT32 = (1 << 31) - 1
_HEADER_LENGTH = 27
_MAX_DIMENSIONS = 8
_RAW = None  # codec of a frame that is plain memory

# position of each integer field, its lowest and its highest value
_INTEGERS = (
    (1, 0, _UINT64),  # sender
    (3, 0, _UINT64),  # recipient
    (4, 0, _UINT64),  # incarnation
    (5, 0, _UINT64),  # recipient incarnation
    (6, 0, int(max(Control))),
    (7, 0, int(~Flag.NONE)),
    (8, 0, int(max(Kind))),
    (9, 0, _UINT64),  # app
    (10, 0, _UINT64),  # customer
    (11, 0, _UINT64),  # timestamp
    (12, 0, _UINT64),  # oldest
    (13, 0, _UINT64),  # piece
    (14, 0, _UINT64),  # epoch
    (15, 0, _UINT64),  # map version
    (16, -_INT32, _INT32),  # cmd
    (17, -_INT32, _INT32),  # priority
    (22, 0, _UINT64),  # key list
)

Descriptor = tuple[np.dtype[Any], tuple[int, ...], int]
"""Type, shape and bytes of an array that follows a header."""


def encode(message: Message, config: VanConfig) -> list[Frame]:
    """Frames of `message`; the arrays among them share memory with the caller's.

    Raises:
        CodecError: an array has a type that cannot travel, or is over `[van] max_frame`.
    """
    arrays = [_wire_array(array, config) for array in message.arrays]
    meta = message.meta
    for name, value in (("cmd", meta.cmd), ("priority", meta.priority)):
        if not -_INT32 <= value <= _INT32:
            raise CodecError(f"{name} must fit 32 bits, {value} does not")
    header = _packed(
        (
            PROTOCOL_VERSION,
            meta.sender,
            meta.reply_to,
            meta.recipient,
            meta.incarnation,
            meta.recipient_incarnation,
            int(meta.control),
            int(meta.flags),
            int(meta.kind),
            meta.app,
            meta.customer,
            meta.timestamp,
            meta.oldest,
            meta.piece,
            meta.epoch,
            meta.map_version,
            meta.cmd,
            meta.priority,
            meta.clocks,
            meta.constituents,
            meta.slots,
            meta.refused,
            meta.key_list,
            meta.chunk,
            [(_NUMBER[array.dtype], array.shape, _RAW) for array in arrays],
            meta.body,
            meta.error,
        )
    )
    if len(header) > config.max_header:
        raise CodecError(
            f"a header of {len(header)} bytes is over [van] max_header = {config.max_header}"
        )
    if len(arrays) > config.max_frames:
        raise CodecError(f"{len(arrays)} arrays are over [van] max_frames = {config.max_frames}")
    return [header, *arrays]


def _packed(fields: tuple[Any, ...]) -> bytes:
    try:
        packed: bytes = msgpack.packb(fields)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CodecError(f"a header cannot hold what is in it: {error}") from None
    return packed


def _wire_array(array: NDArray[Any], config: VanConfig) -> NDArray[Any]:
    little = array.dtype.newbyteorder("<") if array.dtype.byteorder == ">" else array.dtype
    if little not in _NUMBER:
        raise CodecError(f"arrays of {array.dtype} do not travel; use one of {DTYPES}")
    if array.nbytes > config.max_frame:
        raise CodecError(
            f"an array of {array.nbytes} bytes is over [van] max_frame = {config.max_frame}"
        )
    if array.ndim > _MAX_DIMENSIONS:
        raise CodecError(f"an array of {array.ndim} dimensions is over {_MAX_DIMENSIONS}")
    return np.ascontiguousarray(array, dtype=little).reshape(array.shape)


def decode_header(header: Buffer, config: VanConfig) -> tuple[Meta, list[Descriptor]]:
    """The header's fields and what arrays should follow.

    Raises:
        CodecError: not a header of ours.
        ProtocolVersionError: a header of another version.
    """
    if len(header) > config.max_header:
        raise CodecError(f"header of {len(header)} bytes is over {config.max_header}")
    try:
        fields = msgpack.unpackb(header, use_list=False, strict_map_key=False)
    except Exception as error:  # msgpack raises many kinds, all of which mean the same here
        raise CodecError(f"header is not msgpack: {error}") from None
    if type(fields) is not tuple or not fields or type(fields[0]) is not int:
        raise CodecError("header is not a list that begins with a version")
    if fields[0] != PROTOCOL_VERSION:
        raise _other_version(fields)
    if len(fields) != _HEADER_LENGTH:
        raise CodecError(f"header has {len(fields)} fields instead of {_HEADER_LENGTH}")
    for position, low, high in _INTEGERS:
        value = fields[position]
        if type(value) is not int or not low <= value <= high:
            raise CodecError(f"header field {position} is out of range")
    return _meta(fields), _descriptors(fields[24], config)


def _other_version(fields: tuple[Any, ...]) -> ProtocolVersionError:
    sender = fields[1] if len(fields) > 1 and type(fields[1]) is int else None
    error = ProtocolVersionError(fields[0], PROTOCOL_VERSION, sender)
    # Positions 1 and 2 keep their meaning in every version, so that the peer can be told.
    error.reply_to = fields[2] if len(fields) > 2 and type(fields[2]) is str else ""
    return error


def _meta(fields: tuple[Any, ...]) -> Meta:
    checks = (
        (2, type(fields[2]) is str and len(fields[2]) <= 1024),
        (18, _are_clocks(fields[18])),
        (19, _are_constituents(fields[19])),
        (20, fields[20] is None or _are_integers(fields[20])),
        (21, _are_integers(fields[21])),
        (23, _are_integers(fields[23]) and len(fields[23]) == 2),
        (26, fields[26] is None or _is_error(fields[26])),
    )
    for position, holds in checks:
        if not holds:
            raise CodecError(f"header field {position} has the wrong shape")
    kinds = Control(fields[6]), Flag(fields[7]), Kind(fields[8])
    return Meta(*(fields[1:6] + kinds + fields[9:24] + fields[25:27]))


def _are_clocks(clocks: Any) -> bool:
    return type(clocks) is tuple and all(
        type(clock) is tuple
        and len(clock) == 3
        and _are_integers(clock[:2])
        and type(clock[2]) is tuple
        and all(_are_integers(pair) and len(pair) == 2 for pair in clock[2])
        for clock in clocks
    )


def _are_constituents(constituents: Any) -> bool:
    return type(constituents) is tuple and all(
        type(one) is tuple and len(one) == 7 and _are_integers(one[:6]) and _are_clocks(one[6])
        for one in constituents
    )


def _is_error(error: Any) -> bool:
    return (
        type(error) is tuple
        and len(error) == 3
        and all(type(part) is str for part in error[:2])
        and _are_integers(error[2:])
    )


def _are_integers(values: Any) -> bool:
    return type(values) is tuple and all(type(v) is int and 0 <= v <= _UINT64 for v in values)


def _descriptors(described: Any, config: VanConfig) -> list[Descriptor]:
    if type(described) is not tuple or len(described) > config.max_frames:
        raise CodecError("header field 24 is not a list of arrays, or too long")
    found = []
    for item in described:
        if (
            type(item) is not tuple
            or len(item) != 3
            or item[2] is not _RAW
            or type(item[0]) is not int
            or not 0 <= item[0] < len(DTYPES)
            or not _are_integers(item[1])
            or len(item[1]) > _MAX_DIMENSIONS
        ):
            raise CodecError("header field 24 has something that is no array")
        dtype, shape = DTYPES[item[0]], item[1]
        nbytes = dtype.itemsize
        for length in shape:  # Python integers: no overflow
            nbytes *= length
        if nbytes > config.max_frame or max(shape, default=0) > config.max_frame:
            raise CodecError(f"an array of {nbytes} bytes is over [van] max_frame")
        found.append((dtype, shape, nbytes))
    return found


def decode_array(frame: Buffer, descriptor: Descriptor) -> NDArray[Any]:
    """The array in `frame`, read-only, without a copy unless the frame is unaligned.

    Raises:
        CodecError: the frame has another size than its header says.
    """
    dtype, shape, nbytes = descriptor
    if len(frame) != nbytes:
        raise CodecError(f"a frame has {len(frame)} bytes where its header says {nbytes}")
    array = np.frombuffer(frame, dtype=dtype).reshape(shape)
    if not array.flags.aligned:  # libzmq hands out slices of its buffer for small frames
        array = array.copy()
    array.flags.writeable = False  # one type for kernels, whatever frame it came in
    return array


def decode(frames: Sequence[Buffer], config: VanConfig) -> Message:
    """The message in `frames`; see `decode_header` and `decode_array` for the errors."""
    if not frames:
        raise CodecError("a message without frames")
    meta, descriptors = decode_header(frames[0], config)
    if len(descriptors) != len(frames) - 1:
        raise CodecError(f"{len(frames) - 1} arrays where the header says {len(descriptors)}")
    return Message(meta, [decode_array(f, d) for f, d in zip(frames[1:], descriptors, strict=True)])
