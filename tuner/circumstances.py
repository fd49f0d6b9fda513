"""How things stood when a run was made: for the run's row, never for a key.

Reads the operating system only. Never raises.
"""

from __future__ import annotations

import os
import platform
import socket

import tuner
from tuner.records import Circumstances


def circumstances() -> Circumstances:
    """Note how things stand now. Never raises: what cannot be read is None."""
    return Circumstances(
        hostname=_hostname(),
        pid=os.getpid(),
        load_average=_load_average(),
        tuner_version=tuner.__version__,
        python_version=platform.python_version(),
    )


def _hostname() -> str | None:
    try:
        return socket.gethostname() or None
    except OSError:
        return None


def _load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None
