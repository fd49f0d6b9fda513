"""Commands in processes of their own, with and without privileges, and what they stored."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jobs import ROOT

WITHOUT_PRIVILEGE = (
    ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-all"]
    if os.geteuid() == 0
    else []
)
"""Root may write everywhere; without these capabilities permissions count for it as well."""


def tuner(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tuner", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )


def unprivileged(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a process for which permissions count."""
    if WITHOUT_PRIVILEGE and shutil.which("setpriv") is None:
        pytest.skip("as root, permissions can only be tested with setpriv (util-linux)")
    command = [*WITHOUT_PRIVILEGE, sys.executable, "-m", "tuner", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def runs_in(database: Path) -> list[tuple[str, int]]:
    """List the runs of a database: state and number of samples, counted."""
    connection = sqlite3.connect(database)
    rows = connection.execute(
        "SELECT state, samples, (SELECT count(*) FROM sample WHERE sample.run_id = run.run_id) "
        "FROM run ORDER BY run_id"
    ).fetchall()
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()
    assert all(claimed == counted for _, claimed, counted in rows)
    return [(state, counted) for state, _, counted in rows]
