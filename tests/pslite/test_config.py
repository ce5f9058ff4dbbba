"""Ini files and overrides to typed settings."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv.config import ParamSyncConfig, ServerConfig
from postoffice.config import ClusterConfig
from pslite.config import (
    JobConfig,
    RunConfig,
    field_types,
    own_sections,
    parse_job,
    read_job,
    read_section,
)
from pslite.explain import explain, field_comments
from pslite.ini import Entry, parse_ini, split_assignments, to_assignments, to_ini
from van.config import VanConfig
from van.errors import ConfigError
from van.quantities import NBytes, Seconds

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Everything:
    """One field of each type that a setting may have."""

    size: NBytes = 1  # bytes
    time: Seconds = 1.0
    count: int = 1
    rate: float = 0.5
    is_on: bool = False
    label: str = ""
    maybe: Seconds | None = None
    ports: tuple[int, ...] = ()
    names: tuple[str, ...] = ()


def entries(**texts: str) -> dict[str, Entry]:
    return {key: Entry(text, "my.ini") for key, text in texts.items()}


def test_each_type_is_read_from_its_text() -> None:
    section = read_section(
        "all",
        Everything,
        entries(
            size="64KB",
            time="100ms",
            count="-3",
            rate="1e-3",
            is_on="Yes",
            label="a = b; #c",
            maybe="2min",
            ports="1, 2,3",
            names="a\nb, c",
        ),
    )

    assert section == Everything(
        size=64_000,
        time=0.1,
        count=-3,
        rate=0.001,
        is_on=True,
        label="a = b; #c",
        maybe=120.0,
        ports=(1, 2, 3),
        names=("a", "b", "c"),
    )


def test_an_empty_text_is_none_or_an_empty_list() -> None:
    section = read_section("all", Everything, entries(maybe="", ports="", names=""))

    assert (section.maybe, section.ports, section.names) == (None, (), ())


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("size", "many", "expected a size such as 64KB or 1MiB"),
        ("size", "1ms", "unknown unit 'ms'"),
        ("time", "soon", "expected a time such as 2s or 100ms"),
        ("count", "1.5", "expected a whole number"),
        ("count", "3 # three", "a comment stands on a line of its own"),
        ("count", "3\nrate = 2", "an indented line continues the value above it"),
        ("rate", "fast", "expected a number"),
        ("rate", "nan", "expected a finite number"),
        ("is_on", "maybe", "expected yes or no"),
        ("ports", "1, x", "expected a whole number, got 'x'"),
        ("count", "9" * 5000, f"expected a whole number below 2^64, got '{'9' * 40}'"),
        ("count", str(1 << 64), "expected a whole number below 2^64"),
        ("lable", "x", "unknown key; did you mean label?"),
        ("zzz", "x", "unknown key; known: size, time"),
    ],
)
def test_a_wrong_setting_names_file_section_and_key(key: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"my\.ini") as caught:
        read_section("all", Everything, entries(**{key: text}))

    assert said in str(caught.value)
    assert (caught.value.file, caught.value.section, caught.value.key) == ("my.ini", "all", key)


ODD = ["abc", "-1", "nan", "-inf", "1e999", "", "9" * 400, "9" * 5000, "0x10", "1.5", "true", "%"]
ODD += ["a,b", ",", "1e308d", "99999999999999999999s", "18446744073709551615", "999999PiB", "[x]"]


@pytest.mark.parametrize("section", sorted(own_sections()))
def test_whatever_a_setting_says_it_is_a_value_or_a_mistake_of_that_key(section: str) -> None:
    named: set[str | None] = set()
    for key in field_types(own_sections()[section]):
        for text in ODD:
            try:
                job = read_job(None, [f"{section}.{key}={text}"])
            except ConfigError as error:
                named.add(error.section)
            else:
                assert parse_job(job.to_ini()) == job
    assert named == {section}


def test_a_key_without_default_must_be_given() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Needy:
        path: str
        other: int = 0

    with pytest.raises(ConfigError, match=r"my.ini \[needy\] path: must be given"):
        read_section("needy", Needy, entries(other="1"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[clutser]\nservers=1", "[clutser]: unknown section; did you mean cluster?"),
        ("[clutser]", "my.ini [clutser]: unknown section"),
        ("[cluster]\nserver=1", "[cluster] server: unknown key; did you mean servers?"),
        ("[cluster]\nServers=1", "did you mean servers?"),
        ("[cluster]\nservers=0", "[cluster] servers: expected 1 to 1024, got 0"),
        ("[cluster]\nservers=1025", "expected 1 to 1024"),
        ("[cluster]\nworkers=0", "[cluster] workers: expected 1 to 65536, got 0"),
        (
            "[cluster]\ndispatchers=2",
            "[cluster] dispatchers: expected 0 to 1, as many as there are",
        ),
        ("[dispatcher]\nflush_interval=0s", "flush_interval: expected 100us or more"),
        ("[dispatcher]\nparallel_aggregators=0", "expected 1 to 64"),
        ("[dispatcher]\nflush=1s", "unknown key; did you mean flush_"),
        ("[cluster]\nscheduler=here", "[cluster] scheduler: expected HOST:PORT"),
        ("[cluster]\nscheduler=a:65536", "port of 0 to 65535"),
        ("[cluster]\nscheduler=::1:80", "write an IPv6 address as [ADDRESS]:PORT"),
        ("[cluster]\nhost=", "[cluster] host: expected a host name"),
        ("[dispatcher]\nround_interval=1e-300s", "round_interval: expected 100us or more"),
        ("[dispatcher]\nparallel_aggregators=1000", "parallel_aggregators: expected 1 to 64"),
        ("[balance]\ncheck_interval=1e-9s", "check_interval: expected 100us or more"),
        ("[cluster]\nworkers=18446744073709551615", "workers: expected 1 to 65536"),
        ("[cluster]\nscheduler_timeout=21d", "scheduler_timeout: '21d' is too long"),
        ("[van]\nlinger=1e18", "linger: '1e18' is too long: 20 days (20d) at most"),
        ("[van]\nmax_header=0", "max_header: expected 1000 or more, got 0"),
        ("[van]\nmax_frame=0", "max_frame: expected 100 or more, got 0"),
        ("[van]\nmax_frames=-1", "max_frames: expected 2 to 65000, got -1"),
        ("[van]\nbacklog=18446744073709551615", "backlog: expected 1 to 1000000"),
        ("[van]\nresend_timeout=1e-300s", "resend_timeout: expected 10ms or more"),
        ("[simulate]\nlatency@foo=", "latency@foo: needs a value"),
        ("[simulate]\nlatency@worker=", "latency@worker: needs a value"),
        ("[cluster]\nstart_timeout=0s", "start_timeout: expected more than 0s"),
        ("[cluster]\ntransport=udp", "transport: expected tcp"),
        ("[cluster]\non_worker_failure=panic", "expected stop or continue or restart, got 'panic'"),
        ("[cluster]\non_server_failure=continue", "expected stop or restart, got 'continue'"),
        ("[cluster]\nheartbeat_interval=0s", "heartbeat_interval: expected 10ms or more"),
        ("[cluster]\nheartbeat_timeout=500ms", "heartbeat_timeout: expected 0s, or 2s or more"),
        ("[cluster]\nheartbeat_interval=3s\nheartbeat_timeout=5s", "0s, or 6s or more"),
        ("[cluster]\nrestart_timeout=-1s", "restart_timeout"),
        ("[cluster]\nmax_restarts=-1", "max_restarts: expected 0 or more"),
        ("[param_sync]\nmode=asynk", "or semi_sync, got 'asynk'; did you mean async?"),
        ("[param_sync]\nstaleness=-1", "[param_sync] staleness: staleness must be a whole number"),
        ("[param_sync]\nquorum=1.5", "[param_sync] quorum: quorum must be a fraction"),
        ("[param_sync]\nmax_retry=-1", "[param_sync] max_retry: expected 0 or more, got -1"),
        ("[server]\napp=my_server", "[server] app: expected MODULE:FUNCTION"),
        ("[run]\nseed=-1", "[run] seed: expected 0 to 2^63-1, got -1"),
        ("servers=1", "line 1: a [section] must come before 'servers=1'"),
        ("[cluster]\nservers", "line 2: expected `key = value` or `[section]`, got 'servers'"),
        ("[cluster]\n= 3", "line 2"),
        ("[cluster\nservers=3", "line 1"),
        ("[cluster]\nservers=1\nservers=1", "[cluster] servers: line 3: this key stands twice"),
        ("[run]\n[cluster]\n[run]", "[run]: line 3: this section stands twice"),
        ("[DEFAULT]\nservers=1", "[DEFAULT]: unknown section"),
    ],
)
def test_a_wrong_file_is_one_clear_error(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "my.ini"
    path.write_text(text)

    with pytest.raises(ConfigError) as caught:
        read_job(path)

    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_a_clear_error(tmp_path: Path) -> None:
    bad = tmp_path / "latin.ini"
    bad.write_bytes(b"[run]\nname = caf\xe9\n")

    with pytest.raises(ConfigError, match=r"latin.ini: not UTF-8 text \(byte 16\)"):
        read_job(bad)
    with pytest.raises(ConfigError, match=r"absent\.ini: cannot be read: No such file"):
        read_job(tmp_path / "absent.ini")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_job(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read: embedded null byte"):
        read_job("a\0b")


def test_a_byte_order_mark_and_windows_line_ends_are_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "windows.ini"
    path.write_bytes("﻿[cluster]\r\nservers = 3\r\n".encode())

    assert read_job(path).cluster.servers == 3


def test_without_a_file_all_is_default() -> None:
    assert read_job(None) == JobConfig()


def test_the_last_override_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "my.ini"
    path.write_text("[cluster]\nservers = 2\nworkers = 2\n")

    job = read_job(path, ["cluster.servers=3", " cluster . servers = 4 "])

    assert (job.cluster.servers, job.cluster.workers) == (4, 2)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("cluster.servers=x", "--set [cluster] servers: expected a whole number, got 'x'"),
        ("cluster.server=1", "--set [cluster] server: unknown key; did you mean servers?"),
        ("custer.servers=1", "--set [custer]: unknown section; did you mean cluster?"),
        ("cluster.servers=0", "--set [cluster] servers: expected 1 to 1024"),
        ("servers=1", "--set: expected section.key=value, got 'servers=1'"),
        ("cluster.servers", "expected section.key=value"),
        (".servers=1", "expected section.key=value"),
        ("", "expected section.key=value"),
    ],
)
def test_an_override_is_checked_like_the_file(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_job(None, [override])

    assert said in str(caught.value)


MIXED = """
[run]
app_sections = all, net
[cluster]
servers = 2
[all]
size = 1MiB
[net]
layers = fc:64,
    fc:1
