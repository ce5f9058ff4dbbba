"""Records on disk: what is written comes back, and what is damaged is never taken for whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.replay import recordfile
from kv.replay.entry import ENTRY, Entry, digest_of
from kv.replay.errors import RecordError
from kv.replay.recordfile import Head, RecordWriter, read_head, read_record
from kv.table_protocol import Command
from van.message import Message, Meta

HEAD = Head(server=1, servers=2, workers=3, mode="async", seed=4, threads=2)
ENTRIES = st.builds(
    Entry,
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**16 - 1),
    st.just(0),
    st.integers(0, 255),
)


def write(path: Path, entries: list[Entry], *, is_closed: bool = True) -> None:
    writer = RecordWriter(path, HEAD)
    assert (writer.number_of(["user", "w"]), writer.number_of([])) == (0, 1)
    writer.define({"name": "user", "dim": 8})
    for entry in entries:
        writer.add(entry)
    writer.flush()
    if is_closed:
        writer.close("because")
        writer.close()


@given(entries=st.lists(ENTRIES, max_size=30), buffered=st.integers(1, 9))
def test_a_record_holds_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Entry], buffered: int
) -> None:
    path = tmp_path_factory.mktemp("record") / "server-1.record"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recordfile, "BUFFERED", buffered)
        write(path, entries)

    record = read_record(path)

    assert (record.head, record.ended) == (HEAD, "because")
    assert record.lists == [["user", "w"], []]
    assert record.specs == {"user": {"name": "user", "dim": 8}}
    assert [record.entry(place) for place in range(record.entries.size)] == entries
    assert read_head(path) == HEAD


def test_an_entry_takes_13_bytes() -> None:
    entry = Entry(2**32 - 1, 7, 3, 2, 14)

    assert ENTRY.itemsize == len(entry.pack()) == 13
    assert np.frombuffer(entry.pack(), ENTRY)[0].item() == tuple(entry)


def test_a_record_that_was_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    write(whole, [Entry(n, n, 0, 0, 3) for n in range(5)])
    content = whole.read_bytes()

    for size in range(len(content)):
        cut.write_bytes(content[:size])
        with pytest.raises(RecordError, match="cut"):
            read_record(cut)


def test_a_record_of_which_any_byte_was_altered_is_refused(tmp_path: Path) -> None:
    whole, other = tmp_path / "whole", tmp_path / "other"
    write(whole, [Entry(n, n, 0, 0, 3) for n in range(5)])
    content = whole.read_bytes()

    for place in range(len(content)):
        altered = bytearray(content)
        altered[place] ^= 0x11
        other.write_bytes(altered)
        with pytest.raises(RecordError, match=str(other)):
            read_record(other)


def test_a_record_whose_blocks_were_left_out_or_doubled_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "record"
    write(path, [Entry(0, 0, 0, 0, 3)] * 3)
    content = path.read_bytes()
    block = content[content.index(b"TURN") : content.index(b"DONE")]

    for fake, problem in (
        (content.replace(block, b""), "has 0 requests where it says 3"),
        (content.replace(block, block + block), "has 6 requests where it says 3"),
        (content + block, "goes on at byte"),
        (b"text of somebody else's", "is no record of pslite"),
    ):
        path.write_bytes(fake)
        with pytest.raises(RecordError, match=problem):
            read_record(path)


def test_a_record_whose_server_was_killed_is_refused_and_says_so(tmp_path: Path) -> None:
    write(tmp_path / "record", [Entry(0, 0, 0, 0, 3)], is_closed=False)

    with pytest.raises(RecordError, match="who wrote it was killed"):
        read_record(tmp_path / "record")


def test_a_record_is_never_written_over(tmp_path: Path) -> None:
    write(tmp_path / "record", [])

    with pytest.raises(RecordError, match="there is one already"):
        RecordWriter(tmp_path / "record", HEAD)


def test_another_cluster_is_told_apart_whatever_its_threads() -> None:
    other = Head(server=1, servers=2, workers=4, mode="ssp", seed=4, threads=7)

    found = HEAD.differences(other)

    assert found == ["workers = 4 where it was 3", "mode = ssp where it was async"]


def push(rank: int = 0, value: float = 1.0, **body: object) -> Message:
    meta = Meta(cmd=Command.PUSH, clocks=((7, 3, ((0, 12),)),), body=body or None)
    keys = np.arange(3, dtype=np.uint64)
    return Message(meta, [keys, np.full((3, 2), value, np.float32)])


def test_a_fingerprint_covers_values_and_not_what_timing_decides() -> None:
    same = digest_of(push())

    assert digest_of(push()) == digest_of(push(again=True)) == digest_of(push(after=[[1, 2]]))
    assert same == digest_of(push())
    assert len({same, digest_of(push(value=1.0000001)), digest_of(push(weight=2.0))}) == 3
    aged = push()
    aged.meta.clocks = ((7, 3, ((0, 13),)),)
    assert digest_of(aged) != same
