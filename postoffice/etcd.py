"""The scheduler's journal in etcd, for a standby on another machine; and who of them may lead.

A scheduler leads as long as its lease lives: it holds the key `leader`, and every record is
written in a transaction that asks whether it still does. One that was cut off so finds out before
it tells anybody anything. A standby waits for the lease to end (`campaign`), reads the records, and
tells the nodes where it is.

Speaks etcd's JSON gateway (`/v3/kv/txn` and so on, etcd 3.4 or later), so no client library is
needed; the one Python client there was has not been kept.
"""

from __future__ import annotations

import base64
import http.client
import json
import logging
import threading
from typing import Any
from urllib.parse import urlsplit

from postoffice.errors import JournalError, LeadershipLostError

log = logging.getLogger(__name__)

_TIMEOUT = 3.0  # seconds for one answer
_COMPACT_FROM = 1000  # records


class Etcd:
    """Calls of etcd's JSON gateway.

    Args:
        endpoint: such as `http://127.0.0.1:2379`.
    """

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        if parts.scheme != "http" or not parts.hostname:
            raise JournalError(endpoint, "expected http://HOST:PORT ([cluster] etcd)")
        self.endpoint = endpoint
        self._host, self._port = parts.hostname, parts.port or 2379

    def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST `body`; the answer. Raises `JournalError`."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT)
        try:
            connection.request("POST", f"/v3/{path}", json.dumps(body))
            response = connection.getresponse()
            text = response.read()
            if response.status != 200:
                raise JournalError(self.endpoint, f"{path}: {text.decode(errors='replace')[:200]}")
            answer: dict[str, Any] = json.loads(text)
            return answer
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise JournalError(self.endpoint, f"{path} failed: {error}; does etcd run?") from None
        finally:
            connection.close()


