"""Small frozen settings that have a name: optimisers, schedules, initialisers.

A `Named` family travels as `{"name": "adagrad", "lr": 0.05, ...}`, is made from an ini file by
name, and says which setting is wrong and which name was probably meant.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, ClassVar, Self

from kv.errors import SettingError

GREATEST = 3e38  # about the largest float32


class Named:
    """Base of a family; each member is a frozen dataclass with a `name` and numbers as fields.

    A field whose metadata has a `family` holds a member of that family, or None; one with `is_pair`
    two numbers of which each may be None, or None for both.
    """

    family: ClassVar[str]
    name: ClassVar[str]
    members: ClassVar[dict[str, Any]]  # name -> class

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "family" in cls.__dict__:
            cls.members = {}
        else:
            cls.members[cls.name] = cls

    def __post_init__(self) -> None:
        for field in self._fields():
            family, value = field.metadata.get("family"), getattr(self, field.name)
            if family is not None:
                value = self._member(field.name, family)
            elif field.metadata.get("is_pair"):
                value = self._pair(field.name, value)
            else:
                value = self._number(field.name, value)
            object.__setattr__(self, field.name, value)
        self.check()

    def check(self) -> None:
        """Raise `SettingError` if the numbers make no sense together."""

    def require(self, holds: bool, setting: str, rule: str) -> None:
        """Raise `SettingError` unless `holds`: `setting` must be `rule`."""
        if not holds:
            value = getattr(self, setting)
            raise SettingError(self._label(), f"{setting} must be {rule}, not {value}")

    def to_dict(self) -> dict[str, Any]:
        """The name and the settings, msgpack types only."""
        values = {f.name: getattr(self, f.name) for f in self._fields()}
        return {"name": self.name, **{key: _plain(value) for key, value in values.items()}}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """The member that `to_dict` described.

        Raises:
            SettingError: no name, an unknown one, or settings that do not fit it.
        """
        if not isinstance(settings, Mapping) or not isinstance(settings.get("name"), str):
            raise SettingError(cls.family, f"a name is missing in {settings!r}")
        rest = {str(key): value for key, value in settings.items()}
        name = rest.pop("name")
        return cls.by_name(name, **rest)

    @classmethod
    def by_name(cls, name: str, **settings: Any) -> Self:
        """The member called `name`, upper or lower case, with `settings`.

        Raises:
            SettingError: an unknown name or setting (the text suggests the nearest), a setting
                that is missing or out of range.
        """
        member = cls.members.get(name.lower())
        if member is None:
            raise SettingError(cls.family, _unknown(f"name {name!r}", name, list(cls.members)))
        fields = {field.name: field for field in dataclasses.fields(member)}
        label = f"{cls.family} {member.name}"
        for setting in settings:
            if setting not in fields:
                raise SettingError(label, _unknown(f"setting {setting!r}", setting, list(fields)))
        absent = [
            f.name
            for f in fields.values()
            if f.default is dataclasses.MISSING and f.name not in settings
        ]
        if absent:
            raise SettingError(label, f"{', '.join(absent)} must be given")
        made: Self = member(**settings)
        return made

    def _label(self) -> str:
        return f"{self.family} {self.name}"

    def _fields(self) -> tuple[dataclasses.Field[Any], ...]:
        return dataclasses.fields(self)  # type: ignore[arg-type]  # members are dataclasses

    def _member(self, setting: str, family: type[Named]) -> Named | None:
        value = getattr(self, setting)
        if value is None or isinstance(value, family):
            return value
        if not isinstance(value, Mapping):
            problem = f"{setting} must be one of kv.{family.family}s, not {value!r}"
            raise SettingError(self._label(), problem)
        return family.from_dict(value)

    def _pair(self, setting: str, value: Any) -> tuple[float | None, float | None] | None:
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
            problem = f"{setting} must be two numbers (low, high), None for an open end"
            raise SettingError(self._label(), f"{problem}, not {value!r}")
        low, high = (None if end is None else self._number(setting, end) for end in value)
        return None if low is None and high is None else (low, high)

    def _number(self, setting: str, value: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if isinstance(value, bool) or not abs(number) <= GREATEST:
            raise SettingError(self._label(), f"{setting} must be a finite number, not {value!r}")
        return number


def _plain(value: Any) -> Any:
    """A setting in msgpack types."""
    if isinstance(value, Named):
        return value.to_dict()
    return list(value) if isinstance(value, tuple) else value


def _unknown(what: str, given: str, known: list[str]) -> str:
    near = difflib.get_close_matches(given.lower(), known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    listing = f"known are {', '.join(known)}" if known else "it has none"
    return f"unknown {what}; {hint}{listing}"


def learning_rate(table: str, lr: Any) -> float:
    """`lr` as a number.

    Raises:
        SettingError: it is no finite number of 0 or more; the text names the table.
    """
    is_number = isinstance(lr, Real) and not isinstance(lr, bool)  # NumPy's numbers are Real, too
    if not is_number or not 0 <= lr <= GREATEST:
        raise SettingError(f"table {table}", f"lr must be a finite number, 0 or more, not {lr!r}")
    return float(lr)
