"""Pictures: files that can be looked at, and numbers in them that are the database's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from tests.support.facts import DEVICE, a_key
from tests.support.stored import ALIKE, Shell, a_run, rows_of, store
from tuner import plots, store_cache
from tuner.errors import TunerError
from tuner.formatting import counted, relative
from tuner.racing.meta_analysis import judge_runs
from tuner.records import Candidate, Verdict
from tuner.store.runs import pin
from tuner.study import read_study, told_apart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GOLDEN = Path(__file__).parent / "golden" / "0002.db"
SLOW_ONES = {None: 9.4, 1: 40.0, 4: 8.0, 8: 9.1, 32: 12.0}
"""Milliseconds of a step; chunk 1 is beyond a picture's edge."""
FOUR, DEFAULT = Candidate(4), Candidate(None)
CPU = {**DEVICE, "cpu_model": "Neoverse N1"}


def texts(svg: bytes) -> list[str]:
    """Read the texts of an SVG, which are texts and not outlines."""
    root = ElementTree.fromstring(svg)
    return [(e.text or "").strip() for e in root.iter("{http://www.w3.org/2000/svg}text")]


def data(figure: Figure, name: str) -> list[tuple[float, float]]:
    """Read the points of the line of a figure that has a name."""
    lines = [line for axes in figure.axes for line in axes.lines if line.get_gid() == name]
    x: Any = lines[0].get_xdata()
    y: Any = lines[0].get_ydata()
    return list(zip(map(float, x), map(float, y), strict=True))


@pytest.fixture
def filled(database: Path) -> Path:
    """Make a database of four keys: run twice, of other threads, of another CPU, and untimed."""
    store(database, a_key(), a_run(1, choice=FOUR), a_run(2, SLOW_ONES, choice=FOUR))
    store(database, a_key(nthread=4), a_run(3, ALIKE, choice=DEFAULT))
    store(database, a_key(device=CPU), a_run(4, model_file="m/$a$_<b>&字.xml"))
    store_cache(database, a_key(nthread=2), {"chunk_size": 8})
    return database


@pytest.mark.parametrize("more", [(), ("--history",)])
def test_plot_makes_a_png_and_an_svg(filled: Path, shell: Shell, more: tuple[str, ...]) -> None:
    png, svg = filled.with_name("a.png"), filled.with_name("a.SVG")
    told = shell("plot", a_key()[:9], "-o", png, *more, "--database", filled)
    assert (told.code, told.err) == (0, "")
    assert told.out == f"{png}: {png.stat().st_size:,} bytes\n"
    content = png.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20]) == 8 * plots.DPI
    assert shell("plot", a_key(), "-o", svg, *more, "--database", filled).code == 0
    found = texts(svg.read_bytes())
    ((gain,),) = rows_of(filled, "SELECT gain FROM verdict WHERE key_digest = ?", a_key())
    assert f"choice: 4 ({relative(1 - gain)})" in found
    assert f"{a_key()}, x86_64, 8 CPUs" in found
    assert "quadruped.xml, 1024 environments, 8 threads" in found
    if more:
        assert "chunk_size" in found
        assert "chunk_size 4: each run alone, 95 % interval" in found
        assert "run (the first ended 2026-01-31 13:00 UTC, the last 2026-01-31 14:00 UTC)" in found
    else:
        assert {plots.CHUNK_LABEL, plots.TIME_LABEL, "native default (12)"} <= set(found)
        assert b'id="choice"' in svg.read_bytes()
    assert [file.name for file in filled.parent.iterdir() if "partial" in file.name] == []


def test_the_same_database_makes_the_same_bytes(filled: Path, tmp_path: Path) -> None:
    made = []
    settings = tmp_path / "matplotlibrc"
    settings.write_text("lines.linewidth: 9\nsvg.fonttype: path\n")
    for number in (1, 2):
        file = tmp_path / f"{number}.svg"
        arguments = ["plot", a_key(), "-o", str(file), "--database", str(filled)]
        environment = {"MATPLOTLIBRC": str(settings)} if number == 2 else {}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "tuner", *arguments],
            capture_output=True,
            text=True,
            env=os.environ | environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        made.append(file.read_bytes())
    assert made[0] == made[1]
    for figure, kind in ((plots.draw_key, "png"), (plots.draw_history, "svg")):
        study = read_study(filled, a_key())
        first = plots.picture(figure(study), kind)  # type: ignore[arg-type]
        assert first == plots.picture(figure(study), kind)  # type: ignore[arg-type]


def test_an_svg_carries_its_letters(filled: Path) -> None:
    svg = plots.picture(plots.draw_key(read_study(filled, a_key())), "svg")
    assert len(re.findall(rb"@font-face\{font-family:'DejaVu Sans';src:url\(data:", svg)) == 1
    assert len(svg) < 60_000


def test_the_numbers_are_the_databases(filled: Path) -> None:
    study = read_study(filled, a_key())
    figure = plots.draw_key(study)
    verdict = judge_runs([a_run(1), a_run(2, SLOW_ONES)], num_envs=1024, nthread=8)
    expected = {(e.candidate.chunk_size or 12, e.relative) for e in verdict.estimates}
    drawn = data(figure, "estimates")
    assert [x for x, _ in drawn] == [1, 4, 8, 12, 32]
    assert {x for x, _ in expected} == {x for x, _ in drawn}
    assert {round(1 + y / 100, 9) for _, y in drawn} == {round(r, 9) for _, r in expected}
    gain = rows_of(filled, "SELECT gain FROM verdict WHERE key_digest = ?", a_key())[0][0]
    ((place, value),) = data(figure, "choice")
    assert place == 4
    assert value == pytest.approx(-100 * gain)
    assert data(figure, "default") == [(12, 0)]

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
    beyond = [sample for sample in samples if sample[1] > 100]
    assert beyond == [(1, pytest.approx(100 * (40 / 9.4 - 1), rel=0.1))]
    shown = [sample for sample in samples if sample not in beyond]
    outside = data(figure, "beyond")
    assert len(outside) >= 1
    together = sorted([*data(figure, "samples"), *outside])
    assert len(together) == len(samples)
    assert set(map(rounded, data(figure, "samples"))) <= set(map(rounded, shown))
    assert f"beyond the edge: {counted(len(outside), 'sample')}" in texts(
        plots.picture(figure, "svg")
    )