class EtcdJournal:
    """A `postoffice.journal.Journal` in etcd; `campaign` comes first.

    Args:
        etcd: where.
        job: name of the job; its keys begin with `pslite/JOB/`.
        ttl: seconds after which a leader that is not heard has lost its place.
    """

    def __init__(self, etcd: Etcd, job: str, ttl: int = 5) -> None:
        self._etcd, self._ttl = etcd, ttl
        self._prefix = f"pslite/{job}/"
        self._lease = ""
        self._next = 0
        self._count = 0
        self._over = threading.Event()
        self._keeping: threading.Thread | None = None

    # -- leading --------------------------------------------------------------------------------

    def campaign(self, over: threading.Event | None = None) -> bool:
        """Wait until this scheduler may lead; False when `over` was set first.

        Raises:
            JournalError: etcd does not answer.
        """
        stop = over or threading.Event()
        while not self._try_lead():
            if stop.wait(self._ttl / 5):
                return False
        self._keeping = threading.Thread(target=self._keep, name="pslite lease", daemon=True)
        self._keeping.start()
        return True

    def _try_lead(self) -> bool:
        if not self._lease:
            self._lease = str(self._etcd.call("lease/grant", {"TTL": self._ttl})["ID"])
        leader = self._prefix + "leader"
        put = {"key": _b64(leader), "value": _b64(self._lease), "lease": self._lease}
        answer = self._etcd.call(
            "kv/txn",
            {
                "compare": [{"key": _b64(leader), "target": "VERSION", "version": "0"}],
                "success": [{"requestPut": put}],
            },
        )
        if not answer.get("succeeded"):
            self._renew()
        return bool(answer.get("succeeded"))

    def _renew(self) -> bool:
        answer = self._etcd.call("lease/keepalive", {"ID": self._lease})
        is_alive = int(answer.get("result", {}).get("TTL", 0)) > 0
        if not is_alive:
            self._lease = ""
        return is_alive

    def _keep(self) -> None:
        """Keep the lease alive, whatever the scheduler's own thread does."""
        while not self._over.wait(self._ttl / 5):
            try:
                if not self._renew():
                    return  # the next record finds out
            except JournalError as error:
                log.warning("the scheduler's lease is not renewed: %s", error)

    # -- the journal ----------------------------------------------------------------------------

    def load(self) -> list[bytes]:
        """The records so far, oldest first."""
        answer = self._etcd.call("kv/range", {**self._range(), "sort_target": "KEY"})
        entries = answer.get("kvs", [])
        self._count = len(entries)
        if entries:
            last = base64.b64decode(entries[-1]["key"]).decode()
            self._next = int(last.rpartition("/")[2]) + 1
        return [base64.b64decode(entry.get("value", "")) for entry in entries]

    def _range(self) -> dict[str, Any]:
        return _records_of(self._prefix)

    def append(self, record: bytes) -> None:
        """Add a record, if this scheduler still leads.

        Raises:
            LeadershipLostError: another one leads.
            JournalError: etcd does not answer, or the record is too large for it.
        """
        self._as_leader([self._put(record)])
        self._next += 1
        self._count += 1

    @property
    def is_long(self) -> bool:
        return self._count > _COMPACT_FROM

    def compact(self, record: bytes) -> None:
        """One record in the place of all others, in one transaction."""
        # etcd takes no key twice in a transaction, so the new record lies behind those deleted.
        end = {"range_end": self._put(record)["requestPut"]["key"]}
        delete = {"requestDeleteRange": {**self._range(), **end}}
        self._as_leader([delete, self._put(record)])
        self._next += 1
        self._count = 1

    def _put(self, record: bytes) -> dict[str, Any]:
        key = f"{self._prefix}records/{self._next:016d}"
        return {"requestPut": {"key": _b64(key), "value": base64.b64encode(record).decode()}}

    def announce(self, address: str) -> None:
        """Where nodes that start from now on find the scheduler (`scheduler_address`)."""
        put = {"key": _b64(self._prefix + "address"), "value": _b64(address), "lease": self._lease}
        self._as_leader([{"requestPut": put}])

    def _as_leader(self, requests: list[dict[str, Any]]) -> None:
        compare = {
            "key": _b64(self._prefix + "leader"),
            "target": "VALUE",
            "value": _b64(self._lease or "nobody"),
        }
        answer = self._etcd.call("kv/txn", {"compare": [compare], "success": requests})
        if not answer.get("succeeded"):
            raise LeadershipLostError(self._etcd.endpoint)

    def clear(self) -> None:
        """Forget all: the job is over, or another one begins."""
        try:
            self._as_leader([{"requestDeleteRange": self._range()}])
            self._count = 0
        except JournalError as error:
            log.warning("what the job kept is not removed: %s", error)

    def close(self) -> None:
        """Let another scheduler lead at once."""
        self._over.set()
        if self._keeping is not None:
            self._keeping.join(2 * _TIMEOUT)
        if self._lease:
            try:
                self._etcd.call("lease/revoke", {"ID": self._lease})
            except JournalError as error:
                log.info("a lease is left to end by itself: %s", error)

    def __repr__(self) -> str:
        return f"{self._etcd.endpoint}/{self._prefix}"


def scheduler_address(etcd: Etcd, job: str) -> str | None:
    """Where the leading scheduler of `job` listens, if there is one. Raises `JournalError`."""
    entries = etcd.call("kv/range", {"key": _b64(f"pslite/{job}/address")}).get("kvs", [])
    return base64.b64decode(entries[0]["value"]).decode() if entries else None


def forget(etcd: Etcd, job: str) -> None:
    """Forget what a job kept all of whose nodes have ended, whoever leads now.

    Raises `JournalError`.
    """
    etcd.call("kv/deleterange", _records_of(f"pslite/{job}/"))


def _records_of(prefix: str) -> dict[str, Any]:
    """The range of the keys of a job's records."""
    records = prefix + "records/"
    return {"key": _b64(records), "range_end": _b64(records[:-1] + chr(ord("/") + 1))}


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
