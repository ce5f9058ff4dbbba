"""Ini text to sections of entries and back; what the values mean is left to others.

An entry remembers where it came from, so that whoever finds it wrong can say so. `#` and `;` begin
a comment at the start of a line only; an indented line continues the value above it.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from van.errors import ConfigError


@dataclass(frozen=True)
class Entry:
    """One setting as text, and the file or option it was given in."""

    text: str
    origin: str = field(compare=False)


Sections = dict[str, dict[str, Entry]]


def read_ini(path: Path) -> Sections:
    """The sections of an ini file, in its order.

    Raises:
        ConfigError: the file cannot be read, is not UTF-8, or is no ini.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8 text (byte {error.start})", file=str(path)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot be read: {reason}", file=str(path)) from None
    return parse_ini(text, str(path))


def parse_ini(text: str, origin: str) -> Sections:
    """The sections of ini text; `origin` names it in errors.

    Raises:
        ConfigError: a line is neither section nor `key = value`, or something stands twice.
    """
    parser = configparser.ConfigParser(
        interpolation=None,
        delimiters=("=",),
        comment_prefixes=("#", ";"),
        empty_lines_in_values=False,
        default_section="\0",  # no section is special
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys keep their case
    try:
        parser.read_string(text, origin)
    except configparser.DuplicateSectionError as error:
        problem = f"line {error.lineno}: this section stands twice"
        raise ConfigError(problem, file=origin, section=error.section) from None
    except configparser.DuplicateOptionError as error:
        problem = f"line {error.lineno}: this key stands twice"
        raise ConfigError(problem, file=origin, section=error.section, key=error.option) from None
    except configparser.MissingSectionHeaderError as error:
        problem = f"line {error.lineno}: a [section] must come before {error.line.strip()!r}"
        raise ConfigError(problem, file=origin) from None
    except configparser.ParsingError as error:
        line, shown = error.errors[0]
        problem = f"line {line}: expected `key = value` or `[section]`, got {shown}"
        raise ConfigError(problem, file=origin) from None
    return {
        section: {key: Entry(value, origin) for key, value in parser.items(section)}
        for section in parser.sections()
    }


def override(sections: Sections, assignment: str, origin: str) -> None:
    """Put `section.key=value` into `sections`.

    Raises:
        ConfigError: `assignment` is not of that form.
    """
    name, equals, value = assignment.partition("=")
    section, dot, key = (part.strip() for part in name.partition("."))
    if not (equals and dot and section and key):
        raise ConfigError(f"expected section.key=value, got {assignment!r}", file=origin)
    sections.setdefault(section, {})[key] = Entry(value.strip(), origin)


def to_ini(sections: Mapping[str, Mapping[str, str]]) -> str:
    """Ini text that `parse_ini` reads back to the same sections."""
    blocks = [
        "\n".join([f"[{section}]", *(f"{key} = {_indented(value)}" for key, value in keys.items())])
        for section, keys in sections.items()
    ]
    return "\n\n".join(blocks) + "\n" if blocks else ""


def to_assignments(sections: Mapping[str, Mapping[str, str]]) -> str:
    """Lines `section.key=value` that `split_assignments` takes apart again."""
    return "\n".join(
        f"{section}.{key}={_indented(value)}"
        for section, keys in sections.items()
        for key, value in keys.items()
    )


def split_assignments(text: str) -> list[str]:
    """The assignments of a text of lines; an indented line continues the one above."""
    found: list[str] = []
    for line in text.split("\n"):
        if line[:1].isspace() and found:
            found[-1] += "\n" + line.strip()
        elif line.strip():
            found.append(line)
    return found


def _indented(value: str) -> str:
    return value.replace("\n", "\n    ")
