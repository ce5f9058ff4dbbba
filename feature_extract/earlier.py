"""What an earlier extraction left behind: its dictionary, and the description of its features."""

from __future__ import annotations

from pathlib import Path

from feature_extract.conf import FeatureConf, parse_conf
from feature_extract.errors import DictionaryError, SchemaError
from feature_extract.index import DICTIONARY, Dictionary, HashIndex, Index
from feature_extract.schema import FILE_NAME, FeatureSchema


def open_index(conf: FeatureConf, place: Path | None) -> tuple[Index, FeatureSchema | None]:
    """The index of an earlier extraction and, where there is one, its description.

    Args:
        conf: the features that are to be extracted now.
        place: the directory of that extraction or its dictionary file; None with hashing.
    Raises:
        DictionaryError: the dictionary cannot be read, or was made of other features.
        SchemaError: the description cannot be read.
    """
    if place is None:
        if conf.index == "hash":
            return HashIndex(), None
        raise DictionaryError(
            conf.file,
            "the values are numbered by a dictionary; name the directory of the extraction that "
            "made it, or write [index] kind = hash",
        )
    if not place.is_dir():
        return Dictionary.read(place), None
    description = place / FILE_NAME
    if not description.is_file():
        return Dictionary.read(place / DICTIONARY), None
    try:
        earlier = FeatureSchema.from_json(description.read_bytes())
    except SchemaError as error:
        raise SchemaError(f"{description}: {error}") from None
    _check_same(conf, parse_conf(earlier.ini, str(description)), place)
    if earlier.index == "hash":
        return HashIndex(), earlier
    dictionary = Dictionary.read(place / DICTIONARY)
    if earlier.identity not in (None, dictionary.identity):
        raise DictionaryError(
            str(place / DICTIONARY),
            f"is not the dictionary that the {FILE_NAME} beside it was written with; extract again",
        )
    return dictionary, earlier


def _check_same(now: FeatureConf, then: FeatureConf, place: Path) -> None:
    """Features must be the same; how samples are read, their id and label may differ."""
    ours = {feature.column: feature.meaning for feature in now.features}
    theirs = {feature.column: feature.meaning for feature in then.features}
    differing = [
        name for name in dict.fromkeys((*ours, *theirs)) if ours.get(name) != theirs.get(name)
    ]
    if differing:
        raise DictionaryError(
            str(place),
            f"made of other features than those of {now.file}: {', '.join(differing[:5])} "
            f"{'differ' if len(differing) > 1 else 'differs'}; use the ini of that extraction",
        )
