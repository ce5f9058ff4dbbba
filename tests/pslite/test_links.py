"""The network that `[simulate]` describes: what its keys mean, and jobs that heed it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import pslite
from pslite.cli import main
from pslite.config import JobConfig, parse_job, read_job
from pslite.explain import explain
from pslite.ini import split_assignments
from pslite.launcher import run_local
from pslite.simulate.config import SimulateConfig
from pslite.simulate.links import Links
from pslite.simulate.real import RealCluster
from pslite.simulate.workload import Workload
from van.errors import ConfigError
from van.message import Message, Meta
from van.virtual import VirtualNetwork
from van.wires import Wires

SECTION = """
[simulate]
bandwidth = 10Gbit
bandwidth@worker = 1Gbit
bandwidth@worker:3 = 100Mbit
bandwidth@worker-server = 2Gbit
latency = 0.2ms
latency@server = 1ms
latency@dispatcher:0 = 3ms
latency@worker:1-server:0 = 0s
loss = 0.1%
loss@server-worker:2 = 1%
"""


def test_what_is_most_exact_counts() -> None:
    links = parse_job(SECTION).simulate.network

    assert [links.line(n) for n in ("server 0", "worker 0", "worker 3")] == [10e9, 1e9, 100e6]
    assert links.link("worker 0", "server 1").bandwidth == 2e9
    assert links.link("server 1", "worker 0") == links.link("worker 0", "server 1")
    assert links.link("worker 0", "worker 1").bandwidth == 0
    assert links.link("worker 1", "scheduler").latency == 0.0002
    assert links.link("worker 0", "server 0").latency == 0.001
    assert links.link("worker 1", "server 0").latency == 0
    assert links.link("dispatcher 0", "server 1").latency == 0.003  # the worse of both ends
    assert links.link("worker 2", "server 0").loss == 0.01
    assert links.link("worker 0", "server 0").loss == 0.001


def test_the_section_reads_back_and_explains_itself() -> None:
    job = parse_job(SECTION)

    assert parse_job(job.to_ini()) == job
    assert read_job(None, split_assignments(job.to_assignments())) == job
    assert parse_job(explain(job)) == job
    assert "bandwidth@worker:3 = 100Mbit\n" in explain(job)


def test_a_job_heeds_only_what_is_said() -> None:
    assert JobConfig().simulate.imposed is None
    assert parse_job("[simulate]\nworkers = 4\nbandwidth = 0").simulate.imposed is None
    links = parse_job("[simulate]\nlatency = 3ms").simulate.imposed
    assert links is not None
    assert (links.line("worker 0"), links.link("worker 0", "server 0").latency) == (0, 0.003)
    assert SimulateConfig().network.line("worker 0") == 10e9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bandwidth@wroker = 1Mbit", "bandwidth@wroker: unknown role 'wroker'; did you mean"),
        ("latency@server-x = 1ms", "latency@server-x: unknown role 'x'; known are scheduler, ser"),
        ("latency@a-b-c = 1ms", "latency@a-b-c: a link has two ends"),
        ("loss@worker:x = 1%", "loss@worker:x: expected a node such as worker:0"),
        ("loss@ = 1%", "loss@: unknown role ''"),
        ("loss@worker = 60%", "loss@worker: expected 0 to 0.5, got 0.6"),
        ("latency@worker = 2min", "latency@worker: expected a minute at most, got 120s"),
        ("bandwidth@server = 10GB", "bandwidth@server: unknown unit 'GB'"),
        ("bandwidth@server = fast", "bandwidth@server: expected a bandwidth such as"),
        ("steps@server = 3", "steps@server: unknown key"),
        ("by_place = 3", "by_place: unknown key"),
        (
            "loss@server-worker = 0\nloss@worker-server = 0",
            "loss@worker-server: loss@server-worker says so already",
        ),
    ],
)
def test_a_wrong_key_is_named(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_job(f"[simulate]\n{text}\n", "job.ini")

    assert f"job.ini [simulate] {said}" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["simulate.latency@worker:2=1ms"], "the job has 2 workers, numbered from 0"),
        (["simulate.latency@dispatcher-server=1ms"], "the job has 0 dispatchers"),
        (["simulate.loss=1%", "van.resend=off"], "nobody sends again what is lost"),
        (["simulate.loss=1%", "run.deterministic=yes", "param_sync.mode=sync"], "on purpose"),
    ],
)
def test_a_network_that_does_not_fit_the_job_is_refused(settings: list[str], said: str) -> None:
    job = read_job(None, ["cluster.workers=2", *settings])

    with pytest.raises(ConfigError, match=rf"\[simulate\] .*{said}"):
        run_local(job, ["python", "-c", "pass"])


def test_many_workers_cannot_be_simulated_with_losses(tmp_path: Path) -> None:
    path = tmp_path / "sim.ini"
    path.write_text("[simulate]\nloss@server = 1%\n")

    result = CliRunner().invoke(main, ["simulate", str(path)])

    assert result.exit_code
    assert "loss@server: only real nodes send again" in result.output


# -- on a virtual clock ---------------------------------------------------------------------------


def test_messages_arrive_when_bytes_bandwidth_and_latency_say() -> None:
    links = Links({"bandwidth": 8e6, "latency": 0.5, "bandwidth@worker-server": 8e5})
    network = VirtualNetwork(Wires(lines=links))
    worker, server, other = (network.van() for _ in range(3))
    for van, name in ((worker, "worker 0"), (server, "server 0"), (other, "worker 1")):
        van.bind(name)
    got: list[tuple[float, int]] = []
    worker.connect(8, "server 0")
    worker.connect(11, "worker 1")
    for van in (server, other):
        van.receiver = lambda m: got.append((network.now, m.arrays[0].size))

    worker.send(Message(Meta(recipient=11), [np.zeros(100_000, np.uint8)]))
    worker.send(Message(Meta(recipient=8), [np.zeros(100_000, np.uint8)]))
    server.wait(lambda: len(got) == 2)

    header = network.wires.sent["worker 0"] / 2 - 100_000
    byte = 1e-6
    assert header > 0
    np.testing.assert_allclose(
        [when for when, _ in got],
        [
            0.5 + (100_000 + header) * byte,
            0.5 + (100_000 + header) * byte + (100_000 + header) * 10 * byte,
        ],
        rtol=1e-6,
    )


def test_a_worker_with_a_slow_line_is_a_slow_worker() -> None:
    def steps_of(said: dict[str, float]) -> list[float]:
        config = SimulateConfig(steps=6, keys=2000, straggler_share=0.0, by_place=said)
        return RealCluster(Workload(config, 3, "async", seed=2)).run().lasting

    plain, slow = steps_of({}), steps_of({"bandwidth@worker:1": 10e6})

    assert slow[0] == pytest.approx(plain[0], rel=0.1)
    assert slow[1] > 1.5 * plain[1]


# -- real nodes -----------------------------------------------------------------------------------


def ones(worker: pslite.RemoteWorker, rounds: int = 4) -> float:
    table = worker.sparse_table("t", 2, optimizer=pslite.SGD(lr=1.0), initializer=pslite.Zeros())
    keys = np.arange(50)
    for _ in range(rounds):
        table.pull(keys)
        worker.wait(table.push(keys, -np.ones((50, 2), np.float32)))
    worker.barrier("all have pushed")
    return float(table.pull(keys).sum())


def test_what_is_lost_is_made_good_and_sums_are_exact() -> None:
    network = {"loss": "5%", "latency": "1ms", "bandwidth@worker": "10Mbit"}

    with pslite.local_cluster(servers=2, workers=2, network=network) as cluster:
        sums = cluster.run(ones)

    assert sums == [2 * 4 * 50 * 2] * 2


def test_a_network_in_code_names_its_mistakes() -> None:
    with pytest.raises(ConfigError, match=r"bandwith: a network has .*did you mean bandwidth"):
        pslite.local_cluster(network={"bandwith": "1Gbit"})
    with pytest.raises(ConfigError, match="the job has 1 server"):
        pslite.local_cluster(network={"latency@server:1": "1ms"})


PUSH = """
import time
import numpy as np
import pslite

with pslite.connect() as worker:
    table = worker.dense_table("w", (1250, 1000), initializer=pslite.Zeros())
    gradient = np.ones((1250, 1000), np.float32)
    worker.wait(table.push(gradient))
    begun = time.monotonic()
    worker.wait(table.push(gradient))
    print("took", gradient.nbytes, time.monotonic() - begun)
"""


def test_processes_send_no_faster_than_their_bandwidth(
    run_job: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    result = run_job(PUSH, 1, 1, "--set", "simulate.bandwidth=20Mbit")

    assert result.returncode == 0, result.stderr
    (line,) = [line.split() for line in result.stdout.splitlines() if "took" in line]
    nbytes, seconds = int(line[-2]), float(line[-1])
    assert nbytes / seconds < 20e6 / 8
    assert nbytes / seconds > 20e6 / 8 / 10
    assert "the network is simulated: bandwidth = 20Mbit" in result.stderr
