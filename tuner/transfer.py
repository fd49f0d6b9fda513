"""What a choice that was made elsewhere costs here, by the timings taken here. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from tuner.candidates import native_chunk_size

FURTHEST = 2.0
"""A timed chunk size this many times larger or smaller says nothing of the one asked for."""


class Cost(NamedTuple):
    """The time of a step with a chunk size, or with the nearest that was timed."""

    milliseconds: float
    timed: int | None
    """Which one was timed; None is the native default."""
    exact: bool
    """It is the one asked for."""


class Place(NamedTuple):
    """A key as far as choices are carried to it."""

    num_envs: int | None
    nthread: int | None
    timings: Mapping[str, float]
    """Milliseconds of a step by chunk size; "None" is the native default."""

    def native(self) -> int | None:
        """Say which chunk size the native default is here, as far as that is known."""
        if not self.num_envs or not self.nthread:
            return None
        return native_chunk_size(self.num_envs, self.nthread)

    def cost(self, chunk_size: int | None) -> Cost | None:
        """Say what a choice costs here; None where nothing near was timed, or it cannot be."""
        if chunk_size is not None and self.num_envs and chunk_size > self.num_envs:
            return None
        by_size = {None if k == "None" else int(k): ms for k, ms in self.timings.items()}
        if chunk_size == self.native() and chunk_size not in by_size:
            chunk_size = None  # its twin, which is what was timed
        if chunk_size in by_size:
            return Cost(by_size[chunk_size], chunk_size, True)
        if chunk_size is None:
            return None
        apart = {k: abs(math.log(k / chunk_size)) for k in by_size if k}
        nearest = min(apart, key=lambda k: (apart[k], k), default=None)
        if nearest is None or apart[nearest] > math.log(FURTHEST):
            return None
        return Cost(by_size[nearest], nearest, False)


def slower(place: Place, own: int | None, other: int | None) -> tuple[float, Cost] | None:
    """Say how much slower a step is with another's choice than with the own one, as a share.

    None where either was not timed; negative where the other choice looks faster, which
    happens to a choice that is undecided, or pinned.
    """
    mine, theirs = place.cost(own), place.cost(other)
    if mine is None or theirs is None:
        return None
    return theirs.milliseconds / mine.milliseconds - 1, theirs
