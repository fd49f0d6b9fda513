"""The documents name exactly the commands and options that exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from tests.support.facts import a_key
from tests.support.stored import commands
from tuner import store_cache
from tuner.cli import main

ROOT = Path(__file__).parents[1]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
INLINE = re.compile(r"`([^`]+)`", re.S)
CALL = re.compile(r"(?<![\w.-])tuner (?=[a-z-])([^\n]*)")
IN_A_SHELL = ("", "console")
"""The languages of blocks that hold commands."""


class Call(NamedTuple):
    """A command line in a document."""

    place: str
    words: list[str]
    whole: bool
    """It is complete: a reader can type it as it is."""


def calls() -> Iterator[Call]:
    """Find the calls in all documents."""
    for document in DOCUMENTS:
        text = document.read_text()
        for block in BLOCK.finditer(text):
            if block[1] in IN_A_SHELL:
                for found in CALL.finditer(block[2]):
                    yield Call(document.name, _words(found[1]), True)
        for code in INLINE.finditer(BLOCK.sub("", text)):
            if code[1].startswith("tuner "):
                written = re.sub(r"[\[\]]|\.\.\.$", "", " ".join(code[1].split()[1:]))
                yield Call(document.name, _words(written), False)


def _words(text: str) -> list[str]:
    """Split a line as a shell does, up to the end of the command."""
    words = []
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    for word in lexer:
        if set(word) <= set("();<>|&"):
            break
        words.append(word)
    return words


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """Find the command that words call, and its arguments."""
    command: click.Command = main
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"no command {rest[0]}"
        command = command.commands[rest.pop(0)]
    return command, rest


@pytest.mark.parametrize("call", list(calls()), ids=lambda c: f"{c.place}: {' '.join(c.words)}")
def test_a_documented_command_line_is_valid(call: Call) -> None:
    command, given = command_of(call.words)
    context = click.Context(command, info_name="tuner")
    known, beyond, _ = command.make_parser(context).parse_args(given)
    assert not beyond
    if call.whole:
        named = {name for name, value in known.items() if value not in (None, ())}
        needed = {parameter.name for parameter in command.params if parameter.required}
        assert needed <= named


def test_the_readme_lists_exactly_the_commands() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    first = lines.index("| purpose | command | does |") + 2
    listed = set()
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        for code in re.findall(r"`tuner ([^`]+)`", line.split("|")[2]):
            listed.add(tuple(word for word in code.split() if re.fullmatch("[a-z-]+", word)))
    there = {words for words in commands() if words != ("db",)}
    assert {words[:2] if words[0] == "db" else words[:1] for words in listed} == there


def test_every_documented_option_exists() -> None:
    options = {"--help"}
    for program in (ROOT / "benchmarks").glob("*.py"):
        options |= set(re.findall(r'add_argument\("(--[a-z-]+)"', program.read_text()))
    for words in [(), *commands()]:
        for parameter in command_of(list(words))[0].params:
            options |= {*parameter.opts, *parameter.secondary_opts}
    for document in DOCUMENTS:
        for code in INLINE.findall(BLOCK.sub("", document.read_text())):
            for named in re.findall(r"(?<!\S)--[a-z][a-z-]*", code):
                assert named in options, f"{document.name}: {named}"


def test_every_option_has_help() -> None:
    for words in [(), *commands()]:
        for parameter in command_of(list(words))[0].params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (words, parameter.name)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("file", ["tuning.db", "none.db"])
def test_bash_completes_the_keys_of_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    keys = [str(a_key()), str(a_key(nthread=4))]
    for key in keys:
        store_cache(tmp_path / "tuning.db", key, {"chunk_size": 4})
    monkeypatch.setenv("TUNER_DATABASE", str(tmp_path / file))
    offered = sorted(keys) if file == "tuning.db" else []
    for command in ("show", "pin", "delete", "compare", "verify", "plot"):
        assert completed(f"tuner {command} k1") == offered
    for key in offered:
        assert completed(f"tuner show {key[:9]}") == [key]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("tuner ex", "explain export"),
        ("tuner db re", "repair recompute"),
        ("tuner list --min", "--min-gain"),
        ("tuner list --sort g", "gain"),
        ("tuner compare --by n", "num-envs nthread"),
    ],
)
def test_bash_completes_after_the_line_in_the_readme(typed: str, offered: str) -> None:
    assert completed(typed) == sorted(offered.split())


def completed(typed: str) -> list[str]:
    """Return what bash offers to complete the typed text."""
    [line] = [
        line for line in (ROOT / "README.md").read_text().splitlines() if "_TUNER_COMPLETE" in line
    ]
    words = typed.split()
    program = (
        f"{line}\nCOMP_WORDS=({' '.join(words)}) COMP_CWORD={len(words) - 1}\n"
        '_tuner_completion tuner\necho "${COMPREPLY[@]}"'
    )
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": path},
        check=True,
    )
    assert done.stderr == ""
    return sorted(done.stdout.split())
