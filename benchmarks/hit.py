"""What a hit costs: in a fresh process, in a running one, and beside other ways to keep answers.

    python -m benchmarks.hit            # about two minutes; needs pip install -e '.[dev,bench]'

Each figure is taken in one run, the two sides in turn; medians of at least 20, and minima.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.support.facts import MODEL_SIGNATURE
from tuner import make_cache_key, resolve_chunk_size, store_cache
from tuner.device import device_fingerprint
from tuner.model_facts import SIGNATURE_FIELDS
from tuner.workload import CacheKey

ROOT = Path(__file__).parents[1]
KEYS = 10_000
"""In every store that is asked here."""
HITS = 20
"""Hits in a row, beside one load of a JSON file that takes a hundred times as long."""
NEVER = (
    "sqlalchemy",
    "alembic",
    "mujoco",
    "click",
    "tuner.cli",
    "tuner.tuning",
    "tuner.racing.race",
)
HIT = """
import sys
import numpy as np
from types import SimpleNamespace
import tuner
model = SimpleNamespace(**{counts})
answer = tuner.resolve_chunk_size(
    pool=None, state=None, model=model, n_variants=1, num_envs=1024, nthread=2,
    dtype=np.float32, post_step_forward_sensor=False, bench_nsteps=4,
    manual_chunk_size=None, adaptive=True,
)
assert answer == 4, answer
"""


class Counts:
    """Something with a model's counts."""

    def __init__(self) -> None:
        for name in SIGNATURE_FIELDS:
            setattr(self, name, MODEL_SIGNATURE[name])


def the_key(num_envs: int = 1024) -> CacheKey:
    """Make the key that a hit of this benchmark asks for."""
    return make_cache_key(
        backend_type="mujoco",
        model_sig=MODEL_SIGNATURE,
        device=device_fingerprint(),
        num_envs=num_envs,
        nthread=2,
        dtype="float32",
        post_step_forward_sensor=False,
        bench_nsteps=4,
    )


def fill(database: Path, keys: int, samples: int) -> None:
    """Write keys with a run each, straight into the tables: the store would take an hour."""
    timings = {"None": 9.38} | {str(n): 9.0 + n / 10 for n in range(1, 16)}
    store_cache(database, the_key(), {"chunk_size": 4, "per_candidate_ms": timings})
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA synchronous = OFF")
    first = 10
    numbers = range(first, first + keys)
    now = "2026-01-01T00:00:00.000000Z"
    connection.executemany(
        "INSERT INTO tuning_key (key_id, digest, model_id, device_id, backend_type, num_envs, "
        "nthread, dtype, post_step_forward_sensor, bench_nsteps) "
        "VALUES (?, ?, 1, 1, 'mujoco', 1024, 2, 'float32', 0, 4)",
        ((n, f"k1_{n:032x}") for n in numbers),
    )
    connection.executemany(
        "INSERT INTO run (run_id, key_id, uid, state, plan, work, samples, finished_utc, "
        "model_file, hostname) VALUES (?, ?, ?, 'complete', 'race', 'moved', ?, ?, 'robot.xml', "
        "'node7')",
        ((n, n, f"{n:032x}", samples, now) for n in numbers),
    )
    chunks = [None if order % 4 == 0 else 1 + order % 16 for order in range(samples)]
    connection.executemany(
        "INSERT INTO sample VALUES (?, ?, ?, ?, ?, 0, 1)",
        (
            (n, order, order // 4, chunk, 9_000_000 + n + order)
            for n in numbers
            for order, chunk in enumerate(chunks)
        ),
    )
    connection.executemany(
        "INSERT INTO verdict (key_digest, stack, chunk_size, decided, gain, gain_low, gain_high, "
        "runs, imported_runs, samples, latest_run_id, last_measured_utc, per_candidate_ms) "
        "VALUES (?, '? ?, mujoco ?, method ?', 4, 1, 0.05, 0.04, 0.06, 1, 0, ?, ?, ?, ?)",
        ((f"k1_{n:032x}", samples, n, now, json.dumps(timings)) for n in numbers),
    )
    connection.commit()
    connection.close()


def hit() -> int | None:
    """Ask as a job asks whose answer is stored."""
    return resolve_chunk_size(
        pool=None,  # type: ignore[arg-type]  # a hit never touches the pool
        state=None,
        model=Counts(),
        n_variants=1,
        num_envs=1024,
        nthread=2,
        dtype=np.float32,
        post_step_forward_sensor=False,
        bench_nsteps=4,
        manual_chunk_size=None,
        adaptive=True,
    )


def in_turn(
    one: Callable[[], object], other: Callable[[], object], rounds: int, repeat: int = 1
) -> tuple[list[float], list[float]]:
    """Time two things in turn, the other so many times in a row; seconds of each, by round."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for doing, often, kept in zip((one, other), (1, repeat), times, strict=True):
            begun = time.perf_counter()
            for _ in range(often):
                doing()
            kept.append((time.perf_counter() - begun) / often)
    return times


def keep_bytecode(folder: Path) -> None:
    """Let interpreters find modules compiled, as pip leaves them where it installs a package."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder)


def python(program: str) -> Callable[[], object]:
    """Make a function that runs a program in a fresh interpreter, once before it is timed."""
    command = [sys.executable, "-c", program]

    def run() -> None:
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL, cwd=ROOT)

    run()
    return run


