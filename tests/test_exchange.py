"""What goes out comes in again: formats, filters, and databases that exchange their runs."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow.parquet
import pytest

from tests.golden.make import COSTS, FOLDER, NOON, make
from tests.support.facts import DEVICE, a_key
from tests.test_bad_files import _execute
from tests.test_cli import tuner
from tests.test_golden import RELEASED, rows_of
from tuner import load_cache, store_cache
from tuner.environment import Environment
from tuner.errors import ArgumentError
from tuner.exchange import intake
from tuner.exchange.export import Format, What, write_file, write_rows
from tuner.exchange.intake import Imported, import_files
from tuner.exchange.rows import COLUMNS, FORMAT
from tuner.racing.meta_analysis import judge_runs
from tuner.records import Answer, Candidate, Run, RunMetadata, Sample, Verdict
from tuner.store import importing
from tuner.store.exporting import PRIVATE, VERDICT_COLUMNS
from tuner.store.lookup import find_answer
from tuner.store.maintenance import check, pin
from tuner.store.queries import EVERYTHING, Selection, read_overview
from tuner.store.runs import recompute, save_run
from tuner.store.sqlite import REVISION
from tuner.workload import CacheKey

FORMATS: tuple[Format, ...] = ("csv", "jsonl", "parquet", "sqlite")
SUFFIX = {"csv": ".csv", "jsonl": ".jsonl", "parquet": ".parquet", "sqlite": ".db", "t4": ".json"}


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """Fill a database with one of everything."""
    file = tmp_path / "there.db"
    make(file)
    whole = a_key(
        device=DEVICE | {"cpu_quota": 2, "unequal_cores": False, "cpu_model": "A Part of 2"}
    )
    store_cache(file, whole, {"chunk_size": 3, "note": 'two\nlines, "quoted"; \u00e4 \u6570'})
    return file


def export(
    database: Path, form: Format = "jsonl", what: What = "samples", **options: Any
) -> list[dict[str, Any]]:
    """Export rows, and read them as anybody would."""
    stream = io.BytesIO()
    write_rows(database, stream, form, what=what, **options)
    stream.seek(0)
    if form == "parquet":
        return list(pyarrow.parquet.read_table(stream).to_pylist())
    if form == "csv":
        return list(csv.DictReader(io.StringIO(stream.getvalue().decode(), newline="")))
    return [json.loads(line) for line in stream]


def exported(database: Path, form: Format, **options: Any) -> Path:
    """Export to a file beside the database."""
    file = database.with_name(f"{database.stem}-export{SUFFIX[form]}")
    write_file(database, file, form, **options)
    return file


def taken_in(database: Path, *files: Path, **options: Any) -> list[Imported]:
    """Import files."""
    return import_files(database, files, **options)[1]


def is_empty(database: Path) -> bool:
    """Tell whether nothing was stored, or not even a database made."""
    return not database.exists() or export(database, what="runs") == []


def but_for_the_way(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out what says how a run came into a database."""
    return [{k: v for k, v in row.items() if k not in ("origin", "imported_utc")} for row in rows]


@pytest.mark.parametrize("form", FORMATS)
def test_what_goes_out_comes_in_again(filled: Path, database: Path, form: Format) -> None:
    file = exported(filled, form)
    (found,) = taken_in(database, file)
    assert (found.new_runs, found.known_runs, found.rejected) == (8, 0, 0)
    assert (found.keys, found.new_samples) == (6, 144)
    assert but_for_the_way(export(database)) == but_for_the_way(export(filled))
    assert {row["origin"] for row in export(database)} == {file.name}
    assert load_cache(database) == load_cache(filled)
    assert check(database) == []
    before = rows_of(database)
    (again,) = taken_in(database, file)
    assert (again.new_runs, again.known_runs, again.rejected) == (0, 8, 0)
    assert rows_of(database) == before


