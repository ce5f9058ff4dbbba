"""What was injected, what was noticed when and by whom, how the step rate suffered: the report.

Made from the chronicle when the job is over; `RUN/chaos.json` has it for programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pslite.chaos.chronicle import Note
from pslite.chaos.plan import Partition, Plan, seconds
from pslite.chaos.rates import Dent, dents, progress_of
from pslite.lifecycle import describe_status

Report = dict[str, Any]
_NOTICED = ("ended", "died", "joined", "view", "started")


def make_report(plan: Plan, seed: int, notes: Sequence[Note], exit_code: int) -> Report:
    """The report as JSON types; times are seconds after the nodes had met.

    Args:
        plan: what was to happen.
        seed: of what it leaves open.
        notes: the chronicle.
        exit_code: of the job.
    """
    start = next((note["at"] for note in notes if note["what"] == "start"), None)
    notes = sorted(notes, key=lambda note: note["at"])
    origin = start if start is not None else (notes[0]["at"] if notes else 0.0)
    shifted = [{**note, "at": round(note["at"] - origin, 3)} for note in notes]
    injected = _injected(plan, shifted, start is not None)
    return {
        "plan": str(plan),
        "seed": seed,
        "exit_code": exit_code,
        "has_started": start is not None,
        "injected": injected,
        "missed": _missed(plan, injected) if start is not None else [],
        "noticed": _noticed(shifted, injected),
        "messages": dict(sum((Counter(n["counts"]) for n in _all(shifted, "messages")), Counter())),
        "work": _work(shifted, injected),
    }


def _all(notes: Sequence[Note], what: str) -> list[Note]:
    return [note for note in notes if note["what"] == what]


def _injected(plan: Plan, notes: Sequence[Note], has_started: bool) -> list[Report]:
    """What was done, by time: acts on processes, and clauses about messages."""
    found = [
        {key: note[key] for key in ("at", "act", "node", "clause")} for note in _all(notes, "act")
    ]
    if has_started:
        end = max((note["at"] for note in notes), default=0.0)
        for clause in plan.messages:
            at = clause.start or 0.0
            if at <= end:
                act = "partition" if isinstance(clause, Partition) else clause.harm
                found.append({"at": at, "act": act, "node": None, "clause": str(clause)})
    return sorted(found, key=lambda deed: float(deed["at"]))


def _missed(plan: Plan, injected: Sequence[Report]) -> list[str]:
    """The clauses whose moment never came."""
    met = {deed["clause"] for deed in injected}
    return [clause for clause in map(str, plan.clauses) if clause not in met]


def _noticed(notes: Sequence[Note], injected: Sequence[Report]) -> list[Report]:
    """What nodes and launcher saw after the first fault, but for what has nothing to do with it."""
    first = min((deed["at"] for deed in injected), default=float("inf"))
    hits = [deed for deed in injected if deed["node"]]
    known: dict[str, Any] = {}  # of the dead and the slot map, by node
    found = []
    for note in notes:
        is_usual = note["what"] == "ended" and note["status"] == describe_status(0)
        if note["what"] == "view":
            facts = (note["dead"], note["map"])
            is_usual = known.get(note["by"], ([], 0)) == facts
            known[note["by"]] = facts
        if note["what"] not in _NOTICED or note["at"] < first or is_usual:
            continue
        about = {key: value for key, value in note.items() if key not in ("at", "by", "what")}
        # Several faults may have hit the node: the last one before counts.
        since = [d["at"] for d in hits if d["node"] == note.get("node") and d["at"] <= note["at"]]
        after = round(note["at"] - since[-1], 3) if since else None
        found.append({"at": note["at"], "by": note["by"], "what": note["what"], **about})
        found[-1]["after"] = after
    return found


def _work(notes: Sequence[Note], injected: Sequence[Report]) -> Report:
    samples = [(note["at"], note["work"]) for note in _all(notes, "work")]
    progress = progress_of(samples)
    # What is wrong from the start on belongs to the rate that others are measured by.
    harms = [deed for deed in injected if deed["act"] != "cont" and deed["at"] > 0]
    gone = [note["at"] for note in _all(notes, "left") if note["node"].startswith("worker")]
    end = min([*gone, progress.times[-1] if progress.times else 0.0])
    told = dents(progress, [deed["at"] for deed in harms], end)
    return {
        "unit": progress.unit,
        "before": told[0].before if told else progress.rate(0.0, end),
        "dents": [_told(deed, dent) for deed, dent in zip(harms, told, strict=True)],
    }


def _told(deed: Report, dent: Dent) -> Report:
    return {
        "clause": deed["clause"],
        "at": deed["at"],
        "lowest": dent.lowest,
        "after": dent.after,
        "suffered": dent.suffered,
    }


def describe(report: Report) -> str:
    """The report for people."""
    lines = [f"chaos, seed {report['seed']}: {report['plan']}"]
    if not report["has_started"]:
        lines.append("  the nodes never met, so no clock ran")
    lines += [f"  {_time(deed['at'])} {_injection(deed)}" for deed in report["injected"]]
    lines += [f"  never came: {clause}" for clause in report["missed"]]
    if report["noticed"]:
        lines.append("noticed:")
        lines += [f"  {_time(seen['at'])} {_notice(seen)}" for seen in _together(report["noticed"])]
    if report["messages"]:
        counts = ", ".join(f"{n:,} {what}" for what, n in sorted(report["messages"].items()))
        lines.append(f"messages of the nodes that ended in order: {counts}")
    lines += _rates(report["work"])
    return "\n".join(lines)


def _together(noticed: Sequence[Report]) -> list[Report]:
    """What was noticed, with the views that nodes have alike as one, at the time of the first."""
    found: list[Report] = []
    alike: dict[tuple[int, int], Report] = {}
    for seen in noticed:
        if seen["what"] == "view":
            key = (seen["epoch"], seen["map"])
            if key in alike:
                alike[key]["by"] += f", {seen['by']}"
                alike[key]["until"] = seen["at"]
                continue
            seen = alike[key] = {**seen, "until": seen["at"]}
        found.append(seen)
    return found


def _time(at: float) -> str:
    return f"{at:8.2f} s"


def _injection(deed: Report) -> str:
    if deed["act"] in ("kill", "stop", "cont", "restart"):
        who = deed["node"] or "nobody: no such process ran"
        return f"{deed['act']} {who}   ({deed['clause']})"
    return str(deed["clause"])


def _notice(seen: Report) -> str:
    after = "" if seen["after"] is None else f", {seen['after']:.2f} s after the fault"
    node = seen.get("node", "")
    told = {
        "ended": lambda: f"{node} has ended: {seen['status']}",
        "started": lambda: f"{node} is started again",
        "died": lambda: f"{node} is dead: it {seen['why']}",
        "joined": lambda: f"{node} is in the cluster, in a new life",
        "view": lambda: (
            f"epoch {seen['epoch']}, slot map {seen['map']}{_dead(seen['dead'])}; "
            f"the last knew it {seen['until'] - seen['at']:.2f} s later"
        ),
    }[seen["what"]]()
    return f"{seen['by']}: {told}{after}"


def _dead(names: Sequence[str]) -> str:
    return f", dead: {', '.join(names)}" if names else ""


def _rates(work: Report) -> list[str]:
    unit = work["unit"]
    if work["before"] is None:
        return [f"too little was seen of the workers' {unit} to tell a rate"]
    lines = [f"rate before: {work['before']:,.1f} {unit} a second"]
    return lines + [f"  {dent['clause']}: {_suffered(dent, unit)}" for dent in work["dents"]]


def _suffered(dent: Report, unit: str) -> str:
    if dent["lowest"] is None:
        return "the job ended, or the next fault came, too soon after it to tell"
    lowest = f"lowest {dent['lowest']:,.1f}"
    if dent["suffered"] is None:
        return (
            f"the rate did not return; {lowest}, on the whole {dent['after']:,.1f} {unit} a second"
        )
    after = f"{lowest}, then {dent['after']:,.1f} {unit} a second"
    if not dent["suffered"]:
        return f"the rate did not suffer; {after}"
    return f"the rate suffered for {seconds(round(dent['suffered'], 2))}; {after}"
