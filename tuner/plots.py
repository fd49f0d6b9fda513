"""Pictures of keys by matplotlib: figures from studies, and files' bytes from figures.

The same study makes the same bytes: no date, no random ids, no settings of the user's. Colours
are Okabe and Ito's, which colour-blind people tell apart; marker and line style differ as well,
so that a grey print says the same. matplotlib is imported when something is drawn: no other
command pays for it, and it need not be installed for them.
"""

from __future__ import annotations

import base64
import html
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from tuner.errors import TunerError
from tuner.formatting import counted, printable
from tuner.records import NATIVE_DEFAULT
from tuner.study import Study, told_apart

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, VERMILLION, GREY = "#0072B2", "#D55E00", "#767676"
PALETTE = (BLUE, VERMILLION, "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", GREY)
"""Okabe and Ito's (2008), without the yellow, which white swallows."""
MARKERS = "osD^vPX*"
DASHES = ("-", "--", "-.", ":")
TOP = 60.0
"""Per cent above the default where a picture ends at the latest: what is far slower (a chunk size
of 1, say) would press together what the picture is looked at for. It is marked at the edge."""
MOST_TICKS = 16
CHUNK_LABEL = "chunk_size (environments per work item)"
TIME_LABEL = "time of a step, relative to the native default (%)"
CHUNKS_LABEL = "work items per thread"
SAMPLE = "one sample, over the default's median in its run"
KEPT = "a run that kept the native default"
LONG_LABEL = 60
"""Letters of a label beside which there is no room for another."""
INSTALL = "pip install {0}  (the extra [{1}] of this package names it)"
DPI = 150


def in_percent(relative: float) -> float:
    """Write a time over the default's as a difference in per cent: 0.94 is -6."""
    return 100.0 * (relative - 1.0)


def visible_range(study: Study) -> tuple[float, float]:
    """Choose which part of the vertical axis a key's picture shows, in per cent."""
    seen = [in_percent(bound) for e in study.estimates for bound in (e.low, e.high)]
    points = sorted(in_percent(p.relative) for p in study.points)
    few = len(points) // 50
    seen += points[few : len(points) - few]
    low, high = min(seen, default=-1.0), max(seen, default=1.0)
    low, high = min(low, -1.0), min(max(high, 1.0), TOP)
    margin = 0.05 * (high - low)
    return max(low - margin, -100.0), high + margin


def draw_key(study: Study) -> Figure:
    """Draw a key's candidates: all samples, the estimates with their 95 % intervals, the choice.

    Raises:
        TunerError: if matplotlib is not installed, or there is nothing to draw.
    """
    if not study.points:
        raise TunerError(f"{study.key} has no timings to draw: `tuner tune --force` measures it")
    with _drawing():
        figure, (axes,) = _figure(1)
        low, high = visible_range(study)
        placed = [(study.place(p.candidate), in_percent(p.relative)) for p in study.points]
        inside = [(x, y) for x, y in placed if x and low <= y <= high]
        outside = [(x, min(max(y, low), high)) for x, y in placed if x and not low <= y <= high]
        _line(axes, inside, "samples", SAMPLE, color=GREY, marker="o", ms=3, alpha=0.3)
        if outside:
            label = f"beyond the edge: {counted(len(outside), 'sample')}"
            _line(axes, outside, "beyond", label, color=GREY, marker="|", ms=10)
        _mark_default(axes, study)
        _intervals(
            axes,
            [float(study.place(e.candidate) or 0) for e in study.estimates],
            [(e.relative, e.low, e.high) for e in study.estimates],
            "estimate with 95 % interval",
            fmt="s-",
        )
        for e in study.estimates:
            if in_percent(e.relative) > high:
                told = f"{in_percent(e.relative):+.0f} % ↑"
                at = (float(study.place(e.candidate) or 0), high)
                axes.annotate(
                    told, at, (0, -8), textcoords="offset points", ha="center", va="top", fontsize=8
                )
        _mark_choice(axes, study)
        axes.set_ylim(low, high)
        _chunk_axis(axes, [x for x, _ in placed if x], vertical=False)
        axes.set_ylabel(TIME_LABEL)
        axes.set_title(_heading(study), fontsize=10)
        _finish(figure)
    return figure


