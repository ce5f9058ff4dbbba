"""All features of one chunk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from feature_extract.chunk import Chunk, Encoded
from feature_extract.columns import Columns
from feature_extract.conf import FeatureConf
from feature_extract.definition import FeatureDefinition
from feature_extract.index import full_texts
from feature_extract.operators import Cells, Dense, dense, label, sparse, value


@dataclass(frozen=True)
class Samples:
    """The features of a chunk before their values have numbers.

    Args:
        id: the id of each sample with its prefix, as it stands in every output.
        label: the label.
        dense, sparse: by definition, in the order of the ini's text layout.
    """

    id: Encoded
    label: Dense
    dense: dict[FeatureDefinition, Dense]
    sparse: dict[FeatureDefinition, Cells]

    def __len__(self) -> int:
        return len(self.id.codes)


def extract_chunk(
    chunk: Chunk, conf: FeatureConf, *, compat: bool, as_numbers: bool, labelled: bool = True
) -> Samples:
    """Apply all definitions of an ini to a chunk.

    Args:
        compat: `NULL` in a number column is an error.
        as_numbers: whether labels and dense values are wanted as numbers (Parquet) or as the texts
            that they are (text files).
        labelled: whether a sample without a label is an error; its number is NaN otherwise.
    Raises:
        SampleError: a value is wrong; the text names file and line.
    """
    columns = Columns(chunk, conf, compat)
    dense_features = {
        definition: dense(definition, columns, as_numbers=as_numbers)
        for definition in conf.features
        if definition.kind == "dense"
    }
    return Samples(
        id=_identity(columns),
        label=label(conf.label, columns, as_numbers=as_numbers, required=labelled),
        dense=dense_features,
        sparse=extract_sparse(columns),
    )


def extract_sparse(columns: Columns) -> dict[FeatureDefinition, Cells]:
    """Only the sparse features, which is all that a dictionary is counted from."""
    return {
        definition: sparse(definition, columns)
        for definition in columns.conf.features
        if definition.kind == "sparse"
    }


def _identity(columns: Columns) -> Encoded:
    """The samples' ids; their line numbers where the ini defines none."""
    definition, chunk = columns.conf.id, columns.chunk
    if definition is not None:
        codes, texts = value(definition, columns)
        return Encoded(codes, full_texts(definition.prefix, texts))
    every = np.arange(len(chunk), dtype=np.int32)
    return Encoded(every, full_texts("id", pc.cast(pa.array(chunk.lines), pa.string())))
