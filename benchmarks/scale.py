"""What size costs: hits, storing, listing and bytes, from a hundred keys to a million samples.

python -m benchmarks.scale          # about two minutes
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

from benchmarks.hit import ROOT, fill, hit, in_turn, keep_bytecode, ratio, raw, the_key
from tuner import store_cache
from tuner.records import Candidate, Estimate, Run, Sample, Verdict
from tuner.store.migrate import upgrade
from tuner.store.runs import save_run

SIZES = ((100, 10), (10_000, 10), (100_000, 10))
"""Keys, and samples of each: the largest has a million samples."""


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Keep a hit's line off the terminal."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


def hits_by_size(folder: Path, rounds: int) -> dict[str, str]:
    """Time hits with few and with many keys, in turn."""
    files = []
    for keys, samples in SIZES:
        files.append(folder / f"{keys}.db")
        fill(files[-1], keys, samples)

    def hit_in(file: Path) -> Callable[[], object]:
        def ask() -> None:
            os.environ["TUNER_DATABASE"] = str(file)
            hit()

        return ask

    figures = {}
    with silent():
        for (keys, samples), file in zip(SIZES[1:], files[1:], strict=True):
            size = f"{keys:,} keys and {keys * samples:,} samples"
            times = in_turn(hit_in(file), hit_in(files[0]), rounds)
            figures[f"a hit with {size}, over one with 100 keys"] = ratio(times)
        os.environ["TUNER_DATABASE"] = str(files[-1])
        times = in_turn(hit, raw(files[-1], the_key()), rounds)
        figures["the same over sqlite3's connect, select, close"] = ratio(times)
    return figures


SAMPLES = tuple(
    Sample(Candidate(None if i % 7 == 0 else 1 + i % 16), i // 4, i, 9_000_000 + 17 * i)
    for i in range(300)
)


def a_run(number: int) -> Run:
    """Make a run of 300 samples."""
    now = datetime.now(UTC)
    return Run(state="complete", finished=now, started=now, samples=SAMPLES, uid=f"run {number}")


def storing(folder: Path, rounds: int) -> dict[str, str]:
    """Time the storing of a key's first run beside the plainest way to write the same rows."""
    ours, plain = folder / "ours.db", folder / "plain.db"
    upgrade(ours)
    upgrade(plain)
    estimates = tuple(Estimate(Candidate(c), 20, 9.1, 0.97, 0.96, 0.98) for c in (None, 4, 8, 16))
    verdict = Verdict(Candidate(4), True, None, 0.1, 0.05, 0.15, estimates=estimates)
    number = 0

    def save() -> None:
        nonlocal number
        number += 1
        # A key's first run: with more of them the verdict is made from all, which is not storing.
        save_run(ours, the_key(num_envs=1024 + number), a_run(number))

    store_cache(plain, the_key(), {"chunk_size": 4})  # its model and its device

    def write() -> None:
        connection = sqlite3.connect(plain)
        connection.execute(
            "INSERT INTO tuning_key (key_id, digest, model_id, device_id, backend_type, num_envs, "
            "nthread, dtype, post_step_forward_sensor, bench_nsteps) "
            "VALUES (?, ?, 1, 1, 'mujoco', 1024, 2, 'float32', 0, 4)",
            (100 + number, f"k1_{number:032x}"),
        )
        connection.execute(
            "INSERT INTO run (run_id, key_id, uid, state, samples, finished_utc) "
            "VALUES (?, ?, ?, 'complete', 300, '2026-01-01T00:00:00.000000Z')",
            (100 + number, 100 + number, f"run {number}"),
        )
        connection.execute(
            "INSERT INTO verdict (key_digest, stack, chunk_size, decided, runs, imported_runs, "
            "samples, latest_run_id, last_measured_utc) "
            "VALUES (?, '', 4, 1, 1, 0, 300, ?, '2026-01-01T00:00:00.000000Z')",
            (f"k1_{number:032x}", 100 + number),
        )
        connection.executemany(
            "INSERT INTO sample VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (100 + number, s.order, s.block, s.candidate.chunk_size, s.nanoseconds, 0, 1)
                for s in SAMPLES
            ],
        )
        connection.commit()
        connection.close()

    # Judging is the racing's cost, not the store's.
    with mock.patch("tuner.store.runs.judge_runs", return_value=verdict):
        save()
        write()
        times = in_turn(save, write, rounds)
    connection = sqlite3.connect(ours)
    pages, samples = connection.execute(
        "SELECT (SELECT sum(pgsize) FROM dbstat WHERE name IN (SELECT name FROM sqlite_master "
        "WHERE tbl_name IN ('sample', 'run', 'verdict'))), count(*) FROM sample"
    ).fetchone()
    connection.close()
    return {
        "storing a run of 300 samples, over executemany and commit": ratio(times),
        "bytes of a stored sample, with its run and all indexes": f"{pages / samples:.1f}",
    }


def listing(folder: Path, rounds: int) -> dict[str, str]:
    """Time `tuner list` of ten thousand keys as a whole process."""
    command = [sys.executable, "-m", "tuner", "list", "--database", str(folder / "10000.db")]
    times, bare = in_turn(
        lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT),
        lambda: subprocess.run([sys.executable, "-c", "pass"], check=True),
        rounds,
    )
    median, fastest = statistics.median(times), min(times)
    return {
        "`tuner list` of 10,000 keys": f"{median:.2f} s (fastest {fastest:.2f} s, "
        f"a bare Python {statistics.median(bare):.2f} s)"
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tuner-scale-") as name:
        folder = Path(name)
        keep_bytecode(folder / "bytecode")
        figures = hits_by_size(folder, options.rounds)
        figures |= storing(folder, max(20, options.rounds // 4))
        figures |= listing(folder, 20)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print("| figure | value |\n|---|---|")
    for figure, value in figures.items():
        print(f"| {figure} | {value} |")


if __name__ == "__main__":
    main()
