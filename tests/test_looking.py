"""What a database holds, as people look at it: lists, one key, its history, keys side by side."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.facts import DEVICE, MODEL_SIGNATURE, a_key
from tests.support.stored import ALIKE, HERE, Shell, a_run, contents, rows_of, store
from tuner import store_cache
from tuner.cli.tables import Column, percent, print_table, relative, width
from tuner.records import Candidate
from tuner.store import maintenance as upkeep
from tuner.store.migrate import upgrade
from tuner.workload import CacheKey

WIDE: dict[int | None, float] = {None: 9.4, 8: 9.0, 16: 6.0, 32: 8.0}
"""16 wins by a third."""
HUMANOID, QUADRUPED, ANT = a_key(num_envs=4096), a_key(), a_key(nthread=4)
ARM = a_key(device=DEVICE | {"machine": "aarch64", "cpu_model": "Neoverse N1", "usable_cpus": 4})
OWN = "a key of somebody's own"
REACHES = "\x1b[31m\x07\x1b]0;title\x07 \r\n\t"
"""What would move a cursor, ring a bell and name a window."""


@pytest.fixture
def filled(database: Path) -> Path:
    """Make a database with a key of each kind."""
    store(database, HUMANOID, a_run(1, WIDE, pairs=24, model_file="/models/humanoid.xml"))
    for number in (2, 3):
        run = a_run(number, model_file="robots/quadruped.xml", choice=Candidate(4))
        store(database, QUADRUPED, run)
    store(database, ANT, a_run(4, ALIKE, pairs=1, state="cut short", model_file="ant.xml"))
    store(database, ARM, a_run(5, WIDE, pairs=24, model_file="robots/quadruped.xml"))
    store_cache(database, OWN, {"chunk_size": 16})
    return database


@pytest.fixture
def listed(filled: Path, shell: Shell) -> Callable[..., list[str]]:
    """List keys in JSON and as a table, which must be the same ones in the same order."""

    def keys(*options: object) -> list[str]:
        told = shell("list", *options, "--json", "--database", filled)
        assert told.code == 0, told
        found = [row["tuning_key"] for row in json.loads(told.out)]
        table = shell("list", *options, "--database", filled)
        assert [line[:11] for line in table.out.splitlines()[1:]] == [key[:11] for key in found]
        assert bool(found) != ("no key is like that" in table.err)
        return found

    return keys


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
    upkeep.pin(filled, str(ANT), 8, "so")
    upkeep.pin(filled, str(HUMANOID), 8, "so")
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
    upkeep.pin(filled, str(ANT), 8, "so")
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
    pruned = shell("db", "prune", "--older-than", 0, *options, "--json", "--database", filled)
    assert set(json.loads(pruned.out)["keys"]) == keys
    if len(keys) > 1:
        assert {row["tuning_key"] for row in compared(shell, filled, *options)["keys"]} == keys
    else:
        assert "filters mean" in shell.refused("compare", *options, "--database", filled)


def test_pruning_takes_only_what_the_filters_mean(filled: Path, shell: Shell) -> None:
    for rule in (("--older-than", 0), ("--keep-runs", 1), ("--max-size", 0)):
        told = shell("db", "prune", *rule, "--model", "quad*", "--json", "--database", filled)
        found = json.loads(told.out)
        assert found["run_ids"]
        assert set(found["keys"]) <= {str(QUADRUPED), str(ARM)}
    before = len(rows_of(filled, "SELECT 1 FROM run"))
    shell("db", "prune", "--max-size", 0, "--num-envs", 4096, "--yes", "--database", filled)
    assert len(rows_of(filled, "SELECT 1 FROM run")) == before - 1
    assert "--older-than" in shell.refused(
        "db", "prune", "--model", "quad*", "--yes", "--database", filled, code=2
    )


# --- one key --------------------------------------------------------------------------------


def test_show_tells_facts_verdict_candidates_and_runs(filled: Path, shell: Shell) -> None:
    shown = shell("show", QUADRUPED, "--database", filled).out
    for part in (
        str(QUADRUPED), "robots/quadruped.xml", "nq 19", "ngeom 20", "machine x86_64",
        "num_envs 1024", "bench_nsteps 4", "% faster than the default (", "decided", str(HERE),
        "expected loss", "between runs", "2026-01-31 14:00", "stack 1: mujoco.rollout 4.0.0",
    ):  # fmt: skip
        assert part in shown, part
    [line] = [line for line in shown.splitlines() if line.lstrip().startswith("4  ")]
    assert "#|" in line
    assert " % to -1" in line
    [slow] = [line for line in shown.splitlines() if line.lstrip().startswith("32  ")]
    assert slow.endswith("|#####")


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
    assert "stack 2: mujoco.rollout 4.0.0, mujoco 5.0.0" in shown
    assert f"2  {str(ARM)[:11]}" in shown
    [line] = [line for line in shown.splitlines() if line.lstrip().startswith("4  ")]
    assert "+" in line.split("%")[0]  # the newest stack's, which the overview shows


def test_history_says_what_each_run_says_of_the_verdict(filled: Path, shell: Shell) -> None:
    store(filled, QUADRUPED, a_run(6, ALIKE), a_run(7, state="failed", samples=()))
    told = json.loads(shell("history", QUADRUPED, "--json", "--database", filled).out)
    first, second, third, failed = told["runs"]
    assert first["gain_low"] < first["gain"] < first["gain_high"]
    assert first["gain"] == pytest.approx(0.149, abs=0.02)
    assert (second["flipped"], failed["flipped"], failed["gain"]) == (False, False, None)
    assert (third["gain"], third["has_choice"]) == (None, 0)
    assert third["gain_of_verdict"] is not None
    (flips,) = rows_of(filled, "SELECT flips FROM winner_flips WHERE tuning_key = ?", QUADRUPED)
    assert flips == (sum(run["flipped"] for run in told["runs"]),)
    words = shell("history", QUADRUPED, "--database", filled).out
    assert "new, failed" in words
    assert "verdict  " in words


def test_history_marks_a_choice_that_differs_from_the_one_before(
    database: Path, shell: Shell
) -> None:
    choices = (Candidate(4), Candidate(4), Candidate(None), Candidate(4))
    store(database, QUADRUPED, *(a_run(n, choice=c) for n, c in enumerate(choices)))
    told = json.loads(shell("history", QUADRUPED, "--json", "--database", database).out)
    assert [run["flipped"] for run in told["runs"]] == [False, False, True, True]
    words = shell("history", QUADRUPED, "--database", database).out
    assert "default!" in words
    assert "4!" in words
    assert "2 in 4 runs that chose" in words


@pytest.mark.parametrize("command", ["show", "history"])
@pytest.mark.parametrize("key", [HUMANOID, ANT, OWN])
def test_any_key_can_be_looked_at(filled: Path, shell: Shell, command: str, key: str) -> None:
    told = shell(command, key, "--database", filled)
    assert (told.code, told.err) == (0, "")
    json.loads(shell(command, key, "--json", "--database", filled).out)


def test_a_key_without_verdict_and_runs_can_be_looked_at(filled: Path, shell: Shell) -> None:
    rows_of(filled, "DELETE FROM run")
    for command in ("show", "history"):
        assert shell(command, QUADRUPED, "--database", filled).code == 0
        assert json.loads(shell(command, QUADRUPED, "--json", "--database", filled).out)
    told = shell("compare", QUADRUPED, HUMANOID, "--database", filled)
    assert told.code == 0
    assert "none" in told.out


# --- side by side ---------------------------------------------------------------------------


def compared(shell: Shell, database: Path, *arguments: object) -> dict[str, Any]:
    told = shell("compare", *arguments, "--json", "--database", database)
    assert told.code == 0, told
    found: dict[str, Any] = json.loads(told.out)
    return found


@pytest.mark.parametrize(
    ("by", "keys"),
    [
        ((), {QUADRUPED, ARM}),
        (("--by", "device"), {QUADRUPED, ARM}),
        (("--by", "num-envs"), {QUADRUPED, HUMANOID}),
        (("--by", "nthread"), {QUADRUPED, ANT}),
    ],
)
def test_one_key_is_compared_with_those_that_differ_in_one_thing(
    filled: Path, shell: Shell, by: tuple[str, ...], keys: set[CacheKey]
) -> None:
    other_model = a_key(model_sig=MODEL_SIGNATURE | {"nq": 1})
    store(filled, other_model, a_run(8))
    found = compared(shell, filled, QUADRUPED, *by)
    assert {row["tuning_key"] for row in found["keys"]} == {str(key) for key in keys}


def test_a_device_is_compared_whatever_its_threads_are(filled: Path, shell: Shell) -> None:
    many = a_key(device=DEVICE | {"cpu_count": 64}, nthread=64)
    store(filled, many, a_run(8, ALIKE, pairs=24))
    store(filled, a_key(device=DEVICE | {"cpu_count": 64}, num_envs=512), a_run(9))
    found = compared(shell, filled, QUADRUPED)
    assert {row["tuning_key"] for row in found["keys"]} == {QUADRUPED, ARM, many}
    costs = {(cost["tuning_key"], cost["with_choice_of"]): cost for cost in found["costs"]}
    # what is carried over is the chunk_size itself, and what it costs is timed there
    there = costs[many, QUADRUPED]
    assert (there["chunk_size"], there["timed_chunk_size"], there["exact"]) == (4, 4, True)
    assert there["slower"] == pytest.approx(8.8 / 8.0 - 1, abs=0.03)
    # the default is a rule: 1 there, 12 here, where its own timings are what it costs
    here = costs[QUADRUPED, many]
    assert (here["chunk_size"], here["timed_chunk_size"], here["exact"]) == (None, None, True)
    assert here["slower"] == pytest.approx(9.4 / 8.0 - 1, abs=0.03)


def test_filters_leave_some_out_but_never_the_key_that_was_named(
    filled: Path, shell: Shell
) -> None:
    other = a_key(device=DEVICE | {"cpu_count": 64})
    store(filled, other, a_run(8))
    found = compared(shell, filled, QUADRUPED, "--device", "neoverse")
    assert {row["tuning_key"] for row in found["keys"]} == {QUADRUPED, ARM}


def test_more_keys_than_anybody_can_compare_are_refused(database: Path, shell: Shell) -> None:
    keys = [a_key(num_envs=number) for number in range(9, 70)]
    for key in keys:
        store_cache(database, key, {"chunk_size": 4})
    for call in (keys, [*keys[:1], "--by", "num-envs"], ["--decided"]):
        assert "61 keys" in shell.refused("compare", *call, "--database", database)
    assert len(compared(shell, database, *keys[:60])["keys"]) == 60


def test_the_cost_of_anothers_choice_is_read_from_the_own_timings(
    filled: Path, shell: Shell
) -> None:
    found = compared(shell, filled, QUADRUPED, ARM)
    assert [row["chunk_size"] for row in found["keys"]] == [4, 16]
    assert [row["chunks_per_thread"] for row in found["keys"]] == [32, 8]
    costs = {(cost["tuning_key"], cost["with_choice_of"]): cost for cost in found["costs"]}
    assert costs[QUADRUPED, QUADRUPED]["slower"] == 0
    # 16 was not timed on the first, where 8 and 32 are equally far: the smaller stands for it
    there = costs[QUADRUPED, ARM]
    assert (there["exact"], there["timed_chunk_size"]) == (False, 8)
    assert there["slower"] == pytest.approx(9.1 / 8.0 - 1, abs=0.03)
    # 4 was not timed on the second, 8 is twice as large
    assert costs[ARM, QUADRUPED]["timed_chunk_size"] == 8
    assert costs[ARM, QUADRUPED]["slower"] == pytest.approx(9.0 / 6.0 - 1, abs=0.05)
    words = shell("compare", QUADRUPED, ARM, "--database", filled).out
    assert "~+" in words
    assert "4 x Neoverse N1" in words


def test_a_choice_that_nothing_is_known_of_or_no_pool_could_take_costs_nobody_knows(
    filled: Path, shell: Shell
) -> None:
    upkeep.pin(filled, str(HUMANOID), 2048, "so")
    upkeep.pin(filled, str(ARM), 512, "so")
    found = compared(shell, filled, QUADRUPED, HUMANOID, ARM)
    costs = {(cost["tuning_key"], cost["with_choice_of"]): cost for cost in found["costs"]}
    assert costs[QUADRUPED, HUMANOID]["slower"] is None
    assert costs[QUADRUPED, ARM]["slower"] is None
    assert " - " in shell("compare", QUADRUPED, HUMANOID, ARM, "--database", filled).out


def test_what_the_default_is_anyway_costs_what_the_default_costs(
    database: Path, shell: Shell
) -> None:
    store(database, QUADRUPED, a_run(1))
    store(database, HUMANOID, a_run(2))
    upkeep.pin(database, str(HUMANOID), 12, "so")  # 1024 // (10 * 8)
    found = compared(shell, database, QUADRUPED, HUMANOID)
    [cost] = [c for c in found["costs"] if c["with_choice_of"] == HUMANOID][:1]
    assert (cost["exact"], cost["timed_chunk_size"]) == (True, None)


def test_many_keys_are_compared_in_tables_that_fit(database: Path, shell: Shell) -> None:
    for number in range(14):
        store_cache(
            database,
            a_key(num_envs=10**6 + number),
            {"chunk_size": 100_000, "per_candidate_ms": {"None": 1, "100000": 1234.5, "9": 0.01}},
        )
    told = shell("compare", a_key(num_envs=10**6), "--by", "num-envs", "--database", database)
    assert max(map(len, told.out.splitlines())) <= 80
    assert told.out.count("slower") == 3
    assert "with 14's" in told.out


def test_what_cannot_be_compared_says_what_could(filled: Path, shell: Shell) -> None:
    assert "--by" in shell.refused("compare", OWN, "--database", filled)
    assert "--by" in shell.refused("compare", ARM, "--by", "nthread", "--database", filled)
    shell.refused("compare", QUADRUPED, ARM, "--by", "device", "--database", filled, code=2)
    shell.refused("compare", "--database", filled, code=2)
    shell.refused("compare", "--by", "device", "--num-envs", 9, "--database", filled, code=2)
    shell.refused("compare", QUADRUPED, ARM, "--num-envs", 9, "--database", filled, code=2)
    assert "no key" in shell.refused("compare", "zzz", "--database", filled)


def test_one_is_counted_as_one(database: Path, shell: Shell) -> None:
    key = a_key(num_envs=1, nthread=1, bench_nsteps=1, device=DEVICE | {"cpu_count": 1})
    store(database, key, a_run(1, {None: 9.4, 1: 9.4}, choice=Candidate(None)))
    rows_of(database, "DELETE FROM sample WHERE sample_order <> 1")
    rows_of(database, "UPDATE run SET samples = 1")
    picture, page = database.with_name("a.svg"), database.with_name("a.html")
    calls: tuple[tuple[object, ...], ...] = (
        ("list",), ("show", key), ("history", key), ("plot", key, "-o", picture),
        ("report", "-o", page), ("export", "-o", database.with_name("a.csv")),
        ("db", "recompute"), ("db", "prune", "--older-than", 0), ("db", "prune", "--keep-runs", 1),
        ("db", "prune", "--older-than", 0, "--yes"),
    )  # fmt: skip
    for command in calls:
        told = shell(*command, "--database", database)
        assert told.code == 0, told
        seen = told.out + told.err
        if isinstance(made := command[-1], Path):
            seen += re.sub("<script.*?</script>", "", made.read_text("utf-8"), flags=re.S)
        one = r"\b1 (?:run|key|sample|row|timing|environment|thread|CPU|step)s?\b"
        said = re.findall(one, seen)
        assert not [words for words in said if words.endswith("s")], (command, said)
        assert said or command[0] in ("list", "history") or "--keep-runs" in command


@pytest.mark.parametrize("where", ["no/such/folder", "a file"])
def test_a_folder_that_is_missing_is_told_in_the_same_words_by_all_that_make_files(
    filled: Path, shell: Shell, where: str
) -> None:
    filled.with_name("a file").touch()
    told = set()
    for command, name in (
        (("plot", QUADRUPED, "-o"), "a.svg"),
        (("report", "-o"), "a.html"),
        (("export", "-o"), "a.csv"),
        (("export", "-o"), "a.db"),
        (("db", "backup"), "a.db"),
    ):
        file = filled.parent / where / name
        refused = shell.refused(*command, file, "--database", filled)
        told.add(refused.replace(str(file), "FILE").replace(str(file.parent), "FOLDER"))
    assert told == {
        "tuner: cannot write FILE: there is no folder FOLDER; nothing was changed: make it, or "
        "name another file\n"
    }


# --- on a terminal --------------------------------------------------------------------------

LOOKS: tuple[tuple[object, ...], ...] = (
    ("list",),
    ("show", QUADRUPED),
    ("history", QUADRUPED),
    ("compare", QUADRUPED, ARM),
    ("sql", "select * from tuning_overview"),
    ("sql", "select model_file from run_history"),
)


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: " ".join(map(str, look))[:20])
def test_no_text_of_the_database_reaches_the_terminal_as_more_than_text(
    filled: Path, shell: Shell, look: tuple[object, ...]
) -> None:
    for table, columns in (
        ("run", ("model_file", "hostname", "message", "work", "pool", "method", "near_key")),
        ("verdict", ("stack", "pool", "method")),
        ("device", ("system", "machine", "cpu_model", "other_facts")),
        ("model", ("integrator", "other_facts")),
        ("tuning_key", ("backend_type", "dtype")),
    ):
        for column in columns:
            rows_of(filled, f"UPDATE {table} SET {column} = ?", f"{column} {REACHES} 数据")
    before = contents(filled.parent)
    told = shell(*look, "--database", filled)
    assert told.code == 0, told
    assert all(letter.isprintable() for letter in told.out.replace("\n", "")), told.out
    in_json = shell(*look, "--json", "--database", filled)
    assert all(letter.isprintable() for letter in in_json.out.replace("\n", ""))
    json.loads(in_json.out)
    assert contents(filled.parent) == before


def test_a_key_that_would_move_the_cursor_does_not(database: Path, shell: Shell) -> None:
    key = f"key {REACHES}"
    store_cache(database, key, {"chunk_size": 16})
    store_cache(database, f"{key} 2", {"chunk_size": 8})
    for command in (
        ("list",), ("show", key), ("history", key), ("compare", key, f"{key} 2"), ("show", "key"),
        ("pin", key, 8, "--reason", "so"), ("unpin", key), ("forget", key, "--yes"),
    ):  # fmt: skip
        told = shell(*command, "--database", database)
        assert all(letter.isprintable() for letter in (told.out + told.err).replace("\n", ""))


@pytest.mark.parametrize("command", [("list",), ("compare", QUADRUPED, ARM), ("sql", "select 1")])
def test_looking_loads_nothing_heavy(filled: Path, command: tuple[str, ...]) -> None:
    program = (
        "import sys; from tuner.cli import main; main(sys.argv[1:], standalone_mode=False); "
        "print({'alembic', 'numpy', 'mujoco'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *command, "--database", str(filled)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "set()\n"


@pytest.mark.parametrize("look", LOOKS[:4], ids=lambda look: str(look[0]))
def test_tables_fit_eighty_columns_whatever_their_texts(
    filled: Path, shell: Shell, look: tuple[object, ...]
) -> None:
    rows_of(filled, "UPDATE run SET model_file = ?, near_key = ?", "数" * 90, "k" * 90)
    rows_of(filled, "UPDATE device SET cpu_model = ?", "a processor with a very long name " * 3)
    rows_of(filled, "UPDATE verdict SET decided = 0, reason = 'contradiction'")
    rows_of(filled, "UPDATE run SET state = 'cut short', occasion = 'outdated'")
    told = shell(*look, "--database", filled)
    lines = [line for line in told.out.splitlines() if not line.startswith(("model file", "stack"))]
    assert max(map(width, lines)) <= 80


def test_a_text_that_is_cut_shows_it_and_a_number_never_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    columns = [Column("a", yields=True), Column("number", "right")]
    print_table(columns, [("x" * 100, "7" * 30), ("数" * 50, "1")])
    lines = capsys.readouterr().out.splitlines()
    assert [width(line) for line in lines] == [80, 80, 80]
    assert lines[1] == "x" * 47 + "~  " + "7" * 30
    assert lines[2].startswith("数" * 23 + "~")
    print_table(columns, [("x" * 100, "7" * 90)])
    assert "7" * 90 in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "columns"), [("❤️⚠️", 2), ("ที่รัก", 3), ("e\u0301", 1), ("数据", 4), ("text", 4)]
)
def test_a_text_takes_as_many_columns_as_its_letters_show(text: str, columns: int) -> None:
    assert width(text) == columns


@pytest.mark.parametrize("letter", ["x", "数", "e\u0301"])
def test_a_text_of_any_length_is_cut(letter: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = letter * 200_000  # looked at anew for each letter that goes, it would take hours
    print_table([Column("a", yields=True), Column("b")], [(text, "x")])
    line = capsys.readouterr().out.splitlines()[1]
    assert line.replace("~ ", "~").startswith(letter * (76 // width(letter)) + "~")
    assert width(line) == 80


@pytest.mark.parametrize(
    ("share", "as_share", "as_ratio"),
    [
        (-0.0004, "0.0 %", "0.0 %"),
        (0.0004, "0.0 %", "0.0 %"),
        (-0.054, "-5.4 %", "-5.4 %"),
        (0.054, "5.4 %", "+5.4 %"),
        (99.5, "9950.0 %", "+9950.0 %"),
        (8e9, "8e+11 %", "+8e+11 %"),
        (-8e9, "-8e+11 %", "-8e+11 %"),
    ],
)
def test_a_share_has_no_sign_at_zero_and_few_digits_where_it_is_absurd(
    share: float, as_share: str, as_ratio: str
) -> None:
    assert (percent(share), relative(1 + share)) == (as_share, as_ratio)


def test_what_is_hardly_a_difference_has_no_bar(database: Path, shell: Shell) -> None:
    store(database, QUADRUPED, a_run(1, {None: 9.4, 4: 9.4}, pairs=48))
    shown = shell("show", QUADRUPED, "--database", database).out
    assert "#####" not in shown


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no terminals to open here")
@pytest.mark.parametrize(("no_color", "coloured"), [(None, True), ("", True), ("1", False)])
def test_colours_are_for_terminals_that_want_them(
    filled: Path, no_color: str | None, coloured: bool
) -> None:
    inside, outside = os.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    command = [sys.executable, "-m", "tuner", "show", QUADRUPED[:9], "--database", str(filled)]
    subprocess.run(
        command,
        stdout=outside,
        env=environment | ({} if no_color is None else {"NO_COLOR": no_color}),
        check=True,
    )
    os.close(outside)
    told = b""
    try:
        while part := os.read(inside, 65536):
            told += part
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(inside)
    assert (b"\x1b[" in told) == coloured
    assert b"\x1b" not in subprocess.run(command, capture_output=True, check=True).stdout
