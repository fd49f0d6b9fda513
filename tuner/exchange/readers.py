"""Reads lines of others, CSV and JSON, within bounds. What cannot be read is a problem, told.

The rows of a run repeat what they share. As long as a line begins like the one before it, to
the byte, only what follows is read; everything else is parsed and checked in full.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

from tuner.exchange.rows import (
    COLUMNS,
    FACTS,
    RowError,
    check_format,
    check_names,
    sample_of,
    shown,
)
from tuner.store.exporting import SAMPLE_COLUMNS
from tuner.store.runs import SampleRow

LONGEST_RECORD = 1 << 20
"""Bytes of one line, or of one record over several."""
LONGEST_TAIL = 200
"""Bytes of a line that only a sample's columns take."""
MOST_TOGETHER = 10_000
"""Rows that are handed on at once."""


class Rows(NamedTuple):
    """Rows of a run, one after the other."""

    place: int
    """Of the first one: the number of its line or row."""
    facts: dict[str, Any]
    """What they share."""
    samples: list[SampleRow]
    """None for a row without a sample."""


class Problem(NamedTuple):
    """A row, or more, that is rejected."""

    place: int
    reason: str


Read = Iterator[Rows | Problem]

NUMBER = r"(0|[1-9]\d{0,17})"
ABOVE_0 = r"([1-9]\d{0,17})"
TRUTH = {b"false": 0, b"true": 1}


class _Tail:
    """A good sample as we write it: what it matches needs no further check."""

    def __init__(self, *parts: str) -> None:
        sample = "".join(parts)
        self.of_line = re.compile(f"{sample}\r?\n?".encode(), re.ASCII)
        self.of_lines = re.compile(f"(?:{sample}\r?\n)*+".encode(), re.ASCII)


JSON_TAIL = _Tail(
    f'"sample_order":{NUMBER},"round":{NUMBER},"chunk_size":(?:null|{ABOVE_0}),',
    f'"nanoseconds":{ABOVE_0},"warm_up":(true|false),"steps":{ABOVE_0}' + r"\}",
)
CSV_TAIL = _Tail(f"{NUMBER},{NUMBER},(?:{ABOVE_0})?,{ABOVE_0},(true|false),{ABOVE_0}")
NEVER = _Tail("(?!)")


def _matched(found: re.Match[bytes]) -> SampleRow:
    order, block, chunk, nanoseconds, warm_up, steps = found.groups()
    return (
        int(order),
        int(block),
        None if chunk is None else int(chunk),
        int(nanoseconds),
        TRUTH[warm_up],
        int(steps),
    )


ALL_BUT_NUMBERS = bytes(set(range(256)) - set(b"0123456789,\n"))


def _all_matched(tails: bytes) -> list[SampleRow]:
    """Read the numbers of many tails at once, in a third of the time."""
    numbers = tails.replace(b"true", b"1").replace(b"false", b"0").translate(None, ALL_BUT_NUMBERS)
    listed = numbers.replace(b",,", b",0,").replace(b"\n", b",")
    values = json.loads(b"[%b]" % listed[:-1])
    chunks = [chunk or None for chunk in values[2::6]]
    return list(
        zip(
            values[::6], values[1::6], chunks, values[3::6], values[4::6], values[5::6], strict=True
        )
    )


