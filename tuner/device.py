"""What this machine is: the device fingerprint, a part of every key.

Reads the operating system only. Coarse and deterministic: counts, no numbers of particular CPUs,
no host name, no path, nothing that changes between two processes that have equal means. On the
way of every hit, so its imports are few.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tuner.records import RunMetadata

import tuner


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


FIRST_CPU = 4096
"""Bytes of /proc/cpuinfo that are read: the first CPU's. Of hundreds, it takes 10 ms to make."""
MOST = 65536
"""Bytes that are read of any other file."""
MOST_DIGITS = 18
"""Digits of a number that means something: Python refuses to read thousands of them."""
MOST_CPUS = 1 << 16
"""CPUs that a kernel could number; eight times what Linux can be built for."""
UNEQUAL = 1.2
"""Cores are unequal above this ratio. Favoured cores of one kind differ by less."""


class Processors(NamedTuple):
    """What a process has to compute with. Counts, never numbers of particular CPUs."""

    cpu_model: str | None
    """The CPU's name, normalised: two spellings of one CPU are one."""
    cpu_count: int
    """Logical CPUs of the machine."""
    usable_cpus: int
    """Logical CPUs this process may run on (its affinity)."""
    cpu_quota: float | None
    """CPUs' worth of time that the control groups grant; 0 where nothing limits it."""
    threads_per_core: int | None
    """Hardware threads of one core: 2 with SMT."""
    unequal_cores: bool | None
    """Whether the usable CPUs have different greatest speeds or capacities."""
    numa_nodes: int | None
    """NUMA nodes that the usable CPUs lie on."""


def processors(root: str = "") -> Processors:
    """Read what this process has to compute with.

    Args:
        root: What stands before /proc and /sys.
    """
    usable = usable_cpu_numbers()
    return Processors(
        cpu_model=cpu_model(root),
        cpu_count=cpu_count(),
        usable_cpus=len(usable) or cpu_count(),
        cpu_quota=cpu_quota(root),
        threads_per_core=_threads_per_core(root, usable),
        unequal_cores=_unequal_cores(root, usable),
        numa_nodes=_numa_nodes(root, usable),
    )


def usable_cpu_numbers() -> set[int]:
    """List the CPUs this process may run on; empty where the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set()


def usable_cpus() -> int:
    """Count the CPUs this process may run on: the sensible number of threads for a pool."""
    return len(usable_cpu_numbers()) or cpu_count()


def cpu_count() -> int:
    """Count the machine's CPUs; from Python 3.13 on `os.cpu_count` says what a user tells it to."""
    try:
        return max(1, os.sysconf("SC_NPROCESSORS_ONLN"))
    except (AttributeError, OSError, ValueError):
        return os.cpu_count() or 1


def cpu_model(root: str = "") -> str | None:
    """Name the CPU, normalised. ARM's kernel names none: its maker's and its part's numbers do."""
    text = _text(f"{root}/proc/cpuinfo", FIRST_CPU)
    if text is None and sys.platform == "win32":
        return normalised_cpu_model(os.environ.get("PROCESSOR_IDENTIFIER", "")) or None
    facts: dict[str, str] = {}
    for line in (text or "").splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip().lower(), value)
    for name in ("model name", "cpu model", "processor", "hardware"):
        found = normalised_cpu_model(facts.get(name, ""))
        if found and not found.isdecimal():  # "processor: 0" is a number on most machines
            return found
    part = " ".join(facts.get(name, "").strip() for name in ("cpu implementer", "cpu part"))
    return f"arm {part}" if part.strip() else None


def normalised_cpu_model(name: str) -> str:
    """Reduce the spellings of one CPU to one: no marks, no clock speed, no spare words."""
    name = name.encode(errors="surrogateescape").decode(errors="replace")
    name = re.sub(r"\((r|tm|c)\)", " ", name.lower())
    name = re.sub(r"@\s*[\d.]+\s*[gm]hz", " ", name)
    name = re.sub(r"\b(cpu|processor|\d+-core)\b", " ", name)
    return " ".join(name.split())


