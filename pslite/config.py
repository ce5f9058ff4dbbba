"""Ini files to typed settings: the one reader for every section of ours.

Each section is a frozen dataclass beside its owner; `JobConfig` groups them. A file may also hold
sections of an application, named in `[run] app_sections` or by the program that reads the file;
they stay text until `JobConfig.section` reads them into the application's own dataclass.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kv.checkpoint.config import CheckpointConfig
from kv.compression.settings import NO_RULES, Rules
from kv.config import ParamSyncConfig, ServerConfig
from kv.dispatcher.balance_config import BalanceConfig
from kv.dispatcher.config import DispatcherConfig
from postoffice.config import ClusterConfig
from pslite.chaos.config import ChaosConfig
from pslite.ini import Entry, Sections, override, parse_ini, read_ini, to_assignments, to_ini
from pslite.simulate.config import SimulateConfig
from pslite.values import AT, ByPlace, format_value, nearest, parse_value
from van.config import SecurityConfig, VanConfig
from van.errors import ConfigError
from van.quantities import Seconds

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The job as a whole, the ini section `[run]`."""

    name: str = "local"  # name of the job in logs and files
    seed: int = 1  # where all chance of the job begins
    deterministic: bool = False  # fix all chance and order; what cannot be fixed is refused
    record: str = ""  # folder that gets the order in which servers work, for a replay; empty: none
    replay: str = ""  # folder of such a record: the same order, and the same bits, again
    replay_limit: Seconds = 300.0  # for the next recorded request; then the replay has failed
    app_sections: tuple[str, ...] = ()  # sections of this file that belong to an application

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            problem = f"expected 0 to 2^63-1, got {self.seed}"
            raise ConfigError(problem, section="run", key="seed")
        if self.record and self.replay:
            problem = "a run is recorded or replayed, not both"
            raise ConfigError(problem, section="run", key="replay")
        if self.replay_limit <= 0:
            problem = f"expected above 0, got {self.replay_limit}"
            raise ConfigError(problem, section="run", key="replay_limit")

    @property
    def is_fixed(self) -> bool:
        """Whether the run is to repeat: nothing in it may be left to chance."""
        return bool(self.deterministic or self.record or self.replay)


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """All settings of a job. Each field but `app` is the ini section of its name."""

    run: RunConfig = field(default_factory=RunConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    van: VanConfig = field(default_factory=VanConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    dispatcher: DispatcherConfig = field(default_factory=DispatcherConfig)
    balance: BalanceConfig = field(default_factory=BalanceConfig)
    param_sync: ParamSyncConfig = field(default_factory=ParamSyncConfig)
    compression: Rules = NO_RULES
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    chaos: ChaosConfig = field(default_factory=ChaosConfig)
    simulate: SimulateConfig = field(default_factory=SimulateConfig)
    app: Mapping[str, Mapping[str, Entry]] = field(default_factory=dict)

    def section(self, name: str, owner: type[T]) -> T:
        """The application's section `name` as its dataclass `owner`; absent means all defaults.

        Raises:
            ConfigError: an unknown key or a wrong value.
        """
        return read_section(name, owner, self.app.get(name, {}))

    def to_sections(self) -> dict[str, dict[str, str]]:
        """Every setting as text, the application's sections included.

        Raises:
            ConfigError: a value that no ini file can hold.
        """
        own = {name: section_to_text(name, getattr(self, name)) for name in own_sections()}
        own["run"]["app_sections"] = ", ".join(dict.fromkeys((*self.run.app_sections, *self.app)))
        app = {
            name: {key: entry.text for key, entry in keys.items()}
            for name, keys in self.app.items()
        }
        return {**own, **app}

    def to_ini(self) -> str:
        """The job as ini text; `parse_job` gives an equal job."""
        return to_ini(self.to_sections())

    def to_assignments(self) -> str:
        """The job as lines `section.key=value`, which is how other processes are told."""
        return to_assignments(self.to_sections())


def read_job(
    path: Path | str | None,
    overrides: Sequence[str] = (),
    *,
    app_sections: Collection[str] = (),
    options: Mapping[str, str] | None = None,
    origin: str = "--set",
) -> JobConfig:
    """The job that an ini file and `section.key=value` overrides describe.

    Args:
        path: the ini file; None takes the defaults.
        overrides: later ones win.
        app_sections: sections that the calling program owns, beside those in `[run] app_sections`.
        options: overrides that came by an option of their own, by its name; these win.
        origin: what errors call the overrides.
    Raises:
        ConfigError: anything wrong; it names file, section and key.
    """
    sections: Sections = {} if path is None else read_ini(Path(path))
    for assignment in overrides:
        override(sections, assignment, origin)
    for option, assignment in (options or {}).items():
        override(sections, assignment, option)
    return job_from(sections, app_sections, origin if path is None else str(path))


def parse_job(
    text: str, origin: str = "<text>", *, app_sections: Collection[str] = ()
) -> JobConfig:
    """The job that ini text describes; errors as in `read_job`."""
    return job_from(parse_ini(text, origin), app_sections, origin)


def job_from(sections: Sections, app_sections: Collection[str], origin: str) -> JobConfig:
    """The job that parsed sections describe; errors as in `read_job`."""
    own = own_sections()
    run = read_section("run", RunConfig, sections.get("run", {}))
    foreign = dict.fromkeys((*run.app_sections, *app_sections))
    for name, entries in sections.items():
        if name not in own and name not in foreign:
            first = next(iter(entries.values()), None)
            raise ConfigError(
                f"unknown section{nearest(name, [*own, *foreign])}"
                f" (an application's sections are named in [run] app_sections)",
                file=first.origin if first else origin,
                section=name,
            )
    values = {
        name: read_section(name, owner, sections.get(name, {})) for name, owner in own.items()
    }
    app = {name: sections[name] for name in foreign if name in sections}
    return JobConfig(app=app, **values)


def read_section(name: str, owner: type[T], entries: Mapping[str, Entry]) -> T:
    """One section as its dataclass.

    Raises:
        ConfigError: an unknown key, a text that is no value of the key, or a value out of range.
    """
    values: dict[str, Any]
    if owner is Rules:  # its keys name tables
        values = {"said": {key: entry.text for key, entry in entries.items()}}
    else:
        values = _read_fields(name, owner, entries)
    try:
        return owner(**values)
    except ConfigError as error:
        wrong = entries.get(error.key or "")
        file = wrong.origin if wrong else None
        raise ConfigError(error.problem, file=file, section=name, key=error.key) from None
    except TypeError:
        missing = _missing(owner, values)
        if not missing:
            raise
        origin = next((entry.origin for entry in entries.values()), None)
        raise ConfigError("must be given", file=origin, section=name, key=missing[0]) from None


def _read_fields(name: str, owner: type[Any], entries: Mapping[str, Entry]) -> dict[str, Any]:
    """The entries as values of the dataclass' fields; errors as in `read_section`."""
    annotations, places = field_types(owner), field_by_place(owner)
    values: dict[str, Any] = {}
    for key, entry in entries.items():
        if places is not None and (base := key.partition(AT)[0]) in places[1] and AT in key:
            try:
                value = parse_value(entry.text, annotations[base])
            except ValueError as error:
                raise ConfigError(str(error), file=entry.origin, section=name, key=key) from None
            if value is None:
                problem = f"needs a value; without this line {base} is there as everywhere else"
                raise ConfigError(problem, file=entry.origin, section=name, key=key)
            values.setdefault(places[0], {})[key] = value
            continue
        if key not in annotations:
            problem = (
                f"unknown key{nearest(key, annotations) or '; known: ' + ', '.join(annotations)}"
            )
            raise ConfigError(problem, file=entry.origin, section=name, key=key)
        try:
            values[key] = parse_value(entry.text, annotations[key])
        except ValueError as error:
            raise ConfigError(str(error), file=entry.origin, section=name, key=key) from None
    return values


def section_to_text(name: str, section: Any) -> dict[str, str]:
    """The keys of a section's dataclass as text.

    Raises:
        ConfigError: a value that no ini file can hold.
    """
    if isinstance(section, Rules):
        return dict(section.said)
    text = {}
    for key, annotation in field_types(type(section)).items():
        try:
            text[key] = format_value(getattr(section, key), annotation)
        except ValueError as error:
            raise ConfigError(str(error), section=name, key=key) from None
    return text | _places_to_text(section)


def _places_to_text(section: Any) -> dict[str, str]:
    """The keys `KEY@WHERE` of a section's dataclass as text."""
    annotations, places = field_types(type(section)), field_by_place(type(section))
    said = {} if places is None else getattr(section, places[0])
    return {
        key: format_value(value, annotations[key.partition(AT)[0]]) for key, value in said.items()
    }


def own_sections() -> Mapping[str, type[Any]]:
    """Our sections by name, each with the dataclass that owns it."""
    return {name: owner for name, owner in field_types(JobConfig).items() if name != "app"}


def field_types(owner: type[Any]) -> Mapping[str, Any]:
    """The annotations of a dataclass' fields that are keys, resolved."""
    hints = _hints(owner)
    own = {item.name: hints[item.name] for item in dataclasses.fields(owner) if item.init}
    return {name: hint for name, hint in own.items() if _marked(hint) is None}


def field_by_place(owner: type[Any]) -> tuple[str, tuple[str, ...]] | None:
    """The field of a dataclass that holds what is said as `KEY@WHERE`, and these keys."""
    for name, hint in _hints(owner).items():
        if (mark := _marked(hint)) is not None:
            return name, mark.keys
    return None


def _hints(owner: Any) -> Mapping[str, Any]:
    """All annotations of a class, resolved once."""
    return _resolved(owner)


@functools.cache
def _resolved(owner: Hashable) -> Mapping[str, Any]:
    return typing.get_type_hints(owner, include_extras=True)


def _marked(annotation: Any) -> ByPlace | None:
    marks = getattr(annotation, "__metadata__", ())
    return next((mark for mark in marks if isinstance(mark, ByPlace)), None)


def _missing(owner: type[Any], given: Mapping[str, Any]) -> list[str]:
    absent = dataclasses.MISSING
    return [
        item.name
        for item in dataclasses.fields(owner)
        if item.default is absent and item.default_factory is absent and item.name not in given
    ]
