"""What `pslite status` and `pslite table stats` show: a running job, asked from outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from postoffice.config import split_address
from postoffice.errors import ObserverError
from postoffice.node import Node, Role, node_name
from postoffice.observer import Observer
from pslite.columns import columns, counted, sized
from pslite.keyring import OBSERVER, curve_of
from pslite.rundir import how_ended, read_cluster
from van.addresses import place_of
from van.config import SecurityConfig
from van.courier import ZmqVan
from van.errors import ConfigError

MOST_USED = 10  # keys listed of one table

Report = dict[str, Any]
"""One table on one server, as `kv.table_server` reports it."""


def scheduler_of(run: Path | None, scheduler: str | None) -> str:
    """Where the job's scheduler listens: as said, or as the job's run folder says.

    Raises:
        ConfigError: no job runs there, it has no scheduler yet, or `scheduler` is no address.
    """
    if scheduler is not None:
        if scheduler.startswith("tcp://") or "://" not in scheduler:
            scheduler = scheduler.removeprefix("tcp://")
            try:
                split_address(place_of(scheduler))
            except ConfigError as error:
                raise ConfigError(error.problem, key="--scheduler") from None
            scheduler = f"tcp://{scheduler}"
        return scheduler
    folder = run or Path("run")
    state = read_cluster(folder)
    if state.get("state") == "ended":
        raise ConfigError(how_ended(folder, state))
    address = state.get("scheduler")
    if not isinstance(address, str):
        raise ConfigError(f"the job in {folder} is only starting; try again in a moment")
    return address


def keys_of(run: Path | None, scheduler: str | None, keys: Path | None) -> Path | None:
    """The key folder of the job: as said, or as its run folder says; None: it has no keys.

    Raises:
        ConfigError: no job runs there.
    """
    if keys is not None or scheduler is not None:
        return keys
    noted = read_cluster(run or Path("run")).get("keys")
    return Path(noted) if isinstance(noted, str) and noted else None


@contextmanager
def observing(address: str, timeout: float, keys: Path | None = None) -> Iterator[Observer]:
    """An observer of the cluster of the scheduler at `address`, with the key `observer` of `keys`.

    Raises:
        ConfigError: there is no such key.
    """
    security = SecurityConfig(curve=keys is not None, keys=str(keys or ""))
    van = ZmqVan(background=False, curve=curve_of(security, OBSERVER, None))
    with Observer(van, address, timeout=timeout) as observer:
        yield observer


def status(observer: Observer) -> str:
    """Who is in the cluster and how it goes."""
    cluster = observer.cluster()
    gone, awaited, lives = set(cluster["gone"]), set(cluster["awaited"]), dict(cluster["lives"])
    ages = {node: f"{age:.1f} s ago" for node, age in cluster["heartbeats"]}
    sent = {node: sized(said["sent"]) for node, said in cluster["statuses"] if "sent" in said}
    rows = [["node", "address", "life", "heartbeat", "sent", "state"]]
    for node in map(Node.unpack, cluster["nodes"]):
        state = "gone" if node.id in gone else "there"
        life, age = str(lives.get(node.id, 1)), ages.get(node.id, "-")
        rows.append([node_name(node.id), node.place, life, age, sent.get(node.id, "-"), state])
    for dead, _, why in cluster["dead"]:
        state = f"dead{' and awaited' if dead in awaited else ''}: it {why}"
        rows.append([node_name(dead), "-", str(lives.get(dead, 1)), "-", "-", state])
    heading = f"{cluster['phase']}, epoch {cluster['epoch']}, slot map {cluster['map_version']}"
    if cluster["missing"]:
        heading += f"; waiting for {cluster['missing']}"
    found = [heading, columns(rows, left=6), *cluster["remarks"], *lost(cluster["last_words"])]
    facts, silent = dispatcher_reports(observer, cluster)
    return "\n".join([*found, *silent, *([dispatchers(facts)] if facts else [])])


def dispatcher_reports(observer: Observer, cluster: Report) -> tuple[dict[int, Report], list[str]]:
    """The reports of all dispatchers that have not gone, by rank, and who did not answer."""
    facts: dict[int, Report] = {}
    silent: list[str] = []
    for node in map(Node.unpack, cluster["nodes"]):
        if node.role is Role.DISPATCHER and node.id not in cluster["gone"]:
            try:
                facts[node.rank] = observer.ask(node, "dispatcher")
            except ObserverError as error:  # it may just have died
                silent.append(str(error))
    return facts, silent


def lost(last_words: list[tuple[int, Report]]) -> list[str]:
    """What dead dispatchers had kept back of gradients, as they last said."""
    found = []
    for node, said in last_words:
        rows, magnitude = said.get("kept_back", (0, 0.0))
        if magnitude:
            found.append(
                f"{node_name(node)}: what compression had kept back is lost, {counted(rows)} rows, "
                f"magnitudes of about {magnitude:.3g} in all when it was last heard of"
            )
    return found


def dispatchers(facts: dict[int, Report]) -> str:
    """What dispatchers do, by rank: what waits, what they have merged, when they sent it on.

    Of rows that they had and asked servers about: those that had changed, those that had not, and
    the bytes that these would have been.
    """
    rows = [
        ["dispatcher", "workers", "queue", "under way", "pushes", "merged", "rows in", "rows out"]
    ]
    rows[0] += ["merge ratio", "summed in", "cache hits", "changed", "unchanged", "saved"]
    rows[0] += ["flushes by cause"]
    for rank, said in sorted(facts.items()):
        causes = ", ".join(f"{cause}: {count}" for cause, count in sorted(said["flushes"].items()))
        ratio = f"{said['rows_in'] / said['rows_out']:.2f}" if said["rows_out"] else "-"
        rows.append(
            [
                str(rank),
                ", ".join(map(str, said["workers"])),
                counted(said["queue"]),
                counted(said["under_way"]),
                counted(said["pushes"]),
                counted(said["merges"]),
                counted(said["rows_in"]),
                counted(said["rows_out"]),
                ratio,
                "-" if said["latency"] is None else f"{1000 * said['latency']:.1f} ms",
                share(said["cache_hits"], said["cache_misses"]),
                counted(said["refreshed_rows"]),
                counted(said["unchanged_rows"]),
                sized(max(said["refresh_bytes_saved"], 0)),
                causes or "-",
            ]
        )
    return columns(rows, left=2)


def table_reports(observer: Observer) -> dict[str, list[Report]]:
    """The reports of all servers that have not gone, by table."""
    gone = set(observer.cluster()["gone"])
    found: dict[str, list[Report]] = {}
    for node in observer.nodes():
        if node.role is Role.SERVER and node.id not in gone:
            for report in observer.ask(node, "tables"):
                found.setdefault(report["name"], []).append(report)
    return found


def table_stats(
    reports: dict[str, list[Report]],
    name: str | None = None,
    dispatchers: dict[int, Report] | None = None,
) -> str:
    """The tables of a job, all servers together, and the most used keys of each.

    Args:
        dispatchers: their reports, by rank.
    Raises:
        ConfigError: there is no table `name`.
    """
    if name is not None and name not in reports:
        known = ", ".join(sorted(reports)) or "none yet"
        raise ConfigError(f"the job has no table {name!r}; its tables: {known}")
    if not reports:
        return "no table is defined yet"
    chosen = {name: reports[name]} if name is not None else dict(sorted(reports.items()))
    rows = [_HEADINGS, *(_row(table, parts) for table, parts in chosen.items())]
    text = [columns(rows, left=4)]
    for table, parts in chosen.items():
        if delays := staleness(parts):
            listing = ", ".join(f"{label}: {counted(pushes)}" for label, pushes in delays.items())
            text.append(f"staleness of pushes to {table} (updates: pushes): {listing}")
        if care := refused_and_clipped(parts):
            text.append(f"gradients of {table}: {care}")
        text += [f"compression of {table}, {line}" for line in compressed(parts)]
        text += held(table, dispatchers or {})
        if top := most_used(parts):
            listing = ", ".join(f"{key} ({counted(shows)})" for key, shows in top)
            text.append(f"most used keys of {table} (pushes): {listing}")
    return "\n".join(text)


_COUNTS = ["rows", "hot_rows", "nbytes", "disk_nbytes", "admitted", "denied", "evicted", "expired"]
_COUNTS += ["hot_hits", "hot_misses"]
_HEADINGS = ["table", "kind", "mode", "dim", "clock", "rows", "in memory", "bytes", "on disk"]
_HEADINGS += ["load", "admitted", "denied", "evicted", "expired", "hot hits"]


def _row(table: str, parts: list[Report]) -> list[str]:
    total = total_stats(parts)
    first = parts[0]
    return [
        table,
        first["kind"],
        first["mode"],
        str(first["dim"]),
        counted(max(part["clock"] for part in parts)),
        counted(total["rows"]),
        counted(total["hot_rows"]),
        sized(total["nbytes"]),
        sized(total["disk_nbytes"]),
        f"{total['load_factor']:.2f}",
        counted(total["admitted"]),
        counted(total["denied"]),
        counted(total["evicted"]),
        counted(total["expired"]),
        share(total["hot_hits"], total["hot_misses"]),
    ]


def total_stats(parts: list[Report]) -> dict[str, float]:
    """The figures of one table added over servers; `load_factor` is weighted by rows."""
    total: dict[str, float] = {key: sum(part[key] for part in parts) for key in _COUNTS}
    weights = [max(part["rows"], 1) for part in parts]
    loads = [part["load_factor"] * weight for part, weight in zip(parts, weights, strict=True)]
    return total | {"load_factor": sum(loads) / sum(weights)}


def most_used(parts: list[Report], count: int = MOST_USED) -> list[tuple[int, float]]:
    """The keys with the most pushes, of all servers, most used first."""
    pairs = [(int(key), float(shows)) for part in parts for key, shows in part["top"]]
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:count]


def staleness(parts: list[Report]) -> dict[str, int]:
    """How many pushes to a table were how stale, of all servers, the freshest first."""
    from kv.consistency.staleness import together

    return together(part.get("staleness", {}) for part in parts)


def refused_and_clipped(parts: list[Report]) -> str:
    """What was done to gradients of a table instead of applying them as they came, or nothing."""
    said = {
        "clipped_rows": "rows clipped",
        "clipped_pushes": "pushes or rounds scaled to their norm",
        "non_finite": "pushes or rounds refused as nan or inf",
    }
    counts = {key: sum(part.get(key, 0) for part in parts) for key in said}
    return ", ".join(f"{counted(count)} {said[key]}" for key, count in counts.items() if count)


def compressed(parts: list[Report], whose: str = "servers") -> list[str]:
    """What came and went compressed of a table, of all servers, by link; in whose time."""
    totals: dict[str, dict[str, float]] = {}
    for part in parts:
        for link, counts in part.get("compression", {}).items():
            total = totals.setdefault(link, dict.fromkeys(counts, 0))
            for name, count in counts.items():
                total[name] += count
    return [_compressed(link, total, whose) for link, total in sorted(totals.items())]


def held(table: str, dispatchers: dict[int, Report]) -> list[str]:
    """What dispatchers hold of a table, and what they have compressed, a line each."""
    found = []
    for rank, said in sorted(dispatchers.items()):
        for one in said["tables"]:
            if one["name"] == table:
                found.append(f"dispatcher {rank} holds of {table}: {_held(one)}")
                found += [
                    f"compression of {table} at dispatcher {rank}, {line}"
                    for line in compressed([{"compression": _links(one)}], "the dispatcher")
                ]
    return found


def _held(one: Report) -> str:
    text = f"copies of {counted(one['copied_rows'])} rows ({sized(one['copied_nbytes'])})"
    text += f", {sized(one['cached_nbytes'])} of the latest pulls"
    kept = one.get("compression", {}).get("residuals")
    if kept:
        text += (
            f"; kept back of gradients: {counted(kept['rows'])} rows ({sized(kept['nbytes'])}), "
        )
        text += f"magnitudes of about {kept['magnitude']:.3g} in all"
        if kept["dropped_rows"]:
            text += f", {counted(kept['dropped_rows'])} rows dropped for want of memory"
    return text


def _links(one: Report) -> Report:
    """What was compressed on links; those that nothing has crossed say nothing."""
    compression = one.get("compression", {})
    return {link: said for link, said in compression.items() if said.get("messages")}


def _compressed(link: str, total: dict[str, float], whose: str) -> str:
    plain, nbytes = total["plain_nbytes"], total["nbytes"]
    saved = 100 * (1 - nbytes / plain) if plain else 0.0
    text = f"{link}: {sized(plain)} as {sized(nbytes)} (-{saved:.1f} %)"
    text += f" in {counted(total['messages'])} messages, {total['seconds']:.1f} s of {whose}"
    if total["rows_sent"] < total["rows"]:
        share_left = 100 * (1 - total["rows_sent"] / total["rows"])
        text += f", {share_left:.1f} % of rows left out"
    return text


def share(hits: float, misses: float) -> str:
    """A hit rate in percent, `-` where nothing was looked up."""
    asked = hits + misses
    return f"{100 * hits / asked:.1f} %" if asked else "-"
