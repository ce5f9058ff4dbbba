"""Which share of a step goes into synchronising: all-reduce, parameter servers, dispatchers.

The same model (an embedding and a small dense net), the same batches and the same time to compute,
trained by four workers on hosts of their own whose lines the kernel holds to one rate
(`sync_share_net.py`): with all-reduce of the dense gradients (torch, gloo), with two servers, and
with two dispatchers between; the latter two in mode sync, there also with numbers of two bytes on
the lines (fp16), and in async with the next batch's rows asked for ahead. Servers and dispatchers
have hosts with such lines, too; the scheduler's is free.

A 10 Gbit line would ask more of a few cores than they can do, so line and computing are slowed
alike: rate 10 Gbit / s, and s times the compute of a step. `--rate auto` takes a quarter of what
an all-reduce gets here without limits, so that the line is what limits. How long a step computes is
not known of the claim this is about, only the share: by default it is what makes all-reduce take
63 % at dimension 1024, by the bytes that it sends.

    python bench/sync_share.py
    python bench/sync_share.py --quick
    python bench/sync_share.py --markdown docs/dispatcher.md --png docs/sync_share.png
    python bench/sync_share.py --work run/sync_share.json    # goes on, if it was ended

Needs Linux, iproute2 and the right to make network namespaces; else it says why not, and ends with
exit code 77.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import Popen
from threading import Thread
from typing import Any

from reliability import into_page
from sync_share_net import SKIPPED, Host, NoNamespacesError, enter
from sync_share_report import CLAIM_ALL_REDUCE, CLAIM_FROM, Share, draw, share_of, table, verdict
from sync_share_work import ALL_REDUCE, SERVERS, Settings

ROOT = Path(__file__).resolve().parents[1]
WHOLE = 10e9  # bits a second of the lines that are scaled down
PROBED = 4  # an unlimited all-reduce is so many times as fast as the rate that is taken
BEGIN, END = "<!-- sync_share: begin -->", "<!-- sync_share: end -->"
FLOAT = 4


@dataclass(frozen=True)
class Way:
    """How workers keep their models the same."""

    name: str
    dispatchers: bool = False
    mode: str = ""  # of consistency; empty: all-reduce
    depth: int = 0  # steps asked for ahead
    compression: str = ""  # of what is pushed and pulled


WAYS = (
    Way("all-reduce"),
    Way("servers, sync", False, "sync"),
    Way("dispatchers, sync", True, "sync"),
    Way("servers, sync, fp16", False, "sync", compression="fp16"),
    Way("dispatchers, sync, fp16", True, "sync", compression="fp16"),
    Way("servers, async ahead", False, "async", 1),
    Way("dispatchers, async ahead", True, "async", 1),
)
QUICK = (WAYS[0], *WAYS[-2:])


class Hosts:
    """All hosts: one for the scheduler, and one for each other node."""

    def __init__(self, servers: int, dispatchers: int, workers: int) -> None:
        counts = {"scheduler": 1, "server": servers, "dispatcher": dispatchers, "worker": workers}
        names = [(role, rank) for role, count in counts.items() for rank in range(count)]
        self.by_node = {
            node: Host(f"{node[0]}{node[1]}", number) for number, node in enumerate(names, 1)
        }

    def of(self, role: str) -> list[Host]:
        return [host for (own, _), host in self.by_node.items() if own == role]

    def limit(self, rate: float) -> None:
        for (role, _), host in self.by_node.items():
            if role != "scheduler":
                host.limit(rate)


@contextmanager
def ending(started: list[Popen[str]]) -> Iterator[None]:
    """End what was started, whatever happens."""
    try:
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def run(way: Way, settings: Settings, hosts: Hosts, limit: float) -> list[dict[str, Any]]:
    """All workers' figures."""
    started: list[Popen[str]] = []
    with ending(started):
        if way.mode:
            _start_cluster(way, hosts, started)
        workers, first = [], hosts.of("worker")[0]
        for rank, host in enumerate(hosts.of("worker")):
            own = replace(settings, rank=rank, meet=f"{first.address}:29500", depth=way.depth)
            program = [
                str(ROOT / "bench" / "sync_share_work.py"),
                SERVERS if way.mode else ALL_REDUCE,
            ]
            env = _environ(way, hosts, "worker", rank, host)
            workers.append(host.start([sys.executable, *program, own.to_json()], env))
        started += workers
        return [line for lines in _outputs(way, workers, started, limit) for line in lines]


def _start_cluster(way: Way, hosts: Hosts, started: list[Popen[str]]) -> None:
    for (role, rank), host in hosts.by_node.items():
        if role == "worker" or (role == "dispatcher" and not way.dispatchers):
            continue
        command = [sys.executable, "-m", "pslite", "node"]
        started.append(host.start(command, _environ(way, hosts, role, rank, host)))


