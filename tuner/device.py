"""What this machine is: the device fingerprint, a part of every key.

Reads the operating system only. Coarse and deterministic: no host name, no path, nothing that
changes between two processes of one machine. On the way of every hit, so its imports are few.
"""

from __future__ import annotations

import os
import platform
from functools import cache
from typing import Any


def device_fingerprint() -> dict[str, Any]:
    """Describe the local machine by what sets the cost of a step.

    Returns:
        system: the operating system's name, "Linux" say.
        machine: the instruction set, "x86_64" say.
        cpu_count: logical CPUs of the machine.
    """
    return dict(_facts())


@cache
def _facts() -> dict[str, Any]:
    """Read the facts once: a process does not move to another machine."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count() or 1,
    }
