"""Files of unknown origin: a reason for what is wrong, bounded memory, nothing executed."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.golden.make import FOLDER
from tests.support.exchanged import (
    execute,
    export,
    imported,
    measured,
)
from tests.support.facts import a_key
from tests.support.stored import Shell
from tuner.exchange import importing
from tuner.store.maintenance import check

GOLDEN = FOLDER / "0002.db"


def missing_file(tmp_path: Path) -> Path:
    return tmp_path / "missing"


def folder(tmp_path: Path) -> Path:
    return tmp_path


def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def device(tmp_path: Path) -> Path:
    return Path("/dev/zero")


def link_to_a_device(tmp_path: Path) -> Path:
    (tmp_path / "link").symlink_to("/dev/zero")
    return tmp_path / "link"


def link_to_itself(tmp_path: Path) -> Path:
    (tmp_path / "link").symlink_to(tmp_path / "link")
    return tmp_path / "link"


def empty(tmp_path: Path) -> Path:
    (tmp_path / "empty").touch()
    return tmp_path / "empty"


def noise(tmp_path: Path) -> Path:
    (tmp_path / "noise").write_bytes(random.Random(3).randbytes(5000))
    return tmp_path / "noise"


def no_name(tmp_path: Path) -> Path:
    return tmp_path / ("x" * 300)


@pytest.mark.parametrize(
    "place",
    [
        missing_file,
        folder,
        pipe,
        device,
        link_to_a_device,
        link_to_itself,
        empty,
        noise,
        no_name,
    ],
)
def test_what_is_missing_file_to_import_is_one_clear_line(
    database: Path, tmp_path: Path, place: Callable[[Path], Path], shell: Shell
) -> None:
    file = place(tmp_path)
    told = shell("import", str(file), "--database", str(database))
    assert (told.code, told.out) == (1, "")
    assert told.err.count("\n") == 1
    assert told.err.startswith("tuner: cannot ")
    assert not database.exists()
    assert "Traceback" not in told.err


def views_for_tables(file: Path) -> None:
    execute(
        file,
        "DROP VIEW run_history",
        "ALTER TABLE sample RENAME TO hidden",
        "CREATE VIEW sample AS SELECT * FROM hidden",
    )


def version_view(file: Path) -> None:
    execute(
        file,
        "DROP TABLE alembic_version",
        "CREATE VIEW alembic_version AS SELECT '0002' AS version_num",
    )


def of_the_future(file: Path) -> None:
    execute(file, "UPDATE alembic_version SET version_num = '9999'")


def of_something_else(file: Path) -> None:
    file.unlink()
    execute(file, "CREATE TABLE invoices (total)")


def cut_off(file: Path) -> None:
    os.truncate(file, 5000)


def header_alone(file: Path) -> None:
    os.truncate(file, 100)


def wrong_page_size(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[16:18] = (777).to_bytes(2, "big")
    file.write_bytes(content)


def scribbled_schema(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[100:4096] = random.Random(5).randbytes(3996)
    file.write_bytes(content)


def hot_journal(file: Path) -> None:
    journal = file.with_name(f"{file.name}-journal")
    journal.write_bytes(bytes.fromhex("d9d505f920a163d7") + bytes(1000))


@pytest.mark.parametrize(
    "spoil",
    [
        views_for_tables,
        version_view,
        of_the_future,
        of_something_else,
        cut_off,
        header_alone,
        wrong_page_size,
        scribbled_schema,
        hot_journal,
    ],
)
def test_a_database_that_is_not_as_we_make_them_is_not_read(
    database: Path, tmp_path: Path, spoil: Callable[[Path], None], shell: Shell
) -> None:
    file = Path(shutil.copy(GOLDEN, tmp_path / "foreign.db"))
    spoil(file)
    content, files = file.read_bytes(), sorted(tmp_path.iterdir())
    told = shell("import", str(file), "--database", str(database))
    assert told.code == 1, (told.out, told.err)
    assert told.err.count("\n") == 1
    assert str(file) in told.err
    assert file.read_bytes() == content
    assert told.out == ""
    assert sorted(tmp_path.iterdir()) == files


@pytest.mark.parametrize("revision", ["0001", "0002"])
def test_triggers_and_foreign_views_do_nothing(
    database: Path, tmp_path: Path, revision: str
) -> None:
    file = Path(shutil.copy(FOLDER / f"{revision}.db", tmp_path / "foreign.db"))
    statements = [
        f"CREATE TRIGGER trap_{table}_{event} {when} {event} ON {table} "
        "BEGIN DELETE FROM sample; SELECT raise(abort, 'trapped'); END"
        for table in ("run", "verdict", "sample", "model", "device", "alembic_version")
        for when, event in (("BEFORE", "INSERT"), ("AFTER", "UPDATE"), ("BEFORE", "DELETE"))
    ]
    with closing(sqlite3.connect(file)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.execute("CREATE VIEW trap AS SELECT randomblob(1000000000) AS b FROM run")
        connection.execute("DROP VIEW run_history")
        connection.execute("CREATE VIEW run_history AS SELECT * FROM trap")
        connection.execute("CREATE INDEX trap_index ON run (abs(seed))")
        connection.execute("CREATE TABLE notes (a, b AS (a + 1))")
        connection.commit()
    (found,) = imported(database, file)
    assert (found.new_runs, found.rejected, found.error) == (7, 0, None)
    assert check(database) == []


def test_rows_that_break_the_rules_of_their_table_are_rejected(
    database: Path, tmp_path: Path
) -> None:
    file = Path(shutil.copy(GOLDEN, tmp_path / "foreign.db"))
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("UPDATE sample SET nanoseconds = -5 WHERE run_id = 2")
        connection.execute("UPDATE run SET hostname = CAST(x'ff' AS TEXT) WHERE run_id = 1")
        connection.execute("UPDATE run SET message = ? WHERE run_id = 3", ("x" * 3_000_000,))
        connection.execute("UPDATE run SET key_id = 99 WHERE run_id = 4")
        connection.execute("UPDATE run SET samples = 4 WHERE run_id = 5")
        connection.commit()
    (found,) = imported(database, file)
    assert (found.new_runs, found.error) == (2, None)
    assert sorted(place for place, _ in found.rejections) == [1, 2, 3, 4, 5]
    assert check(database) == []


def test_a_journal_that_names_other_files_deletes_nothing(database: Path, tmp_path: Path) -> None:
    file = Path(shutil.copy(GOLDEN, tmp_path / "foreign.db"))
    journal = tmp_path / "foreign.db-journal"
    journal.write_bytes(bytes(1000))  # played back already: its first bytes are gone
    assert imported(database, file)[0].new_runs == 7
    assert journal.exists()


def test_a_database_that_asks_for_memory_does_not_get_it(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "MAX_REASONS", 1000)
    file = Path(shutil.copy(GOLDEN, tmp_path / "foreign.db"))
    with closing(sqlite3.connect(file)) as connection:
        columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(run)")]
        run = dict(zip(columns, connection.execute("SELECT * FROM run").fetchone(), strict=True))
        for number in range(320):
            values = run | {"run_id": 100 + number, "uid": str(number), "message": "x" * 900_000}
            connection.execute(
                f"INSERT INTO run ({', '.join(columns)}) VALUES (:{', :'.join(columns)})", values
            )
        connection.commit()
        connection.execute("PRAGMA default_cache_size = 10000000")
    (found,) = imported(database, file)
    assert (found.new_runs, found.rejected, found.error) == (7, 320, None)
    assert all("message" in reason for _, reason in found.rejections)


PEAK = """
import sys
from pathlib import Path
from tuner.exchange.importing import import_files
def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
before = peak()
done, (found,) = import_files(Path(sys.argv[1]), [Path(sys.argv[2])])
print(found.new_runs, found.rejected, (peak() - before) // 1024)
print(found.rejections, found.error)
"""


def test_a_line_without_an_end_takes_little_memory(database: Path, tmp_path: Path) -> None:
    file = tmp_path / "endless.jsonl"
    with file.open("wb") as stream:
        stream.write(b'{"format":"')
        stream.seek(1_000_000_000)
        stream.write(b'"}\n')
    command = [sys.executable, "-c", PEAK, str(database), str(file)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    new, rejected, megabytes = map(int, run.stdout.split("\n")[0].split())
    assert (new, rejected) == (0, 1)
    assert megabytes < 300, run.stdout


def test_exported_names_cannot_break_a_line(database: Path, tmp_path: Path, shell: Shell) -> None:
    file = tmp_path / "a\nb.jsonl"
    file.write_text('{"format":"\\u001b[31m"}\n')
    told = shell("import", str(file), "--database", str(database))
    assert told.code == 3
    assert "\x1b" not in told.err + told.out
    assert told.err.count("\n") == 1


def test_runs_on_damaged_pages_are_rejected_and_the_others_stored(
    filled: Path, database: Path
) -> None:
    for number in range(40):
        measured(f"run {number}", a_key(), filled, number % 20)
    with closing(sqlite3.connect(filled)) as connection:
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
        (page,) = connection.execute(
            "SELECT pageno FROM dbstat WHERE name = 'sample' AND pagetype = 'leaf' LIMIT 1"
        ).fetchone()
    with filled.open("r+b") as stream:
        stream.seek((page - 1) * page_size)
        stream.write(random.Random(3).randbytes(page_size))
    (found,) = imported(database, filled, as_own=True)
    assert found.error is None
    assert 0 < found.new_runs < 48
    assert found.new_runs + found.rejected == 48
    assert "cannot be read" in found.rejections[0][1]
    assert {row["origin"] for row in export(database)} == {None}
    assert check(database) == []
