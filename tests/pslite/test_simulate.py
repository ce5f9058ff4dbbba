"""`pslite simulate`: real nodes, the modes alone and a model of queues tell the same."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from pslite.cli import main
from pslite.config import parse_job, read_job
from pslite.simulate.config import SimulateConfig, mode_of
from pslite.simulate.cores import run_cores
from pslite.simulate.outcome import mean_of
from pslite.simulate.plot import by_powers
from pslite.simulate.real import RealCluster
from pslite.simulate.report import to_json
from pslite.simulate.runs import simulate
from pslite.simulate.workload import Workload
from van.errors import ConfigError

EXAMPLE = Path(__file__).resolve().parents[2] / "conf" / "simulate.ini"
QUICK = SimulateConfig(workers=(3,), steps=12, keys=40, dim=2)
MODES = ("async", "dc_async", "ssp:0", "ssp:3", "sync", "semi_sync:0.75", "backup:1")
BOUNDS = (0, 1, 4, 16, 64)
EXPECTED = {0: 0.76, 1: 0.65, 4: 0.42, 16: 0.19, 64: 0.05}


def ends_of_queues(times: NDArray[np.float64], bound: int) -> NDArray[np.float64]:
    """A model without any network: when each worker ends each step, shape (workers, steps).

    Step c of a worker begins when its step before is over and every worker has completed at least
    c - bound steps.
    """
    ends = np.zeros_like(times)
    for step in range(times.shape[1]):
        own = ends[:, step - 1] if step else 0.0
        others = ends[:, step - bound - 1].max() if step > bound else 0.0
        ends[:, step] = np.maximum(own, others) + times[:, step]
    return ends


def idle_of_queues(times: NDArray[np.float64], bound: int) -> float:
    return 1.0 - float(times.sum() / ends_of_queues(times, bound)[:, -1].sum())


@pytest.mark.parametrize("bound", [0, 1, 4, 16])
def test_without_a_network_the_modes_are_the_model_of_queues(bound: int) -> None:
    config = SimulateConfig(steps=120, servers=1, latency=0.0, bandwidth=0.0, keys=10)
    work = Workload(config, 16, f"ssp:{bound}", seed=5)

    outcome = run_cores(work)

    np.testing.assert_allclose(outcome.lasting, ends_of_queues(work.times, bound)[:, -1], rtol=1e-9)


def test_idle_shares_fall_with_the_bound_as_in_the_model_of_queues() -> None:
    config = SimulateConfig(steps=1000, servers=1, jitter=0.0)
    found = {b: Workload(config, 16, f"ssp:{b}", seed=1) for b in BOUNDS}

    idle = {bound: run_cores(work).idle_share for bound, work in found.items()}

    for bound, work in found.items():
        assert idle[bound] == pytest.approx(EXPECTED[bound], abs=0.05)
        assert idle[bound] == pytest.approx(idle_of_queues(work.times, bound), abs=0.01)


@pytest.mark.parametrize("mode", MODES)
def test_real_nodes_and_the_modes_alone_give_the_same_figures(mode: str) -> None:
    work = Workload(SimulateConfig(steps=25, keys=200), 6, mode, seed=2)

    real, cores = RealCluster(work).run(), run_cores(work)

    assert real.idle_share == pytest.approx(cores.idle_share, abs=0.002)
    assert real.steps_per_second == pytest.approx(cores.steps_per_second, rel=0.002)
    assert mean_of(real.staleness) == pytest.approx(mean_of(cores.staleness), rel=0.05)
    assert real.staleness.total() == cores.staleness.total()
    assert real.dropped == cores.dropped
    # Only the beginning and the end of a job are not among the messages of the modes alone.
    assert cores.messages < real.messages < cores.messages + 40 * 6
    assert cores.nbytes < real.nbytes < 1.1 * cores.nbytes


def test_a_narrow_line_makes_real_nodes_wait_as_it_does_the_modes_alone() -> None:
    config = SimulateConfig(steps=10, keys=2000, servers=1, bandwidth=20e6, latency=0.005)
    work = Workload(config, 4, "async", seed=2)

    real, cores = RealCluster(work).run(), run_cores(work)

    assert real.idle_share > 0.3
    assert real.idle_share == pytest.approx(cores.idle_share, abs=0.02)


def test_nobody_is_staler_than_the_bound_allows() -> None:
    work = Workload(replace(QUICK, steps=60, servers=1), 8, "ssp:2", seed=1)

    outcome = run_cores(work)

    # Each of the others has pushed at most 2 * bound + 1 steps that a worker does not know of.
    assert max(outcome.staleness) <= 7 * 5
    assert run_cores(replace(work, mode="sync")).staleness == Counter({0: 8 * 60})


def test_a_step_takes_what_the_settings_say() -> None:
    config = SimulateConfig(steps=20_000, compute=0.2, jitter=0.3, straggler_share=0.1)
    times = Workload(config, 1, "async", seed=1).times

    plain = Workload(replace(config, straggler_share=0.0), 1, "async", seed=1).times

    assert plain.mean() == pytest.approx(0.2, rel=0.02)
    assert plain.std() == pytest.approx(0.06, rel=0.05)
    assert (times > 1.5 * plain).mean() == pytest.approx(0.1, abs=0.01)
    np.testing.assert_allclose(times[times > 1.5 * plain], 10 * plain[times > 1.5 * plain])


def test_a_lost_message_is_sent_again_and_costs_time() -> None:
    config = replace(QUICK, steps=20)

    without = RealCluster(Workload(config, 3, "ssp:1", 1)).run()
    lossy = RealCluster(Workload(replace(config, loss=0.05), 3, "ssp:1", 1)).run()

    assert lossy.staleness.total() == without.staleness.total()
    assert lossy.idle_share > without.idle_share


@pytest.mark.parametrize("real_up_to", [0, 3])
def test_the_same_settings_and_seed_give_the_same_bytes(real_up_to: int) -> None:
    config = replace(QUICK, real_up_to=real_up_to, modes=("async", "sync"), repeats=2)

    texts = [to_json(config, simulate(config)) for _ in range(2)]
    other = replace(config, seed=9)

    assert texts[0] == texts[1]
    assert (
        json.loads(to_json(other, simulate(other)))["simulations"]
        != json.loads(texts[0])["simulations"]
    )
    assert json.loads(texts[0])["simulations"][0]["nodes"] == ("real" if real_up_to else "cores")


def test_staleness_is_shown_by_powers_of_two() -> None:
    assert by_powers(Counter({0: 1, 1: 1, 2: 1, 3: 1})) == [0.25, 0.25, 0.5]


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("workers = 0", "workers: expected numbers from 1 to 4096"),
        ("workers =", "workers: expected numbers"),
        ("modes = asink", "modes: 'asink': .*did you mean"),
        ("modes = sp:3", "modes: 'sp:3': .*did you mean"),
        ("modes = async:3", "modes: 'async:3': async takes no number"),
        ("modes = ssp:x", "modes: 'ssp:x': expected NAME or NAME:NUMBER"),
        ("modes = ssp:-1", "modes: 'ssp:-1'"),
        ("compute = 0", "compute: expected more than 0"),
        ("straggler_share = 120%", "straggler_share: expected 0 to 1, got 1.2"),
        ("bandwidth = 10GB", "bandwidth: unknown unit 'GB'"),
        ("wrokers = 2", "wrokers: unknown key; did you mean workers"),
    ],
)
def test_a_wrong_setting_is_named(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"sim.ini \[simulate\] {said}"):
        parse_job(f"[simulate]\n{text}\n", "sim.ini")


def test_a_mode_is_named_with_its_number() -> None:
    assert mode_of("ssp:4") == mode_of(" ssp : 4 ")
    assert mode_of("backup:2").holds
    assert mode_of("semi_sync:0.5") != mode_of("semi_sync")


def test_the_example_names_all_kinds_of_modes() -> None:
    config = read_job(EXAMPLE).simulate

    assert {mode_of(mode).name for mode in config.modes} == {"async", "ssp", "sync", "semi_sync"}


# -- the command ----------------------------------------------------------------------------------


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["simulate", *map(str, arguments)])
    return result.exit_code, result.output


def small(tmp_path: Path) -> Path:
    path = tmp_path / "sim.ini"
    path.write_text(
        "[simulate]\nworkers = 2, 20\nmodes = async, ssp:1\nsteps = 8\nkeys = 20\ndim = 2\n",
        encoding="utf-8",
    )
    return path


def test_the_command_prints_a_line_for_each_mode_and_writes_both_files(tmp_path: Path) -> None:
    png, found = tmp_path / "modes.png", tmp_path / "modes.json"

    code, out = run(small(tmp_path), "--png", png, "--json", found)

    rows = [line.split() for line in out.splitlines()]
    assert code == 0, out
    assert [row[:3] for row in rows[1:]] == [
        ["2", "async", "real"],
        ["2", "ssp:1", "real"],
        ["20", "async", "cores"],
        ["20", "ssp:1", "cores"],
    ]
    assert png.read_bytes().startswith(b"\x89PNG")
    simulations = json.loads(found.read_text(encoding="utf-8"))["simulations"]
    shown = {(row[0], row[1]): row[4] for row in rows[1:]}
    assert {(str(s["workers"]), s["mode"]): f"{s['idle_share']:.1%}" for s in simulations} == shown


def test_an_override_wins(tmp_path: Path) -> None:
    _, out = run(small(tmp_path), "--set", "simulate.workers=3", "--set", "simulate.modes=sync")

    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["3", "sync"]]


@pytest.mark.parametrize("option", ["--png", "--json"])
def test_a_file_that_cannot_be_written_is_said_before_the_work(tmp_path: Path, option: str) -> None:
    code, out = run(small(tmp_path), option, tmp_path / "absent" / "x")

    assert code == 2
    assert out.startswith(f"pslite: error: {option}")
    assert "cannot be written" in out
