"""Databases to export from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.make import make
from tests.support.facts import DEVICE, a_key
from tuner import store_cache


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """Fill a database with one of everything."""
    file = tmp_path / "there.db"
    make(file)
    known = {"cpu_quota": 2, "unequal_cores": False, "cpu_model": "A Part of 2"}
    text = 'two\nlines, "quoted"; \r \u00e4 \u6570'
    store_cache(file, a_key(device=DEVICE | known), {"chunk_size": 3, "note": text})
    return file