def _environ(way: Way, hosts: Hosts, role: str, rank: int, host: Host) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "GLOO_SOCKET_IFNAME": "eth0"}
    if not way.mode:
        return env
    settings = [f"param_sync.mode={way.mode}", "security.open=yes", "cluster.start_timeout=120s"]
    settings += ["cluster.heartbeat_timeout=60s", "dispatcher.cache_age=1s"]
    if way.compression:
        settings += [f"compression.*{link}={way.compression}" for link in ("", "@pull")]
    counts = {own: len(hosts.of(own)) for own in ("server", "worker", "dispatcher")}
    counts["dispatcher"] *= way.dispatchers
    return env | {
        "DMLC_ROLE": role,
        "DMLC_PS_ROOT_URI": hosts.of("scheduler")[0].address,
        "DMLC_PS_ROOT_PORT": "9000",
        "DMLC_NODE_HOST": host.address,
        "PSLITE_RANK": str(rank),
        "PSLITE_SET": "\n".join(settings),
        **{f"DMLC_NUM_{own.upper()}": str(count) for own, count in counts.items()},
    }


def _outputs(
    way: Way, workers: list[Popen[str]], started: list[Popen[str]], limit: float
) -> list[list[dict[str, Any]]]:
    """What the workers printed; raises SystemExit with what was said where one failed."""
    said = {process: list[str]() for process in started}

    def read(process: Popen[str]) -> None:
        assert process.stdout is not None, "it is a pipe"
        said[process] += list(process.stdout)

    threads = [Thread(target=read, args=(each,), daemon=True) for each in started]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit
    while any(process.poll() is None for process in workers):
        late = time.monotonic() > deadline
        if late or any(process.poll() for process in started):
            time.sleep(1.0)  # for last words
            words = "".join("".join(lines[-8:]) for lines in said.values())
            why = f"took more than {limit:.0f} s" if late else "failed"
            raise SystemExit(f"{way.name} {why}:\n{words}")
        time.sleep(0.1)
    for process, thread in zip(started, threads, strict=True):
        if process in workers:
            thread.join(10)
    return [[json.loads(x) for x in said[each] if x.startswith("{")] for each in workers]


def by_dim(figures: Sequence[dict[str, Any]]) -> dict[int, Share]:
    dims = sorted({one["dim"] for one in figures})
    return {dim: share_of([one for one in figures if one["dim"] == dim]) for dim in dims}


def ring_bytes(rows: int, dim: int, workers: int) -> float:
    """What a worker sends to add up dense gradients: 2 (W - 1) / W of their size."""
    return 2 * (workers - 1) / workers * rows * dim * FLOAT


def probe(settings: Settings, hosts: Hosts, limit: float) -> float:
    """Bits a second that each worker sends in an all-reduce without limits."""
    dim = max(settings.dims)
    own = replace(settings, dims=(dim,), compute=0.0, steps=2, warm=1)
    share = by_dim(run(WAYS[0], own, hosts, limit))[dim]
    return 8 * share.sent / share.seconds


