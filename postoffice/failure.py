"""What the death of a node means for the job: one small object, so that there is one answer.

`[cluster] on_worker_failure` and `on_server_failure` say what is wanted. A server whose slots have
a living backup is no loss, whatever is wanted; who keeps backups says whether they have. Nor is a
dispatcher, which keeps nothing that its workers do not have; `on_dispatcher_failure` says whether
another is started in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from postoffice.node import Role

WorkerFailure = Literal["stop", "continue", "restart"]
ServerFailure = Literal["stop", "restart"]
DispatcherFailure = Literal["continue", "restart"]


class Verdict(Enum):
    """What follows from a death."""

    STOP = "stop"  # the job ends
    GO_ON = "go on"  # without it; its seat may be taken again
    AWAIT = "await"  # somebody restarts it; until then barriers wait for it


@dataclass(frozen=True, kw_only=True)
class FailurePolicy:
    """Decides what follows from a node's death."""

    on_worker: WorkerFailure = "stop"
    on_server: ServerFailure = "stop"
    on_dispatcher: DispatcherFailure = "continue"
    restart_timeout: float = 60.0  # seconds in which one that is awaited must have come

    def verdict(self, role: Role, is_covered: bool) -> Verdict:
        """What the death of a node of `role` means.

        Args:
            role: of the node that died.
            is_covered: whether others have all that it had.
        """
        if role is Role.WORKER:
            return _VERDICTS[self.on_worker]
        if role is Role.SERVER:
            return Verdict.GO_ON if is_covered else _VERDICTS[self.on_server]
        if role is Role.DISPATCHER:  # its workers turn to the servers themselves
            return Verdict.GO_ON
        return Verdict.STOP

    def may_return(self, role: Role) -> bool:
        """Whether a process that comes for the seat of a node that seems alive replaces it.

        Where a death ends the job nobody restarts nodes, so that one was started by mistake.
        """
        if role is Role.DISPATCHER:
            return self.on_dispatcher == "restart"
        wanted = self.on_worker if role is Role.WORKER else self.on_server
        return wanted != "stop"


_VERDICTS = {"stop": Verdict.STOP, "continue": Verdict.GO_ON, "restart": Verdict.AWAIT}