def cpu_quota(root: str = "") -> float | None:
    """Read how many CPUs' worth of time the control groups grant: the least of all levels.

    Returns:
        0 where nothing limits it, None where nobody can tell.
    """
    groups = _text(f"{root}/proc/self/cgroup")
    if groups is None:
        return None
    return min([*_quotas_v2(root, groups), *_quotas_v1(root, groups)], default=0.0)


def governors(root: str = "") -> set[str]:
    """List the clock governors of the usable CPUs, such as "performance"; empty: unknown."""
    found = (
        _text(f"{root}/sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor")
        for number in usable_cpu_numbers()
    )
    return {text.strip() for text in found if text}


def _quotas_v2(root: str, groups: str) -> list[float]:
    quotas = []
    for folder in _levels(root, groups, controller=None):
        words = (_text(f"{folder}/cpu.max") or "").split()
        if len(words) == 2 and _count(words[0]) is not None and _count(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return quotas


def _quotas_v1(root: str, groups: str) -> list[float]:
    quotas = []
    for folder in _levels(root, groups, controller="cpu"):
        quota = (_text(f"{folder}/cpu.cfs_quota_us") or "").strip()
        period = (_text(f"{folder}/cpu.cfs_period_us") or "").strip()
        if _count(quota) is not None and _count(period):  # "-1" is no limit
            quotas.append(int(quota) / int(period))
    return quotas


def _levels(root: str, groups: str, controller: str | None) -> list[str]:
    """List the folders of this process's control group, up to the top of its hierarchy.

    Inside a container the group's path may not exist under the mount: the mount is the group.
    """
    levels: list[str] = []
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller is None and number == "0" and not names:
            mounts = ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        elif controller is not None and controller in names.split(","):
            mounts = [f"sys/fs/cgroup/{name}" for name in sorted({names, controller})]
        else:
            continue
        steps = path.strip("/").split("/") if path.strip("/") else []
        for mount in mounts:
            levels += ["/".join((root, mount, *steps[:k])) for k in range(len(steps), -1, -1)]
    return levels


def _threads_per_core(root: str, usable: set[int]) -> int | None:
    for number in sorted(usable):
        text = _text(f"{root}/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        if text:
            return len(cpu_list(text))
    return None


def _unequal_cores(root: str, usable: set[int]) -> bool | None:
    folder = f"{root}/sys/devices/system/cpu"
    for fact in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        texts = [_text(f"{folder}/cpu{number}/{fact}") for number in usable]
        found = [n for text in texts if text and (n := _count(text.strip())) is not None]
        if found:
            return max(found) > UNEQUAL * min(found)
    return None


def _numa_nodes(root: str, usable: set[int]) -> int | None:
    folder = f"{root}/sys/devices/system/node"
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    lists = [
        cpu_list(_text(f"{folder}/{name}/cpulist") or "")
        for name in names
        if re.fullmatch(r"node\d+", name)
    ]
    return sum(1 for numbers in lists if numbers & usable) or None


def cpu_list(text: str) -> set[int]:
    """Read the kernel's notation for sets of CPUs: "0-3,8" is 0, 1, 2, 3 and 8."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        low, high = _count(first), _count(last or first)
        if low is not None and high is not None:
            numbers.update(range(low, min(high, MOST_CPUS) + 1))
    return numbers


def _count(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= MOST_DIGITS else None


def _text(file: str, most: int = MOST) -> str | None:
    # Always as UTF-8: a control group has its name whatever the locale, and may have any bytes.
    try:
        descriptor = os.open(file.encode(errors="surrogateescape"), os.O_RDONLY)
    except (OSError, ValueError):  # a name that cannot be one
        return None
    try:
        return os.read(descriptor, most).decode(errors="surrogateescape")
    except OSError:
        return None
    finally:
        os.close(descriptor)


def run_metadata() -> RunMetadata:
    """Note how things stand now. Never raises: what cannot be read is None."""
    from tuner.records import RunMetadata  # a hit has no run

    return RunMetadata(
        hostname=_hostname(),
        pid=os.getpid(),
        load_average=_load_average(),
        tuner_version=tuner.__version__,
        python_version=platform.python_version(),
    )


def _hostname() -> str | None:
    try:
        return platform.node() or None
    except OSError:
        return None


def _load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None
