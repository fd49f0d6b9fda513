"""Exports: formats, filters, anonymous copies, files that appear whole or not at all."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
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
)
from tests.support.facts import a_key
from tests.support.stored import Shell
from tuner import load_cache
from tuner.errors import ArgumentError
from tuner.exchange.export import Format, write_file, write_rows
from tuner.exchange.rows import PRIVATE, ROW_COLUMNS, SAMPLE_COLUMNS, VERDICT_COLUMNS
from tuner.records import Candidate, Run, RunMetadata, Sample
from tuner.store.maintenance import check
from tuner.store.queries import EVERYTHING, Selection, read_overview
from tuner.store.runs import pin, recompute, save_run
from tuner.store.sqlite import REVISION


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


FORMS: tuple[Format, ...] = ("csv", "jsonl", "parquet", "sqlite")
SECRET = "s3cret"


@pytest.mark.parametrize("form", FORMS)
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
    for what in ("samples", "runs", "verdicts") if form != "sqlite" else ("samples",):
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
    if form in ("jsonl", "sqlite"):
        file = exported(database, form, anonymous=True)
        assert imported(other, file)[0].new_runs == 1
        assert imported(database, file)[0].known_runs == 1


def test_a_database_export_holds_nothing_that_others_added(filled: Path, tmp_path: Path) -> None:
    execute(
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
    imported(database, exported(filled, "jsonl"))
    measured("ours", a_key(), database, 3)
    anonymous = exported(database, "sqlite", anonymous=True)
    assert b"there-export" not in anonymous.read_bytes()
    for row in export(anonymous, what="runs"):
        assert (row["origin"] is None) == (row["run_uid"] == "ours")
    before = all_rows(anonymous)
    recompute(anonymous)
    assert all_rows(anonymous) == before


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


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("export", "--format", "sqlite"), 2, "-o FILE"),
        (("export", "-o", "a.json"), 2, "unknown suffix .json"),
        (("export", "--format", "sqlite", "--what", "runs"), 2, "--what runs"),
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
    filled: Path, tmp_path: Path, shell: Shell, arguments: tuple[str, ...], code: int, words: str
) -> None:
    content = filled.read_bytes()
    places = {"DATABASE": str(filled), "HERE": str(tmp_path)}
    given = [places.get(a, a.replace("HERE/", f"{tmp_path}/")) for a in arguments]
    told = shell(*given, "--database", str(filled))
    assert told.code == code, told.err
    assert words in told.err
    assert "Traceback" not in told.err
    if code == 1:
        assert told.err.count("\n") == 1
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
from tuner.exchange import export, importing
from tuner.store import database as backup
def stop(*_, **__):
    os.kill(os.getpid(), signal.SIGTERM)
export.write_rows = importing.upgrade = backup._synchronise = stop
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


def test_a_database_of_before_is_to_be_upgraded_first(tmp_path: Path, shell: Shell) -> None:
    old = Path(shutil.copy(FOLDER / "0001.db", tmp_path / "old.db"))
    told = shell("export", "--database", str(old))
    assert (told.code, told.out) == (1, "")
    assert "tuner db upgrade" in told.err
    assert REVISION in told.err


def test_formats_say_the_same(filled: Path) -> None:
    kinds = {name: column.kind for name, column in ROW_COLUMNS["samples"].items()}
    rows = export(filled, "parquet")
    assert len(rows) == 144 + 3  # a run without samples is a row too
    flat = [
        {name: value for name, value in run.items() if name != "timings"}
        | dict(zip(SAMPLE_COLUMNS, sample, strict=True))
        for run in export(filled)
        for sample in run["timings"] or [(None,) * 6]
    ]
    assert flat == rows
    for one, other in zip(export(filled, "csv"), rows, strict=True):
        assert list(one) == list(other) == ["format", *kinds]
        for name, text in one.items():
            value = other[name]
            if value is None:
                assert text == ""
            elif type(value) is bool:
                assert text == str(value).lower()
            else:
                assert kinds.get(name, str)(text) == value


def test_the_commands(filled: Path, database: Path, tmp_path: Path, shell: Shell) -> None:
    file = tmp_path / "out.jsonl"
    told = shell("export", "-o", file, "--database", filled)
    assert (told.code, told.err) == (0, "")
    assert told.out.startswith(f"{file}: 147 rows of 8 runs of {filled}")
    imported = shell("import", file, "--database", database)
    assert (imported.code, imported.err) == (0, "")
    assert imported.out.splitlines()[1].split() == ["out.jsonl", "8", "144", "6", "0", "0"]
    with file.open("a") as stream:
        stream.write('{"format":"tuner.samples.9"}\n')
    again = shell("import", "--json", file, "--database", database)
    assert again.code == 3
    assert again.err.count("\n") == 1
    assert again.err.startswith(f"{file}:9: ")
    told_json = json.loads(again.out)
    assert told_json["done"] is True
    assert told_json["files"][0]["known_runs"] == 8
    assert told_json["files"][0]["rejections"][0]["line"] == 9
    strict = shell("import", "--strict", file, "--database", tmp_path / "no.db")
    assert strict.code == 3
    assert "nothing was imported" in strict.err
    assert not (tmp_path / "no.db").exists()


def test_without_pyarrow_one_line_says_what_to_install(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ArgumentError, match=r"tuner\[parquet\]"):
        write_rows(filled, io.BytesIO(), "parquet")


def test_the_document_names_every_column() -> None:
    page = (Path(__file__).parents[2] / "docs" / "files.md").read_text()
    for name in {**ROW_COLUMNS["samples"], **VERDICT_COLUMNS}:
        assert f"`{name}`" in page
