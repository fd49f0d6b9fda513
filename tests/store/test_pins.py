"""Pins: a key answers what a person set, everywhere."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.facts import SleepingPool, a_key
from tests.support.resolving import NTHREAD, NUM_ENVS, its_key, resolve
from tests.support.stored import ALIKE, HERE, Shell, a_run, rows_of, store
from tuner import load_cache, store_cache
from tuner.environment import Environment
from tuner.errors import ArgumentError
from tuner.store.lookup import Answer, Miss, find_answer
from tuner.store.maintenance import check
from tuner.store.runs import (
    pin,
    recompute,
    unpin,
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


def choice_of(database: Path, key: str = KEY, here: Environment = HERE) -> int | None:
    """Look a key up that has an answer."""
    found = find_answer(database, key, 1024, here)
    assert isinstance(found, Answer), found
    return found.chunk_size


@pytest.mark.parametrize(("text", "chunk"), [("32", 32), ("default", None), ("1024", 1024)])
def test_a_pinned_key_answers_the_pin_everywhere_whatever_is_measured(
    filled: Path, shell: Shell, text: str, chunk: int | None
) -> None:
    told = shell("pin", KEY[:20], text, "--reason", " its node\n is shared ", "--database", filled)
    assert (told.code, told.err) == (0, "")
    for number in (5, 6):
        answer = find_answer(filled, KEY, 1024, HERE)
        assert isinstance(answer, Answer)
        assert (answer.chunk_size, answer.decided) == (chunk, True)
        assert answer.pinned_because == "its node is shared"
        assert load_cache(filled)[KEY]["chunk_size"] == chunk
        [row] = [
            row
            for row in json.loads(shell("list", "--json", "--database", filled).out)
            if row["tuning_key"] == KEY
        ]
        assert (row["chunk_size"], row["pinned_because"]) == (chunk, "its node is shared")
        assert "pinned" in shell("list", "--database", filled).out
        shown = shell("show", KEY, "--database", filled).out
        assert "its node is shared" in shown
        assert re.search(rf"^choice +using .*{text}, pinned", shown, re.M)
        store(filled, KEY, a_run(number, ALIKE))
        recompute(filled)
    assert choice_of(filled, OTHER) == 4
    assert check(filled) == []


def test_a_job_is_answered_with_the_pin_and_told_why(
    database: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store_cache(database, its_key(), {"chunk_size": 7})
    pin(database, its_key(), 3, "a test says so")
    pool = SleepingPool(NUM_ENVS, NTHREAD)
    assert resolve(pool, database) == 3
    assert pool.chunks == []
    pin(database, its_key(), None, "another test says so")
    assert resolve(pool, database) is None
    assert unpin(database, its_key())
    assert resolve(pool, database) == 7
    assert pool.chunks == []


def test_pinning_again_replaces_the_pin_and_unpinning_ends_it(filled: Path, shell: Shell) -> None:
    for chunk in (8, 16):
        shell("pin", KEY, chunk, "--reason", "so", "--database", filled)
        assert choice_of(filled) == chunk
    told = shell("unpin", KEY[3:12], "--database", filled)
    assert (told.code, choice_of(filled)) == (0, 4)
    assert "not pinned" in shell.refused("unpin", KEY, "--database", filled)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("1025", 1),
        (str(2**63 - 1), 1),
        ("0", 2),
        (str(2**63), 2),
        ("9" * 5000, 2),
        ("4.0", 2),
        ("٤", 2),
        ("None", 2),
        ("", 2),
        (" 4", 2),
    ],
)
def test_a_pin_that_no_pool_could_take_is_refused(
    filled: Path, shell: Shell, text: str, code: int
) -> None:
    before = filled.read_bytes()
    shell.refused("pin", KEY, text, "--reason", "so", "--database", filled, code=code)
    assert filled.read_bytes() == before


@pytest.mark.parametrize("chunk", [0, -1, True, 1.5, 1025])
def test_a_program_cannot_pin_what_no_pool_could_take_either(filled: Path, chunk: Any) -> None:
    with pytest.raises(ArgumentError, match="chunk_size"):
        pin(filled, KEY, chunk, "so")
    with pytest.raises(ArgumentError, match="no key"):
        pin(filled, "k1_gone", 4, "so")
    assert rows_of(filled, "SELECT * FROM pin") == []


def test_a_pin_needs_a_reason_and_a_key(filled: Path, shell: Shell) -> None:
    shell.refused("pin", KEY, "4", "--reason", " \n", "--database", filled, code=2)
    shell.refused("pin", KEY, "4", "--database", filled, code=2)
    assert "no key" in shell.refused("pin", "zz", "4", "--reason", "so", "--database", filled)
    for call in (("pin", "k1_", "4", "--reason", "so"), ("unpin", "k1_")):
        told = shell(*call, "--database", filled)
        assert told.code == 1
        assert "2 keys" in told.err


def test_any_reason_is_kept_and_none_moves_the_cursor(filled: Path, shell: Shell) -> None:
    pin(filled, KEY, 8, "\udcff \x1b[31m \0 ü")
    assert check(filled) == []
    shown = shell("show", KEY, "--database", filled).out
    assert "ü" in shown
    assert "\x1b" not in shown
    assert "\0" not in shown


def test_a_pinned_key_without_any_verdict_answers_everywhere_too(
    database: Path, shell: Shell
) -> None:
    store(database, KEY, a_run(1, state="failed", samples=()))
    assert load_cache(database) == {}
    pin(database, KEY, 16, "so")
    assert choice_of(database) == 16
    assert load_cache(database) == {KEY: {"chunk_size": 16}}
    assert "16" in shell("list", "--database", database).out
    assert shell("show", KEY, "--database", database).code == 0


def test_a_pin_that_turns_out_too_large_gives_way(database: Path) -> None:
    digest = str(its_key())
    store_cache(database, digest, {"chunk_size": 5000})
    pin(database, digest, 5000, "nobody knew how large the pool is")
    store_cache(database, its_key(), {"chunk_size": 7})  # now its facts are known
    assert rows_of(database, "SELECT * FROM pin") == []
    assert resolve(None, database) == 7


def test_a_pin_that_somebody_wrote_wrong_by_hand_does_not_make_every_job_measure(
    database: Path,
) -> None:
    store_cache(database, its_key(), {"chunk_size": 7})
    rows_of(database, "INSERT INTO pin SELECT digest, 5000, 'x', '2026-01-31T12:00:00Z' "
            "FROM tuning_key")  # fmt: skip
    assert resolve(None, database) == 7
    rows_of(database, "DELETE FROM verdict")
    found = find_answer(database, its_key(), NUM_ENVS)
    assert isinstance(found, Miss)
    assert "pinned chunk_size 5000" in found.reason
