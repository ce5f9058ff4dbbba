"""What a server does for checkpoints, and what it is asked: the same over a network or without.

    command  body                             answer
    SAVE     url, name, base, is_still        share (`ServerShard`), definitions
    CHECK    url, name, files                 problems
    LOAD     url, names, steps                rows, notes
    NOTE     rank, about, state               -
    NOTES    -                                what each worker has noted last: rank, about, state
    TELL     anything                         -
    HEAR     -                                what was told last
    TRY      url, folder                      -

Each answer is a dict; where something went wrong it has `error` and `kind`, the exception's name.
TELL and HEAR let one worker tell the others; NOTE leaves a worker's state for who leads. TRY sees
that a server reaches the place that who leads has begun to write to, and can write there.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.checkpoint.errors import CheckpointError
from kv.checkpoint.loading import ShardLoader
from kv.checkpoint.manifest import FileEntry
from kv.checkpoint.places import Place, place_of
from kv.checkpoint.saving import ShardSaver
from kv.checkpoint.shelf import Shelf
from kv.engine import Engine
from kv.placement import NUM_SLOTS
from van.errors import PsliteError

CHECKPOINT_APP = (1 << 32) + 104
SIGN = "worker-0"  # the file by which a server knows the place
Owned = Callable[[], NDArray[np.bool_] | None]
"""The slots that this server owns now, bool (1024,); None is all."""


class Command(IntEnum):
    """`meta.cmd` of a request about checkpoints."""

    SAVE = 1
    CHECK = 2
    LOAD = 3
    NOTE = 4
    TELL = 5
    HEAR = 6
    NOTES = 7
    TRY = 8


class Desk:
    """Answers what is asked about checkpoints of one engine."""

    def __init__(self, engine: Engine, rank: int = 0, owned: Owned = lambda: None) -> None:
        self._engine, self._rank, self._owned = engine, rank, owned
        self._saver = ShardSaver(engine, rank)
        self._working = threading.Lock()  # a save or a load at a time
        self._told: dict[str, Any] = {}
        self._notes: dict[int, tuple[dict[str, Any], bytes]] = {}

    def answer(self, command: int, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request; never raises for what can go wrong with files and tables."""
        try:
            if command == Command.SAVE:
                with self._working:
                    return self._save(body)
            if command == Command.LOAD:
                with self._working:
                    return self._load(body)
            if command == Command.CHECK:
                return self._check(body)
            if command == Command.TRY:
                return self._try(place_of(body["url"]), str(body["folder"]))
            if command == Command.NOTE:
                self._notes[int(body["rank"])] = dict(body["about"]), bytes(body["state"])
                return {}
            if command == Command.NOTES:
                return {"notes": [[rank, *note] for rank, note in sorted(self._notes.items())]}
            if command == Command.TELL:
                self._told = dict(body)
                return {}
            if command == Command.HEAR:
                return self._told
            raise ValueError(f"checkpoints know no command {command}")
        except (PsliteError, OSError, ValueError, KeyError, TypeError) as error:
            text = error.problem if isinstance(error, CheckpointError) else str(error)
            return {"error": text, "kind": type(error).__name__}

    def _save(self, body: Mapping[str, Any]) -> dict[str, Any]:
        place = place_of(body["url"])
        name, base, is_still = str(body["name"]), body["base"], bool(body["is_still"])
        owned = self._owned()
        shard = self._saver.save(place, name, base, owned, is_still=is_still)
        if owned is not None and (owned & ~_all_if_none(self._owned())).any():
            # Their rows may have been dropped before they were read.
            raise ValueError("slots have moved to another server while their rows were written")
        return {
            "shard": dataclasses.asdict(shard),
            "specs": [table.spec.to_dict() for table in list(self._engine.tables)],
        }

    def _check(self, body: Mapping[str, Any]) -> dict[str, Any]:
        files = [FileEntry(**entry) for entry in body["files"]]
        return {"problems": Shelf(place_of(body["url"])).check_files(body["name"], files)}

    def _try(self, place: Place, folder: str) -> dict[str, Any]:
        if not place.has(f"{folder}/{SIGN}"):
            raise CheckpointError(place.url, "what worker 0 has written there is not seen here")
        with place.create(f"{folder}/server-{self._rank}") as file:
            file.write(folder.encode())
        return {}

    def _load(self, body: Mapping[str, Any]) -> dict[str, Any]:
        place = place_of(body["url"])
        shelf = Shelf(place)
        chain = [shelf.manifest(name) for name in body["names"]]
        loaded = ShardLoader(self._engine, self._owned()).load(place, chain, list(body["steps"]))
        return {"rows": loaded.rows, "notes": loaded.notes}


def _all_if_none(slots: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    return np.ones(NUM_SLOTS, np.bool_) if slots is None else slots
