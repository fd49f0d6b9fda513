"""Pictures of tuning keys: what they show, read from the database, and how Altair draws it.

Each picture is described once, without data: `tuner plot` and the report put a key's data into
the same description. Colours are those of Okabe and Ito (2008), which colour-blind readers can
tell apart; shapes and dashes differ as well, for prints in grey.

A sample is shown relative to the median of the default's samples in its own run, because the
speed of the machine differs between runs. Estimates are those of the verdict.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath
from statistics import median
from typing import Any, Literal

from tuner.candidates import native_chunk_size
from tuner.errors import TunerError
from tuner.formatting import counted, milliseconds, printable, relative
from tuner.racing.comparison import usable_samples
from tuner.racing.meta_analysis import MEASURED, in_order, judge_runs
from tuner.records import NATIVE_DEFAULT, Candidate, Estimate, Run, Verdict
from tuner.store.queries import read_key_runs

Spec = dict[str, Any]
"""A Vega-Lite specification."""
Kind = Literal["key", "history", "comparison"]
Form = Literal["svg", "png", "html"]

MOST_CURVES = 8
"""Curves that can be told apart in one picture."""
TOP = 60.0
"""Per cent above the default where a picture ends at the latest: one very slow candidate would
flatten all others. What is slower is marked at the edge."""
WIDTH = 540
BLUE, VERMILLION, GREY, BLACK = "#0072B2", "#D55E00", "#767676", "#000000"
PALETTE = [BLUE, VERMILLION, "#009E73", "#CC79A7", BLACK, "#E69F00", "#56B4E9", GREY]
STAR = (
    "M0,.5L.589,.809 .476,.154 .951,-.309 .294,-.404 0,-1 -.294,-.404 -.951,-.309 -.476,.154 "
    "-.589,.809Z"
)
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", STAR, "stroke"]
DASHES = [[1, 0], [8, 4], [8, 3, 2, 3], [2, 3], [12, 4], [4, 2], [10, 2, 2, 2, 2, 2], [1, 4]]
CHUNK_LABEL = "chunk_size (environments per work item)"
TIME_LABEL = "time of a step, relative to the default (%)"
CHUNKS_LABEL = "work items per thread"
SAMPLE, BEYOND = "sample", "samples above the edge"
ESTIMATE, DEFAULT, CHOICE = "estimate, 95 % interval", "native default", "choice"
EACH_RUN, ALL_RUNS = "one run, 95 % interval", "all runs, 95 % interval"
PARAMETERS = ("bench_nsteps", "dtype", "backend_type", "post_step_forward_sensor")


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """One run in a key's history."""

    finished: str
    """Date and time, UTC."""
    choice: Candidate | None
    estimate: Estimate | None
    """Of the followed candidate, from this run alone; None where it was not timed."""


