"""The ledger's functions over five million settlements: Spark on two cores, and DuckDB on two.

    python benchmarks/ledger.py
    python benchmarks/ledger.py --rows 500000 --memory 1g
    python benchmarks/ledger.py --stream           # running_debt over a stream, too
    python benchmarks/ledger.py --command --rows 1000000   # clearfunds report, by each engine
    python benchmarks/ledger.py --days 1 7 30      # clearfunds report --last 15min, by days kept

`--command` runs `clearfunds report` as users do, with the start of Python and of Spark. `--days`
does so with `--last 15min` over journals of so many days, of 11 settlements a second: a file of
each table a minute in the last 26 hours, and one an hour before that, as a relay with its defaults
leaves them; with `--every-minute`, a file a minute throughout.

The comparison. The journal is synthetic (tests/pipeline/ledger/generated.py), and both engines read
the same files. DuckDB computes the reference results of the tests, from plain definitions
(tests/pipeline/ledger/plain_sql.py). These are not tuned, and their percentiles are exact where
Spark's are within half a percent. Each result goes to the client as a data frame. Each engine has
its own process. The first pass is cold except for the system's file cache; the second is that of a
running session. Times are by the clock, and in CPU time of all threads, which says more on a busy
machine. The total includes starting Spark, and Python.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearfunds.pipeline.journal._names import folder_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from clearfunds.pipeline.ledger import Tables

ROOT = Path(__file__).parents[1]
PASSES = 2
LIMITS = "recommended_limits"
STREAM = "running_debt (stream)"

Times = dict[str, list[tuple[float, float]]]
"""Seconds of each pass, by function: by the clock, and of CPU."""


def timed(work: Callable[[], object], cpu: Callable[[], float]) -> tuple[float, float]:
    """Do the work, and return how long it took."""
    began, busy = time.perf_counter(), cpu()
    work()
    return time.perf_counter() - began, cpu() - busy


def run_duckdb(folder: Path) -> Times:
    """Time the definitions in SQL."""
    from tests.pipeline.ledger import plain_sql

    times: Times = {}
    connection = plain_sql.connect(folder)
    for _ in range(PASSES):
        for name, query in plain_sql.QUERIES.items():
            seconds = timed(partial(plain_sql.answer, connection, query), time.process_time)
            times.setdefault(name, []).append(seconds)
    return times


def run_spark(folder: Path, memory: str, stream: bool) -> Times:
    """Time the functions."""
    from clearfunds.pipeline._environment import session
    from clearfunds.pipeline.ledger import read, read_stream, recommended_limits, running_debt
    from tests.pipeline.ledger.test_agrees import FUNCTIONS

    settings = {"spark.master": "local[2]", "spark.driver.memory": memory}
    began = time.perf_counter()
    spark = session("ledger", **settings, **{"spark.sql.shuffle.partitions": "4"})
    java: Any = spark.sparkContext
    statistics = Path(f"/proc/{java._jvm.java.lang.ProcessHandle.current().pid()}/stat")

    def cpu() -> float:
        # See proc(5): the name may have blanks; what follows begins with the third field.
        fields = statistics.read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK") + time.process_time()

    times: Times = {"(start)": [(time.perf_counter() - began, cpu())]}
    tables = read(spark, folder)

    def collect(function: Callable[[Tables], DataFrame]) -> Any:
        return function(tables).toPandas()

    work: dict[str, Callable[[], Any]] = {
        name: partial(collect, function) for name, (function, _) in FUNCTIONS.items()
    }
    work[LIMITS] = lambda: recommended_limits(
        tables.settlements, tables.accounts, publications=tables.publications, target_ms=500.0
    ).toPandas()
    for _ in range(PASSES):
        for name, each in work.items():
            times.setdefault(name, []).append(timed(each, cpu))
    if stream:
        debts = running_debt(read_stream(spark, folder, max_files=1).settlements)
        with tempfile.TemporaryDirectory() as checkpoint:
            began, busy = time.perf_counter(), cpu()
            query = (
                debts.writeStream.format("noop")
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            times[STREAM] = [(time.perf_counter() - began, cpu() - busy)]
    spark.stop()
    return times


def measured(engine: str, folder: Path, options: argparse.Namespace) -> tuple[Times, float]:
    """Run one engine in a process of its own; return its times and those of the whole process."""
    command = [sys.executable, __file__, "--engine", engine, "--folder", str(folder)]
    command += ["--memory", options.memory, *(["--stream"] if options.stream else [])]
    began = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1]), time.perf_counter() - began


def compare(folder: Path, options: argparse.Namespace) -> None:
    """Run both engines and print what they took."""
    from tests.pipeline.ledger.generated import generate, write

    if not (folder / "settlements").is_dir():
        tables = generate(options.rows)
        write(tables, folder)
        print(f"{tables['settlements'].num_rows:,} settlements, {_megabytes(folder)} MB")
        del tables
    spark, spark_whole = measured("spark", folder, options)
    duckdb, duckdb_whole = measured("duckdb", folder, options)
    head = f"{'cold':>8} {'warm':>7} {'its CPU':>8}"
    print(f"{'':24} {'Spark':>25} {'DuckDB':>26}")
    print(f"{'seconds':24} {head}  {head}")
    for name, ours in spark.items():
        print(f"{name:24} {_figures(ours)}  {_figures(duckdb.get(name))}".rstrip())
    both = [name for name in spark if name in duckdb]
    sums = [_sum([times[name] for name in both]) for times in (spark, duckdb)]
    print(f"{'sum of what both have':24} {_figures(sums[0])}  {_figures(sums[1])}")
    print(f"{'whole process':24} {spark_whole:8.1f} {'':16}  {duckdb_whole:8.1f}")


# -- the command ---------------------------------------------------------------------------------


def run_command(folder: Path, *options: str) -> str:
    """Run `clearfunds report`, and return how long it took and what it said."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "clearfunds", "report", str(folder), "--out", out]
        began, busy = time.perf_counter(), os.times()
        done = subprocess.run([*command, *options], check=True, stdout=subprocess.PIPE, text=True)
        seconds, after = time.perf_counter() - began, os.times()
        used = sum(after[2:4]) - sum(busy[2:4])
        said = done.stdout.strip().replace(f"{out}/", "")
        return f"{seconds:6.1f} s ({used:5.1f} s of CPU)  {said}"


