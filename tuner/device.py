"""What this machine is: the device fingerprint, a part of every key.

Reads the operating system only. Coarse and deterministic: counts, no numbers of particular CPUs,
no host name, no path, nothing that changes between two processes that have equal means. On the
way of every hit, so its imports are few.
"""

from __future__ import annotations

import platform
from functools import cache
from typing import Any

from tuner.processors import processors, usable_cpu_numbers


def device_fingerprint() -> dict[str, Any]:
    """Describe the local machine, and this process's share of it, by what sets a step's cost.

    Never raises: a fact that cannot be read here is left out, which means unknown.

    Returns:
        system: the operating system's name, "Linux" say.
        machine: the instruction set, "x86_64" say.
        cpu_model: the CPU's name, normalised: two spellings of one CPU are one.
        cpu_count: logical CPUs of the machine.
        usable_cpus: logical CPUs that this process may run on (its affinity).
        cpu_quota: CPUs' worth of time that the control groups grant; 0 without a limit.
        threads_per_core: hardware threads of one core, 2 with SMT.
        unequal_cores: whether the usable CPUs are of unequal speed.
        numa_nodes: NUMA nodes that the usable CPUs lie on.
    """
    return dict(_facts(frozenset(usable_cpu_numbers())))


@cache
def _facts(usable: frozenset[int]) -> dict[str, Any]:  # noqa: ARG001 - what the cache goes by
    """Read the facts once: a process does not move to another machine, but it may be pinned."""
    facts = {
        "system": platform.system() or None,
        "machine": platform.machine() or None,
        **processors()._asdict(),
    }
    return {name: fact for name, fact in facts.items() if fact is not None}
