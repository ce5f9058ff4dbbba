"""One feature as its ini line defines it, checked against the columns of the samples.

    INDEX_NAME = FIELD[|FIELD...],OPERATOR[,ARGS...]

Pure text work; what an operator computes is `operators`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from feature_extract.errors import IniError, nearest
from feature_extract.numbers import number
from feature_extract.schema import Group, Kind

DENSE = ("direct", "log", "sqrt", "bucket", "hit")
SPARSE = ("direct", "log", "sqrt", "bucket", "combine", "group", "hit")
IDENTITY = ("direct", "bucket", "combine")  # what makes a sample's id
PARTS = ("direct", "bucket")  # what `combine` joins
ARGUMENTS = {  # operator -> (fewest arguments, most arguments, what they are)
    "direct": (0, 0, "no argument"),
    "log": (0, 0, "no argument"),
    "sqrt": (0, 0, "no argument"),
    "bucket": (1, 1, "one argument, its breaks (20|50|100)"),
    "combine": (2, 2, "two arguments, operators and their arguments (direct|bucket,#20|50)"),
    "group": (0, 1, "at most one argument, the prefix to share"),
    "hit": (0, 0, "no argument"),
}
DELIMITERS = ",|#\t"


@dataclass(frozen=True)
class Place:
    """Where in which ini file a definition stands; makes the errors about it."""

    file: str
    section: str
    key: str
    line: int

    def error(self, problem: str) -> IniError:
        return IniError(problem, file=self.file, section=self.section, key=self.key, line=self.line)


@dataclass(frozen=True)
class Part:
    """One field of a feature and what is done to it before `combine` joins the parts."""

    field: str
    operator: str
    breaks: tuple[float, ...] = ()


@dataclass(frozen=True)
class Definition:
    """A checked feature.

    Args:
        place: where it is defined.
        operator: one of `SPARSE`.
        fields: the columns it reads, in order.
        prefix: what stands before `#` in its values.
        breaks: of `bucket`, each exactly a float32, never falling.
        parts: of `combine`, one a field.
        text: the definition as written.
    """

    place: Place
    operator: str
    fields: tuple[str, ...]
    prefix: str
    text: str
    breaks: tuple[float, ...] = ()
    parts: tuple[Part, ...] = field(default=())

    @property
    def key(self) -> str:
        return self.place.key

    @property
    def meaning(self) -> tuple[object, ...]:
        """All that its values depend on: equal for definitions that extract the same."""
        return (self.operator, self.fields, self.prefix, self.breaks, self.parts)

    @property
    def multi(self) -> bool:
        """Whether one sample may have several values."""
        return self.operator == "group"


@dataclass(frozen=True)
class FeatureDefinition(Definition):
    """A definition of one of the six feature sections."""

    kind: Kind = "sparse"
    group: Group = "user"

    @property
    def column(self) -> str:
        """Name of its column: `dense_user/001_seen_log`."""
        return f"{self.kind}_{self.group}/{self.key}"


def define(
    text: str, place: Place, fields: Collection[str], operators: tuple[str, ...]
) -> Definition:
    """Read one definition.

    Args:
        text: the value of the ini key.
        place: where it stands.
        fields: the columns that samples have.
        operators: those allowed in this section.
    Raises:
        IniError: an operator, field, argument count, delimiter or number is wrong.
    """
    tokens = [token.strip() for token in text.split(",")]
    if len(tokens) < 2:
        raise place.error(f"{text!r} lacks an operator; write FIELD,OPERATOR[,ARGUMENTS]")
    names, operator, arguments = tuple(tokens[0].split("|")), tokens[1], tokens[2:]
    _check_operator(operator, arguments, place, operators)
    names = tuple(name.strip() for name in names)
    _check_fields(operator, names, place, fields)
    prefix, breaks, parts = place.key, (), ()  # type: tuple[str, tuple[float, ...], tuple[Part, ...]]
    if operator == "direct":
        prefix = names[0]
    elif operator == "group" and arguments:
        prefix = arguments[0]
    elif operator == "bucket":
        breaks = _breaks(arguments[0], place)
    elif operator == "combine":
        parts = _parts(names, arguments, place)
    _check_prefix(prefix, place)
    return Definition(place, operator, names, prefix, text, breaks, parts)


def _check_operator(
    operator: str, arguments: list[str], place: Place, allowed: tuple[str, ...]
) -> None:
    if operator not in ARGUMENTS:
        raise place.error(f"unknown operator {operator!r}{nearest(operator, allowed)}")
    if operator not in allowed:
        raise place.error(
            f"operator {operator!r} is not possible here; allowed are {', '.join(allowed)}"
        )
    fewest, most, meaning = ARGUMENTS[operator]
    if not fewest <= len(arguments) <= most:
        raise place.error(f"operator {operator!r} takes {meaning}, not {len(arguments)}")


def _check_fields(
    operator: str, names: tuple[str, ...], place: Place, fields: Collection[str]
) -> None:
    for name in names:
        if name not in fields:
            hint = nearest(name, fields)
            raise place.error(f"the samples have no field {name!r}{hint}")
    wanted = {"hit": 2, "combine": len(names)}.get(operator, 1)
    if len(names) != wanted:
        raise place.error(
            f"operator {operator!r} reads {wanted} field{'s' * (wanted > 1)}, not {len(names)} "
            f"({'|'.join(names)})"
        )


def _check_prefix(prefix: str, place: Place) -> None:
    if not prefix:
        raise place.error("the prefix is empty")
    for sign in DELIMITERS:
        if sign in prefix:
            raise place.error(
                f"{prefix!r} contains {sign!r}, which separates values; choose another name"
            )


def _breaks(text: str, place: Place) -> tuple[float, ...]:
    breaks: list[float] = []
    for token in text.split("|"):
        value = number(token)
        if value is None:
            raise place.error(
                f"break {token!r} of {text!r} is not a finite number; write 20|50|100"
            )
        if breaks and value < breaks[-1]:
            raise place.error(
                f"break {token.strip()} of {text!r} is below the one before it, so no value could "
                f"reach it; write rising breaks such as 20|50|100"
            )
        breaks.append(value)
    return tuple(breaks)


def _parts(names: tuple[str, ...], arguments: list[str], place: Place) -> tuple[Part, ...]:
    operators = [token.strip() for token in arguments[0].split("|")]
    settings = arguments[1].split("#")
    if not len(names) == len(operators) == len(settings):
        raise place.error(
            f"'combine' needs one operator and one argument (it may be empty) for each field: "
            f"{len(names)} fields, {len(operators)} operators, {len(settings)} arguments"
        )
    parts = []
    for name, operator, setting in zip(names, operators, settings, strict=True):
        if operator not in PARTS:
            raise place.error(
                f"'combine' joins {' and '.join(PARTS)}, not {operator!r}{nearest(operator, PARTS)}"
            )
        if operator == "direct" and setting.strip():
            raise place.error(f"'direct' takes no argument, but {name} has {setting!r}")
        breaks = _breaks(setting, place) if operator == "bucket" else ()
        parts.append(Part(name, operator, breaks))
    return tuple(parts)


def break_array(breaks: tuple[float, ...]) -> NDArray[np.float32]:
    """Breaks to search with: float32, never falling."""
    return np.array(breaks, dtype=np.float32)
