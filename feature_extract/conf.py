"""A whole feature ini: columns, id, label, features, and how samples are read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from feature_extract.definition import (
    DENSE,
    IDENTITY,
    SPARSE,
    Definition,
    FeatureDefinition,
    Place,
    define,
)
from feature_extract.errors import IniError, nearest
from feature_extract.ini import Sections, parse, read_text
from feature_extract.input_spec import DERIVED, SCHEMAS, SWITCHES, InputSpec, read_input
from feature_extract.schema import (
    GROUPS,
    INDEX_KINDS,
    KINDS,
    Feature,
    FeatureSchema,
    IndexKind,
)

SECTIONS = {f"{kind}_features_{group}": (kind, group) for kind in KINDS for group in GROUPS}
KNOWN_KEYS = {
    "raw_sample_schema": ("fields",),
    "id": ("id", "escape"),
    "label": ("label",),
    "index": ("kind",),
}
Warn = Callable[[str], None]
KNOWN_SECTIONS = ("raw_sample_schema", "input", "id", "label", "index", *SECTIONS)


@dataclass(frozen=True)
class FeatureConf:
    """A checked feature ini.

    Args:
        file: where it was read, for messages.
        text: the ini itself.
        fields: the columns of a sample, in order.
        derived: further columns and the one of those that each is made of.
        id: definition of the sample's id; None where the ini has none and the line number serves.
        label: definition of the label.
        features: in the order of the text layout.
        escape: whether a delimiter inside a value becomes `_` instead of being an error.
        index: how sparse values become numbers, unless the caller says otherwise.
        input: how sample files look.
        warnings: what looks like a mistake but may be meant for another program.
    """

    file: str
    text: str
    fields: tuple[str, ...]
    derived: dict[str, str]
    id: Definition | None
    label: Definition
    features: tuple[FeatureDefinition, ...]
    escape: bool
    index: IndexKind
    input: InputSpec
    warnings: tuple[str, ...]

    @property
    def source_fields(self) -> tuple[str, ...]:
        """The columns of the file that any definition reads, directly or by a derived column."""
        definitions: list[Definition] = [self.label, *self.features]
        if self.id is not None:
            definitions.append(self.id)
        used = {name for definition in definitions for name in definition.fields}
        read = {self.derived.get(name, name) for name in used}
        return tuple(name for name in self.fields if name in read)

    def absent_sparse_sections(self) -> tuple[str, ...]:
        """The groups (user, ad, user_ad) without any sparse feature."""
        present = {feature.group for feature in self.features if feature.kind == "sparse"}
        return tuple(group for group in GROUPS if group not in present)

    def schema(
        self, index: IndexKind, size: int | None, compat: bool, identity: str | None = None
    ) -> FeatureSchema:
        """The description of what is extracted, for those who train on it."""
        features = tuple(
            Feature(f.column, f.kind, f.group, f.operator, f.prefix, f.multi) for f in self.features
        )
        return FeatureSchema(
            features=features,
            index=index,
            size=size,
            label=self.label.text,
            id=self.id.text if self.id is not None else "",
            ini=self.text,
            compat=compat,
            identity=identity,
        )


def read_conf(path: Path, settings: Sequence[str] = ()) -> FeatureConf:
    """Read and check a feature ini.

    Args:
        settings: lines that override those of the file, `section.key=value`.
    Raises:
        IniError: anything in it is wrong; the text names file, line, section and key.
    """
    text = read_text(path)
    sections = parse(text, str(path)) if settings else {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        section, dot, key = name.partition(".")
        if not (equals and dot and section.strip() and key.strip()):
            raise IniError(f"--set {setting!r} is not SECTION.KEY=VALUE", file=str(path))
        _check_known(section.strip(), key.strip(), sections)
        # of a repeated key the last one counts, so an override is a further line
        text += f"\n[{section.strip()}]\n{key.strip()} = {value}\n"
    return parse_conf(text, str(path))


def _check_known(section: str, key: str, sections: Sections) -> None:
    """Refuse an override that nothing would read, or that would make up a feature."""
    if section not in KNOWN_SECTIONS:
        problem = f"unknown section{nearest(section, KNOWN_SECTIONS)}"
        raise IniError(problem, file="--set", section=section, key=key)
    known: Collection[str] = KNOWN_KEYS.get(section, sections.get(section, ()))
    if section == "input":
        known = [item.name for item in fields(InputSpec)]
    if key not in known:
        problem = f"unknown key{nearest(key, known)}"
        if section in SECTIONS:
            problem += " (an override changes a feature of the file, it adds none)"
        raise IniError(problem, file="--set", section=section, key=key)


def parse_conf(text: str, file: str) -> FeatureConf:
    """Check the text of a feature ini; `file` is its name in messages."""
    sections = parse(text, file)
    spec, warnings = read_input(sections.get("input", {}), file)
    warnings = _unknown_names(sections, file) + warnings
    fields = _fields(sections, spec, file)
    derived = {
        name: source
        for name, source in DERIVED.get(spec.format, {}).items()
        if name not in fields and source in fields
    }
    names = (*fields, *derived)
    label = _single(sections, "label", names, DENSE, file)
    if label is None:
        raise IniError("no label; write label = FIELD,direct", file=file, section="label")
    return FeatureConf(
        file=file,
        text=text,
        fields=fields,
        derived=derived,
        id=_single(sections, "id", names, IDENTITY, file),
        label=label,
        features=_features(sections, names, file),
        escape=_escape(sections, file),
        index=_index(sections, file),
        input=spec,
        warnings=tuple(warnings),
    )


def _unknown_names(sections: Sections, file: str) -> list[str]:
    warnings = []
    for section, entries in sections.items():
        if section not in KNOWN_SECTIONS:
            warnings.append(f"{file}: [{section}] is unknown{nearest(section, KNOWN_SECTIONS)}")
        known = KNOWN_KEYS.get(section, entries)
        warnings += [
            f"{file}:{entry.line}: [{section}] {key} is unknown{nearest(key, known)}"
            for key, entry in entries.items()
            if key not in known
        ]
    return warnings


def _fields(sections: Sections, spec: InputSpec, file: str) -> tuple[str, ...]:
    entry = sections.get("raw_sample_schema", {}).get("fields")
    if entry is None:
        if spec.format in SCHEMAS:
            return SCHEMAS[spec.format]
        raise IniError(
            "the columns are not named; write fields = user,time_stamp,...",
            file=file,
            section="raw_sample_schema",
            key="fields",
        )
    names = tuple(name.strip() for name in entry.value.split(","))
    place = Place(file, "raw_sample_schema", "fields", entry.line)
    for position, name in enumerate(names, start=1):
        if not name:
            raise place.error(f"the name of column {position} is empty")
        if name in names[: position - 1]:
            raise place.error(f"column {name!r} is named twice")
    if spec.format == "libsvm" and len(names) != 2:
        raise place.error("libsvm lines have two columns, the label and the features")
    return names


def _single(
    sections: Sections, section: str, fields: tuple[str, ...], allowed: tuple[str, ...], file: str
) -> Definition | None:
    entry = sections.get(section, {}).get(section)
    if entry is None:
        return None
    return define(entry.value, Place(file, section, section, entry.line), fields, allowed)


def _features(
    sections: Sections, fields: tuple[str, ...], file: str
) -> tuple[FeatureDefinition, ...]:
    features = []
    for section, (kind, group) in SECTIONS.items():
        allowed = DENSE if kind == "dense" else SPARSE
        for key, entry in sorted(sections.get(section, {}).items()):
            base = define(entry.value, Place(file, section, key, entry.line), fields, allowed)
            features.append(FeatureDefinition(**vars(base), kind=kind, group=group))
    if not features:
        raise IniError(f"no features; write some into [{next(iter(SECTIONS))}] say", file=file)
    return tuple(features)


def _escape(sections: Sections, file: str) -> bool:
    entry = sections.get("id", {}).get("escape")
    if entry is None:
        return False
    if entry.value.lower() not in SWITCHES:
        raise Place(file, "id", "escape", entry.line).error(
            f"{entry.value!r} is neither true nor false"
        )
    return SWITCHES[entry.value.lower()]


def _index(sections: Sections, file: str) -> IndexKind:
    entry = sections.get("index", {}).get("kind")
    for kind in INDEX_KINDS:
        if entry is None or entry.value == kind:
            return kind
    assert entry is not None
    raise Place(file, "index", "kind", entry.line).error(
        f"{entry.value!r} is no index{nearest(entry.value, INDEX_KINDS)}"
    )
