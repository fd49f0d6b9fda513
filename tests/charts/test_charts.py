"""Pictures: files that open, and numbers in them that are the database's."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.facts import DEVICE, a_key
from tests.support.stored import ALIKE, Shell, a_run, rows_of, store
from tuner import charts, store_cache
from tuner.charts import ChartData, Spec, read_chart_data
from tuner.errors import TunerError
from tuner.formatting import relative
from tuner.racing.meta_analysis import judge_runs
from tuner.records import Candidate, Verdict
from tuner.store.runs import pin

GOLDEN = Path(__file__).parents[1] / "golden" / "0002.db"
SLOW_ONES = {None: 9.4, 1: 40.0, 4: 8.0, 8: 9.1, 32: 12.0}
"""Milliseconds of a step; chunk 1 is beyond a picture's edge."""
FOUR, DEFAULT = Candidate(4), Candidate(None)
CPU = {**DEVICE, "cpu_model": "Neoverse N1"}
KEYS = (a_key(), a_key(nthread=4), a_key(device=CPU))


def texts(svg: bytes) -> list[str]:
    """Read the texts of an SVG, which are texts and not outlines."""
    root = ElementTree.fromstring(svg)
    found = root.iter("{http://www.w3.org/2000/svg}text")
    return [text.strip() for element in found for text in element.itertext()]


def points(rows: list[Spec], x: str = "x") -> list[tuple[Any, Any]]:
    """Read where a picture's data puts marks."""
    return [(row[x], row["y"]) for row in rows]


def relative_of(verdict: Verdict, chunk_size: int) -> float:
    """Find what a verdict says of a candidate, in per cent."""
    found = [e.relative for e in verdict.estimates if e.candidate.chunk_size == chunk_size]
    return 100 * (found[0] - 1)


def drawn(kind: charts.Kind, *data: ChartData) -> bytes:
    """Draw a picture as SVG."""
    return charts.draw(charts.picture(kind, *data), "svg")


@pytest.fixture
def filled(database: Path) -> Path:
    """Make a database of four keys: run twice, of other threads, of another CPU, and untimed."""
    store(database, a_key(), a_run(1, choice=FOUR), a_run(2, SLOW_ONES, choice=FOUR))
    store(database, a_key(nthread=4), a_run(3, ALIKE, choice=DEFAULT))
    store(database, a_key(device=CPU), a_run(4, model_file="m/$a$_<b>&字.xml"))
    store_cache(database, a_key(nthread=2), {"chunk_size": 8})
    return database


@pytest.mark.parametrize("more", [(), ("--history",)])
def test_plot_makes_each_kind_of_file(filled: Path, shell: Shell, more: tuple[str, ...]) -> None:
    png, svg, page = (filled.with_name(f"a.{ending}") for ending in ("png", "SVG", "html"))
    told = shell("plot", a_key()[:9], "-o", png, *more, "--database", filled)
    assert (told.code, told.err) == (0, "")
    assert told.out == f"{png}: {png.stat().st_size:,} bytes\n"
    content = png.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20]) > 2 * charts.WIDTH
    assert shell("plot", a_key(), "-o", svg, *more, "--database", filled).code == 0
    found = texts(svg.read_bytes())
    ((gain,),) = rows_of(filled, "SELECT gain FROM verdict WHERE key_digest = ?", a_key())
    assert any(text.startswith(f"choice: 4, {relative(1 - gain)} (95 % ") for text in found)
    assert f"{a_key()}, x86_64, 8 CPUs" in found
    assert "quadruped.xml, 1024 environments, 8 threads, 4 physics steps per call" in found
    if more:
        when = "runs of 2026-01-31 13:00 to 2026-01-31 14:00 UTC"
        assert f"gain of chunk_size 4; {when}" in found
        assert {"chunk_size", "run", "1", "2", charts.EACH_RUN, charts.ALL_RUNS} <= set(found)
    else:
        assert {charts.CHUNK_LABEL, charts.TIME_LABEL, "4", "8", "16", "32"} <= set(found)
        assert {charts.SAMPLE, charts.ESTIMATE, charts.DEFAULT, charts.CHOICE} <= set(found)
    assert shell("plot", a_key(), "-o", page, *more, "--database", filled).code == 0
    text = page.read_text("utf-8")
    assert "vegaEmbed(" in text
    assert not re.search(r"""<(script|link)[^>]*(src|href)=""", text)
    assert [file.name for file in filled.parent.iterdir() if "partial" in file.name] == []


def test_the_same_database_makes_the_same_bytes(filled: Path) -> None:
    chart = read_chart_data(filled, a_key())
    assert drawn("key", chart) == drawn("key", read_chart_data(filled, a_key()))
    assert len(drawn("key", chart)) < 100_000


