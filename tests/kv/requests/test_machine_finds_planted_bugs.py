"""The machine is worth its time only if it notices: it finds each bug planted here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from kv.requests import Answer, Incoming, Kind, Merging, Outgoing, View, Windows
from tests.kv.requests.machine import Requests
from tests.kv.requests.model import Parts
from tests.kv.requests.test_machine import PROFILE
from tests.seeds import slowly

# Found is found: no shrinking, and the first one will do.
HUNT = settings(
    PROFILE,
    max_examples=300,
    stateful_step_count=12,
    phases=[Phase.generate],
    report_multiple_bugs=False,
)


class IgnoresLives(Windows):
    """A restarted worker's request 0 is taken for the one of its former life."""

    def meet(self, signature, oldest):
        return super().meet(signature._replace(incarnation=1), oldest)

    def fresh(self, signature, slots):
        return super().fresh(signature._replace(incarnation=1), slots)

    def record(self, signature, slots, oldest, failure=None):
        super().record(signature._replace(incarnation=1), slots, oldest, failure)

    def is_past(self, signature):
        return super().is_past(signature._replace(incarnation=1))

    def is_former(self, signature):
        return False


class HearsFormerLives(Windows):
    """Windows of a former life are dropped, but its late pushes are still let in."""

    def is_former(self, signature):
        return False

    def validate(self):
        pass


class ForgetsOnMoves(Windows):
    """A moved slot does not know what was applied to it."""

    def export(self, slot):
        return {**super().export(slot), "streams": []}


class NeverForgets(Windows):
    """Oldest timestamps are not used: memory grows for ever."""

    def meet(self, signature, oldest):
        return super().meet(signature, 0)

    def record(self, signature, slots, oldest, failure=None):
        super().record(signature, slots, 0, failure)


class ForgetsTooEarly(Windows):
    """What is as old as the oldest unanswered request is forgotten too."""

    def meet(self, signature, oldest):
        return super().meet(signature, min(oldest + 1, signature.timestamp))


class RecordsWholeRequests(Windows):
    """A push applied to one slot counts as applied to all."""

    def record(self, signature, slots, oldest, failure=None):
        super().record(signature, np.arange(self.num_slots), oldest, failure)


class RemembersFailuresAsSuccess(Windows):
    """Failed pushes are remembered as applied ones: a repeat hears OK."""

    def record(self, signature, slots, oldest, failure=None):
        super().record(signature, slots, oldest)


class Trusting(Incoming):
    """Does not look whether pushes inside a merged one were counted without it: not yet a bug."""

    def _counted_inside(self, request, slots):
        return None


class NeverFences(Trusting):
    """What a dead dispatcher sent still counts, beside what its workers send again."""

    def _fence(self, view):
        pass


class KeepsHeldOfTheDead(Incoming):
    """Held pushes of a fenced dispatcher are released all the same."""

    def _drop_former(self):
        pass


class AnswersHeldWithOK(Incoming):
    """A repeat of a held push is answered as if it were applied."""

    def _answer(self, request, kind, refused=(), failure=None, clocks=()):
        kind = Kind.OK if kind is Kind.HELD else kind
        return super()._answer(request, kind, refused, failure, clocks)


class ForgetsWorkUnderWay(Incoming):
    """A repeat that comes while its push is being applied is answered OK too early."""

    def receive(self, request):
        entry = self.entries.repeated_by(request)
        result = super().receive(request)
        if entry is not None and entry.is_working and isinstance(result, Answer):
            return replace(result, kind=Kind.OK)
        return result


class ServesWhatItDoesNotOwn(Incoming):
    """Requests for slots that leave are still served."""

    def learn(self, view):
        super().learn(View(view.epoch, view.map_version, self.view.owners, {}, view.fenced))


class AdoptsCopies(Incoming):
    """A late copy of a moved slot overwrites the slot."""

    def adopt(self, state):
        self.holdings._moves[:] = 0
        return super().adopt(state)


class IgnoresConstituents(Incoming):
    """Pushes inside a merged one are not recorded."""

    def _record(self, entry, failure=None):
        self.windows.record(entry.request.signature, entry.apply, entry.request.oldest, failure)


class ForgivesWrongLives(Outgoing):
    """An answer to a former life completes the request of the same number."""

    def answer(self, answer, now):
        life = self.stream.incarnation
        return super().answer(
            replace(answer, request=answer.request._replace(incarnation=life)), now
        )


class RunsAhead(Outgoing):
    """It calls everything answered but the newest request."""

    @property
    def oldest(self):
        return self._next - 1


class ChangesDispatchers(Outgoing):
    """A push is sent again to the next life of its dispatcher instead of to the servers."""

    def learn(self, view, now):
        node = max(view.incarnations)
        for pending in self._pending.values():
            if pending.via and node == pending.via[0]:
                pending.via = (node, view.incarnations[node])
        return super().learn(view, now)


class KeepsOldMaps(Outgoing):
    """Slots are not cut again when they have moved."""

    def learn(self, view, now):
        return super().learn(
            View(view.epoch, view.map_version, self.view.owners, view.incarnations, view.fenced),
            now,
        )


class TakesRefusedForSettled(Outgoing):
    """An answer is taken to speak for the whole piece."""

    def answer(self, answer, now):
        return super().answer(replace(answer, refused=()), now)


class MergesRepeats(Merging):
    """A repeated push is added to the next merge once more."""

    def receive(self, request):
        self._in_hand.discard(request.signature)
        self.windows.forget(0)
        return super().receive(request)

    def validate(self):
        pass


class AnswersOnFlush(Merging):
    """Workers hear OK when their push is sent on, not when it is applied."""

    def flush(self, now, **kwargs):
        pushes = self.pushes
        timestamp, merged = super().flush(now, **kwargs)
        early = tuple(self._answer(push, Kind.OK) for push in pushes)
        return timestamp, replace(merged, answers=early)


BUGS = [
    IgnoresLives,
    HearsFormerLives,
    ForgetsOnMoves,
    NeverForgets,
    ForgetsTooEarly,
    RecordsWholeRequests,
    RemembersFailuresAsSuccess,
    NeverFences,
    KeepsHeldOfTheDead,
    AnswersHeldWithOK,
    ForgetsWorkUnderWay,
    ServesWhatItDoesNotOwn,
    AdoptsCopies,
    IgnoresConstituents,
    ForgivesWrongLives,
    RunsAhead,
    ChangesDispatchers,
    KeepsOldMaps,
    TakesRefusedForSettled,
    MergesRepeats,
    AnswersOnFlush,
]


# One of each part, and of each way to fail: twice, not at all, told too early, kept for ever.
EACH_TIME = (
    ForgetsOnMoves,
    NeverForgets,
    NeverFences,
    KeepsHeldOfTheDead,
    ForgivesWrongLives,
    TakesRefusedForSettled,
    MergesRepeats,
    AnswersOnFlush,
)


def with_bug(bug: type) -> type[Requests]:
    (part,) = (name for name, part in vars(Parts()).items() if issubclass(bug, part))
    return type(bug.__name__, (Requests,), {"parts": Parts(**{part: bug})})


@pytest.mark.parametrize(
    "bug",
    [*EACH_TIME, *slowly(bug for bug in BUGS if bug not in EACH_TIME)],
    ids=lambda bug: bug.__name__,
)
def test_the_machine_finds_what(bug):
    with pytest.raises(AssertionError):
        run_state_machine_as_test(with_bug(bug), settings=HUNT)
