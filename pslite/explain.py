"""Settings as ini text with the meaning and default of each key.

The meaning of a key is the comment beside its field, where STYLE wants it anyway: read from the
source of the dataclass, so it can stand in no second place and grow old there.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import tokenize
from typing import Any, Literal, get_args, get_origin

from kv.compression.settings import Rules
from pslite.config import JobConfig, field_types, own_sections
from pslite.ini import to_ini
from pslite.values import AT, format_value


def explain(job: JobConfig) -> str:
    """All sections of `job`; reads back as an ini file of the same settings."""
    texts = job.to_sections()
    blocks = []
    for name, owner in own_sections().items():
        meanings = field_comments(owner)
        lines = [f"# {(inspect.getdoc(owner) or '').splitlines()[0]}", f"[{name}]"]
        if owner is Rules:  # its keys name tables and have no defaults
            lines += [to_ini({"": {k: t}}).splitlines()[1] for k, t in texts.pop(name).items()]
            blocks.append("\n".join(lines) + "\n")
            continue
        for key, text in texts.pop(name).items():
            if AT in key:  # the same of one place
                lines.append(to_ini({"": {key: text}}).splitlines()[1])
                continue
            default = default_text(owner, key)
            note = f"default {default or 'empty'}" if default is not None else "must be given"
            if allowed := allowed_values(field_types(owner)[key]):
                note = f"{' or '.join(allowed)}; {note}"
            meaning = meanings.get(key, "")
            lines.append(f"# {meaning} ({note})" if meaning else f"# ({note})")
            lines.append(to_ini({"": {key: text}}).splitlines(keepends=False)[1])
        blocks.append("\n".join(lines) + "\n")
    if texts:
        blocks.append("# Of the application\n" + to_ini(texts))
    return "\n".join(blocks)


def field_comments(owner: type[Any]) -> dict[str, str]:
    """The comment beside each field of a dataclass; nothing where there is no source to read."""
    try:
        source = inspect.getsource(owner)
    except OSError:
        return {}
    found: dict[str, str] = {}
    line_of_field: dict[int, str] = {}
    fields = {item.name for item in dataclasses.fields(owner)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_first = not token.line[: token.start[1]].strip()
        if token.type == tokenize.NAME and is_first and token.string in fields:
            line_of_field.setdefault(token.start[0], token.string)
        elif token.type == tokenize.COMMENT and token.start[0] in line_of_field:
            found[line_of_field[token.start[0]]] = token.string.removeprefix("#").strip()
    return found


def allowed_values(annotation: Any) -> tuple[str, ...]:
    """The texts that a `Literal`, alone or beside None, allows; nothing for other types.

    >>> allowed_values(Literal["async", "sync"]), allowed_values(int)
    (('async', 'sync'), ())
    """
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return arguments
    return next(filter(None, map(allowed_values, arguments)), ())


def default_text(owner: type[Any], key: str) -> str | None:
    """The default of a key as ini text; None where it has none."""
    item = next(item for item in dataclasses.fields(owner) if item.name == key)
    if item.default is not dataclasses.MISSING:
        return format_value(item.default, field_types(owner)[key])
    if item.default_factory is not dataclasses.MISSING:
        return format_value(item.default_factory(), field_types(owner)[key])
    return None
