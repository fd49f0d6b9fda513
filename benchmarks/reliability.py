"""Storms, kills and faults on real processes and real files; prints what the README quotes.

python -m benchmarks.reliability            # about ten minutes on two cores
python -m benchmarks.reliability --quick    # the same in small
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from tests.support.crashes import VALUE, Failing, open_to_fail, store_and_die
from tests.support.facts import a_key
from tests.support.jobs import ROOT, finish, start_job, wait_until_stepping
from tuner import load_cache, store_cache
from tuner.errors import DatabaseError
from tuner.store import database as engine
from tuner.store.migrate import upgrade

OPENING = (
    "import sys; from pathlib import Path; from tuner.store.migrate import upgrade; "
    "sys.stdin.readline(); upgrade(Path(sys.argv[1]))"
)


def main() -> None:
    """Run everything and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer processes, rounds and kills")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    quick = options.quick
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="tuner-reliability-") as name:
        os.environ["TUNER_LOCK_FOLDER"] = name
        folder = Path(name)
        steps = [
            storms(folder, processes=8 if quick else 32, rounds=3 if quick else 20),
            one_for_many(folder, processes=8 if quick else 64),
            takeover(folder, rounds=2 if quick else 10),
            stopped_holder(folder, rounds=1 if quick else 3),
            kills(folder, count=20 if quick else 300),
            killed_jobs(folder, count=5 if quick else 40),
            faults(folder),
        ]
        for step in steps:
            for figure, value in step:
                print(f"{figure}: {value}", file=sys.stderr, flush=True)
                figures[figure] = value
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print("| figure | value |\n|---|---|")
    for figure, value in figures.items():
        print(f"| {figure} | {value} |")


Figures = Iterator[tuple[str, object]]


def storms(folder: Path, processes: int, rounds: int) -> Figures:
    """Let many processes open a database that does not exist, all at once."""
    errors = 0
    for number in range(rounds):
        database = folder / f"storm-{number}.db"
        openers = [
            subprocess.Popen(
                [sys.executable, "-c", OPENING, str(database)],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=ROOT,
            )
            for _ in range(processes)
        ]
        for opener in openers:
            assert opener.stdin is not None
            opener.stdin.write(b"\n")
            opener.stdin.flush()
        errors += sum(bool(opener.communicate()[1]) or opener.returncode != 0 for opener in openers)
        errors += not sound(database)
    yield "first opens at once: processes x rounds", f"{processes} x {rounds}"
    yield "first opens at once: errors", errors


def one_for_many(folder: Path, processes: int) -> Figures:
    """Let many processes ask for one key at once."""
    database = folder / "many.db"
    jobs = [start_job(database, wait_s=300, budget_s=2.0, step_s=0.01) for _ in range(processes)]
    told = [finish(job) for job in jobs]
    measured = [job for job in told if job["steps"]]
    stored = measured[0]["ended"]
    waited = [job for job in told if not job["steps"] and job["started"] < stored]
    yield "one key, many processes: asked, measured", f"{processes}, {len(measured)}"
    yield "one key, many processes: different choices", len({job["choice"] for job in told})
    if waited:
        worst = max(job["ended"] for job in waited) - stored
        yield "one key, many processes: slowest waiter after the answer", f"{worst:.2f} s"


def takeover(folder: Path, rounds: int) -> Figures:
    """Kill the process that measures; time until a waiting one steps its pool."""
    delays = []
    for number in range(rounds):
        database = folder / f"takeover-{number}.db"
        upgrade(database)
        holder = start_job(database, step_s=0.05, budget_s=600)
        wait_until_stepping(holder)
        waiter = start_job(database, wait_s=300)
        time.sleep(2.0)  # until it certainly waits
        holder.kill()
        killed = time.monotonic()
        wait_until_stepping(waiter)
        delays.append(time.monotonic() - killed)
        holder.communicate()
        finish(waiter)
    yield (
        "holder killed: until another steps its pool, median",
        f"{statistics.median(delays):.2f} s",
    )
    yield "holder killed: until another steps its pool, worst", f"{max(delays):.2f} s"


def stopped_holder(folder: Path, rounds: int) -> Figures:
    """Stop the process that measures; how long beyond its bound does another wait?"""
    bound, beyond, kept = 2.0, [], 0
    for number in range(rounds):
        database = folder / f"stopped-{number}.db"
        holder = start_job(database, step_s=0.01, budget_s=1.0)
        wait_until_stepping(holder)
        os.kill(holder.pid, signal.SIGSTOP)
        told = finish(start_job(database, wait_s=bound))
        beyond.append(told["ended"] - told["started"] - bound)
        os.kill(holder.pid, signal.SIGCONT)
        finish(holder)
        kept += len(load_cache(database))
    yield "holder stopped: another waits beyond its bound, worst", f"{max(beyond):.2f} s"
    yield "holder stopped: late results kept", f"{kept} of {rounds}"


def kills(folder: Path, count: int) -> Figures:
    """Kill processes at random statements of storing an answer."""
    database = folder / "kills.db"
    store_cache(database, "old", VALUE)
    draw = random.Random(0)
    killed = lost = 0
    for _ in range(count):
        killed += store_and_die(database, draw.randint(1, 14)) != 0
        answers = load_cache(database)
        lost += answers.get("old") != VALUE or not sound(database)
        lost += answers.get(a_key(), VALUE) != VALUE
    yield "killed while storing: processes", killed
    yield "killed while storing: rows lost or torn", lost


def killed_jobs(folder: Path, count: int) -> Figures:
    """Kill whole jobs at random moments, each tuning a key of its own."""
    database = folder / "jobs.db"
    draw = random.Random(1)
    stored = killed = lost = 0
    for number in range(count):
        job = start_job(database, num_envs=64 + number, budget_s=0.2)
        wait_until_stepping(job)
        try:
            job.wait(timeout=draw.uniform(0, 1.0))
        except subprocess.TimeoutExpired:
            job.kill()
            killed += 1
        job.communicate()
        now = len(load_cache(database))
        lost += now < stored or not sound(database)
        stored = now
    yield "killed while tuning: jobs, of them killed", f"{count}, {killed}"
    yield "killed while tuning: runs stored", stored
    yield "killed while tuning: runs lost or torn", lost


def faults(folder: Path) -> Figures:
    """Let every single statement of storing an answer fail, in each of two ways."""
    database = folder / "faults.db"
    store_cache(database, "old", VALUE)
    injected = lost = 0
    for error in ("disk I/O error", "database or disk is full"):
        Failing.error = sqlite3.OperationalError(error)
        for statement in itertools.count(1):
            Failing.left = statement
            try:
                with mock.patch.object(engine, "open_for_writing", open_to_fail):
                    store_cache(database, f"{error} {statement}", VALUE)
                break
            except DatabaseError:
                injected += 1
                lost += load_cache(database).get("old") != VALUE or not sound(database)
    yield "statements made to fail", injected
    yield "statements made to fail: rows lost or torn", lost


def sound(database: Path) -> bool:
    """Check a database: pages, foreign keys, and no run with fewer samples than it says."""
    connection = sqlite3.connect(database)
    try:
        pages = connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        keys = connection.execute("PRAGMA foreign_key_check").fetchall() == []
        torn = connection.execute(
            "SELECT count(*) FROM run WHERE samples <> "
            "(SELECT count(*) FROM sample WHERE sample.run_id = run.run_id)"
        ).fetchone()[0]
        return pages and keys and torn == 0
    finally:
        connection.close()


if __name__ == "__main__":
    main()
