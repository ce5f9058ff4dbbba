"""Settings of the compression schemes, and chains of them.

    selective   whole rows that hardly changed are kept back
    delta       what differs from the update before
    topk        the largest numbers, or the longest rows
    fp16 bf16   numbers of two bytes
    int8        of one byte, with a scale for each row
    onebit      of one bit, with two means for each column
    zstd        the bytes of it all, without loss

A chain such as `topk:0.1+fp16` is at most one of each line, in this order. A scheme's settings
follow it after colons, in order or by name: `topk:0.1`, `selective:eps=0.001`. No arrays and no
Numba, so that any process may import this.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from kv.errors import SettingError
from kv.settings import Named

NONE = "none"


class Scheme(Named):
    """Base of all schemes' settings.

    Attributes:
        stage: its place in a chain.
        loses: whether it says less than it is given.
    """

    family: ClassVar[str] = "compression scheme"
    stage: ClassVar[int]
    loses: ClassVar[bool] = True

    @property
    def keeps_errors(self) -> bool:
        """Whether what it loses is to be kept and sent later."""
        return self.loses and bool(getattr(self, "feedback", 0))

    def __str__(self) -> str:
        """As `Chain.parse` reads it."""
        parts = [self.name]
        for place, field in enumerate(self._fields(), 1):
            value = getattr(self, field.name)
            if value != field.default:
                number = repr(value).removesuffix(".0")
                is_plain = place == 1 and field.name != "feedback"
                parts.append(number if is_plain else f"{field.name}={number}")
        return ":".join(parts)

    def _check_switch(self, setting: str) -> None:
        self.require(getattr(self, setting) in (0, 1), setting, "0 or 1")


@dataclass(frozen=True)
class Selective(Scheme):
    """Rows that changed little since they were last sent are kept back, to be added to later ones.

    A row is sent when the length (L2 norm) of its gradient, with what was kept back, is above both
    limits.

    Args:
        eps: a length.
        relative: a length, in root mean squares of the lengths of the message's rows.
    """

    name: ClassVar[str] = "selective"
    stage: ClassVar[int] = 0
    eps: float = 0.0
    relative: float = 0.0

    def check(self) -> None:
        self.require(self.eps >= 0, "eps", "0 or more")
        self.require(0 <= self.relative <= 1000, "relative", "0 to 1000")
        if not self.eps and not self.relative:
            problem = "a limit must be given, such as selective:0.001 or selective:relative=0.5"
            raise SettingError(self._label(), problem)

    @property
    def keeps_errors(self) -> bool:
        return True


@dataclass(frozen=True)
class Delta(Scheme):
    """The difference of a row's update and the one before, which both sides know.

    It loses nothing itself: what follows in the chain makes the difference small.
    """

    name: ClassVar[str] = "delta"
    stage: ClassVar[int] = 1
    loses: ClassVar[bool] = False


@dataclass(frozen=True)
class TopK(Scheme):
    """The largest magnitudes of a message; the rest is kept back.

    Args:
        share: of the numbers (of the rows) that are sent; at least one is.
        rows: 1 takes whole rows, the longest; 0 single numbers.
        feedback: 1 keeps what is not sent for later messages; 0 forgets it.

    Source: Aji and Heafield, Sparse communication for distributed gradient descent, EMNLP 2017.
    """

    name: ClassVar[str] = "topk"
    stage: ClassVar[int] = 2
    share: float
    rows: float = 0
    feedback: float = 1

    def check(self) -> None:
        self.require(0 < self.share <= 1, "share", "above 0, at most 1")
        self._check_switch("rows")
        self._check_switch("feedback")


@dataclass(frozen=True)
class FP16(Scheme):
    """IEEE halves, after a power of two that brings the largest of a message to their top.

    So none becomes infinite, and those down to 2^-29 of the largest keep all 11 bits.
    """

    name: ClassVar[str] = "fp16"
    stage: ClassVar[int] = 3
    feedback: float = 1

    def check(self) -> None:
        self._check_switch("feedback")


@dataclass(frozen=True)
class BF16(Scheme):
    """The upper half of a float32, rounded to nearest: its range with 8 bits of precision."""

    name: ClassVar[str] = "bf16"
    stage: ClassVar[int] = 3
    feedback: float = 1

    def check(self) -> None:
        self._check_switch("feedback")


@dataclass(frozen=True)
class Int8(Scheme):
    """Multiples, -127 to 127, of a step for each row: its largest magnitude over 127."""

    name: ClassVar[str] = "int8"
    stage: ClassVar[int] = 3
    feedback: float = 1

    def check(self) -> None:
        self._check_switch("feedback")


@dataclass(frozen=True)
class OneBit(Scheme):
    """The sign; each side stands for the mean of its numbers in a column (in a dense block).

    Source: Seide et al., 1-bit stochastic gradient descent, INTERSPEECH 2014, section 3.2.
    """

    name: ClassVar[str] = "onebit"
    stage: ClassVar[int] = 3
    feedback: float = 1

    def check(self) -> None:
        self._check_switch("feedback")


@dataclass(frozen=True)
class Zstd(Scheme):
    """Zstandard over the bytes of all that comes before it in the chain.

    Args:
        level: of its effort, 1 to 19.
    """

    name: ClassVar[str] = "zstd"
    stage: ClassVar[int] = 4
    loses: ClassVar[bool] = False
    level: float = 1

    def check(self) -> None:
        whole = self.level == int(self.level)
        self.require(whole and 1 <= self.level <= 19, "level", "a whole number, 1 to 19")


@dataclass(frozen=True)
class Chain:
    """Schemes that are applied one after the other.

    Raises:
        SettingError: none, or not in order.
    """

    schemes: tuple[Scheme, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "schemes", tuple(self.schemes))
        if not self.schemes:
            raise SettingError("compression", f"a chain has a scheme; {NONE} is no chain")
        for before, after in zip(self.schemes, self.schemes[1:], strict=False):
            if before.stage == after.stage:
                problem = f"{self}: {before.name} and {after.name} do the same; take one of them"
                raise SettingError("compression", problem)
            if before.stage > after.stage:
                problem = f"{self}: {after.name} must stand before {before.name}"
                raise SettingError("compression", problem)
        names = [scheme.name for scheme in self.schemes]
        if names[-1] == Delta.name:
            problem = f"{self}: delta makes nothing smaller itself; write {self}+int8"
            raise SettingError("compression", problem)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The chain that a text such as `topk:0.1+fp16` describes; `str` gives such a text.

        Raises:
            SettingError: it describes none.
        """
        return cls(tuple(_scheme(part.strip()) for part in text.split("+")))

    def __str__(self) -> str:
        return "+".join(map(str, self.schemes))

    def find(self, kind: type[Scheme]) -> Any:
        """The scheme of that kind in the chain, or None."""
        return next((scheme for scheme in self.schemes if isinstance(scheme, kind)), None)

    @property
    def quantiser(self) -> Scheme | None:
        """The scheme that makes numbers shorter, if there is one."""
        return next((scheme for scheme in self.schemes if scheme.stage == FP16.stage), None)

    @property
    def keeps_errors(self) -> bool:
        """Whether what is lost is kept and sent later."""
        return any(scheme.keeps_errors for scheme in self.schemes)

    @property
    def loses(self) -> bool:
        """Whether less arrives than was given."""
        return any(scheme.loses for scheme in self.schemes)


def _scheme(text: str) -> Scheme:
    name, *given = (part.strip() for part in text.split(":"))
    if name == NONE:
        raise SettingError("compression", f"{NONE} stands alone: it is no part of a chain")
    if name.lower() not in Scheme.members:
        return Scheme.by_name(name)  # says what is known
    fields = [field.name for field in dataclasses.fields(Scheme.members[name.lower()])]
    settings: dict[str, float] = {}
    for place, part in enumerate(given):
        key, equals, value = (word.strip() for word in part.rpartition("="))
        if not equals:
            if place >= len(fields):
                known = f"has {len(fields)}: {', '.join(fields)}" if fields else "has none"
                raise SettingError(f"compression scheme {name}", f"{text!r}: it {known}")
            key = fields[place]
        if key in settings:
            raise SettingError(f"compression scheme {name}", f"{key} is given twice in {text!r}")
        try:
            settings[key] = float(value)
        except ValueError:
            problem = f"{key} must be a number, not {value!r}"
            raise SettingError(f"compression scheme {name}", problem) from None
    return Scheme.by_name(name, **settings)
