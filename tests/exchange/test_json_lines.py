"""JSON lines: what is accepted, and a reason for what is not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.exchanged import (
    export,
    exported,
    imported,
    is_empty,
    measured,
    without_origin,
)
from tests.support.facts import a_key
from tuner import store_cache
from tuner.errors import TunerError
from tuner.exchange import importing
from tuner.exchange.importing import MAX_CANDIDATES
from tuner.racing import meta_analysis
from tuner.records import Run
from tuner.store import runs as stored_runs
from tuner.store.maintenance import check


def lines(*rows: dict[str, Any]) -> bytes:
    """Write rows as JSON lines, whatever is in them."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def one_run(database: Path, **changes: Any) -> dict[str, Any]:
    """Export one run, with changes."""
    return next(r for r in export(database) if r["run_uid"] == f"{3:032x}") | changes


GOOD = (0, 0, None, 1000, 0, 1)
WRONG: list[tuple[dict[str, Any], str]] = [
    *(
        ({"samples": 1, "timings": [[*GOOD[:place], value, *GOOD[place + 1 :]]]}, words)
        for place, value, words in (
            (3, float("nan"), "malformed"),
            (3, float("inf"), "malformed"),
            (3, -1, ">= 1"),
            (3, 0, ">= 1"),
            (3, 2**63, "<= 9223372036854775807"),
            (3, 10**400, "$.timings[0][3]"),
            (3, 1.5, "got `float`"),
            (3, "12", "got `str`"),
            (3, [1] * 1000, "got `array`"),
            (3, True, "got `bool`"),
            (3, None, "got `null`"),
            (5, 0, ">= 1"),
            (4, 2, "<= 1"),
            (1, -1, ">= 0"),
            (2, 0, ">= 1"),
            (2, 4097, "more than num_envs 4096"),
        )
    ),
    ({"samples": 2, "timings": [GOOD, GOOD]}, "same sample_order"),
    ({"timings": [[1, 2, 3]]}, "length 6"),
    ({"samples": 6}, "samples here, not 6"),
    ({"samples": 10**12}, "samples here"),
    ({"samples": -1}, "$.samples"),
    ({"samples": None}, "$.samples"),
    ({"run_uid": None}, "$.run_uid"),
    ({"run_uid": ""}, "$.run_uid"),
    ({"run_uid": "x" * 2000}, "$.run_uid"),
    ({"run_uid": 7}, "$.run_uid"),
    ({"state": "measured"}, "$.state"),
    ({"occasion": "fun"}, "$.occasion"),
    ({"finished_utc": "yesterday"}, "finished_utc is 'yesterday'"),
    ({"finished_utc": "2026-02-30T00:00:00Z"}, "day"),
    ({"finished_utc": "2026-01-31T00:00:00+01:00"}, "finished_utc"),
    ({"finished_utc": None}, "$.finished_utc"),
    ({"pool_seconds": -0.5}, "$.pool_seconds"),
    ({"load_average": 1e13}, "$.load_average"),
    ({"pid": -4}, "$.pid"),
    ({"hostname": "\ud800"}, "JSON"),
    ({"hostname": "a\0b"}, "hostname has characters"),
    ({"hostname": "x" * 200_000}, "$.hostname"),
    ({"hostname": {"a": 1}}, "$.hostname"),
    ({"run_other_facts": "[1]"}, "run_other_facts"),
    ({"run_other_facts": '{"a": NaN}'}, "run_other_facts"),
    ({"run_other_facts": '{"a":' * 10_000}, "run_other_facts"),
    ({"failed_chunk_sizes": "[0]"}, "failed_chunk_sizes"),
    ({"failed_chunk_sizes": "[" * 50_000}, "failed_chunk_sizes"),
    ({"has_choice": False, "chosen_chunk_size": 4}, "has_choice is not true"),
    ({"has_choice": True, "chosen_chunk_size": 5000}, "more than num_envs"),
    ({"tuning_key": "k1_0"}, "make the key"),
    ({"tuning_key": None}, "$.tuning_key"),
    ({"tuning_key": ""}, "$.tuning_key"),
    ({"num_envs": 4097}, "make the key"),
    ({"nthread": None}, "nthread is missing"),
    ({"nq": 20}, "make the model_digest"),
    ({"nq": 10**30}, "$.nq"),
    ({"cpu_model": "another"}, "make the device_digest"),
    ({"model_digest": None}, "make the model_digest"),
    ({"model_other_facts": '{"nq": 4}'}, "in its own column"),
    ({"format": "tuner.samples.2"}, "$.format"),
    ({"surprise": 1}, "unknown field `surprise`"),
    ({"x" * 10_000: 1}, "unknown field"),
]


@pytest.mark.parametrize(("change", "words"), WRONG)
def test_a_wrong_value_is_rejected_with_a_short_reason(
    filled: Path, database: Path, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    file = tmp_path / "wrong.jsonl"
    file.write_bytes(lines(one_run(filled, **change)))
    (found,) = imported(database, file)
    assert (found.new_runs, found.rejected, found.error) == (0, 1, None)
    ((place, reason),) = found.rejections
    assert place == 1
    assert words in reason
    assert len(reason) <= 300
    assert is_empty(database)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30)
FREE = ("work", "pool", "pool_version", "model_file", "hostname", "message", "method")


