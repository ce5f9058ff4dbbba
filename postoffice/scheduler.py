"""What the scheduler says to the nodes: membership, barriers and heartbeats joined, still pure.

Gets a message or just the time, returns the messages to send. Addresses to connect to travel beside
them, because a node gets its id only when all have come. Everything here may be asked again: the
answer to a repeat is the answer.
"""

from __future__ import annotations

import logging
from typing import Any

from postoffice.barrier_desk import BarrierDesk
from postoffice.errors import RegistrationError
from postoffice.gathering import Registration
from postoffice.liveness import Liveness
from postoffice.membership import Membership, Phase
from postoffice.node import SCHEDULER_ID, Group, Node, Role, node_name, role_and_rank
from postoffice.view import ClusterView
from van.message import Control, Kind, Message, Meta

log = logging.getLogger(__name__)

_ECHO = 3.0  # seconds for a node to have an answer to its goodbye, asking again if need be
_MOST_UNSEEN = 10_000  # lives that may lack it: anybody may claim to be one
_NO_MAP = (
    "the scheduler was started again without a journal, so it does not know which server has which "
    "rows; set [cluster] journal where there are copies or servers come and go, and go on from a "
    "checkpoint"
)
Reply = tuple[str, Message]
"""An address to connect to first ('' for a node of the table) and a message."""


