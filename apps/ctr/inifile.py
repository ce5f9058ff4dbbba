"""Read an ini file into frozen dataclasses.

A section is a dataclass, a key one of its fields; the field's type says how the text is read and
`one_of`, `at_least`, `at_most` in its metadata what is allowed. Model files exist elsewhere, too,
so an unknown section or key in one is a warning; on the command line, where it can only be a
mistake, it is an error, and so is a wrong value anywhere.
"""

from __future__ import annotations

import configparser
import dataclasses
import difflib
import logging
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from van.errors import ConfigError

logger = logging.getLogger(__name__)
T = TypeVar("T")
Sections = dict[str, dict[str, str]]
Warn = Callable[[str], None]

TRUE = {"1", "true", "yes", "on"}
FALSE = {"0", "false", "no", "off"}
UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9}


def read_sections(path: str | Path) -> Sections:
    """The sections of an ini file; names keep their case, of a repeated key the last counts.

    A `#` or `;` starts a comment at the beginning of a line or after a blank.

    Raises:
        ConfigError: the file cannot be read or is no ini file.
    """
    parser = configparser.ConfigParser(
        strict=False, interpolation=None, inline_comment_prefixes=("#", ";"), default_section=""
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys keep their case
    try:
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 text: {error.reason}", file=str(path)) from error
    except configparser.Error as error:
        problem = " ".join(error.message.split())
        raise ConfigError(f"is no ini file: {problem}", file=str(path)) from error
    return {section: dict(parser[section]) for section in parser.sections()}


def parse_override(text: str) -> tuple[str, str, str]:
    """`section.key=value` as (section, key, value).

    >>> parse_override("train.epoch=3")
    ('train', 'epoch', '3')
    """
    place, equals, value = text.partition("=")
    section, dot, key = place.strip().partition(".")
    if not (equals and dot and section and key):
        raise ConfigError(f"{text!r} is not section.key=value, such as train.epoch=3", file="--set")
    return section, key, value.strip()


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean ...?`, or what there is to choose from."""
    choices = list(known)
    near = difflib.get_close_matches(word, choices, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known are {', '.join(choices)}"


def read_section(
    kind: type[T],
    values: Mapping[str, str],
    *,
    file: str,
    section: str,
    origin: Mapping[str, str],
    warn: Warn = logger.warning,
) -> T:
    """A dataclass of type `kind` from the keys of one section.

    Args:
        origin: key -> where a value comes from, if not from `file` (`--set`).
        warn: gets a line for each key of the file that is unknown.
    Raises:
        ConfigError: a value that cannot be read or is not allowed, or an unknown key of `origin`.
    """
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]  # kind is a dataclass
    found: dict[str, Any] = {}
    for key, text in values.items():
        where = origin.get(key, file)
        if key not in fields:
            hint = suggestion(key, fields)
            if key in origin:
                raise ConfigError(f"unknown key{hint}", file=where, section=section, key=key)
            warn(f"{where}: [{section}] {key} is unknown and ignored{hint}")
            continue
        try:
            found[key] = read_value(text, hints[key], fields[key].metadata)
        except ValueError as error:
            raise ConfigError(str(error), file=where, section=section, key=key) from error
    return kind(**found)


def read_value(text: str, hint: Any, metadata: Mapping[str, Any]) -> Any:
    """`text` as a value of type `hint`.

    Raises:
        ValueError: it is none, or not allowed by `metadata`.
    """
    parse: Callable[[str], Any] | None = metadata.get("parse")
    if parse is not None:
        return parse(text)
    value = _plain_value(text.strip(), _without_none(hint))
    allowed: Sequence[str] = metadata.get("one_of", ())
    if allowed and value not in allowed:
        raise ValueError(f"{text!r} is not allowed{suggestion(text, allowed)}")
    if "at_least" in metadata and not value >= metadata["at_least"]:
        raise ValueError(f"{text} must be at least {metadata['at_least']}")
    if "at_most" in metadata and not value <= metadata["at_most"]:
        raise ValueError(f"{text} must be at most {metadata['at_most']}")
    if "above" in metadata and not value > metadata["above"]:
        raise ValueError(f"{text} must be above {metadata['above']}")
    return value


def parse_size(text: str) -> int:
    """Bytes from text such as `512MiB`; a bare number is bytes.

    >>> parse_size("2KiB")
    2048
    """
    number = text.rstrip("BKMGi")
    unit = text[len(number) :]
    try:
        if unit not in UNITS or float(number) < 0:
            raise ValueError
        return int(float(number) * UNITS[unit])
    except ValueError:
        raise ValueError(f"{text!r} is not a size such as 512MiB or 2GiB") from None


def _without_none(hint: Any) -> Any:
    if isinstance(hint, types.UnionType):
        return next(part for part in typing.get_args(hint) if part is not type(None))
    return hint


def _plain_value(text: str, hint: Any) -> Any:
    if hint is bool:
        if text.lower() not in TRUE | FALSE:
            raise ValueError(f"{text!r} is neither true nor false")
        return text.lower() in TRUE
    if hint is int:
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
    if hint is float:
        return _finite(text)
    return text


def _finite(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if value - value != 0:  # NaN and infinity are the numbers that are not 0 here
        raise ValueError(f"{text!r} is not a finite number")
    return value
