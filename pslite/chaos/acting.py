"""The launcher's part of faults on purpose: signals to processes, and the report at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from kv.errors import LeaseError
from kv.leases.ledger import FILE as LEDGER
from postoffice.node import Role
from pslite import audit
from pslite.chaos.chronicle import Chronicle, Note, Notes
from pslite.chaos.config import ChaosConfig
from pslite.chaos.director import Deed, Director
from pslite.chaos.plan import EVENTS
from pslite.chaos.report import describe, make_report
from pslite.lifecycle import NodeName
from van.errors import ConfigError

REPORT = "chaos.json"
QUICK = 0.005  # seconds between looks while something is to follow at once
SIGNALS = {
    "kill": signal.SIGKILL,
    "restart": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "cont": signal.SIGCONT,
}
Send = Callable[[NodeName, int], None]


class ChaosActor:
    """Carries a plan out on the processes of a job.

    Args:
        config: plan and seed.
        folder: of the job, which gets chronicle and report.
        counts: how many nodes each role has.
        send: sends a signal to the processes of a node.
        restart: has a node started again when it ends, whatever else that would mean.
    """

    def __init__(
        self,
        config: ChaosConfig,
        folder: Path,
        counts: dict[Role, int],
        send: Send,
        restart: Callable[[NodeName], None],
    ) -> None:
        self._config, self._folder = config, folder
        self._began = time.time()
        self._director = Director(config.parsed, config.seed, counts)
        self._send, self._restart = send, restart
        self._chronicle = Chronicle(folder, "launcher")
        self._chronicle.clear()
        self._notes, self._seen = Notes(folder), list[Note]()
        self._stopped: set[NodeName] = set()
        self._killed: set[NodeName] = set()

    def turn_within(self, usual: float, now: float) -> float:
        """Seconds that the launcher may wait before `turn`."""
        due = self._director.next_due()
        wanted = usual if due is None else max(0.0, due - now)
        return min(usual, wanted, QUICK if self._director.awaits_event else usual)

    def turn(self, now: float, alive: Collection[NodeName]) -> None:
        """Do what is due."""
        for note in self._notes.fresh():
            self._seen.append(note)
            if note["what"] in EVENTS:
                self._director.happened(note["what"], note["at"])
            elif note["what"] == "left" and note["node"].startswith(Role.WORKER):
                self._director.happened("shutdown", note["at"])
        for deed in self._director.due(now, alive):
            self._do(deed)

    def _do(self, deed: Deed) -> None:
        node = None if deed.node is None else str(deed.node)
        self._chronicle.note("act", act=deed.act, node=node, clause=deed.clause)
        if deed.node is None:
            return
        if deed.act == "restart":
            self._restart(deed.node)
        if deed.act == "stop":
            self._stopped.add(deed.node)
        else:
            self._stopped.discard(deed.node)
        if SIGNALS[deed.act] == signal.SIGKILL:
            self._killed.add(deed.node)
        self._send(deed.node, SIGNALS[deed.act])

    def ended(self, node: NodeName, status: str) -> None:
        """A process has ended."""
        self._stopped.discard(node)
        if node in self._killed:
            self._killed.discard(node)
            status = "killed on purpose"
        self._chronicle.note("ended", node=str(node), status=status)

    def started(self, node: NodeName) -> None:
        """A node was started again."""
        self._chronicle.note("started", node=str(node))

    def release(self) -> None:
        """Let go of what stands still: the job ends, and they could not hear of it."""
        for node in list(self._stopped):
            self._stopped.discard(node)
            self._send(node, signal.SIGCONT)

    def finish(self, exit_code: int) -> tuple[str, int]:
        """Write the report; its text, and the exit code with what the ledger says.

        Raises:
            ConfigError: the report cannot be written.
        """
        self._chronicle.close()
        notes = [*self._seen, *self._notes.fresh()]
        report = make_report(self._config.parsed, self._config.seed, notes, exit_code)
        report["ledger"], told = self._ledger()
        if exit_code == 0 and report["ledger"] is not None and not report["ledger"]["balances"]:
            report["exit_code"] = exit_code = 1
        path = self._folder / REPORT
        try:
            path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
        return f"{describe(report)}\n{told}", exit_code

    def _ledger(self) -> tuple[dict[str, Any] | None, str]:
        """The accounts of the job's ledger, if it has one, and what to say of them."""
        path = self._folder / LEDGER
        if not path.exists() or path.stat().st_mtime < self._began:  # or an earlier job's
            return None, "no ledger: the job leased no training data"
        try:
            accounts = audit.audit(self._folder)
        except LeaseError as error:
            return {"balances": False, "problem": str(error)}, f"ledger: {error}"
        balances = audit.balances(accounts)
        facts = {"balances": balances, "accounts": audit.as_json(accounts)}
        return facts, f"ledger:\n{audit.report(accounts)}"


def signal_group(pid: int, signum: int) -> None:
    """Send a signal to a child and the processes that it started, its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signum)
