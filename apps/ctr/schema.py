"""Which features a data file has: name, group, dense or sparse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from apps.ctr.batch import GROUPS
from apps.ctr.errors import DataError


@dataclass(frozen=True)
class Schema:
    """Names of the features by group, in the order of the file.

    Attributes:
        dense: group -> names of its dense features.
        sparse: group -> names of its sparse features.
    """

    dense: dict[str, tuple[str, ...]]
    sparse: dict[str, tuple[str, ...]]

    def dense_names(self, groups: Sequence[str]) -> list[str]:
        """Dense features of `groups`, group by group in the order of `GROUPS`."""
        return [name for group in GROUPS if group in groups for name in self.dense[group]]

    def sparse_names(self, groups: Sequence[str]) -> list[str]:
        """Sparse features of `groups`, likewise."""
        return [name for group in GROUPS if group in groups for name in self.sparse[group]]

    def widths(self) -> dict[str, int]:
        """`dense_user` and so on -> number of features."""
        return {
            f"{kind}_{group}": len(names[group])
            for kind, names in (("dense", self.dense), ("sparse", self.sparse))
            for group in GROUPS
        }

    def check_same(self, other: Schema, file: str, than: str) -> None:
        """Refuse a file whose features are not those of this schema.

        Raises:
            DataError: naming the kind of feature and both counts.
        """
        ours, theirs = self.widths(), other.widths()
        for kind, width in ours.items():
            if theirs[kind] != width:
                problem = (
                    f"has {theirs[kind]} {kind} features, but {than} has {width}; "
                    f"extract both with one feature ini"
                )
                raise DataError(file, problem)


def schema_of(kinds: Sequence[tuple[str, str]]) -> Schema:
    """Schema of (kind, name) pairs, kinds being `dense_user`, `sparse_user_ad` and so on.

    >>> schema_of([("sparse_ad", "x"), ("dense_user", "y")]).sparse["ad"]
    ('x',)
    """

    def named(kind: str) -> dict[str, tuple[str, ...]]:
        return {
            group: tuple(name for found, name in kinds if found == f"{kind}_{group}")
            for group in GROUPS
        }

    return Schema(dense=named("dense"), sparse=named("sparse"))
