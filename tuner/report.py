"""The report: one page with everything, for a browser without a network.

Its charts are plotly's, whose script the page carries; they are handed over as plain data, and
drawn when they are looked at. Sorting and searching the one table takes thirty lines of plain
script (`report.js`): the libraries that do it bring jQuery or pandas, and ten times the page's
own weight. What comes from the database is only ever text: escaped in the markup, escaped for
plotly (which reads some markup itself), and without a "<" where it stands in a script element.
A policy in the page's head lets no script but its own two run, and nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tuner.errors import TunerError
from tuner.formatting import candidate_name, counted, milliseconds, percent, printable, relative
from tuner.plots import (
    BLUE,
    CHUNK_LABEL,
    CHUNKS_LABEL,
    GREY,
    INSTALL,
    KEPT,
    PALETTE,
    SAMPLE,
    TIME_LABEL,
    VERMILLION,
    in_percent,
    visible_range,
)
from tuner.records import NATIVE_DEFAULT, Estimate
from tuner.study import MOST_CURVES, Study, comparable, told_apart

MOST_SAMPLES = 60
"""Samples of a candidate that a chart shows; of more, every second, third, ... one."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star")
DASHES = ("solid", "dash", "dashdot", "dot")
AXIS = {"gridcolor": "#dddddd", "zeroline": False, "showline": True, "mirror": True}
LAYOUT: dict[str, Any] = {
    "height": 430,
    "margin": {"l": 70, "r": 20, "t": 20, "b": 50},
    "plot_bgcolor": "white",
    "hovermode": "closest",
    "legend": {"orientation": "h", "y": -0.2},
}
POWERS = [2**k for k in range(24)]
Chart = dict[str, Any]
"""A figure as plotly.js takes it."""


def plotly_script() -> str:
    """Read the script that draws the charts.

    Raises:
        TunerError: if plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        what = INSTALL.format("plotly", "report")
        raise TunerError(f"the report needs plotly, which cannot be imported: {what}") from error
    return str(get_plotlyjs())


def key_chart(study: Study) -> Chart:
    """Chart a key's candidates, as `tuner.plots.draw_key` draws them."""
    native, choice = study.work.native_chunk, study.choice
    points = _thinned(study)
    traces: list[Chart] = [
        {
            "name": SAMPLE,
            "x": [place for place, _ in points],
            "y": [y for _, y in points],
            "mode": "markers",
            "marker": {"color": GREY, "size": 5, "opacity": 0.35},
            "hovertemplate": "sample: %{y:+.1f} %<extra>chunk %{x}</extra>",
        },
    ]
    if native:
        look = {"color": "white", "symbol": "diamond", "size": 12, "line": {"width": 1.5}}
        traces.append(_mark(study.default_name, native, 0.0, look))
    estimate = study.estimate_of(choice)
    if choice and estimate:
        look = {"color": VERMILLION, "symbol": "star", "size": 16, "line": {"width": 0.8}}
        at = in_percent(estimate.relative)
        traces.append(_mark(study.chosen, study.place(choice), _rounded(at), look))
    traces.append(
        {
            "name": "estimate with 95 % interval",
            "x": [study.place(e.candidate) for e in study.estimates],
            **_values(study.estimates),
            "mode": "lines+markers",
            "line": {"color": BLUE, "width": 1.5},
            "marker": {"color": BLUE, "symbol": "square", "size": 8},
        }
    )
    lines = [_level()]
    if choice and (place := study.place(choice)):
        lines.append(_upright(place))
    low, high = visible_range(study)
    return {
        "data": traces,
        "layout": LAYOUT
        | {
            "xaxis": _chunk_axis(CHUNK_LABEL),
            "yaxis": AXIS | {"title": {"text": TIME_LABEL}, "range": [low, high]},
            "shapes": lines,
        },
    }


