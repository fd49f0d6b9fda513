"""What commands print: tables, words, colours, and nothing that moves the cursor."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from tests.support.facts import DEVICE, a_key
from tests.support.filled import (
    ARM,
    QUADRUPED,
    REACHES,
)
from tests.support.stored import (
    Shell,
    a_run,
    contents,
    rows_of,
    store,
)
from tuner import store_cache
from tuner.cli.output import Column, print_table
from tuner.formatting import describe_answer, in_use, percent, relative, steps_per_second
from tuner.records import Candidate

LOOKS: tuple[tuple[object, ...], ...] = (
    ("list",),
    ("show", QUADRUPED),
    ("compare", QUADRUPED, ARM),
    ("sql", "select * from tuning_overview"),
    ("sql", "select model_file from run_history"),
)


def test_one_is_counted_as_one(database: Path, shell: Shell) -> None:
    key = a_key(num_envs=1, nthread=1, bench_nsteps=1, device=DEVICE | {"cpu_count": 1})
    store(database, key, a_run(1, {None: 9.4, 1: 9.4}, choice=Candidate(None)))
    rows_of(database, "DELETE FROM sample WHERE sample_order <> 1")
    rows_of(database, "UPDATE run SET samples = 1")
    picture, page = database.with_name("a.svg"), database.with_name("a.html")
    calls: tuple[tuple[object, ...], ...] = (
        ("list",), ("show", key), ("plot", key, "-o", picture),
        ("report", "-o", page), ("export", "-o", database.with_name("a.csv")),
        ("db", "recompute"), ("delete", key), ("delete", key, "--yes"),
    )  # fmt: skip
    for command in calls:
        told = shell(*command, "--database", database)
        assert told.code == 0, told
        seen = told.out + told.err
        if isinstance(made := command[-1], Path):
            seen += re.sub("<script.*?</script>", "", made.read_text("utf-8"), flags=re.S)
        one = r"\b1 (?:run|key|sample|row|timing|environment|thread|CPU|step)s?\b"
        said = re.findall(one, seen)
        assert not [words for words in said if words.endswith("s")], (command, said)
        assert said or command[0] == "list"


@pytest.mark.parametrize("where", ["no/such/folder", "a file"])
def test_a_folder_that_is_missing_is_told_in_the_same_words_by_all_that_make_files(
    filled: Path, shell: Shell, where: str
) -> None:
    filled.with_name("a file").touch()
    told = set()
    for command, name in (
        (("plot", QUADRUPED, "-o"), "a.svg"),
        (("report", "-o"), "a.html"),
        (("export", "-o"), "a.csv"),
        (("export", "-o"), "a.db"),
        (("db", "backup"), "a.db"),
    ):
        file = filled.parent / where / name
        refused = shell.refused(*command, file, "--database", filled)
        told.add(refused.replace(str(file), "FILE").replace(str(file.parent), "FOLDER"))
    assert told == {
        "tuner: cannot write FILE: there is no folder FOLDER; nothing was changed: make it, or "
        "name another file\n"
    }


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: " ".join(map(str, look))[:20])
def test_no_text_of_the_database_reaches_the_terminal_as_more_than_text(
    filled: Path, shell: Shell, look: tuple[object, ...]
) -> None:
    for table, columns in (
        ("run", ("model_file", "hostname", "message", "work", "pool", "method", "near_key")),
        ("verdict", ("stack", "pool", "method")),
        ("device", ("system", "machine", "cpu_model", "other_facts")),
        ("model", ("integrator", "other_facts")),
        ("tuning_key", ("backend_type", "dtype")),
    ):
        for column in columns:
            rows_of(filled, f"UPDATE {table} SET {column} = ?", f"{column} {REACHES} 数据")
    before = contents(filled.parent)
    told = shell(*look, "--database", filled)
    assert told.code == 0, told
    assert all(letter.isprintable() for letter in told.out.replace("\n", "")), told.out
    in_json = shell(*look, "--json", "--database", filled)
    assert all(letter.isprintable() for letter in in_json.out.replace("\n", ""))
    json.loads(in_json.out)
    assert contents(filled.parent) == before


def test_a_key_that_would_move_the_cursor_does_not(database: Path, shell: Shell) -> None:
    key = f"key {REACHES}"
    store_cache(database, key, {"chunk_size": 16})
    store_cache(database, f"{key} 2", {"chunk_size": 8})
    for command in (
        ("list",), ("show", key), ("compare", key, f"{key} 2"), ("show", "key"),
        ("pin", key, 8, "--reason", "so"), ("unpin", key), ("delete", key, "--yes"),
    ):  # fmt: skip
        told = shell(*command, "--database", database)
        assert all(letter.isprintable() for letter in (told.out + told.err).replace("\n", ""))


@pytest.mark.parametrize("command", [("list",), ("compare", QUADRUPED, ARM), ("sql", "select 1")])
def test_looking_loads_nothing_heavy(filled: Path, command: tuple[str, ...]) -> None:
    program = (
        "import sys; from tuner.cli import main; main(sys.argv[1:], standalone_mode=False); "
        "heavy = {'alembic', 'numpy', 'mujoco', 'altair'}; "
        "print(heavy & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *command, "--database", str(filled)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "set()\n"


@pytest.mark.parametrize("look", LOOKS[:3], ids=lambda look: str(look[0]))
def test_tables_fit_eighty_columns_whatever_their_texts(
    filled: Path, shell: Shell, look: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_of(filled, "UPDATE run SET model_file = ?, near_key = ?", "数" * 90, "k" * 90)
    rows_of(filled, "UPDATE device SET cpu_model = ?", "a processor with a very long name " * 3)
    rows_of(filled, "UPDATE verdict SET decided = 0, reason = 'contradiction'")
    rows_of(filled, "UPDATE run SET state = 'cut short', occasion = 'outdated'")
    monkeypatch.setattr("tuner.cli.output.PIPE_WIDTH", 80)
    told = shell(*look, "--database", filled)
    lines = [
        line
        for line in told.out.splitlines()
        if not line.startswith(("model file", "environment", "next: "))
    ]
    assert max(map(cell_len, lines)) <= 80


def test_where_there_is_no_terminal_no_key_is_cut(filled: Path, shell: Shell) -> None:
    name = f"{'a' * 90}/quadruped.xml"
    rows_of(filled, "UPDATE run SET model_file = ?", name)
    assert QUADRUPED[:24] in shell("show", "quadruped.xml", "--database", filled).err
    assert name in shell("show", "quadruped.xml", "--database", filled).err


def test_stored_text_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([Column("[b]a[/b]")], [("[red]x[/red] :warning:",)])
    assert capsys.readouterr().out == "[b]a[/b]\n[red]x[/red] :warning:\n"


@pytest.mark.parametrize(
    ("words", "choice"),
    [
        ("using 58", (58, True)),
        ("using 58, provisional", (58, False)),
        ("using the default", (None, True)),
        ("using 58, pinned", (58, False, True)),
    ],
)
def test_what_is_used_in_words(words: str, choice: tuple[Any, ...]) -> None:
    assert in_use(*choice) == words


ANSWER: dict[str, Any] = {
    "chunk_size": 58, "decided": False, "reason": "noise", "pinned_because": None,
    "gain": 0.071, "gain_low": 0.021, "gain_high": 0.118, "per_candidate_ms": {"58": 8.0},
    "num_envs": 1024, "nthread": 2, "bench_nsteps": 4, "dtype": "float64",
    "post_step_forward_sensor": False, "model_file": "a b.xml", "pool": "mujoco.rollout",
}  # fmt: skip
FASTER = "7.1 % faster (2.1 % to 11.8 %), 512,000 environment-steps per second"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decided": True, "reason": None}, f"using 58, {FASTER}"),
        ({"decided": True, "reason": "tie"}, f"using 58, {FASTER}; a tie: no more time is spent"),
        (
            {},
            f"using 58, provisional, {FASTER}; the machine is too noisy to decide; next: "
            "tuner tune 'a b.xml' --num-envs 1024 --nthread 2 --nstep 4 --until-decided",
        ),
        (
            {"pool": "their.Pool", "reason": "contradiction"},
            f"using 58, provisional, {FASTER}; its runs contradict each other; next: measure again",
        ),
        ({"chunk_size": None, "decided": True, "reason": None}, "using the default"),
        (
            {"decided": True, "pinned_because": "so", "per_candidate_ms": {}},
            "using 58, pinned (so)",
        ),
    ],
)
def test_an_answer_in_words(changes: dict[str, Any], words: str) -> None:
    assert describe_answer(ANSWER | changes).startswith(words)


def test_speed_is_told_in_environment_steps() -> None:
    assert steps_per_second(8.0, 1024, 4) == "512,000 environment-steps per second"
    assert steps_per_second(None, 1024, 4) == ""


@pytest.mark.parametrize(
    ("share", "as_share", "as_ratio"),
    [
        (-0.0004, "0.0 %", "0.0 %"),
        (0.0004, "0.0 %", "0.0 %"),
        (-0.054, "-5.4 %", "-5.4 %"),
        (0.054, "5.4 %", "+5.4 %"),
        (99.5, "9950.0 %", "+9950.0 %"),
        (8e9, "8e+11 %", "+8e+11 %"),
        (-8e9, "-8e+11 %", "-8e+11 %"),
    ],
)
def test_a_share_has_no_sign_at_zero_and_few_digits_where_it_is_absurd(
    share: float, as_share: str, as_ratio: str
) -> None:
    assert (percent(share), relative(1 + share)) == (as_share, as_ratio)


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no terminals to open here")
@pytest.mark.parametrize(("no_color", "coloured"), [(None, True), ("", True), ("1", False)])
def test_colours_are_for_terminals_that_want_them(
    filled: Path, no_color: str | None, coloured: bool
) -> None:
    inside, outside = os.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    command = [sys.executable, "-m", "tuner", "show", QUADRUPED[:9], "--database", str(filled)]
    subprocess.run(
        command,
        stdout=outside,
        env=environment | ({} if no_color is None else {"NO_COLOR": no_color}),
        check=True,
    )
    os.close(outside)
    told = b""
    try:
        while part := os.read(inside, 65536):
            told += part
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(inside)
    assert (b"\x1b[" in told) == coloured
    assert b"\x1b" not in subprocess.run(command, capture_output=True, check=True).stdout
