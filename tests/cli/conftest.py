"""Fixtures of the command line's tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.filled import (
    fill,
)
from tests.support.stored import (
    Shell,
)


@pytest.fixture
def filled(database: Path) -> Path:
    """Make a database with a key of each kind."""
    return fill(database)


@pytest.fixture
def listed(filled: Path, shell: Shell) -> Callable[..., list[str]]:
    """List keys in JSON and as a table, which must be the same ones in the same order."""

    def keys(*options: object) -> list[str]:
        told = shell("list", *options, "--json", "--database", filled)
        assert told.code == 0, told
        found = [row["tuning_key"] for row in json.loads(told.out)]
        table = shell("list", *options, "--database", filled)
        assert [line[:11] for line in table.out.splitlines()[1:]] == [key[:11] for key in found]
        assert bool(found) != ("no key matches" in table.err)
        return found

    return keys
