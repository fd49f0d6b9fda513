"""Keeps runs that are read and checked until their key's turn: in a file that has no name.

So a key's verdict is made once, wherever in the files its runs stand, and memory does not grow
with them. What ends the process, ends the file.
"""

from __future__ import annotations

import pickle
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

from tuner.store.importing import IncomingRun


class Kept(Sequence[IncomingRun]):
    """Runs of one key, read when they are asked for."""

    def __init__(self, spool: Spool, places: array[int]) -> None:
        self._spool = spool
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, number: int) -> IncomingRun: ...
    @overload
    def __getitem__(self, number: slice) -> Kept: ...
    def __getitem__(self, number: int | slice) -> IncomingRun | Kept:
        if isinstance(number, slice):
            return Kept(self._spool, self._places[number])
        return self._spool.read(self._places[number])


class Slip(NamedTuple):
    """What is told of a run when it is known what became of it."""

    file: int
    """The number of the file that it came from."""
    place: int
    samples: int


class _Runs(NamedTuple):
    """Of a key."""

    places: array[int]
    """Where each stands in the spool."""
    slips: array[int]
    """Three numbers of each."""


class Spool:
    """Runs by their keys."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="tuner-")  # noqa: SIM115
        self._keys: dict[str, _Runs] = {}
        self._end = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, number: int, arrival: IncomingRun) -> None:
        """Keep a run of a file."""
        runs = self._keys.setdefault(str(arrival.key), _Runs(array("q"), array("q")))
        runs.places.append(self._end)
        runs.slips.extend((number, arrival.place, len(arrival.samples)))
        self._end += self._file.write(pickle.dumps(arrival, pickle.HIGHEST_PROTOCOL))

    def read(self, place: int) -> IncomingRun:
        """Read a run back."""
        self._file.seek(place)
        arrival: IncomingRun = pickle.load(self._file)
        return arrival

    def runs(self) -> int:
        """Count them."""
        return sum(len(runs.places) for runs in self._keys.values())

    def groups(self) -> Iterator[Kept]:
        """Go through the keys: the runs of each."""
        for runs in self._keys.values():
            yield Kept(self, runs.places)

    def slips(self) -> Iterator[list[Slip]]:
        """Go through the keys again: what is to be told of their runs."""
        for runs in self._keys.values():
            yield [Slip(*runs.slips[n : n + 3]) for n in range(0, len(runs.slips), 3)]
