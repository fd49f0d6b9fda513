"""Checks on many real models what is prepared, measured and claimed.

    python3 -m venv zoo
    zoo/bin/pip install mujoco dm_control gymnasium robosuite gymnasium-robotics metaworld myosuite
    python -m benchmarks.real_models states zoo     # every model: about half an hour
    python -m benchmarks.real_models claims zoo     # 20 light ones: about ten minutes
    python -m benchmarks.real_models resume zoo     # 20 light ones: about ten minutes

Every MJCF and URDF file below the folder that loads is a model; of those with equal sizes the
first is taken. Nothing but the files is used, so the packages may pin what they like.

`states`: seconds of preparing; contacts and the time of a step, against those of states that
were simulated for the whole second; distinct states; models that diverge; whether a pool gives
the same states, bit for bit, for different chunk sizes; and what preparing and a race take
beyond a budget of a second.

`claims`: two fresh tunes of each model, and at once after each, 40 rounds of the default, the
choices and the default again, in random order.

`resume`: `tuner tune` with a tenth of a second, again and again until the key is decided.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from tuner import race_chunk_sizes
from tuner.candidates import make_candidates
from tuner.device import usable_cpus
from tuner.errors import TunerError
from tuner.model_file import captured_warnings, load_model
from tuner.pools import STATE, RolloutPool
from tuner.states import prepare_states

NUM_ENVS = 64
NSTEP = 5
# A model is light if a step of this many environments, a physics step each, takes this long.
LIGHT_ENVS = 256
LIGHT_S = 0.004
ROUNDS = 40
STEPS_TOGETHER = 4
MOST_CALLS = 25
# Preparing the states to compare with may take so many seconds.
REFERENCE_S = 60.0
# In a slow model a bit-for-bit comparison steps for no longer than this.
COMPARING_S = 5.0


def main() -> None:
    """Check the models one after another, each in a process that may die."""
    parts = {
        "states": (check_states, report_states),
        "claims": (check_claims, report_claims),
        "resume": (check_resuming, report_resuming),
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=parts)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, help="number of models, in random order (seed 0)")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    limit = options.limit or (None if options.part == "states" else 20)
    check, report = parts[options.part]
    files = find_models(options.folder)
    random.Random(0).shuffle(files)
    rows: list[dict[str, Any]] = []
    for file, row in each_alone(check, files):
        if row:
            name = str(file.relative_to(options.folder))
            print(f"{len(rows) + 1}: {name}: {row}", file=sys.stderr, flush=True)
            rows.append({"model": name} | row)
        if len(rows) == limit:
            break
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    report(rows)


def find_models(folder: Path) -> list[Path]:
    """List the files that load as a model, one for each combination of sizes."""
    found: dict[tuple[float, ...], Path] = {}
    files = sorted(file for kind in ("*.xml", "*.urdf") for file in folder.rglob(kind))
    for file, row in each_alone(sizes, files):
        if "sizes" in row:
            found.setdefault(row["sizes"], file)
    print(f"{len(files)} files, {len(found)} different models", file=sys.stderr)
    return sorted(found.values())


def sizes(file: Path) -> dict[str, Any]:
    """What makes models of a package different from each other."""
    model = load_model(file)
    counts = (model.nq, model.nv, model.nu, model.ngeom, model.nbody, model.nmesh, model.nmeshvert)
    return {"sizes": (*counts, model.opt.timestep)} if model.nv else {}


def each_alone(
    check: Callable[[Path], dict[str, Any]], files: list[Path]
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Call a function for each file in another process, because native code may end it."""
    executor = ProcessPoolExecutor(max_workers=1)
    for file in files:
        try:
            yield file, executor.submit(check, file).result()
        except TunerError as error:
            yield file, {"error": str(error)}
        except BrokenProcessPool:
            executor = ProcessPoolExecutor(max_workers=1)
            yield file, {"error": "the process died"}
    executor.shutdown()


