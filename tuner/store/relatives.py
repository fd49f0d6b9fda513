"""Finds the stored key that is nearest to one without an answer, and says how they differ.

A relative never answers by itself: it only shortens the measuring. Standard library only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tuner.answers import Difference, Relative
from tuner.keys import CacheKey, KeyFacts
from tuner.store.fields import DEVICE_FIELDS, MODEL_FIELDS, RUN_PARAMETERS, fitting, storable_text
from tuner.store.runs import Rows, policies_of
from tuner.store.views import one_moment
from tuner.validators import Stack, violated

UNKNOWN_WEIGHT = 0.01
"""How far apart a fact that one of two keys does not know sets them: known ones go before."""
FURTHEST = 12.0
"""A relative further away than this is none: its winner says nothing here."""
MOST_RELATIVES = 50
"""Nearest keys that are looked at closely."""


def nearest(database: Path, key: CacheKey, here: Stack) -> Relative | None:
    """Find the nearest key with a decided verdict; None if none is near.

    Args:
        database: The file.
        key: The key that has no answer.
        here: The software stack that asks.

    Raises:
        SchemaError, DatabaseError: as `one_moment`.
    """
    with one_moment(database) as rows:
        policies = policies_of(rows)
        found = [_relative(row, key.facts, policies, here) for row in _nearest_rows(rows, key)]
    # Of equally near ones that whose stack holds, then the newest: they come sorted by that.
    return min(found, key=lambda relative: len(relative.stack), default=None)


COLUMNS = {
    **{name: f"model.{name}" for name in MODEL_FIELDS},
    **{name: f"device.{name}" for name in DEVICE_FIELDS},
    **{name: f"tuning_key.{name}" for name in RUN_PARAMETERS},
}
WEIGHTS = {
    name: field.weight
    for fields in (MODEL_FIELDS, DEVICE_FIELDS, RUN_PARAMETERS)
    for name, field in fields.items()
}
KINDS = {
    name: field.kind
    for fields in (MODEL_FIELDS, DEVICE_FIELDS, RUN_PARAMETERS)
    for name, field in fields.items()
}
DISTANCE = " + ".join(
    f"CASE WHEN {column} IS :{name} THEN 0 "
    f"WHEN {column} IS NULL OR :{name} IS NULL THEN {UNKNOWN_WEIGHT} ELSE {WEIGHTS[name]} END"
    for name, column in COLUMNS.items()
) + "".join(
    f" + CASE WHEN {table}.other_facts IS NULL THEN 0 ELSE 1 END" for table in ("model", "device")
)
NEAREST = f"""
    SELECT tuning_key.digest, {DISTANCE} AS distance, {", ".join(COLUMNS.values())},
           model.other_facts AS other_model_facts, device.other_facts AS other_device_facts,
           verdict.mujoco_version, verdict.pool, verdict.pool_version, verdict.method,
           verdict.chunk_size, verdict.gain
    FROM tuning_key
    JOIN model ON model.model_id = tuning_key.model_id
    JOIN device ON device.device_id = tuning_key.device_id
    JOIN verdict ON verdict.key_digest = tuning_key.digest
    WHERE verdict.decided = 1 AND tuning_key.num_envs IS NOT NULL
        AND tuning_key.nthread IS NOT NULL AND distance <= {FURTHEST}
    ORDER BY distance, verdict.last_measured_utc DESC, tuning_key.digest
    LIMIT {MOST_RELATIVES}
"""


def _nearest_rows(rows: Rows, key: CacheKey) -> list[dict[str, Any]]:
    facts = _by_name(key.facts)
    found = rows(NEAREST, {name: _stored(facts.get(name), KINDS[name]) for name in COLUMNS})
    return [row for row in found if row["distance"] == found[0]["distance"]]


def _stored(value: Any, kind: type) -> Any:
    """Give a fact as its column would hold it."""
    fact = fitting(value, kind)
    return storable_text(fact) if isinstance(fact, str) else fact


def _by_name(facts: KeyFacts) -> dict[str, Any]:
    parameters = {name: getattr(facts, name) for name in RUN_PARAMETERS}
    return {**facts.model, **facts.device, **parameters}


def _relative(
    row: dict[str, Any], facts: KeyFacts, policies: dict[str, Any], here: Stack
) -> Relative:
    known = _by_name(facts)
    there = Stack._make(row[name] for name in Stack._fields)
    return Relative(
        key=row["digest"],
        chunk_size=row["chunk_size"],
        gain=row["gain"],
        num_envs=row["num_envs"],
        nthread=row["nthread"],
        differences=tuple(differences(known, row)),
        stack=tuple(
            Difference(name, getattr(here, name), getattr(there, name))
            for name in violated(policies, there, here)
        ),
    )


def differences(here: dict[str, Any], there: dict[str, Any]) -> list[Difference]:
    """List the facts in which a stored row differs from facts by name, heaviest first."""
    beyond = {**_facts(there["other_model_facts"]), **_facts(there["other_device_facts"])}
    stored = {name: there[name] for name in COLUMNS if there[name] is not None} | beyond
    found = []
    for name in dict.fromkeys([*COLUMNS, *sorted(beyond), *sorted(here)]):
        value = stored.get(name)
        if name in here and isinstance(here[name], bool) and value in (0, 1):
            value = bool(value)
        if here.get(name) != value:
            found.append(Difference(name, here.get(name), value))
    return sorted(found, key=lambda difference: -WEIGHTS.get(difference.field, 1.0))


def _facts(text: str | None) -> dict[str, Any]:
    try:
        facts = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}
