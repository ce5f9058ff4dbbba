"""The journal in etcd, and who may lead, against a real etcd."""

from __future__ import annotations

import threading

import pytest

from postoffice.errors import JournalError, LeadershipLostError
from postoffice.etcd import Etcd, EtcdJournal, forget, scheduler_address

LIMIT = 60.0


def test_records_are_read_by_the_next_leader_and_compacted(etcd: str) -> None:
    first = EtcdJournal(Etcd(etcd), "records")
    assert first.campaign()
    assert first.load() == []
    for number in range(12):
        first.append(b"record %d" % number)
    assert first.load() == [b"record %d" % number for number in range(12)]
    first.compact(b"all")
    first.append(b"")
    first.close()

    second = EtcdJournal(Etcd(etcd), "records")
    assert second.campaign()
    assert second.load() == [b"all", b""]
    second.append(b"more")
    assert second.load() == [b"all", b"", b"more"]
    second.clear()
    assert second.load() == []
    second.close()


def test_one_leads_at_a_time_and_the_former_one_cannot_write_any_more(etcd: str) -> None:
    first, second = (EtcdJournal(Etcd(etcd), "leaders", ttl=1) for _ in range(2))
    assert first.campaign()
    assert first.load() == []
    first.append(b"first")
    over = threading.Event()
    leads = threading.Thread(target=second.campaign, args=(over,))
    leads.start()

    first._over.set()  # as if its process were dead or cut off: its lease ends by itself
    leads.join(LIMIT)

    assert not leads.is_alive()
    assert second.load() == [b"first"]
    second.append(b"second")
    second.announce("tcp://there:5")
    assert scheduler_address(Etcd(etcd), "leaders") == "tcp://there:5"
    assert scheduler_address(Etcd(etcd), "others") is None
    for write in (first.append, first.compact):
        with pytest.raises(LeadershipLostError, match="another scheduler leads now"):
            write(b"late")
    assert second.load() == [b"first", b"second"]
    first.close()
    second.close()


def test_a_standby_that_is_not_needed_gives_up(etcd: str) -> None:
    first, second = (EtcdJournal(Etcd(etcd), "standby") for _ in range(2))
    assert first.campaign()
    over = threading.Event()
    over.set()

    assert not second.campaign(over)

    first.close()
    second.close()


def test_what_a_job_kept_whose_nodes_have_ended_is_forgotten_whoever_leads(etcd: str) -> None:
    ended, standby = (EtcdJournal(Etcd(etcd), "again", ttl=1) for _ in range(2))
    other = EtcdJournal(Etcd(etcd), "again2")
    for journal in (ended, other):
        assert journal.campaign()
        journal.load()
        journal.append(b"nodes")
    ended._over.set()  # killed: its lease ends by itself

    forget(Etcd(etcd), "again")

    assert standby.campaign()
    assert standby.load() == []
    assert other.load() == [b"nodes"]
    standby.append(b"new")
    assert standby.load() == [b"new"]
    for journal in (ended, standby, other):
        journal.close()


def test_an_etcd_that_is_not_there_is_a_clear_error() -> None:
    with pytest.raises(JournalError, match=r"does etcd run\?"):
        EtcdJournal(Etcd("http://127.0.0.1:9"), "job").campaign()
    with pytest.raises(JournalError, match="expected http://HOST:PORT"):
        Etcd("127.0.0.1:2379")
