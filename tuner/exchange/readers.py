"""Reads files of others, row by row and within bounds. What cannot be read is a problem, told.

The rows of a run repeat what they share. As long as a line begins like the one before it, to
the byte, only what follows is read; everything else is parsed and checked in full.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from tuner.exchange.rows import (
    COLUMNS,
    FACTS,
    LOWEST,
    RowError,
    check_format,
    check_names,
    sample_of,
    shown,
)
from tuner.exchange.writers import arrow
from tuner.records import LARGEST_INTEGER
from tuner.store.exporting import SAMPLE_COLUMNS
from tuner.store.ledger import SampleRow

LONGEST_RECORD = 1 << 20
"""Bytes of one line, or of one record over several."""
LONGEST_TAIL = 200
"""Bytes of a line that only a sample's columns take."""
MOST_TOGETHER = 10_000
"""Rows that are handed on at once."""
BATCH_ROWS = 16_384
"""Rows that are read at once from a Parquet file."""
MOST_CHUNK_BYTES = 64 << 20
"""Of a column in a row group of a Parquet file, uncompressed."""
MOST_GROUPS = 100_000
"""Row groups of a Parquet file; and strings, and lists, that its footer may have."""
PARQUET_MEMORY = 2 << 30
"""Bytes of address space that reading Parquet may take."""


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


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise AmbiguousError("a name stands in it twice")
    return values


def _no_constant(name: str) -> Any:
    raise RowError(f"{name} is not a number that can be counted with")


DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


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


def read_parquet(stream: BinaryIO) -> Read:
    """Read our Parquet, its columns in any order.

    Raises:
        ArgumentError: if pyarrow is not installed.
    """
    library, parquet = arrow()
    with _bounded_memory(PARQUET_MEMORY):
        place = 1
        try:
            file = _opened_parquet(parquet, stream)
            kinds = _kinds(library)
            check_names(file.schema_arrow.names)
            for field in file.schema_arrow:
                if not kinds[COLUMNS[field.name].kind](field.type):
                    raise RowError(f"column {field.name} is of type {shown(str(field.type))}")
            for batch in file.iter_batches(batch_size=BATCH_ROWS, use_threads=False):
                yield from _batch(library, batch, place)
                place += batch.num_rows
        except RowError as error:
            yield Problem(place, str(error))
        except Exception as error:  # whatever the library makes of a file that is made to break it
            yield Problem(place, f"it cannot be read from here on: {shown(str(error))}")


def _opened_parquet(parquet: Any, stream: BinaryIO) -> Any:
    limits = {
        "thrift_string_size_limit": MOST_CHUNK_BYTES,
        "thrift_container_size_limit": MOST_GROUPS,
    }
    file = parquet.ParquetFile(stream, **limits)
    about = file.metadata
    if about.num_row_groups > MOST_GROUPS:
        raise RowError(f"it has {about.num_row_groups} row groups, more than {MOST_GROUPS}")
    if about.num_columns > len(COLUMNS):
        raise RowError(f"it has {about.num_columns} columns, more than the {len(COLUMNS)} known")
    texts = set()
    for group in range(about.num_row_groups):
        for column in range(about.num_columns):
            chunk = about.row_group(group).column(column)
            if max(chunk.total_uncompressed_size, chunk.total_compressed_size) > MOST_CHUNK_BYTES:
                raise RowError(
                    f"column {shown(chunk.path_in_schema)} takes {chunk.total_uncompressed_size} "
                    f"bytes in row group {group}, more than {MOST_CHUNK_BYTES}: write smaller ones"
                )
            if chunk.physical_type == "BYTE_ARRAY":
                texts.add(chunk.path_in_schema)
    stream.seek(0)
    # Texts as dictionaries: one that a million rows repeat is in memory once.
    return parquet.ParquetFile(
        stream, read_dictionary=sorted(texts), pre_buffer=False, buffer_size=1 << 16, **limits
    )


