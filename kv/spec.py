"""The definition of a table, as every node must agree on it.

    TableSpec     name, kind, width, optimiser, initialiser, mode
    DenseLayout   how a dense array is cut into rows ("blocks") with keys of their own

A dense table is stored as wide rows, so that placement, consistency, optimisers and checkpoints
know one mechanism. Blocks hold up to 4 096 floats; an array below that is one block of its own size
rounded up to 16 floats (a cache line), so that a bias does not cost 16 KB.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kv.bounds import stored_bounds
from kv.compression.settings import Compression, CompressionLike
from kv.consistency.settings import Consistency
from kv.errors import SettingError
from kv.initializers import Initializer, Uniform, Zeros
from kv.optimizers import SGD, Optimizer
from kv.placement import mix64
from kv.policies import WHEN_FULL, Admission, Expiry
from van.quantities import BYTES, parse_quantity

BLOCK = 4096  # floats in a block of a dense table
LINE = 16  # floats in a cache line
KINDS = ("sparse", "dense")
MISSING = ("init", "zeros", "error")
AGGREGATORS = ("sum", "mean", "weighted_mean", "max_norm")
STORAGES = ("float32", "float16")
MAX_DIM = 1 << 20
MOST = (1 << 63) - 1  # of an integer that is to travel
MAX_FLOATS = 1 << 36  # in a dense table


@dataclass(frozen=True)
class TableSpec:
    """What a table is.

    `mode` None and `seed` None mean the job's; `resolved` fills them in. For a dense table `dim`
    is the block's width and follows from `shape`: use `TableSpec.dense`.
    """

    name: str
    kind: str = "sparse"  # "sparse" or "dense"
    dim: int = 1  # floats in a row
    shape: tuple[int, ...] = ()  # of a dense table's array
    optimizer: Optimizer = field(default_factory=SGD)
    initializer: Initializer = field(default_factory=Zeros)
    missing: str = "init"  # what pulling a key without a row does: init, zeros, error
    mode: Consistency | None = None  # or the name of one; None is the job's
    seed: int | None = None  # of initial values
    aggregator: str = "sum"  # how a round's pushes become one gradient, see kv.consistency.rounds
    storage: str = "float32"  # of weights: float32 or float16; optimiser state is float32 always
    admission: Admission | None = None  # which keys get a row; None is all of them
    expiry: Expiry | None = None  # which rows go again; None is none
    memory_limit: int = 0  # bytes of rows, records and index on one server; 0 is the machine's
    when_full: str = "refuse"  # new rows, or evict old ones, or spill them to disk
    compression: Compression | None = None  # of values on their way; None is the job's

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or len(self.name) > 200:
            raise SettingError("table", f"a name has 1 to 200 characters, not {self.name!r}")
        if self.name != self.name.encode("utf-8", "replace").decode():
            raise SettingError("table", f"the name {self.name!r} is no text")
        self._check_choice("kind", self.kind, KINDS)
        self._check_choice("missing", self.missing, MISSING)
        self._check_choice("aggregator", self.aggregator, AGGREGATORS)
        self._check_choice("storage", self.storage, STORAGES)
        if self.mode is not None:
            object.__setattr__(self, "mode", self._mode_of(self.mode))
        self._check_type("optimizer", self.optimizer, Optimizer)
        self._check_type("initializer", self.initializer, Initializer)
        self._check_bounds()
        object.__setattr__(self, "shape", sides(self.name, self.shape))
        object.__setattr__(self, "dim", self._whole("dim", self.dim))
        if not 1 <= self.dim <= MAX_DIM:
            raise SettingError(f"table {self.name}", f"dim must be 1 to {MAX_DIM}, not {self.dim}")
        if self.seed is not None:
            object.__setattr__(self, "seed", self._whole("seed", self.seed))
        self._check_policies()
        if self.compression is not None:
            object.__setattr__(self, "compression", self._compression_of(self.compression))
        if self.kind == "dense" and self.dim != block_width(self.shape):
            problem = f"blocks of a dense {self.shape} have dim {block_width(self.shape)}"
            raise SettingError(f"table {self.name}", f"{problem}, not {self.dim}")

    @classmethod
    def sparse(
        cls,
        name: str,
        dim: int,
        *,
        optimizer: Optimizer | None = None,
        initializer: Initializer | None = None,
        missing: str = "init",
        mode: str | Consistency | None = None,
        seed: int | None = None,
        aggregator: str = "sum",
        storage: str = "float32",
        admission: Admission | None = None,
        expiry: Expiry | None = None,
        memory_limit: int | str = 0,
        when_full: str = "refuse",
        compression: CompressionLike | None = None,
    ) -> Self:
        """Rows of `dim` floats under uint64 keys; a `memory_limit` may be a text such as `1GiB`.

        By default SGD(), and for rows that start when they are first seen Uniform(-0.05, 0.05):
        embeddings that all start equal cannot be told apart. Otherwise they start at zero.
        """
        if initializer is None:
            initializer = Uniform() if missing == "init" else Zeros()
        return cls(
            name=name,
            kind="sparse",
            dim=dim,
            optimizer=SGD() if optimizer is None else optimizer,
            initializer=initializer,
            missing=missing,
            mode=None if mode is None else Consistency.of(mode),
            seed=seed,
            aggregator=aggregator,
            storage=storage,
            admission=admission,
            expiry=expiry,
            memory_limit=_nbytes(name, memory_limit),
            when_full=when_full,
            compression=compression,  # type: ignore[arg-type]  # made one of any of these
        )

    @classmethod
    def dense(
        cls,
        name: str,
        shape: Sequence[int],
        *,
        optimizer: Optimizer | None = None,
        initializer: Initializer | None = None,
        mode: str | Consistency | None = None,
        seed: int | None = None,
        aggregator: str = "sum",
        storage: str = "float32",
        compression: CompressionLike | None = None,
    ) -> Self:
        """One array, float32 to its users; by default SGD() and zeros."""
        return cls(
            name=name,
            kind="dense",
            dim=block_width(sides(name, shape)),
            shape=sides(name, shape),
            optimizer=SGD() if optimizer is None else optimizer,
            initializer=Zeros() if initializer is None else initializer,
            missing="error",  # every block is made with the table
            mode=None if mode is None else Consistency.of(mode),
            seed=seed,
            aggregator=aggregator,
            storage=storage,
            compression=compression,  # type: ignore[arg-type]  # as above
        )

    def resolved(self, mode: str | Consistency, seed: int) -> Self:
        """The same with the job's mode and seed where the table names none."""
        return replace(
            self,
            mode=Consistency.of(mode) if self.mode is None else self.mode,
            seed=seed if self.seed is None else self.seed,
        )

    def to_dict(self) -> dict[str, Any]:
        """All of it in msgpack types."""
        return {
            **{f.name: getattr(self, f.name) for f in fields(self)},
            "shape": list(self.shape),
            "optimizer": self.optimizer.to_dict(),
            "initializer": self.initializer.to_dict(),
            "mode": self.mode and self.mode.to_dict(),
            "admission": self.admission and self.admission.to_dict(),
            "expiry": self.expiry and self.expiry.to_dict(),
            "compression": self.compression and self.compression.to_dict(),
        }

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """The spec that `to_dict` described.

        Raises:
            SettingError: fields are missing, unknown or wrong.
        """
        known = {f.name for f in fields(cls)}
        if isinstance(settings, Mapping):  # checkpoints from before it have none
            settings = {"compression": None, **settings}
        if not isinstance(settings, Mapping) or set(settings) != known:
            raise SettingError(
                "table", f"a definition has the fields {sorted(known)}: {settings!r}"
            )
        values = dict(settings)
        values["optimizer"] = Optimizer.from_dict(values["optimizer"])
        values["initializer"] = Initializer.from_dict(values["initializer"])
        families: dict[str, type[Admission | Expiry]] = {"admission": Admission, "expiry": Expiry}
        for setting, family in families.items():
            if values[setting] is not None:
                values[setting] = family.from_dict(values[setting])
        return cls(**values)

    def difference(self, other: TableSpec) -> str:
        """What differs, as "dim 8 here, 16 there; …"; empty if nothing does."""
        return "; ".join(
            f"{f.name} {getattr(self, f.name)} here, {getattr(other, f.name)} there"
            for f in fields(self)
            if getattr(self, f.name) != getattr(other, f.name)
        )

    def _check_bounds(self) -> None:
        try:
            stored_bounds(self.optimizer, self.storage)
        except SettingError as error:
            raise SettingError(f"table {self.name}", error.problem) from None

    def _check_policies(self) -> None:
        table = f"table {self.name}"
        if self.admission is not None:
            self._check_type("admission", self.admission, Admission, "kv.policies")
            if self.missing == "error":
                problem = "admission decides which pushes make rows; with missing=error none does"
                raise SettingError(table, problem)
        if self.expiry is not None:
            self._check_type("expiry", self.expiry, Expiry, "kv.policies")
        self._check_choice("when_full", self.when_full, WHEN_FULL)
        object.__setattr__(self, "memory_limit", self._whole("memory_limit", self.memory_limit))
        if self.memory_limit < 0:
            raise SettingError(table, f"memory_limit must be 0 or more, not {self.memory_limit}")
        if self.when_full != "refuse" and not self.memory_limit:
            problem = f"when_full={self.when_full} needs a memory_limit, such as 1GiB"
            raise SettingError(table, problem)
        policies = (self.admission, self.expiry, self.memory_limit or None)
        if self.kind == "dense" and any(policy is not None for policy in policies):
            raise SettingError(table, "a dense table is always whole: it takes no policies")

    def _compression_of(self, given: object) -> Compression:
        try:
            return Compression.of(given)  # type: ignore[arg-type]  # which it checks
        except SettingError as error:
            raise SettingError(f"table {self.name}", str(error)) from None

    def _mode_of(self, mode: object) -> Consistency:
        try:
            if isinstance(mode, Mapping):
                return Consistency.from_dict(mode)
            if isinstance(mode, str | Consistency):
                return Consistency.of(mode)
        except SettingError as error:
            raise SettingError(f"table {self.name}", str(error)) from None
        problem = (
            f"mode must be {', '.join(Consistency.members)}, or one with settings, not {mode!r}"
        )
        raise SettingError(f"table {self.name}", problem)

    def _check_choice(self, field: str, value: object, choices: tuple[str, ...]) -> None:
        if value not in choices:
            problem = f"{field} must be {' or '.join(choices)}, not {value!r}"
            raise SettingError(f"table {self.name}", problem)

    def _check_type(self, field: str, value: object, kind: type, module: str = "") -> None:
        if not isinstance(value, kind):
            problem = f"{field} must be one of {module or f'kv.{field}s'}, not {value!r}"
            raise SettingError(f"table {self.name}", problem)

    def _whole(self, field: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise SettingError(f"table {self.name}", f"{field} must be an integer, not {value!r}")
        if abs(int(value)) > MOST:
            raise SettingError(f"table {self.name}", f"{field} must fit 64 bits, not {value}")
        return int(value)


def _nbytes(table: str, size: int | str) -> int:
    """A size in bytes, of a number or a text with a unit."""
    if not isinstance(size, str):
        return size
    try:
        return int(parse_quantity(size, BYTES))
    except ValueError as error:
        raise SettingError(f"table {table}", f"memory_limit: {error}") from None


def sides(table: str, shape: Sequence[int]) -> tuple[int, ...]:
    """`shape` as a tuple of Python integers.

    Raises:
        SettingError: no sequence of integers, each 1 or more.
    """
    try:
        found = tuple(operator.index(side) for side in shape)
    except TypeError:
        found = (0,)
    if any(side < 1 for side in found):
        raise SettingError(f"table {table}", f"a shape has sides of 1 or more, not {shape!r}")
    if math.prod(found) > MAX_FLOATS:
        raise SettingError(f"table {table}", f"a dense table of {shape!r} has over 2^36 numbers")
    return found


def block_width(shape: tuple[int, ...]) -> int:
    """Floats in a block of a dense array of `shape`."""
    size = math.prod(shape)
    return BLOCK if size > BLOCK else max(LINE, -(-size // LINE) * LINE)


@dataclass(frozen=True, eq=False)
class DenseLayout:
    """How an array of `shape` lies in blocks.

    Args:
        shape: of the array.
        dim: floats in a block.
        keys: uint64, shape (blocks,), strictly increasing.
        blocks: int64, shape (blocks,): the number of the block (in C order) under each key.
    """

    shape: tuple[int, ...]
    dim: int
    keys: NDArray[np.uint64]
    blocks: NDArray[np.int64]

    def pack(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """The blocks of `array` in the order of `keys`: float32 (blocks, dim), new memory.

        The rest of the last block is zeros: neither an optimiser's state there nor a norm over
        the block ever sees anything else.
        """
        padded = np.zeros(self.blocks.size * self.dim, np.float32)
        padded[: array.size] = array.reshape(-1)
        rows = padded.reshape(-1, self.dim)
        return rows if self.blocks.size == 1 else rows[self.blocks]

    def unpack(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """The array whose blocks, in the order of `keys`, are `values`; the padding is dropped."""
        rows = np.empty_like(values)
        rows[self.blocks] = values
        return rows.reshape(-1)[: math.prod(self.shape)].reshape(self.shape)


def dense_keys(spec: TableSpec) -> DenseLayout:
    """The layout of the dense table `spec`.

    Block b has the key mix64(h + b) with h a hash of the table's name, so that the blocks of one
    table are spread over slots and small tables do not meet on one server. mix64 is a bijection:
    no two blocks share a key.
    """
    count = -(-math.prod(spec.shape) // spec.dim)
    digest = hashlib.blake2b(spec.name.encode(), digest_size=8).digest()
    start = np.uint64(int.from_bytes(digest, "little"))
    keys = mix64(start + np.arange(count, dtype=np.uint64))
    blocks = np.argsort(keys).astype(np.int64)
    return DenseLayout(spec.shape, spec.dim, keys[blocks], blocks)
