"""What can go wrong, in words: every message says what, what was received, what to do next.

One root, `TunerError`, so that a caller who wants to catch everything of ours can. Errors
about an argument are `ValueError` as well, because that is what callers of a function catch.
"""

from __future__ import annotations

import os
from pathlib import Path


class TunerError(Exception):
    """The root of every error this package raises on purpose."""


class ArgumentError(TunerError, ValueError):
    """A value handed to a function or a command is not one it can use."""


class ModelFileError(ArgumentError):
    """A model file is missing, unreadable or not a MuJoCo model."""


class PoolError(TunerError):
    """A thread pool cannot be built, or cannot step at all."""


class MeasuringError(TunerError):
    """Timing came to nothing: not even the native default could be timed."""


class DivergedError(MeasuringError):
    """The simulation diverges, so what is timed is not a job's work."""


class DatabaseError(TunerError):
    """The tuning database cannot be opened, read or written."""


class SchemaError(DatabaseError):
    """The schema in the file is not the one this version of the code can use."""


class OlderSchemaError(SchemaError):
    """The schema in the file is an older one of ours: a write upgrades it."""


class LockError(DatabaseError):
    """A lock could not be taken."""


def cannot_write(file: Path, error: OSError) -> str:
    """Say why a file that appears whole or not at all did not, and what to do."""
    why, step = error.strerror, "make room, or name another file"
    if isinstance(error, FileNotFoundError | NotADirectoryError) and not os.path.isdir(file.parent):
        why, step = f"there is no folder {file.parent}", "make it, or name another file"
    return f"cannot write {file}: {why}; nothing was changed: {step}"