def show_command(rows: int, engines: list[str]) -> None:
    """Time a report of everything."""
    from tests.pipeline.ledger.generated import generate, write

    with tempfile.TemporaryDirectory() as name:
        folder = write(generate(rows), Path(name))
        for engine in engines:
            print(f"{engine:6} {run_command(folder, '--engine', engine)}")


PER_MINUTE = 675
"""Settlements: 6.8 million in a week."""

MINUTES_KEPT = 26 * 60
"""A relay with its defaults merges what is older."""


def show_days(days: list[int], engines: list[str], every_minute: bool) -> None:
    """Time a report of the last quarter of an hour, over journals that were kept for some days."""
    for count in days:
        with tempfile.TemporaryDirectory() as name:
            files, settlements = write_days(Path(name), count, every_minute)
            print(f"{count} days: {files:,} files, {settlements:,} settlements")
            for engine in engines:
                told = run_command(Path(name), "--last", "15min", "--engine", engine)
                print(f"  {engine:6} {told}")


def write_days(folder: Path, days: int, every_minute: bool) -> tuple[int, int]:
    """Write a journal that ends now; return how many files and settlements it has."""
    from tests.pipeline.journal.small_files import write_file
    from tests.pipeline.ledger.generated import BEGIN_NS, LENGTH_NS, generate

    pa: Any = import_module("pyarrow")
    compute: Any = import_module("pyarrow.compute")
    hour = generate(60 * PER_MINUTE)
    end = int(time.time()) // 3600
    files = settlements = 0
    for back in range(24 * days):
        number = end - back
        for name, table in hour.items():
            moments = [c for c in table.column_names if c.endswith("_ns")]
            own = table["settled_ns" if name == "settlements" else moments[-1]] if moments else None
            if own is None or not table.num_rows:
                continue
            shift = number * 3600 * 10**9 - BEGIN_NS
            within = compute.less(own, BEGIN_NS + LENGTH_NS)
            table, own = table.filter(within), own.filter(within)
            for at, column in enumerate(table.column_names):
                if column in moments:
                    table = table.set_column(at, column, compute.add(table[column], shift))
            first = pa.array(
                compute.add(own.to_numpy(), shift).to_numpy() // 1000, pa.timestamp("us", tz="UTC")
            )
            table = table.set_column(0, hour[name].schema.field(0), first)
            minutes = (own.to_numpy() - BEGIN_NS) // (60 * 10**9)
            into = folder.joinpath(name, *folder_of(number))
            settlements += table.num_rows if name == "settlements" else 0
            small = every_minute or back * 60 < MINUTES_KEPT
            for minute in sorted(set(minutes.tolist())) if small else [0]:
                some = table.filter(pa.array(minutes == minute)) if small else table
                write_file(some, into, minute + 1, RUN_OF_HOUR.format(back))
                files += 1
    return files, settlements


RUN_OF_HOUR = "20261128T000000.000000-{}"


def _figures(passes: list[tuple[float, float]] | None) -> str:
    if passes is None:
        return ""
    cold, last = passes[0], passes[-1]
    warm = f"{last[0]:7.2f}" if len(passes) > 1 else f"{'':7}"
    return f"{cold[0]:8.2f} {warm} {last[1]:8.2f}"


def _sum(some: list[list[tuple[float, float]]]) -> list[tuple[float, float]]:
    return [
        (sum(each[i][0] for each in some), sum(each[i][1] for each in some)) for i in range(PASSES)
    ]


def _megabytes(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*.parquet")) // 10**6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=5_000_000, help="how many settlements")
    parser.add_argument("--folder", type=Path, help="a journal that is there; else one is made")
    parser.add_argument("--memory", default="2g", help="what Spark's JVM may have")
    parser.add_argument("--stream", action="store_true", help="time running_debt, too")
    parser.add_argument("--command", action="store_true", help="time clearfunds report")
    parser.add_argument("--days", type=int, nargs="+", help="time --last 15min over such journals")
    parser.add_argument(
        "--every-minute", action="store_true", help="with --days: nothing is merged"
    )
    parser.add_argument("--only", choices=("local", "spark"), help="only this engine's command")
    parser.add_argument("--engine", choices=("spark", "duckdb"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    # The journal's generator and the SQL are the tests'.
    sys.path.insert(0, str(ROOT))
    engines = [options.only] if options.only else ["local", "spark"]
    if options.days:
        show_days(options.days, engines, options.every_minute)
    elif options.command:
        show_command(options.rows, engines)
    elif options.engine == "spark":
        print(json.dumps(run_spark(options.folder, options.memory, options.stream)))
    elif options.engine == "duckdb":
        print(json.dumps(run_duckdb(options.folder)))
    elif options.folder is not None:
        compare(options.folder, options)
    else:
        with tempfile.TemporaryDirectory() as folder:
            compare(Path(folder), options)


if __name__ == "__main__":
    main()
