"""The processors this process may use, and what limits them. Reads files, never raises.

Linux tells all of it in /proc and /sys; elsewhere the standard library tells how many there
are. What cannot be read is None: unknown, not "no limit".
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Processors:
    """What a process has to compute with. Counts, never numbers of particular CPUs."""

    cpu_model: str | None
    """The CPU's name, normalised: two spellings of one CPU are one."""
    cpu_count: int
    """Logical CPUs of the machine."""
    usable_cpus: int
    """Logical CPUs this process may run on (its affinity)."""
    cpu_quota: float | None
    """CPUs' worth of time that the control group grants; None where nothing limits it."""
    threads_per_core: int | None
    """Hardware threads of one core: 2 with SMT."""
    unequal_cores: bool | None
    """Whether the usable CPUs have different greatest speeds or capacities."""
    numa_nodes: int | None
    """NUMA nodes that the usable CPUs lie on."""


def processors(root: Path = ROOT) -> Processors:
    """Read what this process has to compute with.

    Args:
        root: The folder that /proc and /sys lie in.
    """
    usable = usable_cpu_numbers()
    return Processors(
        cpu_model=cpu_model(root),
        cpu_count=os.cpu_count() or 1,
        usable_cpus=len(usable) or os.cpu_count() or 1,
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
    return len(usable_cpu_numbers()) or os.cpu_count() or 1


def cpu_model(root: Path = ROOT) -> str | None:
    """Name the CPU, normalised."""
    for line in (_text(root / "proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Processor", "cpu model", "Hardware"):
            return normalised_cpu_model(value) or None
    return None


def normalised_cpu_model(name: str) -> str:
    """Reduce the spellings of one CPU to one: no marks, no clock speed, no spare words."""
    name = re.sub(r"\((r|tm|c)\)", " ", name.lower())
    name = re.sub(r"@\s*[\d.]+\s*[gm]hz", " ", name)
    name = re.sub(r"\b(cpu|processor|\d+-core)\b", " ", name)
    return " ".join(name.split())


def cpu_quota(root: Path = ROOT) -> float | None:
    """Read how many CPUs' worth of time the control groups grant: the least of all levels."""
    quotas = [*_quotas_v2(root), *_quotas_v1(root)]
    return min(quotas, default=None)


def governors(root: Path = ROOT) -> set[str]:
    """List the clock governors of the usable CPUs, "performance" say; empty if there are none."""
    found = (
        _text(root / f"sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor")
        for number in usable_cpu_numbers()
    )
    return {text.strip() for text in found if text}


def _quotas_v2(root: Path) -> list[float]:
    quotas = []
    for folder in _levels(root, controller=None):
        words = (_text(folder / "cpu.max") or "").split()
        if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return quotas


def _quotas_v1(root: Path) -> list[float]:
    quotas = []
    for folder in _levels(root, controller="cpu"):
        quota = (_text(folder / "cpu.cfs_quota_us") or "").strip()
        period = (_text(folder / "cpu.cfs_period_us") or "").strip()
        if quota.isdecimal() and period.isdecimal() and int(period):  # "-1" is no limit
            quotas.append(int(quota) / int(period))
    return quotas


def _levels(root: Path, controller: str | None) -> list[Path]:
    """List the folders of this process's control group, up to the top of its hierarchy.

    Inside a container the group's path may not exist under the mount: the mount is the group.
    """
    levels: list[Path] = []
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller is None and number == "0" and not names:
            mounts = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif controller is not None and controller in names.split(","):
            mounts = [root / "sys/fs/cgroup" / name for name in {names, controller}]
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        levels += [mount / level for mount in mounts for level in (group, *group.parents)]
    return levels


def _threads_per_core(root: Path, usable: set[int]) -> int | None:
    for number in sorted(usable):
        text = _text(root / f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        if text:
            return len(cpu_list(text))
    return None


def _unequal_cores(root: Path, usable: set[int]) -> bool | None:
    folder = root / "sys/devices/system/cpu"
    for fact in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        found = {_text(folder / f"cpu{number}" / fact) for number in usable} - {None}
        if found:
            return len(found) > 1
    return None


def _numa_nodes(root: Path, usable: set[int]) -> int | None:
    folder = root / "sys/devices/system/node"
    try:
        nodes = [entry for entry in folder.iterdir() if re.fullmatch(r"node\d+", entry.name)]
    except OSError:
        return None
    lists = [cpu_list(_text(node / "cpulist") or "") for node in nodes]
    return sum(1 for numbers in lists if numbers & usable) or None


def cpu_list(text: str) -> set[int]:
    """Read the kernel's notation for sets of CPUs: "0-3,8" is 0, 1, 2, 3 and 8."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def _text(file: Path) -> str | None:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return None
