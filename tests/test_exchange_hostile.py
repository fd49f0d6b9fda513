"""Whatever is handed to `tuner import`: a reason for what is wrong, bounded memory, nothing run."""

from __future__ import annotations

import errno
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
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.make import FOLDER, make
from tests.support.facts import DEVICE, a_key
from tests.test_bad_files import _execute
from tests.test_cli import tuner
from tests.test_exchange import export, is_empty, taken_in
from tuner import store_cache
from tuner.errors import DatabaseError, TunerError
from tuner.exchange import intake, readers
from tuner.exchange.cache_file import read_cache
from tuner.exchange.readers import Problem, Rows, read_csv, read_json_lines
from tuner.exchange.rows import COLUMNS, FACTS, RowError, arrival_of, sample_of
from tuner.exchange.spool import Spool
from tuner.exchange.writers import CsvWriter, JsonLinesWriter
from tuner.records import Candidate, Run, Verdict
from tuner.store import importing
from tuner.store.exporting import RUN_COLUMNS, SAMPLE_COLUMNS, Snapshot
from tuner.store.importing import MOST_CANDIDATES, take_in
from tuner.store.maintenance import check
from tuner.store.migrate import upgrade
from tuner.workload import CacheKey

GOLDEN = FOLDER / "0002.db"


