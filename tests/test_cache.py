"""The database as a dictionary: what is stored comes back, and nothing else is lost."""

from __future__ import annotations

import multiprocessing
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.facts import MODEL_SIGNATURE, a_key
from tuner import load_cache, store_cache
from tuner.errors import DatabaseError

FULL = {
    "chunk_size": 4,
    "per_candidate_ms": {"None": 9.38, "4": 9.15, "52": 14.59},
    "model_file": "robot.xml",
    "hostname": "node7",
}


def test_a_missing_file_is_empty_and_is_not_made(database: Path) -> None:
    assert load_cache(database) == {}
    assert not database.exists()


def test_what_is_stored_comes_back(database: Path) -> None:
    store_cache(database, a_key(), FULL)
    assert load_cache(database) == {a_key(): FULL}


def test_the_native_default_is_a_full_answer(database: Path) -> None:
    store_cache(database, "some key", {"chunk_size": None})
    assert load_cache(database) == {"some key": {"chunk_size": None}}


def test_storing_adds_and_replaces_only_its_own_key(database: Path) -> None:
    store_cache(database, a_key(), FULL)
    store_cache(database, a_key(nthread=4), {"chunk_size": 8, "note": ["kept", 1]})
    store_cache(database, a_key(), {"chunk_size": 5})
    assert load_cache(database) == {
        a_key(): {"chunk_size": 5},
        a_key(nthread=4): {"chunk_size": 8, "note": ["kept", 1]},
    }


def test_a_keys_facts_are_in_their_typed_columns(database: Path) -> None:
    store_cache(database, a_key(post_step_forward_sensor=True), FULL)
    with sqlite3.connect(database) as connection:
        connection.row_factory = sqlite3.Row
        key = dict(connection.execute("SELECT * FROM tuning_key").fetchone())
        model = dict(connection.execute("SELECT * FROM model").fetchone())
        device = dict(connection.execute("SELECT * FROM device").fetchone())
    connection.close()
    assert (key["num_envs"], key["nthread"], key["bench_nsteps"]) == (1024, 8, 4)
    assert (key["dtype"], key["backend_type"]) == ("float32", "mujoco")
    assert key["post_step_forward_sensor"] == 1
    assert {name: model[name] for name in MODEL_SIGNATURE} == MODEL_SIGNATURE
    assert (device["system"], device["machine"], device["cpu_count"]) == ("Linux", "x86_64", 8)


def test_facts_of_a_callers_own_are_kept_beside_the_columns(database: Path) -> None:
    key = a_key(device={"cpu_count": "eight", "rack": 3}, model_sig={"nq": 2, "cloth": True})
    store_cache(database, key, FULL)
    with sqlite3.connect(database) as connection:
        device = connection.execute("SELECT cpu_count, other_facts FROM device").fetchone()
        model = connection.execute("SELECT nq, nv, other_facts FROM model").fetchone()
    connection.close()
    assert device == (None, '{"cpu_count":"eight","rack":3}')
    assert model == (2, None, '{"cloth":true}')


def test_a_key_stored_as_a_plain_text_gets_its_facts_later(database: Path) -> None:
    store_cache(database, str.__str__(a_key()), {"chunk_size": 3})
    store_cache(database, a_key(), {"chunk_size": 4})
    with sqlite3.connect(database) as connection:
        rows = connection.execute("SELECT num_envs, chunk_size FROM tuning_overview").fetchall()
    connection.close()
    assert rows == [(1024, 4)]


