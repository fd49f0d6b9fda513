"""Reads Parquet files of others, within bounds of memory.

A file of a few bytes can claim to hold as many as there are, in its footer and in its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tuner.exchange.readers import MOST_TOGETHER, Problem, Read, Rows
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

BATCH_ROWS = 16_384
"""Rows that are read at once from a Parquet file."""
MOST_CHUNK_BYTES = 64 << 20
"""Of a column in a row group of a Parquet file, uncompressed."""
MOST_GROUPS = 100_000
"""Row groups of a Parquet file; and strings, and lists, that its footer may have."""
PARQUET_MEMORY = 2 << 30
"""Bytes of address space that reading Parquet may take."""


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
