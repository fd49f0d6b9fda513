"""What a verdict was made with, and whether it still holds: the software stack.

Identity says which work on which machine a timing is of; it is the key. A validator says
whether a timing of that very work still counts: the physics engine, the pool and the way of
measuring may have changed since. How strictly, is data: the table `validator`.

On the way of every hit, so its imports are few.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

PROTOCOL = "race 1"
"""This code's way of measuring. It changes when timings before and after do not compare."""

POLICIES = ("exact", "same minor", "ignore")


class Environment(NamedTuple):
    """A software stack: the validators of a verdict. None is unknown."""

    mujoco_version: str | None = None
    pool: str | None = None
    """Implementation that steps the environments, "mujoco.rollout" say."""
    pool_version: str | None = None
    method: str | None = None

    def __str__(self) -> str:
        version, pool, pool_version, method = (fact or "?" for fact in self)
        return f"{pool} {pool_version}, mujoco {version}, method {method}"


UNKNOWN = Environment()


def environment_of(pool: object) -> Environment:
    """Name the stack of this process with a pool; the pool's part is unknown where it is None."""
    return environment_of_class(None if pool is None else type(pool))


def environment_of_class(kind: type | None) -> Environment:
    """Name the stack of this process with a pool of some class."""
    return Environment(_version("mujoco"), *pool_identity(kind), PROTOCOL)


def pool_identity(kind: type | None) -> tuple[str | None, str | None]:
    """Which implementation a class of pools is, and its version."""
    if kind is None:
        return None, None
    package = kind.__module__.partition(".")[0]
    if (kind.__module__, kind.__qualname__) == ("tuner.pools", "RolloutPool"):
        return "mujoco.rollout", _version("mujoco")
    # BatchEnvPool's inner module has moved between releases; its public name has not.
    if package == "mujoco_uni" and kind.__name__ == "BatchEnvPool":
        return "mujoco_uni.BatchEnvPool", _version(package)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return name if name.isprintable() else None, _version(package)


def _version(package: str) -> str | None:
    """Read the version of a package that is loaded: importing one costs more than a hit."""
    version: Any = getattr(sys.modules.get(package), "__version__", None)
    # What no database holds as it is could never be found again: it is unknown.
    usable = isinstance(version, str) and version and version.isprintable()
    return str(version) if usable else None


def holds(policy: object, there: str | None, here: str | None) -> bool:
    """Tell whether a verdict made there holds here, as far as one validator goes.

    What is unknown on either side is given the benefit of the doubt: the answer was put there
    by somebody, and a doubt would time everything again.

    Args:
        policy: "exact", "same minor" (4.0.1 holds for 4.0.9, not for 4.1.0) or "ignore".
            Anything else counts as "exact".
        there: What the verdict was made with.
        here: What it is asked for.
    """
    if policy == "ignore" or there is None or here is None:
        return True
    if policy == "same minor":
        return there.split(".")[:2] == here.split(".")[:2]
    return there == here


def violated(policies: dict[str, Any], there: Environment, here: Environment) -> list[str]:
    """List the validators by which a verdict made there does not hold here."""
    return [
        name
        for name, then, now in zip(Environment._fields, there, here, strict=True)
        if not holds(policies.get(name), then, now)
    ]
