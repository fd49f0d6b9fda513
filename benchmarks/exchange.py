"""What export and import cost beside the plain loops that do the same, with a million samples.

    python -m benchmarks.exchange       # about ten minutes; needs pip install -e '.[dev,bench]'

The plain loop is what one would write with sqlite3 and csv, json or pyarrow: rows with all facts
out; runs in, checked by nothing but the schema. Every step is a process of its own, ours and the
plain one in turn; times and memory are those beyond the imports. The plain loop makes no verdicts,
so ours makes none either.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.hit import ROOT
from tests.support.facts import a_key
from tuner.environment import PROTOCOL, Environment
from tuner.exchange.export import arrow, write_file
from tuner.exchange.importing import import_files
from tuner.exchange.rows import ROW_COLUMNS, RUN_COLUMNS, SAMPLE_COLUMNS
from tuner.records import Candidate, Run, RunMetadata, Verdict
from tuner.store.database import writing
from tuner.store.migrate import upgrade
from tuner.store.runs import insert_run, insert_samples, judge_key, key_row, run_values
from tuner.store.schema import DEVICE_FIELDS, MODEL_FIELDS, RUN_PARAMETERS

OUT = ("csv", "jsonl", "parquet")
IN = ("jsonl", "db")
COLUMNS = ROW_COLUMNS["samples"]
JOINS = """
    JOIN tuning_key ON tuning_key.key_id = run.key_id
    LEFT JOIN model ON model.model_id = tuning_key.model_id
    LEFT JOIN device ON device.device_id = tuning_key.device_id
"""
SAMPLES_OF_A_RUN = 300
BATCH = 32_768
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ARROW_TYPES = {str: "string", int: "int64", float: "float64", bool: "bool"}


def stub(*_: object, **__: object) -> Verdict:
    """Say the same of all runs: making verdicts is not what is compared."""
    return Verdict(Candidate(4), True, None, 0.1, 0.05, 0.15)


def fill(database: Path, samples: int) -> None:
    """Make a database of runs of 300 samples, two of each key."""
    draw = random.Random(1)
    upgrade(database)
    with writing(database) as connection:
        for number in range(max(1, samples // SAMPLES_OF_A_RUN)):
            key = a_key(num_envs=1024 + number // 2)
            started = NOON + timedelta(minutes=number)
            run = Run(
                state="complete",
                uid=f"{draw.getrandbits(128):032x}",
                started=started,
                finished=started + timedelta(seconds=9),
                strategy="race",
                work="moved states, random controls",
                environment=Environment("4.0.0", "mujoco.rollout", "4.0.0", PROTOCOL),
                trigger="new",
                choice=Candidate(4),
                seed=number,
                time_budget_seconds=10.0,
                pool_seconds=9.0,
                model_file="/home/somebody/robots/quadruped.xml",
                metadata=RunMetadata("node7", 4242, 0.5, "0.1.0", "3.11.9"),
            )
            rows = [
                (i, i // 4, i % 16 or None, round(9e6 * draw.lognormvariate(0, 0.01)), 0, 1)
                for i in range(SAMPLES_OF_A_RUN)
            ]
            values = run_values(run) | {"samples": len(rows)}
            insert_samples(
                connection, insert_run(connection, key_row(connection, key), values), rows
            )
            if number % 2:
                with patch("tuner.store.runs.judge_runs", stub):
                    judge_key(connection, key)


def plain_rows(database: Path) -> Iterator[tuple[Any, ...]]:
    """Read the samples with all their facts by one statement."""
    sources = ", ".join(str(column.source) for column in COLUMNS.values())
    with closing(sqlite3.connect(database)) as connection:
        yield from connection.execute(
            f"SELECT {sources} FROM run {JOINS} JOIN sample ON sample.run_id = run.run_id "
            "ORDER BY tuning_key.digest, run.finished_utc, run.uid, sample.sample_order"
        )


def plain_export_csv(database: Path, file: Path) -> None:
    """Write CSV as anybody would."""
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        writer.writerows(plain_rows(database))


def plain_export_jsonl(database: Path, file: Path) -> None:
    """Write JSON lines as anybody would."""
    with file.open("w") as stream:
        for row in plain_rows(database):
            stream.write(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n")


def plain_export_parquet(database: Path, file: Path) -> None:
    """Write Parquet as anybody would."""
    library, parquet = arrow()
    types = [library.type_for_alias(ARROW_TYPES[column.kind]) for column in COLUMNS.values()]
    truths = [number for number, column in enumerate(COLUMNS.values()) if column.kind is bool]
    schema = library.schema(list(zip(COLUMNS, types, strict=True)))
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in batches(plain_rows(database)):
            columns = list(zip(*batch, strict=True))
            for number in truths:
                columns[number] = tuple(None if v is None else bool(v) for v in columns[number])
            arrays = [library.array(c, t) for c, t in zip(columns, types, strict=True)]
            writer.write_table(library.Table.from_arrays(arrays, schema=schema))


def batches(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Take so many rows at a time."""
    batch = []
    for row in rows:
        batch.append(row)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def runs_of_jsonl(file: Path) -> Iterator[dict[str, Any]]:
    """Read runs with their timings as anybody would."""
    with file.open() as stream:
        for line in stream:
            yield json.loads(line)