@pytest.mark.parametrize("form", FORMATS)
def test_a_second_journey_changes_nothing_at_all(
    filled: Path, database: Path, tmp_path: Path, form: Format
) -> None:
    taken_in(database, exported(filled, "jsonl"))
    third = tmp_path / "third.db"
    taken_in(third, exported(database, form))
    assert export(third) == export(database)
    (back,) = taken_in(filled, exported(third, form))
    assert (back.new_runs, back.known_runs) == (0, 8)
    assert all(row["origin"] is None for row in export(filled))  # ours stays ours


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_every_row_stands_alone(filled: Path, form: Format) -> None:
    rows = export(filled, form)
    assert len(rows) == 144 + 3  # a run without samples is a row too
    for row in rows:
        assert list(row) == list(COLUMNS)
        assert row["format"] == FORMAT
        if row["tuning_key"].startswith("k1_"):
            assert row["num_envs"] is not None
            assert row["device_digest"].startswith("d1_")


def test_formats_say_the_same(filled: Path) -> None:
    rows = export(filled)
    assert export(filled, "parquet") == rows
    for one, other in zip(export(filled, "csv"), rows, strict=True):
        for name, text in one.items():
            value = other[name]
            told = "" if value is None else str(value).lower() if value in (True, False) else value
            if type(value) is bool:
                assert text == str(value).lower()
            elif COLUMNS[name].kind is str or value is None:
                assert text == told
            else:
                assert COLUMNS[name].kind(text) == value


def test_runs_and_verdicts_can_be_exported_and_are_no_import(filled: Path, tmp_path: Path) -> None:
    runs, verdicts = export(filled, what="runs"), export(filled, what="verdicts")
    assert len(runs) == 8
    assert len({row["tuning_key"] for row in verdicts}) == len(verdicts) == 6
    assert set(VERDICT_COLUMNS) <= set(verdicts[0])
    for what in ("runs", "verdicts"):
        for form in ("csv", "jsonl", "parquet"):
            file = tmp_path / f"{what}{SUFFIX[form]}"
            write_file(filled, file, form, what=what)
            (found,) = taken_in(tmp_path / "new.db", file)
            assert found.new_runs == 0
            assert found.rejected >= 1
            if form == "jsonl":
                assert "export samples" in found.rejections[0][1]


def test_export_list_and_load_cache_agree(filled: Path, tmp_path: Path) -> None:
    pin(filled, a_key(), 7, "somebody knows better")
    lone = a_key(num_envs=3)
    save_run(filled, lone, Run(state="failed", finished=NOON))
    pin(filled, lone, 2, "it cannot be timed")
    listed = {row["tuning_key"]: row for row in read_overview(filled)}
    loaded = load_cache(filled)
    told = {row["tuning_key"]: row for row in export(filled, what="verdicts")}
    assert set(listed) == set(loaded) == set(told)
    for key, row in told.items():
        choice = row["pinned_chunk_size"] if row["pinned"] else row["chunk_size"]
        assert choice == loaded[key]["chunk_size"] == listed[key]["chunk_size"]
        assert row["decided"] == (None if key == lone else listed[key]["decided"] == 1)
        assert row["pinned_because"] == listed[key]["pinned_because"]
        assert json.loads(row["per_candidate_ms"] or "{}") == loaded[key].get(
            "per_candidate_ms", {}
        )
    copy = tmp_path / "copy.db"
    write_file(filled, copy, "sqlite")
    assert read_overview(copy) == read_overview(filled)
    assert load_cache(copy) == loaded
    assert check(copy) == []


def t4_schema() -> Any:
    """Read the schema that Kernel Tuner holds its results to."""
    name = "kernel_tuner/schema/T4/1.0.0/results-schema.json"
    return json.loads(Path(str(distribution("kernel-tuner").locate_file(name))).read_text())


def test_t4_is_what_kernel_tuner_writes(filled: Path) -> None:
    document = json.loads(exported(filled, "t4").read_text())
    jsonschema.validate(document, t4_schema())
    assert document["schema_version"] == "1.0.0"
    results = document["results"]
    first = [r for r in results if r["tuner"]["run_uid"] == f"{1:032x}"]
    assert {r["configuration"]["chunk_size"] for r in first} == set(COSTS)
    for result in first:
        assert result["invalidity"] == "correct"
        assert result["measurements"][0]["value"] == pytest.approx(
            COSTS[result["configuration"]["chunk_size"]], rel=0.1
        )
    (failed,) = [r for r in results if r["invalidity"] == "runtime"]
    assert failed["configuration"] == {"chunk_size": 16}
    empty = json.loads(exported(filled, "t4", selection=Selection(num_envs=1)).read_text())
    jsonschema.validate(empty, t4_schema())
    assert empty["results"] == []


