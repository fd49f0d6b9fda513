"""What a step of a model costs, told from the model's structure. Reads attributes only.

`mujoco` is never imported here: anything with the right attributes is a model, so that a
look-up in the database costs no import of the physics engine.
"""

from __future__ import annotations

from operator import index
from typing import Any

from tuner.errors import ArgumentError

SIGNATURE_FIELDS = ("nq", "nv", "nbody", "njnt", "nu", "ngeom", "nsensordata")
"""Counts of an MjModel that set the cost of a step, as MuJoCo names them."""


def model_signature(model: Any, n_variants: int) -> dict[str, int]:
    """Read what in a model determines the cost of a step, a proxy for "the same task".

    Args:
        model: An MjModel, or any object with its size attributes.
        n_variants: Different models in the pool: 1 where all environments share one.

    Returns:
        nq, nv, nbody, njnt, nu, ngeom, nsensordata and n_variants, as plain ints.

    Raises:
        ArgumentError: if the model lacks one of them, or it is not a whole number.
    """
    try:
        signature = {name: index(getattr(model, name)) for name in SIGNATURE_FIELDS}
        signature["n_variants"] = index(n_variants)
    except (AttributeError, TypeError) as error:
        raise ArgumentError(
            f"no model signature from a {type(model).__name__}: {error}; "
            f"a model has {', '.join(SIGNATURE_FIELDS)}"
        ) from error
    return signature