def difference(times: tuple[list[float], list[float]]) -> str:
    """Write what the first takes beyond the second, as medians and as minima."""
    a, b = times
    median = (statistics.median(a) - statistics.median(b)) * 1e3
    return f"{median:.1f} ms (minima {(min(a) - min(b)) * 1e3:.1f} ms)"


def ratio(times: tuple[list[float], list[float]]) -> str:
    """Write how much longer the first takes than the second."""
    a, b = times
    return f"{statistics.median(a) / statistics.median(b):.2f} (minima {min(a) / min(b):.2f})"


def raw(database: Path, key: str) -> Callable[[], object]:
    """Make the least that SQLite can do for one row: connect, select, close."""

    def look() -> None:
        connection = sqlite3.connect(database)
        connection.execute("SELECT * FROM verdict WHERE key_digest = ?", (key,)).fetchone()
        connection.close()

    return look


def fresh_processes(rounds: int) -> dict[str, str]:
    """Measure what imports and a first hit cost beyond an interpreter, and beyond numpy."""
    counts = {name: MODEL_SIGNATURE[name] for name in SIGNATURE_FIELDS}
    program = HIT.format(counts=counts)
    loaded = subprocess.run(
        [sys.executable, "-c", program + f"\nprint([m for m in {NEVER} if m in sys.modules])"],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    return {
        "`import tuner` beyond a bare Python": difference(
            in_turn(python("import tuner"), python("pass"), rounds)
        ),
        "numpy and a first hit beyond numpy": difference(
            in_turn(python(program), python("import numpy"), rounds)
        ),
        "of sqlalchemy, alembic, mujoco, the command line: loaded by a hit": loaded.stdout.strip(),
    }


def many_at_once(processes: int) -> str:
    """Let many processes hit at once; from the common start, the slowest over its fair share."""
    waiting = HIT.format(counts={name: MODEL_SIGNATURE[name] for name in SIGNATURE_FIELDS})
    setup, ask = waiting.split("answer = ", 1)
    program = f"""{setup}
import time
print("ready", flush=True)
sys.stdin.readline()
answer = {ask}
print(time.monotonic(), flush=True)
"""

    def together(count: int) -> float:
        jobs = [
            subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=ROOT,
            )
            for _ in range(count)
        ]
        for job in jobs:
            assert job.stdout is not None
            assert job.stdout.readline() == "ready\n"
        begun = time.monotonic()  # one clock for all processes of a machine
        for job in jobs:
            assert job.stdin is not None
            job.stdin.write("\n")
            job.stdin.flush()
        return max(float(job.communicate()[0]) for job in jobs) - begun

    alone = statistics.median(together(1) for _ in range(9))
    slowest = statistics.median(together(processes) for _ in range(5))
    fair = alone * processes / (os.cpu_count() or 1)
    return f"{slowest / fair:.2f} ({slowest * 1e3:.0f} ms; alone {alone * 1e3:.1f} ms)"


def other_stores(folder: Path, database: Path, keys: int, rounds: int) -> dict[str, str]:
    """Compare with a JSON file of as many keys, loaded as a whole, and with diskcache."""
    import diskcache

    draw = random.Random(0)
    value = {
        "chunk_size": 4,
        "per_candidate_ms": {"None": 9.38} | {str(n): draw.uniform(9, 30) for n in range(1, 17)},
        "model_file": "/home/somebody/robots/quadruped.xml",
        "hostname": "node0017.cluster.example",
    }
    file = folder / "cache.json"
    file.write_text(json.dumps({f"{n:032x}": value for n in range(keys)} | {the_key(): value}))
    shelf = folder / "diskcache"
    with diskcache.Cache(str(shelf)) as cache, cache.transact():
        for n in range(keys):
            cache[f"{n:032x}"] = value
        cache[str(the_key())] = value
    key = str(the_key())

    def from_json() -> object:
        return json.loads(file.read_text())[key]

    def from_diskcache() -> object:
        with diskcache.Cache(str(shelf)) as opened:
            return opened[key]

    hit()
    return {
        f"a JSON file of {keys:,} keys, loaded and looked up, over a hit": ratio(
            in_turn(from_json, hit, rounds, repeat=HITS)
        ),
        "the same over the first hit after it, on cold caches": ratio(
            in_turn(from_json, hit, rounds)
        ),
        f"diskcache with {keys:,} keys: open, get, close, over a hit": ratio(
            in_turn(from_diskcache, hit, rounds)
        ),
        "a later hit over sqlite3's connect, select, close": ratio(
            in_turn(hit, raw(database, key), 10 * rounds)
        ),
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tuner-hit-") as name:
        folder = Path(name)
        database = folder / "tuning.db"
        os.environ["TUNER_DATABASE"] = str(database)
        keep_bytecode(folder / "bytecode")
        fill(database, KEYS, 10)
        sys.stderr.flush()
        told, sys.stderr = sys.stderr, open(os.devnull, "w")  # noqa: SIM115 - for the run's length
        try:
            hit()
            figures = fresh_processes(options.rounds)
            figures |= other_stores(folder, database, KEYS, options.rounds)
        finally:
            sys.stderr.close()
            sys.stderr = told
        figures[f"{options.processes} hits at once: the slowest over its fair share"] = (
            many_at_once(options.processes)
        )
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print("| figure | value |\n|---|---|")
    for figure, value in figures.items():
        print(f"| {figure} | {value} |")


if __name__ == "__main__":
    main()
