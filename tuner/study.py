"""What the pictures of a key show, in numbers: read from the database, judged as a verdict is.

The estimates are those of `judge_runs`, over the runs that count for the key's newest verdict.

A sample is set against the median of the default's samples in its own run: between runs the
machine's speed differs, so that milliseconds would show when a run was made. Not against those
of its round: they are one or two, whose own noise would move all the round's samples and hide
that of the default. What the machine drifts within a run is seen as spread; the estimates take
it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tuner.formatting import counted, printable, relative
from tuner.racing.comparison import PoolShape, usable_samples
from tuner.racing.meta_analysis import MEASURED, in_order, judge_runs
from tuner.records import NATIVE_DEFAULT, Candidate, Estimate, Run, Verdict
from tuner.store.queries import read_evidence

MOST_CURVES = 8
"""Curves that can be told apart in one picture."""


@dataclass(frozen=True, slots=True)
class Point:
    """A sample as a picture shows it."""

    candidate: Candidate
    relative: float
    """Its time over the median of the default's samples in its run."""


@dataclass(frozen=True, slots=True)
class Step:
    """One run in a key's history."""

    finished: str
    """Date and time, UTC."""
    choice: Candidate | None
    """What it chose by itself; None where it chose nothing."""
    estimate: Estimate | None
    """Of the followed candidate, from this run alone; None where it was not timed."""


@dataclass(frozen=True, slots=True)
class Study:
    """A key, as its pictures show it."""

    key: str
    overview: dict[str, Any]
    """Its line of `tuning_overview`."""
    work: PoolShape
    verdict: Verdict
    points: tuple[Point, ...]
    steps: tuple[Step, ...]
    followed: Candidate | None
    """Whose gain the history shows: the choice, or where that is the default, the best other."""

    @property
    def answers(self) -> bool:
        """Whether the key has an answer at all: a verdict or a pin."""
        return any(self.overview[name] is not None for name in ("stack", "pinned_because"))

    @property
    def choice(self) -> Candidate | None:
        """What the key answers."""
        return Candidate(self.overview["chunk_size"]) if self.answers else None

    @property
    def standing(self) -> str:
        """How sure the answer is, in a word or two; nothing where it is decided."""
        if self.overview["pinned_because"] is not None:
            return "pinned"
        return "" if self.overview["decided"] else "undecided"

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """Those of candidates with a place on the axis of chunk sizes, from left to right."""
        found = [e for e in self.verdict.estimates if e.samples and self.place(e.candidate)]
        return tuple(sorted(found, key=lambda e: self.place(e.candidate) or 0))

    def estimate_of(self, candidate: Candidate | None) -> Estimate | None:
        """What is estimated of a candidate; None if it has no timings."""
        if candidate is None:
            return None
        wanted = self.place(candidate)
        return next((e for e in self.estimates if self.place(e.candidate) == wanted), None)

    def place(self, candidate: Candidate) -> int | None:
        """Where a candidate stands on the axis; the default where its rule puts it, if known."""
        return candidate.chunk_size or self.work.native_chunk

    def chunks_per_thread(self, candidate: Candidate) -> float | None:
        """How many work items a thread gets; None if that is not known."""
        place = self.place(candidate)
        if not (place and self.work.num_envs and self.work.nthread):
            return None
        return self.work.num_envs / place / self.work.nthread

    @property
    def model(self) -> str:
        """The name of its model's file."""
        return printable(Path(self.overview["model_file"] or "").name) or "no model file"

    @property
    def device(self) -> str:
        """Its device in a few words."""
        cpu = self.overview["cpu_model"] or self.overview["machine"]
        count = self.overview["usable_cpus"] or self.overview["cpu_count"]
        words = [cpu or "unknown device", counted(count, "CPU") if count else ""]
        return printable(", ".join(filter(None, words)))

    @property
    def size(self) -> str:
        """Its environments and threads."""
        if not (self.work.num_envs and self.work.nthread):
            return "unknown size"
        envs, threads = self.work.num_envs, self.work.nthread
        return f"{counted(envs, 'environment')}, {counted(threads, 'thread')}"

    @property
    def title(self) -> str:
        """Model and size."""
        return f"{self.model}, {self.size}"

    @property
    def chosen(self) -> str:
        """The answer in words: "choice: 64 (-4.2 %, undecided)"."""
        if self.choice is None:
            return "no choice"
        name = self.choice.chunk_size or "the default"
        estimate = self.estimate_of(self.choice) if self.choice != NATIVE_DEFAULT else None
        words = [relative(estimate.relative) if estimate else "", self.standing]
        told = ", ".join(filter(None, words))
        return f"choice: {name} ({told})" if told else f"choice: {name}"

    @property
    def default_name(self) -> str:
        """The default in words, with what its rule amounts to where that is known."""
        native = self.work.native_chunk
        return f"native default ({native})" if native else "native default"


def read_study(database: Path, key: str) -> Study:
    """Read a key and judge it.

    Raises:
        ArgumentError: if there is no such key.
        SchemaError, DatabaseError: if the database cannot be read.
    """
    overview, runs = read_evidence(database, key)
    work = PoolShape(overview["num_envs"], overview["nthread"])
    size: dict[str, int | None] = {"num_envs": work.num_envs, "nthread": work.nthread}
    verdict = judge_runs(runs, **size)
    measured = [run for run in runs if run.state in MEASURED]
    answers = overview["stack"] is not None or overview["pinned_because"] is not None
    followed = _followed(verdict, Candidate(overview["chunk_size"]) if answers else None)
    place = {trial.uid: number for number, trial in enumerate(in_order(runs))}
    steps = []
    for run in sorted(runs, key=lambda run: place[run.uid]):
        alone = judge_runs([run], **size) if followed else None
        found = [e for e in alone.estimates if e.candidate == followed] if alone else []
        steps.append(
            Step(
                finished=f"{run.finished:%Y-%m-%d %H:%M}",
                choice=run.choice,
                estimate=found[0] if found and found[0].samples else None,
            )
        )
    return Study(
        key=key,
        overview=overview,
        work=work,
        verdict=verdict,
        points=tuple(_points(measured or runs, work)),
        steps=tuple(steps),
        followed=followed,
    )


def _followed(verdict: Verdict, choice: Candidate | None) -> Candidate | None:
    others = [e for e in verdict.estimates if e.samples and e.candidate != NATIVE_DEFAULT]
    if any(e.candidate == choice for e in others):
        return choice
    return min(others, key=lambda e: e.relative).candidate if others else None


def _points(runs: Sequence[Run], work: PoolShape) -> Iterator[Point]:
    """Set each sample that counts against its run's default; a run without one has no scale."""
    failed = {candidate for run in runs for candidate in run.failed}
    for run in runs:
        samples = usable_samples(run.samples, work.native_chunk, failed)
        default = [s.milliseconds for s in samples if s.candidate == NATIVE_DEFAULT]
        scale = median(default) if default else 0.0
        if scale > 0:
            yield from (Point(s.candidate, s.milliseconds / scale) for s in samples)


def told_apart(studies: Sequence[Study]) -> list[str]:
    """Name each of several keys by its key and by what the others do not share."""
    parts = [(s.model, s.device, s.size) for s in studies]
    differing = [n for n, facts in enumerate(zip(*parts, strict=True)) if len(set(facts)) > 1]
    return [
        ": ".join(filter(None, (s.key[:11], ", ".join(part[n] for n in differing))))
        for s, part in zip(studies, parts, strict=True)
    ]


def comparable(study: Study) -> bool:
    """Tell whether a key has a curve over chunks per thread."""
    return study.work.native_chunk is not None and len(study.estimates) > 1
