"""Key files and allow-lists."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from pslite.keyring import curve_of, make_keys, names_of
from van.config import SecurityConfig
from van.errors import ConfigError
from van.keys import AllowLists, allow, is_key, new_pair, read_allowed, read_public, read_secret


def test_secret_keys_are_for_their_owner_only(keys: Path) -> None:
    modes = {stat.S_IMODE(os.stat(file).st_mode) for file in keys.glob("*.secret")}

    assert modes == {0o600}
    assert stat.S_IMODE(os.stat(keys).st_mode) == 0o700


def test_each_role_allows_its_own_keys_and_no_others(keys: Path) -> None:
    lists = AllowLists(keys)

    for role in ("scheduler", "server", "worker", "observer"):
        for file in keys.glob(f"{role}*.public"):
            assert lists.roles_of(read_public(file)) == {role}
    assert lists.roles_of(new_pair().public) == frozenset()


def test_keys_that_are_there_are_kept_and_missing_ones_are_made(tmp_path: Path) -> None:
    make_keys(tmp_path, names_of("server", 1), names_of("worker", 1))
    before = (tmp_path / "worker-0.secret").read_text()

    result = make_keys(tmp_path, names_of("server", 1), names_of("worker", 2))

    assert result.made == ("worker-1",)
    assert (tmp_path / "worker-0.secret").read_text() == before
    assert len(read_allowed(tmp_path / "worker.allowed")) == 2


def test_a_key_taken_off_its_list_stays_off_when_keys_are_made_again(tmp_path: Path) -> None:
    make_keys(tmp_path, names_of("server", 1), names_of("worker", 1))
    (tmp_path / "worker.allowed").write_text("")

    make_keys(tmp_path, names_of("server", 1), names_of("worker", 1))

    assert AllowLists(tmp_path).roles_of(read_public(tmp_path / "worker-0.public")) == frozenset()


def test_a_list_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    make_keys(tmp_path, [], [])
    lists, late = AllowLists(tmp_path), new_pair().public
    assert lists.roles_of(late) == frozenset()

    allow(tmp_path, "worker", late, "worker-9")
    assert lists.roles_of(late) == {"worker"}

    (tmp_path / "worker.allowed").unlink()
    assert lists.roles_of(late) == frozenset()


def test_a_list_that_is_damaged_later_stays_as_it_was(tmp_path: Path) -> None:
    make_keys(tmp_path, [], names_of("worker", 1))
    lists, key = AllowLists(tmp_path), read_public(tmp_path / "worker-0.public")

    (tmp_path / "worker.allowed").write_text("what is this\n")

    assert lists.roles_of(key) == {"worker"}
    with pytest.raises(ConfigError, match=r"worker\.allowed: line 1 is not `KEY NAME`"):
        AllowLists(tmp_path)


def test_a_list_may_have_comments_and_keys_that_look_like_some(tmp_path: Path) -> None:
    key = "#" + new_pair().public[1:]
    file = tmp_path / "worker.allowed"
    file.write_text(f"# our workers\n\n{key} the first\n")

    assert read_allowed(file) == {key: "the first"}


def test_a_secret_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    make_keys(tmp_path, [], names_of("worker", 1))
    file = tmp_path / "worker-0.secret"
    file.chmod(0o640)

    with pytest.raises(ConfigError, match=f"others may read .*chmod 600 {file}"):
        read_secret(file)


@pytest.mark.parametrize("text", ["", "short", "x" * 41, "ü" * 40, "\0" * 40])
def test_a_file_without_a_key_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "worker-0.secret"
    file.write_text(text)
    file.chmod(0o600)

    assert not is_key(text)
    with pytest.raises(ConfigError, match=r"worker-0\.secret"):
        read_secret(file)


def test_a_secret_key_is_in_no_repr(keys: Path) -> None:
    pair = read_secret(keys / "worker-0.secret")

    assert pair.secret not in repr(pair)
    assert pair.secret not in repr(
        curve_of(SecurityConfig(curve=True, keys=str(keys)), "worker", 0)
    )


def test_a_node_takes_the_key_of_its_rank_or_of_its_role_or_the_only_one(tmp_path: Path) -> None:
    security = SecurityConfig(curve=True, keys=str(tmp_path))

    def file_of(role: str, rank: int | None, key: str = "") -> str:
        found = curve_of(SecurityConfig(curve=True, keys=str(tmp_path), key=key), role, rank)
        assert found is not None
        return Path(found.file).name

    make_keys(tmp_path, names_of("server", 2), ["worker"])
    assert file_of("server", 1) == "server-1.secret"
    assert file_of("worker", 5) == "worker.secret"
    assert file_of("worker", 5, key="server-0") == "server-0.secret"
    with pytest.raises(ConfigError, match="2 keys for a server; name one with"):
        curve_of(security, "server", None)
    (tmp_path / "server-0.secret").unlink()
    assert file_of("server", None) == "server-1.secret"
    with pytest.raises(ConfigError, match="no key for server-0; pslite keygen --cluster"):
        curve_of(security, "server", 0)


def test_without_a_folder_the_error_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[security\] keys: curve needs a folder of keys"):
        curve_of(SecurityConfig(curve=True), "worker", 0)
    with pytest.raises(ConfigError, match="no folder of keys; pslite keygen --cluster"):
        curve_of(SecurityConfig(curve=True, keys=str(tmp_path / "nowhere")), "worker", 0)
