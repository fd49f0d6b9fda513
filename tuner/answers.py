"""What the database answers.

Named tuples, because they are on the way of every hit: a dataclass costs a millisecond to
define, in front of each process of a training job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from tuner.records import Occasion, Race, Verdict


class Answer(NamedTuple):
    """What the database says of one key: its verdict, and the timings for a person to read."""

    chunk_size: int | None
    """The choice; None is an answer too: the native default won."""
    decided: bool
    reason: Any
    """Why it is not decided: "budget", "noise", "too few" or "contradiction". None where it is,
    or "tie" where the rule for ties decided after all the time there was."""
    gain: float | None
    """Share of the native default's time that the choice saves; None where it is not known."""
    gain_low: float | None
    gain_high: float | None
    """Ends of the 95 % confidence interval of `gain`."""
    per_candidate_ms: dict[str, float]
    """Milliseconds of one step by candidate, "None" for the native default."""
    samples: int
    """How many timings it rests on."""
    pinned_because: str | None = None
    """Why somebody pinned it, where somebody did."""


class Miss(NamedTuple):
    """Why the database has no answer to a key."""

    reason: str
    occasion: Occasion = "new"
    """What a run that mends it is made for, as far as is known before relatives are looked for."""


class Difference(NamedTuple):
    """One fact in which a stored key differs from the one that is asked for."""

    field: str
    here: Any
    there: Any
    """None is unknown."""

    def __str__(self) -> str:
        return f"{self.field}: {_told(self.field, self.here)} here, " + (
            f"{_told(self.field, self.there)} there"
        )


class Relative(NamedTuple):
    """A stored key with a decided verdict that is near to another one."""

    key: str
    chunk_size: int | None
    """Its winner; None is the native default."""
    gain: float | None
    """What that gained over the default there, as a share of the default's time."""
    num_envs: int
    nthread: int
    differences: tuple[Difference, ...]
    """Empty where only its software stack is another one."""
    stack: tuple[Difference, ...]
    """Validators by which its verdict does not hold here."""

    def occasion_for(self, key: str) -> Occasion:
        """What a run is made for that this relative shortens."""
        if self.key == key:
            return "outdated"
        # All that is known of it agrees: a row from before a field was known.
        agrees = all(difference.there is None for difference in self.differences)
        return "adopted" if agrees and not self.stack else "near"

    def scaled_to(self, num_envs: int, nthread: int) -> int | None:
        """Its winner for another amount of work: as many chunks a thread."""
        if self.chunk_size is None:
            return None
        share = num_envs / nthread * self.nthread / self.num_envs
        return min(max(1, round(self.chunk_size * share)), num_envs)


def _told(field: str, value: Any) -> str:
    if value is None:
        return "unknown"
    if field == "cpu_quota":
        return f"{value:g}" if value else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


class Outcome(NamedTuple):
    """What came of asking for a key."""

    source: Literal["hit", "measured"]
    answer: Answer
    miss: Miss | None = None
    """Why it was measured, where it was."""
    race: Race | None = None
    """The measurement, where there was one."""
    verdict: Verdict | None = None
    """What all runs of the key say with this one, where there was a measurement."""
    near: Relative | None = None
    """The stored key whose history shortened it."""
