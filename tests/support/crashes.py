"""Processes and connections that die, fail or are interrupted at a chosen statement."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.jobs import ROOT

VALUE = {"chunk_size": 4, "per_candidate_ms": {"None": 10.0, "4": 9.0, "8": 9.5}}

STORING = """
import os, signal, sqlite3, sys
from pathlib import Path
from tests.support.facts import a_key
from tests.support.crashes import VALUE
from tuner import store_cache
from tuner.store import database as engine, sqlite

left = int(sys.argv[2])

def die_in_time(statement):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def open_for_writing(database):
    connection = sqlite.open_for_writing(database)
    connection.set_trace_callback(die_in_time)
    connection.execute("PRAGMA cache_size = 2")  # so that pages reach the file before the commit
    return connection

engine.open_for_writing = open_for_writing
store_cache(Path(sys.argv[1]), a_key(), VALUE)
"""


def store_and_die(database: Path, statement: int) -> int:
    """Store an answer in a process that kills itself at its n-th statement."""
    return subprocess.run(
        [sys.executable, "-c", STORING, str(database), str(statement)], cwd=ROOT, check=False
    ).returncode


class Failing(sqlite3.Connection):
    """A connection whose n-th statement fails, as on a full disk, or is interrupted."""

    left = 0
    error: BaseException

    def _count(self) -> None:
        Failing.left -= 1
        if Failing.left == 0:
            raise Failing.error

    def cursor(self, *_: Any, **__: Any) -> Any:
        return super().cursor(FailingCursor)


class FailingCursor(sqlite3.Cursor):
    connection: Failing

    def execute(self, *arguments: Any) -> Any:
        self.connection._count()
        return super().execute(*arguments)

    def executemany(self, *arguments: Any) -> Any:
        self.connection._count()
        return super().executemany(*arguments)


def open_to_fail(file: Path) -> sqlite3.Connection:
    """Open a file as the store does, on a connection that fails when it is told to."""
    connection = sqlite3.connect(file, isolation_level=None, factory=Failing)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection
