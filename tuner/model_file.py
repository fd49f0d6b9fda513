"""Loads a MuJoCo model from a file. Writes no file, prints nothing.

MuJoCo itself prints its warnings and appends them to MUJOCO_LOG.TXT in the working directory;
`captured_warnings` collects them instead.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mujoco

from tuner.errors import ModelFileError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

_LONGEST_REASON = 400
_HANDLER = threading.RLock()


def load_model(path: str | os.PathLike[str]) -> Any:
    """Loads an MjModel: binary where the name ends in .mjb, otherwise XML (MJCF or URDF).

    Raises:
        ModelFileError: The file is missing, unreadable or no model; one line, with MuJoCo's
            own reason in it.
    """
    file = Path(path)
    _check_readable(file)
    binary = file.suffix.lower() == ".mjb"
    load = mujoco.MjModel.from_binary_path if binary else mujoco.MjModel.from_xml_path
    with captured_warnings() as warnings:
        try:
            return load(str(file))
        except (TypeError, ValueError, RuntimeError, MemoryError, mujoco.FatalError) as error:
            reason = _one_line("; ".join([str(error), *warnings]))
            kind = "binary model of this MuJoCo" if binary else "MuJoCo model"
            advice = f" (mujoco {mujoco.__version__}; save it again as .xml)" if binary else ""
            raise ModelFileError(f"{file} is not a {kind}{advice}: {reason}") from error


@contextmanager
def captured_warnings() -> Iterator[list[str]]:
    """Collects MuJoCo's warnings in a list, so that they neither print nor fill a log file.

    The handler is one for the whole process, so other threads wait until it has been put back.
    A warning that the threads of a pool raise is collected too.
    """
    warnings: list[str] = []
    with _HANDLER:
        before = mujoco.get_mju_user_warning()
        mujoco.set_mju_user_warning(warnings.append)
        try:
            yield warnings
        finally:
            mujoco.set_mju_user_warning(before)


def _check_readable(file: Path) -> None:
    """Looks before MuJoCo does: it calls a folder a file over 2 GB."""
    try:
        if file.is_dir():
            raise ModelFileError(f"{file} is a folder: name the model file inside it")
        with file.open("rb"):
            pass
    except FileNotFoundError as error:
        raise ModelFileError(f"there is no model file {file} (in {Path.cwd()})") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelFileError(f"model file {str(file)!r} cannot be read: {reason}") from error


def _one_line(text: str) -> str:
    """The text on one line, cut where it would fill a screen."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_REASON else line[:_LONGEST_REASON] + " ..."
