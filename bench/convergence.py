"""What each consistency mode does to a model: AUC and log-loss with 1 to 16 workers.

Real modes, store, optimisers and gradients on a virtual clock: 5 % of the steps take ten times as
long (`convergence_cell.py`). All modes train on the same rows, once an epoch, with the settings of
`conf/`; a worker's step is a batch of 64 rows, and learning rates grow with the rows of an update.
Each experiment's outcome is kept in the work folder: a run that was ended goes on with the same
command, and settings that have changed are run anew.

    python bench/convergence.py
    python bench/convergence.py --quick
    python bench/convergence.py --minutes 8          # then the same again, until all is done
    python bench/convergence.py --markdown docs/consistency.md --png docs/convergence.png
    python bench/convergence.py --only ctr --modes async --workers 1 --batch 1024  # what 16 make
    python bench/convergence.py --only a9a --modes ssp:1 --workers 16 --set train.epoch=1

a9a is read from the folder that PSLITE_DATA names, and left out without it.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from convergence_cell import Found, Setting, consistency_of, run_cell
from convergence_data import CASES, Case, Data, NoDataError, prepare
from convergence_plot import draw
from convergence_report import tables
from convergence_results import ONE, Cell, Group, Journal, facts, groups, lacking
from reliability import into_page
from tqdm import tqdm

from van.errors import PsliteError

BATCH = 64  # rows of a worker's step
SEEDS = 3
QUICK_ROWS = 16_384  # of each data set, of one seed
QUICK_WORKERS = (1, 4, 16)
BEGIN, END = "<!-- convergence: begin -->", "<!-- convergence: end -->"


def cells_of(case: Case, data: Data, options: argparse.Namespace) -> list[Cell]:
    """The experiments of a case, seed by seed; those of one worker always."""
    model = data.conf.as_dict()
    modes = options.modes or case.modes
    counts = sorted({1, *(options.workers or case.workers)})
    if options.quick and not options.workers:
        counts = [count for count in counts if count in QUICK_WORKERS]
    return [
        Cell(case.name, Setting(mode, workers, seed, options.batch), data.train_rows, model)
        for seed in range(1, options.seeds + 1)
        for workers in counts
        for mode in (modes if workers > 1 else (ONE,))
    ]


def prepare_all(options: argparse.Namespace) -> dict[Case, Data]:
    """The data of the chosen cases; what cannot be had is said and left out."""
    found = {}
    for name in options.only or CASES:
        case, rows = CASES[name], None
        if options.quick:
            case, rows = case.sized(QUICK_ROWS), QUICK_ROWS
        try:
            found[case] = prepare(case, options.work, tuple(options.settings), rows)
        except NoDataError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    return found


def run_all(data: dict[str, Data], cells: Sequence[Cell], journal: Journal, minutes: float) -> bool:
    """Make the experiments that are not in the journal; whether all are there now."""
    todo, begun = list(lacking(cells, journal)), time.monotonic()
    with tqdm(total=len(cells), initial=len(cells) - len(todo), unit=" runs") as bar:
        for cell in todo:
            if minutes and time.monotonic() - begun > 60 * minutes:
                return False
            setting, own = cell.setting, data[cell.case]
            bar.set_postfix_str(f"{cell.case} {setting.mode} {setting.workers} #{setting.seed}")
            batches = own.batches(setting.seed, setting.batch)
            conf = own.seeded(setting.seed)
            journal.add(cell, run_cell(setting, conf, own.schema, batches, own.tests))
            gc.collect()  # a cluster and its workers know each other, and have reserved much
            bar.update()
    return True


def text_of(
    known: Sequence[tuple[Cell, Found]],
    found: Sequence[Group],
    options: argparse.Namespace,
) -> str:
    """The tables as Markdown, with what was run."""
    seconds = sum(one.processor for _, one in known)
    seeds = "seed 1" if options.seeds == 1 else f"seeds 1 to {options.seeds}"
    note = (
        f"Means ± standard deviations over {seeds}; steps of {options.batch} rows. "
        f"All runs together took {seconds / 60:.0f} minutes of one processor."
    )
    return "\n\n".join([note, *(table.markdown() for table in tables(found))])


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What is to be done."""
    doc = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(description=doc[0])
    add = parser.add_argument
    add("--only", nargs="+", choices=list(CASES), metavar="CASE", help=", ".join(CASES))
    add("--modes", nargs="+", metavar="MODE", help="such as async:lr dc_async:16 ssp:4 backup:1")
    add("--workers", nargs="+", type=int, metavar="W", help="one worker is always run, too")
    add("--seeds", type=int, help=f"of each experiment, from 1 on; default {SEEDS}, quick 1")
    add("--batch", type=int, default=BATCH, help="rows of a worker's step; default %(default)s")
    add("--quick", action="store_true", help=f"{QUICK_ROWS} rows of each data set, one seed")
    add("--set", dest="settings", action="append", default=[], metavar="SECTION.KEY=VALUE",
        help="of the model ini; may be repeated")  # fmt: skip
    add("--minutes", type=float, default=0.0, help="begin no experiment after that; 0: go on")
    add("--work", type=Path, default=Path("run/convergence"), help="folder; default %(default)s")
    add("--json", type=Path, help="file that gets all figures")
    add("--markdown", type=Path, help="page that gets the tables")
    add("--png", type=Path, help="file that gets the picture")
    options = parser.parse_args(arguments)
    options.seeds = options.seeds or (1 if options.quick else SEEDS)
    if min(options.seeds, options.batch, *(options.workers or [1])) < 1:
        parser.error("--seeds, --batch and --workers take numbers from 1 on")
    try:
        for mode in options.modes or ():
            consistency_of(mode)
    except (PsliteError, ValueError) as error:
        parser.error(f"--modes: {error}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is not known yet, and report; 1 where time was over before, 2 without any data."""
    options = options_of(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    try:
        data = prepare_all(options)
        if not data:
            return 2
        cells = [cell for case, own in data.items() for cell in cells_of(case, own, options)]
        cells.sort(key=lambda cell: cell.setting.seed)  # all of one seed before the next
        journal = Journal(options.work / "outcomes.jsonl")
        by_name = {case.name: own for case, own in data.items()}
        if not run_all(by_name, cells, journal, options.minutes):
            left = len(list(lacking(cells, journal)))
            print(f"{left} of {len(cells)} runs are left: the same command goes on with them")
            return 1
    except PsliteError as error:
        print(f"convergence.py: error: {error}", file=sys.stderr)
        return 2
    known = [(cell, one) for cell in cells if (one := journal.find(cell)) is not None]
    found = [group for case in data for group in groups(case, known)]
    text = text_of(known, found, options)
    print(text)
    if options.json:
        body = [facts(group) for group in found]
        options.json.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    if options.png:
        draw(found, options.png)
    if options.markdown:
        into_page(options.markdown, text, BEGIN, END)
    return 0


if __name__ == "__main__":
    sys.exit(main())