def draw_history(study: Study) -> Figure:
    """Draw a key run by run: what each run alone says of the followed candidate, what it chose.

    Raises:
        TunerError: if matplotlib is not installed, or there is nothing to draw.
    """
    timed = [(n, s.estimate) for n, s in enumerate(study.steps, start=1) if s.estimate]
    if not timed:
        raise TunerError(f"{study.key} has no measured run to draw: `tuner tune --force` makes one")
    with _drawing():
        from matplotlib.ticker import MaxNLocator

        figure, (gains, choices) = _figure(2)
        name = study.followed or NATIVE_DEFAULT
        gains.axhline(0.0, color="black", lw=1.0, ls="--", label="native default")
        _intervals(
            gains,
            [n for n, _ in timed],
            [(e.relative, e.low, e.high) for _, e in timed],
            f"chunk_size {name}: each run alone, 95 % interval",
            fmt="o",
        )
        together = study.estimate_of(study.followed)
        if together:
            band = [in_percent(bound) for bound in (together.low, together.high)]
            gains.axhspan(*band, color=BLUE, alpha=0.12, lw=0, label="all runs, 95 % interval")
            value = in_percent(together.relative)
            gains.axhline(value, color=BLUE, lw=1.5, ls="-.", gid="together", label="all runs")
        gains.set_ylabel("time of a step,\nrelative to default (%)")
        chosen = [
            (n, study.place(s.choice), s.choice == NATIVE_DEFAULT)
            for n, s in enumerate(study.steps, start=1)
            if s.choice is not None
        ]
        for is_default, marker, label in ((False, "o", "choice of a run"), (True, "D", KEPT)):
            dots = [(n, place) for n, place, default in chosen if place and default == is_default]
            look = {"mfc": "white"} if is_default else {}
            gid = "defaults" if is_default else "choices"
            if dots:
                _line(choices, dots, gid, label, color=VERMILLION, marker=marker, ms=7, **look)
        places = [place for _, place, _ in chosen if place]
        if study.choice and (place := study.place(study.choice)):
            choices.axhline(
                place, color=VERMILLION, lw=1.0, ls=":", gid="choice", label=study.chosen
            )
            places.append(place)
        native = study.work.native_chunk
        _chunk_axis(choices, [*places, native] if native else places, vertical=True)
        first, last = study.steps[0].finished, study.steps[-1].finished
        choices.set_xlabel(f"run (the first ended {first} UTC, the last {last} UTC)")
        choices.set_xlim(0.5, len(study.steps) + 0.5)
        choices.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        gains.set_title(_heading(study), fontsize=10)
        _finish(figure)
    return figure


def draw_comparison(studies: Sequence[Study]) -> Figure:
    """Draw the estimates of several keys over work items per thread, each over its own default.

    Raises:
        TunerError: if matplotlib is not installed.
    """
    with _drawing():
        figure, (axes,) = _figure(1)
        axes.axhline(0.0, color="black", lw=1.0, ls="--", label="each one's native default")
        ranges = [visible_range(study) for study in studies]
        for number, (study, label) in enumerate(zip(studies, told_apart(studies), strict=True)):
            _intervals(
                axes,
                [study.chunks_per_thread(e.candidate) or 0.0 for e in study.estimates],
                [(e.relative, e.low, e.high) for e in study.estimates],
                label,
                fmt=MARKERS[number % len(MARKERS)] + DASHES[number % len(DASHES)],
                color=PALETTE[number % len(PALETTE)],
                gid=f"curve-{number}",
            )
            choice = study.choice and study.chunks_per_thread(study.choice)
            estimate = study.estimate_of(study.choice)
            if choice and estimate:
                dot = [(choice, in_percent(estimate.relative))]
                label = "" if number else "the choice"
                _line(axes, dot, f"choice-{number}", label, color="black", marker="o", ms=13)
                axes.lines[-1].set(markerfacecolor="none", markeredgewidth=1.2)
        axes.set_ylim(min(low for low, _ in ranges), max(high for _, high in ranges))
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel(CHUNKS_LABEL)
        axes.set_ylabel(TIME_LABEL)
        axes.set_title(_shared(studies), fontsize=10)
        _finish(figure)
    return figure


def _heading(study: Study) -> str:
    return f"{study.title}\n{printable(study.key[:40])}, {study.device}"


def _shared(studies: Sequence[Study]) -> str:
    facts = zip(*((s.model, s.size, s.device) for s in studies), strict=True)
    return ", ".join(values[0] for values in facts if len(set(values)) == 1)


def picture(figure: Figure, kind: Literal["png", "svg"]) -> bytes:
    """Write a figure as a file's bytes; those of an SVG carry the letters it needs."""
    with _drawing():
        stream = io.BytesIO()
        nothing = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
        figure.savefig(stream, format=kind, dpi=DPI, metadata=nothing)
    return stream.getvalue() if kind == "png" else _with_font(stream.getvalue())