def test_the_numbers_are_the_databases(filled: Path) -> None:
    data = charts.key_data(read_chart_data(filled, a_key()))
    verdict = judge_runs([a_run(1), a_run(2, SLOW_ONES)], num_envs=1024, nthread=8)
    expected = {e.candidate.chunk_size or 12: e for e in verdict.estimates}
    assert [x for x, _ in points(data["estimates"])] == sorted(expected) == [1, 4, 8, 12, 32]
    for row in data["estimates"]:
        e = expected[row["x"]]
        for name, value in (("low", e.low), ("y", e.relative), ("high", e.high)):
            assert row[name] == pytest.approx(min(100 * (value - 1), charts.TOP), abs=1e-3)
    assert [row["mark"] for row in data["estimates"] if "mark" in row] == [
        f"{relative(expected[1].relative)} ↑"
    ]
    gain = rows_of(filled, "SELECT gain FROM verdict WHERE key_digest = ?", a_key())[0][0]
    assert points(data["choice"]) == [(4, pytest.approx(-100 * gain, abs=1e-3))]
    assert points(data["default"]) == [(12, 0)]

    rows = rows_of(
        filled,
        "SELECT run_id, chunk_size, nanoseconds * 1.0 / steps FROM sample "
        "JOIN run USING (run_id) JOIN tuning_key USING (key_id) "
        "WHERE digest = ? AND warm_up = 0",
        a_key(),
    )
    default = {
        run: median(t for r, chunk, t in rows if r == run and chunk is None)
        for run in {run for run, _, _ in rows}
    }
    samples = sorted((chunk or 12, 100 * (t / default[run] - 1)) for run, chunk, t in rows)
    shown = [(group["x"], y) for group in data["samples"] for y in group["y"]]
    assert sorted(shown) == [
        (x, pytest.approx(y, abs=0.006)) for x, y in samples if y <= charts.TOP
    ]
    assert data["beyond"] == [{"x": 1, "y": charts.TOP, "n": 1}]
    few = charts.key_data(read_chart_data(filled, a_key()), most_samples=5)
    assert 1 < max(len(group["y"]) for group in few["samples"]) <= 5


def test_a_history_shows_what_each_run_says(filled: Path) -> None:
    data = charts.history_data(read_chart_data(filled, a_key()))
    runs = [a_run(1), a_run(2, SLOW_ONES)]
    alone = [relative_of(judge_runs([run], num_envs=1024, nthread=8), 4) for run in runs]
    assert points(data["runs"], "run") == [
        (n, pytest.approx(y, abs=1e-3)) for n, y in enumerate(alone, 1)
    ]
    assert [(row["run"], row["x"], row["kind"]) for row in data["choices"]] == [
        (1, 4, charts.CHOICE),
        (2, 4, charts.CHOICE),
    ]
    together = relative_of(judge_runs(runs, num_envs=1024, nthread=8), 4)
    assert data["together"][0]["y"] == pytest.approx(together, abs=1e-3)
    kept = charts.history_data(read_chart_data(filled, a_key(nthread=4)))
    assert [(row["x"], row["kind"]) for row in kept["choices"]] == [(25, charts.DEFAULT)]


def test_compare_draws_keys_over_work_items_per_thread(filled: Path, shell: Shell) -> None:
    svg = filled.with_name("devices.svg")
    assert shell("plot", "--compare", *KEYS, "-o", svg, "--database", filled).code == 0
    found = texts(svg.read_bytes())
    assert {charts.CHUNKS_LABEL, charts.TIME_LABEL, "4 physics steps per call"} <= set(found)
    named = [text for text in found if text.startswith("k1_")]
    assert [name[:11] for name in named] == [key[:11] for key in KEYS]
    assert "$a$_<b>&字.xml, Neoverse N1, 8 CPUs, 1024 environments, 8 threads" in named[2]
    several = [read_chart_data(filled, key) for key in KEYS]
    (label,) = charts.labels(several[1:2])
    assert label == KEYS[1][:11]
    rows = charts.comparison_data(several)["curves"]
    places = [row["x"] for row in rows if row["key"].startswith(KEYS[1][:11])]
    assert places == [1024 / chunk / 4 for chunk in (4, 8, 25, 32)]


def test_labels_name_the_parameter_that_differs(database: Path) -> None:
    keys = (a_key(), a_key(bench_nsteps=16), a_key(dtype="float64"))
    for number, key in enumerate(keys):
        store(database, key, a_run(number))
    several = [read_chart_data(database, key) for key in keys]
    assert charts.labels(several) == [
        f"{keys[0][:11]}: 4 physics steps per call, float32",
        f"{keys[1][:11]}: 16 physics steps per call, float32",
        f"{keys[2][:11]}: 4 physics steps per call, float64",
    ]


def test_models_of_one_file_name_are_told_apart_by_their_folders(database: Path) -> None:
    files = ("/a/hopper/scene.xml", "/a/walker/scene.xml", "/a/walker/scene.xml", "ant.xml")
    for number, file in enumerate(files):
        store(database, a_key(nthread=1 + number), a_run(number, model_file=file))
    several = [read_chart_data(database, a_key(nthread=1 + n)) for n in range(len(files))]
    assert charts.model_names(several) == [
        "hopper/scene.xml",
        "walker/scene.xml",
        "walker/scene.xml",
        "ant.xml",
    ]
    assert charts.model_names(several[:1]) == ["scene.xml"]