SECRET = "s3cret"


@pytest.mark.parametrize("form", [*FORMATS, "t4"])
def test_an_anonymous_export_names_no_host_and_no_file(database: Path, form: Format) -> None:
    sample = Sample(Candidate(4), 0, 0, 1000)
    run = Run(
        state="complete",
        finished=NOON,
        samples=(sample,),
        model_file=f"/home/{SECRET}/r.xml",
        metadata=RunMetadata(hostname=SECRET, pid=4242, load_average=0.5),
        origin=f"{SECRET}.jsonl",
        message=f"no such file: /home/{SECRET}",
        other_facts={"team": SECRET},
    )
    save_run(database, a_key(), run)
    pin(database, a_key(), 4, f"{SECRET} said so")
    for what in ("samples", "runs", "verdicts") if form not in ("sqlite", "t4") else ("samples",):
        if form != "parquet":
            assert SECRET.encode() in exported(database, form, what=what).read_bytes()
        hidden = exported(database, form, what=what, anonymous=True)
        assert SECRET.encode() not in hidden.read_bytes()
        if form in ("csv", "jsonl", "parquet"):
            for row in export(database, form, what, anonymous=True):
                assert SECRET not in str(row)
                assert not any(row.get(name) for name in PRIVATE)
    if form == "sqlite":
        assert read_overview(hidden)[0]["pinned_because"] == "pinned"
        assert read_overview(hidden)[0]["chunk_size"] == 4
    other = database.with_name("other.db")
    if form != "t4":
        file = exported(database, form, anonymous=True)
        assert taken_in(other, file)[0].new_runs == 1
        assert taken_in(database, file)[0].known_runs == 1


def test_a_database_export_holds_nothing_that_others_added(filled: Path, tmp_path: Path) -> None:
    _execute(
        filled,
        f"CREATE TABLE notes (text DEFAULT '{SECRET}')",
        "INSERT INTO notes DEFAULT VALUES",
        f"CREATE VIEW remark AS SELECT '{SECRET}'",
        f"CREATE INDEX by_host ON run (hostname) WHERE hostname <> '{SECRET}'",
        f"CREATE TRIGGER log AFTER UPDATE ON run BEGIN INSERT INTO notes VALUES ('{SECRET}'); END",
        "DROP VIEW run_history",
        f"CREATE VIEW run_history AS SELECT '{SECRET}'",
        "CREATE TABLE counted (number INTEGER PRIMARY KEY AUTOINCREMENT)",
        "ANALYZE",
    )
    for anonymous in (False, True):
        file = exported(filled, "sqlite", anonymous=anonymous)
        assert SECRET.encode() not in file.read_bytes()
        assert check(file) == []
        assert (export(file) == export(filled)) is not anonymous


def test_in_an_anonymous_database_what_is_foreign_stays_foreign(
    filled: Path, database: Path, tmp_path: Path
) -> None:
    taken_in(database, exported(filled, "jsonl"))
    measured("ours", a_key(), database, 3)
    anonymous = exported(database, "sqlite", anonymous=True)
    assert b"there-export" not in anonymous.read_bytes()
    for row in export(anonymous, what="runs"):
        assert (row["origin"] is None) == (row["run_uid"] == "ours")
    before = rows_of(anonymous)
    recompute(anonymous)
    assert rows_of(anonymous) == before


