"""The help of every command."""

from __future__ import annotations

import pytest

from tests.support.process import tuner
from tests.support.stored import (
    Shell,
    commands,
)
from tuner import __version__


def test_the_version() -> None:
    assert tuner("--version").stdout.strip() == f"tuner, version {__version__}"


@pytest.mark.parametrize("command", [(), *commands()], ids=" ".join)
def test_every_command_has_help_with_an_example_of_itself(
    command: tuple[str, ...], shell: Shell
) -> None:
    shown = shell(*command, "--help")
    assert shown.code == 0
    assert "Usage: " in shown.out
    if command != ("db",):
        example = shown.out.partition("Example:\n")[2]
        assert " ".join(("tuner", *command)) in example
    assert max(map(len, shown.out.splitlines())) <= 80


def test_help_groups_the_commands_by_purpose_and_cuts_none(shell: Shell) -> None:
    shown = shell("--help").out
    for heading in ("Tune:", "Look:", "Share:", "Maintain:"):
        assert f"\n{heading}\n" in shown
    assert "..." not in shown.partition("Tune:")[2]
    assert {line.split()[0] for line in shown.splitlines() if line.startswith("  ")} >= {
        words[0] for words in commands() if len(words) == 1
    }