def check_states(file: Path) -> dict[str, Any]:
    """Compare a model's prepared states with those after a whole second."""
    model = load_model(file)
    begun = time.perf_counter()
    work = prepare_states(model, NUM_ENVS, nstep=NSTEP)
    row: dict[str, Any] = {
        "seconds": time.perf_counter() - begun,
        "description": work.description,
        "diverged": work.has_diverged,
        "warnings": len(work.warnings),
        "distinct": len(np.unique(work.state, axis=0)) / NUM_ENVS,
    }
    reference = prepare_states(model, NUM_ENVS, nstep=NSTEP, budget_s=REFERENCE_S)
    with (
        captured_warnings(),
        RolloutPool(model, nbatch=NUM_ENVS, nthread=usable_cpus()) as pool,
    ):
        timed = {"ms": work, "reference_ms": reference}
        seconds: dict[str, list[float]] = {name: [] for name in timed}
        stop = time.perf_counter() + COMPARING_S
        while len(seconds["ms"]) < 2 or (time.perf_counter() < stop and len(seconds["ms"]) < 40):
            for name, states in timed.items():
                begun = time.perf_counter()
                pool.step(states.state, nstep=NSTEP, control=states.control)
                seconds[name].append(time.perf_counter() - begun)
        row |= {name: 1000 * statistics.median(each[1:]) for name, each in seconds.items()}
        row["equal"] = equal_whatever_the_chunk(pool, work.state, work.control)
        if not work.has_diverged:
            begun = time.perf_counter()
            candidates = make_candidates(NUM_ENVS, usable_cpus())
            race_chunk_sizes(
                pool,
                work.state,
                NSTEP,
                candidates,
                control=work.control,
                post_step_forward_sensor=False,
                time_budget_s=1.0,
            )
            taken = row["seconds"] + time.perf_counter() - begun
            row["seconds_beyond"] = taken - 1.0 - max(seconds["ms"])
    return row | {
        "contacts": contacts(model, work.state),
        "reference_contacts": contacts(model, reference.state),
        "reference_complete": "slow" not in reference.description,
    }


def equal_whatever_the_chunk(pool: RolloutPool, state: Any, control: Any) -> bool:
    """Step 20 times with the default, 1 and 7 environments a work item, and compare."""
    states = dict.fromkeys((None, 1, 7), state)
    stop = time.perf_counter() + COMPARING_S
    for _ in range(20):
        for chunk_size in states:
            states[chunk_size] = pool.step(
                states[chunk_size], nstep=NSTEP, control=control, chunk_size=chunk_size
            )
        if not all(np.array_equal(states[None], each, equal_nan=True) for each in states.values()):
            return False
        if time.perf_counter() > stop:
            break
    return True


def contacts(model: Any, state: Any) -> float:
    """Mean number of contacts in some of the states."""
    data = mujoco.MjData(model)
    counts = []
    with captured_warnings():
        for row in state[:16]:
            mujoco.mj_setState(model, data, row, STATE)
            mujoco.mj_fwdPosition(model, data)
            counts.append(data.ncon)
    return float(np.mean(counts))


def is_light(file: Path) -> bool:
    """Whether a step of many environments is short; False where the model cannot be timed."""
    model = load_model(file)
    with captured_warnings():
        try:
            work = prepare_states(model, LIGHT_ENVS, nstep=1)
            with RolloutPool(model, nbatch=LIGHT_ENVS, nthread=usable_cpus()) as pool:
                pool.step(work.state, nstep=1, control=work.control)
                begun = time.perf_counter()
                pool.step(work.state, nstep=1, control=work.control)
                return not work.has_diverged and time.perf_counter() - begun < LIGHT_S
        except TunerError:
            return False


def tune(file: Path, database: Path, *options: str) -> int:
    """Run `tuner tune` and return its exit code: 0 decided, 3 undecided."""
    command = ["-m", "tuner", "tune", str(file), "--num-envs", str(LIGHT_ENVS), "--nstep", "1"]
    arguments = [sys.executable, *command, "--database", str(database), *options]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise TunerError(f"tuner tune failed: {done.stderr.strip()[-200:]}")
    return done.returncode


def ask(database: Path, statement: str) -> list[Any]:
    """The rows of a statement."""
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(statement).fetchall()


def check_claims(file: Path) -> dict[str, Any]:
    """Tune a light model twice, and measure what was claimed again."""
    if not is_light(file):
        return {}
    claims, checks = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(2):
            database = Path(folder) / f"{number}.db"
            tune(file, database, "--time-budget", "2")
            claims += ask(database, "SELECT chunk_size, gain, gain_low, gain_high FROM verdict")
            checks.append(measured_again(file, [claim[0] for claim in claims]))
    return {"claims": claims, "checks": checks}


def measured_again(file: Path, choices: list[int | None]) -> list[tuple[float, float]]:
    """Gain of each choice over the default, and half its 95 % interval; last the default's own.

    Paired in rounds: what counts is the median over the rounds of the logarithm of a choice's
    time over the mean of the default's two.
    """
    model = load_model(file)
    work = prepare_states(model, LIGHT_ENVS, nstep=1)
    order = [None, *choices, None]
    rng = random.Random(1)
    logs: list[list[float]] = []
    with RolloutPool(model, nbatch=LIGHT_ENVS, nthread=usable_cpus()) as pool:
        for number in range(ROUNDS + 2):
            taken = [0.0] * len(order)
            for place in rng.sample(range(len(order)), len(order)):
                begun = time.perf_counter()
                for _ in range(STEPS_TOGETHER):
                    pool.step(work.state, nstep=1, control=work.control, chunk_size=order[place])
                taken[place] = math.log(time.perf_counter() - begun)
            if number >= 2:
                logs.append(taken)
    gains = []
    for place in range(1, len(order)):
        again = place == len(order) - 1
        ratios = [
            taken[place] - (taken[0] if again else (taken[0] + taken[-1]) / 2) for taken in logs
        ]
        middle = statistics.median(ratios)
        spread = 1.4826 * statistics.median(abs(ratio - middle) for ratio in ratios)
        gains.append((1 - math.exp(middle), 1.96 * 1.2533 * spread / math.sqrt(len(ratios))))
    return gains


