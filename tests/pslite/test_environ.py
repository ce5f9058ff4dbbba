"""The environment variables of a node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postoffice.config import ClusterConfig
from postoffice.node import Role
from pslite.addresses import address_of_interface, address_towards
from pslite.config import JobConfig, RunConfig
from pslite.environ import (
    NodeSettings,
    child_environ,
    from_environ,
    is_in_cluster,
    job_from_environ,
    to_environ,
    verbosity,
)
from van.errors import ConfigError

WORKER = {
    "DMLC_ROLE": "worker",
    "DMLC_NUM_WORKER": "4",
    "DMLC_NUM_SERVER": "2",
    "DMLC_PS_ROOT_URI": "127.0.0.1",
    "DMLC_PS_ROOT_PORT": "9091",
}


def test_the_variables_of_ps_lite_make_a_node() -> None:
    node = from_environ(WORKER)

    cluster = node.job.cluster
    assert (node.role, node.rank, node.verbose) == (Role.WORKER, None, 0)
    assert (cluster.workers, cluster.servers, cluster.dispatchers) == (4, 2, 0)
    assert node.scheduler == "tcp://127.0.0.1:9091"
    assert cluster.host == "127.0.0.1"


def test_what_is_unset_is_as_the_ini_says(tmp_path: Path) -> None:
    ini = tmp_path / "my.ini"
    ini.write_text("[cluster]\nservers=3\nworkers=5\nscheduler=127.0.0.1:7000\n[run]\nseed=7\n")
    env = {"DMLC_ROLE": "server", "PSLITE_CONF": str(ini), "DMLC_NUM_WORKER": "6"}

    node = from_environ({**env, "PSLITE_SET": "run.name=x\n\nrun.seed=8\n"})

    assert (node.job.cluster.servers, node.job.cluster.workers) == (3, 6)
    assert node.scheduler == "tcp://127.0.0.1:7000"
    assert (node.job.run.name, node.job.run.seed) == ("x", 8)


def test_an_empty_variable_counts_as_unset() -> None:
    empty = dict.fromkeys(
        ["DMLC_NUM_SERVER", "PSLITE_RANK", "PSLITE_VERBOSE", "PSLITE_CONF", "DMLC_NODE_HOST"], ""
    )

    assert from_environ({**WORKER, **empty}).job.cluster.servers == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"DMLC_ROLE": None}, "DMLC_ROLE is not set"),
        ({"DMLC_ROLE": "wroker"}, "DMLC_ROLE: expected scheduler, server, worker, got"),
        ({"DMLC_ROLE": "dispatcher"}, "DMLC_ROLE: dispatcher is not supported yet"),
        ({"DMLC_ROLE": "wroker"}, "did you mean worker?"),
        ({"DMLC_NUM_SERVER": "two"}, "DMLC_NUM_SERVER: expected a whole number, got 'two'"),
        ({"DMLC_NUM_SERVER": "0"}, "DMLC_NUM_SERVER: expected 1 to 1024, got 0"),
        ({"PS_HEARTBEAT_TIMEOUT": "1e3"}, "PS_HEARTBEAT_TIMEOUT: expected a number of seconds"),
        ({"PS_HEARTBEAT_TIMEOUT": "0.5"}, "PS_HEARTBEAT_TIMEOUT: expected 0s, or 2s or more"),
        ({"DMLC_NUM_WORKER": "-1"}, "DMLC_NUM_WORKER: expected a whole number, got '-1'"),
        ({"DMLC_NUM_WORKER": "²"}, "DMLC_NUM_WORKER: expected a whole number"),
        ({"DMLC_NUM_DISPATCHER": "1"}, "DMLC_NUM_DISPATCHER: 1 is not supported yet"),
        ({"DMLC_PS_ROOT_PORT": "65536"}, "DMLC_PS_ROOT_PORT: expected 0 to 65535, got '65536'"),
        ({"DMLC_PS_ROOT_PORT": None}, "where is the scheduler?"),
        ({"DMLC_PS_ROOT_PORT": "0"}, "where is the scheduler?"),
        ({"PSLITE_RANK": "4"}, "PSLITE_RANK: worker 4 does not exist; the job has 4"),
        ({"PSLITE_RANK": "x"}, "PSLITE_RANK: expected a whole number"),
        ({"PSLITE_VERBOSE": "loud"}, "PSLITE_VERBOSE: expected a whole number"),
        ({"PSLITE_SET": "cluster.server=1"}, "PSLITE_SET [cluster] server: unknown key"),
        ({"PSLITE_SET": "nonsense"}, "PSLITE_SET: expected section.key=value"),
        ({"PSLITE_CONF": "/absent.ini"}, "/absent.ini: cannot be read"),
        ({"DMLC_INTERFACE": "nope0"}, "DMLC_INTERFACE: no IPv4 address on interface 'nope0'"),
    ],
)
def test_a_wrong_variable_is_a_clear_error(changes: dict[str, str | None], said: str) -> None:
    merged = {**WORKER, **changes}
    env = {name: value for name, value in merged.items() if value is not None}

    with pytest.raises(ConfigError) as caught:
        from_environ(env)

    assert said in str(caught.value)


def test_a_scheduler_may_leave_its_port_open() -> None:
    node = from_environ({"DMLC_ROLE": "scheduler"})

    assert node.scheduler == "tcp://127.0.0.1:0"


def test_outside_a_cluster_the_error_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"pslite local .*connect\(local=True\)"):
        from_environ({})
    assert not is_in_cluster({})
    assert is_in_cluster(WORKER)


@pytest.mark.parametrize(
    ("env", "interval", "timeout"),
    [
        ({}, 1.0, 10.0),
        ({"PS_HEARTBEAT_INTERVAL": "2", "PS_HEARTBEAT_TIMEOUT": "30"}, 2.0, 30.0),
        ({"PS_HEARTBEAT_TIMEOUT": "0"}, 1.0, 0.0),
        ({"PS_HEARTBEAT_INTERVAL": "0"}, 1.0, 0.0),
        ({"PS_HEARTBEAT_INTERVAL": "0.25"}, 0.25, 10.0),
    ],
)
def test_heartbeats_are_in_the_units_of_ps_lite(
    env: dict[str, str], interval: float, timeout: float
) -> None:
    cluster = from_environ({**WORKER, **env}).job.cluster

    assert (cluster.heartbeat_interval, cluster.heartbeat_timeout) == (interval, timeout)


def test_the_node_host_wins_over_the_interface() -> None:
    both = {**WORKER, "DMLC_NODE_HOST": "10.0.0.7", "DMLC_INTERFACE": "eth9"}

    assert from_environ(both).job.cluster.host == "10.0.0.7"


def test_an_interface_gives_its_address() -> None:
    node = from_environ({**WORKER, "DMLC_INTERFACE": "eth9"}, of_interface={"eth9": "10.1.1.1"}.get)

    assert node.job.cluster.host == "10.1.1.1"


def test_the_loopback_interface_has_the_loopback_address() -> None:
    assert address_of_interface("lo") == "127.0.0.1"


def test_towards_a_scheduler_elsewhere_a_node_takes_an_address_others_can_reach() -> None:
    env = {**WORKER, "DMLC_PS_ROOT_URI": "10.0.0.1"}

    node = from_environ(env, towards={"10.0.0.1": "10.0.0.2"}.get)

    assert node.job.cluster.host == "10.0.0.2"


def test_a_host_the_ini_gives_is_kept() -> None:
    env = {**WORKER, "DMLC_PS_ROOT_URI": "10.0.0.1", "PSLITE_SET": "cluster.host=10.0.0.9"}

    assert from_environ(env).job.cluster.host == "10.0.0.9"


def test_the_way_to_oneself_is_the_loopback_address() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"


def test_no_way_to_the_scheduler_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match="no way to the scheduler's host not a host"):
        address_towards("not a host")


def test_an_ipv6_scheduler_keeps_its_brackets() -> None:
    node = from_environ({**WORKER, "DMLC_PS_ROOT_URI": "::1"})

    assert node.scheduler == "tcp://[::1]:9091"
    assert node.job.cluster.scheduler_host == "::1"


@pytest.mark.parametrize(
    ("env", "level"),
    [
        ({}, 0),
        ({"PS_VERBOSE": "2"}, 2),
        ({"PSLITE_VERBOSE": "1", "PS_VERBOSE": "2"}, 1),
        ({"PSLITE_VERBOSE": "0", "PS_VERBOSE": "2"}, 0),
    ],
)
def test_our_own_verbosity_wins(env: dict[str, str], level: int) -> None:
    assert verbosity(env) == level


def test_the_variables_of_ps_lite_about_resending_count() -> None:
    off = from_environ({**WORKER, "PS_RESEND": "0", "PS_RESEND_TIMEOUT": "250"}).job.van

    assert (off.resend, off.resend_timeout) == ("off", 0.25)
    assert from_environ({**WORKER, "PSLITE_SET": "van.resend=off"}).job.van.resend == "off"
    assert from_environ({**WORKER, "PS_RESEND": "1"}).job.van.resend == "on"
    with pytest.raises(ConfigError, match="PS_RESEND_TIMEOUT"):
        from_environ({**WORKER, "PS_RESEND_TIMEOUT": "0"})


def test_messages_are_lost_on_purpose_as_in_ps_lite() -> None:
    assert from_environ({**WORKER, "PS_DROP_MSG": "10"}).job.chaos.plan == "drop 10%"
    with_plan = {**WORKER, "PSLITE_SET": "chaos.plan=kill server@20s", "PS_DROP_MSG": "5"}
    assert from_environ(with_plan).job.chaos.plan == "kill server@20s, drop 5%"
    assert from_environ({**WORKER, "PS_DROP_MSG": "0"}).job.chaos.plan == ""


def test_a_plan_is_held_against_the_cluster_that_the_variables_tell_of() -> None:
    plan = {**WORKER, "PSLITE_SET": "chaos.plan=kill server:3@20s"}

    assert from_environ({**plan, "DMLC_NUM_SERVER": "4"}).job.chaos.plan
    with pytest.raises(ConfigError, match=r"\[chaos\] plan: there is no server 3"):
        from_environ({**plan, "DMLC_NUM_SERVER": "3"})
    with pytest.raises(ConfigError, match="PS_DROP_MSG"):
        from_environ({**WORKER, "PS_DROP_MSG": "101"})


def test_the_rank_is_the_one_asked_for() -> None:
    assert from_environ({**WORKER, "PSLITE_RANK": "3"}).rank == 3


nodes = st.builds(
    NodeSettings,
    role=st.sampled_from([Role.SCHEDULER, Role.SERVER, Role.WORKER]),
    rank=st.none() | st.just(0),
    verbose=st.integers(0, 2),
    job=st.builds(
        JobConfig,
        run=st.builds(RunConfig, name=st.text("abc =#.", max_size=5).map(str.strip)),
        cluster=st.builds(
            ClusterConfig,
            servers=st.integers(1, 9),
            workers=st.integers(1, 9),
            scheduler=st.sampled_from(["127.0.0.1:1", "[::1]:65535", "host.example:9091"]),
            host=st.sampled_from(["10.0.0.1", "localhost"]),
        ),
    ),
).filter(lambda node: not node.job.run.name.startswith("#"))


@given(nodes)
def test_settings_read_back_from_the_variables_made_of_them(node: NodeSettings) -> None:
    assert from_environ(to_environ(node)) == node


def test_a_child_sees_the_settings_it_was_given_and_no_others() -> None:
    ours = {"PSLITE_CONF": "/absent.ini", "PS_VERBOSE": "2", "DMLC_INTERFACE": "nope0"}
    given_node = from_environ({**WORKER, "PSLITE_RANK": "1"})

    env = child_environ({"PATH": "/bin", "PSLITE_RANK": "9", **ours}, given_node)

    assert env["PATH"] == "/bin"
    assert from_environ(env) == given_node
    assert from_environ(child_environ(env, replace(given_node, rank=None))).rank is None


def test_a_job_can_be_read_without_any_role() -> None:
    assert job_from_environ({"PSLITE_SET": "run.seed=5"}).run.seed == 5
