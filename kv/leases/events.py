"""What happens to the pieces of data sets: the lines of a ledger, and all that makes its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kv.errors import LeaseError
from kv.leases.pieces import DataSet, Piece, Span


@dataclass(frozen=True, slots=True)
class Opened:
    """Workers will read this data set; what `done` holds was read before, for a resumed job."""

    data: DataSet
    done: tuple[Span, ...] = ()

    @property
    def name(self) -> str:
        return self.data.name


@dataclass(frozen=True, slots=True)
class Leased:
    """A worker's life has got a piece."""

    name: str
    piece: Piece
    worker: int
    life: int


@dataclass(frozen=True, slots=True)
class Done:
    """It has done it: its records count."""

    name: str
    piece: int
    worker: int
    life: int


@dataclass(frozen=True, slots=True)
class Returned:
    """It will not do it: another worker will. The model has seen `seen` of its records."""

    name: str
    piece: int
    worker: int
    life: int
    seen: int
    why: str


Event = Opened | Leased | Done | Returned


def pack_event(event: Event) -> dict[str, Any]:
    """An event as JSON types; `unpack_event` is the inverse."""
    if isinstance(event, Opened):
        done = [span.pack() for span in event.done]
        return {"event": "opened", "data": event.name, "set": event.data.pack(), "done": done}
    found: dict[str, Any] = {"event": type(event).__name__.lower(), "data": event.name}
    if isinstance(event, Leased):
        span = event.piece.span
        found |= {"piece": event.piece.number, "epoch": span.epoch, "part": span.part}
        found |= {"start": span.start, "stop": span.stop, "records": event.piece.records}
    else:
        found["piece"] = event.piece
    found |= {"worker": event.worker, "life": event.life}
    if isinstance(event, Returned):
        found |= {"seen": event.seen, "why": event.why}
    return found


def unpack_event(found: Any) -> Event:
    """The event of a ledger's line.

    Raises:
        LeaseError: it is none.
    """
    try:
        kind, name = found["event"], found["data"]
        if kind == "opened":
            done = tuple(Span.unpack(span) for span in found["done"])
            return Opened(DataSet.unpack(found["set"]), done)
        worker, life = _whole(found["worker"]), _whole(found["life"])
        if kind == "leased":
            span = Span.unpack([found[key] for key in ("epoch", "part", "start", "stop")])
            piece = Piece(_whole(found["piece"]), span, _whole(found["records"]))
            return Leased(str(name), piece, worker, life)
        if kind == "done":
            return Done(str(name), _whole(found["piece"]), worker, life)
        if kind == "returned":
            seen, why = _whole(found["seen"]), str(found["why"])
            return Returned(str(name), _whole(found["piece"]), worker, life, seen, why)
    except (KeyError, TypeError, ValueError) as error:
        raise LeaseError(f"{found!r} is no event of a ledger: {error}") from None
    raise LeaseError(f"{found!r} is no event of a ledger: it has an unknown kind")


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is no whole number")
    return value
