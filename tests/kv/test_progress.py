"""Who is slowest is known without counting all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kv.consistency.progress import Progress

WORKERS = 4
ranks = st.integers(0, WORKERS - 1)
events = st.one_of(
    st.tuples(st.sampled_from(["step", "skip"]), ranks),
    st.tuples(st.sampled_from(["finish", "lose"]), ranks),
    st.tuples(st.just("resume"), st.integers(0, 5)),
)


@given(st.lists(events, max_size=60), st.integers(1, 4))
def test_the_slowest_is_the_least_of_those_that_have_not_finished(
    story: list[tuple[str, int]], ask_every: int
) -> None:
    progress = Progress(WORKERS)

    for number, (what, rank) in enumerate(story):
        if what == "resume":
            progress.resume([rank + other for other in range(WORKERS)])
        elif what == "finish":
            progress.finish(rank)
        elif what == "lose":
            progress.lose(rank)
        elif not progress.finished[rank] or progress.lost[rank]:
            progress.step(rank, progress.completed[rank] + (what == "skip"))
        if number % ask_every == 0:
            active = [
                steps
                for steps, done in zip(progress.completed, progress.finished, strict=True)
                if not done
            ]
            assert progress.slowest() == min(active, default=None)