def test_each_timing_is_a_sample_in_whole_nanoseconds(database: Path) -> None:
    store_cache(database, a_key(), FULL)
    with sqlite3.connect(database) as connection:
        samples = connection.execute(
            "SELECT chunk_size, nanoseconds FROM sample ORDER BY sample_order"
        ).fetchall()
        state = connection.execute("SELECT state FROM run").fetchone()
    connection.close()
    assert samples == [(None, 9_380_000), (4, 9_150_000), (52, 14_590_000)]
    assert state == ("imported",)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"chunk_size": 0},
        {"chunk_size": -3},
        {"chunk_size": True},
        {"chunk_size": 2.5},
        {"chunk_size": "4"},
        {"chunk_size": 1025},
        {"chunk_size": 4, "per_candidate_ms": {"4": float("nan")}},
        {"chunk_size": 4, "per_candidate_ms": {"4": 0}},
        {"chunk_size": 4, "per_candidate_ms": {"four": 1.0}},
        {"chunk_size": 4, "per_candidate_ms": {"0": 1.0}},
        {"chunk_size": 4, "per_candidate_ms": {"04": 1.0}},
        {"chunk_size": 4, "per_candidate_ms": {"\u0663": 1.0}},
        {"chunk_size": 4, "per_candidate_ms": {"4": 1e300}},
        {"chunk_size": 4, "per_candidate_ms": {"4": 10**400}},
        {"chunk_size": 4, "per_candidate_ms": {str(2**70): 1.0}},
        {"chunk_size": 4, "per_candidate_ms": [1, 2]},
        {"chunk_size": np.array([4])},
        {"chunk_size": np.array(True)},
    ],
)
def test_a_value_that_no_pool_could_use_is_refused_and_loses_nothing(
    database: Path, value: dict[str, Any]
) -> None:
    store_cache(database, a_key(), FULL)
    with pytest.raises(ValueError, match=r"chunk_size|per_candidate_ms|candidate"):
        store_cache(database, a_key(), value)
    assert load_cache(database) == {a_key(): FULL}


def test_a_plain_key_takes_no_number_that_the_database_cannot_hold(database: Path) -> None:
    for value in ({"chunk_size": 2**63}, {"chunk_size": 0}, None, [1]):
        with pytest.raises(ValueError, match=r"chunk_size|dict"):
            store_cache(database, "key", value)  # type: ignore[arg-type]
    assert not database.exists()


def test_a_name_that_is_no_text_is_kept_as_an_escape(database: Path) -> None:
    store_cache(database, a_key(backend_type="\udc80"), FULL | {"model_file": "\udcff.xml"})
    [value] = load_cache(database).values()
    assert value["model_file"] == "\\udcff.xml"


def test_a_url_is_a_place_too(database: Path) -> None:
    store_cache(f"sqlite:///{database}", "key", {"chunk_size": 3})
    assert load_cache(database) == load_cache(f"sqlite:///{database}") == {"key": {"chunk_size": 3}}


@pytest.mark.parametrize("key", ["", "k" * 1001, "nul\0", "\udc80", 7, None])
def test_what_is_no_key_is_refused(database: Path, key: Any) -> None:
    with pytest.raises(ValueError, match="key"):
        store_cache(database, key, FULL)
    assert not database.exists()


def test_numpy_numbers_are_stored_as_numbers(database: Path) -> None:
    value = {"chunk_size": np.int64(4), "per_candidate_ms": {None: np.float32(2.0), 4: 1.5}}
    store_cache(database, a_key(), value)
    assert load_cache(database)[a_key()] == {
        "chunk_size": 4,
        "per_candidate_ms": {"None": 2.0, "4": 1.5},
    }


@pytest.mark.parametrize("content", [b"not a database", b'{"k": {"chunk_size": 1}}', b"\0" * 8192])
def test_a_file_of_something_else_is_an_error_and_stays_as_it_is(
    database: Path, content: bytes
) -> None:
    database.write_bytes(content)
    with pytest.raises(DatabaseError, match=r"tuning\.db"):
        load_cache(database)
    with pytest.raises(DatabaseError, match=r"tuning\.db"):
        store_cache(database, a_key(), FULL)
    assert database.read_bytes() == content


def test_an_odd_path_is_a_path(tmp_path: Path) -> None:
    database = tmp_path / "a b" / "50%?#&é.db"
    store_cache(database, a_key(), FULL)
    assert load_cache(database) == {a_key(): FULL}
    assert [file.name for file in database.parent.iterdir()] == [database.name]


def _store(path: Path, number: int, start: Any) -> None:
    start.wait()
    store_cache(path, f"key {number}", {"chunk_size": number + 1})


def test_processes_that_store_at_once_lose_nothing(database: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Event()
    processes = [spawn.Process(target=_store, args=(database, n, start)) for n in range(8)]
    for process in processes:
        process.start()
    start.set()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 8
    assert load_cache(database) == {f"key {n}": {"chunk_size": n + 1} for n in range(8)}
