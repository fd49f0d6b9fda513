"""What the database answers.

Named tuples, because they are on the way of every hit: a dataclass costs a millisecond to
define, in front of each process of a training job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from tuner.records import Race


class Answer(NamedTuple):
    """What the database says of one key: its verdict, and the timings for a person to read."""

    chunk_size: int | None
    """The choice; None is an answer too: the native default won."""
    decided: bool
    reason: Any
    """Why it is not decided: "budget", "noise" or "too few"; None where it is."""
    gain: float | None
    """Share of the native default's time that the choice saves; None where it is not known."""
    gain_low: float | None
    gain_high: float | None
    """Ends of the 95 % confidence interval of `gain`."""
    per_candidate_ms: dict[str, float]
    """Milliseconds of one step by candidate, "None" for the native default."""
    samples: int
    """How many timings it rests on."""


class Miss(NamedTuple):
    """Why the database has no answer to a key."""

    reason: str


class Outcome(NamedTuple):
    """What came of asking for a key."""

    source: Literal["hit", "measured"]
    answer: Answer
    miss: Miss | None = None
    """Why it was measured, where it was."""
    race: Race | None = None
    """The measurement, where there was one."""
