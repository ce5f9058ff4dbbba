"""Text to the value that a field's annotation asks for, and back.

Known annotations: bool, int, float, str, `Seconds`, `NBytes`, `Literal` of texts, `X | None`
(empty is None) and `tuple[X, ...]` (comma separated).
"""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from van.quantities import Unit, format_quantity, parse_quantity

AT = "@"


@dataclass(frozen=True)
class ByPlace:
    """Marks the field of a section that holds its keys `KEY@WHERE`, as values by such keys.

    Attributes:
        keys: that may be said of places; their fields' annotations are those of the values.
    """

    keys: tuple[str, ...]


_LONGEST_NUMBER = 40  # characters
_TRUE, _FALSE = ("yes", "true", "on", "1"), ("no", "false", "off", "0")


def parse_value(text: str, annotation: Any) -> Any:
    """What `text` says as a value of type `annotation`.

    >>> parse_value("1, 2", tuple[int, ...]), parse_value("off", bool)
    ((1, 2), False)

    Raises:
        ValueError: it says no such value; the message tells what was expected.
        TypeError: no known annotation, which is a bug of the settings' owner.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated and isinstance(arguments[1], Unit):
        return parse_quantity(text, arguments[1])
    if origin is Literal:
        if text not in arguments:
            raise ValueError(
                f"expected {' or '.join(arguments)}, got {text!r}{nearest(text, arguments)}"
            )
        return text
    if origin in (Union, types.UnionType):
        return None if text == "" else parse_value(text, _without_none(arguments))
    if origin is tuple and arguments[1:] == (...,):
        parts = [part.strip() for part in text.replace("\n", ",").split(",")]
        return tuple(parse_value(part, arguments[0]) for part in parts if part)
    if annotation in _PARSERS:
        return _PARSERS[annotation](text)
    raise TypeError(f"settings cannot have the type {annotation}")


def format_value(value: Any, annotation: Any) -> str:
    """Text that `parse_value` reads back to `value`.

    Raises:
        ValueError: no text does, such as one with blanks at its ends.
    """
    text = _format(value, annotation)
    lines = text.split("\n")
    is_torn = any(line != line.strip() or not line or line[0] in "#;" for line in lines)
    if text and (is_torn or "\0" in text or "\r" in text):
        raise ValueError(f"{value!r} cannot be written into an ini file")
    if parse_value(text, annotation) != value:
        raise ValueError(f"{value!r} cannot be written as {annotation}")
    return text


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` where a known word is close to `word`, else nothing.

    >>> nearest("wokers", ["servers", "workers"])
    '; did you mean workers?'
    """
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""


def _format(value: Any, annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if value is None:
        return ""
    if origin is Annotated and isinstance(arguments[1], Unit):
        return format_quantity(value, arguments[1])
    if origin in (Union, types.UnionType):
        return _format(value, _without_none(arguments))
    if origin is tuple:
        return ", ".join(_format(item, arguments[0]) for item in value)
    if annotation is bool:
        return "yes" if value else "no"
    return str(value)


def _without_none(arguments: tuple[Any, ...]) -> Any:
    kept = [argument for argument in arguments if argument is not type(None)]
    if len(kept) != 1 or len(kept) == len(arguments):
        raise TypeError(f"settings cannot be one of {arguments}")
    return kept[0]


def _parse_bool(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(f"expected yes or no, got {text!r}")


def _parse_int(text: str) -> int:
    if len(text) <= _LONGEST_NUMBER:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(
                f"expected a whole number, got {text!r}{_comment_or_indent(text)}"
            ) from None
        if abs(value) < 1 << 64:  # no setting means more, and floats end somewhere
            return value
    raise ValueError(f"expected a whole number below 2^64, got {text[:_LONGEST_NUMBER]!r}")


def _parse_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"expected a number, got {text!r}{_comment_or_indent(text)}") from None
    if not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {text!r}")
    return value


def _comment_or_indent(text: str) -> str:
    if "\n" in text:
        return "; an indented line continues the value above it"
    return "; a comment stands on a line of its own" if " #" in text or " ;" in text else ""


_PARSERS: dict[Any, Any] = {bool: _parse_bool, int: _parse_int, float: _parse_float, str: str}
