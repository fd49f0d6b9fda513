"""Policies: which verdicts and runs count for which environment."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.facts import a_key
from tests.support.stored import (
    HERE,
    Shell,
    a_run,
    contents,
    rows_of,
    store,
    verdicts_of,
)
from tuner.store.lookup import Answer, find_answer
from tuner.store.maintenance import check
from tuner.store.runs import (
    recompute,
)

KEY = a_key()
OTHER = a_key(num_envs=2048)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a database of two keys with a choice, one model and one device, to be copied."""
    file = tmp_path_factory.mktemp("template") / "filled.db"
    store(file, KEY, a_run(1), a_run(2))
    store(file, OTHER, a_run(3))
    return file


@pytest.fixture
def filled(database: Path, template: Path) -> Path:
    """Name a database of two keys with a choice."""
    shutil.copyfile(template, database)
    return database


@pytest.mark.parametrize(
    ("policy", "answered"),
    [
        ("exact", {"4.0.0"}),
        ("same minor", {"4.0.0", "4.0.9"}),
        ("ignore", {"4.0.0", "4.0.9", "4.1.0", "5.0.0"}),
    ],
)
def test_a_policy_changes_who_is_answered(
    filled: Path, shell: Shell, policy: str, answered: set[str]
) -> None:
    told = shell("db", "policy", "mujoco_version", policy, "--json", "--database", filled)
    assert json.loads(told.out)["mujoco_version"] == policy
    assert f"mujoco_version  {policy}\n" in shell("db", "policy", "--database", filled).out
    found = {
        version
        for version in ("4.0.0", "4.0.9", "4.1.0", "5.0.0")
        if isinstance(find_answer(filled, KEY, 1024, HERE._replace(mujoco_version=version)), Answer)
    }
    assert found == answered


def test_a_policy_changes_which_runs_a_verdict_counts(database: Path, shell: Shell) -> None:
    for number, version in enumerate(["4.0.0", "4.0.9", "4.1.0"]):
        store(database, KEY, a_run(number, environment=HERE._replace(mujoco_version=version)))
    counted = "SELECT mujoco_version, runs FROM verdict ORDER BY mujoco_version"
    for policy, runs in (
        ("same minor", [2, 2, 1]),
        ("exact", [1, 1, 1]),
        ("ignore", [3, 3, 3]),
        ("same minor", [2, 2, 1]),
    ):
        shell("db", "policy", "mujoco_version", policy, "--database", database)
        assert [row[1] for row in rows_of(database, counted)] == runs
        before = verdicts_of(database)
        recompute(database)
        assert verdicts_of(database) == before
    assert check(database) == []


def test_a_policy_that_somebody_deleted_can_be_set_again(filled: Path, shell: Shell) -> None:
    rows_of(filled, "DELETE FROM validator")
    shell("db", "policy", "pool", "ignore", "--database", filled)
    assert rows_of(filled, "SELECT * FROM validator") == [("pool", "ignore")]


@pytest.mark.parametrize("words", [("pool",), ("pool", "lax"), ("colour", "exact")])
def test_a_policy_that_is_none_is_refused(
    filled: Path, shell: Shell, words: tuple[str, ...]
) -> None:
    before = filled.read_bytes()
    shell.refused("db", "policy", *words, "--database", filled, code=2)
    assert filled.read_bytes() == before


def test_showing_the_policies_changes_nothing(filled: Path, shell: Shell) -> None:
    before = contents(filled.parent)
    assert shell("db", "policy", "--database", filled).out.count("\n") == 5
    assert contents(filled.parent) == before