@contextmanager
def _drawing() -> Iterator[None]:
    """Use matplotlib as it comes, whatever a user's own settings are.

    Raises:
        TunerError: if it is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        what = INSTALL.format("matplotlib", "plot")
        raise TunerError(f"drawing needs matplotlib, which cannot be imported: {what}") from error
    with matplotlib.rc_context(), warnings.catch_warnings():
        # A model's name may have letters that the font has not: they are drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.sans-serif": ["DejaVu Sans"],  # which matplotlib brings
                "svg.fonttype": "none",
                "svg.hashsalt": "tuner",
                "text.parse_math": False,  # a $ in a name is a letter
            }
        )
        yield


def _figure(rows: int) -> tuple[Figure, tuple[Axes, ...]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5 if rows == 1 else 6), layout="constrained")
    ratios = (3, 2)[:rows]
    grid = figure.subplots(rows, 1, sharex=True, squeeze=False, height_ratios=ratios)
    return figure, tuple(grid[:, 0])


def _line(
    axes: Axes, dots: Sequence[tuple[float | None, float]], gid: str, label: str, **look: object
) -> None:
    x, y = [dot[0] for dot in dots], [dot[1] for dot in dots]
    axes.plot(x, y, ls="none", gid=gid, label=label or "_", **look)  # type: ignore[arg-type]


def _intervals(
    axes: Axes,
    x: Sequence[float],
    values: Sequence[tuple[float, float, float]],
    label: str,
    *,
    fmt: str,
    color: str = BLUE,
    gid: str = "estimates",
) -> None:
    """Draw estimates with the ends of their intervals."""
    y = [in_percent(middle) for middle, _, _ in values]
    ends = (
        [in_percent(middle) - in_percent(low) for middle, low, _ in values],
        [in_percent(high) - in_percent(middle) for middle, _, high in values],
    )
    drawn = axes.errorbar(
        x, y, yerr=ends, fmt=fmt, color=color, label=label, capsize=3, ms=4, lw=1.2, zorder=5
    )
    drawn.lines[0].set_gid(gid)


def _mark_default(axes: Axes, study: Study) -> None:
    """Draw the default's level, and where its rule puts it on the axis if that is known."""
    axes.axhline(0.0, color="black", lw=1.0, ls="--", gid="level")
    native = study.work.native_chunk
    look = {"marker": "D", "ms": 9, "mfc": "white", "zorder": 3} if native else {}
    at = [native] if native else []
    axes.plot(
        at,
        [0.0] * len(at),
        color="black",
        lw=1.0,
        ls="--",
        gid="default",
        label=study.default_name,
        **look,  # type: ignore[arg-type]
    )


def _mark_choice(axes: Axes, study: Study) -> None:
    """Mark the choice by a line and a star; the words stand in the legend."""
    if study.choice is None:
        return
    place = study.place(study.choice)
    estimate = study.estimate_of(study.choice)
    if place is None:
        axes.plot([], [], ls="none", label=study.chosen)
        return
    look = {"color": VERMILLION, "marker": "*", "mec": "black", "mew": 0.6, "zorder": 4}
    axes.axvline(place, color=VERMILLION, lw=1.2, ls=":", label=None if estimate else study.chosen)
    if estimate:
        at = [(place, in_percent(estimate.relative))]
        _line(axes, at, "choice", study.chosen, ms=14, **look)


def _chunk_axis(axes: Axes, places: Sequence[int], *, vertical: bool) -> None:
    """Make an axis of chunk sizes: logarithmic, with the powers of two in plain digits."""
    axis = axes.yaxis if vertical else axes.xaxis
    scale, limits = (
        (axes.set_yscale, axes.set_ylim) if vertical else (axes.set_xscale, axes.set_xlim)
    )
    scale("log", base=2)
    low, high, room = min(places, default=1), max(places, default=1), 2.0 if vertical else 1.4
    powers = [2**k for k in range(max(low.bit_length() - 2, 0), high.bit_length() + 1)]
    axis.set_ticks(powers[:: 1 + len(powers) // MOST_TICKS])
    axis.set_major_formatter("{x:g}")
    limits(low / room, high * room)  # after the ticks, which widen them
    axis.set_label_text("chunk_size" if vertical else CHUNK_LABEL)


def _finish(figure: Figure) -> None:
    """Add the grid, and a legend under it all, where it hides nothing."""
    named: dict[str, Artist] = {}
    for axes in figure.axes:
        axes.grid(True, color="#dddddd", lw=0.6)
        axes.set_axisbelow(True)
        handles, labels = axes.get_legend_handles_labels()
        named.update(zip(labels, handles, strict=True))
    figure.legend(
        list(named.values()),
        list(named),
        loc="outside lower center",
        ncols=1 if max(map(len, named)) > LONG_LABEL else 2,
        fontsize=8,
        frameon=False,
    )


def _with_font(svg: bytes) -> bytes:
    """Put the letters that an SVG uses into it: its texts stay texts, and look alike everywhere."""
    from fontTools import subset
    from fontTools.ttLib import TTFont
    from matplotlib import font_manager

    drawn = svg.decode()
    texts = re.findall(r"<text[^>]*>(.*?)</text>", drawn, re.DOTALL)
    letters = html.unescape("".join(re.sub("<[^>]*>", "", text) for text in texts))
    font = TTFont(font_manager.findfont("DejaVu Sans"), recalcTimestamp=False)
    options = subset.Options(layout_features=[], hinting=False, notdef_outline=True)
    options.drop_tables += ["FFTM"]  # the font maker's notes, which fontTools would warn of
    tool = subset.Subsetter(options)
    tool.populate(text=letters)
    tool.subset(font)
    font.flavor = "woff"
    stream = io.BytesIO()
    font.save(stream)
    source = base64.b64encode(stream.getvalue()).decode()
    face = (
        "@font-face{font-family:'DejaVu Sans';"
        f"src:url(data:font/woff;base64,{source}) format('woff')}}"
    )
    style = '<style type="text/css">'
    return drawn.replace(style, style + face, 1).encode()
