"""A database with a key of each kind, for the tests of the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.facts import DEVICE, a_key
from tests.support.stored import ALIKE, Shell, a_run, store
from tuner import store_cache
from tuner.records import Candidate

WIDE: dict[int | None, float] = {None: 9.4, 8: 9.0, 16: 6.0, 32: 8.0}
"""16 wins by a third."""
HUMANOID, QUADRUPED, ANT = a_key(num_envs=4096), a_key(), a_key(nthread=4)
ARM = a_key(device=DEVICE | {"machine": "aarch64", "cpu_model": "Neoverse N1", "usable_cpus": 4})
OWN = "a key of somebody's own"
REACHES = "\x1b[31m\x07\x1b]0;title\x07 \r\n\t"
"""What would move a cursor, ring a bell and name a window."""


def fill(database: Path) -> Path:
    """Store a key of each kind."""
    store(database, HUMANOID, a_run(1, WIDE, pairs=24, model_file="/models/humanoid.xml"))
    for number in (2, 3):
        run = a_run(number, model_file="robots/quadruped.xml", choice=Candidate(4))
        store(database, QUADRUPED, run)
    store(database, ANT, a_run(4, ALIKE, pairs=1, state="cut short", model_file="ant.xml"))
    store(database, ARM, a_run(5, WIDE, pairs=24, model_file="robots/quadruped.xml"))
    store_cache(database, OWN, {"chunk_size": 16})
    return database


def compared(shell: Shell, database: Path, *arguments: object) -> dict[str, Any]:
    """Compare keys; the JSON output."""
    told = shell("compare", *arguments, "--json", "--database", database)
    assert told.code == 0, told
    found: dict[str, Any] = json.loads(told.out)
    return found
