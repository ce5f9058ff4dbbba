"""How sample files look: the section `[input]` of a feature ini and the formats it names.

Without the section a file is what `pslite-sample join` writes: tab separated, no header, no
quoting, values of a list joined by commas.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from feature_extract.errors import IniError, nearest
from feature_extract.ini import Entry

CRITEO = ("label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27)))
AVAZU = (
    *("id", "click", "hour", "C1", "banner_pos"),
    *("site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category"),
    *("device_id", "device_ip", "device_model", "device_type", "device_conn_type"),
    *(f"C{n}" for n in range(14, 22)),
)
AVAZU_DERIVED = {"date": "hour", "hour_of_day": "hour", "weekday": "hour"}
LIBSVM = ("label", "features")


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """Settings of `[input]`; every one has a meaning for every format unless said otherwise."""

    format: str = "tsv"  # tsv | csv | criteo | avazu | libsvm; a .parquet file is read as such
    header: bool = False  # the first line names the columns, which may come in any order
    delimiter: str = "\t"  # between columns; not used by libsvm
    list_delimiter: str = ","  # between the values of a multi-valued column
    strip: bool = False  # drop blanks around values
    comment: str = ""  # a line that begins with this character is skipped
    blank_lines: bool = False  # skip empty lines instead of counting them as malformed
    unknown: tuple[str, ...] = ()  # texts that stand for a missing value
    positive: tuple[str, ...] = ()  # label texts that mean 1
    negative: tuple[str, ...] = ()  # label texts that mean 0; none named: every other text
    clip_min: float | None = None  # `log` and `sqrt` read smaller numbers as this one


FORMATS: dict[str, InputSpec] = {
    "tsv": InputSpec(),
    "csv": InputSpec(format="csv", delimiter=",", blank_lines=True),
    "criteo": InputSpec(format="criteo"),
    "avazu": InputSpec(format="avazu", delimiter=",", header=True),
    "libsvm": InputSpec(
        format="libsvm",
        blank_lines=True,
        positive=("1", "+1", "1.0", "+1.0"),
        negative=("-1", "0", "-1.0", "0.0", "+0", "-0"),
    ),
}
SCHEMAS: dict[str, tuple[str, ...]] = {"criteo": CRITEO, "avazu": AVAZU, "libsvm": LIBSVM}
# columns that exist besides those of the file, and the one each is made of
DERIVED: dict[str, dict[str, str]] = {"avazu": AVAZU_DERIVED}

NAMED_CHARACTERS = {"tab": "\t", "comma": ",", "space": " ", "bar": "|", "semicolon": ";"}
SWITCHES = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def read_input(section: dict[str, Entry], file: str) -> tuple[InputSpec, list[str]]:
    """The settings of `[input]`, and warnings about keys that mean nothing here.

    Raises:
        IniError: a value is not possible.
    """
    entry = section.get("format", Entry("tsv", 0))
    if entry.value not in FORMATS:
        raise IniError(
            f"unknown format {entry.value!r}{nearest(entry.value, FORMATS)}",
            file=file,
            section="input",
            key="format",
            line=entry.line,
        )
    spec, warnings = FORMATS[entry.value], []
    known = {item.name for item in fields(InputSpec)}
    for key, entry in section.items():
        if key not in known:
            warnings.append(f"{file}:{entry.line}: [input] {key} is unknown{nearest(key, known)}")
        elif key != "format":
            value: Any = _value(key, entry, file)
            spec = replace(spec, **{key: value})
    if spec.negative and not spec.positive:
        raise IniError(
            "negative labels without positive ones; write positive = TEXT, or leave both empty",
            file=file,
            section="input",
            key="positive",
        )
    return spec, warnings


def _value(key: str, entry: Entry, file: str) -> object:
    text = entry.value
    if key in ("header", "strip", "blank_lines"):
        if text.lower() in SWITCHES:
            return SWITCHES[text.lower()]
        problem = f"{text!r} is neither true nor false"
    elif key in ("delimiter", "list_delimiter", "comment"):
        character = NAMED_CHARACTERS.get(text.lower(), text)
        if len(character) == 1 and character.isascii():
            return character
        problem = f"{text!r} is not one ASCII character (nor {', '.join(NAMED_CHARACTERS)})"
    elif key == "clip_min":
        try:
            return float(text)
        except ValueError:
            problem = f"{text!r} is not a number"
    else:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    raise IniError(problem, file=file, section="input", key=key, line=entry.line)