class Good(list[dict[str, Any]]):
    """Rows that hypothesis need not repeat."""

    def __repr__(self) -> str:
        return "good rows"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Export one of everything, as rows."""
    file = tmp_path_factory.mktemp("good") / "there.db"
    make(file)
    known = {"cpu_quota": 2.5, "unequal_cores": True, "cpu_model": "A", "numa_nodes": 2}
    store_cache(file, a_key(device=DEVICE | known), {"chunk_size": 3})
    return Good(export(file))


def lines(rows: list[dict[str, Any]]) -> bytes:
    """Write rows as JSON lines, whatever is in them."""
    return b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows)


def one_run(good: list[dict[str, Any]], **changes: Any) -> list[dict[str, Any]]:
    """Take the rows of one run, with changes."""
    return [row | changes for row in good if row["run_uid"] == f"{3:032x}"]


# --- values


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"nanoseconds": float("nan")}, "NaN"),
    ({"nanoseconds": float("inf")}, "Infinity"),
    ({"nanoseconds": -1}, "nanoseconds is -1"),
    ({"nanoseconds": 0}, "nanoseconds is 0"),
    ({"nanoseconds": 2**63}, "nanoseconds is"),
    ({"nanoseconds": 10**400}, "hundreds of digits"),
    ({"nanoseconds": 10**5000}, "no JSON"),
    ({"nanoseconds": 1.5}, "nanoseconds is 1.5"),
    ({"nanoseconds": "12"}, "nanoseconds is '12'"),
    ({"nanoseconds": [1] * 1000}, "a list of 1000"),
    ({"nanoseconds": True}, "nanoseconds is True"),
    ({"nanoseconds": None}, "nanoseconds is missing"),
    ({"steps": 0}, "steps is 0"),
    ({"warm_up": 2}, "warm_up is 2"),
    ({"round": -1}, "round is -1"),
    ({"sample_order": 0}, "there twice"),
    ({"chunk_size": 0}, "chunk_size is 0"),
    ({"chunk_size": 4097}, "more than num_envs 4096"),
    ({"samples": 6}, "samples"),
    ({"samples": 10**12}, "more than"),
    ({"samples": -1}, "samples is -1"),
    ({"samples": None}, "samples is missing"),
    ({"run_uid": None}, "run_uid is None"),
    ({"run_uid": ""}, "run_uid is missing"),
    ({"run_uid": "x" * 2000}, "2000 characters"),
    ({"run_uid": 7}, "run_uid is 7"),
    ({"state": "measured"}, "state is 'measured'"),
    ({"occasion": "fun"}, "occasion is 'fun'"),
    ({"finished_utc": "yesterday"}, "finished_utc is 'yesterday'"),
    ({"finished_utc": "2026-02-30T00:00:00Z"}, "finished_utc"),
    ({"finished_utc": "2026-01-31T00:00:00+01:00"}, "finished_utc"),
    ({"finished_utc": None}, "finished_utc is missing"),
    ({"pool_seconds": -0.5}, "pool_seconds is -0.5"),
    ({"load_average": 1e13}, "load_average"),
    ({"pid": -4}, "pid is -4"),
    ({"hostname": "\ud800"}, "no text that a database holds"),
    ({"hostname": "a\0b"}, "no text that a database holds"),
    ({"hostname": "x" * 200_000}, "200000 characters"),
    ({"hostname": {"a": 1}}, "a text is expected"),
    ({"run_other_facts": "[1]"}, "a JSON object"),
    ({"run_other_facts": '{"a": NaN}'}, "a JSON object"),
    ({"run_other_facts": '{"a":' * 10_000}, "a JSON object"),
    ({"failed_chunk_sizes": "[0]"}, "failed_chunk_sizes"),
    ({"failed_chunk_sizes": "[" * 50_000}, "failed_chunk_sizes"),
    ({"has_choice": False, "chosen_chunk_size": 4}, "has_choice does not say so"),
    ({"has_choice": True, "chosen_chunk_size": 5000}, "more than num_envs"),
    ({"tuning_key": "k1_0"}, "make the key"),
    ({"tuning_key": None}, "tuning_key is missing"),
    ({"tuning_key": ""}, "is not a key"),
    ({"num_envs": 4097}, "make the key"),
    ({"nthread": None}, "a key has all or no facts"),
    ({"nq": 20}, "make the model_digest"),
    ({"nq": 10**30}, "nq is"),
    ({"cpu_model": "another"}, "make the device_digest"),
    ({"model_digest": None}, "make the model_digest"),
    ({"model_other_facts": '{"nq": 4}'}, "stands in its own column"),
    ({"format": "tuner.samples.2"}, "format is 'tuner.samples.2'"),
    ({"format": None}, "format is None"),
    ({"surprise": 1}, "column 'surprise' is unknown"),
    ({"x" * 10_000: 1}, "is unknown"),
]


@pytest.mark.parametrize(("change", "words"), WRONG)
def test_a_wrong_value_is_rejected_with_a_short_reason(
    good: list[dict[str, Any]], database: Path, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    file = tmp_path / "wrong.jsonl"
    if "nanoseconds" in change and change["nanoseconds"] == 10**5000:
        monkey = lines(one_run(good)).replace(b'"nanoseconds":', b'"nanoseconds":' + b"9" * 5000)
        file.write_bytes(monkey)
    else:
        file.write_bytes(lines(one_run(good, **change)))
    (found,) = taken_in(database, file)
    assert found.new_runs == 0
    assert found.rejected >= 1
    assert any(words in reason for _, reason in found.rejections), found.rejections
    assert all(len(reason) < 400 for _, reason in found.rejections)
    assert is_empty(database)


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["complete", "new", "{}", '{"a":1}', "[null]", "2026-01-31T12:00:00Z"])
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)


@given(st.data())
def test_what_the_parser_lets_through_the_schema_takes(
    good: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rows = one_run(good) if data.draw(st.booleans()) else [data.draw(st.sampled_from(good[:1]))]
    facts = {name: value for name, value in rows[0].items() if name in FACTS}
    facts |= data.draw(st.dictionaries(st.sampled_from(list(FACTS)), VALUES, max_size=3))
    changes = data.draw(st.dictionaries(st.sampled_from(list(SAMPLE_COLUMNS)), VALUES, max_size=2))
    number = data.draw(st.integers(0, len(rows) - 1))
    rows[number] = rows[number] | changes
    try:
        samples = [sample for row in rows if (sample := sample_of(row)) is not None]
        arrival = arrival_of(facts, samples, 1)
    except RowError:
        return
    file = tmp_path_factory.mktemp("taken") / "tuning.db"
    upgrade(file)
    ((fate,),) = take_in(file, [[arrival]])
    assert fate.kind == "new", fate
    (row,) = export(file, what="runs")
    for name, column in RUN_COLUMNS.items():
        value = facts.get(name)
        if value is not None and column.kind in (int, bool):
            assert row[name] == value
    assert row["tuning_key"] == facts["tuning_key"]
    if facts.get("num_envs") is not None:
        assert isinstance(arrival.key, CacheKey)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30)


@given(st.dictionaries(st.sampled_from([n for n, c in FACTS.items() if c.kind is str]), TEXT))
def test_any_text_survives_the_journey(good: list[dict[str, Any]], texts: dict[str, str]) -> None:
    rows = one_run(good)
    facts = {name: rows[0][name] for name in FACTS} | texts | {"format": rows[0]["format"]}
    samples = [sample for row in rows if (sample := sample_of(row)) is not None]
    for make_writer, read in (
        (lambda stream: CsvWriter(stream, COLUMNS), read_csv),
        (JsonLinesWriter, read_json_lines),
    ):
        stream = io.BytesIO()
        make_writer(stream).add(facts, samples)
        stream.seek(0)
        parts = [part for part in read(stream) if isinstance(part, Rows)]
        assert all(part.facts == facts for part in parts)
        assert [sample for part in parts for sample in part.samples] == samples


# --- forms


def spoiled(content: bytes, draw: random.Random) -> bytes:
    """Spoil a file in a few places."""
    spoilt = bytearray(content)
    for _ in range(draw.randrange(1, 6)):
        place = draw.randrange(len(spoilt))
        kind = draw.randrange(4)
        if kind == 0:
            spoilt[place] = draw.randrange(256)
        elif kind == 1:
            del spoilt[place : place + draw.randrange(1, 300)]
        elif kind == 2:
            spoilt[place:place] = draw.choice([b'"', b",", b"\n", b"{", b"}", b"\\", b"\0", b"9"])
        else:
            start = draw.randrange(len(spoilt))
            spoilt[place:place] = spoilt[start : start + draw.randrange(1, 3000)]
    return bytes(spoilt)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_spoiled_file_is_read_as_if_every_line_were_looked_at(
    good: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    rows = one_run(good)
    stream = io.BytesIO()
    writer = CsvWriter(stream, COLUMNS) if form == "csv" else JsonLinesWriter(stream)
    samples = [sample for row in rows if (sample := sample_of(row)) is not None]
    writer.add({name: rows[0][name] for name in FACTS}, samples)
    writer.add({name: good[0][name] for name in FACTS}, [])
    content = stream.getvalue()
    read: Callable[[io.BytesIO], Any] = read_csv if form == "csv" else read_json_lines

    def told(content: bytes) -> list[Any]:
        found: list[Any] = []
        for part in read(io.BytesIO(content)):
            if isinstance(part, Problem):
                found.append(part)
            else:
                found += [(part.facts, sample) for sample in part.samples or [None]]
        return found

    for seed in range(300):
        spoilt = spoiled(content, random.Random(seed))
        quick = told(spoilt)
        with monkeypatch.context() as patch:
            patch.setattr(readers, "MOST_TOGETHER", 0)
            assert told(spoilt) == quick


def test_lines_are_read_alike_wherever_a_block_ends(
    good: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = one_run(good)
    stream = io.BytesIO()
    samples = [sample for row in rows if (sample := sample_of(row)) is not None]
    facts = {name: rows[0][name] for name in FACTS}
    JsonLinesWriter(stream).add(facts, samples)
    JsonLinesWriter(stream).add(facts, samples)
    content = stream.getvalue().rstrip(b"\n")
    spoilt = content[:-9] + b"x" + content[-8:]
    longest = max(map(len, content.splitlines())) + 1
    for size in range(longest, 3 * longest, 37):
        monkeypatch.setattr(readers, "LONGEST_RECORD", size)
        (part,) = read_json_lines(io.BytesIO(content))
        assert isinstance(part, Rows)
        assert part.samples == samples * 2
        first, problem = read_json_lines(io.BytesIO(spoilt))
        assert isinstance(first, Rows)
        assert len(first.samples) == 2 * len(samples) - 1
        assert isinstance(problem, Problem)
        assert problem.place == 2 * len(samples)


@given(st.binary(max_size=300))
def test_random_bytes_are_problems_at_most(content: bytes) -> None:
    for read in (read_csv, read_json_lines, read_cache):
        for part in read(io.BytesIO(content)):
            if isinstance(part, Problem):
                assert len(part.reason) < 1000


SHAPES: list[tuple[str, bytes, str]] = [
    ("deep.jsonl", b'{"format":' + b"[" * 500_000, "no JSON"),
    ("deep.json", b'{"k":' + b"[" * 500_000 + b"]" * 500_000 + b"}", "no JSON"),
    ("long.jsonl", b'{"format":"' + b"x" * 3_000_000 + b'"}\n{"format":1}', "longer than"),
    ("long.json", b'{"' + b"x" * 3_000_000 + b'":{"chunk_size":1}}', "no JSON"),
    ("open.json", b'{"k": {"chunk_size": 0}', "does not end"),
    ("more.json", b'{"k": {"chunk_size": 0}} {}', "behind the JSON object"),
    ("list.json", b'{"k": [1]}', "value must be a dict"),
    ("big.json", b'{"k": {"chunk_size": 1' + b"0" * 5000 + b"}}", "no JSON"),
    (
        "name.json",
        b'{"k": {"chunk_size": 1, "per_candidate_ms": {"' + b"9" * 5000 + b'": 1}}}',
        "k",
    ),
    ("key.json", b'{"' + b"k" * 5000 + b'": {"chunk_size": 1}}', "is not a key"),
    ("empty.json", b'{"": {"chunk_size": 1}}', "is not a key"),
    ("high.json", b'{"k": {"chunk_size": 1, "per_candidate_ms": {"4": 1e999}}}', "give milli"),
    ("head.csv", b"format,tuning_key\n1,2\n", "is missing"),
    ("runs.csv", b"format,tuning_key,samples,has_choice\n", "export samples"),
    ("verdicts.csv", b"format,tuning_key,stack,samples\n", "export samples"),
    ("twice.csv", b"tuning_key,tuning_key\n", "there twice"),
    ("quote.csv", (",".join(COLUMNS) + '\n"').encode() + b"x" * 2_000_000, "longer than"),
    ("wide.csv", (",".join(COLUMNS) + "\n").encode() + b"," * 10_000, "10001 fields"),
    ("lines.csv", (",".join(COLUMNS) + "\n").encode() + b'"a\nb",' * 400_000, "longer than"),
    ("latin.csv", (",".join(COLUMNS) + "\n").encode() + b"\xff\n", "no CSV"),
]


@pytest.mark.parametrize(("name", "content", "words"), SHAPES)
def test_a_file_of_a_wrong_form_has_a_reason(
    database: Path, tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    (found,) = taken_in(database, file)
    assert found.new_runs == 0
    reasons = [reason for _, reason in found.rejections]
    assert any(words in reason for reason in reasons), (found.error, reasons)
    assert all(len(reason) < 500 for reason in reasons)


def test_an_entry_of_a_cache_that_is_ambiguous_or_endless_is_rejected_alone(
    database: Path, tmp_path: Path
) -> None:
    file = tmp_path / "cache.json"
    file.write_text(
        '{"a": {"chunk_size": 1, "chunk_size": 2},\n"b": {"chunk_size": 3},\n'
        '"c": {"chunk_size": 4, "note": [{"x": 1, "x": 2}]},\n'
        + json.dumps({"d": {"chunk_size": 5, "note": "x" * 100_001}})[1:-1]
        + ",\n"
        + json.dumps({"e": {"chunk_size": 5, "model_file": "x" * 100_001}})[1:]
    )
    (found,) = taken_in(database, file)
    assert (found.new_runs, found.rejected) == (1, 4)
    assert [place for place, _ in found.rejections] == [1, 3, 4, 5]
    assert "twice" in found.rejections[0][1]
    assert "characters" in found.rejections[3][1]
    assert [row["tuning_key"] for row in export(database)] == ["b"]


def test_texts_that_no_database_holds_make_no_twins_of_a_caches_runs(
    database: Path, tmp_path: Path
) -> None:
    file = tmp_path / "cache.json"
    odd = {"model_file": "a\0b\ud800", "hostname": "\udfff", "note": "\ud800\0"}
    file.write_text(json.dumps({"k": {"chunk_size": 3} | odd}))
    assert taken_in(database, file)[0].new_runs == 1
    assert taken_in(database, file)[0].known_runs == 1


@pytest.mark.parametrize("form", ["csv", "jsonl", "cache"])
def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(
    good: list[dict[str, Any]], database: Path, tmp_path: Path, form: str
) -> None:
    stream = io.BytesIO()
    writer = CsvWriter(stream, COLUMNS) if form == "csv" else JsonLinesWriter(stream)
    rows = one_run(good)
    samples = [sample for row in rows if (sample := sample_of(row)) is not None]
    writer.add({name: rows[0][name] for name in FACTS}, samples)
    content = b'{"k":\n{"chunk_size": 3}}\n' if form == "cache" else stream.getvalue()
    file = tmp_path / "from-elsewhere"
    file.write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    (found,) = taken_in(database, file)
    assert (found.new_runs, found.rejected, found.error) == (1, 0, None)


def test_a_result_file_of_t4_says_what_to_export_instead(database: Path, tmp_path: Path) -> None:
    file = tmp_path / "t4.json"
    file.write_bytes(b'{"schema_version": "1.0.0", "metadata": {}, "results": []}')
    (found,) = taken_in(database, file)
    assert found.error is not None
    assert "it is T4" in found.error


def test_a_file_of_nothing_but_wrong_rows_is_given_up(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MOST_WRONG", 50)
    file = tmp_path / "wrong.jsonl"
    file.write_bytes(b'{"format":1}\n' * 1000)
    (found,) = taken_in(database, file)
    assert found.rejected == 51
    assert "the rest of it is not read" in str(found.error)


def no_file(tmp_path: Path) -> Path:
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
        no_file,
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
def test_what_is_no_file_to_import_is_one_clear_line(
    database: Path, tmp_path: Path, place: Callable[[Path], Path]
) -> None:
    file = place(tmp_path)
    told = tuner("import", str(file), "--database", str(database))
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.count("\n") == 1
    assert told.stderr.startswith("tuner: cannot ")
    assert not database.exists()
    assert "Traceback" not in told.stderr


def test_a_link_to_a_file_is_followed(good: list[dict[str, Any]], database: Path) -> None:
    file, link = database.with_name("real.jsonl"), database.with_name("link.jsonl")
    file.write_bytes(lines(good))
    link.symlink_to(file)
    assert taken_in(database, link)[0].new_runs == 8


def test_one_bad_file_does_not_keep_the_others_out(
    good: list[dict[str, Any]], database: Path, tmp_path: Path
) -> None:
    file = tmp_path / "good.jsonl"
    file.write_bytes(lines(good))
    told = tuner("import", str(noise(tmp_path)), str(file), "--database", str(database))
    assert told.returncode == 3
    assert told.stderr.count("\n") == 1
    assert len(export(database, what="runs")) == 8


# --- databases


def views_for_tables(file: Path) -> None:
    _execute(
        file,
        "DROP VIEW run_history",
        "ALTER TABLE sample RENAME TO hidden",
        "CREATE VIEW sample AS SELECT * FROM hidden",
    )


def generated_column(file: Path) -> None:
    _execute(file, "ALTER TABLE run ADD COLUMN trap BLOB AS (zeroblob(1000000000))")


def another_table(file: Path) -> None:
    _execute(
        file,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = replace(sql, 'STRICT', '') WHERE name = 'run'",
    )


def version_view(file: Path) -> None:
    _execute(
        file,
        "DROP TABLE alembic_version",
        "CREATE VIEW alembic_version AS SELECT '0002' AS version_num",
    )


def of_the_future(file: Path) -> None:
    _execute(file, "UPDATE alembic_version SET version_num = '9999'")


def of_something_else(file: Path) -> None:
    file.unlink()
    _execute(file, "CREATE TABLE invoices (total)")


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


def too_many_tables(file: Path) -> None:
    _execute(file, "BEGIN", *(f"CREATE TABLE t{number} (a)" for number in range(1100)))


def hot_journal(file: Path) -> None:
    journal = file.with_name(f"{file.name}-journal")
    journal.write_bytes(bytes.fromhex("d9d505f920a163d7") + bytes(1000))


@pytest.mark.parametrize(
    "spoil",
    [
        views_for_tables,
        generated_column,
        another_table,
        version_view,
        of_the_future,
        of_something_else,
        cut_off,
        header_alone,
        wrong_page_size,
        scribbled_schema,
        too_many_tables,
        hot_journal,
    ],
)
def test_a_database_that_is_not_as_we_make_them_is_not_read(
    database: Path, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    file = Path(shutil.copy(GOLDEN, tmp_path / "foreign.db"))
    spoil(file)
    content, files = file.read_bytes(), sorted(tmp_path.iterdir())
    told = tuner("import", str(file), "--database", str(database))
    assert told.returncode == 1, (told.stdout, told.stderr)
    assert told.stderr.count("\n") == 1
    assert str(file) in told.stderr
    assert file.read_bytes() == content
    assert told.stdout == ""
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
    (found,) = taken_in(database, file)
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
    (found,) = taken_in(database, file)
    assert (found.new_runs, found.error) == (2, None)
    assert sorted(place for place, _ in found.rejections) == [1, 2, 3, 4, 5]
    assert check(database) == []


def test_a_journal_that_names_other_files_deletes_nothing(database: Path, tmp_path: Path) -> None:
    file = Path(shutil.copy(GOLDEN, tmp_path / "foreign.db"))
    journal = tmp_path / "foreign.db-journal"
    journal.write_bytes(bytes(1000))  # played back already: its first bytes are gone
    assert taken_in(database, file)[0].new_runs == 7
    assert journal.exists()


def test_a_database_that_asks_for_memory_does_not_get_it(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MOST_TOLD", 1000)
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
    (found,) = taken_in(database, file)
    assert (found.new_runs, found.rejected, found.error) == (7, 320, None)
    assert all("characters" in reason for _, reason in found.rejections)


def test_memory_that_runs_out_on_a_database_is_its_error(
    good: list[dict[str, Any]], database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(*_: object) -> None:
        raise MemoryError

    other = tmp_path / "good.jsonl"
    other.write_bytes(lines(good))
    for name in ("samples", "run_ids"):
        with monkeypatch.context() as patch:
            patch.setattr(Snapshot, name, run_out)
            spoilt, fine = taken_in(database, GOLDEN, other)
        assert (spoilt.error or spoilt.rejections[0][1]).count("more memory") == 1
        assert fine.new_runs + fine.known_runs == 8


# --- memory, time


def a_table(rows: list[dict[str, Any]], **columns: Any) -> pa.Table:
    """Make a Parquet table of rows, with other columns in place."""
    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    schema = pa.schema([(name, kinds[column.kind]) for name, column in COLUMNS.items()])
    table = pa.Table.from_pylist(rows, schema=schema)
    for name, column in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


def bomb(good: list[dict[str, Any]], file: Path) -> None:
    """Write a small file with a text of 200 MB in every row."""
    rows = one_run(good)
    text = pa.array(["x" * 200_000_000]).dictionary_encode()
    huge = pa.DictionaryArray.from_arrays(pa.array([0] * len(rows)), text.dictionary)
    pq.write_table(a_table(rows, message=huge), file, compression="zstd")


def many_rows(good: list[dict[str, Any]], file: Path) -> None:
    """Write a small file with two million equal rows."""
    row = one_run(good)[0]
    table = a_table([row] * 1000)
    with pq.ParquetWriter(file, table.schema, compression="zstd") as writer:
        for _ in range(20):
            writer.write_table(pa.concat_tables([table] * 100))


PEAK = """
import sys
from pathlib import Path
import pyarrow.parquet
from tuner.exchange.intake import import_files
from tuner.racing.meta_analysis import judge_runs
def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
before = peak()
done, (found,) = import_files(Path(sys.argv[1]), [Path(sys.argv[2])])
print(found.new_runs, found.rejected, (peak() - before) // 1024)
print(found.rejections, found.error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize("make_bomb", [bomb, many_rows])
def test_a_small_file_that_holds_much_takes_little_memory(
    good: list[dict[str, Any]],
    database: Path,
    tmp_path: Path,
    make_bomb: Callable[[list[dict[str, Any]], Path], None],
) -> None:
    file = tmp_path / "bomb.parquet"
    make_bomb(good, file)
    assert file.stat().st_size < 2_000_000
    command = [sys.executable, "-c", PEAK, str(database), str(file)]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    new, rejected, megabytes = map(int, told.stdout.split("\n")[0].split())
    assert new == 0
    assert rejected >= 1
    assert megabytes < 400, told.stdout


def test_a_line_without_an_end_takes_little_memory(database: Path, tmp_path: Path) -> None:
    file = tmp_path / "endless.jsonl"
    with file.open("wb") as stream:
        stream.write(b'{"format":"')
        stream.seek(1_000_000_000)
        stream.write(b'"}\n')
    command = [sys.executable, "-c", PEAK, str(database), str(file)]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    new, rejected, megabytes = map(int, told.stdout.split("\n")[0].split())
    assert (new, rejected) == (0, 1)
    assert megabytes < 100, told.stdout


def test_rows_that_wait_are_looked_at_before(
    good: list[dict[str, Any]], database: Path, tmp_path: Path
) -> None:
    row = one_run(good)[0] | {"hostname": [[]] * 250_000}
    file = tmp_path / "nested.jsonl"
    with file.open("wb") as stream:
        for number in range(40):
            stream.write(lines([row | {"run_uid": f"run {number}"}]))
    command = [sys.executable, "-c", PEAK, str(database), str(file)]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    new, rejected, megabytes = map(int, told.stdout.split("\n")[0].split())
    assert (new, rejected) == (0, 40)
    assert megabytes < 150, told.stdout


@pytest.mark.parametrize(
    "columns",
    [
        {"nanoseconds": pa.array([[1]] * 7)},
        {"nanoseconds": pa.array(["1"] * 7)},
        {"nanoseconds": pa.array([1.5] * 7)},
        {"hostname": pa.array([7] * 7)},
        {"hostname": pa.array([{"a": 1}] * 7)},
    ],
)
def test_parquet_of_wrong_types_is_one_reason(
    good: list[dict[str, Any]], database: Path, tmp_path: Path, columns: dict[str, Any]
) -> None:
    file = tmp_path / "wrong.parquet"
    pq.write_table(a_table(one_run(good), **columns), file)
    (found,) = taken_in(database, file)
    assert (found.new_runs, found.rejected, found.error) == (0, 1, None)
    assert "is of type" in found.rejections[0][1] or "unknown" in found.rejections[0][1]


def test_parquet_with_one_wrong_row_keeps_the_rest(
    good: list[dict[str, Any]], database: Path, tmp_path: Path
) -> None:
    rows = [dict(row) for row in good]
    number = next(n for n, row in enumerate(rows) if row["run_uid"] == f"{3:032x}")
    rows[number + 2]["nanoseconds"] = -3
    file = tmp_path / "wrong.parquet"
    pq.write_table(a_table(rows), file)
    (found,) = taken_in(database, file)
    assert (found.new_runs, found.rejected) == (7, 2)
    assert (number + 3) in [place for place, _ in found.rejections]


def test_parquet_whose_parts_name_different_columns_is_a_reason(
    good: list[dict[str, Any]], database: Path, tmp_path: Path
) -> None:
    file = tmp_path / "spoilt.parquet"
    pq.write_table(a_table(one_run(good)), file)
    content = file.read_bytes()
    for place in range(content.rindex(b"PAR1")):
        if content.startswith(b"model_digest", place):
            file.write_bytes(content[:place] + b"mIdel" + content[place + 5 :])
            (found,) = taken_in(database, file)
            assert found.new_runs or (found.rejected and not found.error)


@pytest.mark.parametrize("seed", range(20))
def test_spoiled_parquet_is_a_reason_at_most(
    good: list[dict[str, Any]], database: Path, tmp_path: Path, seed: int
) -> None:
    file = tmp_path / "spoilt.parquet"
    pq.write_table(a_table(one_run(good)), file)
    content = spoiled(file.read_bytes()[4:], random.Random(seed))
    file.write_bytes(b"PAR1" + content)
    (found,) = taken_in(database, file)
    assert found.new_runs or found.rejected


def test_a_key_of_too_many_candidates_is_not_taken_in(
    good: list[dict[str, Any]], database: Path, tmp_path: Path
) -> None:
    row = one_run(good)[0]
    count = MOST_CANDIDATES + 1
    rows = [row | {"samples": count, "sample_order": n, "chunk_size": n + 1} for n in range(count)]
    file = tmp_path / "many.jsonl"
    file.write_bytes(lines(rows))
    (found,) = taken_in(database, file)
    assert (found.new_runs, found.rejected) == (0, 1)
    assert "candidates" in found.rejections[0][1]
    assert is_empty(database)


def test_what_is_too_much_for_a_verdict_is_told_before_one_is_made(
    good: list[dict[str, Any]],
    database: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = one_run(good)[0] | {"samples": 1, "sample_order": 0}
    judged: list[int] = []

    def judge(runs: Sequence[Run], **_: Any) -> Verdict:
        judged.append(len(runs))
        return Verdict(Candidate(4), True, None, 0.1, 0.05, 0.15)

    file = tmp_path / "many.jsonl"
    count = MOST_CANDIDATES + 50
    file.write_bytes(
        lines([row | {"run_uid": f"{n}", "chunk_size": n % count + 1} for n in range(count)])
    )
    monkeypatch.setattr("tuner.store.runs.judge_runs", judge)
    _, (found,) = intake.import_files(database, [file])
    assert (found.new_runs, found.rejected) == (MOST_CANDIDATES, 50)
    assert "candidates" in found.rejections[0][1]
    monkeypatch.setattr(importing, "MOST_WORK", MOST_CANDIDATES**2 * (MOST_CANDIDATES + 7))
    file.write_bytes(lines([row | {"run_uid": f"more {n}", "chunk_size": 1} for n in range(9)]))
    _, (found,) = intake.import_files(database, [file])
    assert (found.new_runs, found.rejected) == (7, 2)
    assert "runs" in found.rejections[0][1]
    assert judged == [MOST_CANDIDATES, MOST_CANDIDATES + 7]


def test_without_room_for_what_was_read_nothing_is_taken_in(
    good: list[dict[str, Any]], database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "good.jsonl"
    file.write_bytes(lines(good))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Spool, "add", full)
    with pytest.raises(DatabaseError, match="TMPDIR"):
        taken_in(database, file)
    assert is_empty(database)


def test_scattered_rows_wait_within_bounds(
    good: list[dict[str, Any]], database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MOST_WAITING", 2000)
    row = one_run(good)[0]
    rows = [row | {"run_uid": f"run {n}"} for n in range(500)]
    file = tmp_path / "scattered.jsonl"
    file.write_bytes(lines(rows))
    (found,) = taken_in(database, file)
    assert (found.new_runs, found.rejected) == (0, 500)
    assert "sort the rows by run_uid" in found.rejections[0][1]


def test_a_database_that_cannot_be_written_is_our_error(
    good: list[dict[str, Any]], database: Path, tmp_path: Path
) -> None:
    file = tmp_path / "good.jsonl"
    file.write_bytes(lines(good))
    database.write_text("no database at all" * 100)
    with pytest.raises(TunerError, match="not a SQLite database"):
        taken_in(database, file)


def test_exported_names_cannot_break_a_line(database: Path, tmp_path: Path) -> None:
    file = tmp_path / "a\nb.jsonl"
    file.write_text('{"format":"\\u001b[31m"}\n')
    told = tuner("import", str(file), "--database", str(database))
    assert told.returncode == 3
    assert "\x1b" not in told.stderr + told.stdout
    assert told.stderr.count("\n") == 1
