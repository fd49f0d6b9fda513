"""`tuner why`: which stored key answers, or the nearest one, and field by field how it differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tuner.cli.options import database_option, print_json, time_budget_option
from tuner.cli.work import asked, work_options
from tuner.paths import cache_path

if TYPE_CHECKING:
    from tuner.api import Explanation


@click.command()
@work_options
@time_budget_option("Seconds of the pool's time that the job would have for measuring.")
@database_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def why(time_budget: float, database: str | None, as_json: bool, **work: Any) -> None:
    """Say why MODEL.xml is answered from the database or not. Measures and changes nothing.

    Tells which stored key answers, or else the nearest one and, field by field, how it differs
    from what was asked for, and what the next job that asks will do.

    \b
    Example:
      tuner why examples/quadruped.xml --num-envs 1024
    """
    from tuner.api import explain_key

    what = asked(**work)
    explanation = explain_key(cache_path(database), what.key, what.here, time_budget)
    if as_json:
        print_json(_as_json(explanation))
        return
    click.echo(str(explanation))


def _as_json(explanation: Explanation) -> dict[str, Any]:
    answer, near = explanation.answer, explanation.near
    return {
        "kind": explanation.kind,
        "key": str(explanation.key),
        "reason": explanation.reason,
        "chunk_size": answer.chunk_size if answer else None,
        "decided": answer.decided if answer else None,
        "nearest_key": near.key if near else None,
        "nearest_chunk_size": near.chunk_size if near else None,
        "differences": [difference._asdict() for difference in explanation.differences],
        "will_happen": explanation.will_happen,
    }