@dataclass(frozen=True, slots=True)
class ChartData:
    """What the pictures of one key show."""

    key: str
    overview: dict[str, Any]
    """The key's row of `tuning_overview`."""
    native_chunk: int | None
    verdict: Verdict
    samples: dict[Candidate, list[float]]
    """Times in per cent relative to the default, sorted."""
    history: tuple[HistoryStep, ...]
    followed: Candidate | None
    """Whose gain the history shows: the choice, or if that is the default, the best other."""

    @property
    def answers(self) -> bool:
        """Whether the key has a verdict or a pin."""
        return any(self.overview[name] is not None for name in ("stack", "pinned_because"))

    @property
    def choice(self) -> Candidate | None:
        """The candidate that look-ups return."""
        return Candidate(self.overview["chunk_size"]) if self.answers else None

    @property
    def status(self) -> str:
        """One of "pinned", "decided", "undecided" and "no choice"."""
        if self.overview["pinned_because"] is not None:
            return "pinned"
        if not self.answers:
            return "no choice"
        return "decided" if self.overview["decided"] else "undecided"

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """Estimates of the candidates that have a place on the chunk_size axis, in its order."""
        found = [e for e in self.verdict.estimates if e.samples and self.place(e.candidate)]
        return tuple(sorted(found, key=lambda e: self.place(e.candidate) or 0))

    def estimate_of(self, candidate: Candidate | None) -> Estimate | None:
        """Find the estimate of a candidate; None if it has no timings."""
        place = candidate and self.place(candidate)
        return next((e for e in self.estimates if self.place(e.candidate) == place), None)

    def place(self, candidate: Candidate) -> int | None:
        """Place a candidate on the axis; the default where the native rule puts it, if known."""
        return candidate.chunk_size or self.native_chunk

    @property
    def choice_place(self) -> int | None:
        """The place of the choice."""
        return self.place(self.choice) if self.choice else None

    def items_per_thread(self, candidate: Candidate) -> float | None:
        """Work items that each thread gets; None if that is not known."""
        place, row = self.place(candidate), self.overview
        if not (place and row["num_envs"] and row["nthread"]):
            return None
        return float(row["num_envs"] / place / row["nthread"])

    @property
    def comparable(self) -> bool:
        """Whether the key has a curve over work items per thread."""
        return self.native_chunk is not None and len(self.estimates) > 1

    def steps_per_second(self, candidate: Candidate | None) -> float | None:
        """Physics steps of all environments together per second; None if not known."""
        estimate, row = self.estimate_of(candidate), self.overview
        if not (estimate and estimate.milliseconds and row["num_envs"] and row["bench_nsteps"]):
            return None
        return float(1e3 * row["num_envs"] * row["bench_nsteps"] / estimate.milliseconds)

    @property
    def device(self) -> str:
        """The device in a few words."""
        cpu = self.overview["cpu_model"] or self.overview["machine"]
        count = self.overview["usable_cpus"] or self.overview["cpu_count"]
        words = [cpu or "unknown device", counted(count, "CPU") if count else ""]
        return printable(", ".join(filter(None, words)))

    @property
    def size(self) -> str:
        """The number of environments and of threads."""
        envs, threads = self.overview["num_envs"], self.overview["nthread"]
        if not (envs and threads):
            return "unknown size"
        return f"{counted(envs, 'environment')}, {counted(threads, 'thread')}"

    @property
    def steps(self) -> str:
        """The physics steps of one call."""
        number = self.overview["bench_nsteps"]
        return f"{counted(number, 'physics step')} per call" if number else "unknown steps"

    @property
    def title(self) -> str:
        """Model, size and steps."""
        return f"{model_names([self])[0]}, {self.size}, {self.steps}"

    @property
    def summary(self) -> str:
        """The choice in words: "choice: 4, -14.9 % (95 % interval -15.2 % to -14.6 %), pinned"."""
        if self.choice is None:
            return "no choice"
        if self.choice == NATIVE_DEFAULT:
            name = f"native default ({self.native_chunk})" if self.native_chunk else "the default"
            return f"choice: {name}, {self.status}"
        estimate, gain = self.estimate_of(self.choice), ""
        if estimate:
            ends = f"{relative(estimate.low)} to {relative(estimate.high)}"
            gain = f", {relative(estimate.relative)} (95 % interval {ends})"
        return f"choice: {self.choice}{gain}, {self.status}"


def read_chart_data(database: Path, key: str) -> ChartData:
    """Read a key and judge its runs.

    Raises:
        ArgumentError: if there is no such key.
        SchemaError, DatabaseError: if the database cannot be read.
    """
    overview, runs = read_key_runs(database, key)
    envs, threads = overview["num_envs"], overview["nthread"]
    native = native_chunk_size(envs, threads) if envs and threads else None
    verdict = judge_runs(runs, num_envs=envs, nthread=threads)
    answers = overview["stack"] is not None or overview["pinned_because"] is not None
    followed = _followed(verdict, Candidate(overview["chunk_size"]) if answers else None)
    history = []
    position = {trial.uid: number for number, trial in enumerate(in_order(runs))}
    for run in sorted(runs, key=lambda run: position[run.uid]):
        alone = judge_runs([run], num_envs=envs, nthread=threads).estimates if followed else ()
        estimate = next((e for e in alone if e.candidate == followed and e.samples), None)
        history.append(HistoryStep(f"{run.finished:%Y-%m-%d %H:%M}", run.choice, estimate))
    measured = [run for run in runs if run.state in MEASURED] or runs
    samples = _relative_samples(measured, native)
    return ChartData(key, overview, native, verdict, samples, tuple(history), followed)


