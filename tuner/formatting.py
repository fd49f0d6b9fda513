"""Formats numbers and stored texts for people: in tables, pictures, the report and log lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from shlex import quote
from typing import Any

MOST_DIGITS = 1e4
"""Percentages from this on show only their magnitude."""


def printable(text: str) -> str:
    """Keep a stored text from moving the cursor or breaking the line."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def milliseconds(value: float | None) -> str:
    """Write a time of one step."""
    return "" if value is None else f"{value:.4g}"


def relative(value: float | None) -> str:
    """Write a time over the native default's as a difference: 0.94 is -6.0 %."""
    return "" if value is None else _per_cent(value - 1, "+")


def relative_interval(low: float | None, high: float | None) -> str:
    """Write an interval of times over the default's as differences."""
    return "" if low is None or high is None else f"{relative(low)} to {relative(high)}"


def percent(value: float | None) -> str:
    """Write a share in per cent."""
    return "" if value is None else _per_cent(value, "")


def _per_cent(share: float, sign: str) -> str:
    """Write a share: zero has no sign, and an absurd value stays short."""
    rounded = round(share * 100, 1)
    if rounded == 0:
        return "0.0 %"
    return f"{rounded:{sign}{'.1f' if abs(rounded) < MOST_DIGITS else '.0e'}} %"


def candidate_name(chunk_size: Any) -> str:
    """Name a candidate in a table."""
    return "default" if chunk_size in (None, "None") else str(chunk_size)


def interval(low: float | None, high: float | None) -> str:
    """Write the ends of an interval of shares."""
    return "" if low is None or high is None else f"{percent(low)} to {percent(high)}"


def counted(number: int, what: str) -> str:
    """Write how many there are: "1 run", "2 runs", "12,000 runs"."""
    digits = f"{number:,}" if number >= 10_000 else str(number)
    return f"{digits} {what}" + ("" if number == 1 else "s")


def minute(moment: str | None) -> str:
    """Write a stored time to the minute."""
    return (moment or "")[:16].replace("T", " ")


def number(value: float | None, digits: int = 2) -> str:
    """Write a number that may be unknown."""
    return "" if value is None else f"{value:.{digits}f}"


def in_use(chunk_size: int | None, decided: bool, pinned: bool = False) -> str:
    """Say what a job uses now: "using 58, provisional" or "using the default"."""
    name = "the default" if chunk_size is None else str(chunk_size)
    return f"using {name}" + (", pinned" if pinned else "" if decided else ", provisional")


def steps_per_second(milliseconds: float | None, num_envs: Any, bench_nsteps: Any) -> str:
    """Write the environment-steps per second of a step that takes so many milliseconds."""
    if not milliseconds or not num_envs or not bench_nsteps:
        return ""
    return f"{num_envs * bench_nsteps / milliseconds * 1e3:,.0f} environment-steps per second"


def short_paths(paths: Iterable[str | None]) -> dict[str | None, str]:
    """Shorten paths to their file names, with as many folders as tell different files apart."""
    parts = {path: PurePosixPath(path or "").parts for path in paths}
    ends = Counter(mine[-k:] for mine in set(parts.values()) for k in range(1, len(mine) + 1))
    names = {}
    for path, mine in parts.items():
        tails = [mine[-k:] for k in range(1, len(mine) + 1)]
        unique = next((tail for tail in tails if ends[tail] == 1), mine)
        names[path] = str(PurePosixPath(*unique)) if mine else ""
    return names


POOL_NAMES = {"mujoco.rollout": "rollout", "mujoco_uni.BatchEnvPool": "batch-env"}
"""The pools that `tuner tune --pool` makes, by the identity that is stored."""


def tune_command(facts: Mapping[str, Any]) -> str | None:
    """Write the command that measures a key on, or None if its facts are not known.

    Args:
        facts: The run parameters, and model_file and pool if they are known.
    """
    pool = POOL_NAMES.get(facts.get("pool") or "mujoco.rollout")
    if not facts.get("model_file") or not facts["num_envs"] or pool is None:
        return None
    return (
        f"tuner tune {quote(facts['model_file'])} --num-envs {facts['num_envs']} "
        f"--nthread {facts['nthread']} --nstep {facts['bench_nsteps']}"
        + (" --dtype float32" if facts["dtype"] == "float32" else "")
        + (" --post-step-forward-sensor" if facts["post_step_forward_sensor"] else "")
        + ("" if pool == "rollout" else f" --pool {pool}")
        + " --until-decided --max-seconds 600"
    )


WHY = {
    "budget": "the time budget was too short to decide",
    "noise": "the machine is too noisy to decide",
    "too few": "too few timings to decide",
    "contradiction": "its runs contradict each other",
    "tie": "a tie: no more time is spent on this key",
}
"""By a verdict's reason."""


def describe_choice(facts: Mapping[str, Any]) -> str:
    """Say what a job uses now, what it gains and how fast it is.

    Args:
        facts: The fields of an answer, and num_envs and bench_nsteps.
    """
    chunk_size, because = facts["chunk_size"], facts["pinned_because"]
    words = in_use(chunk_size, bool(facts["decided"]), because is not None)
    if because is not None:
        words += f" ({because})"
    elif chunk_size is not None and facts["gain"] is not None:
        ends = interval(facts["gain_low"], facts["gain_high"])
        words += f", {percent(facts['gain'])} faster" + (f" ({ends})" if ends else "")
    milliseconds = facts["per_candidate_ms"].get(str(chunk_size))
    speed = steps_per_second(milliseconds, facts["num_envs"], facts["bench_nsteps"])
    return words + (f", {speed}" if speed else "")


def describe_answer(facts: Mapping[str, Any]) -> str:
    """Say what a job uses now, and if it is undecided why, and the next step.

    Args:
        facts: The fields of an answer and of its workload, and model_file and pool if known.
    """
    words = describe_choice(facts)
    if facts["reason"] in WHY and facts["pinned_because"] is None:
        words += f"; {WHY[facts['reason']]}"
    if not facts["decided"]:
        command = tune_command(facts) or "measure again, with a larger time_budget_s"
        words += f"; next: {command}"
    return words