def history_chart(study: Study) -> Chart:
    """Chart a key run by run, as `tuner.plots.draw_history` draws it."""
    timed = [(n, s.estimate) for n, s in enumerate(study.steps, start=1) if s.estimate]
    chosen = [
        (n, study.place(s.choice), s.choice == NATIVE_DEFAULT)
        for n, s in enumerate(study.steps, start=1)
        if s.choice is not None
    ]
    traces: list[Chart] = [
        {
            "name": f"chunk_size {study.followed}: each run alone, 95 % interval",
            "x": [n for n, _ in timed],
            **_values([e for _, e in timed]),
            "mode": "markers",
            "marker": {"color": BLUE, "size": 8},
        }
    ]
    for name, symbol, default in (("choice of a run", "circle", False), (KEPT, "diamond", True)):
        dots = [(n, place) for n, place, kept in chosen if place and kept == default]
        if dots:
            look = {"color": "white" if default else VERMILLION, "symbol": symbol, "size": 9}
            traces.append(
                {
                    "name": name,
                    "x": [n for n, _ in dots],
                    "y": [place for _, place in dots],
                    "yaxis": "y2",
                    "mode": "markers",
                    "marker": look | {"line": {"color": VERMILLION, "width": 1.5}},
                    "hovertemplate": "run %{x}: %{y}<extra></extra>",
                }
            )
    places = [place for _, place, _ in chosen if place]
    shapes = [_level()]
    if study.choice and (place := study.place(study.choice)):
        places.append(place)
        shapes.append(_level(place, "y2", VERMILLION, "dot"))
    if study.work.native_chunk:
        places.append(study.work.native_chunk)
    view = [math.log10(min(places, default=1) / 2), math.log10(max(places, default=1) * 2)]
    count = len(study.steps)
    runs = {"range": [0.5, count + 0.5], "tick0": 1, "dtick": 1 + count // 15}
    together = study.estimate_of(study.followed)
    if together:
        low, high = in_percent(together.low), in_percent(together.high)
        band = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": low, "y1": high}
        look = {"fillcolor": BLUE, "opacity": 0.12, "line": {"width": 0}, "layer": "below"}
        shapes.append(band | look)
    return {
        "data": traces,
        "layout": LAYOUT
        | {
            "xaxis": AXIS | runs | {"title": {"text": "run"}, "anchor": "y2"},
            "yaxis": AXIS | {"title": {"text": "relative time (%)"}, "domain": [0.42, 1]},
            "yaxis2": _chunk_axis("chunk_size")
            | {"domain": [0, 0.36], "anchor": "x", "range": view},
            "shapes": shapes,
        },
    }


def comparison_chart(studies: Sequence[Study]) -> Chart:
    """Chart several keys over work items per thread, as `tuner.plots.draw_comparison` does."""
    traces = []
    for number, (study, label) in enumerate(zip(studies, told_apart(studies), strict=True)):
        color = PALETTE[number % len(PALETTE)]
        traces.append(
            {
                "name": _plotly_text(label),
                "x": [study.chunks_per_thread(e.candidate) for e in study.estimates],
                **_values(study.estimates),
                "mode": "lines+markers",
                "line": {"color": color, "dash": DASHES[number % len(DASHES)]},
                "marker": {"color": color, "symbol": SYMBOLS[number % len(SYMBOLS)], "size": 9},
            }
        )
    ranges = [visible_range(study) for study in studies]
    view = [min(low for low, _ in ranges), max(high for _, high in ranges)]
    return {
        "data": traces,
        "layout": LAYOUT
        | {
            "height": 430 + 20 * len(studies),
            "xaxis": _chunk_axis(CHUNKS_LABEL),
            "yaxis": AXIS | {"title": {"text": TIME_LABEL}, "range": view},
            "legend": {"x": 0, "y": -0.2, "yanchor": "top"},
            "shapes": [_level()],
        },
    }


def _thinned(study: Study) -> list[tuple[int, float]]:
    placed = defaultdict(list)
    for point in study.points:
        if place := study.place(point.candidate):
            placed[place].append(_rounded(in_percent(point.relative)))
    return [
        (place, value)
        for place, values in sorted(placed.items())
        for value in values[:: -(-len(values) // MOST_SAMPLES)]
    ]


def _rounded(value: float) -> float:
    return round(value, 3)


def _values(estimates: Sequence[Estimate]) -> Chart:
    middle = [in_percent(e.relative) for e in estimates]
    high = [in_percent(e.high) for e in estimates]
    low = [in_percent(e.low) for e in estimates]
    return {
        "y": [_rounded(m) for m in middle],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [_rounded(h - m) for h, m in zip(high, middle, strict=True)],
            "arrayminus": [_rounded(m - b) for b, m in zip(low, middle, strict=True)],
            "thickness": 1.2,
        },
        "customdata": [
            [relative(e.low), relative(e.high), milliseconds(e.milliseconds), e.samples]
            for e in estimates
        ],
        "hovertemplate": "%{x}: %{y:+.1f} % (%{customdata[0]} to %{customdata[1]})<br>"
        "%{customdata[2]} ms a step, %{customdata[3]} samples<extra></extra>",
    }


def _mark(name: str, x: int | None, y: float, look: Chart) -> Chart:
    hover = {"hovertemplate": "%{x}<extra></extra>"}
    return {"name": name, "x": [x], "y": [y], "mode": "markers", "marker": look, **hover}


def _level(at: int = 0, axis: str = "y", color: str = "black", dash: str = "dash") -> Chart:
    ends = {"xref": "paper", "x0": 0, "x1": 1, "yref": axis, "y0": at, "y1": at}
    return {"type": "line", **ends, "line": {"color": color, "width": 1.2, "dash": dash}}


def _upright(at: int) -> Chart:
    ends = {"yref": "paper", "y0": 0, "y1": 1, "x0": at, "x1": at}
    return {"type": "line", **ends, "line": {"color": VERMILLION, "width": 1.2, "dash": "dot"}}


def _chunk_axis(title: str) -> Chart:
    return AXIS | {"type": "log", "tickvals": POWERS, "title": {"text": title}}


def _plotly_text(text: str) -> str:
    """Escape what plotly takes for markup."""
    return escape(text, quote=False).replace("$", "&#36;")


def as_script_data(value: object) -> str:
    """Write data for a script element, which ends at the first "</script" whatever it holds."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def make_page(
    studies: Sequence[Study], stats: Iterable[tuple[str, str]], *, source: str, total: int
) -> str:
    """Make the whole page.

    Args:
        studies: Of the keys, in the order of the table.
        stats: Names and figures of the database's state.
        source: Which database it is from.
        total: How many keys that has.

    Raises:
        TunerError: if plotly is not installed.
    """
    scripts = [plotly_script(), Path(__file__).with_name("report.js").read_text("utf-8")]
    scripts = [script.replace("\r\n", "\n").replace("\r", "\n") for script in scripts]
    style = Path(__file__).with_name("report.css").read_text("utf-8")
    hashes = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    count = counted(total, "key")
    if len(studies) < total:
        count = (
            f"the {len(studies)} of {count} that were asked for, or measured last "
            "(--newest N, --key KEY)"
        )
    body = [
        "<h1>Tuning report</h1>",
        f"<p>{_html(source)}: {count}.</p>",
        "<noscript><p>The charts, sorting and searching need JavaScript.</p></noscript>",
        _overview(studies),
        _comparisons(studies),
        _state(stats),
        "<h2>Keys</h2>",
        *(_section(number, study) for number, study in enumerate(studies)),
    ]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Tuning report</title><style>{style}</style></head><body>",
            *body,
            *(f"<script>{script}</script>" for script in scripts),
            "</body></html>\n",
        ]
    )


def _html(text: object) -> str:
    return escape(printable(str(text)))


def _overview(studies: Sequence[Study]) -> str:
    columns = [
        *("key", "model", "device", "environments", "threads", "choice"),
        *("gain", "95 % interval", "standing", "runs", "samples", "measured"),
    ]
    kind = {1: "t", 2: "t", **dict.fromkeys((3, 4, 5, 6, 7, 9, 10), "n")}
    rows = []
    for number, study in enumerate(studies):
        row = study.overview
        pinned = row["pinned_because"] is not None
        gains = [None if pinned else row[name] for name in ("gain", "gain_low", "gain_high")]
        interval = f"{percent(gains[1])} to {percent(gains[2])}" if gains[0] else ""
        choice = candidate_name(row["chunk_size"]) if study.answers else "none"
        place = study.place(study.choice) if study.choice else None
        cells: list[tuple[object, object]] = [
            (study.key[:11], study.key),
            (study.model, study.model),
            (study.device, study.device),
            (row["num_envs"] or "", row["num_envs"]),
            (row["nthread"] or "", row["nthread"]),
            (choice, place),
            (percent(gains[0]), gains[0]),
            (interval, gains[1]),
            (study.standing or "decided", study.standing),
            (row["runs"], row["runs"]),
            (row["samples"] or 0, row["samples"] or 0),
            ((row["last_measured_utc"] or "")[:10], row["last_measured_utc"] or ""),
        ]
        link = f'<a href="#key-{number}" title="{_html(study.key)}">{_html(cells[0][0])}</a>'
        rest = "".join(
            f'<td class="{kind.get(n, "")}" '
            f'data-sort="{"" if value is None else _html(value)}">{_html(text)}</td>'
            for n, (text, value) in enumerate(cells)
            if n
        )
        rows.append(f'<tr><td data-sort="{_html(study.key)}">{link}</td>{rest}</tr>')
    heads = "".join(
        f'<th aria-sort="none"><button type="button">{name}</button></th>' for name in columns
    )
    return (
        '<h2>Overview</h2><p><label>Search: <input type="search" id="search"></label> '
        '<span id="found" role="status"></span></p>'
        f'<div class="wide"><table id="overview"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _comparisons(studies: Sequence[Study]) -> str:
    """Chart together the keys of one model and one kind of work, on different devices or sizes."""
    groups = defaultdict(list)
    for study in filter(comparable, studies):
        facts = ("model_id", "backend_type", "dtype", "post_step_forward_sensor", "bench_nsteps")
        groups[tuple(study.overview[name] for name in facts)].append(study)
    parts: list[str] = []
    for group in groups.values():
        if len(group) > 1:
            shown = _devices_first(group)[:MOST_CURVES]
            row = shown[0].overview
            steps = counted(row["bench_nsteps"], "step")
            more = f"; {len(shown)} of {len(group)} keys" if len(shown) < len(group) else ""
            heading = f"{shown[0].model}, {steps}, {row['dtype']}{more}"
            parts.append(_details(heading, [_chart(comparison_chart(shown))], opened=not parts))
    return "<h2>Devices and sizes compared</h2>" + (
        "".join(parts) or "<p>No two keys are of the same model and the same kind of work.</p>"
    )


def _devices_first(studies: Sequence[Study]) -> list[Study]:
    """Put the newest key of each device before the second newest of any."""
    seen: dict[object, int] = defaultdict(int)
    ranked = []
    for study in studies:
        device = study.overview["device_id"]
        ranked.append((seen[device], study))
        seen[device] += 1
    return [study for _, study in sorted(ranked, key=lambda pair: pair[0])]


def _state(stats: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<tr><th>{_html(k)}</th><td>{_html(v)}</td></tr>" for k, v in stats)
    return f'<h2>The database</h2><table id="state"><tbody>{rows}</tbody></table>'


def _section(number: int, study: Study) -> str:
    row = study.overview
    parts = [f"<p>{_html(study.key)}, {_html(study.device)}. {_html(study.chosen)}.</p>"]
    if row["pinned_because"] is not None:
        parts.append(f"<p>Pinned: {_html(row['pinned_because'])}</p>")
    if study.points:
        shown = len(_thinned(study))
        parts.append(_chart(key_chart(study)))
        if shown < len(study.points):
            parts.append(f"<p>{shown} of {len(study.points)} samples are shown.</p>")
    else:
        parts.append("<p>It has no timings.</p>")
    if any(step.estimate for step in study.steps):
        parts.append(_chart(history_chart(study)))
    parts.append(_estimates(study))
    return _details(f"{study.key[:11]}: {study.title}", parts, name=f"key-{number}")


def _estimates(study: Study) -> str:
    if not study.verdict.estimates:
        return ""
    heads = "".join(
        f"<th>{name}</th>"
        for name in ("chunk_size", "ms per step", "to default", "95 % interval", "samples")
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td class=n>{_html(text)}</td>"
            for text in (
                e.candidate,
                milliseconds(e.milliseconds),
                relative(e.relative),
                "" if e.candidate == NATIVE_DEFAULT else f"{relative(e.low)} to {relative(e.high)}",
                e.samples,
            )
        )
        + "</tr>"
        for e in study.verdict.estimates
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _details(heading: str, parts: Sequence[str], *, name: str = "", opened: bool = False) -> str:
    attributes = (f' id="{name}"' if name else "") + (" open" if opened else "")
    return f"<details{attributes}><summary>{_html(heading)}</summary>{''.join(parts)}</details>"


def _chart(chart: Chart) -> str:
    height = chart["layout"]["height"]
    return (
        f'<div class="chart" style="height:{height}px">'
        f'<script type="application/json">{as_script_data(chart)}</script></div>'
    )