def runs_of_database(file: Path) -> Iterator[dict[str, Any]]:
    """Read the same from another database."""
    columns = ROW_COLUMNS["runs"]
    sources = ", ".join(f"{column.source} AS {name}" for name, column in columns.items())
    with closing(sqlite3.connect(file)) as connection:
        connection.row_factory = sqlite3.Row
        timings = f"SELECT {', '.join(SAMPLE_COLUMNS)} FROM sample WHERE run_id = ?"
        for row in connection.execute(f"SELECT run.run_id AS id, {sources} FROM run {JOINS}"):
            found = [tuple(sample) for sample in connection.execute(timings, (row["id"],))]
            yield {**dict(row), "timings": found}


RUN_NAMES = [name for name in RUN_COLUMNS if name not in ("run_uid", "run_other_facts")]


def plain_import(database: Path, runs: Iterable[dict[str, Any]]) -> None:
    """Store runs as anybody would: what is not there yet of model, device, key and run first."""
    upgrade(database)
    with closing(sqlite3.connect(database)) as connection:
        known: dict[tuple[str, Any], int] = {}

        def number(table: str, values: dict[str, Any]) -> int:
            name = values.get("digest") or values["uid"]
            if (table, name) not in known:
                marks = ", ".join("?" * len(values))
                cursor = connection.execute(
                    f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})",
                    list(values.values()),
                )
                known[table, name] = int(cursor.lastrowid or 0)
            return known[table, name]

        samples = []
        for row in runs:
            model = number(
                "model", {"digest": row["model_digest"], **{n: row[n] for n in MODEL_FIELDS}}
            )
            device = number(
                "device", {"digest": row["device_digest"], **{n: row[n] for n in DEVICE_FIELDS}}
            )
            key = {n: row[n] for n in RUN_PARAMETERS} | {"digest": row["tuning_key"]}
            key_id = number("tuning_key", key | {"model_id": model, "device_id": device})
            run = {n: row[n] for n in RUN_NAMES} | {"uid": row["run_uid"], "key_id": key_id}
            run_id = number("run", run)
            samples += [(run_id, *timing) for timing in row["timings"]]
            if len(samples) >= BATCH:
                connection.executemany("INSERT INTO sample VALUES (?, ?, ?, ?, ?, ?, ?)", samples)
                samples = []
        connection.executemany("INSERT INTO sample VALUES (?, ?, ?, ?, ?, ?, ?)", samples)
        connection.commit()


def ours_in(database: Path, file: Path) -> None:
    """Import, without the time that verdicts take."""
    with patch("tuner.store.runs.judge_runs", stub):
        done, (found,) = import_files(database, [file])
    if not done or found.rejected or found.error:
        raise SystemExit(f"{file} was not imported: {found}")