def report_claims(rows: list[dict[str, Any]]) -> None:
    """Print how many claims hold, how much too high they are, and what choosing twice costs."""
    claimed = held = 0
    factors, costs, same = [], [], []
    for row in rows:
        for number, (choice, gain, low, high) in enumerate(row["claims"]):
            if choice is None or not gain:
                continue
            checked, half = row["checks"][number][number]
            claimed += 1
            reach = math.hypot(half, (high - gain) if checked > gain else (gain - low))
            held += abs(checked - gain) <= reach
            factors.append(gain / checked if checked > 0 else math.inf)
        (first, _), (second, _), (again, _) = row["checks"][1]
        costs.append(abs(first - second) if row["claims"][0][0] != row["claims"][1][0] else 0.0)
        same.append(abs(again))
    print(f"models                             {len(rows)}")
    print(f"claimed gains                      {claimed}")
    print(f"inside both intervals              {held} ({held / max(claimed, 1):.0%})")
    if factors:
        print(f"claimed over checked, median       {statistics.median(factors):.2f}")
    print(f"models that chose differently      {sum(cost > 0 for cost in costs)}")
    print(
        f"choosing differently costs <= 1 %  {sum(cost <= 0.01 for cost in costs)} of {len(rows)}"
    )
    print(f"the default again, median          {statistics.median(same):.2%}")


def check_resuming(file: Path) -> dict[str, Any]:
    """Tune a light model with a tenth of a second until it is decided."""
    if not is_light(file):
        return {}
    useful = "SELECT run_id FROM sample WHERE NOT warm_up"
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "tuning.db"
        calls, undecided = 0, True
        while undecided and calls < MOST_CALLS:
            undecided = tune(file, database, "--time-budget", "0.1") == 3
            calls += 1
        [(runs, useless)] = ask(
            database, f"SELECT count(*), sum(run_id NOT IN ({useful})) FROM run"
        )
    return {"calls": calls, "decided": not undecided, "runs": runs, "useless": useless}


def report_resuming(rows: list[dict[str, Any]]) -> None:
    """Print how many calls it took."""
    print(f"models                       {len(rows)}")
    print(f"decided                      {sum(row['decided'] for row in rows)}")
    print(
        f"calls, median and most       {statistics.median(row['calls'] for row in rows):g}, "
        f"{max(row['calls'] for row in rows)}"
    )
    print(f"calls without a run          {sum(row['calls'] - row['runs'] for row in rows)}")
    print(f"runs without usable samples  {sum(row['useless'] for row in rows)}")


def report_states(rows: list[dict[str, Any]]) -> None:
    """Print what the rows of `check_states` say together."""
    failed = [row for row in rows if "error" in row]
    checked = [row for row in rows if "error" not in row]
    diverged = [row for row in checked if row["diverged"]]
    moving = [row for row in checked if not row["diverged"]]
    slow = [row for row in moving if "slow" in row["description"]]
    reached = [row for row in moving if row not in slow and row["reference_complete"]]
    ratios = [row["ms"] / row["reference_ms"] for row in reached]
    close = [ratio for ratio in ratios if 0.8 <= ratio <= 1.25]
    gentle = [r for r in moving if "scaled" in r["description"] or "without" in r["description"]]
    for what, count, of in (
        ("cannot be stepped", failed, rows),
        ("diverge whatever the controls", diverged, checked),
        ("need gentler controls", gentle, moving),
        ("warn", [row for row in checked if row["warnings"]], checked),
        ("reach the whole second", reached, moving),
        ("say that they are slow", slow, moving),
        ("step time 0.8 to 1.25 of the reference's", close, ratios),
        ("at least 9 in 10 states distinct", [r for r in moving if r["distinct"] >= 0.9], moving),
        ("equal bit for bit for every chunk", [r for r in checked if r["equal"]], checked),
    ):
        print(f"{what:42} {len(count):4} of {len(of)}")
    beyond = max(row["seconds_beyond"] for row in moving)
    print(f"{'longest preparation':42} {max(row['seconds'] for row in checked):.2f} s")
    print(f"{'preparing and racing beyond 1 s and a step':42} {beyond:.2f} s at most")
    for reason in sorted({row["error"][:120] for row in failed}):
        print(f"cannot be stepped: {reason}")


if __name__ == "__main__":
    main()