"""


def test_one_file_may_serve_cluster_and_application() -> None:
    job = parse_job(MIXED)

    assert job.section("all", Everything) == Everything(size=1 << 20)
    assert job.app["net"]["layers"].text == "fc:64,\nfc:1"
    assert job.section("absent", Everything) == Everything()


def test_a_program_may_name_the_sections_it_owns() -> None:
    job = parse_job("[net]\nlayers = x\n", app_sections=["net"])

    assert job.app["net"]["layers"].text == "x"


def test_a_wrong_key_of_the_application_names_its_place() -> None:
    job = parse_job(MIXED.replace("size", "sise"), "one.ini")

    with pytest.raises(ConfigError, match=r"one.ini \[all\] sise: unknown key; did you mean size"):
        job.section("all", Everything)


def test_sections_of_the_application_can_be_overridden() -> None:
    job = read_job(None, ["run.app_sections=all", "all.size=2KiB"])

    assert job.section("all", Everything).size == 2048


# No blanks and none of the signs that mean something; a setting's text may hold "=" and "#".
names = st.text("abÜ中-_/%$\"'", min_size=1, max_size=6)
words = names | names.map("{0}=[x].{0} #,;:".format) | st.just("")
hosts = st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True)
jobs = st.builds(
    JobConfig,
    run=st.builds(
        RunConfig,
        name=words,
        seed=st.integers(0, 2**63 - 1),
    ),
    cluster=st.builds(
        ClusterConfig,
        servers=st.integers(1, 1024),
        workers=st.integers(1, 10_000),
        scheduler=st.builds("{}:{}".format, hosts, st.integers(0, 65535)),
        host=hosts,
        start_timeout=st.floats(1e-3, 20 * 86400),
    ),
    van=st.builds(VanConfig, max_header=st.integers(1000, 1 << 50), linger=st.floats(0, 1e6)),
    server=st.builds(ServerConfig, app=st.sampled_from(["", "my.app:serve"])),
    param_sync=st.builds(ParamSyncConfig, mode=st.sampled_from(["async", "sync"])),
)


@settings(deadline=None)  # a busy machine
@given(jobs)
def test_a_job_reads_back_from_its_ini_text(job: JobConfig) -> None:
    assert parse_job(job.to_ini()) == job


@settings(deadline=None)  # a busy machine
@given(jobs)
def test_a_job_reads_back_from_its_assignments(job: JobConfig) -> None:
    assert read_job(None, split_assignments(job.to_assignments())) == job


@settings(max_examples=20, deadline=None)  # reads the sources each time
@given(jobs)
def test_an_explained_job_is_an_ini_of_the_same_settings(job: JobConfig) -> None:
    assert parse_job(explain(job)) == job


values = st.lists(words.filter(bool), max_size=3).map("\n".join)


@settings(max_examples=40)
@given(st.dictionaries(names, st.dictionaries(names, values, max_size=3), max_size=3))
def test_sections_read_back_from_both_their_texts(sections: dict[str, dict[str, str]]) -> None:
    def plain(parsed: dict[str, dict[str, Entry]]) -> dict[str, dict[str, str]]:
        return {name: {key: e.text for key, e in keys.items()} for name, keys in parsed.items()}

    assignments = split_assignments(to_assignments(sections))

    assert plain(parse_ini(to_ini(sections), "")) == sections
    assert len(assignments) == sum(map(len, sections.values()))


def test_the_sections_of_the_application_travel_with_the_job() -> None:
    job = parse_job(MIXED)

    assert parse_job(job.to_ini()) == job
    assert read_job(None, split_assignments(job.to_assignments())) == job


@pytest.mark.parametrize("name", [" padded", "a\n#b", "a\rb", "a\0b", "a\n\nb"])
def test_a_text_no_ini_can_hold_is_refused_on_writing(name: str) -> None:
    job = JobConfig(run=RunConfig(name=name))

    with pytest.raises(ConfigError, match=r"\[run\] name: .* cannot be written"):
        job.to_ini()


@pytest.mark.parametrize(("section", "owner"), own_sections().items())
def test_every_setting_says_what_it_means(section: str, owner: type) -> None:
    comments = field_comments(owner)

    assert [item.name for item in fields(owner) if not comments.get(item.name)] == []


def test_a_comment_beside_a_field_is_its_meaning() -> None:
    assert field_comments(Everything) == {"size": "bytes"}


def test_the_explanation_gives_meaning_default_and_value() -> None:
    text = explain(parse_job("[cluster]\nservers = 3\n"))

    assert "# server processes, 1 to 1024 (default 1)\nservers = 3\n" in text


@pytest.mark.parametrize("path", sorted((ROOT / "conf").glob("local*.ini")), ids=lambda p: p.name)
def test_the_files_in_conf_are_valid(path: Path) -> None:
    assert read_job(path).cluster.on_worker_failure == "stop"


def test_reading_settings_loads_nothing_heavy() -> None:
    code = (
        "import sys, pslite.config, pslite.environ, pslite.launcher\n"
        "print({'numpy', 'numba', 'torch', 'zmq', 'click'} & set(sys.modules))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    assert (done.stdout, done.stderr) == ("set()\n", "")


@pytest.mark.parametrize(
    ("text", "mode", "unused"),
    [
        ("", "async", []),
        ("lr_by_staleness=yes", "async(lr_by_staleness=1)", []),
        ("mode=ssp\nstaleness=2", "ssp(staleness=2)", []),
        ("mode=dc_async\ndc_lambda=0.1\ndc_memory=3", "dc_async(lam=0.1, memory=3)", []),
        ("mode=semi_sync\nquorum=2\nwindow=500ms", "semi_sync(quorum=2, window=0.5)", []),
        ("mode=sync\nstaleness=2", "sync", ["staleness"]),
    ],
)
def test_the_mode_of_a_job_has_the_settings_that_are_its_own(
    text: str, mode: str, unused: list[str]
) -> None:
    sync = parse_job(f"[param_sync]\n{text}").param_sync

    assert str(sync.consistency) == mode
    assert sync.unused == unused


def test_a_value_of_a_million_characters_is_not_shown_whole() -> None:
    with pytest.raises(ConfigError) as error:
        parse_job(f"[server]\nkey_cache = {'a' * 1_000_000}")

    assert "key_cache: expected a size" in str(error.value)
    assert len(str(error.value)) < 2500