def _kinds(library: Any) -> dict[type, Callable[[Any], bool]]:
    types = library.types

    def plain(of_kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
        return lambda t: of_kind(t.value_type if types.is_dictionary(t) else t) or types.is_null(t)

    return {
        str: plain(lambda t: types.is_string(t) or types.is_large_string(t)),
        bool: plain(types.is_boolean),
        int: plain(types.is_integer),
        float: plain(lambda t: types.is_floating(t) or types.is_integer(t)),
    }


def _batch(library: Any, batch: Any, place: int) -> Read:
    """Go through a batch, the rows together that share their facts."""
    names = [name for name in batch.schema.names if name in FACTS]
    changed = np.zeros(batch.num_rows, dtype=bool)
    changed[::MOST_TOGETHER] = True
    for name in names:
        column = batch.column(name)
        values = column.indices if library.types.is_dictionary(column.type) else column
        if library.types.is_null(values.type):
            continue
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        data = values.fill_null(False if library.types.is_boolean(values.type) else 0)
        data = data.to_numpy(zero_copy_only=False)
        changed[1:] |= (data[1:] != data[:-1]) | (valid[1:] != valid[:-1])
    starts = np.flatnonzero(changed)
    shared = batch.select(names).take(library.array(starts)).to_pylist()
    columns = [batch.column(name).to_pylist() for name in SAMPLE_COLUMNS]
    for facts, start, end in zip(shared, starts, [*starts[1:], batch.num_rows], strict=True):
        yield from _group(facts, [column[start:end] for column in columns], place + int(start))


def _group(facts: dict[str, Any], columns: list[list[Any]], place: int) -> Read:
    """Check the samples of a run, all at once if all are good."""
    try:
        check_format(facts.get("format"))
    except RowError as error:
        yield Problem(place, str(error))
        return
    if all(map(_is_good, SAMPLE_COLUMNS, columns)):
        columns[4] = list(map(int, columns[4]))
        yield Rows(place, facts, list(zip(*columns, strict=True)))
        return
    samples = []
    for number, row in enumerate(zip(*columns, strict=True)):
        try:
            sample = sample_of(dict(zip(SAMPLE_COLUMNS, row, strict=True)))
            if sample is not None:
                samples.append(sample)
        except RowError as error:
            yield Problem(place + number, str(error))
    yield Rows(place, facts, samples)


def _is_good(name: str, values: list[Any]) -> bool:
    """Tell whether no value of a sample's column need be looked at closely."""
    if name == "warm_up":
        return set(values) <= {True, False}
    numbers = [value for value in values if value is not None] if name == "chunk_size" else values
    if not numbers:
        return True
    if None in numbers:
        return False
    return bool(LOWEST.get(name, 0) <= min(numbers) and max(numbers) <= LARGEST_INTEGER)


@contextmanager
def _bounded_memory(most: int) -> Iterator[None]:
    """Bound what may be allocated: a file of a few bytes can claim to hold as many as there are."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        before = resource.getrlimit(resource.RLIMIT_AS)
        bound = pages * resource.getpagesize() + most
    except (ImportError, OSError, ValueError):
        yield  # another system: the file's own words on its size have to do
        return
    if before[0] != resource.RLIM_INFINITY and before[0] < bound:
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (bound, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def read_cache(stream: BinaryIO) -> Iterator[tuple[int, Any, Any] | Problem]:
    """Read a JSON object of any size entry by entry: the line, the name and the value of each.

    What breaks its form ends the reading.
    """
    text = _Window(stream)
    try:
        if not text.take("{"):
            raise RowError("it is not a JSON object")
        more = not text.take("}")
        while more:
            text.skip()
            line = text.line
            name = text.value()
            if not text.take(":"):
                raise RowError("a colon is missing behind a name")
            try:
                yield line, name, text.value()
            except AmbiguousError as error:
                yield Problem(line, f"{shown(name)}: {error}")
            more = text.take(",")
            if not more and not text.take("}"):
                raise RowError("the JSON object does not end as one does")
        if not text.at_end():
            raise RowError("something stands behind the JSON object")
    except RowError as error:
        yield Problem(text.line, f"it cannot be read from here on: {error}")


class _Window:
    """A part of a JSON text, as much as one value may need."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._text, self._at, self._ended = "", 0, False
        self.line = 1

    def _fill(self) -> None:
        while not self._ended and len(self._text) - self._at < LONGEST_RECORD:
            block = self._stream.read(LONGEST_RECORD)
            self._ended = not block
            try:
                self._text = self._text[self._at :] + self._decode(block, self._ended)
            except UnicodeDecodeError as error:
                raise RowError("it is no UTF-8") from error
            self._at = 0

    def _move(self, end: int) -> None:
        self.line += self._text.count("\n", self._at, end)
        self._at = end

    def skip(self) -> None:
        """Skip white space."""
        while True:
            self._fill()
            found = SPACE.match(self._text, self._at)
            self._move(found.end() if found else self._at)
            if self._ended or self._at < len(self._text):
                return

    def take(self, letter: str) -> bool:
        """Skip a letter, if it stands next."""
        self.skip()
        found = self._text.startswith(letter, self._at)
        self._at += found
        return found

    def at_end(self) -> bool:
        """Tell whether nothing is left."""
        self.skip()
        return self._at == len(self._text)

    def value(self) -> Any:
        """Read the next value.

        Raises:
            RowError: if there is none, or it is too long.
            AmbiguousError: if a name stands in it twice; what follows it is read next.
        """
        self.skip()
        try:
            try:
                value, end = UNIQUE_DECODER.raw_decode(self._text, self._at)
            except AmbiguousError:
                _, end = PLAIN_DECODER.raw_decode(self._text, self._at)
                self._move(end)
                raise
        except (ValueError, RecursionError) as error:
            raise RowError(
                f"no JSON, or a value longer than {LONGEST_RECORD} characters: {shown(str(error))}"
            ) from error
        self._move(end)
        return value


SPACE = re.compile(r"[ \t\n\r]*")
PLAIN_DECODER = json.JSONDecoder()
UNIQUE_DECODER = json.JSONDecoder(object_pairs_hook=_unique)
