"""The frozen records that cross the borders between rooms. Data only: no clock, no database."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from tuner.environment import UNKNOWN, Environment

LARGEST_INTEGER = 2**63 - 1
"""The largest whole number that a database holds."""


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """One way to cut the work of a step, as a record of its knobs.

    Today there is one knob. It is a record and not a bare integer so that a second one
    (the number of threads) is a field more, not a change of every signature.
    """

    chunk_size: int | None
    """Environments in one work item, 1 <= chunk_size <= num_envs; None is the native default."""

    def __str__(self) -> str:
        return "default" if self.chunk_size is None else str(self.chunk_size)


NATIVE_DEFAULT = Candidate(chunk_size=None)
"""The rule built into the pool: the anchor of every comparison."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One timing of one candidate: `repeats` calls of `pool.step`, back to back."""

    candidate: Candidate
    block: int
    """Which block of the run it belongs to, from 0: samples of a block are neighbours in time."""
    order: int
    """Its place in the whole run, from 0: the order in which the samples were really taken."""
    nanoseconds: int
    """Wall-clock time of the whole sample, > 0."""
    warm_up: bool = False
    """Taken to warm caches, threads and clocks; kept, but no verdict rests on it."""
    repeats: int = 1
    """Calls of `pool.step` inside the sample: more than 1 where one is too short for the clock."""

    @property
    def milliseconds(self) -> float:
        """Time of one `pool.step`, in milliseconds."""
        return self.nanoseconds / self.repeats / 1e6


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the samples say of one candidate, as a time relative to the native default's."""

    candidate: Candidate
    samples: int
    """Samples that count: warm-ups are not among them."""
    milliseconds: float
    """Time of one `pool.step`: the native default's median times `relative`, so that candidates
    timed while the machine was slow compare with those timed while it was fast."""
    relative: float
    """Time of a step over the native default's, from paired comparisons: 0.94 is 6 % less."""
    low: float
    """Lower end of the 95 % confidence interval of `relative`."""
    high: float
    """Upper end of the 95 % confidence interval of `relative`."""


Reason = Literal["budget", "noise", "too few", "contradiction", "tie"]
"""Why a verdict is not decided: time ran out, the spread is too wide, too few samples, or runs
contradict each other. "tie" is why one is decided that samples alone did not decide: all the
time that a key is worth is spent, so the rule for ties holds."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What samples say together: a choice, what it gains, and whether that is proven."""

    candidate: Candidate
    """The choice. The native default unless another candidate is proven faster."""
    decided: bool
    """True if more samples would not change the choice by more than what is worth it."""
    reason: Reason | None
    """Why not, where `decided` is False; "tie" where the rule for ties decided; else None."""
    gain: float | None
    """Share of the native default's time that the choice saves: 0.06 is 6 %; 0 for the default.

    None where no comparison is known: an answer that came without its timings."""
    gain_low: float | None
    """Lower end of the 95 % confidence interval of `gain`."""
    gain_high: float | None
    """Upper end of the 95 % confidence interval of `gain`."""
    ties: tuple[Candidate, ...] = ()
    """Candidates that could not be told apart from the choice."""
    estimates: tuple[Estimate, ...] = ()
    """One per candidate with samples, the native default first, then by chunk size."""
    expected_loss: float | None = None
    """Share of a step's time that the choice is expected to lose to the best other candidate;
    None where nothing was compared."""
    between_runs: float | None = None
    """Standard deviation, from run to run, of a candidate's time over the default's, as a share;
    None for one run, which says nothing of it."""

    @property
    def chunk_size(self) -> int | None:
        """The chosen chunk_size; None is the native default."""
        return self.candidate.chunk_size


@dataclass(frozen=True, slots=True)
class Race:
    """One race: every timing in the order it was taken, and the verdict they lead to."""

    samples: tuple[Sample, ...]
    verdict: Verdict
    pool_seconds: float
    """Time spent inside the pool, by the race's clock."""
    failures: dict[Candidate, str] = field(default_factory=dict)
    """Candidates on which the pool raised, with the error's text: they are out of the race."""


@dataclass(frozen=True, slots=True)
class RunMetadata:
    """How things stood when a run was made. Never part of a key. None where it is unknown."""

    hostname: str | None = None
    pid: int | None = None
    load_average: float | None = None
    """Mean number of runnable tasks over the last minute, before the run."""
    tuner_version: str | None = None
    python_version: str | None = None


Trigger = Literal["new", "near", "adopted", "outdated", "resumed", "forced", "verify", "stated"]
"""Why a run was made: nothing was known, only a relative, a row from before a field was known,
a verdict that does not hold any more, an undecided verdict; somebody asked for it, or for a
check; or nothing was measured, because somebody stated the answer."""

State = Literal["complete", "cut short", "failed", "imported"]
"""How a run ended: as planned, by its budget, with an error, or it came from elsewhere."""


@dataclass(frozen=True, slots=True)
class Run:
    """One tuning of one key, as it is stored: its samples and how they came about."""

    state: State
    finished: datetime
    """When it ended, UTC."""
    started: datetime | None = None
    """When it began, UTC; None where nobody noted it."""
    uid: str = field(default_factory=lambda: os.urandom(16).hex())
    """Its name across databases: a run that comes back by an import is recognised by it."""
    strategy: str | None = None
    """How the timings were laid out: "race", "fixed plan"."""
    work: str | None = None
    """Which work was timed, in words: the caller's state, or how it was made."""
    samples: tuple[Sample, ...] = ()
    environment: Environment = UNKNOWN
    """The software that it was made with."""
    trigger: Trigger | None = None
    warm_start_key: str | None = None
    """The key whose history shortened it."""
    choice: Candidate | None = None
    """What it chose by itself; of an imported run the choice that it came with, which is somebody's
    word, not a measurement. None where it chose nothing."""
    seed: int | None = None
    """What the order of the timings was drawn from."""
    time_budget_seconds: float | None = None
    pool_seconds: float | None = None
    """Time spent inside the pool."""
    model_file: str | None = None
    metadata: RunMetadata = RunMetadata()
    origin: str | None = None
    """The file that it was imported from; None where it was measured into this database."""
    message: str | None = None
    """What went wrong: a candidate that raised, or why the whole run failed."""
    failed: tuple[Candidate, ...] = ()
    """Candidates on which the pool raised: their samples are kept, no verdict rests on them."""
    other_facts: dict[str, Any] = field(default_factory=dict)
    """What a caller of `store_cache` wrote beside the known fields."""

    @property
    def is_imported(self) -> bool:
        """It was not measured into this database."""
        return self.state == "imported" or self.origin is not None
