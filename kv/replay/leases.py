"""Which worker got which piece of training data: written down, and dealt again.

One file for the job, of blocks:

    OPEN  JSON: a data set that workers read
    DEAL  JSON: data set, worker, and what it was told: a piece, `over`, or `wait`
    DONE  JSON: why the run ended
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

from kv.leases.dealing import Dealing, Dealt
from kv.leases.pieces import DataSet, Span, Spans
from kv.replay.blocks import DONE, BlockWriter, read_blocks
from kv.replay.errors import DivergenceError, RecordError

_OPEN, _DEAL = b"OPEN", b"DEAL"
_WHERE = "the scheduler"
_WAIT, _OVER = "wait", "over"


def leases_file(folder: Path) -> Path:
    """Where it lies in the folder of a run's records."""
    return folder / "leases.record"


class RecordedLeases:
    """Pieces go as they would otherwise, and what each worker was told is written down.

    Args:
        path: of the file, which must not be there.
        inner: who deals them; None: speeds do.
    Raises:
        RecordError: it is, or cannot be written; so do all calls here.
    """

    def __init__(self, path: Path, inner: Dealing | None = None) -> None:
        self.blocks, self._inner = BlockWriter(path), inner
        self._opened: set[str] = set()
        self._last: dict[tuple[str, int], Dealt] = {}

    def opened(self, data: DataSet) -> None:
        if data.name not in self._opened:
            self._opened.add(data.name)
            self.blocks.add_json(_OPEN, data.pack())

    def deal(self, data: DataSet, free: Spans, worker: int) -> Dealt | None:
        return None if self._inner is None else self._inner.deal(data, free, worker)

    def dealt(self, data: str, worker: int, dealt: Dealt) -> None:
        """Write it down, once where it is the same again: the answer may have been lost."""
        if self._last.get((data, worker)) != dealt:
            self._last[data, worker] = dealt
            answer: Any = _OVER if dealt.is_over else _WAIT
            if dealt.span is not None:
                answer = dealt.span.pack()
            self.blocks.add_json(_DEAL, {"data": data, "worker": worker, "answer": answer})

    def close(self, why: str = "") -> None:
        if self.blocks.is_open:
            self.blocks.close(ended=why)


class ReplayedLeases:
    """Each worker gets what it got in the recorded run, in that order.

    Args:
        path: of the record.
    Raises:
        RecordError: it cannot be read, is torn, altered or not complete.
    """

    def __init__(self, path: Path) -> None:
        self._sets: dict[str, DataSet] = {}
        self._left: defaultdict[tuple[str, int], deque[Dealt]] = defaultdict(deque)
        for kind, payload in read_blocks(path):
            found = json.loads(payload)
            if kind == _OPEN:
                data = DataSet.unpack(found)
                self._sets[data.name] = data
            elif kind == _DEAL:
                self._left[found["data"], found["worker"]].append(_dealt(found["answer"]))
            elif kind != DONE:
                raise RecordError(path, f"is no record of leases: it has a block {kind!r}")

    def opened(self, data: DataSet) -> None:
        known = self._sets.get(data.name)
        if known is None:
            raise DivergenceError(_WHERE, f"data set {data.name} was not read")
        if known != data:
            mine, now = known.pack(), data.pack()
            said = [
                f"{key} = {now[key]} where it was {mine[key]}"
                for key in mine
                if mine[key] != now[key]
            ]
            raise DivergenceError(_WHERE, f"data set {data.name} has {', '.join(said)}")

    def deal(self, data: DataSet, free: Spans, worker: int) -> Dealt:
        left = self._left[data.name, worker]
        if not left:
            problem = f"worker {worker} asks for a piece of {data.name} where the record ends"
            raise DivergenceError(_WHERE, problem)
        following = left[0]
        if following.span is not None and not free.has(following.span):
            return Dealt(is_silent=True)  # another worker is still to give it back
        if not following.is_over:
            left.popleft()
        return following

    def dealt(self, data: str, worker: int, dealt: Dealt) -> None:
        """It is known."""

    def close(self, why: str = "") -> None:
        """There is nothing to close."""


def _dealt(answer: Any) -> Dealt:
    if isinstance(answer, str):
        return Dealt(is_over=answer == _OVER)
    return Dealt(Span.unpack(answer))
