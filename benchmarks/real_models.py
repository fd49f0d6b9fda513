"""Checks on many real models what is prepared, measured and claimed.

    python3 -m venv zoo
    zoo/bin/pip install mujoco dm_control gymnasium robosuite gymnasium-robotics metaworld myosuite
    python -m benchmarks.real_models states zoo

Every MJCF and URDF file below the folder that loads is a model; of those with equal sizes the
first is taken. Nothing but the files is used, so the packages may pin what they like.

`states`: seconds of preparing; contacts and the time of a step, against those of states that
were simulated for the whole second; distinct states; models that diverge; whether a pool gives
the same states, bit for bit, for different chunk sizes.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from tuner.device import usable_cpus
from tuner.errors import TunerError
from tuner.model_file import captured_warnings, load_model
from tuner.pools import STATE, RolloutPool
from tuner.states import prepare_states

NUM_ENVS = 64
NSTEP = 5
# Preparing the states to compare with may take so many seconds.
REFERENCE_S = 60.0
# In a slow model a bit-for-bit comparison steps for no longer than this.
COMPARING_S = 5.0


def main() -> None:
    """Check the models one after another, each in a process that may die."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["states"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, help="models to check, drawn at random (seed 0)")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    files = find_models(options.folder)
    if options.limit:
        files = sorted(random.Random(0).sample(files, min(options.limit, len(files))))
    rows = []
    for number, (file, row) in enumerate(each_alone(check_states, files), 1):
        name = str(file.relative_to(options.folder))
        print(f"{number}/{len(files)} {name}: {row}", file=sys.stderr, flush=True)
        rows.append({"model": name} | row)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    report_states(rows)


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
    row = {
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
    print(f"{'longest preparation':42} {max(row['seconds'] for row in checked):.2f} s")
    for reason in sorted({row["error"][:120] for row in failed}):
        print(f"cannot be stepped: {reason}")


if __name__ == "__main__":
    main()
