"""Imports: round trips, databases that exchange their runs, JSON caches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.golden.make import FOLDER, NOON
from tests.support.exchanged import (
    all_rows,
    execute,
    export,
    exported,
    imported,
    measured,
    without_origin,
)
from tests.support.facts import a_key
from tuner import load_cache, store_cache
from tuner.environment import Environment
from tuner.errors import ArgumentError
from tuner.exchange.export import Format
from tuner.exchange.importing import import_files
from tuner.records import Run, RunMetadata
from tuner.store.lookup import Answer, find_answer
from tuner.store.maintenance import check
from tuner.store.runs import save_run
from tuner.store.sqlite import OLDER_REVISIONS, REVISION


@pytest.mark.parametrize("form", ["jsonl", "sqlite"])
def test_what_goes_out_comes_in_again(filled: Path, database: Path, form: Format) -> None:
    file = exported(filled, form)
    (found,) = imported(database, file)
    assert (found.new_runs, found.known_runs, found.rejected) == (8, 0, 0)
    assert (found.keys, found.new_samples) == (6, 144)
    assert without_origin(export(database)) == without_origin(export(filled))
    assert {row["origin"] for row in export(database)} == {file.name}
    assert load_cache(database) == load_cache(filled)
    assert check(database) == []
    before = all_rows(database)
    (again,) = imported(database, file)
    assert (again.new_runs, again.known_runs, again.rejected) == (0, 8, 0)
    assert all_rows(database) == before


@pytest.mark.parametrize("form", ["jsonl", "sqlite"])
def test_a_second_journey_changes_nothing_at_all(
    filled: Path, database: Path, tmp_path: Path, form: Format
) -> None:
    imported(database, exported(filled, "jsonl"))
    third = tmp_path / "third.db"
    imported(third, exported(database, form))
    assert export(third) == export(database)
    (back,) = imported(filled, exported(third, form))
    assert (back.new_runs, back.known_runs) == (0, 8)
    assert all(row["origin"] is None for row in export(filled))  # ours stays ours


@pytest.mark.parametrize("revision", [*OLDER_REVISIONS, REVISION])
def test_a_whole_database_of_any_revision_is_imported_and_left_alone(
    database: Path, tmp_path: Path, revision: str
) -> None:
    file = Path(shutil.copy(FOLDER / f"{revision}.db", tmp_path / "node7.db"))
    content = file.read_bytes()
    file.chmod(0o444)
    (found,) = imported(database, file)
    assert (found.new_runs, found.rejected, found.error) == (7, 0, None)
    assert file.read_bytes() == content
    assert sorted(tmp_path.iterdir()) == sorted([file, database])
    assert load_cache(database)[a_key()]["chunk_size"] == 4
    assert load_cache(database)["a key of somebody's own"]["team"] == "locomotion"
    assert check(database) == []


def test_two_states_of_a_database_of_before_hold_the_same_runs(tmp_path: Path) -> None:
    later = Path(shutil.copy(FOLDER / "0001.db", tmp_path / "later.db"))
    earlier = Path(shutil.copy(later, tmp_path / "earlier.db"))
    execute(
        earlier,
        "UPDATE verdict SET latest_run_id = 1 WHERE latest_run_id = 2",
        "DELETE FROM sample WHERE run_id = 2",
        "DELETE FROM run WHERE run_id = 2",
    )
    for order in ((earlier, later), (later, earlier)):
        end = tmp_path / f"{order[0].stem}-first.db"
        assert [file.rejected for file in imported(end, *order)] == [0, 0]
        assert len(export(end, what="runs")) == 7
        assert load_cache(end)[a_key()]["chunk_size"] == 4
        assert check(end) == []


CACHE: dict[str, dict[str, Any]] = {
    "k1_0123": {
        "chunk_size": 8,
        "per_candidate_ms": {"None": 9.5, "8": 8.25},
        "model_file": "/m/ant.xml",
        "hostname": "node3",
    },
    "k1_4567": {"chunk_size": None, "per_candidate_ms": {}, "model_file": None, "hostname": None},
}


@pytest.mark.parametrize("indent", [None, 4])
def test_a_json_cache_becomes_stated_runs(database: Path, tmp_path: Path, indent: int) -> None:
    file = tmp_path / "chunk_size.json"
    file.write_text(json.dumps(CACHE, indent=indent))
    (found,) = imported(database, file)
    assert (found.new_runs, found.rejected, found.error) == (2, 0, None)
    for row in export(database, what="runs"):
        assert (row["state"], row["occasion"], row["origin"]) == (
            "imported",
            "stated",
            "chunk_size.json",
        )
        assert row["hostname"] == CACHE[row["tuning_key"]]["hostname"]
    loaded = load_cache(database)
    assert loaded["k1_0123"] == CACHE["k1_0123"]
    assert loaded["k1_4567"] == {"chunk_size": None}
    moved = tmp_path / "copied later" / "another name.json"
    moved.parent.mkdir()
    moved.write_text(json.dumps(dict(reversed(CACHE.items()))))
    (again,) = imported(database, moved)
    assert (again.new_runs, again.known_runs, again.rejected) == (0, 2, 0)
    other = tmp_path / "other.db"
    imported(other, moved)
    (met,) = imported(other, exported(database, "jsonl"))
    assert (met.known_runs, met.rejected) == (2, 0)


@pytest.mark.parametrize("form", ["jsonl", "sqlite"])
def test_texts_without_end_are_cut_or_refused_before_they_are_stored(
    database: Path, tmp_path: Path, form: Format
) -> None:
    there = tmp_path / "there.db"
    error = Run(state="failed", finished=NOON, message="\ud800" + "x" * 400_000)
    save_run(there, a_key(), error)
    for name in ("model_file", "hostname", "note"):
        with pytest.raises(ArgumentError, match="characters"):
            store_cache(there, "k", {"chunk_size": 3, name: "x" * 100_001})
        store_cache(there, "k", {"chunk_size": 3, name: "x" * 99_000})
    assert imported(database, exported(there, form))[0].new_runs == 4


def test_what_no_pool_of_the_key_could_take_counts_in_no_order(
    filled: Path, database: Path, tmp_path: Path
) -> None:
    cache, later = tmp_path / "cache.json", tmp_path / "later.json"
    cache.write_text(json.dumps({a_key(): {"chunk_size": 9, "per_candidate_ms": {"5000": 1.0}}}))
    later.write_text(json.dumps({a_key(): {"chunk_size": 5000}}))
    files = [cache, exported(filled, "jsonl"), later]
    ends = []
    for number, order in enumerate(((0, 1, 2), (1, 2, 0), (2, 0, 1))):
        end = tmp_path / f"{number}.db"
        for turn in order:
            imported(end, files[turn])
        together = tmp_path / f"{number}-together.db"
        imported(together, *(files[turn] for turn in order))
        for there in (end, together):
            assert check(there) == []
            ends.append((without_origin(export(there)), load_cache(there)))
    assert all(end == ends[0] for end in ends)
    assert ends[0][1][a_key()]["chunk_size"] == 4


def test_an_imported_twin_is_a_hit_and_stays_foreign(filled: Path, database: Path) -> None:
    imported(database, exported(filled, "jsonl"))
    found = find_answer(database, a_key(), 1024, Environment("4.0.0", "mujoco.rollout", "4.0.0"))
    assert isinstance(found, Answer)
    assert found.chunk_size == 4
    for row in export(database, what="runs"):
        assert row["origin"] == "there-export.jsonl"
        assert row["imported_utc"] is not None
    for row in export(database, what="verdicts"):
        assert row["imported_runs"] == row["runs"]
    hosts = {row["hostname"] for row in export(database, what="runs") if row["plan"] == "race"}
    assert hosts == {"node7"}
    states = [row["state"] for row in export(database, what="runs")]
    assert states == [row["state"] for row in export(filled, what="runs")]


def test_the_same_run_with_other_content_is_rejected(database: Path, tmp_path: Path) -> None:
    measured("one run", a_key(), database)
    before = all_rows(database)
    for name, change in {
        "its samples": "UPDATE sample SET nanoseconds = 5 WHERE sample_order = 3",
        "state": "UPDATE run SET state = 'cut short'",
        "finished_utc": "UPDATE run SET finished_utc = '2026-03-01T00:00:00.000000Z'",
        "hostname": "UPDATE run SET hostname = 'elsewhere'",
    }.items():
        other = tmp_path / f"{name}.db"
        measured("one run", a_key(), other, metadata=RunMetadata(hostname="here"))
        if name == "hostname":
            known = imported(database, other)[0]  # one of the two was told less
            assert (known.known_runs, known.rejected) == (1, 0)
            continue
        execute(other, change)
        (found,) = imported(database, other)
        assert (found.new_runs, found.rejected) == (0, 1)
        assert name in found.rejections[0][1]
        assert "one run" in found.rejections[0][1]
    assert all_rows(database) == before


def test_strict_takes_all_or_nothing_and_a_dry_run_nothing(
    filled: Path, database: Path, tmp_path: Path
) -> None:
    good, bad = exported(filled, "jsonl"), tmp_path / "bad.jsonl"
    bad.write_text('{"format": 1}\n')
    done, found = import_files(database, [good], dry_run=True)
    assert (done, found[0].new_runs) == (False, 8)
    assert not database.exists()
    done, found = import_files(database, [good, bad], strict=True)
    assert (done, [file.rejected for file in found]) == (False, [0, 1])
    assert not database.exists()
    done, _ = import_files(database, [good], strict=True)
    assert done
    before = database.read_bytes()
    assert import_files(database, [good, bad], dry_run=True)[1][0].known_runs == 8
    assert database.read_bytes() == before