@settings(max_examples=60)  # each is an export and an import of a whole database
@given(texts=st.dictionaries(st.sampled_from(FREE), TEXT))
def test_any_text_survives_a_round_trip(
    texts: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("texts")
    measured("one", a_key(), folder / "there.db")
    (row,) = export(folder / "there.db")
    (folder / "file.jsonl").write_bytes(lines(row | texts))
    (found,) = imported(folder / "here.db", folder / "file.jsonl")
    assert found.rejections == []
    assert without_origin(export(folder / "here.db")) == without_origin([row | texts])


def test_a_wrong_line_is_rejected_and_the_rest_is_stored(
    filled: Path, database: Path, tmp_path: Path
) -> None:
    rows = exported(filled).read_bytes().splitlines(keepends=True)
    file = tmp_path / "spoiled.jsonl"
    deep = b'{"format":"tuner.samples.1","x":' + b"[" * 100_000 + b"\n"
    file.write_bytes(b"".join([*rows[:2], b"{nonsense\n", deep, b"\n", *rows[2:-1], rows[-1][:50]]))
    (found,) = imported(database, file)
    assert (found.new_runs, found.rejected) == (7, 3)
    assert [place for place, _ in found.rejections] == [3, 4, len(rows) + 3]
    assert check(database) == []


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(filled: Path, database: Path) -> None:
    for number, content in enumerate((lines(one_run(filled)), b'{"k":\n{"chunk_size": 3}}\n')):
        file = filled.with_name(f"from-elsewhere-{number}")
        file.write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
        (found,) = imported(database, file)
        assert (found.new_runs, found.rejected, found.error) == (1, 0, None)


def test_a_file_of_nothing_but_wrong_rows_is_given_up(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "MAX_BAD_ROWS", 50)
    file = tmp_path / "wrong.jsonl"
    file.write_bytes(b'{"format":"1"}\n' * 1000)
    (found,) = imported(database, file)
    assert found.rejected == 51
    assert "gave up" in str(found.error)


def test_a_key_of_too_many_candidates_is_not_imported(
    filled: Path, database: Path, tmp_path: Path
) -> None:
    count = MAX_CANDIDATES + 1
    timings = [(n, 0, n + 1, 1000, 0, 1) for n in range(count)]
    file = tmp_path / "many.jsonl"
    file.write_bytes(lines(one_run(filled, samples=count, timings=timings)))
    (found,) = imported(database, file)
    assert (found.new_runs, found.rejected) == (0, 1)
    assert "candidates" in found.rejections[0][1]
    assert is_empty(database)


def test_a_run_that_no_verdict_can_be_made_of_is_rejected_alone(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "HOLD_SECONDS", 0.0)  # each key in a transaction of its own
    there = tmp_path / "there.db"
    for number in range(3):
        measured(f"run {number}", a_key(), there, number + 1)
        measured(f"other {number}", a_key(nthread=number + 1), there, number + 1)
    judge_runs = meta_analysis.judge_runs

    def judge(runs: Sequence[Run], **work: Any) -> Any:
        if any(run.uid in ("run 1", "other 2") for run in runs):
            raise ZeroDivisionError("these cannot be judged")
        return judge_runs(runs, **work)

    monkeypatch.setattr(stored_runs, "judge_runs", judge)
    (found,) = imported(database, exported(there))
    assert (found.new_runs, found.rejected) == (4, 2)
    assert all("these cannot be judged" in reason for _, reason in found.rejections)
    assert {row["run_uid"] for row in export(database)} == {"run 0", "run 2", "other 0", "other 1"}
    assert check(database) == []


def test_a_keys_verdicts_are_recomputed_once_a_batch(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there.db"
    for number in range(6):
        for key in (a_key(), a_key(nthread=2)):
            measured(f"{key} {number}", key, there, number + 1)
    file = exported(there)
    rows = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(sorted(rows, key=lambda row: json.loads(bytes(row))["finished_utc"])))
    judged: list[int] = []
    judge_runs = meta_analysis.judge_runs

    def judge(runs: Sequence[Run], **work: Any) -> Any:
        judged.append(len(runs))
        return judge_runs(runs, **work)

    monkeypatch.setattr(stored_runs, "judge_runs", judge)
    (first, again) = imported(database, file, file)
    assert (first.new_runs, first.keys, again.known_runs, again.keys) == (12, 2, 12, 0)
    assert judged == [6, 6]


def test_jobs_get_their_turn_and_a_killed_import_leaves_a_whole_state(
    filled: Path, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "HOLD_SECONDS", 0.0)

    class Killed(BaseException):
        pass

    def others_turn(seconds: float) -> None:
        assert check(database) == []
        store_cache(database, "a job's", {"chunk_size": 4})
        if len(export(database, what="runs")) > 4:
            raise Killed

    monkeypatch.setattr("tuner.exchange.importing.time.sleep", others_turn)
    with pytest.raises(Killed):
        imported(database, exported(filled))
    assert check(database) == []
    monkeypatch.undo()
    (found,) = imported(database, exported(filled))
    assert found.new_runs + found.known_runs == 8
    assert check(database) == []


def test_a_database_that_cannot_be_written_is_our_error(filled: Path, database: Path) -> None:
    database.write_text("no database at all" * 100)
    with pytest.raises(TunerError, match="not a SQLite database"):
        imported(database, exported(filled))


def test_rows_without_samples_and_other_formats_are_no_import(filled: Path, tmp_path: Path) -> None:
    for what in ("runs", "verdicts"):
        (found,) = imported(tmp_path / "new.db", exported(filled, "jsonl", what=what))
        assert found.new_runs == 0
        assert "export samples" in found.rejections[0][1]
    for form in ("csv", "parquet"):
        (found,) = imported(tmp_path / "new.db", exported(filled, form))
        assert "CSV and Parquet are not read" in str(found.error)
        assert "JSON lines" in str(found.error)
