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
        index: identity of the index that numbers the sparse values, None where it is not known.
    """

    dense: dict[str, tuple[str, ...]]
    sparse: dict[str, tuple[str, ...]]
    index: str | None = None

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
        """Refuse a file whose features are not those of this schema, or are numbered otherwise.

        Raises:
            DataError: naming the kind of feature and both counts, or both indices.
        """
        ours, theirs = self.widths(), other.widths()
        for kind, width in ours.items():
            if theirs[kind] != width:
                problem = (
                    f"has {theirs[kind]} {kind} features, but {than} has {width}; "
                    f"extract both with one feature ini"
                )
                raise DataError(file, problem)
        if None not in (self.index, other.index) and self.index != other.index:
            problem = (
                f"its sparse values are numbered by {_shown(other.index)}, those of {than} by "
                f"{_shown(self.index)}, so the same number means another value; extract it as "
                f"those were, with pslite-features apply --dictionary FOLDER, or both together"
            )
            raise DataError(file, problem)

    def doubt(self, other: Schema, file: str, than: str) -> str | None:
        """A warning where nobody can tell whether a file's sparse values are numbered alike."""
        if self.index is not None and other.index is not None:
            return None
        unknown = than if self.index is None else file
        return (
            f"warning: nothing says which dictionary numbered the sparse values of {unknown}, so "
            f"{file} is taken to be numbered like {than}; make sure it is"
        )


def _shown(index: str | None) -> str:
    """An identity as people should see it: `dictionary 3f2a90c1`, `hash xxh3-64:0`."""
    kind, _, which = str(index).partition(":")
    return f"{kind} {which[:16]}"


def schema_of(kinds: Sequence[tuple[str, str]], index: str | None = None) -> Schema:
    """Schema of (kind, name) pairs, kinds being `dense_user`, `sparse_user_ad` and so on.

    >>> schema_of([("sparse_ad", "x"), ("dense_user", "y")]).sparse["ad"]
    ('x',)
    """

    def named(kind: str) -> dict[str, tuple[str, ...]]:
        return {
            group: tuple(name for found, name in kinds if found == f"{kind}_{group}")
            for group in GROUPS
        }

    return Schema(dense=named("dense"), sparse=named("sparse"), index=index)
