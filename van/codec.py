"""Messages to frames and back: frame 0 a msgpack list, the others raw little-endian arrays.

Pure: no socket. Nothing here trusts its input: every field is checked for type and range, and a
header names the size of each array before the array is looked at.

Source: the layout of the header is this project's own (`docs/requests.md`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
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

_ITEM_SIZES = tuple(dtype.itemsize for dtype in DTYPES)
_NUMBER = {dtype: number for number, dtype in enumerate(DTYPES)}
_INT32 = (1 << 31) - 1
HEADER_LENGTH = 27
_MAX_DIMENSIONS = 8
_RAW = None  # codec of a frame that is plain memory
_CUT_OFF = "a message that ends before its arrays"

_JOINED_MARK = 0xC1  # msgpack never uses it
_JOINED = struct.Struct("<B3xI")
_PADDING = tuple(bytes(count) for count in range(8))
_LONGEST_ADDRESS = 1024
_PLAIN_TYPES = (int, str, *[int] * 15)  # of fields 1 to 17
_CONTROLS, _KINDS = tuple(Control), tuple(Kind)  # each numbered from 0 without a gap
_FLAGS = tuple(Flag(bits) for bits in range(int(~Flag.NONE) + 1))

Descriptor = tuple[np.dtype[Any], tuple[int, ...], int]
"""Type, shape and bytes of an array that follows a header."""

ReadHeader = Callable[[bytes], tuple[Meta, Sequence[Descriptor]]]
"""Reads a header: its fields and the arrays that should follow."""


def encode(message: Message, config: VanConfig) -> list[Frame]:
    """Frames of `message`; the arrays among them share memory with the caller's.

    Raises:
        CodecError: an array has a type that cannot travel, or is over `[van] max_frame`.
    """
    meta = message.meta
    arrays: list[NDArray[Any]] = []
    described = []
    limit = config.max_frame
    for array in message.arrays:
        number = _NUMBER.get(array.dtype)
        if number is None or not array.flags.c_contiguous:
            array = _wire_array(array)
            number = _NUMBER[array.dtype]
        shape = array.shape
        if array.nbytes > limit:
            raise CodecError(f"an array of {array.nbytes} bytes is over [van] max_frame = {limit}")
        if len(shape) > _MAX_DIMENSIONS:
            raise CodecError(f"an array of {len(shape)} dimensions is over {_MAX_DIMENSIONS}")
        arrays.append(array)
        described.append((number, shape, _RAW))
    for name, value in (("cmd", meta.cmd), ("priority", meta.priority)):
        # A receiver drops what is of another type, and the sender would wait for ever.
        if not isinstance(value, int) or value is True or value is False:
            raise CodecError(f"{name} must be an integer, not {value!r}")
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
            meta.control,
            meta.flags,
            meta.kind,
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
            described,
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
        packed: bytes = msgpack.Packer().pack(fields)  # `packb` is a Python function around it
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CodecError(f"a header cannot hold what is in it: {error}") from None
    return packed


def _wire_array(array: NDArray[Any]) -> NDArray[Any]:
    little = array.dtype.newbyteorder("<") if array.dtype.byteorder == ">" else array.dtype
    if little not in _NUMBER:
        raise CodecError(f"arrays of {array.dtype} do not travel; use one of {DTYPES}")
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
    if len(fields) != HEADER_LENGTH:
        raise CodecError(f"header has {len(fields)} fields instead of {HEADER_LENGTH}")
    # One comparison of all types and the least of all unsigned: a loop would take five times as
    # long. msgpack's integers have at most 64 bits, so that the upper ends hold by themselves.
    control, flags, kind = fields[6:9]
    if (
        tuple(map(type, fields[1:18])) != _PLAIN_TYPES
        or fields[1] < 0
        or min(fields[3:16]) < 0
        or not -_INT32 <= fields[16] <= _INT32
        or not -_INT32 <= fields[17] <= _INT32
        or control >= len(_CONTROLS)
        or flags >= len(_FLAGS)
        or kind >= len(_KINDS)
        or len(fields[2]) > _LONGEST_ADDRESS
    ):
        raise CodecError("header fields 1 to 17 are not of their types or out of range")
    wrong = _wrong_field(fields)
    if wrong:
        raise CodecError(f"header field {wrong} has the wrong shape or is out of range")
    kinds = _CONTROLS[control], _FLAGS[flags], _KINDS[kind]
    meta = Meta(*(fields[1:6] + kinds + fields[9:24] + fields[25:27]))
    return meta, _descriptors(fields[24], config) if fields[24] != () else []


def _other_version(fields: tuple[Any, ...]) -> ProtocolVersionError:
    sender = fields[1] if len(fields) > 1 and type(fields[1]) is int else None
    error = ProtocolVersionError(fields[0], PROTOCOL_VERSION, sender)
    # Positions 1 and 2 keep their meaning in every version, so that the peer can be told.
    error.reply_to = fields[2] if len(fields) > 2 and type(fields[2]) is str else ""
    return error


def _wrong_field(fields: tuple[Any, ...]) -> int:
    """The position of a field after the plain ones that is not as it should be, or 0."""
    clocks, constituents, slots, refused, key_list, chunk = fields[18:24]
    if clocks != () and not are_clocks(clocks):
        return 18
    if constituents != () and not _are_constituents(constituents):
        return 19
    if slots is not None and not _are_integers(slots):
        return 20
    if refused != () and not _are_integers(refused):
        return 21
    if type(key_list) is not int or key_list < 0:
        return 22
    if not _are_integers(chunk) or len(chunk) != 2:
        return 23
    return 26 if fields[26] is not None and not _is_error(fields[26]) else 0


def are_clocks(clocks: Any) -> bool:
    """Whether header field 18 is in order."""
    if type(clocks) is not tuple:
        return False
    for clock in clocks:
        if type(clock) is not tuple or len(clock) != 3:
            return False
        table, now, versions = clock
        if type(table) is not int or type(now) is not int or table < 0 or now < 0:
            return False
        if versions == ():  # nearly all
            continue
        if type(versions) is not tuple:
            return False
        if not all(_are_integers(pair) and len(pair) == 2 for pair in versions):
            return False
    return True


def _are_constituents(constituents: Any) -> bool:
    return type(constituents) is tuple and all(
        type(one) is tuple and len(one) == 7 and _are_integers(one[:6]) and are_clocks(one[6])
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
    if type(values) is not tuple:
        return False
    for value in values:  # noqa: SIM110  (a generator takes three times as long)
        if type(value) is not int or value < 0:
            return False
    return True


def _descriptors(described: Any, config: VanConfig) -> list[Descriptor]:
    if type(described) is not tuple or len(described) > config.max_frames:
        raise CodecError("header field 24 is not a list of arrays, or too long")
    found = []
    for item in described:
        if type(item) is not tuple or len(item) != 3:
            raise CodecError("header field 24 has something that is no array")
        number, shape, codec = item
        if (
            codec is not _RAW
            or type(number) is not int
            or not 0 <= number < len(DTYPES)
            or type(shape) is not tuple
            or len(shape) > _MAX_DIMENSIONS
        ):
            raise CodecError("header field 24 has something that is no array")
        nbytes = _ITEM_SIZES[number]
        for length in shape:
            if type(length) is not int or length < 0:
                raise CodecError("header field 24 has an array of no shape")
            nbytes *= length  # Python integers: no overflow
        if nbytes > config.max_frame or (not nbytes and max(shape) > config.max_frame):
            raise CodecError(f"an array of {nbytes} bytes is over [van] max_frame")
        found.append((DTYPES[number], shape, nbytes))
    return found


def decode_array(frame: Buffer, descriptor: Descriptor) -> NDArray[Any]:
    """The array in `frame`, read-only, without a copy unless the frame is unaligned.

    Raises:
        CodecError: the frame has another size than its header says.
    """
    dtype, shape, nbytes = descriptor
    if len(frame) != nbytes:
        raise CodecError(f"a frame has {len(frame)} bytes where its header says {nbytes}")
    array = np.frombuffer(frame, dtype=dtype)
    if len(shape) != 1:
        array = array.reshape(shape)
    flags = array.flags
    if not flags.aligned:  # libzmq hands out slices of its buffer for small frames
        array = array.copy()
        flags = array.flags
    if flags.writeable:
        flags.writeable = False  # one type for kernels, whatever frame it came in
    return array


def join(frames: Sequence[Frame]) -> bytes:
    """One frame of a message's header and small arrays: each frame costs calls at both ends.

    A byte that no msgpack begins with, the length of the header, and header and arrays, each at a
    multiple of 8 bytes.
    """
    header = frames[0]
    parts: list[Any] = [_JOINED.pack(_JOINED_MARK, len(header)), header]
    size = _JOINED.size + len(header)
    for array in frames[1:]:
        parts.append(_PADDING[-size % _JOINED.size])
        size += -size % _JOINED.size
        parts.append(array)
        size += array.nbytes  # type: ignore[union-attr]  # all but the first are arrays
    return b"".join(parts)


def is_joined(frame: bytes) -> bool:
    """Whether `frame` comes from `join`."""
    return frame[:1] == b"\xc1"


def decode_joined(frame: bytes, read_header: ReadHeader) -> Message:
    """The message in a frame of `join`; see `decode_header` and `decode_array` for the errors."""
    if len(frame) < _JOINED.size:
        raise CodecError(f"a frame of {len(frame)} bytes")
    _, length = _JOINED.unpack_from(frame)
    message, end = decode_packed(frame, _JOINED.size, length, read_header)
    if end != len(frame):
        raise CodecError(f"{len(frame)} bytes where the header says {end}")
    return message


def decode_packed(
    data: bytes, start: int, header_size: int, read_header: ReadHeader
) -> tuple[Message, int]:
    """A message whose header, from `start`, and arrays each begin at the next multiple of 8 bytes.

    Args:
        read_header: `decode_header`, or a `van.headers.HeaderReader`'s `read`.
    Returns:
        The message, whose arrays are views of `data`, and where it ends.
    Raises:
        CodecError: see `decode_header`; or `data` ends before its arrays do.
    """
    start += -start & 7
    end = start + header_size
    if end > len(data):
        raise CodecError(_CUT_OFF)
    meta, descriptors = read_header(data[start:end])
    arrays = []
    for dtype, shape, nbytes in descriptors:
        start = end + (-end & 7)
        end = start + nbytes
        if end > len(data):
            raise CodecError(_CUT_OFF)
        # A view of bytes is read-only, and at a multiple of 8 it is aligned.
        array = np.frombuffer(data, dtype, nbytes // dtype.itemsize, start)
        arrays.append(array if len(shape) == 1 else array.reshape(shape))
    return Message(meta, arrays), end


def reserve(nbytes: int) -> NDArray[np.uint8]:
    """Memory for an array that comes in parts; it is touched only as they come.

    Raises:
        CodecError: this machine has not that much.
    """
    try:
        return np.empty(nbytes, np.uint8)
    except MemoryError:
        raise CodecError(f"no memory for an array of {nbytes} bytes") from None


def decode(frames: Sequence[Buffer], config: VanConfig) -> Message:
    """The message in `frames`; see `decode_header` and `decode_array` for the errors."""
    if not frames:
        raise CodecError("a message without frames")
    meta, descriptors = decode_header(frames[0], config)
    if len(descriptors) != len(frames) - 1:
        raise CodecError(f"{len(frames) - 1} arrays where the header says {len(descriptors)}")
    return Message(meta, [decode_array(f, d) for f, d in zip(frames[1:], descriptors, strict=True)])
