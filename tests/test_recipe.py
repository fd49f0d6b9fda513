"""The recipe in docs/adding-a-key-field.md works, step by step, on a copy of the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RECIPE = (ROOT / "docs" / "adding-a-key-field.md").read_text()
STEP = re.compile(
    r"<!-- (?P<file>\S+), (?P<how>[a-z]+)(?:: (?P<mark>.*?))? -->\n```python\n(.*?)```", re.S
)
TESTS = ("tests/test_identity.py", "tests/store/test_golden.py", "tests/store/test_schema.py")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy the files of a checkout."""
    for name in ("tuner", "migrations", "tests", "examples", "docs"):
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=unwanted)
    for name in ("pyproject.toml", "alembic.ini"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def follow(copy: Path, *, without: str = "nothing") -> None:
    """Follow the recipe's steps except those in one folder."""
    steps = list(STEP.finditer(RECIPE))
    assert len(steps) == RECIPE.count("<!-- ")
    for step in steps:
        name, how, mark, code = step.groups()
        if name.startswith(without):
            continue
        file = copy / name
        if how == "new":
            assert not file.exists()
            file.write_text(code)
            continue
        text = file.read_text()
        assert text.count(mark) == 1, f"{mark!r} occurs {text.count(mark)} times in {name}"
        line_end = text.index("\n", text.index(mark)) + 1
        start = text.index(mark)
        if how == "after":
            file.write_text(text[:line_end] + code + text[line_end:])
        elif how == "before":
            file.write_text(text[:start] + code + text[start:])
        else:
            assert how == "replace"
            file.write_text(text[:start] + code + text[line_end:])


def run(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the copy, on the copy."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
    )


def test_the_recipe_works(copy: Path) -> None:
    follow(copy)
    made = run(copy, "-m", "tests.golden.make")
    assert made.returncode == 0, made.stderr
    assert (copy / "tests" / "golden" / "0003.db").exists()
    tested = run(copy, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *TESTS)
    assert tested.returncode == 0, tested.stdout


@pytest.mark.parametrize("left_out", ["migrations/", "tuner/store/"])
def test_a_field_without_its_migration_or_its_column_fails_the_tests(
    copy: Path, left_out: str
) -> None:
    follow(copy, without=left_out)
    tested = run(copy, "-m", "pytest", "-q", "-n", "0", "-x", "-p", "no:cacheprovider", *TESTS)
    assert tested.returncode == 1, tested.stdout