def _followed(verdict: Verdict, choice: Candidate | None) -> Candidate | None:
    others = [e for e in verdict.estimates if e.samples and e.candidate != NATIVE_DEFAULT]
    if any(e.candidate == choice for e in others):
        return choice
    return min(others, key=lambda e: e.relative).candidate if others else None


def _relative_samples(runs: Sequence[Run], native: int | None) -> dict[Candidate, list[float]]:
    found = defaultdict(list)
    failed = {candidate for run in runs for candidate in run.failed}
    for run in runs:
        samples = usable_samples(run.samples, native, failed)
        default = [s.milliseconds for s in samples if s.candidate == NATIVE_DEFAULT]
        if scale := median(default) if default else 0.0:
            for sample in samples:
                found[sample.candidate].append(_percent(sample.milliseconds / scale))
    return {candidate: sorted(values) for candidate, values in found.items()}


def model_names(charts: Sequence[ChartData]) -> list[str]:
    """Name the models of keys by file name, with as much of the path as tells them apart."""
    paths = [PurePath(chart.overview["model_file"] or "no model file").parts for chart in charts]
    names = []
    for parts in paths:
        others = [other for other in paths if other != parts]
        length = next(
            (n for n in range(1, len(parts)) if all(o[-n:] != parts[-n:] for o in others)),
            len(parts),
        )
        names.append(printable("/".join(parts[-length:])))
    return names


def _facts(charts: Sequence[ChartData]) -> list[tuple[str, ...]]:
    return [
        (name, c.device, c.size, c.steps, *(printable(str(c.overview[p])) for p in PARAMETERS[1:]))
        for c, name in zip(charts, model_names(charts), strict=True)
    ]


def labels(charts: Sequence[ChartData]) -> list[str]:
    """Label each of several keys with its key and the facts in which they differ."""
    facts = _facts(charts)
    differing = [n for n, values in enumerate(zip(*facts, strict=True)) if len(set(values)) > 1]
    return [
        ": ".join(filter(None, (printable(c.key[:11]), ", ".join(own[n] for n in differing))))
        for c, own in zip(charts, facts, strict=True)
    ]


def _percent(ratio: float) -> float:
    return round(100.0 * (ratio - 1.0), 3)


