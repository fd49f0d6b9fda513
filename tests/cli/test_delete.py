"""`tuner delete`: says first what it deletes, and deletes with --yes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.filled import (
    ANT,
    ARM,
    HUMANOID,
    OWN,
    QUADRUPED,
)
from tests.support.stored import (
    Shell,
    a_run,
    contents,
    rows_of,
    store,
)
from tuner.store import runs


@pytest.mark.parametrize(
    ("call", "gone"),
    [
        ((QUADRUPED,), {QUADRUPED}),
        ((QUADRUPED, HUMANOID), {QUADRUPED, HUMANOID}),
        (("humanoid.xml",), {HUMANOID}),
        (("--model", "quad*"), {QUADRUPED, ARM}),
        (("--model", "quad*", "--device", "neoverse"), {ARM}),
        ((QUADRUPED, "--device", "neoverse"), set()),
        (("--older-than", "1h"), {HUMANOID, QUADRUPED, ANT, ARM}),
        (("--older-than", "1h", "--undecided"), {ANT}),
        (("--until", "2026-01-31"), {HUMANOID, QUADRUPED, ANT, ARM}),
        (("--since", "2026-02-01"), {OWN}),
        (("--older-than", "9999w"), set()),
    ],
)
def test_it_deletes_what_keys_and_filters_select(
    filled: Path, shell: Shell, call: tuple[object, ...], gone: set[str]
) -> None:
    keys = "SELECT tuning_key FROM tuning_overview"
    before = contents(filled.parent)
    planned = shell("delete", *call, "--database", filled)
    assert (planned.code, contents(filled.parent)) == (0, before)
    assert "would delete" in planned.err
    assert ("--yes" in planned.out) == bool(gone)
    all_keys = {key for (key,) in rows_of(filled, keys)}
    told = shell("delete", *call, "--yes", "--json", "--database", filled)
    assert told.code == 0, told
    found = json.loads(told.out)
    assert (found["done"], set(found["gone"])) == (True, set(map(str, gone)))
    assert {key for (key,) in rows_of(filled, keys)} == all_keys - set(map(str, gone))


def test_runs_can_be_deleted_from_a_key_that_stays(database: Path, shell: Shell) -> None:
    now = datetime.now(UTC)
    for number, age in enumerate((400, 1)):
        store(database, QUADRUPED, a_run(number, finished=now - timedelta(days=age)))
    told = shell("delete", QUADRUPED, "--older-than", "52w", "--yes", "--database", database)
    assert "deleted 1 run " in told.out
    assert "0 keys completely" in told.out
    assert rows_of(database, "SELECT runs FROM verdict") == [(1,)]


def test_a_pinned_key_stays_unless_it_is_named(filled: Path, shell: Shell) -> None:
    runs.pin(filled, str(ANT), 8, "so")
    shell("delete", "--older-than", "1h", "--yes", "--database", filled)
    left = {key for (key,) in rows_of(filled, "SELECT tuning_key FROM tuning_overview")}
    assert left == {str(ANT), OWN}
    shell("delete", ANT, "--yes", "--database", filled)
    assert rows_of(filled, "SELECT tuning_key FROM tuning_overview") == [(OWN,)]


def test_a_pinned_key_that_only_a_filter_selects_keeps_its_pin(filled: Path, shell: Shell) -> None:
    runs.pin(filled, str(ANT), 8, "so")
    told = shell("delete", "--model", "ant.xml", "--yes", "--database", filled)
    assert told.code == 0
    assert rows_of(filled, "SELECT key_digest, chunk_size FROM pin") == [(str(ANT), 8)]
    assert rows_of(filled, "SELECT count(*) FROM run WHERE model_file = 'ant.xml'") == [(0,)]


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ((), 2),
        (("--yes",), 2),
        (("",), 1),
        (("k1_zz",), 1),
        (("--older-than", "365"), 2),
        (("--older-than", "5x"), 2),
        (("--older-than", "1w", "--until", "1w"), 2),
        (("--model", ""), 2),
    ],
)
def test_a_wrong_call_deletes_nothing(
    filled: Path, shell: Shell, call: tuple[str, ...], code: int
) -> None:
    before = contents(filled.parent)
    shell.refused("delete", *call, "--yes", "--database", filled, code=code)
    assert contents(filled.parent) == before
