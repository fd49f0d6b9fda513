"""Why a key is answered or not, field by field, and what will happen; nothing is changed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.facts import DEVICE, MODEL, MODEL_SIGNATURE, SleepingPool, a_key
from tests.support.jobs import ROOT
from tests.support.process import QUADRUPED
from tests.support.stored import ALIKE, FASTER, HERE, Shell, a_run, contents, rows_of, store
from tuner import load_cache
from tuner.api import WILL_HAPPEN, Explanation, explain, explain_key
from tuner.cli.work import Asked, asked
from tuner.device import device_fingerprint
from tuner.environment import Environment
from tuner.errors import DatabaseError, OlderSchemaError
from tuner.records import Run
from tuner.store import runs
from tuner.store.migrate import upgrade
from tuner.workload import CacheKey, key_of

OPTIONS: dict[str, Any] = {
    "num_envs": 256, "nthread": 2, "nstep": 1, "dtype": "float64",
    "post_step_forward_sensor": False, "pool_name": "rollout",
}  # fmt: skip
CALL = ("explain", QUADRUPED, "--num-envs", 256, "--nthread", 2, "--nstep", 1)


@pytest.fixture(scope="module")
def what() -> Asked:
    """Make the work that the command line makes."""
    return asked(model_file=QUADRUPED, **OPTIONS)


def changed(key: CacheKey, **changes: Any) -> CacheKey:
    """Make the key of facts that differ in some: a None takes one out."""
    facts = key.workload
    device, model = dict(facts.device), dict(facts.model)
    for name, value in changes.items():
        if name in facts._fields:
            facts = facts._replace(**{name: value})
            continue
        group = device if name in device or name in device_fingerprint() else model
        group.pop(name, None)
        if value is not None:
            group[name] = value
    return key_of(facts._replace(device=device, model=model))


def decided(database: Path, key: str, what: Asked, number: int = 1, **changes: Any) -> None:
    """Store a run that decides for 4."""
    run = a_run(number, FASTER, **{"pairs": 24, "environment": what.here} | changes)
    verdict = store(database, key, run)
    assert verdict is not None
    assert (verdict.chunk_size, verdict.decided) == (4, True)


class Asking:
    """Asks the command line in words and in JSON, and sees to it that nothing changes."""

    def __init__(self, database: Path, shell: Shell) -> None:
        self._database = database
        self._shell = shell

    def __call__(self, *options: object) -> tuple[str, dict[str, Any]]:
        before = contents(self._database.parent)
        words = self._shell(*CALL, *options, "--database", self._database)
        told = self._shell(*CALL, *options, "--json", "--database", self._database)
        assert contents(self._database.parent) == before
        assert (words.code, words.err, told.code, told.err) == (0, "", 0, "")
        said: dict[str, Any] = json.loads(told.out)
        assert words.out.startswith(f"{said['kind']}: {said['reason']}\nkey:       {said['key']}\n")
        assert words.out.endswith(f"next:      {said['will_happen']}\n")
        assert said["will_happen"] == WILL_HAPPEN[said["kind"]]
        return words.out, said


@pytest.fixture
def ask(database: Path, shell: Shell) -> Asking:
    """Ask why."""
    return Asking(database, shell)


def test_without_a_database_it_is_a_miss_and_none_is_made(database: Path, ask: Asking) -> None:
    words, said = ask()
    assert (said["kind"], said["nearest_key"], said["differences"]) == ("miss", None, [])
    assert "no database" in words
    assert not database.exists()
    database.touch()
    assert ask()[1]["kind"] == "miss"
    upgrade(database)
    assert "no answer yet, and no decided relative is near" in ask()[0]


def test_an_answered_key_is_a_hit(database: Path, ask: Asking, what: Asked) -> None:
    decided(database, what.key, what)
    words, said = ask()
    assert (said["kind"], said["key"]) == ("hit", what.key)
    assert (said["chunk_size"], said["decided"]) == (4, True)
    assert (said["nearest_key"], said["differences"]) == (None, [])
    assert "choice:    using 4, 1" in words  # 14.9 % faster
    assert " % faster (" in words


def test_a_default_that_won_is_a_hit_too(database: Path, ask: Asking, what: Asked) -> None:
    verdict = store(database, what.key, a_run(1, ALIKE, pairs=24, environment=what.here))
    assert verdict is not None
    assert verdict.decided
    words, said = ask()
    assert (said["kind"], said["chunk_size"]) == ("hit", None)
    assert "choice:    using the default, " in words


def test_a_pinned_key_says_who_pinned_it(database: Path, ask: Asking, what: Asked) -> None:
    decided(database, what.key, what)
    runs.pin(database, what.key, 16, "its node is shared")
    words, said = ask()
    assert (said["kind"], said["chunk_size"]) == ("pinned", 16)
    assert words.startswith("pinned: it is pinned: its node is shared\n")
    rows_of(database, "UPDATE pin SET reason = 'two' || char(10) || 'lines' || char(27) || '[31m'")
    assert "two?lines?[31m" in Shell.__call__(ask._shell, *CALL, "--database", database).out


def test_an_undecided_key_is_taken_up(database: Path, ask: Asking, what: Asked) -> None:
    run = a_run(1, {None: 8.0, 4: 7.9, 8: 8.0}, pairs=1, state="cut short", environment=what.here)
    verdict = store(database, what.key, run)
    assert verdict is not None
    assert not verdict.decided
    words, said = ask()
    assert (said["kind"], said["decided"]) == ("resumed", False)
    assert f"undecided ({verdict.reason})" in words


def test_an_undecided_key_whose_steps_are_too_slow_is_a_hit(
    database: Path, ask: Asking, what: Asked
) -> None:
    slow = {None: 300.0, 4: 298.0, 8: 300.0}
    store(database, what.key, a_run(1, slow, pairs=1, state="cut short", environment=what.here))
    words, said = ask()
    assert (said["kind"], said["decided"]) == ("hit", False)
    assert "too slow to go on" in words


@pytest.mark.parametrize(
    ("changes", "field", "there"),
    [
        ({"mujoco_version": "0.1.2"}, "mujoco_version", "0.1.2"),
        ({"pool": "their.Pool", "pool_version": None}, "pool", "their.Pool"),
        ({"method": "fixed plan"}, "method", "fixed plan"),
    ],
)
def test_a_verdict_of_other_software_is_outdated_and_says_in_what(
    database: Path, ask: Asking, what: Asked, changes: dict[str, Any], field: str, there: str
) -> None:
    decided(database, what.key, what, environment=what.here._replace(**changes))
    words, said = ask()
    here = getattr(what.here, field)
    assert (said["kind"], said["nearest_key"], said["nearest_chunk_size"]) == (
        "outdated", what.key, 4,
    )  # fmt: skip
    assert said["differences"] == [{"field": field, "here": here, "there": there}]
    assert f"           {field}: {here} here, {there} there\n" in words
    assert f"{field} {there!r}, here it is {here!r}" in said["reason"]


def test_a_policy_decides_what_is_outdated(database: Path, ask: Asking, what: Asked) -> None:
    decided(database, what.key, what, environment=what.here._replace(mujoco_version="0.1.2"))
    assert ask()[1]["kind"] == "outdated"
    rows_of(database, "UPDATE validator SET policy = 'ignore'")
    assert ask()[1]["kind"] == "hit"


def test_a_row_from_before_a_field_was_known_is_adopted(
    database: Path, ask: Asking, what: Asked
) -> None:
    old = changed(what.key, cpu_model=None, cpu_quota=None, integrator=None)
    decided(database, old, what)
    words, said = ask()
    assert (said["kind"], said["nearest_key"]) == ("adopted", old)
    known = {d["field"] for d in said["differences"]}
    assert "integrator" in known
    assert known <= {"integrator", "cpu_model", "cpu_quota"}
    assert all(difference["there"] is None for difference in said["differences"])
    assert ", unknown there\n" in words.replace(" here, unknown", ", unknown")


@pytest.mark.parametrize(
    ("here", "there", "sentence"),
    [
        ({"cpu_quota": 4.0}, {"cpu_quota": 0.0}, "cpu_quota: 4 here, none there"),
        ({"cpu_quota": 2.5}, {"cpu_quota": None}, "cpu_quota: 2.5 here, unknown there"),
        ({"unequal_cores": False}, {"unequal_cores": True}, "unequal_cores: no here, yes there"),
        ({}, {"num_envs": 512}, "num_envs: 256 here, 512 there"),
        ({}, {"dtype": "float32"}, "dtype: float64 here, float32 there"),
        (
            {},
            {"post_step_forward_sensor": True},
            "post_step_forward_sensor: no here, yes there",
        ),
        ({}, {"rack": "north"}, "rack: unknown here, north there"),
        ({}, {"solver": "PGS"}, "solver: Newton here, PGS there"),
        ({"cpu_model": "A"}, {"cpu_model": "B"}, "cpu_model: A here, B there"),
    ],
)
def test_a_near_relative_says_field_by_field_how_it_differs(
    database: Path,
    ask: Asking,
    what: Asked,
    monkeypatch: pytest.MonkeyPatch,
    here: dict[str, Any],
    there: dict[str, Any],
    sentence: str,
) -> None:
    mine = changed(what.key, **here)
    theirs = changed(mine, **there) if "rack" not in there else key_of(
        mine.workload._replace(device=mine.workload.device | there)
    )  # fmt: skip
    monkeypatch.setattr(sys.modules["tuner.cli.tune"], "asked", lambda **_: what._replace(key=mine))
    decided(database, theirs, what)
    words, said = ask()
    kind = "adopted" if sentence.endswith("unknown there") else "near"
    assert (said["kind"], said["key"], said["nearest_key"]) == (kind, mine, theirs)
    assert f"           {sentence}\n" in words
    assert len(said["differences"]) == 1
    assert f"similar:   {theirs}, where 4 won, " in words


def test_the_nearest_of_several_is_told_and_of_all_its_differences_none_is_left_out(
    database: Path, ask: Asking, what: Asked
) -> None:
    far = changed(what.key, num_envs=512, bench_nsteps=9, dtype="float32")
    near = changed(what.key, num_envs=512, bench_nsteps=9)
    decided(database, far, what, number=1)
    decided(database, near, what, number=2, environment=what.here._replace(mujoco_version="0.1.2"))
    said = ask()[1]
    assert said["nearest_key"] == near
    assert [d["field"] for d in said["differences"]] == [
        "num_envs", "bench_nsteps", "mujoco_version",
    ]  # fmt: skip
    assert said["kind"] == "near"


def test_a_stranger_is_no_relative(database: Path, ask: Asking, what: Asked) -> None:
    decided(database, changed(what.key, nq=1, nv=1, nbody=2, njnt=1, nu=1, machine="z80"), what)
    assert ask()[1]["kind"] == "miss"


def test_whether_an_undecided_key_is_taken_up_hangs_on_the_time_that_the_job_has(
    database: Path, ask: Asking, what: Asked
) -> None:
    open_ = a_run(1, {None: 8.0, 4: 7.9, 8: 8.0}, pairs=1, state="cut short", environment=what.here)
    store(database, what.key, open_)
    assert ask()[1]["kind"] == "resumed"
    assert ask("--time-budget", 0.3)[1]["kind"] == "hit"


def test_an_undecided_relative_shortens_nothing(database: Path, ask: Asking, what: Asked) -> None:
    open_ = a_run(1, {None: 8.0, 4: 7.9, 8: 8.0}, pairs=1, state="cut short", environment=what.here)
    store(database, changed(what.key, num_envs=512), open_)
    assert ask()[1]["kind"] == "miss"


def test_where_there_is_nothing_to_tune_nothing_will_be_measured(
    database: Path, shell: Shell
) -> None:
    few = ("explain", QUADRUPED, "--num-envs", 4, "--nthread", 4, "--database", database)
    told = shell(*few)
    assert told.code == 0
    assert told.out.startswith("nothing to tune: 4 environments on 4 threads")
    assert json.loads(shell(*few, "--json").out)["chunk_size"] is None
    assert not database.exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("explain",), 2),
        (("explain", QUADRUPED), 2),
        (("explain", QUADRUPED, "--num-envs", "0"), 2),
        (("explain", "missing.xml", "--num-envs", "64"), 1),
        (("explain", "/", "--num-envs", "64"), 1),
    ],
)
def test_a_wrong_call_says_what_is_wrong(
    database: Path, shell: Shell, arguments: tuple[object, ...], code: int
) -> None:
    shell.refused(*arguments, "--database", database, code=code)
    assert not database.exists()


def test_a_database_that_cannot_be_read_is_one_clear_line(database: Path, shell: Shell) -> None:
    database.write_bytes(b"no database" * 100)
    assert "check the path" in shell.refused(*CALL, "--database", database)
    golden = ROOT / "tests" / "golden" / "0001.db"
    database.write_bytes(golden.read_bytes())
    before = contents(database.parent)
    assert "tuner db upgrade" in shell.refused(*CALL, "--database", database)
    assert contents(database.parent) == before
    shell.refused(*CALL, "--database", database.parent)


# --- the same for programs ------------------------------------------------------------------


def explained(database: Path, **changes: Any) -> Explanation:
    """Ask for a key of a model that is no file."""
    arguments: dict[str, Any] = {
        "model": MODEL, "n_variants": 1, "num_envs": 64, "nthread": 2, "dtype": "float32",
        "post_step_forward_sensor": False, "bench_nsteps": 4, "database": database,
    }  # fmt: skip
    return explain(**(arguments | changes))


def test_a_program_is_told_the_same(database: Path) -> None:
    missing = explained(database)
    assert (missing.kind, missing.answer, missing.near, missing.differences) == (
        "miss", None, None, (),
    )  # fmt: skip
    store(database, missing.key, a_run(1, pairs=24, environment=Environment()))
    before = contents(database.parent)
    hit = explained(database)
    assert (hit.kind, hit.key) == ("hit", missing.key)
    assert hit.answer is not None
    assert hit.answer.chunk_size == load_cache(database)[hit.key]["chunk_size"] == 4
    near = explained(database, num_envs=128)
    assert (near.kind, [str(d) for d in near.differences]) == (
        "near", ["num_envs: 128 here, 64 there"],
    )  # fmt: skip
    assert near.will_happen == WILL_HAPPEN["near"]
    other = explained(database, model=SimpleNamespace(**vars(MODEL) | {"nq": 20}))
    assert [str(d) for d in other.differences] == ["nq: 20 here, 19 there"]
    assert explained(database, num_envs=2).kind == "nothing to tune"
    assert contents(database.parent) == before


def test_a_pool_brings_its_software_along(database: Path) -> None:
    key = explained(database).key
    store(database, key, a_run(1, pairs=24))
    told = explained(database, pool=SleepingPool(64, 2))
    assert told.kind == "outdated"
    assert "pool: tests.support.facts.SleepingPool here, mujoco.rollout there" in map(
        str, told.differences
    )
    assert explained(database).kind == "hit"  # what is not known does not disagree


def test_a_program_gets_the_error(database: Path) -> None:
    database.write_bytes((ROOT / "tests" / "golden" / "0001.db").read_bytes())
    with pytest.raises(OlderSchemaError):
        explained(database)
    with pytest.raises(DatabaseError):
        explained(database.parent)


def test_a_budget_says_whether_an_undecided_key_is_worth_going_on_with(
    database: Path, what: Asked
) -> None:
    run: Run = a_run(
        1, {None: 8.0, 4: 7.9, 8: 8.0}, pairs=1, state="cut short", environment=what.here
    )
    store(database, what.key, run)
    assert explain_key(database, what.key, what.here, 10.0).kind == "resumed"
    assert explain_key(database, what.key, what.here, 0.1).kind == "hit"


@pytest.mark.parametrize("fact", [10**30, -(10**30), ["a"], {"a": 1}, 1.5, True, "\0\udcff"])
def test_a_relative_is_looked_for_whatever_the_facts_are(database: Path, fact: Any) -> None:
    store(database, a_key(), a_run(1))
    odd = (a_key(model_sig=MODEL_SIGNATURE | {"nq": fact}), a_key(device=DEVICE | {"system": fact}))
    for key in odd:
        assert explain_key(database, key, HERE).kind in WILL_HAPPEN
    assert explain_key(database, a_key(num_envs=10**30), HERE).kind == "near"
