"""What export and import cost beside the plain loops that do the same, with a million samples.

    python -m benchmarks.exchange       # about ten minutes; needs pip install -e '.[dev,bench]'

The plain loop is what one would write with sqlite3 and csv, json or pyarrow: rows with all facts
out; rows in, checked by nothing but the schema. Every step is a process of its own, ours and the
plain one in turn; times and memory are those beyond the imports. Verdicts are not part of the
comparison, because the plain loop makes none: what they cost is told apart.
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

from tuner.exchange.intake import import_files
from tuner.exchange.writers import arrow
from tuner.store.exporting import JOINS, RUN_COLUMNS

from benchmarks.hit import ROOT
from tests.support.facts import a_key
from tuner.environment import PROTOCOL, Environment
from tuner.exchange.export import write_file
from tuner.exchange.rows import COLUMNS, FORMAT
from tuner.records import Candidate, Run, RunMetadata, Verdict
from tuner.store.database import writing
from tuner.store.migrate import upgrade
from tuner.store.runs import insert_run, insert_samples, judge_key, key_row, run_values
from tuner.store.schema import DEVICE_FIELDS, MODEL_FIELDS, RUN_PARAMETERS

FORMATS = ("csv", "jsonl", "parquet")
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
    sources = ", ".join(column.source or f"'{FORMAT}'" for column in COLUMNS.values())
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


def rows_of_csv(file: Path) -> Iterator[dict[str, Any]]:
    """Read CSV as anybody would."""
    with file.open(newline="") as stream:
        for row in csv.DictReader(stream):
            yield {
                name: None if text == "" else {"true": 1, "false": 0}.get(text, text)
                for name, text in row.items()
            }


def rows_of_jsonl(file: Path) -> Iterator[dict[str, Any]]:
    """Read JSON lines as anybody would."""
    with file.open() as stream:
        for line in stream:
            yield json.loads(line)


def rows_of_parquet(file: Path) -> Iterator[dict[str, Any]]:
    """Read Parquet as anybody would."""
    _, parquet = arrow()
    for batch in parquet.ParquetFile(file).iter_batches(BATCH):
        yield from batch.to_pylist()


RUN_NAMES = [name for name in RUN_COLUMNS if name not in ("run_uid", "run_other_facts")]


def plain_import(database: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Store rows as anybody would: what is not there yet of model, device, key and run first."""
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
        for row in rows:
            model = number(
                "model", {"digest": row["model_digest"], **{n: row[n] for n in MODEL_FIELDS}}
            )
            device = number(
                "device", {"digest": row["device_digest"], **{n: row[n] for n in DEVICE_FIELDS}}
            )
            key = {n: row[n] for n in RUN_PARAMETERS} | {"digest": row["tuning_key"]}
            key_id = number("tuning_key", key | {"model_id": model, "device_id": device})
            run = {n: row[n] for n in RUN_NAMES} | {"uid": row["run_uid"], "key_id": key_id}
            samples.append(
                (
                    number("run", run),
                    row["sample_order"],
                    row["round"],
                    row["chunk_size"],
                    row["nanoseconds"],
                    row["warm_up"],
                    row["steps"],
                )
            )
            if len(samples) == BATCH:
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
    **{
        f"ours out {form}": lambda database, file, form=form: write_file(  # type: ignore[misc]
            database, file, form
        )
        for form in FORMATS
    },
    "plain out csv": plain_export_csv,
    "plain out jsonl": plain_export_jsonl,
    "plain out parquet": plain_export_parquet,
    **{f"ours in {form}": ours_in for form in FORMATS},
    "plain in csv": lambda database, file: plain_import(database, rows_of_csv(file)),
    "plain in jsonl": lambda database, file: plain_import(database, rows_of_jsonl(file)),
    "plain in parquet": lambda database, file: plain_import(database, rows_of_parquet(file)),
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


def compared(
    folder: Path, form: str, rounds: int, filled: Path
) -> Iterator[tuple[str, str, str, str, str]]:
    """Take the steps of a format in turn, ours and the plain ones."""
    file = folder / f"ours.{form}"
    out, plain_out, first, plain_first, again = [], [], [], [], []
    for number in range(rounds):
        out.append(cost(f"ours out {form}", filled, file))
        plain_out.append(cost(f"plain out {form}", filled, folder / f"plain.{form}"))
        ours, plain = folder / f"ours-{number}.db", folder / f"plain-{number}.db"
        first.append(cost(f"ours in {form}", ours, file))
        plain_first.append(cost(f"plain in {form}", plain, file))
        again.append(cost(f"ours in {form}", ours, file))
        for used in (ours, plain):
            used.unlink()

    def line(name: str, mine: list[tuple[float, float]], other: list[tuple[float, float]]) -> Any:
        seconds, compared_with = middle(mine), middle(other)
        return (
            f"{form}: {name}",
            f"{seconds:.1f} s",
            f"{compared_with:.1f} s",
            f"{seconds / compared_with:.2f}",
            f"{max(megabytes for _, megabytes in mine):.0f} MB",
        )

    yield line("export, over the plain loop", out, plain_out)
    yield line("import, over the plain loop", first, plain_first)
    yield line("import again, over the first time", again, first)


def middle(costs: list[tuple[float, float]]) -> float:
    """Take the median of the seconds."""
    return statistics.median(seconds for seconds, _ in costs)


def verdicts(folder: Path, keys: int = 40) -> tuple[float, float]:
    """Time a first and a second import of some keys with their verdicts; seconds of each."""
    part, database = folder / "part.jsonl", folder / "part.db"
    with part.open("w") as stream:
        whole = folder / "ours.jsonl"
        with whole.open() as lines:
            for _, line in zip(range(2 * keys * SAMPLES_OF_A_RUN), lines, strict=False):
                stream.write(line)
    seconds = []
    for _ in range(2):
        begun = time.perf_counter()
        import_files(database, [part])
        seconds.append(time.perf_counter() - begun)
    return seconds[0], seconds[1]


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
        lines = [
            line for form in FORMATS for line in compared(folder, form, options.rounds, filled)
        ]
        first, again = verdicts(folder)
    if options.json:
        print(json.dumps(lines, indent=2))
        return
    print(f"{options.samples:,} samples, medians of {options.rounds}\n")
    print(
        "| what | it takes | the other | ratio | memory beyond the imports |\n|---|---|---|---|---|"
    )
    for line in lines:
        print(f"| {' | '.join(line)} |")
    print(
        f"\nWith verdicts, 40 keys of two runs of 300 samples: {first:.1f} s the first time, "
        f"{again:.2f} s again, {first / again:.0f} times faster"
    )


if __name__ == "__main__":
    main()
