"""What the columns of an extracted file mean: the contract between extraction and training.

Plain dataclasses with a JSON form; importing this module loads neither NumPy nor pyarrow. The
JSON text stands in the Parquet file's schema metadata under `METADATA_KEY` and, in every output
directory, in `features.json`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from feature_extract.errors import SchemaError

METADATA_KEY = "pslite.features"
FILE_NAME = "features.json"
VERSION = 1

Kind = Literal["dense", "sparse"]
Group = Literal["user", "ad", "user_ad"]
IndexKind = Literal["dictionary", "hash"]

KINDS: tuple[Kind, ...] = ("dense", "sparse")
GROUPS: tuple[Group, ...] = ("user", "ad", "user_ad")
INDEX_KINDS: tuple[IndexKind, ...] = ("dictionary", "hash")


@dataclass(frozen=True)
class Feature:
    """One feature and the column that holds it.

    Args:
        column: name of the Parquet column, `KIND_GROUP/KEY`.
        kind: `dense` is one float32 a sample, `sparse` uint64 indices.
        group: whom the feature describes; `user_ad` is a crossing of both.
        operator: the operator of the feature ini.
        prefix: features of one prefix share embeddings.
        multi: a sparse column of lists (any number of indices) instead of one index a sample.
    """

    column: str
    kind: Kind
    group: Group
    operator: str
    prefix: str
    multi: bool


@dataclass(frozen=True)
class FeatureSchema:
    """All features of one extraction.

    Args:
        features: in the order of the samples' text layout: dense before sparse, each by group
            user, ad, user_ad, within a group by key.
        index: how sparse values become numbers. 0 always means 'unknown'.
        size: highest index of the dictionary; None with hashing, where any uint64 may occur.
        label: definition of the label in the ini (`clk,direct`).
        id: definition of the sample's id in the ini; empty where the line number serves.
        ini: text of the feature ini, so that new data can be extracted alike.
        compat: whether the extraction ran in compatibility mode.
        identity: which index it was, such as `dictionary:` and a digest of its file: sparse values
            of two files mean the same where it is equal. None in descriptions of older releases.
    """

    features: tuple[Feature, ...]
    index: IndexKind
    size: int | None
    label: str
    id: str
    ini: str
    compat: bool = False
    identity: str | None = None

    def select(self, kind: Kind, group: Group | None = None) -> tuple[Feature, ...]:
        """The features of one kind, and of one group if it is given, in order."""
        return tuple(
            feature
            for feature in self.features
            if feature.kind == kind and group in (None, feature.group)
        )

    def to_json(self) -> str:
        """The description as JSON text."""
        return json.dumps({"version": VERSION, **asdict(self)}, ensure_ascii=False, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> FeatureSchema:
        """The description that `to_json` wrote.

        Raises:
            SchemaError: the text is not such a description or comes from a newer release.
        """
        try:
            raw: dict[str, Any] = json.loads(text)
            version = raw.pop("version")
            if version != VERSION:
                raise SchemaError(
                    f"the features are described in version {version}, this release reads "
                    f"version {VERSION}; extract again or update"
                )
            raw["features"] = tuple(Feature(**feature) for feature in raw["features"])
            return cls(**raw)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SchemaError(f"not a description of features: {error}") from None
