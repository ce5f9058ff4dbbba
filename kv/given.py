"""What callers give a worker besides arrays, checked before anything is sent or changed.

Both families of workers, remote and in one process, refuse the same things by the same words.
Of arrays `kv.keylist` sees to that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from kv.clipping import Clipping
from kv.errors import KVError, SettingError
from kv.protocols import Read, Write
from kv.settings import GREATEST
from kv.versions import Version

FARTHEST = 1 << 20  # steps that a pull may be ahead: nobody lives to see its answer
_READ = "(sparse table, keys), or a dense table"
_WRITE = "(sparse table, keys, gradients), or (dense table, gradient)"


def reads_of(reads: Iterable[Read]) -> list[Read]:
    """What is to be read, as a list.

    Raises:
        KVError: it is no list of reads. Of what tables they are, is looked at elsewhere.
    """
    found = _listed(reads, "reads", _READ)
    for read in found:
        if isinstance(read, tuple) and len(read) != 2:
            raise KVError(f"a read is {_READ}, not {_short(read)}")
    return found


def writes_of(writes: Iterable[Write]) -> list[Write]:
    """What is to be written, as a list.

    Raises:
        KVError: it is no list of writes, as for `reads_of`.
    """
    found = _listed(writes, "writes", _WRITE)
    for write in found:
        if not isinstance(write, tuple) or len(write) not in (2, 3):
            raise KVError(f"a write is {_WRITE}, not {_short(write)}")
    return found


def _listed(given: Any, what: str, form: str) -> list[Any]:
    if type(given) is list:
        return given
    is_one = isinstance(given, tuple) and any(hasattr(part, "pull") for part in given[:1])
    if is_one and len(given) > 1 and not hasattr(given[1], "pull") and type(given[1]) is not tuple:
        raise KVError(f"{what} come in a list, each {form}; this is a single one: put it in []")
    try:
        return list(given)
    except TypeError:
        raise KVError(f"{what} come in a list, each {form}, not {_short(given)}") from None


def weight_of(weight: object) -> float:
    """The weight of a push.

    Raises:
        SettingError: it is no finite number of 0 or more.
    """
    is_number = isinstance(weight, int | float | np.number)
    if not is_number or not 0 <= weight <= GREATEST:  # type: ignore[operator]
        problem = f"weight must be a finite number, 0 or more, not {_short(weight)}"
        raise SettingError("push", problem)
    return float(weight)  # type: ignore[arg-type]


def steps_ahead(steps: object) -> int:
    """How many steps a pull is ahead.

    Raises:
        SettingError: it is no whole number of 0 or more. A server would drop such a request, or
            keep it for ever.
    """
    is_whole = isinstance(steps, int | np.integer) and not isinstance(steps, bool)
    if not is_whole or not 0 <= int(steps) <= FARTHEST:  # type: ignore[call-overload]
        problem = f"steps must be a whole number from 0 to {FARTHEST}, not {_short(steps)}"
        raise SettingError("pull_ahead", problem)
    return int(steps)  # type: ignore[call-overload,no-any-return]


def clipping_of(clipping: object) -> Clipping | None:
    """What is to be done to gradients.

    Raises:
        SettingError: it is no `Clipping`.
    """
    if clipping is not None and not isinstance(clipping, Clipping):
        problem = f"clipping must be a pslite.Clipping or None, not {_short(clipping)}"
        raise SettingError("push_many", problem)
    return clipping


def timeout_of(timeout: object) -> float | None:
    """How many seconds to wait; None: without end.

    Raises:
        SettingError: it is no number.
    """
    if timeout is not None and (not isinstance(timeout, Real) or math.isnan(timeout)):
        problem = f"timeout must be a number of seconds or None, not {_short(timeout)}"
        raise SettingError("wait", problem)
    return None if timeout is None else float(timeout)


def since_of(since: object, table: str) -> Version:
    """After which version changes are asked for.

    Raises:
        SettingError: it is neither None nor what `pull_changed` or `get_meta` returned.
    """
    if since is None:
        return {}
    if not isinstance(since, Mapping) or not all(
        isinstance(rank, int)
        and isinstance(versions, Sequence)
        and all(isinstance(version, int) and 0 <= version < 1 << 63 for version in versions)
        for rank, versions in since.items()
    ):
        problem = "since must be None or the version of an earlier pull_changed or get_meta"
        raise SettingError(f"table {table}", f"{problem}, not {_short(since)}")
    return since


def _short(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 100 else f"{text[:100]}…"