SELECTIONS: list[tuple[Selection, Callable[[dict[str, Any]], bool]]] = [
    (EVERYTHING, lambda row: True),
    (Selection(key=a_key()[:9]), lambda row: row["tuning_key"] == a_key()),
    (Selection(key=a_key()[3:9]), lambda row: row["tuning_key"] == a_key()),
    (Selection(model="*quad*"), lambda row: "quad" in (row["model_file"] or "")),
    (Selection(model="quadruped.xml"), lambda row: "quad" in (row["model_file"] or "")),
    (Selection(model="r.xml"), lambda row: row["model_file"] == "r.xml"),
    (Selection(device="X86"), lambda row: row["machine"] == "x86_64"),
    (Selection(device="part of"), lambda row: row["cpu_model"] == "A Part of 2"),
    (Selection(num_envs=4096), lambda row: row["num_envs"] == 4096),
    (Selection(since="2026-02-01"), lambda row: row["finished_utc"] >= "2026-02-01"),
    (Selection(until="2026-02-01"), lambda row: row["finished_utc"] < "2026-02-01"),
    (Selection(decided=True), lambda row: row["num_envs"] != 4096),
    (Selection(decided=False), lambda row: row["num_envs"] == 4096),
    (
        Selection(num_envs=1024, until="2026-02-01", decided=True),
        lambda row: row["num_envs"] == 1024 and row["finished_utc"] < "2026-02-01",
    ),
]


@pytest.mark.parametrize(("selection", "meant"), SELECTIONS)
def test_filters_choose_runs(
    filled: Path, tmp_path: Path, selection: Selection, meant: Callable[[dict[str, Any]], bool]
) -> None:
    wanted = [row for row in export(filled) if meant(row)]
    assert wanted
    assert export(filled, selection=selection) == wanted
    copy = tmp_path / "copy.db"
    write_file(filled, copy, "sqlite", selection=selection)
    assert export(copy) == wanted
    assert check(copy) == []
    whole, again = load_cache(copy), copy
    recompute(again)
    assert load_cache(again) == whole


def test_a_filter_that_nothing_meets_leaves_a_header(filled: Path) -> None:
    assert export(filled, "csv", selection=Selection(key="zzz")) == []
    assert export(filled, "parquet", selection=Selection(key="zzz")) == []


@pytest.mark.parametrize("revision", RELEASED)
def test_a_whole_database_of_any_revision_is_taken_in_and_left_alone(
    database: Path, tmp_path: Path, revision: str
) -> None:
    file = Path(shutil.copy(FOLDER / f"{revision}.db", tmp_path / "node7.db"))
    content = file.read_bytes()
    file.chmod(0o444)
    (found,) = taken_in(database, file)
    assert (found.new_runs, found.rejected, found.error) == (7, 0, None)
    assert file.read_bytes() == content
    assert sorted(tmp_path.iterdir()) == sorted([file, database])
    assert load_cache(database)[a_key()]["chunk_size"] == 4
    assert load_cache(database)["a key of somebody's own"]["team"] == "locomotion"
    assert check(database) == []


def test_two_states_of_a_database_of_before_hold_the_same_runs(tmp_path: Path) -> None:
    later = Path(shutil.copy(FOLDER / "0001.db", tmp_path / "later.db"))
    earlier = Path(shutil.copy(later, tmp_path / "earlier.db"))
    _execute(
        earlier,
        "UPDATE verdict SET latest_run_id = 1 WHERE latest_run_id = 2",
        "DELETE FROM sample WHERE run_id = 2",
        "DELETE FROM run WHERE run_id = 2",
    )
    for order in ((earlier, later), (later, earlier)):
        end = tmp_path / f"{order[0].stem}-first.db"
        assert [file.rejected for file in taken_in(end, *order)] == [0, 0]
        assert len(export(end, what="runs")) == 7
        assert load_cache(end)[a_key()]["chunk_size"] == 4
        assert check(end) == []