def rounded(point: tuple[float, float]) -> tuple[float, float]:
    """Make two ways of one sum alike."""
    return point[0], round(point[1], 9)


def test_a_history_shows_what_each_run_says(filled: Path) -> None:
    figure = plots.draw_history(read_study(filled, a_key()))
    alone = [judge_runs([run], num_envs=1024, nthread=8) for run in (a_run(1), a_run(2, SLOW_ONES))]
    assert [rounded(point) for point in data(figure, "estimates")] == [
        rounded((n, 100 * (relative_of(verdict, 4) - 1))) for n, verdict in enumerate(alone, 1)
    ]
    assert data(figure, "choices") == [(1, 4), (2, 4)]
    together = judge_runs([a_run(1), a_run(2, SLOW_ONES)], num_envs=1024, nthread=8)
    assert data(figure, "together")[0][1] == pytest.approx(100 * (relative_of(together, 4) - 1))
    kept = plots.draw_history(read_study(filled, a_key(nthread=4)))
    assert data(kept, "defaults") == [(1, 25)]


def relative_of(verdict: Verdict, chunk_size: int) -> float:
    """Find what a verdict says of a candidate."""
    found = [e.relative for e in verdict.estimates if e.candidate.chunk_size == chunk_size]
    return found[0]


def test_compare_draws_keys_over_work_items_per_thread(filled: Path, shell: Shell) -> None:
    svg = filled.with_name("devices.svg")
    keys = (a_key(), a_key(nthread=4), a_key(device=CPU))
    assert shell("plot", "--compare", *keys, "-o", svg, "--database", filled).code == 0
    found = texts(svg.read_bytes())
    assert {plots.CHUNKS_LABEL, plots.TIME_LABEL, "the choice"} <= set(found)
    named = [text for text in found if text.startswith("k1_")]
    assert [name[:11] for name in named] == [key[:11] for key in keys]
    assert "$a$_<b>&字.xml, Neoverse N1, 8 CPUs, 1024 environments, 8 threads" in named[2]
    studies = [read_study(filled, key) for key in keys]
    curve = data(plots.draw_comparison(studies), "curve-1")
    assert [x for x, _ in curve] == [1024 / chunk / 4 for chunk in (4, 8, 25, 32)]
    assert told_apart(studies[:1]) == [a_key()[:11]]


def test_the_marks_tell_without_colour(filled: Path) -> None:
    keys = (a_key(), a_key(nthread=4), a_key(device=CPU))
    figure = plots.draw_comparison([read_study(filled, key) for key in keys])
    curves = [line for line in figure.axes[0].lines if str(line.get_gid()).startswith("curve-")]
    assert len({(line.get_marker(), line.get_linestyle()) for line in curves}) == 3
    assert len(set(plots.PALETTE)) == len(set(plots.MARKERS)) == len(plots.PALETTE)


def test_a_pin_is_marked_as_what_answers(filled: Path) -> None:
    pin(filled, a_key(), 8, "a test")
    study = read_study(filled, a_key())
    assert study.chosen == f"choice: 8 ({relative(relative_of(study.verdict, 8))}, pinned)"
    assert data(plots.draw_key(study), "choice")[0][0] == 8
    pin(filled, a_key(), 100, "a test")
    untimed = read_study(filled, a_key())
    assert untimed.chosen == "choice: 100 (pinned)"
    assert untimed.chosen in texts(plots.picture(plots.draw_key(untimed), "svg"))


def test_the_golden_database_can_be_drawn(database: Path) -> None:
    shutil.copy(GOLDEN, database)
    drawn, refused = 0, []
    for (key,) in rows_of(database, "SELECT digest FROM tuning_key"):
        study = read_study(database, key)
        for draw in (plots.draw_key, plots.draw_history):
            try:
                assert plots.picture(draw(study), "svg")
                drawn += 1
            except TunerError as error:
                refused.append(str(error))
    assert drawn >= 6
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
        ((a_key(), "-o", "a.jpg"), 2, "does not end in .png or .svg"),
        ((a_key(),), 2, "--output"),
        (("-o", "a.svg"), 2, "KEY"),
        (("--compare", a_key(), "-o", "a.svg"), 2, "2 to 8 keys, received 1"),
        ((a_key(), a_key(nthread=4), "-o", "a.svg"), 2, "--compare only"),
        (("--compare", "--history", a_key(), "-o", "a.svg"), 2, "ask for one"),
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


def test_what_is_missing_is_named_in_one_line(
    filled: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    picture = filled.with_name("a.png")
    told = shell.refused("plot", a_key(), "-o", picture, "--database", filled)
    assert "pip install matplotlib" in told
    assert "[plot]" in told
    assert not picture.exists()


def test_a_picture_that_fails_leaves_the_one_before(
    filled: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = filled.with_name("a.png")
    picture.write_bytes(b"before")
    monkeypatch.setattr(plots, "picture", lambda *_: 1 / 0)
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
    assert not {"matplotlib", "plotly", "fontTools"} & set(done.stdout.split())
