"""Writes rows as CSV, JSON lines, Parquet, or results in the T4 schema of auto-tuners.

The columns that all rows of a run share are turned into text once a run, not once a row.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Protocol

import numpy as np

from tuner.errors import ArgumentError
from tuner.store.exporting import SAMPLE_COLUMNS, Column
from tuner.store.runs import SampleRow

Columns = Mapping[str, Column]
Samples = Sequence[SampleRow] | None
"""Of a run; None in an export that has no samples."""

T4_VERSION = "1.0.0"
BATCH_ROWS = 32_768
"""Of a Parquet row group."""
TRUTH = ("false", "true")
CRLF = "\r\n"
"""Python up to 3.12 quotes a text for the letters of a line's end only, so both are named."""
NO_SAMPLE = (None,) * len(SAMPLE_COLUMNS)
"""Stands in the one row of a run that has none."""


class Writer(Protocol):
    """Takes rows, run by run."""

    def add(self, shared: Mapping[str, Any], samples: Samples) -> None:
        """Write a row for each sample of a run, one for a run that has none."""
        ...

    def close(self) -> None:
        """Write what is still to be written; the stream stays open."""
        ...


class CsvWriter:
    """Comma-separated values, RFC 4180 but for the line ends, with a header; unknown is empty."""

    def __init__(self, stream: BinaryIO, columns: Columns) -> None:
        self._stream = stream
        stream.write((",".join(columns) + "\n").encode())

    def add(self, shared: Mapping[str, Any], samples: Samples) -> None:
        """Write a line for each sample."""
        text = io.StringIO()
        cells = [TRUTH[v] if isinstance(v, bool) else v for v in shared.values()]
        csv.writer(text, lineterminator=CRLF).writerow(cells)
        head = text.getvalue().removesuffix(CRLF)
        if samples:
            lines = [
                f"{head},{order},{block},{'' if chunk is None else chunk},"
                f"{time},{TRUTH[warm]},{n}\n"
                for order, block, chunk, time, warm, n in samples
            ]
        else:
            lines = [head if samples is None else head + "," * len(SAMPLE_COLUMNS), "\n"]
        self._stream.write("".join(lines).encode())

    def close(self) -> None:
        """Nothing is left to be written."""


class JsonLinesWriter:
    """A JSON object a line; unknown is null."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def add(self, shared: Mapping[str, Any], samples: Samples) -> None:
        """Write a line for each sample."""
        if samples:
            head = json.dumps(shared, separators=(",", ":"))[:-1]
            lines = [
                f'{head},"sample_order":{order},"round":{block},'
                f'"chunk_size":{"null" if chunk is None else chunk},"nanoseconds":{time},'
                f'"warm_up":{TRUTH[warm]},"steps":{n}}}\n'
                for order, block, chunk, time, warm, n in samples
            ]
        else:
            empty = {} if samples is None else dict.fromkeys(SAMPLE_COLUMNS)
            lines = [json.dumps({**shared, **empty}, separators=(",", ":")), "\n"]
        self._stream.write("".join(lines).encode())

    def close(self) -> None:
        """Nothing is left to be written."""


class ParquetWriter:
    """Parquet, Zstandard, texts as dictionaries; unknown is null."""

    def __init__(self, stream: BinaryIO, columns: Columns) -> None:
        self._arrow, parquet = arrow()
        types = {
            str: self._arrow.string(),
            int: self._arrow.int64(),
            float: self._arrow.float64(),
            bool: self._arrow.bool_(),
        }
        fields = [(name, types[column.kind]) for name, column in columns.items()]
        self._schema = self._arrow.schema(fields)
        self._writer = parquet.ParquetWriter(stream, self._schema, compression="zstd")
        self._heads: list[Mapping[str, Any]] = []
        self._counts: list[int] = []
        self._samples: list[Sequence[Any]] = []

    def add(self, shared: Mapping[str, Any], samples: Samples) -> None:
        """Keep a row for each sample, and write them as soon as there are enough."""
        tails: Sequence[Sequence[Any]] = [()] if samples is None else samples or [NO_SAMPLE]
        self._heads.append(shared)
        self._counts.append(len(tails))
        self._samples.extend(tails)
        if len(self._samples) >= BATCH_ROWS:
            self._flush()

    def close(self) -> None:
        """Write the last rows and the footer."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if not self._samples:
            return
        arrow, arrays = self._arrow, []
        which = arrow.array(np.repeat(np.arange(len(self._heads)), self._counts))
        by_name = dict(zip(SAMPLE_COLUMNS, zip(*self._samples, strict=True), strict=False))
        for field in self._schema:
            if field.name in by_name and field.name not in self._heads[0]:
                values: Sequence[Any] = by_name[field.name]
                if field.type == arrow.bool_():
                    values = [None if value is None else value == 1 for value in values]
                arrays.append(arrow.array(values, field.type))
            else:
                values = [head[field.name] for head in self._heads]
                arrays.append(arrow.array(values, field.type).take(which))
        self._writer.write_table(arrow.Table.from_arrays(arrays, schema=self._schema))
        self._heads, self._counts, self._samples = [], [], []


def arrow() -> tuple[Any, Any]:
    """Import pyarrow, which only Parquet needs.

    Raises:
        ArgumentError: if it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ArgumentError(
            f"Parquet needs pyarrow, which cannot be imported here ({error}): "
            "pip install 'tuner[parquet]', or use --format csv or jsonl"
        ) from error
    return pyarrow, pyarrow.parquet


class T4Writer:
    """The open auto-tuning results schema, T4 1.0.0: a result for each candidate of a run."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._between = ""
        head = {"schema_version": T4_VERSION, "metadata": {"timeunit": "milliseconds"}}
        stream.write((json.dumps(head)[:-1] + ', "results": [').encode())

    def add(self, shared: Mapping[str, Any], samples: Samples) -> None:
        """Write a result for each candidate of a run."""
        timed: dict[int | None, list[SampleRow]] = {}
        for sample in samples or ():
            timed.setdefault(sample[2], []).append(sample)
        failed = json.loads(shared["failed_chunk_sizes"] or "[]")
        for chunk_size in dict.fromkeys([*timed, *failed]):
            result = _t4_result(shared, chunk_size, timed.get(chunk_size, []), chunk_size in failed)
            self._stream.write(f"{self._between}\n{json.dumps(result)}".encode())
            self._between = ","

    def close(self) -> None:
        """End the document."""
        self._stream.write(b"\n]}\n")


def _t4_result(
    shared: Mapping[str, Any], chunk_size: int | None, samples: list[SampleRow], failed: bool
) -> dict[str, Any]:
    times = [
        nanoseconds / steps / 1e6 for _, _, _, nanoseconds, warm_up, steps in samples if not warm_up
    ]
    return {
        "timestamp": shared["finished_utc"],
        "configuration": {"chunk_size": chunk_size},
        "objectives": ["time"],
        "times": {"compilation_time": 0, "runtimes": times},
        "invalidity": "runtime" if failed else "correct",
        "correctness": 0 if failed else 1,
        "measurements": [
            {"name": "time", "value": value, "unit": "ms"}
            for value in ([statistics.median(times)] if times else [])
        ],
        "tuner": dict(shared),
    }
