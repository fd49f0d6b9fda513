"""What is done to single keys: `tuner verify`, `tuner pin`, `tuner unpin`, `tuner forget`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tuner.cli.options import (
    FINDING,
    database_option,
    existing,
    key_argument,
    keys_argument,
    print_json,
    the_key,
    time_budget_option,
)
from tuner.cli.tables import candidate_name, counted, percent, printable
from tuner.cli.work import asked_again, opened
from tuner.device import device_fingerprint
from tuner.errors import TunerError
from tuner.records import LARGEST_INTEGER
from tuner.workload import device_digest


def _chunk_size(_: click.Context, __: click.Parameter, text: str) -> int | None:
    if text == "default":
        return None
    digits = text.isascii() and text.isdecimal() and len(text) <= len(str(LARGEST_INTEGER))
    if digits and 1 <= int(text) <= LARGEST_INTEGER:
        return int(text)
    raise click.BadParameter(f"{text[:40]!r} is neither a whole number of 1 or more nor 'default'")


@click.command()
@key_argument()
@click.argument("chunk_size", metavar="CHUNK", callback=_chunk_size)
@click.option("--reason", required=True, help="Why; it is told with every hit.")
@database_option
def pin(key: str, chunk_size: int | None, reason: str, database: str | None) -> None:
    """Let a key answer with CHUNK (or "default"), whatever is measured.

    KEY is a digest as `tuner list` prints it; its first characters are enough.

    \b
    Example:
      tuner pin k1_3f9a 16 --reason "the job shares its node on Tuesdays"
    """
    from tuner.store.runs import pin as pin_key

    file = existing(database)
    name = the_key(file, key)
    if not reason.strip():
        raise click.BadParameter("give a reason that helps whoever reads it", param_hint="--reason")
    pin_key(file, name, chunk_size, reason.strip())
    click.echo(printable(f"{name} answers {candidate_name(chunk_size)} until `tuner unpin`"))


@click.command()
@key_argument()
@database_option
def unpin(key: str, database: str | None) -> None:
    """Let a key answer by what was measured again.

    \b
    Example:
      tuner unpin k1_3f9a
    """
    from tuner.store.runs import unpin as unpin_key

    file = existing(database)
    name = the_key(file, key)
    if not unpin_key(file, name):
        raise click.ClickException(f"{name} is not pinned: nothing was changed")
    click.echo(printable(f"{name} answers by its verdict again"))


@click.command()
@keys_argument(required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@database_option
def forget(keys: tuple[str, ...], yes: bool, database: str | None) -> None:
    """Remove keys with all their runs and samples; asks before.

    \b
    Example:
      tuner forget k1_3f9a --yes
    """
    from tuner.store.queries import EVERYTHING, read_key
    from tuner.store.runs import delete, plan_deletion

    file = existing(database)
    names = [the_key(file, key) for key in keys]
    for name in dict.fromkeys(names):
        overview = read_key(file, name)["overview"]
        model = Path(overview["model_file"] or "").name or "no model file"
        runs = counted(overview["runs"], "run")
        told = f"{name}: {model}, {runs}, {counted(overview['samples'] or 0, 'sample')}"
        click.echo(printable(told), err=True)
    if not yes:
        click.confirm("forget this?", abort=True, err=True)
    delete(file, plan_deletion(file, EVERYTHING, names))
    click.echo(printable(f"forgotten: {', '.join(dict.fromkeys(names))}"))


@click.command()
@key_argument(required=False)
@time_budget_option("Seconds of the pool's time for each key.")
@click.option(
    "--model-file",
    type=click.Path(path_type=Path),
    metavar="MODEL.xml",
    help="Where KEY's model lies now, if not where it lay when it was measured.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list of keys.")
@database_option
def verify(
    key: str | None,
    time_budget: float,
    model_file: Path | None,
    as_json: bool,
    database: str | None,
) -> None:
    """Time a key's choice against the default again, and record the run.

    A choice that has lost its gain is withdrawn. Without KEY, all keys of this machine that
    chose something else than the default. Exits with 3 if a choice did not hold, or one of all
    could not be verified.

    \b
    Example:
      tuner verify k1_3f9a
    """
    from tuner.store.queries import keys_with_a_choice

    if model_file and not key:
        raise click.UsageError("--model-file is of one KEY: name it")
    file = existing(database)
    here = device_digest(device_fingerprint())
    names = [the_key(file, key)] if key else keys_with_a_choice(file, here)
    told = []
    for name in names:
        try:
            done = _verify(file, name, model_file, time_budget)
            told.append({"key": name, "verified": True, **done})
        except (click.ClickException, TunerError) as error:
            what = error.format_message() if isinstance(error, click.ClickException) else str(error)
            if key:
                raise click.ClickException(f"{name}: not verified: {what}") from error
            told.append({"key": name, "verified": False, "what": what})
    if as_json:
        print_json(told)
    for line in told if not as_json else ():
        click.echo(printable(f"{line['key']}: {_in_words(line)}"))
    if not names and not as_json:
        click.echo(
            "nothing to verify: no key of this machine chose anything but the default, or all that "
            "did are pinned"
        )
    if not all(line["verified"] and line["held"] for line in told):
        click.get_current_context().exit(FINDING)


def _in_words(line: dict[str, Any]) -> str:
    if not line["verified"]:
        return f"not verified: {line['what']}"
    if line["held"]:
        return f"{line['chunk_size']} holds, {percent(line['gain'])}"
    was, choice = line["was"], candidate_name(line["chunk_size"])
    if line["chunk_size"] == was:
        return f"{was} is not decided any more"
    stays = "the default stays" if line["chunk_size"] is None else f"{choice} is chosen"
    return f"{was} is withdrawn: {stays}" + ("" if line["decided"] else ", undecided")


def _verify(file: Path, key: str, model_file: Path | None, time_budget: float) -> dict[str, Any]:
    """Check one key's choice; what came of it."""
    from tuner.records import Answer, Miss
    from tuner.store.lookup import find_answer
    from tuner.tuning import Request, answer_key

    what = asked_again(file, key, model_file)
    before = find_answer(file, what.key, what.key.workload.num_envs, what.here)
    if isinstance(before, Answer) and before.pinned_because is not None:
        raise click.ClickException(
            f"it is pinned, and answers {candidate_name(before.chunk_size)} whatever is "
            "measured: `tuner unpin` first"
        )
    if isinstance(before, Miss) or before.chunk_size is None:
        why = before.reason if isinstance(before, Miss) else "its choice is the default itself"
        raise click.ClickException(f"there is nothing to verify: {why}; `tuner tune` measures")
    request = Request(
        what.key,
        file,
        what.here,
        lambda: opened(what),
        trigger="verify",
        time_budget_s=time_budget,
        model_file=str(what.model_file),
    )
    answer = answer_key(request).answer
    return {
        "was": before.chunk_size,
        "chunk_size": answer.chunk_size,
        "gain": answer.gain,
        "decided": answer.decided,
        "held": answer.chunk_size == before.chunk_size and answer.decided,
    }
