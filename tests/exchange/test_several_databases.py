"""Imports from several databases and files: in any order, of one run twice, next to a bad file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.support.exchanged import all_rows, export, exported, imported, measured, without_origin
from tests.support.facts import a_key
from tests.support.stored import Shell
from tuner import load_cache
from tuner.store.queries import Selection
from tuner.store.runs import recompute


def test_the_order_of_files_does_not_matter_and_no_run_is_stored_twice(tmp_path: Path) -> None:
    one, two, three = (tmp_path / f"{name}.db" for name in ("one", "two", "three"))
    for number, file in enumerate((one, two, three)):
        measured(f"run {number}", a_key(), file, number + 1)
        measured(f"other {number}", a_key(nthread=number + 1), file, number + 1)
    imported(two, exported(one, "jsonl"))  # these two machines have met before
    files = [exported(one, "jsonl"), exported(two, "sqlite"), three]
    ends = []
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        end = tmp_path / f"end{order}.db"
        found = imported(end, *(files[number] for number in order))
        assert sum(file.new_runs for file in found) == 6
        assert sum(file.rejected for file in found) == 0
        ends.append((without_origin(export(end)), load_cache(end)))
    assert ends[0] == ends[1] == ends[2]


def test_a_run_that_is_known_adds_the_facts_of_its_key(database: Path, tmp_path: Path) -> None:
    poor, rich = tmp_path / "poor.db", tmp_path / "rich.db"
    measured("one", str(a_key()), poor)  # by its digest alone
    imported(rich, poor)
    measured("two", a_key(), rich, 2)
    file = exported(rich, "jsonl", selection=Selection(until="2026-02-01"))
    lines = [line for line in file.read_text().splitlines(keepends=True) if '"one"' in line]
    assert len(lines) == 1
    file.write_text(lines[0])
    imported(poor, file)
    imported(database, file, poor)
    assert {row["num_envs"] for row in export(poor)} == {1024}
    assert export(poor, what="verdicts") != []
    before = all_rows(poor)
    assert imported(poor, file)[0].known_runs == 1
    recompute(poor)
    assert all_rows(poor) == before


def test_a_database_in_wal_mode_is_imported_with_its_log(filled: Path, database: Path) -> None:
    with closing(sqlite3.connect(filled, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("UPDATE run SET hostname = 'only in the log' WHERE hostname IS NOT NULL")
        before = sorted(filled.parent.iterdir())
        (found,) = imported(database, filled)
        assert found.new_runs == 8
        assert sorted(filled.parent.iterdir()) == sorted([*before, database])
    assert "only in the log" in {row["hostname"] for row in export(database)}


def test_a_link_to_a_file_is_followed(filled: Path, database: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.jsonl"
    link.symlink_to(exported(filled, "jsonl"))
    assert imported(database, link)[0].new_runs == 8


def test_one_bad_file_does_not_keep_the_others_out(
    filled: Path, database: Path, tmp_path: Path, shell: Shell
) -> None:
    noise = tmp_path / "noise.bin"
    noise.write_bytes(b"\x93 noise" * 100)
    told = shell("import", noise, exported(filled, "jsonl"), "--database", database)
    assert told.code == 3
    assert told.err.count("\n") == 1
    assert len(export(database, what="runs")) == 8