class _Lines:
    """The lines of a file, numbered, none longer than it may be."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._text, self._at = b"", 0
        self._spoilt = 0
        self.number = 0

    def _more(self) -> bool:
        """Read on; tells whether there was anything."""
        block = self._stream.read(LONGEST_RECORD)
        self._text, self._at = self._text[self._at :] + block, 0
        return bool(block)

    def next(self) -> bytes:
        """Read a line with its end; empty at the end of the file.

        Raises:
            RowError: if it is too long. The next line is read next.
        """
        end = self._text.find(b"\n", self._at)
        while end < 0 and len(self._text) - self._at <= LONGEST_RECORD and self._more():
            end = self._text.find(b"\n", self._at)
        line = self._text[self._at : end + 1 if end >= 0 else len(self._text)]
        self._at += len(line)
        self.number += bool(line)
        if len(line) > LONGEST_RECORD:
            while end < 0 and self._more():
                end = self._text.find(b"\n")
                self._at = end + 1 if end >= 0 else len(self._text)
            raise RowError(f"the line is longer than {LONGEST_RECORD} bytes")
        return line

    def next_samples(self, head: bytes, tail: _Tail, most: int) -> list[SampleRow]:
        """Read the samples of the next lines that begin like one before, if they are good."""
        if self.number < self._spoilt:
            return []
        if len(self._text) - self._at < len(head) + LONGEST_TAIL:
            self._more()
        text, begin, length = self._text, self._at, len(head)
        tails: list[bytes] = []
        while len(tails) < most and text.startswith(head, begin):
            end = text.find(b"\n", begin + length) + 1
            if not end:
                break
            tails.append(text[begin + length : end])
            begin = end
        found = tail.of_lines.match(b"".join(tails))
        good = found[0] if found else b""
        samples = _all_matched(good) if good else []
        if len(samples) < len(tails):  # one by one through these: not the same lines all over again
            self._spoilt = self.number + len(tails)
        self._at += len(samples) * length + len(good)
        self.number += len(samples)
        return samples


def _records(lines: _Lines, tail: _Tail, parse: Callable[[bytes], dict[str, Any]]) -> Read:
    """Read the lines of a file; those that begin like the one before by their ends alone.

    Args:
        lines: The file, after its header.
        tail: What stands behind the beginning that a run's lines share.
        parse: Makes columns of a line.
    """
    head = b""
    rows: Rows | None = None
    while True:
        if rows is not None and head:
            most = MOST_TOGETHER - len(rows.samples)
            if more := lines.next_samples(head, tail, most):
                rows.samples.extend(more)
                continue
        place = lines.number + 1
        try:
            line = lines.next()
            if rows is not None and head and line.startswith(head):
                found = tail.of_line.fullmatch(line, len(head))
                if found and len(rows.samples) < MOST_TOGETHER:
                    rows.samples.append(_matched(found))
                    continue
            if rows is not None:
                yield rows
                rows = None
            if not line:
                return
            if not line.strip():
                continue
            values = parse(line)
            sample = sample_of(values)
            rows = Rows(place, {n: v for n, v in values.items() if n in FACTS}, [])
            if sample is not None:
                rows.samples.append(sample)
            head = _head(line, tail) if sample is not None else b""
        except RowError as error:
            if rows is not None:
                yield rows
                rows = None
            yield Problem(place, str(error))


def _head(line: bytes, tail: _Tail) -> bytes:
    """Find what a line has in common with the next ones; nothing where it is not as we write it."""
    if tail is JSON_TAIL:
        cut = line.rfind(b'"sample_order":')
    else:
        cut = len(line.rstrip(b"\r\n"))
        for _ in range(len(SAMPLE_COLUMNS)):
            cut = line.rfind(b",", 0, cut)
        cut += 1
    return line[:cut] if cut > 0 and tail.of_line.fullmatch(line, cut) else b""


def read_json_lines(stream: BinaryIO) -> Read:
    """Read our JSON lines."""
    return _records(_Lines(stream), JSON_TAIL, _json_line)


class AmbiguousError(RowError):
    """Which of two values is meant, nobody can tell."""


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object's values, whose names stand in it once."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise AmbiguousError("a name stands in it twice")
    return values


def _no_constant(name: str) -> Any:
    raise RowError(f"{name} is not a number that can be counted with")


DECODER = json.JSONDecoder(object_pairs_hook=unique, parse_constant=_no_constant)


def _json_line(line: bytes) -> dict[str, Any]:
    try:
        values = DECODER.decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise RowError(f"it is no JSON: {shown(str(error))}") from error
    if not isinstance(values, dict):
        raise RowError(f"it is {shown(values)}, not a JSON object")
    check_format(values.get("format"))
    check_names(values)
    return values


def read_csv(stream: BinaryIO) -> Read:
    """Read our CSV, its columns in any order."""
    lines = _Lines(stream)
    try:
        names = _fields(lines, lines.next())
        check_names(names)
    except RowError as error:
        return iter([Problem(1, str(error))])
    in_our_order = names[-len(SAMPLE_COLUMNS) :] == list(SAMPLE_COLUMNS)

    def parse(line: bytes) -> dict[str, Any]:
        cells = _fields(lines, line)
        if len(cells) != len(names):
            raise RowError(f"it has {len(cells)} fields, the header {len(names)}")
        return {name: _read_cell(name, cell) for name, cell in zip(names, cells, strict=True)}

    return _records(lines, CSV_TAIL if in_our_order else NEVER, parse)


def _fields(lines: _Lines, line: bytes) -> list[str]:
    """Read a record: a quoted field may hold line ends, so it may go on in the next lines."""

    def text() -> Iterator[str]:
        size, more = 0, line
        while more:
            size += len(more)
            if size > LONGEST_RECORD:
                raise RowError(f"the record is longer than {LONGEST_RECORD} bytes")
            yield more.decode()
            more = lines.next()

    try:
        return next(csv.reader(text(), strict=True), [])
    except (csv.Error, ValueError) as error:
        raise RowError(f"it is no CSV: {shown(str(error))}") from error


def _read_cell(name: str, cell: str) -> Any:
    """Read a cell as its column's type; what is none of that type stays a text, and is refused."""
    if not cell:
        return None
    kind = COLUMNS[name].kind
    if kind is bool:
        return {"true": True, "false": False}.get(cell.lower(), cell)
    if kind is int and len(cell) <= 20:
        return int(cell) if cell.removeprefix("-").isdecimal() and cell.isascii() else cell
    if kind is float:
        try:
            return float(cell)
        except ValueError:
            return cell
    return cell
