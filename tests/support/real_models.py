"""Real robots for the tests: our own quadruped and the models that gymnasium ships."""

from __future__ import annotations

import importlib.util
from pathlib import Path

QUADRUPED = Path(__file__).resolve().parents[2] / "examples" / "quadruped.xml"


def gymnasium_model(name: str) -> Path:
    """The path of one of gymnasium's models, without importing its environments.

    Raises:
        LookupError: gymnasium or the file is not there; a test that needs it has to fail.
    """
    package = importlib.util.find_spec("gymnasium")
    if package is None or package.origin is None:
        raise LookupError("gymnasium is not installed: pip install 'tuner[dev]'")
    path = Path(package.origin).parent / "envs" / "mujoco" / "assets" / f"{name}.xml"
    if not path.is_file():
        raise LookupError(f"this gymnasium ships no {path}")
    return path


HUMANOID = gymnasium_model("humanoid")
ANT = gymnasium_model("ant")
HALF_CHEETAH = gymnasium_model("half_cheetah")
HOPPER = gymnasium_model("hopper")

REAL_MODELS = {path.stem: path for path in (QUADRUPED, HUMANOID, ANT, HALF_CHEETAH, HOPPER)}
"""Every real model by its name."""
