"""DuckDB against Polars on the two columnar stages of the join: sorting and counting.

    pslite-sample generate --out RAW --impressions 2000000 --behaviors 20000000
    python bench/join_engines.py RAW

`sort` keeps the behaviours of users that have impressions, sorts them by (user, action, time) and
writes them; `count` counts the shows and clicks of each impression's ad in windows of 24 and 168
clock hours. Each runs in a process of its own, and prints seconds, CPU seconds and peak memory.
Needs polars, which pslite itself does not.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MEMORY = 512  # MiB, for DuckDB; Polars has no such setting


def duckdb_sort(raw: Path, work: Path) -> None:
    connection = duckdb_connection(work)
    connection.execute(
        f"""CREATE TABLE behaviors AS
        SELECT u.code, btag, time_stamp AS ts, cate, brand
        FROM {duckdb_csv(raw / "behavior_log.csv")} AS b
        JOIN (SELECT "user", row_number() OVER () AS code
              FROM (SELECT DISTINCT "user" FROM {duckdb_csv(raw / "raw_sample.csv")})) AS u
        USING ("user") ORDER BY u.code, btag, ts"""
    )
    connection.close()


def duckdb_count(raw: Path, work: Path) -> None:
    connection = duckdb_connection(work)
    columns, windows = [], []
    for hours in (24, 168):
        columns.append(f"count(*) OVER w{hours} AS s{hours}, sum(clk) OVER w{hours} AS c{hours}")
        windows.append(
            f"w{hours} AS (PARTITION BY adgroup_id ORDER BY time_stamp RANGE BETWEEN "
            f"time_stamp % 3600 + {(hours - 1) * 3600} PRECEDING AND 1 PRECEDING)"
        )
    connection.execute(
        f"""CREATE TABLE counts AS SELECT line, {", ".join(columns)}
        FROM (SELECT row_number() OVER () AS line, adgroup_id, time_stamp, clk
              FROM {duckdb_csv(raw / "raw_sample.csv")}) WINDOW {", ".join(windows)}"""
    )
    connection.close()


def duckdb_connection(work: Path):
    import duckdb

    connection = duckdb.connect(str(work / "bench.duckdb"))
    connection.execute(f"SET memory_limit = '{MEMORY}MiB'")
    connection.execute(f"SET temp_directory = '{work / 'spill'}'")
    return connection


def duckdb_csv(path: Path) -> str:
    types = {"time_stamp": "BIGINT", "clk": "INTEGER"}
    names = path.open().readline().strip().split(",")
    columns = ", ".join(f"'{name}': '{types.get(name, 'VARCHAR')}'" for name in names)
    return f"read_csv('{path}', header = true, auto_detect = false, columns = {{{columns}}})"


def polars_sort(raw: Path, work: Path) -> None:
    users = polars_csv(raw / "raw_sample.csv").select("user").unique().with_row_index("code")
    behaviors = polars_csv(raw / "behavior_log.csv").join(users, on="user").drop("user")
    behaviors.sort("code", "btag", "time_stamp").sink_parquet(
        work / "b.parquet", engine="streaming"
    )


def polars_count(raw: Path, work: Path) -> None:
    import polars as pl

    shows = polars_csv(raw / "raw_sample.csv").select("adgroup_id", "time_stamp", "clk")
    # no frame of its own for each row: take sums up to the window's end minus those to its start
    key = ["adgroup_id", "time_stamp"]
    sums = (
        shows.group_by(key)
        .agg(pl.len().alias("s"), pl.col("clk").sum().alias("c"))
        .sort(key)
        .with_columns(pl.col("s", "c").cum_sum().over("adgroup_id"))
    )
    rows = shows.with_row_index("line").sort(key)
    t = pl.col("time_stamp")
    bounds = {"now": t - 1}
    bounds |= {str(hours): t - t % 3600 - (hours - 1) * 3600 - 1 for hours in (24, 168)}
    for name, bound in bounds.items():
        rows = (
            rows.with_columns(bound.alias("bound"))
            .sort("adgroup_id", "bound")
            .join_asof(
                sums.rename({"time_stamp": "t", "s": f"s_{name}", "c": f"c_{name}"}),
                left_on="bound", right_on="t", by="adgroup_id", check_sortedness=False,
            )
            .drop("t")
        )  # fmt: skip
    counts = [
        (pl.col(f"{what}_now").fill_null(0) - pl.col(f"{what}_{hours}").fill_null(0)).alias(
            f"{what}{hours}"
        )
        for what in "sc"
        for hours in (24, 168)
    ]
    rows.select("line", *counts).sink_parquet(work / "c.parquet", engine="streaming")


def polars_csv(path: Path):
    import polars as pl

    names = path.open().readline().strip().split(",")
    types = {"time_stamp": pl.Int64, "clk": pl.Int32}
    return pl.scan_csv(path, schema={name: types.get(name, pl.String) for name in names})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("raw", type=Path)
    parser.add_argument("--only", help="run one measurement in this process")
    chosen = parser.parse_args()
    names = [f"{engine}_{stage}" for stage in ("sort", "count") for engine in ("duckdb", "polars")]
    if not chosen.only:
        print(f"{'measurement':16}{'seconds':>9}{'cpu':>8}{'peak MB':>9}", flush=True)
        for name in names:
            command = [sys.executable, __file__, str(chosen.raw), "--only", name]
            subprocess.run(command, check=True, timeout=1800)
        return
    with tempfile.TemporaryDirectory() as work:
        start = time.perf_counter()
        globals()[chosen.only](chosen.raw, Path(work))
        seconds = time.perf_counter() - start
    cpu = sum(os.times()[:2])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{chosen.only:16}{seconds:9.1f}{cpu:8.1f}{peak:9.0f}", flush=True)


if __name__ == "__main__":
    main()
