"""How a worker defines tables: one signature for workers of a cluster and of this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from kv.compression.settings import CompressionLike
from kv.consistency.settings import Consistency
from kv.initializers import Initializer
from kv.optimizers import Optimizer
from kv.policies import Admission, Expiry
from kv.spec import TableSpec

S = TypeVar("S")
D = TypeVar("D")


class DefinesTables(ABC, Generic[S, D]):
    """Base of the workers; S and D are their sparse and dense tables."""

    @abstractmethod
    def _sparse(self, spec: TableSpec) -> S:
        """The table `spec` defines, made where it has to be."""

    @abstractmethod
    def _dense(self, spec: TableSpec) -> D:
        """Likewise, dense."""

    def sparse_table(
        self,
        name: str,
        dim: int,
        *,
        optimizer: Optimizer | None = None,
        initializer: Initializer | None = None,
        missing: str = "init",
        mode: str | Consistency | None = None,
        aggregator: str = "sum",
        storage: str = "float32",
        admission: Admission | None = None,
        expiry: Expiry | None = None,
        memory_limit: int | str = 0,
        when_full: str = "refuse",
        compression: CompressionLike | None = None,
    ) -> S:
        """Define or find a table; defaults as in `TableSpec.sparse`.

        Raises:
            SettingError: the definition makes no sense.
            TableConflictError: the name stands for another definition.
        """
        return self._sparse(
            TableSpec.sparse(
                name,
                dim,
                optimizer=optimizer,
                initializer=initializer,
                missing=missing,
                mode=mode,
                aggregator=aggregator,
                storage=storage,
                admission=admission,
                expiry=expiry,
                memory_limit=memory_limit,
                when_full=when_full,
                compression=compression,
            )
        )

    def dense_table(
        self,
        name: str,
        shape: Sequence[int],
        *,
        optimizer: Optimizer | None = None,
        initializer: Initializer | None = None,
        mode: str | Consistency | None = None,
        aggregator: str = "sum",
        storage: str = "float32",
        compression: CompressionLike | None = None,
    ) -> D:
        """Define or find a dense table; defaults as in `TableSpec.dense`, errors as above."""
        return self._dense(
            TableSpec.dense(
                name,
                shape,
                optimizer=optimizer,
                initializer=initializer,
                mode=mode,
                aggregator=aggregator,
                storage=storage,
                compression=compression,
            )
        )
