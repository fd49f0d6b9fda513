"""Each example in docs/sql.md prints exactly what the page shows.

    python -m tests.test_cookbook

rewrites the outputs after an intended change; review the difference.
"""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.golden.make import FOLDER
from tests.support.programs import SEARCHED, needs, prepare
from tuner.store.sqlite import REVISION

PAGE = Path(__file__).parents[1] / "docs" / "sql.md"
EXAMPLE = re.compile(
    r"```console\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)```"
    r"|```(?P<language>sql|python)\n(?P<program>.*?)```\n\n```text\n(?P<printed>.*?)```",
    re.S,
)


def examples() -> list[re.Match[str]]:
    """Find the page's examples."""
    return list(EXAMPLE.finditer(PAGE.read_text()))


def carry_out(example: re.Match[str], folder: Path) -> str:
    """Run an example as its reader would; what it prints."""
    command = {
        None: ["bash", "-c", example["command"] or ""],
        "sql": ["tuner", "sql", example["program"] or ""],
        "python": [sys.executable, "-c", example["program"] or ""],
    }[example["language"]]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ
        | {
            "PATH": SEARCHED,
            "TUNER_DATABASE": "tuning.db",
            "PYTHONWARNINGS": "error",
        },
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("example", examples(), ids=lambda e: e.start())
def test_an_example_gives_what_it_shows(example: re.Match[str], tmp_path: Path) -> None:
    needs(
        "pandas" if example["language"] == "python" else (example["command"] or "tuner").split()[0]
    )
    prepare(tmp_path)
    before = (tmp_path / "tuning.db").read_bytes()
    assert carry_out(example, tmp_path) == (example["output"] or example["printed"])
    assert (tmp_path / "tuning.db").read_bytes() == before


def test_every_block_is_an_example_and_every_documented_view_has_one() -> None:
    text = PAGE.read_text()
    assert len(examples()) == len(re.findall(r"^```(?:console|sql|python)$", text, re.M)) > 15
    with closing(sqlite3.connect(FOLDER / f"{REVISION}.db")) as connection:
        views = connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'").fetchall()
    for (view,) in views:
        if view == "hit_rate":  # nothing is written to its table any more
            continue
        assert re.search(rf"^### {view}: .*?from {view}\b", text, re.M | re.S), view


def _rewritten(folder: Path) -> Callable[[re.Match[str]], str]:
    def with_output(example: re.Match[str]) -> str:
        if example["command"]:
            return f"```console\n$ {example['command']}\n{carry_out(example, folder)}```"
        shown = carry_out(example, folder)
        return f"```{example['language']}\n{example['program']}```\n\n```text\n{shown}```"

    return with_output


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        PAGE.write_text(EXAMPLE.sub(_rewritten(Path(name)), PAGE.read_text()))
