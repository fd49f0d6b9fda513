"""`tuner compare`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.facts import DEVICE, MODEL_SIGNATURE, a_key
from tests.support.filled import (
    ANT,
    ARM,
    HUMANOID,
    OWN,
    QUADRUPED,
    compared,
)
from tests.support.stored import (
    ALIKE,
    Shell,
    a_run,
    store,
)
from tuner import store_cache
from tuner.store import runs
from tuner.workload import CacheKey


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
    runs.pin(filled, str(HUMANOID), 2048, "so")
    runs.pin(filled, str(ARM), 512, "so")
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
    runs.pin(database, str(HUMANOID), 12, "so")  # 1024 // (10 * 8)
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
    assert max(map(len, told.out.partition("\n\n")[2].splitlines())) <= 80
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


def test_the_models_are_named(filled: Path, shell: Shell) -> None:
    lines = shell("compare", QUADRUPED, HUMANOID, "--database", filled).out.splitlines()
    assert "quadruped.xml" in lines[1]
    assert "humanoid.xml" in lines[2]
