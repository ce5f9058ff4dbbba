"""Load the raw files into a DuckDB database, keyed, filtered and sorted for the walk along users.

Four tables result. `users` and `ads` give each user and ad of an impression a number and its known
features; `impressions` holds the impressions with the counts of their windows, sorted by (user,
time, line); `behaviors` those behaviours of these users that some impression can see, sorted by
(user, action, time). DuckDB keeps to its memory limit and spills sorts and joins to disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
from tqdm import tqdm

from sample.rawfiles import (
    AD_FEATURE,
    BEHAVIOR_LOG,
    RAW_SAMPLE,
    USER_PROFILE,
    BadLines,
    RawFile,
    read_batches,
    read_header,
)
from sample.schema import ACTIONS, AD, PROFILE, TOP_DAYS, WINDOWS

THREAD_BYTES = 64 << 20  # least share of memory for a thread of DuckDB
DAY = "floor((ts + 28800) / 86400)::BIGINT"  # number of the Shanghai day of ts


class Tables:
    """The database of one join.

    Args:
        raw: folder of the four raw files.
        database: file of the database, new.
        spill: folder for what does not fit into memory.
        memory: bytes DuckDB may hold.
        bad: collects malformed lines.
    """

    def __init__(self, raw: Path, database: Path, spill: Path, memory: int, bad: BadLines) -> None:
        self.raw, self.bad = raw, bad
        for file in (RAW_SAMPLE, AD_FEATURE, USER_PROFILE, BEHAVIOR_LOG):
            read_header(raw / file.name, file)
        self.db = duckdb.connect(str(database))
        self.db.execute(f"SET memory_limit = '{memory >> 20}MiB'")
        self.db.execute("SET temp_directory = $1", [str(spill)])
        self.db.execute("SET preserve_insertion_order = false")
        cores = self.db.execute("SELECT current_setting('threads')").fetchall()[0][0]
        # with many cores and little memory their buffers alone would pass the limit
        self.db.execute(f"SET threads = {max(1, min(int(cores), memory // THREAD_BYTES))}")

    def close(self) -> None:
        self.db.close()

    def load(self, compat: bool) -> None:
        """Make the four tables; in `compat` the ad's counts leave its own clock hour out."""
        self._read(RAW_SAMPLE, "raw", "SELECT * FROM batches")
        self._read(USER_PROFILE, "profile", _last_of("userid", PROFILE))
        self._read(AD_FEATURE, "feature", _last_of("adgroup_id", AD))
        for table, key, features, source, columns in (
            ("users", "user", "profile", "userid", PROFILE),
            ("ads", "adgroup_id", "feature", "adgroup_id", AD),
        ):
            self._run(
                f"""CREATE TABLE {table} AS
                SELECT k.code, k.key, {", ".join(f"f.{name}" for name in columns)}
                FROM (SELECT "{key}" AS key, row_number() OVER (ORDER BY "{key}") - 1 AS code
                      FROM (SELECT DISTINCT "{key}" FROM raw)) AS k
                LEFT JOIN {features} AS f ON f.{source} = k.key ORDER BY k.code"""
            )
        with tqdm(total=1, desc="shows and clicks of windows", disable=None) as bar:
            self._run(_impressions(compat))
            bar.update()
        self.db.execute("DROP TABLE raw; DROP TABLE profile; DROP TABLE feature")
        first, last = self.db.execute(
            f"SELECT (min({DAY}) - {TOP_DAYS}) * 86400 - 28800, max(ts) FROM impressions"
        ).fetchall()[0]
        actions = " ".join(f"WHEN '{name}' THEN {code}" for code, name in enumerate(ACTIONS))
        self._read(
            BEHAVIOR_LOG,
            "behaviors",
            f"""SELECT u.code AS user_code, (CASE btag {actions} END)::TINYINT AS action, ts, cate,
                brand FROM batches JOIN users AS u ON u.key = "user"
            WHERE ts BETWEEN {first or 0} AND {last or 0} ORDER BY user_code, action, ts""",
        )

    def _run(self, statement: str) -> None:
        try:
            self.db.execute(statement)
        except RuntimeError as error:
            if "interrupted" in str(error):  # how DuckDB passes a Ctrl-C on
                raise KeyboardInterrupt from None
            raise

    def counts(self) -> dict[str, int]:
        """`users`, `ads` and `behaviors` kept, and the `last_line` of raw_sample.csv that is."""
        found = self.db.execute(
            """SELECT (SELECT count(*) FROM users), (SELECT count(*) FROM ads),
            (SELECT count(*) FROM behaviors), (SELECT max(line) FROM impressions)"""
        ).fetchall()[0]
        users, ads, behaviors, line = (int(value or 0) for value in found)
        return {"users": users, "ads": ads, "behaviors": behaviors, "last_line": line}

    def _read(self, file: RawFile, table: str, select: str) -> None:
        """Make `table` of what `select` makes of the lines of a file, called `batches` there."""
        path = self.raw / file.name
        failed: list[BaseException] = []
        with tqdm(total=path.stat().st_size, desc=file.name, unit="B", unit_scale=True,
                  disable=None) as bar:  # fmt: skip

            def batches() -> Iterator[pa.RecordBatch]:
                # what is raised inside DuckDB's scan would come out as an error of DuckDB's
                try:
                    yield from read_batches(path, file, self.bad, bar.update)
                    bar.set_description(f"{file.name}, sorting")
                except (Exception, KeyboardInterrupt) as error:
                    failed.append(error)

            reader = pa.RecordBatchReader.from_batches(file.schema, batches())
            self.db.register("batches", reader)
            self._run(f"CREATE TABLE {table} AS {select}")
            self.db.unregister("batches")
        if failed:
            raise failed[0]


def _last_of(key: str, columns: tuple[str, ...]) -> str:
    """Of several rows with one key the last one."""
    picked = ", ".join(f"arg_max({name}, line) AS {name}" for name in columns)
    return f"SELECT {key}, {picked} FROM batches GROUP BY {key}"


def _impressions(compat: bool) -> str:
    """Impressions with shows and clicks in the windows of user, ad, and both.

    A window begins X - 1 clock hours before the impression's own hour and ends before its second;
    the ad's, in `compat`, before its own hour.
    """
    partitions = {"user": "u.code", "ad": "a.code", "both": "u.code, a.code"}
    counts, windows = [], []
    for who, partition in partitions.items():
        for hours in WINDOWS:
            name = f"{who}_{hours}"
            end = "into_hour + 1" if compat and who == "ad" else "1"
            counts.append(
                f"count(*) OVER {name} AS {who}_show_{hours}, "
                f"coalesce(sum(clicked) OVER {name}, 0)::BIGINT AS {who}_click_{hours}"
            )
            windows.append(
                f"{name} AS (PARTITION BY {partition} ORDER BY ts RANGE BETWEEN "
                f"into_hour + {(hours - 1) * 3600} PRECEDING AND {end} PRECEDING)"
            )
    return f"""CREATE TABLE impressions AS
        SELECT u.code AS user_code, a.code AS ad_code, r.ts, r.line, r.time_stamp, r.pid, r.nonclk,
               r.clk, {", ".join(counts)}
        FROM (SELECT *, (clk = '1')::INTEGER AS clicked,
                     ts - floor(ts / 3600)::BIGINT * 3600 AS into_hour FROM raw) AS r
        JOIN users AS u ON u.key = r."user" JOIN ads AS a ON a.key = r.adgroup_id
        WINDOW {", ".join(windows)}
        ORDER BY user_code, ts, line"""
