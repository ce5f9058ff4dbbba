"""What `pslite checkpoint` says about checkpoints; no terminal and no options here."""

from __future__ import annotations

from collections.abc import Sequence

from kv.checkpoint.errors import DamagedCheckpointError, NoCheckpointError
from kv.checkpoint.manifest import Manifest
from kv.checkpoint.places import MANIFEST, place_of
from kv.checkpoint.reading import TableDifference
from kv.checkpoint.shelf import Shelf

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(nbytes: float) -> str:
    """Bytes as people read them.

    >>> size(512), size(3 << 20)
    ('512 B', '3.0 MiB')
    """
    for unit in _UNITS[:-1]:
        if nbytes < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} {_UNITS[-1]}"


def shelf_of(url: str) -> Shelf:
    """The checkpoints of a place that is there.

    Raises:
        NoCheckpointError: it is not, or it is itself a checkpoint.
        CheckpointError: it cannot be reached.
    """
    place = place_of(url)
    if place.has(MANIFEST):
        raise NoCheckpointError(url, "this is one checkpoint; name the folder that it lies in")
    if not place.exists():
        raise NoCheckpointError(url, "there is no such folder")
    return Shelf(place)


def listing(shelf: Shelf) -> str:
    """A table of the checkpoints, oldest first, and what is left of unfinished ones."""
    lines: list[tuple[str, ...]] = [
        ("NAME", "KIND", "MODE", "CREATED", "STEPS", "ROWS", "SIZE", "SERVERS")
    ]
    for name in shelf.names():
        try:
            lines.append(_line(shelf, shelf.chain(name)))
        except DamagedCheckpointError as error:
            lines.append((name, "damaged", "", "", "", "", "", error.reason))
    text = aligned(lines) if len(lines) > 1 else f"no checkpoints in {shelf.url}"
    unfinished = shelf.unfinished()
    if unfinished:
        text += f"\nnot finished, so no checkpoints: {', '.join(unfinished)}"
    return text


def _line(shelf: Shelf, chain: Sequence[Manifest]) -> tuple[str, ...]:
    last = chain[-1]
    rows = sum(part.size for shard in last.servers for part in shard.tables.values())
    return (
        last.name,
        "full" if last.base is None else f"after {last.base}",
        last.mode,
        last.created,
        str(max(last.steps, default=0)),
        f"{rows:,}",
        size(last.nbytes),
        str(len(last.servers)),
    )


def differences(found: Sequence[TableDifference], first: str, second: str) -> str:
    """How two checkpoints differ, a line a table."""
    lines: list[tuple[str, ...]] = [
        ("TABLE", "SAME", "CHANGED", f"ONLY {first}", f"ONLY {second}", "LARGEST CHANGE")
    ]
    for entry in found:
        if entry.problem:
            lines.append((entry.table, entry.problem, "", "", "", ""))
            continue
        largest = "" if entry.key is None else f"{entry.largest:.6g} (key {entry.key})"
        counts = (entry.same, entry.changed, entry.only_first, entry.only_second)
        lines.append((entry.table, *(f"{count:,}" for count in counts), largest))
    if all(entry.is_same for entry in found):
        return aligned(lines) + f"\n{first} and {second} have the same rows"
    return aligned(lines)


def aligned(lines: Sequence[tuple[str, ...]]) -> str:
    """Columns under each other."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
