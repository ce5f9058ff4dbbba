"""What `pslite bench` does with its options: choose, run, and put the report where it is wanted."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pslite.bench import report
from pslite.bench.errors import BenchError
from pslite.bench.peers import default_folder, peer_files
from pslite.bench.results import Results
from pslite.bench.targets import verdicts
from pslite.config import JobConfig
from pslite.prepare import preparation

if TYPE_CHECKING:
    from pslite.bench.run import Sizes

BEGIN, END = "<!-- figures of pslite bench: begin -->", "<!-- figures of pslite bench: end -->"


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of the command, as its help describes them."""

    is_quick: bool = False
    is_large: bool = False
    only: tuple[str, ...] = ()
    rounds: int | None = None
    peers: Path | None = None
    without: tuple[str, ...] = ()
    json: Path | None = None
    png: Path | None = None
    markdown: Path | None = None
    earlier: Path | None = None
    is_list: bool = False


def run_command(request: Request) -> None:
    """Do what the options ask for.

    Raises:
        BenchError: a name that is unknown, or a file that cannot be written or read.
    """
    if request.is_list:
        print(_listing(request), end="")
        return
    for path in (request.json, request.png, request.markdown):
        _refuse_unwritable(path)
    if request.markdown is not None:
        _page(request.markdown)
    if request.png is not None and importlib.util.find_spec("matplotlib") is None:
        raise BenchError("--png needs Matplotlib: pip install matplotlib")
    results = _measured(request) if request.earlier is None else _read(request.earlier)
    judged = verdicts(results)
    print(report.text(results, judged), end="")
    if request.json is not None:
        request.json.write_text(results.to_json(judged), encoding="utf-8")
    if request.markdown is not None:
        put_between_marks(request.markdown, report.markdown(results, judged))
    if request.png is not None:
        from pslite.bench.plot import draw

        draw(results, request.png)


def _measured(request: Request) -> Results:
    from pslite.bench.progress import Progress
    from pslite.bench.run import LEVELS, Options, refuse_unknown, run
    from pslite.bench.workloads import WORKLOADS

    refuse_unknown("--only", request.only, [workload.name for workload in WORKLOADS])
    sizes = _sizes(request)
    highest = LEVELS.index(_level(request))
    chosen = [
        workload
        for workload in WORKLOADS
        if workload.name in request.only
        or (not request.only and LEVELS.index(workload.level) <= highest)
    ]
    folder = request.peers or default_folder()
    if folder is None:
        print("pslite: no peers: --peers FOLDER names some", file=sys.stderr)
    names = [file.name for file in peer_files(folder)]
    refuse_unknown("--without", request.without, names)  # before kernels are compiled
    _compile_kernels(os.environ)
    options = Options(sizes=sizes, peers=folder, without=request.without)
    return run(options, Progress(sys.stderr), chosen)


def _level(request: Request) -> str:
    if request.is_large:
        return "large"
    return "quick" if request.is_quick else "full"


def _sizes(request: Request) -> Sizes:
    from pslite.bench.run import FULL, LARGE_ENTRIES, LARGE_ROWS, QUICK

    sizes = QUICK if request.is_quick else FULL
    if request.rounds is not None:
        sizes = replace(sizes, rounds=request.rounds)
    if request.is_large:
        sizes = replace(sizes, entries=(*sizes.entries, LARGE_ENTRIES), grown=LARGE_ROWS)
    elif "growth" in request.only:
        raise BenchError("the workload growth needs --large, and memory for 100 million rows")
    return sizes


def _compile_kernels(env: Mapping[str, str]) -> None:
    """As a launcher does, so that no measurement meets a kernel that is not compiled."""
    if arguments := preparation(JobConfig(), env):
        command = [sys.executable, "-m", "pslite.prepare", *arguments]
        subprocess.run(command, check=True, stdout=sys.stderr)


def _listing(request: Request) -> str:
    from pslite.bench.workloads import WORKLOADS

    folder = request.peers or default_folder()
    lines = ["workloads, and the smallest run that has them:"]
    lines += [f"  {one.name:12}{one.level:7}{one.what}" for one in WORKLOADS]
    lines += [f"peers in {folder}:" if folder else "peers: none; --peers FOLDER names some"]
    lines += [f"  {file.name:18}{file.label}" for file in peer_files(folder)]
    return "\n".join(lines) + "\n"


def _read(path: Path) -> Results:
    try:
        return Results.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchError(f"--from {path}: not written by --json ({error})") from None


def _refuse_unwritable(path: Path | None) -> None:
    """Before minutes are spent on measuring."""
    if path is None:
        return
    place = path if path.exists() else path.resolve().parent
    if not os.access(place, os.W_OK):
        raise BenchError(f"{path} cannot be written")


def put_between_marks(path: Path, text: str) -> None:
    """Replace what stands between the marks of a page, which is made if it is not there."""
    before, _, rest = _page(path).partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


def _page(path: Path) -> str:
    """The text of a page that has the marks."""
    page = path.read_text(encoding="utf-8") if path.exists() else f"{BEGIN}\n{END}\n"
    if not 0 <= page.find(BEGIN) < page.find(END):
        raise BenchError(f"--markdown {path} has no line {BEGIN!r} with {END!r} after it")
    return page
