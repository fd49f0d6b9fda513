"""The report: one page about many keys, which opens in a browser without a network.

The page holds one copy of the libraries that draw, each kind of picture once, and the data of
each key; a chart is drawn when its section is opened. Jinja2 escapes all stored texts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tuner.charts import (
    MOST_CURVES,
    ChartData,
    Spec,
    comparison_data,
    history_data,
    key_data,
    labels,
    library,
    model_names,
    picture,
    specification,
)
from tuner.formatting import counted, interval, milliseconds, percent, printable, relative
from tuner.records import NATIVE_DEFAULT

MOST_SAMPLES = 15
"""Samples of a candidate that a chart shows: quantiles, if there are more."""
WORK = ("model_id", "backend_type", "dtype", "post_step_forward_sensor", "bench_nsteps")
"""What keys have in common whose devices and sizes are compared."""


def make_page(
    charts: Sequence[ChartData], stats: Iterable[tuple[str, str]], *, source: str, total: int
) -> str:
    """Make the whole page.

    Args:
        charts: Of the keys, in the order of the table.
        stats: Names and figures of the database's state.
        source: Which database it is from.
        total: How many keys the database has.

    Raises:
        TunerError: if a library that draws is not installed.
    """
    jinja2, script = library("jinja2"), library("vl_convert").javascript_bundle()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.filters |= {
        "counted": counted,
        "milliseconds": milliseconds,
        "percent": percent,
        "rate": rate,
        "relative": relative,
    }
    page = environment.get_template("report.html.j2").render(
        script=script,
        source=source,
        total=total,
        summary=summarize(charts),
        comparisons=list(_comparisons(charts)),
        keys=[_key(chart, name) for chart, name in zip(charts, model_names(charts), strict=True)],
        pictures={kind: specification(kind) for kind in ("key", "history")},
        stats=list(stats),
    )
    return str(page)


def rate(steps_per_second: float | None) -> str:
    """Write environment steps per second: "1.09 M"."""
    if steps_per_second is None:
        return ""
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if steps_per_second >= size:
            return f"{steps_per_second / size:.3g}{unit}"
    return f"{steps_per_second:.3g}"


def summarize(charts: Sequence[ChartData]) -> list[str]:
    """Say in sentences how many keys there are and what was gained."""
    states = [chart.status for chart in charts]
    found = [f"{states.count(s)} {s}" for s in ("decided", "undecided", "pinned", "no choice")]
    lines = [f"{counted(len(charts), 'key')}: {', '.join(t for t in found if t[0] != '0')}."]
    gains = {c.key: c for c in charts if c.status == "decided" and c.overview["gain"] is not None}
    if not gains:
        return [*lines, "No key has a measured gain yet."]
    values = [chart.overview["gain"] for chart in gains.values()]
    best = max(gains.values(), key=lambda chart: chart.overview["gain"])
    faster = sum(value > 0 for value in values)
    lines.append(
        f"The choice is faster than the default for {faster} of {counted(len(values), 'key')} "
        f"decided by timings: it saves {percent(median(values))} of a step's time in the median, "
        f"{percent(max(values))} at most."
    )
    rates = [rate(best.steps_per_second(c)) for c in (NATIVE_DEFAULT, best.choice)]
    if max(values) > 0 and all(rates):
        lines.append(
            f"Largest gain: {best.title}: {rates[0]} environment steps per second by default, "
            f"{rates[1]} with chunk_size {best.choice}."
        )
    return lines


def _key(chart: ChartData, model: str) -> Spec:
    """Make what the template shows of a key."""
    row, pinned = chart.overview, chart.status == "pinned"
    gains = [None if pinned else row[name] for name in ("gain", "gain_low", "gain_high")]
    pictures = []
    taken = sum(map(len, chart.samples.values()))
    data = key_data(chart, MOST_SAMPLES) if chart.estimates and chart.samples else None
    if data:
        shown = sum(len(group["y"]) for group in data["samples"])
        note = f" {shown} of {taken} samples shown." if shown < taken else ""
        pictures.append(("key", f"Time of a step over chunk_size. {chart.summary}.{note}", data))
    if any(step.estimate for step in chart.history):
        told = f"Gain of chunk_size {chart.followed}, run by run: "
        told += f"{counted(len(chart.history), 'run')}, the last of {chart.history[-1].finished}."
        pictures.append(("history", told, history_data(chart)))
    return {
        "chart": chart,
        "row": row,
        "model": model,
        "place": chart.choice_place,
        "gain": gains[0],
        "interval": interval(gains[1], gains[2]),
        "rate": chart.steps_per_second(chart.choice),
        "pictures": pictures,
    }


def _comparisons(charts: Sequence[ChartData]) -> Iterable[Spec]:
    """Compare the keys of one model and one kind of work, on different devices or sizes."""
    groups: dict[Any, list[ChartData]] = defaultdict(list)
    for chart in charts:
        if chart.comparable:
            groups[tuple(chart.overview[name] for name in WORK)].append(chart)
    for group in groups.values():
        if len(group) > 1:
            shown = _devices_first(group)[:MOST_CURVES]
            heading = f"{model_names(shown)[0]}, {shown[0].steps}: {len(shown)} keys"
            if len(shown) < len(group):
                heading += f" of {len(group)}"
            told = [
                f"{label}: {chart.summary}"
                for label, chart in zip(labels(shown), shown, strict=True)
            ]
            spec = picture("comparison", *shown) | {"datasets": comparison_data(shown)}
            yield {"heading": heading, "told": told, "spec": spec}


def _devices_first(charts: Sequence[ChartData]) -> list[ChartData]:
    """Put the newest key of each device before the second newest of any."""
    seen: dict[Any, int] = defaultdict(int)
    ranked = []
    for chart in charts:
        device = chart.overview["device_id"]
        ranked.append((seen[device], chart))
        seen[device] += 1
    return [chart for _, chart in sorted(ranked, key=lambda pair: pair[0])]
