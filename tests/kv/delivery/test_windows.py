"""What a server remembers: against `kv.requests`, where every slot of every push is written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.delivery.windows import Mask, Windows, no_mask
from kv.placement import NUM_SLOTS
from kv.requests import Signature
from kv.requests import Windows as Pure
from kv.requests.messages import Failure
from van.message import Meta

APP = 7
SLOTS = [0, 1, 511, 512, 1023]  # that requests of these tests touch


def mask(slots: list[int]) -> Mask:
    made = no_mask()
    made[slots] = True
    return made


def meta(timestamp: int, oldest: int = 0, sender: int = 9, incarnation: int = 1) -> Meta:
    return Meta(
        sender=sender, incarnation=incarnation, app=APP, timestamp=timestamp, oldest=oldest, piece=1
    )


def record(windows: Windows, header: Meta, *rest: Any, **more: Any) -> None:
    stream = windows.stream(header)
    assert stream is not None
    windows.record(stream, header, *rest, **more)


def known(windows: Windows, timestamp: int, **who: int) -> tuple[list[int], list[int]]:
    """The slots of SLOTS on which a request was applied, and on which it failed."""
    stream = windows.find(meta(timestamp, **who))
    if stream is None or timestamp not in stream.entries:
        return [], []
    entry = stream.entries[timestamp]
    applied, failed = windows.applied(entry), windows.failed(entry)
    return [s for s in SLOTS if applied[s]], [s for s in SLOTS if failed[s]]


def test_a_request_of_all_slots_is_an_entry_without_a_mask() -> None:
    windows = Windows()

    record(windows, meta(3))

    stream = windows.find(meta(3))
    assert stream is not None
    assert stream.entries == {3: None}
    assert known(windows, 3) == (SLOTS, [])


def test_what_lies_below_the_watermark_is_forgotten() -> None:
    windows = Windows()
    for timestamp in range(1000):
        record(windows, meta(timestamp, oldest=max(0, timestamp - 5)))

    assert len(windows) == 6
    windows.validate()


def test_all_means_the_slots_that_were_owned_then() -> None:
    windows = Windows(mask([0, 1]))
    record(windows, meta(3))

    windows.own(mask([1, 512]))

    assert known(windows, 3) == ([0, 1], [])


def test_what_is_known_of_slots_goes_with_them_and_nothing_else() -> None:
    old, new = Windows(mask([0, 1])), Windows(mask([512]))
    record(old, meta(3, oldest=2))
    record(old, meta(4), mask([1]), failure=("KVError", "why", 8))
    record(new, meta(3))

    blob = old.export(mask([1]))
    new.own(mask([1, 512]))
    new.adopt(mask([1]), blob)

    assert known(new, 3) == ([1, 512], [])
    assert known(new, 4) == ([], [1])
    entry = new.find(meta(4)).entries[4]  # type: ignore[union-attr]
    assert entry is not None
    assert entry.failure == ("KVError", "why", 8)
    assert new.find(meta(0)).watermark == 2  # type: ignore[union-attr]
    new.validate()


def test_a_former_life_is_not_heard_and_its_entries_are_forgotten() -> None:
    windows = Windows()
    record(windows, meta(0, incarnation=1))

    assert windows.stream(meta(0, incarnation=2)) is not None
    assert windows.stream(meta(1, incarnation=1)) is None
    assert len(windows) == 0

    windows.fence(9, 2)
    assert windows.stream(meta(0, incarnation=2)) is None
    assert windows.stream(meta(0, incarnation=3)) is not None


def test_windows_of_another_format_are_refused() -> None:
    with pytest.raises(ValueError, match="format"):
        Windows().adopt(no_mask(), b"\x93\x63\x90\x90")


OWNED = mask(SLOTS[:3])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 9), st.integers(1, 2), st.booleans()),
        st.tuples(st.just("meet"), st.integers(0, 9), st.integers(1, 2)),
        st.tuples(st.just("move"), st.sampled_from(SLOTS)),
    ),
    max_size=25,
)


@given(steps)
def test_they_know_what_windows_with_every_slot_written_out_know(moves: list[Any]) -> None:
    live, pure = (Windows(OWNED), Windows(mask(SLOTS[3:]))), (Pure(NUM_SLOTS), Pure(NUM_SLOTS))
    owned = [set(SLOTS[:3]), set(SLOTS[3:])]

    def name(timestamp: int, life: int) -> Signature:
        return Signature(9, life, APP, 0, timestamp)

    for what, *rest in moves:
        if what == "move":
            (slot,) = rest
            source = 0 if slot in owned[0] else 1
            target = 1 - source
            blob = live[source].export(mask([slot]))
            owned[source].discard(slot), owned[target].add(slot)
            for number in (0, 1):
                live[number].own(mask(sorted(owned[number])))
            live[target].adopt(mask([slot]), blob)
            live[source].forget(mask([slot]))
            pure[target].adopt(slot, pure[source].export(slot))
            pure[source].forget(slot)
            continue
        timestamp, life, *fails = rest
        for number in (0, 1):
            oldest = timestamp if what == "meet" else 0
            header = meta(timestamp, oldest, incarnation=life)
            pure[number].meet(name(timestamp, life), oldest)
            stream = live[number].stream(header)
            assert (stream is None) == pure[number].is_former(name(timestamp, life))
            if what != "push" or stream is None or timestamp < stream.watermark:
                continue
            if timestamp in stream.entries:
                continue
            failure = Failure("KVError", "why", 8) if fails[0] else None
            live[number].record(stream, header, None, failure)
            slots = np.array(sorted(owned[number]), np.int64)
            pure[number].record(name(timestamp, life), slots, 0, failure)

    for number in (0, 1):
        live[number].validate()
        for life in (1, 2):
            for timestamp in range(10):
                applied, failed = known(live[number], timestamp, incarnation=life)
                signature = name(timestamp, life)
                if pure[number].is_former(signature) or pure[number].is_past(signature):
                    assert (applied, failed) == ([], [])
                    continue
                at = {slot: np.array([slot], np.int64) for slot in SLOTS}
                counted = [s for s in SLOTS if not pure[number].fresh(signature, at[s])[0]]
                bad = [s for s in SLOTS if pure[number].failure(signature, at[s])]
                assert sorted(applied + failed) == counted
                assert failed == bad
