"""How kernels are compiled, in one place.

No `fastmath`: results must be equal to the bit on every server. No `parallel`: two threads that
enter a parallel kernel under Numba's workqueue layer abort the process; threads come from callers.
`nogil` lets heartbeats run beside a long kernel.

Numba's cache notices neither edits here nor edits to a kernel that another file's kernel calls:
remove `__pycache__/*.nb?` after such an edit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from kv.kernels.sharing import share

Scalar = TypeVar("Scalar", bound=np.generic)

AHEAD = np.uint64(24)  # rows between a prefetch and its use, at least; measured at dim 8 to 128
MOST_AHEAD = np.uint64(72)  # likewise, at most
LINES_AHEAD = np.uint64(128)  # cache lines likewise, where they are of so many rows
LINE = np.uint64(16)  # float32 in a cache line
UNROLLED = np.uint64(128)  # floats, eight lines
BURST = np.uint64(16)  # cache lines that are asked for in one go
LEAST_BURST = np.uint64(2)  # rows likewise
NONE = np.uint64(0)  # rows that `ask_rows` has asked for yet
FARTHEST = np.uint64(256)  # floats of a row fetched by hand; the hardware notices longer ones


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` at its first call, cached on disk, without the interpreter lock."""
    compiled = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    share(compiled)
    return compiled


def frozen(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """A read-only, C-contiguous, aligned view of `array` (a copy only where it is neither).

    Numba does not check alignment, and small frames arrive unaligned.
    """
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        array = np.array(array, order="C")
    elif not flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


@intrinsic
def _prefetch(_context: Any, array: Any, index: Any) -> Any:
    """LLVM's read prefetch of element `index` of `array`'s memory, into all cache levels."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        memory = context.make_array(signature.args[0])(context, builder, arguments[0])
        ir: Any = cgutils.ir  # type: ignore[attr-defined]  # llvmlite, which has no owner of its own
        byte, word = cgutils.voidptr_t, cgutils.int32_t
        address = builder.bitcast(builder.gep(memory.data, [arguments[1]]), byte)
        hint = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte, word, word, word]),
            "llvm.prefetch.p0",
        )
        builder.call(hint, [address, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, index), codegen


def prefetch(array: Any, index: Any) -> None:
    """Hint that the element at flat position `index` of a C-contiguous `array` is read soon.

    Does nothing in plain Python; a wrong index is harmless.
    """


@overload(prefetch)
def _compiled_prefetch(array: Any, index: Any) -> Any:
    def hint(array: Any, index: Any) -> None:
        _prefetch(array, index)  # type: ignore[call-arg]  # Numba passes the context itself

    return hint


@intrinsic
def _bitcast(_context: Any, value: Any, kind: Any) -> Any:
    """The bits of `value`, read as the type `kind` of the same size."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

    return kind.dtype(value, kind), codegen


def bits_of(value: Any) -> Any:
    """The bits of a float32, as uint32."""
    return np.float32(value).view(np.uint32)


def float_of(bits: Any) -> Any:
    """The float32 that has these bits, uint32."""
    return np.uint32(bits).view(np.float32)


@overload(bits_of)
def _compiled_bits_of(value: Any) -> Any:
    def cast(value: Any) -> Any:
        return _bitcast(np.float32(value), np.uint32)  # type: ignore[call-arg]  # as above

    return cast


@overload(float_of)
def _compiled_float_of(bits: Any) -> Any:
    def cast(bits: Any) -> Any:
        return _bitcast(np.uint32(bits), np.float32)  # type: ignore[call-arg]

    return cast


@kernel
def ahead_of(floats):
    """How many rows ahead to ask for a row of so many floats, its state included."""
    lines = (np.uint64(floats) + LINE - np.uint64(1)) // LINE
    return max(AHEAD, min(MOST_AHEAD, LINES_AHEAD // lines))


@kernel
def prefetch_row(data, row, floats):
    """Hint that the start of a row is used soon.  data: float32 (capacity, stride)."""
    start, size = np.uint64(row) * np.uint64(data.shape[1]), np.uint64(floats)
    for offset in range(np.uint64(0), min(size, UNROLLED), LINE):
        prefetch(data, start + offset)
    if size > UNROLLED:  # apart: one loop over all is not unrolled, which short rows feel
        for offset in range(UNROLLED, min(size, FARTHEST), LINE):
            prefetch(data, start + offset)


@kernel
def burst_of(floats):
    """How many rows of so many floats, state included, `ask_rows` asks for at a time."""
    return max(LEAST_BURST, BURST // ((np.uint64(floats) + LINE - np.uint64(1)) // LINE))


@kernel
def ask_rows(data, rows, asked, stop, floats):
    """`prefetch_row` of rows, from number `asked` on, as far as rows up to `stop` want it.

    For loops that compute much for each row, which call this once a burst: a hint retires only when
    its page is known, and in a large table that takes a walk through the page tables. Beside the
    arithmetic of a row one hint fits into the processor's window, so that walks come one after the
    other; in a burst they overlap. Longer bursts would wait for free line buffers.

    data: float32 (capacity, stride); rows: int64 (n,); asked, stop: uint64. Returns up to which
    number rows have been asked for now."""
    until = min(np.uint64(stop) + ahead_of(floats), np.uint64(rows.size))
    for i in range(np.uint64(asked), until):
        prefetch_row(data, rows[i], floats)
    return until
