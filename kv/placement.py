"""Which server owns a key, and which keeps a copy: keys -> 1 024 slots -> servers.

A slot is the top ten bits of `mix64(key)`, so that neighbouring keys spread and every key of the
uint64 range, both ends included, lies in exactly one slot whatever the number of servers. (ps-lite
cuts the range itself into equal parts: small ids all land on server 0, and the last keys on none.)

NumPy only: the scheduler holds slot maps, too, and never loads Numba. `kv.routing` splits requests.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kv.errors import KVError

NUM_SLOTS = 1024
SLOT_SHIFT = np.uint64(54)
MAX_SERVERS = NUM_SLOTS
NOBODY = 0xFFFF  # in place of a rank
_HEADER = struct.Struct("<4sBQI")
_MAGIC = b"SLOT"
_FORMAT = 2  # 1 had no backups


def mix64(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser, a bijection of uint64, of each key; any shape."""
    with np.errstate(over="ignore"):  # wrapping round is meant; NumPy warns where it is 0-d
        keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return keys ^ (keys >> np.uint64(31))


def slot_of(keys: NDArray[np.uint64]) -> NDArray[np.uint16]:
    """The slot of each key, uint16 below `NUM_SLOTS`, in the shape of `keys`."""
    return (mix64(keys) >> SLOT_SHIFT).astype(np.uint16)


@dataclass(frozen=True, eq=False)
class SlotMap:
    """Who owns each slot, and who has a copy that may take its place.

    Args:
        version: grows by one whenever a slot changes its owner or its backup.
        owner: uint16, shape (1024,), the server rank of each slot; made read-only.
        backup: likewise, the rank of the server that has all that was acknowledged; `NOBODY` where
            there is none. None: nowhere is one.
    """

    version: int
    owner: NDArray[np.uint16]
    backup: NDArray[np.uint16] = None  # type: ignore[assignment]  # an array once it is made
    num_servers: int = field(init=False)  # one more than the highest rank that owns a slot
    has_backups: bool = field(init=False)

    def __post_init__(self) -> None:
        backup = np.full(NUM_SLOTS, NOBODY, np.uint16) if self.backup is None else self.backup
        for name, given in (("owner", self.owner), ("backup", backup)):
            array = np.array(given, dtype=np.uint16)
            if array.shape != (NUM_SLOTS,):
                raise KVError(f"a slot map has {NUM_SLOTS} {name}s, not an array of {array.shape}")
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        if (self.owner == NOBODY).any():
            raise KVError("a slot map names an owner for each slot")
        object.__setattr__(self, "num_servers", int(self.owner.max()) + 1)
        object.__setattr__(self, "has_backups", bool((self.backup != NOBODY).any()))

    @classmethod
    def even(cls, num_servers: int, version: int = 0) -> SlotMap:
        """Contiguous runs of slots of equal length, give or take one, for ranks 0, 1, …"""
        if not 1 <= num_servers <= MAX_SERVERS:
            raise KVError(f"slots can be shared by 1 to {MAX_SERVERS} servers, not {num_servers}")
        slots = np.arange(NUM_SLOTS, dtype=np.uint32)
        return cls(version, (slots * num_servers // NUM_SLOTS).astype(np.uint16))

    def owner_of(self, keys: NDArray[np.uint64]) -> NDArray[np.uint16]:
        """The server rank of each key, in the shape of `keys`."""
        return self.owner[slot_of(keys)]

    def to_bytes(self) -> bytes:
        """The map as it travels: magic, format, version, number of slots, owners, backups.

        Little endian.
        """
        header = _HEADER.pack(_MAGIC, _FORMAT, self.version, NUM_SLOTS)
        return header + self.owner.astype("<u2").tobytes() + self.backup.astype("<u2").tobytes()

    @classmethod
    def from_bytes(cls, blob: bytes) -> SlotMap:
        """The map that `to_bytes` wrote.

        Raises:
            KVError: `blob` is no slot map, or one of another format or number of slots.
        """
        expected = _HEADER.size + 4 * NUM_SLOTS
        if blob[:4] != _MAGIC or len(blob) < _HEADER.size:
            raise KVError(f"{len(blob)} bytes are no slot map; one has {expected} and begins SLOT")
        _, form, version, slots = _HEADER.unpack_from(blob)
        if form != _FORMAT or slots != NUM_SLOTS:
            raise KVError(
                f"a slot map of format {form} with {slots} slots came; this release has format "
                f"{_FORMAT} with {NUM_SLOTS}"
            )
        if len(blob) != expected:
            raise KVError(f"a slot map has {expected} bytes, not {len(blob)}")
        owner, backup = np.frombuffer(blob, "<u2", offset=_HEADER.size).reshape(2, NUM_SLOTS)
        return cls(version, owner, backup)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SlotMap):
            return NotImplemented
        return (
            self.version == other.version
            and bool(np.array_equal(self.owner, other.owner))
            and bool(np.array_equal(self.backup, other.backup))
        )

    def __hash__(self) -> int:
        return hash((self.version, self.owner.tobytes(), self.backup.tobytes()))

    def __repr__(self) -> str:
        counts = np.bincount(self.owner).tolist()
        backups = np.bincount(self.backup[self.backup != NOBODY]).tolist()
        tail = f" backups={backups}" if backups else ""
        return f"<SlotMap v{self.version} slots={counts}{tail}>"
