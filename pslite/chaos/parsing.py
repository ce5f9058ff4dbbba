"""Text to a `Plan`, or an error that shows the place.

plan      = [clause {"," clause}]
clause    = act who "@" moment ["for" time]
          | harm number "%" ["up to" time] ["between" who "and" who] [("from" | "@") time]
            ["for" time]
          | "partition" who "from" who "@" time ["for" time]
who       = role [":" rank]
moment    = time | event [":" number] ["+" time]
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, cast

from postoffice.node import Role
from pslite.chaos.plan import (
    ACTS,
    EVENTS,
    HARMS,
    ROLES,
    Act,
    Clause,
    Event,
    Harm,
    MessageFault,
    Moment,
    Partition,
    Plan,
    ProcessFault,
    Who,
)
from pslite.values import nearest
from van.quantities import SECONDS, parse_quantity

_TOKEN = re.compile(r"[0-9][0-9.]*(?:[eE][+-]?[0-9]+)?[A-Za-z]*|[A-Za-z_]+|\S")
_VERBS = (*ACTS, *HARMS, "partition")
_LONGEST_SHOWN = 60  # characters of a plan around a mistake
_MOST_DIGITS = 9  # of a rank or a count


class PlanError(ValueError):
    """A plan that cannot be read. `place` is where, in characters from 0."""

    def __init__(self, problem: str, text: str, place: int) -> None:
        self.problem, self.place = problem, place
        start = max(0, place - _LONGEST_SHOWN // 2)
        shown = " ".join(text[start : start + _LONGEST_SHOWN].splitlines())
        super().__init__(f"{problem}\n    {shown}\n    {' ' * (place - start)}^")


def parse_plan(text: str, counts: Mapping[Role, int] | None = None) -> Plan:
    """The plan that `text` says.

    >>> str(parse_plan("kill  server@20s , drop 2 %"))
    'kill server@20s, drop 2%'

    Args:
        text: clauses with commas between.
        counts: nodes of each role, so that a rank that none of them has is a mistake; None: any
            rank may exist.
    Raises:
        PlanError: it says none.
    """
    return _Reader(text, counts).plan()


@dataclass(frozen=True)
class _Token:
    text: str
    place: int


class _Reader:
    """Reads tokens from left to right."""

    def __init__(self, text: str, counts: Mapping[Role, int] | None) -> None:
        self._text, self._counts = text, counts
        self._tokens = [_Token(match[0], match.start()) for match in _TOKEN.finditer(text)]
        self._tokens.append(_Token("", len(text.rstrip())))
        self._at = 0

    def plan(self) -> Plan:
        clauses: list[Clause] = []
        while self._next.text:
            clauses.append(self._clause())
            if self._next.text:
                self._expect(",")
        return Plan(tuple(clauses))

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _has(self, *words: str) -> bool:
        """Take these words, if they come next."""
        texts = [token.text for token in self._tokens[self._at : self._at + len(words)]]
        if texts != list(words):
            return False
        self._at += len(words)
        return True

    def _expect(self, word: str) -> None:
        if not self._has(word):
            self._fail(f"expected {word!r}")

    def _fail(self, problem: str, token: _Token | None = None, hint: str = "") -> NoReturn:
        token = token or self._next
        text = token.text
        shown = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
        got = f"got {shown!r}{hint}" if text else "the plan ends"
        raise PlanError(f"{problem}, {got}", self._text, token.place)

    def _one_of(self, words: Sequence[str], what: str) -> str:
        token = self._take()
        if token.text not in words:
            self._fail(f"expected {what} ({', '.join(words)})", token, nearest(token.text, words))
        return token.text

    def _clause(self) -> Clause:
        verb = self._one_of(_VERBS, "what is to happen")
        if verb == "partition":
            return self._partition()
        return self._process(cast(Act, verb)) if verb in ACTS else self._message(cast(Harm, verb))

    def _process(self, act: Act) -> ProcessFault:
        who = self._who()
        self._expect("@")
        moment, before = self._moment(), self._next
        duration = self._duration()
        if duration is not None and act != "stop":
            self._fail(f"a {act} has no end; only a stop is for a while", before)
        return ProcessFault(act, who, moment, duration)

    def _message(self, harm: Harm) -> MessageFault:
        percent = self._percent()
        before = self._next
        up_to = self._time() if self._has("up", "to") else None
        if up_to is not None and harm == "drop":
            self._fail("what is lost is never late: a drop has no `up to`", before)
        between = None
        if self._has("between"):
            one = self._who()
            self._expect("and")
            before, between = self._next, (one, self._who())
            if _is_one_node(*between):
                self._fail("a node sends itself no messages", before)
        start = self._time() if self._has("from") or self._has("@") else None
        before = self._next
        duration = self._duration()
        if duration is not None and start is None:
            self._fail("say from when, as in `from 10s for 5s`", before)
        return MessageFault(harm, percent, up_to, between, start, duration)

    def _partition(self) -> Partition:
        one = self._who()
        self._expect("from")
        before = self._next
        other = self._who()
        if _is_one_node(one, other):
            self._fail("a node is not parted from itself", before)
        self._expect("@")
        return Partition(one, other, self._time(), self._duration())

    def _who(self) -> Who:
        place = self._next.place
        role = Role(self._one_of(ROLES, "a role"))
        if self._counts is not None and not self._counts[role]:
            raise PlanError(f"the job has no {role}", self._text, place)
        if not self._has(":"):
            return Who(role)
        token = self._take()
        if not (token.text.isascii() and token.text.isdigit() and len(token.text) <= _MOST_DIGITS):
            self._fail(f"expected the rank of a {role}", token)
        if role is Role.SCHEDULER and int(token.text):
            self._fail("there is one scheduler", token)
        rank = int(token.text)
        if self._counts is not None and rank >= self._counts[role]:
            raise PlanError(_no_such_rank(role, rank, self._counts[role]), self._text, token.place)
        return Who(role, rank)

    def _moment(self) -> Moment:
        if not self._next.text[:1].isalpha():
            return Moment(after=self._time("a time such as 20s, or " + ", ".join(EVENTS)))
        event = cast(Event, self._one_of(EVENTS, "a time such as 20s, or a moment"))
        nth = self._nth(event) if self._has(":") else 1
        return Moment(event, nth, self._time() if self._has("+") else 0.0)

    def _nth(self, event: Event) -> int:
        token = self._take()
        is_number = token.text.isascii() and token.text.isdigit()
        if not is_number or len(token.text) > _MOST_DIGITS or not int(token.text):
            self._fail(f"expected which {event}, counted from 1", token)
        return int(token.text)

    def _time(self, what: str = "a time such as 20s") -> float:
        token = self._take()
        if not token.text[:1].isdigit():
            self._fail(f"expected {what}", token)
        try:
            return float(parse_quantity(token.text, SECONDS))
        except ValueError as error:
            raise PlanError(str(error), self._text, token.place) from None

    def _duration(self) -> float | None:
        return self._time() if self._has("for") else None

    def _percent(self) -> float:
        token = self._take()
        try:
            percent = float(token.text)
        except ValueError:
            percent = -1.0
        if not 0 < percent <= 100:
            self._fail("expected a share such as 2%, more than 0% and at most 100%", token)
        self._expect("%")
        return percent


def _is_one_node(one: Who, other: Who) -> bool:
    """Whether both are the same node, not only of the same role."""
    if one.role is other.role is Role.SCHEDULER:
        return True
    return one == other and one.rank is not None


def _no_such_rank(role: Role, rank: int, count: int) -> str:
    ranks = "the only one is 0" if count == 1 else f"they are 0 to {count - 1}"
    return f"there is no {role} {rank} in a job of {count} {role}{'s' * (count > 1)}: {ranks}"