STEPS: dict[str, Callable[[Path, Path], object]] = {
    "ours out csv": lambda database, file: write_file(database, file, "csv"),
    "ours out jsonl": lambda database, file: write_file(database, file, "jsonl"),
    "ours out parquet": lambda database, file: write_file(database, file, "parquet"),
    "plain out csv": plain_export_csv,
    "plain out jsonl": plain_export_jsonl,
    "plain out parquet": plain_export_parquet,
    "ours in jsonl": ours_in,
    "ours in db": ours_in,
    "plain in jsonl": lambda database, file: plain_import(database, runs_of_jsonl(file)),
    "plain in db": lambda database, file: plain_import(database, runs_of_database(file)),
}


def take_step(name: str, database: Path, file: Path) -> None:
    """Take one step in this process, and print what it cost beyond the imports."""
    if "parquet" in name:
        arrow()
    before = peak_megabytes()
    begun = time.perf_counter()
    STEPS[name](database, file)
    print(json.dumps([time.perf_counter() - begun, peak_megabytes() - before]))


def peak_megabytes() -> float:
    """Read the most memory that this process has had."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("this system does not tell a process's peak memory")


def cost(name: str, database: Path, file: Path) -> tuple[float, float]:
    """Take a step in a process of its own: seconds and megabytes."""
    command = [sys.executable, "-m", "benchmarks.exchange", "--step", name]
    command += ["--files", str(database), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr}")
    seconds, megabytes = json.loads(done.stdout)
    return seconds, megabytes


Costs = list[tuple[float, float]]
Line = tuple[str, str, str, str, str]


def exported(folder: Path, form: str, rounds: int, filled: Path) -> Line:
    """Export in turn, ours and the plain loop."""
    mine: Costs = []
    plain: Costs = []
    for _ in range(rounds):
        mine.append(cost(f"ours out {form}", filled, folder / f"ours.{form}"))
        plain.append(cost(f"plain out {form}", filled, folder / f"plain.{form}"))
    return line(f"{form}: export, over the plain loop", mine, plain)


def imported(folder: Path, form: str, rounds: int, file: Path) -> Iterator[Line]:
    """Import in turn, ours and the plain loop, and ours again."""
    mine: Costs = []
    plain: Costs = []
    again: Costs = []
    for number in range(rounds):
        ours, theirs = folder / f"ours-{number}.db", folder / f"plain-{number}.db"
        mine.append(cost(f"ours in {form}", ours, file))
        plain.append(cost(f"plain in {form}", theirs, file))
        again.append(cost(f"ours in {form}", ours, file))
        for used in (ours, theirs):
            used.unlink()
    yield line(f"{form}: import, over the plain loop", mine, plain)
    yield line(f"{form}: import again, over the first time", again, mine)


def line(name: str, mine: Costs, other: Costs) -> Line:
    """Write one line of the table."""
    seconds, compared_with = middle(mine), middle(other)
    return (
        name,
        f"{seconds:.1f} s",
        f"{compared_with:.1f} s",
        f"{seconds / compared_with:.2f}",
        f"{max(megabytes for _, megabytes in mine):.0f} MB",
    )


def middle(costs: list[tuple[float, float]]) -> float:
    """Take the median of the seconds."""
    return statistics.median(seconds for seconds, _ in costs)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--files", type=Path, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        take_step(options.step, *options.files)
        return
    with tempfile.TemporaryDirectory(prefix="tuner-exchange-") as name:
        folder = Path(name)
        filled = folder / "filled.db"
        fill(filled, options.samples)
        lines = [exported(folder, form, options.rounds, filled) for form in OUT]
        files = {"jsonl": folder / "ours.jsonl", "db": filled}
        for form in IN:
            lines += imported(folder, form, options.rounds, files[form])
    if options.json:
        print(json.dumps(lines, indent=2))
        return
    print(f"{options.samples:,} samples, medians of {options.rounds}\n")
    print(
        "| what | it takes | the other | ratio | memory beyond the imports |\n|---|---|---|---|---|"
    )
    for found in lines:
        print(f"| {' | '.join(found)} |")


if __name__ == "__main__":
    main()
