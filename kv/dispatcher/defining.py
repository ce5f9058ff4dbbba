"""Tables that servers have taken come to be known here, their kernels loaded if need be."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kv.dispatcher.known_tables import KnownTables
from kv.dispatcher.packing import Packing
from kv.executor import Executor, Turns
from kv.spec import TableSpec

Defined = Callable[[BaseException | None], None]
"""Called when a table is known, with what went wrong."""


class Defining:
    """Takes in definitions. Called with the dispatcher's lock held; calls back with or without.

    Args:
        tables: those that are known.
        packing: makes ready for compressed values.
        executor: waits for kernels.
        lock: the dispatcher's.
    """

    def __init__(
        self, tables: KnownTables, packing: Packing, executor: Executor, lock: threading.RLock
    ) -> None:
        self._tables, self._packing, self._executor, self._lock = tables, packing, executor, lock

    def define(self, spec: TableSpec, defined: Defined) -> None:
        """Know a table that servers have taken."""
        if spec.compression is None:
            self._tables.add(spec)
            defined(None)
        else:
            self._executor.submit(self._defining(spec, defined))

    def _defining(self, spec: TableSpec, defined: Defined) -> Turns[None]:
        """The same of a table with compression, whose kernels have to be loaded."""
        try:
            encoder = self._packing.define(spec)
        except Exception as error:  # the worker hears so
            defined(error)
            return
        with self._lock:
            self._tables.add(spec, encoder)
        defined(None)
        return
        yield
