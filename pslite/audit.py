"""`pslite audit RUN`: whether the ledger of a job counts every record of its data exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kv.errors import LeaseError
from kv.leases.accounts import MOST_PROBLEMS, Account, accounts_of
from kv.leases.ledger import FILE, read_ledger
from pslite.columns import columns
from pslite.rundir import how_ended, read_cluster
from van.errors import ConfigError

Report = dict[str, Any]


def audit(run: Path) -> dict[str, Account]:
    """The accounts of the ledger in a run folder, by data set.

    Raises:
        LeaseError: there is no ledger, or a line of it is damaged.
    """
    if not run.exists():
        raise LeaseError(f"there is no folder {run}; name the run folder of a job")
    path = run / FILE if run.is_dir() else run
    if not path.exists():
        raise LeaseError(
            f"{run} has no {FILE}: no job there has leased training data (worker.shards)"
        )
    _, events, _ = read_ledger(path)
    return accounts_of(events)


def standing(run: Path) -> str:
    """What is to be known of the job in a run folder that has not ended in order; else empty."""
    try:
        state = read_cluster(run)
    except ConfigError:  # the ledger alone was kept
        return ""
    if state.get("state") != "ended":
        return f"the job in {run} still runs, so its ledger is not complete"
    return how_ended(run, state) if state.get("lost") else ""


def balances(accounts: dict[str, Account]) -> bool:
    """Whether every record of every data set is counted exactly once."""
    return all(account.balances for account in accounts.values())


def report(accounts: dict[str, Account]) -> str:
    """The accounts for people."""
    if not accounts:
        return "no data set was opened"
    return "\n\n".join(_describe(account) for account in accounts.values())


def _describe(account: Account) -> str:
    data = account.data
    verdict = "every record exactly once" if account.balances else "DOES NOT BALANCE"
    lines = [
        f"{data.name}: {verdict}",
        f"  {account.counted:,} of {account.expected:,} records counted "
        f"({data.records:,} in each of {data.epochs} epochs)",
    ]
    if account.resumed:
        lines.append(f"  {account.resumed:,} of them by an earlier job, which this resumed")
    lines.append(
        f"  {account.returned} pieces were given again; of their records the model had seen "
        f"{account.doubles:,} before"
    )
    if account.records:
        lines.append(columns(_shares(account), left=1))
    lines += [f"  problem: {problem}" for problem in account.problems[:MOST_PROBLEMS]]
    if len(account.problems) > MOST_PROBLEMS:
        lines.append(f"  and {len(account.problems) - MOST_PROBLEMS} problems more")
    return "\n".join(lines)


def _shares(account: Account) -> list[list[str]]:
    total = max(1, sum(account.records.values()))
    rows = [["  worker", "pieces", "records", "share"]]
    for worker in sorted(account.records):
        records = account.records[worker]
        share = f"{100 * records / total:.1f} %"
        rows.append([f"  {worker}", str(account.finished[worker]), f"{records:,}", share])
    return rows


def as_json(accounts: dict[str, Account]) -> list[Report]:
    """The accounts for programs."""
    return [
        {
            "data": account.data.name,
            "balances": account.balances,
            "records": account.expected,
            "counted": account.counted,
            "resumed": account.resumed,
            "returned": account.returned,
            "doubles": account.doubles,
            "workers": {
                str(worker): {"pieces": account.finished[worker], "records": records}
                for worker, records in sorted(account.records.items())
            },
            "problems": account.problems,
        }
        for account in accounts.values()
    ]
