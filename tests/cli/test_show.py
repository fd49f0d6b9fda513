"""`tuner show`: one key, its candidates and its runs; what names a key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.facts import DEVICE, MODEL_SIGNATURE, a_key
from tests.support.filled import (
    ANT,
    ARM,
    HUMANOID,
    OWN,
    QUADRUPED,
)
from tests.support.process import tuner
from tests.support.stored import (
    ALIKE,
    HERE,
    Shell,
    a_run,
    rows_of,
    store,
)
from tuner import store_cache
from tuner.records import Candidate


@pytest.fixture
def imported(database: Path) -> Path:
    """Make a database with two keys that were never measured here."""
    store_cache(
        database,
        a_key(),
        {"chunk_size": 4, "per_candidate_ms": {"None": 10, "4": 9}, "model_file": "/m/robot.xml"},
    )
    store_cache(database, a_key(nthread=4), {"chunk_size": None})
    return database


@pytest.mark.parametrize("start", [slice(None), slice(0, 9), slice(3, 9)])
def test_show_takes_the_start_of_a_key(imported: Path, start: slice) -> None:
    shown = tuner("show", a_key()[start], "--database", str(imported))
    assert shown.returncode == 0, shown.stderr
    assert a_key() in shown.stdout
    assert "robot.xml" in shown.stdout
    assert "-10.0 %" in shown.stdout
    told = json.loads(tuner("show", a_key()[start], "--json", "--database", str(imported)).stdout)
    assert told["overview"]["chunk_size"] == 4
    assert [row["chunk_size"] for row in told["candidates"]] == [None, 4]
    assert [run["state"] for run in told["runs"]] == ["imported"]


def test_an_unknown_or_ambiguous_key_says_what_there_is(imported: Path) -> None:
    unknown = tuner("show", "zzz", "--database", str(imported))
    assert (unknown.returncode, unknown.stderr.count("\n")) == (1, 1)
    assert "tuner list" in unknown.stderr
    ambiguous = tuner("show", "k1_", "--database", str(imported))
    assert (ambiguous.returncode, ambiguous.stdout) == (1, "")
    heading, *matches, line = ambiguous.stderr.splitlines()
    assert heading.split() == ["key", "model", "file", "envs", "threads", "steps"]
    assert {match.split()[0] for match in matches} == {a_key()[:24], a_key(nthread=4)[:24]}
    assert line.startswith("tuner: 2 keys match 'k1_'")


def test_show_tells_facts_verdict_candidates_and_runs(filled: Path, shell: Shell) -> None:
    shown = shell("show", QUADRUPED, "--database", filled).out
    for part in (
        str(QUADRUPED), "robots/quadruped.xml", "nq 19", "ngeom 20", "machine x86_64",
        "num_envs 1024", "bench_nsteps 4", "using 4", "environment-steps per second",
        "% faster (", "decided", str(HERE),
        "expected loss", "between runs", "2026-01-31 14:00", "environment 1: mujoco.rollout 4.0.0",
    ):  # fmt: skip
        assert part in shown, part
    [line] = [line for line in shown.splitlines() if line.lstrip().startswith("4  ")]
    assert " % to -1" in line


def test_show_in_json_has_all_there_is(filled: Path, shell: Shell) -> None:
    told = json.loads(shell("show", QUADRUPED, "--json", "--database", filled).out)
    assert told["model"] == MODEL_SIGNATURE
    assert told["device"] == DEVICE
    assert [verdict["stack"] for verdict in told["verdicts"]] == [str(HERE)]
    assert [run["occasion"] for run in told["runs"]] == ["new", "new"]
    four = told["candidates"][1]
    assert four["chunk_size"] == 4
    assert four["relative_low"] < four["relative"] < four["relative_high"] < 1
    assert 1 - four["relative"] == pytest.approx(told["overview"]["gain"])


def test_a_key_measured_with_two_stacks_has_two_verdicts(filled: Path, shell: Shell) -> None:
    other = HERE._replace(mujoco_version="5.0.0")
    run = a_run(9, ALIKE, environment=other, trigger="outdated", warm_start_key=str(ARM), pairs=24)
    store(filled, QUADRUPED, run)
    shown = shell("show", QUADRUPED, "--database", filled).out
    assert "verdict 2" in shown
    assert "environment 2: mujoco.rollout 4.0.0, mujoco 5.0.0" in shown
    assert any(line.endswith(f"2  {str(ARM)[:11]}") for line in shown.splitlines())
    [line] = [line for line in shown.splitlines() if line.lstrip().startswith("4  ")]
    assert "+" in line.split("%")[0]  # the newest stack's, which the overview shows


def test_show_says_what_each_run_chose_and_gained(filled: Path, shell: Shell) -> None:
    store(filled, QUADRUPED, a_run(6, ALIKE), a_run(7, state="failed", samples=()))
    told = json.loads(shell("show", QUADRUPED, "--json", "--database", filled).out)
    first, second, third, failed = told["runs"]
    assert first["gain_low"] < first["gain"] < first["gain_high"]
    assert first["gain"] == pytest.approx(0.149, abs=0.02)
    assert (second["flipped"], failed["flipped"], failed["gain"]) == (False, False, None)
    assert (third["gain"], third["has_choice"]) == (None, 0)
    (flips,) = rows_of(filled, "SELECT flips FROM winner_flips WHERE tuning_key = ?", QUADRUPED)
    assert flips == (sum(run["flipped"] for run in told["runs"]),)
    words = shell("show", QUADRUPED, "--database", filled).out
    assert "new, failed" in words
    assert "verdict  " in words


def test_show_marks_a_choice_that_differs_from_the_one_before(database: Path, shell: Shell) -> None:
    choices = (Candidate(4), Candidate(4), Candidate(None), Candidate(4))
    store(database, QUADRUPED, *(a_run(n, choice=c) for n, c in enumerate(choices)))
    told = json.loads(shell("show", QUADRUPED, "--json", "--database", database).out)
    assert [run["flipped"] for run in told["runs"]] == [False, False, True, True]
    words = shell("show", QUADRUPED, "--database", database).out
    assert "default!" in words
    assert "4!" in words
    assert "flipped 2 times in 4 runs that chose" in words


@pytest.mark.parametrize("key", [HUMANOID, ANT, OWN])
def test_any_key_can_be_looked_at(filled: Path, shell: Shell, key: str) -> None:
    told = shell("show", key, "--database", filled)
    assert (told.code, told.err) == (0, "")
    json.loads(shell("show", key, "--json", "--database", filled).out)


def test_a_key_without_verdict_and_runs_can_be_looked_at(filled: Path, shell: Shell) -> None:
    rows_of(filled, "DELETE FROM run")
    assert shell("show", QUADRUPED, "--database", filled).code == 0
    assert json.loads(shell("show", QUADRUPED, "--json", "--database", filled).out)
    told = shell("compare", QUADRUPED, HUMANOID, "--database", filled)
    assert told.code == 0
    assert "none" in told.out


def test_a_key_is_named_by_its_model_file(filled: Path, shell: Shell) -> None:
    for name in ("humanoid.xml", "/models/humanoid.xml", "models/humanoid.xml"):
        assert str(HUMANOID) in shell("show", name, "--database", filled).out
    told = shell("show", "quadruped.xml", "--database", filled)
    assert (told.code, told.out) == (1, "")
    assert QUADRUPED[:24] in told.err
    assert ARM[:24] in told.err
    assert "2 keys match" in told.err
    assert "no model file" in shell.refused("show", "oid.xml", "--database", filled)


def test_an_undecided_key_says_what_to_do_next(filled: Path, shell: Shell) -> None:
    shown = shell("show", ANT, "--database", filled).out
    assert "provisional" in shown
    assert "tuner tune ant.xml --num-envs 1024 --nthread 4 --nstep 4 --dtype float32 " in shown
