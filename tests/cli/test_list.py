"""`tuner list` and its filters."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.facts import a_key
from tests.support.filled import (
    ANT,
    ARM,
    HUMANOID,
    OWN,
    QUADRUPED,
    compared,
)
from tests.support.process import tuner
from tests.support.stored import (
    ALIKE,
    Shell,
    a_run,
    store,
)
from tuner import store_cache
from tuner.formatting import short_paths
from tuner.store import runs
from tuner.store.migrate import upgrade
from tuner.workload import CacheKey


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


def test_list_shows_a_line_per_key(imported: Path) -> None:
    listed = tuner("list", "--database", str(imported))
    lines = listed.stdout.splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
    assert {line.split()[0] for line in lines[1:]} == {a_key()[:11], a_key(nthread=4)[:11]}
    rows = json.loads(tuner("list", "--json", "--database", str(imported)).stdout)
    assert {row["tuning_key"] for row in rows} == {a_key(), a_key(nthread=4)}
    assert {row["chunk_size"] for row in rows} == {4, None}


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ((), {HUMANOID, QUADRUPED, ANT, ARM, OWN}),
        (("--model", "quad*"), {QUADRUPED, ARM}),
        (("--model", "quadruped.xml"), {QUADRUPED, ARM}),
        (("--model", "robots/*"), {QUADRUPED, ARM}),
        (("--model", "*.xml"), {HUMANOID, QUADRUPED, ANT, ARM}),
        (("--model", "?nt.xml"), {ANT}),
        (("--model", "nt.xml"), set()),
        (("--model", "models"), set()),
        (("--device", "neoverse"), {ARM}),
        (("--device", "X86"), {HUMANOID, QUADRUPED, ANT}),
        (("--device", "%"), set()),
        (("--num-envs", 4096), {HUMANOID}),
        (("--num-envs", 10**30), set()),
        (("--min-gain", 30), {HUMANOID, ARM}),
        (("--min-gain", 10), {HUMANOID, QUADRUPED, ARM}),
        (("--min-gain", 99), set()),
        (("--decided",), {HUMANOID, QUADRUPED, ARM, OWN}),
        (("--undecided",), {ANT}),
        (("--since", "2026-01-31"), {HUMANOID, QUADRUPED, ANT, ARM, OWN}),
        (("--since", "2026-02-01"), {OWN}),
        (("--since", "1h"), {OWN}),
        (("--since", "99999999999999w"), {HUMANOID, QUADRUPED, ANT, ARM, OWN}),
        (("--until", "2026-01-30"), set()),
        (("--until", "2026-01-31"), {HUMANOID, QUADRUPED, ANT, ARM}),
        (("--until", "1h"), {HUMANOID, QUADRUPED, ANT, ARM}),
        (("--until", "9999-12-31"), {HUMANOID, QUADRUPED, ANT, ARM, OWN}),
        (("--until", "99999999999999w"), set()),
        (("--since", "2026-02-01", "--until", "2026-01-31"), set()),
        (("--key", QUADRUPED[:9]), {QUADRUPED}),
        (("--key", QUADRUPED[3:9]), {QUADRUPED}),
        (("--key", "a key"), {OWN}),
        (("--model", "quad*", "--min-gain", 30, "--decided"), {ARM}),
        (("--model", "'; drop table run; --"), set()),
    ],
)
def test_a_filter_keeps_the_keys_it_names(
    listed: Callable[..., list[str]], options: tuple[object, ...], keys: set[CacheKey]
) -> None:
    assert set(listed(*options)) == {str(key) for key in keys}


def test_a_database_without_keys_is_a_list_without_lines(database: Path, shell: Shell) -> None:
    upgrade(database)
    told = shell("list", "--database", database)
    assert (told.out.splitlines()[1:], told.err) == ([], "")
    assert shell("list", "--json", "--database", database).out == "[]\n"


def test_an_age_counts_from_now(database: Path, shell: Shell) -> None:
    now = datetime.now(UTC)
    store(database, QUADRUPED, a_run(1, finished=now - timedelta(days=8)))
    for age, count in (("7d", 0), ("1w", 0), ("9d", 1), ("2w", 1), ("200h", 1), ("190h", 0)):
        told = shell("list", "--since", age, "--json", "--database", database)
        assert len(json.loads(told.out)) == count, age


@pytest.mark.parametrize(
    ("order", "first", "last"),
    [
        ("measured", OWN, HUMANOID),
        ("gain", HUMANOID, OWN),
        ("envs", None, OWN),
        ("model", ANT, OWN),
        ("key", OWN, None),
    ],
)
def test_keys_come_in_the_order_asked_for(
    listed: Callable[..., list[str]], order: str, first: str | None, last: str | None
) -> None:
    found = listed("--sort", order)
    backwards = listed("--sort", order, "--reverse")
    assert sorted(found) == sorted(backwards)
    if first is not None:
        assert found[0] in ((first, str(ARM)) if order == "gain" else (first,))
    if last is not None:
        assert found[-1] == last
    # what has no value is last both ways
    unknown = order in ("gain", "envs", "model")
    assert (backwards[-1] == OWN) if unknown else (backwards[0] == found[-1])


def test_a_pinned_key_has_no_measured_gain_and_is_decided(
    filled: Path, listed: Callable[..., list[str]]
) -> None:
    runs.pin(filled, str(ANT), 8, "so")
    runs.pin(filled, str(HUMANOID), 8, "so")
    assert listed("--undecided") == []
    assert listed("--min-gain", 30) == [str(ARM)]
    assert listed("--sort", "gain")[0] == str(ARM)


@pytest.mark.parametrize(
    "options",
    [
        ("--since", "yesterday"),
        ("--since", ""),
        ("--since", "-3d"),
        ("--since", "3"),
        ("--since", "5x"),
        ("--until", "5x"),
        ("--since", "2026-02-30"),
        ("--since", "9" * 5000 + "d"),
        ("--until", "tomorrow"),
        ("--until", ""),
        ("--key", ""),
        ("--model", ""),
        ("--device", ""),
        ("--min-gain", "nan"),
        ("--min-gain", "-1"),
        ("--num-envs", "0"),
        ("--sort", "colour"),
    ],
)
def test_a_wrong_filter_is_a_wrong_call(
    filled: Path, shell: Shell, options: tuple[str, ...]
) -> None:
    assert options[0] in shell.refused("list", *options, "--database", filled, code=2)


@pytest.mark.parametrize(
    "options",
    [
        ("--model", "quad*"),
        ("--model", "robots/*"),
        ("--device", "X86"),
        ("--num-envs", 1024),
        ("--min-gain", 5),
        ("--decided",),
        ("--undecided",),
        ("--key", "k1_"),
        ("--since", "2026-01-31", "--device", "86"),
        ("--until", "2026-02-01", "--num-envs", 1024, "--decided"),
        ("--since", "1h"),
        ("--until", "2025-01-31"),
    ],
)
def test_a_filter_means_the_same_keys_to_every_command(
    filled: Path, listed: Callable[..., list[str]], shell: Shell, options: tuple[object, ...]
) -> None:
    runs.pin(filled, str(ANT), 8, "so")
    store(filled, a_key(num_envs=77), a_run(6, ALIKE, model_file="quad.xml", pairs=1))
    store(filled, a_key(num_envs=77), a_run(7, ALIKE, model_file="renamed.xml", pairs=1))
    keys = set(listed(*options))
    exported = shell(
        "export", "--what", "runs", "--format", "jsonl", *options, "--database", filled
    )
    rows = [json.loads(line) for line in exported.out.splitlines()]
    assert {row["tuning_key"] for row in rows} == keys
    said = shell(
        "export", "--what", "verdicts", "--format", "jsonl", *options, "--database", filled
    )
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert {row["tuning_key"] for row in rows} == keys
    if len(keys) > 1:
        assert {row["tuning_key"] for row in compared(shell, filled, *options)["keys"]} == keys
    else:
        assert "filters select" in shell.refused("compare", *options, "--database", filled)


def test_models_of_one_name_and_steps_per_call_are_told_apart(database: Path, shell: Shell) -> None:
    for place, (folder, steps) in enumerate((("a", 4), ("b", 4), ("a", 5))):
        key = a_key(num_envs=64, bench_nsteps=steps, nthread=2 + (folder == "b"))
        store(database, key, a_run(place, model_file=f"/models/{folder}/robot.xml"))
    lines = shell("list", "--sort", "model", "--database", database).out.splitlines()
    assert "steps" in lines[0]
    assert sum("a/robot.xml" in line for line in lines) == 2
    assert sum("b/robot.xml" in line for line in lines) == 1
    one = shell("list", "--key", a_key(num_envs=64, nthread=3), "--database", database).out
    assert "steps" not in one
    assert "/robot.xml" not in one


def test_a_path_is_as_long_as_it_must_be() -> None:
    paths = ["/m/a/robot.xml", "/n/a/robot.xml", "b/robot.xml", "ant.xml", None]
    assert list(short_paths(paths).values()) == [
        "m/a/robot.xml", "n/a/robot.xml", "b/robot.xml", "ant.xml", "",
    ]  # fmt: skip
