"""Where the time of a request goes, stage by stage, on worker and server.

A cluster of its own runs with `pslite.bench.trace` on; tracing costs about a microsecond a stage.
What neither side accounts for is the way between them: ZeroMQ's threads, the kernel, waking up.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pslite.bench import own, trace
from pslite.bench.cases import TableCase
from pslite.bench.driver import Driver
from pslite.bench.errors import PeerError

if TYPE_CHECKING:
    from pslite.bench.children import Driven
    from pslite.bench.run import Bench

DIM = 16
AWAIT = "await the answer"
UNDER_WAY = "between the processes"
TOTAL = "end to end"


class TracedPeer(own.Peer):
    """pslite with both its sides traced.

    Args:
        folder: where the servers write.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(transport="local", app="pslite.bench.trace:start")
        os.environ[trace.FOLDER] = folder
        self._folder = Path(folder)
        self._trace = trace.Trace()
        self._trace.install(trace.WORKER)
        self._driver = Driver(self)

    def traced_block(self, case: dict[str, Any], seed: int, calls: int) -> list[float]:
        """One block, spans kept; when it began and ended."""
        self._driver.arm(case, seed, calls)
        block = self._driver.fire()
        return [block["began"], block["ended"]]

    def spans(self) -> dict[str, Any]:
        """End the cluster; the spans of its nodes, and what could not be traced."""
        self.close()
        missing, spans = self._trace.missing, {"worker": self._trace.spans, "server": []}
        for path in self._folder.glob("server-*.json"):
            more_missing, found = json.loads(path.read_text(encoding="utf-8"))
            missing, spans["server"] = missing + more_missing, spans["server"] + found
        return {"missing": missing, **spans}


def stages(bench: Bench) -> None:
    """Where the time of a request goes."""
    folder = bench.folder / "trace"
    folder.mkdir()
    label = "traced pslite"
    peer = bench.driven(label, "pslite.bench.stages:TracedPeer", folder=str(folder))
    if peer is None:
        return
    blocks: list[tuple[TableCase, int, list[list[float]]]] = []
    try:
        for op in ("pull", "push"):
            for count in bench.sizes.traced:
                case = TableCase(
                    op=op, count=count, dim=DIM, optimizer="adagrad", rows=bench.sizes.rows
                )
                bench.progress.show(case)
                blocks.append(_traced(bench, peer, case))
        found = peer.ask("spans")
    except PeerError as error:
        bench.fail(label, error.problem)
        return
    peer.close()
    for missing in found["missing"]:
        bench.fail(label, f"{missing} is not there")
    for case, calls, times in blocks:
        _note(bench, case, calls, times, found)


def _traced(
    bench: Bench, peer: Driven, case: TableCase
) -> tuple[TableCase, int, list[list[float]]]:
    calls = peer.ask("calibrate", case=case.to_dict(), seconds=bench.sizes.seconds)
    times = [
        peer.ask("traced_block", case=case.to_dict(), seed=number, calls=calls)
        for number in range(1, bench.sizes.rounds + 1)
    ]
    return case, calls, times


def _note(
    bench: Bench, case: TableCase, calls: int, times: list[list[float]], found: dict[str, Any]
) -> None:
    rows: dict[str, list[float]] = {}
    for begun, ended in times:
        total = (ended - begun) / calls
        worker = trace.totals(found["worker"], begun, ended)
        server = trace.totals(found["server"], begun, ended)
        worker.pop(AWAIT, None)
        row = {f"worker: {stage}": seconds / calls for stage, seconds in worker.items()}
        row |= {f"server: {stage}": seconds / calls for stage, seconds in server.items()}
        row[UNDER_WAY] = total - sum(row.values())
        row[TOTAL] = total
        for stage, seconds in row.items():
            rows.setdefault(stage, []).append(seconds)
    for stage, values in rows.items():
        bench.results.add(bench.workload, stage, "pslite", "s", case.to_dict(), values)