def rounded(rate: float) -> float:
    """Down to 50 Mbit, at least to 50.

    >>> rounded(234e6), rounded(1e6)
    (200000000.0, 50000000.0)
    """
    return max(1, rate // 50e6) * 50e6


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("--dims", type=int, nargs="+", help="embedding dimensions; default 64 to 2048")
    add("--rows", type=int, help="of the embedding; default 8192")
    add("--batch", type=int, default=128, help="samples of a worker's step; %(default)s")
    add("--fields", type=int, default=8, help="rows of a sample; default %(default)s")
    add("--skew", type=float, default=1.1, help="of the rows' use (Zipf); default %(default)s")
    add("--steps", type=int, help="that are measured; default 5")
    add("--servers", type=int, default=2)
    add("--dispatchers", type=int, default=2)
    add("--workers", type=int, default=4)
    add("--rate", default="auto", help="Mbit/s of each line; default: a quarter of what goes")
    add("--compute", type=float, help="ms of a step beside 10 Gbit lines; default: see above")
    add("--limit", type=float, default=900.0, help="seconds for one way; default %(default)s")
    add("--quick", action="store_true", help="two workers, two dimensions, two steps, three ways")
    add("--work", type=Path, help="file that keeps figures: the same command goes on from it")
    add("--json", type=Path, help="file that gets all figures")
    add("--markdown", type=Path, help="page that gets the table")
    add("--png", type=Path, help="file that gets the picture")
    options = parser.parse_args(arguments)
    if options.quick:
        options.servers, options.dispatchers, options.workers = 1, 1, 2
    options.dims = options.dims or ([16, 64] if options.quick else [2**n for n in range(6, 12)])
    options.rows = options.rows or (2048 if options.quick else 8192)
    options.steps = options.steps or (2 if options.quick else 5)
    return options


def note(options: argparse.Namespace, settings: Settings, rate: float, use: float) -> str:
    """What was run, in words."""
    scale = WHOLE / rate
    rows = sum(map(len, settings.keys())) / settings.total
    line = (
        f"Rate of each line {rate / 1e6:.0f} Mbit/s, that is 10 Gbit/s slowed {scale:.0f} times; "
        f"a step computes {1000 * settings.compute / scale:.1f} ms, slowed alike to "
        f"{settings.compute:.2f} s. {settings.workers} workers, {options.servers} servers, "
        f"{options.dispatchers} dispatchers. Embedding of {settings.rows} rows, "
        f"{settings.batch} samples of {settings.fields} fields a step of a worker, which are "
        f"{rows:.0f} rows, {rows / settings.rows:.1%} of all. {settings.steps} steps each. "
        f"In brackets what a worker sends and receives in a step."
    )
    return f"{line} In all-reduce the lines were used to {use:.0%} of the rate."


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    try:
        enter()
        hosts = Hosts(options.servers, options.dispatchers, options.workers)
    except NoNamespacesError as error:
        print(f"sync_share.py: skipped: no namespaces to be had: {error}", file=sys.stderr)
        return SKIPPED
    settings = Settings(
        dims=tuple(options.dims),
        rows=options.rows,
        batch=options.batch,
        fields=options.fields,
        skew=options.skew,
        compute=0.0,
        steps=options.steps,
        warm=1,
        workers=options.workers,
    )
    kept = Kept(options)
    rate = kept.rate or rate_of(options, settings, hosts)
    kept.rate = rate
    hosts.limit(rate)
    settings = replace(settings, compute=compute_of(options, settings, rate))
    ways = QUICK if options.quick else WAYS
    for way in ways:
        if way.name not in kept.ways:
            kept.add(way.name, run(way, settings, hosts, options.limit))
            print(f"{way.name} done", file=sys.stderr, flush=True)
    report(options, settings, rate, {way.name: by_dim(kept.ways[way.name]) for way in ways})
    return 0


def rate_of(options: argparse.Namespace, settings: Settings, hosts: Hosts) -> float:
    """Bits a second of each line: those asked for, or those that this machine can drive."""
    if options.rate != "auto":
        return float(options.rate) * 1e6
    fastest = probe(settings, hosts, options.limit)
    print(f"an all-reduce without limits: {fastest / 1e6:.0f} Mbit/s", file=sys.stderr, flush=True)
    return rounded(fastest / PROBED)


def compute_of(options: argparse.Namespace, settings: Settings, rate: float) -> float:
    """Seconds of a step's computing, beside lines of `rate`."""
    if options.compute is not None:
        return float(options.compute) / 1000 * WHOLE / rate
    reducing = ring_bytes(settings.rows, CLAIM_FROM, settings.workers) * 8 / rate
    return reducing * (1 - CLAIM_ALL_REDUCE) / CLAIM_ALL_REDUCE


class Kept:
    """Figures by way, and the rate they were taken at, in a file if one was given.

    Args:
        options: what the figures depend on; those of other options are forgotten.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._path: Path | None = options.work
        outputs = ("work", "json", "markdown", "png", "limit")
        self._given = {k: v for k, v in vars(options).items() if k not in outputs}
        self.rate, self.ways = 0.0, dict[str, list[dict[str, Any]]]()
        if self._path is not None and self._path.is_file():
            body = json.loads(self._path.read_text(encoding="utf-8"))
            if body["given"] == self._given:
                self.rate, self.ways = body["rate"], body["ways"]

    def add(self, way: str, figures: list[dict[str, Any]]) -> None:
        """Keep the figures of a way."""
        self.ways[way] = figures
        if self._path is not None:
            body = {"given": self._given, "rate": self.rate, "ways": self.ways}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(body), encoding="utf-8")


def report(
    options: argparse.Namespace, settings: Settings, rate: float, found: dict[str, dict[int, Share]]
) -> None:
    """Print it, and write what is asked for."""
    reduced = found[ALL_REDUCE]
    largest = reduced[max(reduced)]
    use = 8 * largest.sent / (largest.seconds * largest.share) / rate
    text = "\n\n".join([note(options, settings, rate, use), table(found), verdict(found)]).strip()
    print(text)
    if options.json:
        body = {
            way: {dim: vars(one) for dim, one in shares.items()} for way, shares in found.items()
        }
        options.json.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    if options.markdown:
        into_page(options.markdown, text, BEGIN, END)
    if options.png:
        draw(found, options.png, f"{settings.workers} workers, lines of {rate / 1e6:.0f} Mbit/s")


if __name__ == "__main__":
    sys.exit(main())
