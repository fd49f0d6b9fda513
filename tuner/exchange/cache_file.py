"""Reads JSON caches of others, entry by entry: one object, of any size."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from tuner.exchange.readers import LONGEST_RECORD, AmbiguousError, Problem, unique
from tuner.exchange.rows import RowError, shown


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
UNIQUE_DECODER = json.JSONDecoder(object_pairs_hook=unique)