class SchedulerDesk:
    """Handles `REGISTER`, `HEARTBEAT`, `BARRIER` and `GOODBYE`.

    Args:
        membership: the book of nodes.
        started: the time at which the scheduler began to listen.
        start_timeout: seconds until all nodes must have come.
        report_every: seconds between two reports of who is missing.
        heartbeat_timeout: seconds of silence after which a node is dead; 0: never.
        tick_every: seconds between two calls of `tick`.

    Attributes:
        statuses: by node, what it said of itself with its last heartbeat.
        last_words: the same of nodes that are dead.
        problem: why the job must end before it has begun, or None.
    """

    def __init__(
        self,
        membership: Membership,
        started: float,
        start_timeout: float,
        report_every: float = 10.0,
        heartbeat_timeout: float = 0.0,
        tick_every: float = 1.0,
    ) -> None:
        self.membership = membership
        self.barrier_desk = BarrierDesk(membership)
        self.liveness = Liveness(heartbeat_timeout, tick_every)
        self.statuses: dict[int, Any] = {}
        self.last_words: dict[int, Any] = {}
        self.problem: str | None = None
        self.map_version, self.map_blob = 0, b""
        self._deadline = started + start_timeout
        self._start_timeout = start_timeout
        self._report_every = report_every
        self._next_report = started + report_every
        self._phase_told = membership.phase
        self._told = membership.view()
        self._unseen: dict[tuple[int, int], float] = {}  # life that has gone -> until when
        self._ended: set[int] = set()  # nonces of processes that are known to have ended

    # -- messages -----------------------------------------------------------------------------

    def handle(self, message: Message, now: float = 0.0) -> list[Reply]:
        """The replies to a control message of a node."""
        meta = message.meta
        if meta.control is Control.REGISTER:
            return self._register(meta, now)
        if meta.control is Control.HEARTBEAT:
            return self._heartbeat(meta, now)
        if meta.control is Control.GOODBYE_SEEN:
            self.goodbye_seen(meta)
            return []
        if meta.sender not in self.membership.nodes:
            return []
        if meta.control is Control.BARRIER:
            return [("", reply) for reply in self.barrier_desk.come(meta)]
        if meta.control is Control.GOODBYE:
            return self._goodbye(meta, now)
        return []

    def _register(self, meta: Meta, now: float) -> list[Reply]:
        if meta.incarnation in self._ended:  # its last words come late
            return []
        known = self.membership.node_of(meta.reply_to, meta.incarnation)
        if known is not None:  # the node table was lost on its way, and the node lives
            self.liveness.heard(known.id, now)
            return [self._table_for(known)]
        try:
            request = Registration(
                role=Role(meta.body["role"]),
                rank=meta.body["rank"],
                address=meta.reply_to,
                nonce=meta.incarnation,
            )
            if request.rank is not None and type(request.rank) is not int:
                raise RegistrationError(f"rank {request.rank!r} is no number")
            self.membership.register(request, now)
        except RegistrationError as error:
            return self._refuse(meta, str(error))
        except (KeyError, TypeError, ValueError):
            return self._refuse(meta, "a registration needs a role and a rank")
        return []  # the news go to all

    @staticmethod
    def _refuse(meta: Meta, reason: str) -> list[Reply]:
        if not meta.reply_to:
            return []
        return [(meta.reply_to, Message(Meta(control=Control.REFUSED, body={"reason": reason})))]

    def _heartbeat(self, meta: Meta, now: float) -> list[Reply]:
        node = self.membership.nodes.get(meta.sender)
        if node is None or node.incarnation != meta.incarnation:
            return self._meet(meta, now)
        if node.id in self.membership.gone:
            return []
        self.liveness.heard(node.id, now)
        self.statuses[node.id] = meta.body if isinstance(meta.body, dict) else {}
        replies: list[Reply] = [("", self._to(node.id, Control.HEARTBEAT))]
        if self.membership.phase not in (Phase.GATHERING, Phase.RUNNING):
            replies.append(("", self._stop(node.id)))
        elif meta.epoch < self._told.epoch:
            replies.append(self._table_for(node))
        elif meta.map_version < self.map_version:
            replies.append(("", self._map_for(node.id)))
        return replies

    def _meet(self, meta: Meta, now: float) -> list[Reply]:
        """A heartbeat of a life that is not in the table."""
        try:
            role, rank = role_and_rank(meta.sender)
            node = Node(role, rank, meta.reply_to, meta.incarnation)
        except ValueError:
            return []
        membership = self.membership
        if membership.phase is Phase.GATHERING and meta.epoch:
            if meta.map_version > self.map_version:
                return self._fence(meta, _NO_MAP)
            try:
                membership.adopt(node, meta.epoch, now)
            except RegistrationError as error:
                return self._fence(meta, str(error))
            sign = Meta(recipient_incarnation=node.incarnation, control=Control.HEARTBEAT)
            return [(node.address, Message(sign))]
        why = membership.deaths.get(meta.sender, "is not in the cluster any more")
        if meta.sender in membership.nodes:
            why = f"was replaced by {membership.nodes[meta.sender].address}"
        return self._fence(meta, f"{node_name(meta.sender)} {why}")

    @staticmethod
    def _fence(meta: Meta, reason: str) -> list[Reply]:
        if not meta.reply_to:
            return []
        answer = Meta(
            recipient_incarnation=meta.incarnation,
            control=Control.HEARTBEAT,
            kind=Kind.FENCED,
            body={"reason": reason},
        )
        return [(meta.reply_to, Message(answer))]

    def _goodbye(self, meta: Meta, now: float) -> list[Reply]:
        body = meta.body if isinstance(meta.body, dict) else {}
        failure, said = body.get("failure"), body.get("said")
        if isinstance(said, dict) and meta.sender in self.membership.nodes:
            self.statuses[meta.sender] = said
        self.membership.goodbye(meta.sender, failure if type(failure) is str else None, now)
        return [("", self._goodbye_done(meta.sender, meta.incarnation, now))]

    def _goodbye_done(self, node: int, life: int, now: float) -> Message:
        if len(self._unseen) >= _MOST_UNSEEN:
            self._unseen = {key: until for key, until in self._unseen.items() if until > now}
        if len(self._unseen) < _MOST_UNSEEN:
            self._unseen[node, life] = now + _ECHO
        answer = Meta(recipient=node, recipient_incarnation=life, control=Control.GOODBYE_DONE)
        return Message(answer)

    def goodbyes(self, now: float) -> list[Reply]:
        """The answers to all who have gone: they may know no scheduler that lives to ask again."""
        nodes = self.membership.nodes
        gone = [nodes[node] for node in sorted(self.membership.gone)]
        return [(n.address, self._goodbye_done(n.id, n.incarnation, now)) for n in gone]

    def goodbye_again(self, meta: Meta, now: float) -> list[Reply]:
        """A life that is over has not got the answer to its goodbye."""
        if not meta.reply_to or not self._told.is_fenced(meta.sender, meta.incarnation):
            return []
        answer = self._goodbye_done(meta.sender, meta.incarnation, now)
        answer.meta.recipient = 0  # another life may have that id
        return [(meta.reply_to, answer)]

    def goodbye_seen(self, meta: Meta) -> None:
        """A life has got the answer to its goodbye."""
        self._unseen.pop((meta.sender, meta.incarnation), None)

    def is_needed(self, now: float) -> bool:
        """Whether a node may still lack the answer to its goodbye, and ask again."""
        return any(until > now for until in self._unseen.values())

    def ended(self, nonce: int, why: str, now: float) -> None:
        """The process that registered with `nonce`, or was about to, has ended.

        Args:
            nonce: what it said to be told from others.
            why: for people, such as `has ended: exit code 3`.
            now: the time.
        """
        self._ended.add(nonce)
        for node in self.membership.of_nonce(nonce):  # it waits for no answer any more
            self._unseen.pop((node.id, node.incarnation), None)
        self.membership.end(nonce, why, now)

    # -- time -----------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """See who has been silent for too long, and who is missing.

        While nodes are missing at the start, a line every `report_every` seconds says how many of
        which role; `problem` is set when the time to start is up.
        """
        for request in self.membership.forget_silent(now):
            log.warning("%s has gone before all had come", request)
        if self.membership.phase is Phase.GATHERING:
            self._watch_start(now)
        else:
            for node, silence in self.liveness.silent(now).items():
                self.liveness.forget(node)
                self.membership.die(node, f"was silent for {silence:.1f} s", now)
            self.membership.check_awaited(now)

    def _watch_start(self, now: float) -> None:
        missing = self.membership.describe_missing()
        if now >= self._deadline:
            self.problem = (
                f"after {self._start_timeout:g} s these nodes have not come: {missing}; look at "
                f"their output, or raise [cluster] start_timeout"
            )
        elif now >= self._next_report:
            self._next_report += self._report_every
            log.warning("waiting for %s", missing)

    # -- news -----------------------------------------------------------------------------------

    def view(self) -> ClusterView:
        """The cluster as it is now."""
        return self.membership.view(self.map_version, self.map_blob)

    def set_map(self, blob: bytes) -> int:
        """A new slot map; returns its version."""
        self.map_version, self.map_blob = self.map_version + 1, blob
        return self.map_version

    def resume(self, map_version: int, map_blob: bytes, now: float) -> None:
        """Go on from the books of a scheduler before this one; all count as heard at `now`."""
        self.map_version, self.map_blob = map_version, map_blob
        self._phase_told, self._told = self.membership.phase, self.view()
        for node in self._living():
            self.liveness.heard(node, now)

    def tables(self) -> list[Reply]:
        """The view, for every node."""
        return [self._table_for(self.membership.nodes[node]) for node in self._living()]

    def news(self, now: float) -> list[Reply]:
        """What all must hear since the last call: nodes, slot map, released barriers, the end."""
        membership = self.membership
        for change in membership.changes:
            if change.kind == "joined":
                self.liveness.heard(change.node.id, now)
                continue
            self.liveness.forget(change.node.id)
            said = self.statuses.pop(change.node.id, None)
            if change.kind == "died":
                self.last_words[change.node.id] = said or {}
                self.barrier_desk.barriers.forget(change.node.id)
        has_changed = bool(membership.changes)
        membership.changes.clear()
        replies: list[Reply] = []
        old = self._told
        if (old.epoch, old.map_version) != (membership.epoch, self.map_version):
            self._told = self.view()
        if membership.phase is Phase.RUNNING:
            if old.epoch != self._told.epoch:
                replies += self.tables()
            elif old.map_version != self._told.map_version:
                replies += [("", self._map_for(node)) for node in self._living()]
        if has_changed:
            replies += [("", reply) for reply in self.barrier_desk.recheck()]
        if self._phase_told is not membership.phase:
            if membership.phase in (Phase.STOPPING, Phase.STOPPED):
                replies += self.stop_all(membership.failure)
            elif membership.phase is Phase.RUNNING:
                log.info("all %d nodes have come", len(membership.nodes))
            self._phase_told = membership.phase
        return replies

    def _living(self) -> list[int]:
        return sorted(
            self.membership.members(Group.ALL & ~Group.SCHEDULER) & self.membership.nodes.keys()
        )

    def _table_for(self, node: Node) -> Reply:
        body = self._told.pack()
        body |= {"you": node.id, "life": node.incarnation}
        body["nonce"] = self.membership.nonce_of(node.id)
        meta = Meta(recipient=node.id, control=Control.NODES, epoch=self._told.epoch, body=body)
        return node.address, Message(meta)

    def _map_for(self, node: int) -> Message:
        return self._to(node, Control.MAP, {"map": [self.map_version, self.map_blob]})

    def _to(self, node: int, control: Control, body: Any = None) -> Message:
        return Message(
            Meta(
                recipient=node,
                recipient_incarnation=self.membership.nodes[node].incarnation,
                control=control,
                epoch=self._told.epoch,
                map_version=self.map_version,
                body=body,
            )
        )

    def _stop(self, node: int) -> Message:
        return self._to(node, Control.STOP, {"failure": self.membership.failure})

    def stop_all(self, failure: str | None) -> list[Reply]:
        """Tell every node that has not gone that the cluster ends."""
        body = {"failure": failure}
        return [("", self._to(node, Control.STOP, body)) for node in self._living()]

    def refuse_all(self, reason: str) -> list[Reply]:
        """Tell the nodes that did come that the cluster does not start."""
        return [
            (address, Message(Meta(control=Control.REFUSED, body={"reason": reason})))
            for address in self.membership.waiting_addresses()
        ]

    def ages(self, now: float) -> dict[int, float]:
        """Seconds since each living node's last heartbeat."""
        ages = self.liveness.ages(now)
        ages.pop(SCHEDULER_ID, None)
        return ages
