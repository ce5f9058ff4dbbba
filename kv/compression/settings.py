"""Which values are compressed how: by table and by link.

    worker-server       gradients of a worker on their way to a server
    worker-dispatcher   the same to a dispatcher
    dispatcher-server   what a dispatcher has made of them
    pull                values on their way back, on every link

A `Compression` is one table's and travels in its definition. `Rules` are those of a job, the ini
section `[compression]`: they give one to each table that is defined without. No arrays and no
Numba, so that any process may import this.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kv.compression.schemes import BF16, FP16, NONE, Chain, Int8, Zstd
from kv.errors import SettingError
from van.errors import ConfigError
from van.quantities import BYTES, format_quantity, parse_quantity

WORKER_SERVER, WORKER_DISPATCHER = "worker-server", "worker-dispatcher"
DISPATCHER_SERVER, PULL = "dispatcher-server", "pull"
PUSH, MEMORY = "push", "memory"
PUSH_LINKS = (WORKER_SERVER, WORKER_DISPATCHER, DISPATCHER_SERVER)
LINKS = (*PUSH_LINKS, PULL)
ASPECTS = (PUSH, *LINKS, MEMORY)
KINDS = ("sparse", "dense")
ALL = "*"
DEFAULT_MEMORY = 256 << 20
_FOR_PULL = (FP16, BF16, Int8, Zstd)


@dataclass(frozen=True)
class Compression:
    """How one table's values are compressed.

    Args:
        worker_server, worker_dispatcher, dispatcher_server: of gradients on that link; None: not.
        pull: of values that are pulled: fp16, bf16 or int8, with zstd or without; what they lose
            nobody keeps.
        memory: bytes of residuals of a sparse table that one sender keeps; above, those that were
            touched longest ago are dropped.
    Raises:
        SettingError: a scheme that pulls cannot have, or a limit below 0.
    """

    worker_server: Chain | None = None
    worker_dispatcher: Chain | None = None
    dispatcher_server: Chain | None = None
    pull: Chain | None = None
    memory: int = DEFAULT_MEMORY

    def __post_init__(self) -> None:
        for scheme in self.pull.schemes if self.pull else ():
            if not isinstance(scheme, _FOR_PULL):
                names = ", ".join(kind.name for kind in _FOR_PULL)
                problem = f"values that are pulled may be {names}, not {scheme}: nothing is kept"
                raise SettingError("compression", f"{PULL} = {self.pull}: {problem}")
        if isinstance(self.memory, bool) or not isinstance(self.memory, int) or self.memory < 0:
            raise SettingError("compression", f"{MEMORY} is bytes, 0 or more, not {self.memory!r}")

    def link(self, name: str) -> Chain | None:
        """The chain of one of LINKS."""
        chain: Chain | None = getattr(self, name.replace("-", "_"))
        return chain

    @property
    def is_none(self) -> bool:
        """Whether nothing is compressed."""
        return all(self.link(name) is None for name in LINKS)

    @classmethod
    def of(cls, given: CompressionLike) -> Compression:
        """What was given in a definition: a chain for gradients, or chains by link.

        >>> str(Compression.of({"push": "topk:0.1", "pull": "fp16"}))
        'push=topk:0.1, pull=fp16'

        Raises:
            SettingError: it is none.
        """
        if isinstance(given, Compression):
            return given
        if isinstance(given, str | Chain):
            given = {PUSH: given}
        if not isinstance(given, Mapping):
            problem = f"a chain such as 'topk:0.1+fp16', or chains by link, not {given!r}"
            raise SettingError("compression", problem)
        values: dict[str, Any] = {}
        for aspect in given:
            if aspect not in ASPECTS:
                raise SettingError("compression", _unknown("link", str(aspect), ASPECTS))
        for aspect in ASPECTS:  # what is said of one link counts more than of all
            if aspect in given:
                links = PUSH_LINKS if aspect == PUSH else (aspect,)
                value = _bytes(given[aspect]) if aspect == MEMORY else chain_of(given[aspect])
                values |= {link.replace("-", "_"): value for link in links}
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """All of it in msgpack types; `of` reads it back."""
        chains = {name: self.link(name) for name in LINKS}
        return {name: chain and str(chain) for name, chain in chains.items()} | {
            MEMORY: self.memory
        }

    def __str__(self) -> str:
        chains = {name: self.link(name) for name in LINKS}
        pushed = {chains[name] for name in PUSH_LINKS}
        if len(pushed) == 1:
            chains = {PUSH: pushed.pop(), PULL: self.pull}
        said = [f"{name}={chain}" for name, chain in chains.items() if chain is not None]
        if self.memory != DEFAULT_MEMORY:
            said.append(f"{MEMORY}={format_quantity(self.memory, BYTES)}")
        return ", ".join(said) or NONE


@dataclass(frozen=True)
class Rules:
    """The ini section `[compression]`: `TARGET = CHAIN`, or `TARGET@ASPECT = …`.

    A target is a table's name, `sparse`, `dense`, or `*` for every table; the first of these that
    says something counts. An aspect is a link, `push` for all links of gradients (as without one),
    or `memory`, a size such as `64MiB`. A chain may be `none`.

    Raises:
        ConfigError: a key or a value that means nothing.
    """

    said: Mapping[str, str]  # chains and sizes, by TARGET or TARGET@ASPECT

    def __post_init__(self) -> None:
        for key, text in self.said.items():
            _, aspect = _split(key)
            try:
                Compression.of({aspect: text})
            except SettingError as error:
                problem = str(error).removeprefix("compression: ")
                raise ConfigError(problem, section="compression", key=key) from None

    def of(self, table: str, kind: str) -> Compression | None:
        """What a table of that name and kind, `sparse` or `dense`, gets; None: nothing."""
        chosen: dict[str, str] = {}
        for aspect in (*LINKS, MEMORY):
            for target in (table, kind, ALL):
                keys = [f"{target}@{aspect}"]
                if aspect in PUSH_LINKS:
                    keys += [f"{target}@{PUSH}", target]
                found = next((self.said[key] for key in keys if key in self.said), None)
                if found is not None:
                    chosen[aspect] = found
                    break
        made = Compression.of(chosen)
        return None if made.is_none else made

    def unused(self, tables: Mapping[str, str]) -> list[str]:
        """Keys whose target is none of these tables, by name and kind, nor a kind or all."""
        known = {*tables, *KINDS, ALL}
        return [key for key in self.said if _split(key)[0] not in known]


NO_RULES = Rules({})


def is_target(targets: Collection[str], table: str, kind: str) -> bool:
    """Whether a table of that name and kind is among targets as those of `Rules`."""
    return table in targets or kind in targets or ALL in targets


CompressionLike = str | Chain | Mapping[str, Any] | Compression
"""What a table's definition may say: see `Compression.of`."""


def chain_of(given: str | Chain | None) -> Chain | None:
    """A chain of its text; None of `none`.

    Raises:
        SettingError: it is no chain.
    """
    if given is None or isinstance(given, Chain):
        return given
    if not isinstance(given, str):
        raise SettingError("compression", f"a chain is a text such as topk:0.1, not {given!r}")
    return None if given.strip().lower() == NONE else Chain.parse(given)


def _split(key: str) -> tuple[str, str]:
    """Target and aspect of a key."""
    target, at, aspect = key.rpartition("@")
    if not at:
        return key, PUSH
    if aspect not in ASPECTS:
        raise ConfigError(_unknown("link", aspect, ASPECTS), section="compression", key=key)
    if not target:
        raise ConfigError(f"a table stands before @{aspect}", section="compression", key=key)
    return target, aspect


def _bytes(given: object) -> object:
    if not isinstance(given, str):
        return given
    try:
        return int(parse_quantity(given, BYTES))
    except ValueError as error:
        raise SettingError("compression", f"{MEMORY}: {error}") from None


def _unknown(what: str, given: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(given.lower(), known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"unknown {what} {given!r}; {hint}known are {', '.join(known)}"
