"""Read the ini dialect of feature files.

It is not `configparser`'s: names are case sensitive, `#` starts a comment only where a line
begins with it (inside a value it separates arguments), there is no interpolation, and of a
repeated key the last one counts. A line that begins with a blank and holds no `=` continues the
value before it, so that a long list of columns can be broken.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from feature_extract.errors import IniError


@dataclass(frozen=True)
class Entry:
    """The value of one key, and the line it stands on."""

    value: str
    line: int


Sections = dict[str, dict[str, Entry]]


def read_text(path: Path) -> str:
    """The text of an ini file.

    Raises:
        IniError: the file cannot be read or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise IniError(f"not UTF-8 at byte {error.start}", file=str(path)) from None
    except OSError as error:
        raise IniError(f"cannot be read: {error.strerror}", file=str(path)) from None


def parse(text: str, file: str) -> Sections:
    """Sections of an ini text, each a mapping of its keys in order of first appearance.

    Raises:
        IniError: a line is neither a section, a key with a value, nor a comment.
    """
    sections: Sections = {}
    section, key = "", ""
    for number, line in enumerate(text.split("\n"), start=1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        if bare.startswith("[") and "=" not in bare:
            section, key = _section(bare, file, number), ""
            sections.setdefault(section, {})
        elif "=" in bare:
            key, value = (part.strip() for part in bare.split("=", 1))
            _require(section, key, file, number)
            sections[section][key] = Entry(value, number)
        elif line[0].isspace() and key:
            before = sections[section][key]
            sections[section][key] = Entry(before.value + bare, before.line)
        else:
            raise IniError(
                f"{bare!r} is neither [section], key = value nor a comment (those begin with #)",
                file=file,
                section=section or None,
                line=number,
            )
    return sections


def _section(bare: str, file: str, line: int) -> str:
    name = bare[1:-1].strip()
    if not bare.endswith("]") or not name:
        raise IniError(f"{bare!r} is no section; write [name]", file=file, line=line)
    return name


def _require(section: str, key: str, file: str, line: int) -> None:
    if not section:
        raise IniError(f"key {key!r} stands before the first [section]", file=file, line=line)
    if not key:
        raise IniError("a value without a key", file=file, section=section, line=line)
