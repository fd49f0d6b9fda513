"""What a step of a model costs, told from the model's structure. Reads attributes only.

`mujoco` is never imported here: anything with the right attributes is a model, so that a
look-up in the database costs no import of the physics engine.
"""

from __future__ import annotations

from contextlib import suppress
from operator import index
from typing import TYPE_CHECKING, Any

from tuner.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

SIGNATURE_FIELDS = ("nq", "nv", "nbody", "njnt", "nu", "ngeom", "nsensordata")
"""Counts of an MjModel that set the cost of a step, as MuJoCo names them."""

MORE_COUNTS = ("ntendon", "neq", "npair", "nmesh", "nhfield", "nplugin", "nflex")
"""Further counts that the key knows."""

OPTION_COUNTS = (
    "iterations",
    "ls_iterations",
    "noslip_iterations",
    "ccd_iterations",
    "disableflags",
    "enableflags",
)
"""Whole numbers of `mjOption` that the key knows; the flags are bit masks."""

OPTION_NAMES = {
    "integrator": ("Euler", "RK4", "implicit", "implicitfast", "discrete"),
    "solver": ("PGS", "CG", "Newton"),
    "cone": ("pyramidal", "elliptic"),
    "jacobian": ("dense", "sparse", "auto"),
}
"""Choices of `mjOption` that the key knows, with MuJoCo's names for their values from 0."""


class ModelSignature(dict[str, int]):
    """The eight counts of the signature, which remembers what else sets a step's cost.

    It is a dict of the eight in every respect; `make_cache_key` takes the rest along.
    """

    settings: dict[str, int | str]
    """The further counts, and what the model's options say. What a model lacks is left out."""

    def __init__(self, counts: Mapping[str, int], settings: dict[str, int | str]) -> None:
        super().__init__(counts)
        self.settings = settings


def model_signature(model: Any, n_variants: int) -> ModelSignature:
    """Read what in a model determines the cost of a step, a proxy for "the same task".

    Args:
        model: An MjModel, or any object with its size attributes.
        n_variants: Different models in the pool: 1 where all environments share one.

    Returns:
        nq, nv, nbody, njnt, nu, ngeom, nsensordata and n_variants, as plain ints; in its
        attribute `settings` what else a key knows of a model.

    Raises:
        ArgumentError: if the model lacks one of the eight, or it is not a whole number.
    """
    try:
        counts = {name: index(getattr(model, name)) for name in SIGNATURE_FIELDS}
        counts["n_variants"] = index(n_variants)
    except (AttributeError, TypeError) as error:
        raise ArgumentError(
            f"no model signature from a {type(model).__name__}: {error}; "
            f"a model has {', '.join(SIGNATURE_FIELDS)}"
        ) from error
    return ModelSignature(counts, _settings(model))


def _settings(model: Any) -> dict[str, int | str]:
    option = getattr(model, "opt", None)
    settings: dict[str, int | str] = {}
    for owner, names in ((model, MORE_COUNTS), (option, OPTION_COUNTS), (option, OPTION_NAMES)):
        for name in names:
            value = getattr(owner, name, None)
            if value is None:
                continue
            with suppress(TypeError):
                settings[name] = index(value)
    for name, values in OPTION_NAMES.items():
        number = settings.get(name)
        if isinstance(number, int):
            settings[name] = values[number] if 0 <= number < len(values) else str(number)
    return settings
