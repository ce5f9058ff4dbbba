"""What waits for a peer leaves by priority, then in the order in which it came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from van.outgoing import Outgoing, Parcel


def parcel(number: int, priority: int) -> Parcel:
    return Parcel(node=8, priority=priority, nbytes=number, frames=[b""])


@given(st.lists(st.tuples(st.booleans(), st.integers(-2, 2)), max_size=50))
def test_the_first_is_the_oldest_of_the_highest_priority(steps) -> None:
    waiting, model = Outgoing(), []
    for number, (is_add, priority) in enumerate(steps):
        if is_add:
            added = parcel(number, priority)
            waiting.add(added)
            model.append(added)
        elif model:
            expected = min(model, key=lambda p: (-p.priority, p.nbytes))
            assert waiting.first() is expected
            waiting.drop_first()
            model.remove(expected)
        waiting.validate()
        assert len(waiting) == len(model)
        assert waiting.nbytes == sum(p.nbytes for p in model)