def test_a_database_in_wal_mode_is_taken_in_with_what_its_log_holds(
    filled: Path, database: Path
) -> None:
    with closing(sqlite3.connect(filled, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("UPDATE run SET hostname = 'only in the log' WHERE hostname IS NOT NULL")
        before = sorted(filled.parent.iterdir())
        (found,) = taken_in(database, filled)
        assert found.new_runs == 8
        assert sorted(filled.parent.iterdir()) == sorted([*before, database])
    assert "only in the log" in {row["hostname"] for row in export(database)}


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
    (found,) = taken_in(database, file)
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
    (again,) = taken_in(database, moved)
    assert (again.new_runs, again.known_runs, again.rejected) == (0, 2, 0)
    other = tmp_path / "other.db"
    taken_in(other, moved)
    (met,) = taken_in(other, exported(database, "jsonl"))
    assert (met.known_runs, met.rejected) == (2, 0)


@pytest.mark.parametrize("form", FORMATS)
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
    assert taken_in(database, exported(there, form))[0].new_runs == 4


def measured(uid: str, key: CacheKey, database: Path, hour: int = 1, **changes: Any) -> None:
    """Store a run of two candidates."""
    finished = NOON.replace(hour=hour)
    timings = tuple(
        Sample(Candidate(None if k % 2 else 4), k // 2, k, 10_000_000 - 1_000_000 * (k % 2 == 0))
        for k in range(24)
    )
    run = Run(state="complete", finished=finished, uid=uid, samples=timings, **changes)
    save_run(database, key, run)


def test_order_does_not_matter_and_machines_that_met_before_make_no_twins(tmp_path: Path) -> None:
    one, two, three = (tmp_path / f"{name}.db" for name in ("one", "two", "three"))
    for number, file in enumerate((one, two, three)):
        measured(f"run {number}", a_key(), file, number + 1)
        measured(f"other {number}", a_key(nthread=number + 1), file, number + 1)
    taken_in(two, exported(one, "jsonl"))
    files = [exported(file, form) for file, form in zip((one, two, three), FORMATS, strict=False)]
    ends = []
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        end = tmp_path / f"end{order}.db"
        found = taken_in(end, *(files[number] for number in order))
        assert sum(file.new_runs for file in found) == 6
        assert sum(file.rejected for file in found) == 0
        ends.append((but_for_the_way(export(end)), load_cache(end)))
    assert ends[0] == ends[1] == ends[2]


@pytest.mark.parametrize("batch", [1, 20_000])
def test_a_keys_verdicts_are_made_once_an_import(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(intake, "BATCH_SAMPLES", batch)
    one, two = tmp_path / "one.db", tmp_path / "two.db"
    for number in range(6):
        for key in (a_key(), a_key(nthread=2)):
            measured(f"{key} {number}", key, one if number % 2 else two, number + 1)
    file = exported(one, "jsonl")
    runs: dict[str, list[str]] = {}
    for line in file.read_text().splitlines(keepends=True):
        runs.setdefault(json.loads(line)["run_uid"], []).append(line)
    turns = sorted(runs, key=lambda uid: uid[-1])  # the keys by turns
    file.write_text("".join(line for uid in turns for line in runs[uid]))
    judged: list[list[str]] = []

    def judge(runs: Sequence[Run], *, num_envs: int | None, nthread: int | None) -> Verdict:
        judged.append([run.uid for run in runs])
        return judge_runs(runs, num_envs=num_envs, nthread=nthread)

    monkeypatch.setattr("tuner.store.runs.judge_runs", judge)
    _, found = import_files(database, [file, two, file])
    assert [(f.new_runs, f.known_runs, f.keys) for f in found] == [(6, 0, 2), (6, 0, 2), (0, 6, 0)]
    assert [len(uids) for uids in judged] == [6, 6]
    import_files(database, [file, two])
    assert len(judged) == 2


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
            taken_in(end, files[turn])
        together = tmp_path / f"{number}-together.db"
        taken_in(together, *(files[turn] for turn in order))
        for there in (end, together):
            assert check(there) == []
            ends.append((but_for_the_way(export(there)), load_cache(there)))
    assert all(end == ends[0] for end in ends)
    assert ends[0][1][a_key()]["chunk_size"] == 4


def test_a_run_that_is_there_teaches_the_facts_of_its_key(database: Path, tmp_path: Path) -> None:
    digest = str(a_key())
    poor, rich = tmp_path / "poor.db", tmp_path / "rich.db"
    measured("one", digest, poor)  # type: ignore[arg-type]
    taken_in(rich, poor)
    measured("two", a_key(), rich, 2)
    first = exported(rich, "jsonl", selection=Selection(until="2026-02-01"))
    lines = [line for line in first.read_text().splitlines(keepends=True) if '"one"' in line]
    assert lines
    first.write_text("".join(lines))
    taken_in(poor, first)
    taken_in(database, first, poor)
    assert {row["num_envs"] for row in export(poor)} == {1024}
    assert export(poor, what="verdicts") != []
    before = rows_of(poor)
    assert taken_in(poor, first)[0].known_runs == 1
    recompute(poor)
    assert rows_of(poor) == before


def test_an_imported_twin_is_a_hit_and_stays_foreign(filled: Path, database: Path) -> None:
    taken_in(database, exported(filled, "parquet"))
    found = find_answer(database, a_key(), 1024, Environment("4.0.0", "mujoco.rollout", "4.0.0"))
    assert isinstance(found, Answer)
    assert found.chunk_size == 4
    for row in export(database, what="runs"):
        assert row["origin"] == "there-export.parquet"
        assert row["imported_utc"] is not None
    for row in export(database, what="verdicts"):
        assert row["imported_runs"] == row["runs"]
    hosts = {row["hostname"] for row in export(database, what="runs") if row["plan"] == "race"}
    assert hosts == {"node7"}
    states = [row["state"] for row in export(database, what="runs")]
    assert states == [row["state"] for row in export(filled, what="runs")]


def test_the_same_run_with_other_content_is_rejected(database: Path, tmp_path: Path) -> None:
    measured("one run", a_key(), database)
    before = rows_of(database)
    for name, change in {
        "its samples": "UPDATE sample SET nanoseconds = 5 WHERE sample_order = 3",
        "state": "UPDATE run SET state = 'cut short'",
        "finished_utc": "UPDATE run SET finished_utc = '2026-03-01T00:00:00.000000Z'",
        "hostname": "UPDATE run SET hostname = 'elsewhere'",
    }.items():
        other = tmp_path / f"{name}.db"
        measured("one run", a_key(), other, metadata=RunMetadata(hostname="here"))
        if name == "hostname":
            known = taken_in(database, other)[0]  # one of the two was told less
            assert (known.known_runs, known.rejected) == (1, 0)
            continue
        _execute(other, change)
        (found,) = taken_in(database, other)
        assert (found.new_runs, found.rejected) == (0, 1)
        assert name in found.rejections[0][1]
        assert "one run" in found.rejections[0][1]
    assert rows_of(database) == before


def test_a_wrong_row_is_rejected_and_the_rest_goes_in(
    filled: Path, database: Path, tmp_path: Path
) -> None:
    lines = exported(filled, "jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    number = next(n for n, row in enumerate(rows) if row["run_uid"] == f"{2:032x}")
    lines[number + 4] = json.dumps(rows[number + 4] | {"nanoseconds": -5})
    lines.insert(number, "{nonsense")
    file = tmp_path / "spoiled.jsonl"
    file.write_text("\n".join(lines) + "\n")
    (found,) = taken_in(database, file)
    assert (found.new_runs, found.rejected) == (7, 3)
    places = [place for place, _ in found.rejections]
    assert places[:2] == [number + 1, number + 6]
    reasons = " | ".join(reason for _, reason in found.rejections)
    assert "no JSON" in reasons
    assert "nanoseconds is -5" in reasons
    assert "28 of its 29 samples" in reasons
    assert check(database) == []


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_rows_in_any_order_make_whole_runs(filled: Path, database: Path, form: Format) -> None:
    file = exported(filled, form, selection=Selection(until="2026-02-01"))
    lines = file.read_text().splitlines(keepends=True)
    head = lines[:1] if form == "csv" else []
    body = lines[len(head) :]
    random.Random(5).shuffle(body)
    file.write_text("".join(head + body))
    (found,) = taken_in(database, file)
    assert (found.new_runs, found.rejected) == (5, 0)
    wanted = export(filled, selection=Selection(until="2026-02-01"))
    assert but_for_the_way(export(database)) == but_for_the_way(wanted)


def test_columns_in_any_order_are_read(filled: Path, database: Path, tmp_path: Path) -> None:
    rows = export(filled)
    file = tmp_path / "turned.csv"
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(reversed(COLUMNS)))
        writer.writeheader()
        writer.writerows(rows)
    (found,) = taken_in(database, file)
    assert (found.new_runs, found.rejected) == (8, 0)
    turned = tmp_path / "turned.parquet"
    table = pyarrow.parquet.read_table(exported(filled, "parquet"))
    pyarrow.parquet.write_table(table.select(list(reversed(COLUMNS))), turned)
    assert taken_in(database, turned)[0].known_runs == 8


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


def test_a_run_that_no_verdict_can_be_made_of_is_rejected_alone(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "HOLD_SECONDS", 0.0)  # each key in a transaction of its own
    there = tmp_path / "there.db"
    for number in range(3):
        measured(f"run {number}", a_key(), there, number + 1)
        measured(f"other {number}", a_key(nthread=number + 1), there, number + 1)

    def judge(runs: Sequence[Run], *, num_envs: int | None, nthread: int | None) -> Verdict:
        if any(run.uid in ("run 1", "other 2") for run in runs):
            raise ZeroDivisionError("these cannot be judged")
        return judge_runs(runs, num_envs=num_envs, nthread=nthread)

    file = exported(there, "jsonl")
    monkeypatch.setattr("tuner.store.runs.judge_runs", judge)
    _, (found,) = import_files(database, [file])
    assert (found.new_runs, found.rejected) == (4, 2)
    assert all("these cannot be judged" in reason for _, reason in found.rejections)
    assert {row["run_uid"] for row in export(database)} == {"run 0", "run 2", "other 0", "other 1"}
    assert check(database) == []


def test_json_lines_are_told_from_a_cache_by_their_content(database: Path, tmp_path: Path) -> None:
    cache = tmp_path / "one-line.json"
    cache.write_text('{"k1": {"chunk_size": 4, "format": "float32"}}')
    assert taken_in(database, cache)[0].new_runs == 1
    measured("one", a_key(), tmp_path / "there.db")
    rows = [dict(reversed(row.items())) for row in export(tmp_path / "there.db")]
    turned = tmp_path / "turned.txt"
    turned.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert taken_in(database, turned)[0].new_runs == 1


def test_the_commands(filled: Path, database: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    told = tuner("export", "-o", str(file), "--database", str(filled))
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith(f"{file}: 147 rows of 8 runs of {filled}")
    piped = tuner("export", "--format", "jsonl", "--database", str(filled))
    assert piped.stdout == file.read_text()
    imported = tuner("import", str(file), "--database", str(database))
    assert (imported.returncode, imported.stderr) == (0, "")
    assert imported.stdout.splitlines()[1].split() == ["out.jsonl", "8", "144", "6", "0", "0"]
    with file.open("a") as stream:
        stream.write('{"format":"tuner.samples.9"}\n')
    again = tuner("import", "--json", str(file), "--database", str(database))
    assert again.returncode == 3
    assert again.stderr.count("\n") == 1
    assert again.stderr.startswith(f"{file}:148: format is 'tuner.samples.9'")
    told_json = json.loads(again.stdout)
    assert told_json["done"] is True
    assert told_json["files"][0]["known_runs"] == 8
    assert told_json["files"][0]["rejections"][0]["line"] == 148
    strict = tuner("import", "--strict", str(file), "--database", str(tmp_path / "no.db"))
    assert strict.returncode == 3
    assert "nothing was imported" in strict.stderr
    assert not (tmp_path / "no.db").exists()
    listed = tuner("list", "--json", "--database", str(tmp_path / "copy.db"))
    assert listed.returncode == 1
    assert (
        tuner("export", "-o", str(tmp_path / "copy.db"), "--database", str(filled)).returncode == 0
    )
    listed = tuner("list", "--database", str(tmp_path / "copy.db"))
    assert listed.stdout == tuner("list", "--database", str(filled)).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("export", "--format", "sqlite"), 2, "-o FILE"),
        (("export", "-o", "a.json"), 2, "the suffix .json does not say"),
        (("export", "--format", "t4", "--what", "runs"), 2, "--what runs"),
        (("export", "--since", "yesterday"), 2, "yesterday"),
        (("export", "--num-envs", "0"), 2, "num-envs"),
        (("export", "-o", "HERE/no/such/folder.csv"), 1, "no folder"),
        (("export", "-o", "HERE"), 1, "not a file"),
        (("export", "-o", ""), 1, "not a file"),
        (("export", "-o", f"HERE/{'x' * 256}"), 1, "too long"),
        (("export", "-o", "/dev/null"), 1, "not a file"),
        (("export", "-o", "DATABASE"), 1, "the database itself"),
        (("import",), 2, "FILE"),
        (("import", "missing.jsonl"), 1, "missing.jsonl"),
    ],
)
def test_a_wrong_call_is_one_clear_line(
    filled: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    content = filled.read_bytes()
    places = {"DATABASE": str(filled), "HERE": str(tmp_path)}
    given = [places.get(a, a.replace("HERE/", f"{tmp_path}/")) for a in arguments]
    told = tuner(*given, "--database", str(filled))
    assert told.returncode == code, told.stderr
    assert words in told.stderr
    assert "Traceback" not in told.stderr
    if code == 1:
        assert told.stderr.count("\n") == 1
    assert filled.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == [filled.name]


def test_an_export_that_fails_leaves_what_was_there(filled: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    target.write_text("what was there")

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(filled, target, "csv", progress=stop)
    assert target.read_text() == "what was there"
    assert sorted(tmp_path.iterdir()) == sorted([filled, target])


def test_a_name_as_long_as_names_may_be_does_for_an_export(filled: Path) -> None:
    for form, name in (("csv", "x" * 255), ("sqlite", "\u6570" * 85)):
        write_file(filled, filled.with_name(name), form)  # type: ignore[arg-type]
    assert export(filled.with_name(name)) == export(filled)


STOPPED = """
import os, signal, sys
from tuner.cli import main
from tuner.exchange import export, intake
from tuner.store import backup
def stop(*_, **__):
    os.kill(os.getpid(), signal.SIGTERM)
export.write_rows = intake.upgrade = backup._synchronise = stop
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "words",
    [("export", "-o", "out.csv"), ("db", "backup", "out.db"), ("import", "--strict", "foreign.db")],
)
def test_a_command_that_is_told_to_end_leaves_nothing_behind(
    filled: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    shutil.copy(FOLDER / f"{REVISION}.db", tmp_path / "foreign.db")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    before = sorted(tmp_path.iterdir())
    told = subprocess.run(
        [sys.executable, "-c", STOPPED, *words, "--database", str(filled)],
        env=os.environ | {"TMPDIR": str(temporary)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.returncode, told.stdout, told.stderr) == (128 + 15, "", "")
    assert sorted(tmp_path.iterdir()) == before
    assert list(temporary.iterdir()) == []


def test_a_stdout_that_is_closed_is_one_clear_line(filled: Path) -> None:
    command = f"{sys.executable} -m tuner export --database {filled} >&-"
    told = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr.count("\n")) == (1, 1)
    assert "-o FILE" in told.stderr


def test_a_reader_that_has_seen_enough_ends_the_export_quietly(filled: Path) -> None:
    command = f"{sys.executable} -m tuner export --database {filled} | head -n 1"
    told = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert told.stdout.startswith("format,tuning_key,")
    assert told.stderr == ""


def test_a_slow_export_keeps_no_writer_waiting(filled: Path) -> None:
    seen: list[int] = []

    def write_meanwhile(done: int, total: int) -> None:
        if not seen:
            with closing(sqlite3.connect(filled, timeout=0.1)) as writer:
                writer.execute("UPDATE run SET work = 'changed meanwhile'")
                writer.commit()
        seen.append(done)

    rows = export(filled, progress=write_meanwhile)
    assert len(seen) == 8
    assert "changed meanwhile" not in {row["work"] for row in rows}


def test_without_pyarrow_one_line_says_what_to_install(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ArgumentError, match=r"tuner\[parquet\]"):
        write_rows(filled, io.BytesIO(), "parquet")
    file = filled.with_name("x.parquet")
    file.write_bytes(b"PAR1" + bytes(100))
    (found,) = taken_in(filled, file)
    assert "tuner[parquet]" in str(found.error)


def test_a_database_of_before_is_to_be_upgraded_first(tmp_path: Path) -> None:
    old = Path(shutil.copy(FOLDER / "0001.db", tmp_path / "old.db"))
    told = tuner("export", "--database", str(old))
    assert (told.returncode, told.stdout) == (1, "")
    assert "tuner db upgrade" in told.stderr
    assert REVISION in told.stderr


def test_the_document_names_every_column() -> None:
    page = (Path(__file__).parents[1] / "docs" / "files.md").read_text()
    for name in {**COLUMNS, **VERDICT_COLUMNS}:
        assert f"`{name}`" in page