def _top(chart: ChartData) -> float:
    highest = [_percent(e.high) for e in chart.estimates]
    values = sorted(value for values in chart.samples.values() for value in values)
    highest += values[: len(values) - len(values) // 50][-1:]
    return min(max(highest, default=1.0), TOP)


def _interval(e: Estimate, top: float) -> Spec:
    y, low, high = _percent(e.relative), _percent(e.low), _percent(e.high)
    row: Spec = {"y": min(y, top), "low": min(low, top), "high": min(high, top), "n": e.samples}
    row |= {"ms": milliseconds(e.milliseconds), "name": str(e.candidate)}
    return row | {"told": f"{relative(e.relative)} ({relative(e.low)} to {relative(e.high)})"}


def key_data(chart: ChartData, most_samples: int | None = None) -> Spec:
    """Make the data of the picture of a key's candidates.

    Args:
        chart: Of the key.
        most_samples: Show at most so many quantiles of each candidate's samples.

    Raises:
        TunerError: if the key has no timings.
    """
    if not chart.estimates or not chart.samples:
        raise TunerError(f"{chart.key} has no timings to draw: `tuner tune --force` measures it")
    top = _top(chart)
    samples, beyond = [], []
    for candidate, values in chart.samples.items():
        place = chart.place(candidate)
        step = -(-len(values) // (most_samples or len(values)))
        shown = [round(y, 2) for y in values[step // 2 :: step] if y <= top]
        above = sum(y > top for y in values)
        if place and shown:
            samples.append({"x": place, "y": shown})
        if place and above:
            beyond.append({"x": place, "y": top, "n": above})
    estimates = [
        {"x": chart.place(e.candidate)}
        | _interval(e, top)
        | ({"mark": f"{relative(e.relative)} ↑"} if _percent(e.relative) > top else {})
        for e in chart.estimates
    ]
    native, choice = chart.native_chunk, chart.choice_place
    estimate = chart.estimate_of(chart.choice)
    at = min(_percent(estimate.relative), top) if estimate else None
    return {
        "samples": samples,
        "beyond": beyond,
        "estimates": estimates,
        "default": [{"x": native, "y": 0}] if native else [],
        "choice": [{"x": choice, "y": at}] if choice else [],
        "frame": _frame([chart.place(c) for c in chart.samples] + [choice, native]),
    }


def _frame(places: Sequence[float | None]) -> list[Spec]:
    """Span the axes a little wider than the data, so that even one candidate has an axis."""
    known = [place for place in places if place] or [1]
    low, high = min(known), max(known)
    room = 1.5 if high >= 4 * low else 2.0
    return [{"x": low / room, "y": -1}, {"x": high * room, "y": 1}]


def history_data(chart: ChartData) -> Spec:
    """Make the data of the picture of a key run by run.

    Raises:
        TunerError: if no run was measured.
    """
    if not any(step.estimate for step in chart.history):
        raise TunerError(f"{chart.key} has no measured run to draw: `tuner tune --force` makes one")
    runs: list[Spec] = []
    choices: list[Spec] = []
    for number, step in enumerate(chart.history, start=1):
        base = {"run": number, "finished": step.finished}
        if step.estimate:
            runs.append(base | _interval(step.estimate, TOP))
        if step.choice is not None and (place := chart.place(step.choice)):
            kind = DEFAULT if step.choice == NATIVE_DEFAULT else CHOICE
            choices.append(base | {"x": place, "kind": kind})
    together = chart.estimate_of(chart.followed)
    answer = chart.choice_place
    frame = _frame([row["x"] for row in choices] + [answer, chart.native_chunk])
    ends = (0.5, len(chart.history) + 0.5)
    return {
        "runs": runs,
        "choices": choices,
        "together": [_interval(together, TOP)] if together else [],
        "choice": [{"x": answer}] if answer else [],
        "frame": [row | {"run": run} for row, run in zip(frame, ends, strict=True)],
    }


def comparison_data(charts: Sequence[ChartData]) -> Spec:
    """Make the data of the comparison of keys over work items per thread.

    Raises:
        TunerError: if a key has no curve.
    """
    rows: list[Spec] = []
    top = max(_top(chart) for chart in charts)
    for chart, label in zip(charts, labels(charts), strict=True):
        if not chart.comparable:
            raise TunerError(
                f"{chart.key} has no curve to compare: it needs its number of environments and "
                "threads and two candidates timed; leave it out"
            )
        chosen = chart.estimate_of(chart.choice)
        for e in chart.estimates:
            row = {"x": chart.items_per_thread(e.candidate), "key": label} | _interval(e, top)
            rows.append(row | ({"chosen": 1} if e == chosen else {}))
    return {"curves": rows, "frame": _frame([row["x"] for row in rows])}


def picture(kind: Kind, *charts: ChartData) -> Spec:
    """Describe a picture whole: its specification with title and data."""
    if kind == "comparison":
        facts = zip(*(facts[:4] for facts in _facts(charts)), strict=True)
        common = [values[0] for values in facts if len(set(values)) == 1]
        title, lines, data = ", ".join(common), ["rings mark the choices"], comparison_data(charts)
    else:
        (chart,) = charts
        data = key_data(chart) if kind == "key" else history_data(chart)
        title, first, last = chart.title, chart.history[0].finished, chart.history[-1].finished
        lines = [f"{printable(chart.key[:40])}, {chart.device}", chart.summary]
        if kind == "history":
            lines.append(f"gain of chunk_size {chart.followed}; runs of {first} to {last} UTC")
    heading = {"text": title, "subtitle": lines, "anchor": "start"}
    description = ". ".join([title, *lines])
    names = tuple(labels(charts)) if kind == "comparison" else ()
    described = {"title": heading, "description": description, "datasets": data}
    return specification(kind, names) | described


def draw(spec: Spec, form: Form) -> bytes:
    """Draw a picture as the content of a file; an html page needs no network."""
    convert = library("vl_convert")
    if form == "png":
        return bytes(convert.vegalite_to_png(spec, scale=2))
    made = (
        convert.vegalite_to_svg(spec)
        if form == "svg"
        else convert.vegalite_to_html(spec, bundle=True, renderer="svg")
    )
    return str(made).encode()


def library(name: str) -> Any:
    """Import one of the libraries that draw.

    Raises:
        TunerError: if it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise TunerError(
            f"drawing needs {name}, which cannot be imported: pip install 'tuner[charts]'"
        ) from error


@cache
def specification(kind: Kind, curves: tuple[str, ...] = ()) -> Spec:
    """Describe a kind of picture, without title and data; a comparison by its curves' labels."""
    library("altair")
    made: Any
    if kind == "comparison":
        made = _comparison_chart(curves)
    else:
        made = _key_chart() if kind == "key" else _history_chart()
    made = made.configure_axis(gridColor="#dddddd", titleFontWeight="normal")
    made = made.configure_legend(orient="bottom", title=None, labelLimit=WIDTH, symbolOpacity=1)
    return dict(made.to_dict())


def _log_axis(channel: Any, title: str, field: str = "x:Q") -> Any:
    import altair as alt

    scale = alt.Scale(type="log", base=2, nice=False)
    ticks = [2**k for k in range(-10, 24)]
    axis = alt.Axis(values=ticks, format="~g", labelOverlap="greedy", labelSeparation=4)
    return channel(field, title=title, scale=scale, axis=axis)


def _marks(kinds: dict[str, tuple[str, str]]) -> Spec:
    """Give each kind of mark its colour and shape, and one legend of both."""
    import altair as alt

    colors, shapes = ([look[n] for look in kinds.values()] for n in (0, 1))
    return {
        "color": alt.Color("kind:N", scale=alt.Scale(domain=list(kinds), range=colors)),
        "shape": alt.Shape("kind:N", scale=alt.Scale(domain=list(kinds), range=shapes)),
    }


def _data(name: str, kind: str | None = None) -> Any:
    import altair as alt

    chart = alt.Chart(alt.NamedData(name))
    return chart.transform_calculate(kind=f"'{kind}'") if kind else chart


def _tooltip(*fields: str) -> Any:
    import altair as alt

    titles = {"name": "chunk_size", "told": "relative", "ms": "ms per step", "n": "samples"}
    return [alt.Tooltip(f, title=titles.get(f[:-2], f[:-2])) for f in fields]


FACTS = ("name:N", "told:N", "ms:N", "n:Q")


def _zero() -> Any:
    import altair as alt

    base = alt.Chart(alt.InlineData(values=[{}]))
    return base.mark_rule(strokeDash=[6, 4]).encode(y=alt.YDatum(0))


def _key_chart() -> Any:
    import altair as alt

    look = _marks(
        {
            SAMPLE: (GREY, "circle"),
            BEYOND: (GREY, "triangle-up"),
            ESTIMATE: (BLUE, "square"),
            DEFAULT: (BLACK, "diamond"),
            CHOICE: (VERMILLION, STAR),
        }
    )
    x = _log_axis(alt.X, CHUNK_LABEL)
    y = alt.Y("y:Q", title=TIME_LABEL, scale=alt.Scale(zero=False))
    place: Spec = {"x": x, "y": y}
    estimates = _data("estimates", ESTIMATE).encode(**place)
    choice = _data("choice", CHOICE)
    return alt.layer(
        _data("frame").mark_point(opacity=0).encode(**place),
        _zero(),
        _data("samples", SAMPLE)
        .transform_flatten(["y"])
        .mark_point(opacity=0.35, size=14)
        .encode(**place, **look),
        _data("beyond", BEYOND)
        .mark_point(size=40)
        .encode(**place, **look, tooltip=_tooltip("x:Q", "n:Q")),
        choice.mark_rule(color=VERMILLION, strokeDash=[2, 3], strokeWidth=1.5).encode(x=x),
        _data("default", DEFAULT).mark_point(size=170, strokeWidth=1.5).encode(**place, **look),
        estimates.mark_line(color=BLUE, strokeWidth=1.2),
        estimates.mark_rule(color=BLUE, strokeWidth=2).encode(y=alt.Y("low:Q"), y2="high:Q"),
        estimates.mark_point(size=35, filled=True, opacity=1).encode(
            **look, tooltip=_tooltip(*FACTS)
        ),
        choice.mark_point(size=170, filled=True, opacity=1).encode(**place, **look),
        estimates.transform_filter("isValid(datum.mark)").mark_text(dy=12).encode(text="mark:N"),
    ).properties(width=WIDTH, height=320)


def _history_chart() -> Any:
    import altair as alt

    look = _marks(
        {
            EACH_RUN: (BLUE, "circle"),
            ALL_RUNS: (BLUE, "stroke"),
            CHOICE: (VERMILLION, "square"),
            DEFAULT: (BLACK, "diamond"),
        }
    )
    x = alt.X(
        "run:Q",
        title="run",
        scale=alt.Scale(nice=False, zero=False),
        axis=alt.Axis(labelExpr="datum.value % 1 ? '' : format(datum.value, 'd')"),
    )
    y = alt.Y("y:Q", title=["time of a step,", "relative to default (%)"])
    size = _log_axis(alt.Y, "chunk_size")
    frame = _data("frame").mark_point(opacity=0)
    together = _data("together", ALL_RUNS)
    runs = _data("runs", EACH_RUN).encode(x=x)
    span: Spec = {"y": alt.Y("low:Q"), "y2": "high:Q"}
    gains = alt.layer(
        frame.encode(x=x, y=y),
        _zero(),
        together.mark_rect(color=BLUE, opacity=0.15).encode(**span),
        together.mark_rule(strokeDash=[8, 3, 2, 3]).encode(y=y, color=look["color"]),
        runs.mark_rule(color=BLUE, strokeWidth=1.5).encode(**span),
        runs.mark_point(filled=True, size=50, opacity=1).encode(
            y=y, **look, tooltip=_tooltip("finished:N", *FACTS)
        ),
    ).properties(width=WIDTH, height=200)
    choices = alt.layer(
        frame.encode(x=x, y=size),
        _data("choice").mark_rule(color=VERMILLION, strokeDash=[2, 3]).encode(y=size),
        _data("choices")
        .mark_point(size=60, strokeWidth=2, opacity=1)
        .encode(x=x, y=size, **look, tooltip=_tooltip("finished:N", "x:Q", "kind:N")),
    ).properties(width=WIDTH, height=110)
    return alt.vconcat(gains, choices).resolve_scale(x="shared", color="shared", shape="shared")


def _comparison_chart(names: Sequence[str]) -> Any:
    import altair as alt

    def scale(values: Sequence[Any]) -> Any:
        return alt.Scale(domain=list(names), range=values[: len(names)])

    legend = alt.Legend(columns=1, symbolSize=90, symbolStrokeWidth=0)
    color = alt.Color("key:N", scale=scale(PALETTE), legend=legend)
    shape = alt.Shape("key:N", scale=scale(SHAPES), legend=legend)
    dash = alt.StrokeDash("key:N", scale=scale(DASHES), legend=legend)
    place: Spec = {"x": _log_axis(alt.X, CHUNKS_LABEL), "y": alt.Y("y:Q", title=TIME_LABEL)}
    curves = _data("curves").encode(**place)
    return alt.layer(
        _data("frame").mark_point(opacity=0).encode(**place),
        _zero(),
        curves.mark_line(strokeWidth=1.5).encode(color=color, strokeDash=dash),
        curves.mark_rule().encode(y=alt.Y("low:Q"), y2="high:Q", color=color),
        curves.mark_point(size=60, filled=True, opacity=1).encode(
            color=color, shape=shape, tooltip=_tooltip("key:N", *FACTS)
        ),
        curves.transform_filter("isValid(datum.chosen)").mark_point(
            shape="circle", size=260, color=BLACK, strokeWidth=1.5
        ),
    ).properties(width=WIDTH, height=320)