def test_the_marks_differ_without_colour(filled: Path) -> None:
    spec = charts.picture("comparison", *(read_chart_data(filled, key) for key in KEYS))
    written = json.dumps(spec)
    for looks in (charts.PALETTE, charts.SHAPES, charts.DASHES):
        assert len({str(look) for look in looks}) == len(looks) == charts.MOST_CURVES
        assert json.dumps(looks[:3]) in written


def test_one_candidate_has_an_axis_that_can_be_read(database: Path) -> None:
    store(database, a_key(), a_run(1, {None: 9.4, 12: 9.4}, pairs=0))
    found = texts(drawn("key", read_chart_data(database, a_key())))
    assert {"8", "16"} <= set(found)


def test_a_pin_is_marked_as_the_choice(filled: Path) -> None:
    pin(filled, a_key(), 8, "a test")
    chart = read_chart_data(filled, a_key())
    assert chart.summary.startswith("choice: 8, ")
    assert chart.summary.endswith(", pinned")
    assert charts.key_data(chart)["choice"][0]["x"] == 8
    pin(filled, a_key(), 100, "a test")
    untimed = read_chart_data(filled, a_key())
    assert untimed.summary == "choice: 100, pinned"
    assert untimed.summary in texts(drawn("key", untimed))


def test_hostile_names_are_escaped_in_files(database: Path, shell: Shell) -> None:
    name = "<script>alert(1)<script>&amp;</script>.xml".replace("/", "")
    store(database, a_key(), a_run(1, model_file=name))
    chart = read_chart_data(database, a_key())
    assert any(name in text for text in texts(drawn("key", chart)))
    assert html.escape(name, quote=False).encode() in drawn("key", chart)


def test_the_golden_database_can_be_drawn(database: Path) -> None:
    shutil.copy(GOLDEN, database)
    made, refused = 0, []
    kinds: tuple[charts.Kind, ...] = ("key", "history")
    for (key,) in rows_of(database, "SELECT digest FROM tuning_key"):
        chart = read_chart_data(database, key)
        for kind in kinds:
            try:
                assert drawn(kind, chart)
                made += 1
            except TunerError as error:
                refused.append(str(error))
    assert made >= 6
    assert all("`tuner tune --force`" in line for line in refused)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("k1_ff", "-o", "a.svg"), 1, "no key starts with 'k1_ff'"),
        ((a_key(nthread=2), "-o", "a.svg"), 1, "has no timings to draw"),
        ((a_key(nthread=2), "--history", "-o", "a.svg"), 1, "has no measured run"),
        (
            (a_key(), "-o", "missing/a.svg"),
            1,
            "there is no folder missing; ",
        ),
        ((a_key(), "-o", "/proc/a.svg"), 1, "cannot write /proc/a.svg: "),
        ((a_key(), "-o", "x" * 300 + ".svg"), 1, "File name too long"),
        (("--compare", a_key(), a_key(nthread=2), "-o", "a.svg"), 1, "no curve to compare"),
        ((a_key(), "-o", "a.jpg"), 2, "does not end in .svg or .png or .html"),
        ((a_key(),), 2, "--output"),
        (("-o", "a.svg"), 2, "KEY"),
        (("--compare", a_key(), "-o", "a.svg"), 2, "2 to 8 keys, received 1"),
        ((a_key(), a_key(nthread=4), "-o", "a.svg"), 2, "needs --compare"),
        (("--compare", "--history", a_key(), "-o", "a.svg"), 2, "choose one"),
    ],
)
def test_a_wrong_call_is_one_clear_line_and_leaves_nothing(
    filled: Path,
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(filled.parent)
    before = sorted(filled.parent.iterdir())
    assert words in shell.refused("plot", *arguments, "--database", filled, code=code)
    assert sorted(filled.parent.iterdir()) == before


@pytest.mark.parametrize("name", ["altair", "vl_convert"])
def test_what_is_missing_is_named_in_one_line(
    filled: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    charts.specification.cache_clear()
    monkeypatch.setitem(sys.modules, name, None)
    picture = filled.with_name("a.png")
    told = shell.refused("plot", a_key(), "-o", picture, "--database", filled)
    assert f"drawing needs {name}" in told
    assert "pip install 'tuner[charts]'" in told
    assert not picture.exists()


def test_a_picture_that_fails_leaves_the_one_before(
    filled: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = filled.with_name("a.png")
    picture.write_bytes(b"before")
    monkeypatch.setattr(charts, "draw", lambda *_: 1 / 0)
    shell.refused("plot", a_key(), "-o", picture, "--database", filled)
    assert picture.read_bytes() == b"before"
    assert sorted(file.suffix for file in filled.parent.iterdir()) == [".db", ".png"]


def test_the_database_is_never_overwritten(
    filled: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = filled.rename(filled.with_name("tuning.svg"))
    before = named.read_bytes()
    assert "is the database itself" in shell.refused(
        "plot", a_key(), "-o", named, "--database", named
    )
    assert named.read_bytes() == before


def test_other_commands_load_no_library_for_pictures() -> None:
    program = "import sys, tuner.cli, tuner.report; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not {"altair", "vl_convert", "jinja2"} & set(done.stdout.split())
