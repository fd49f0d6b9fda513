"""The processors and what limits them, read from trees of files like the kernel's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.device import cpu_list, cpu_model, cpu_quota, normalised_cpu_model, processors


@pytest.mark.parametrize(
    "spellings",
    [
        (
            "Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz",
            "Intel Xeon E5-2680 v4",
            "intel xeon  E5-2680 V4",
        ),
        ("AMD EPYC 7763 64-Core Processor", "AMD EPYC 7763"),
        ("Intel(R) Core(TM) i7-8700K CPU @ 3.70GHz", "Intel Core i7-8700K"),
    ],
)
def test_two_spellings_of_one_cpu_are_one(spellings: tuple[str, ...]) -> None:
    assert len({normalised_cpu_model(name) for name in spellings}) == 1


def test_different_cpus_stay_different() -> None:
    names = ("Intel(R) Xeon(R) CPU E5-2680 v4", "Intel(R) Xeon(R) CPU E5-2680 v3", "AMD EPYC 7763")
    assert len({normalised_cpu_model(name) for name in names}) == 3


@given(st.sets(st.integers(0, 300)))
def test_the_kernels_lists_of_cpus(numbers: set[int]) -> None:
    assert cpu_list(",".join(map(str, sorted(numbers)))) == numbers


def test_ranges_of_cpus() -> None:
    assert cpu_list("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert cpu_list("\n") == set()


def write(root: Path, files: dict[str, str]) -> str:
    """Make a tree of files."""
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return str(root)


QUOTAS = [
    ({}, None),
    ({"proc/self/cgroup": "0::/\n"}, 0.0),
    ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, 0.0),
    ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "250000 100000\n"}, 2.5),
    (
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/cpu.max": "100000 100000\n",
            "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
        },
        1.0,
    ),
    ({"proc/self/cgroup": "0::/gone\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5),
    (
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/job\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "300000\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
        },
        3.0,
    ),
    (
        {
            "proc/self/cgroup": "3:cpu:/job\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
        },
        0.0,
    ),
    ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "nonsense\n"}, 0.0),
]


@pytest.mark.parametrize(("files", "quota"), QUOTAS)
def test_the_quota_is_the_least_of_all_levels(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    assert cpu_quota(write(tmp_path, files)) == quota


def test_a_machine_that_tells_nothing_is_unknown_not_an_error(tmp_path: Path) -> None:
    here = processors(str(tmp_path))
    assert here.cpu_count == os.cpu_count()
    assert here.cpu_model is None
    assert here.cpu_quota is None
    assert here.threads_per_core is None
    assert here.unequal_cores is None
    assert here.numa_nodes is None


def test_a_hybrid_two_node_machine(tmp_path: Path) -> None:
    files = {"proc/cpuinfo": "processor : 0\nmodel name\t: AMD EPYC 7763 64-Core Processor\n"}
    for number in os.sched_getaffinity(0):
        folder = f"sys/devices/system/cpu/cpu{number}"
        files[f"{folder}/topology/thread_siblings_list"] = f"{number},{number + 64}\n"
        files[f"{folder}/cpu_capacity"] = f"{1024 if number % 2 else 446}\n"
        files[f"sys/devices/system/node/node{number % 2}/cpulist"] = f"{number}\n"
    here = processors(write(tmp_path, files))
    several = len(os.sched_getaffinity(0)) > 1
    assert here.cpu_model == "amd epyc 7763"
    assert here.threads_per_core == 2
    assert here.unequal_cores is several
    assert here.numa_nodes == (2 if several else 1)


@pytest.mark.parametrize(
    ("speeds", "unequal"),
    [
        (("3500000\n",), False),
        (("5300000\n", "5000000\n"), False),  # a favoured core is no other kind of core
        (("5200000\n", "3900000\n"), True),
        (("1024\n", "446\n"), True),
        (("soon\n",), None),
    ],
)
def test_cores_are_unequal_where_they_are_of_different_kinds(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    speeds: tuple[str, ...],
    unequal: bool | None,
) -> None:
    monkeypatch.setattr("tuner.device.usable_cpu_numbers", lambda: set(range(8)))
    fact = "sys/devices/system/cpu/cpu{}/cpufreq/cpuinfo_max_freq"
    root = write(tmp_path, {fact.format(k): speeds[k % len(speeds)] for k in range(8)})
    assert processors(root).unequal_cores is unequal


def test_arm_is_told_by_its_numbers(tmp_path: Path) -> None:
    lines = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"
    assert cpu_model(write(tmp_path, {"proc/cpuinfo": lines * 4})) == "arm 0x41 0xd0c"


def quota_in(tree: Path, group: bytes, content: bytes) -> float | None:
    """Read the quota of a control group that is called so and says this of itself."""
    file = os.fsencode(tree) + b"/proc/self/cgroup"
    folder = os.fsencode(tree) + b"/sys/fs/cgroup" + group.replace(b"\0", b"")
    for path in (os.path.dirname(file), folder):
        os.makedirs(path, exist_ok=True)
    Path(os.fsdecode(file)).write_bytes(b"0::" + group + b"\n")
    Path(os.fsdecode(folder), "cpu.max").write_bytes(content)
    return cpu_quota(str(tree))


@pytest.mark.parametrize("content", [b"9" * 5000 + b" 100000", b"9" * 400 + b" 1", b"\0\xff"])
def test_a_quota_that_is_no_number_limits_nothing(tmp_path: Path, content: bytes) -> None:
    assert quota_in(tmp_path, b"/job", content) == 0.0


@pytest.mark.parametrize("group", ["/é".encode(), b"/\xff\xfe", b"/job%41?#"])
def test_a_control_group_may_be_called_anything(tmp_path: Path, group: bytes) -> None:
    assert quota_in(tmp_path, group, b"200000 100000") == 2.0


def test_a_control_group_that_no_path_can_name(tmp_path: Path) -> None:
    assert quota_in(tmp_path, b"/a\0b", b"") == 0.0


@given(content=st.binary(max_size=200) | st.from_regex(rb"[0-9]{1,30}([-, ][0-9]{1,30}){0,3}"))
def test_whatever_the_kernels_files_hold_nothing_is_raised(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    root = tmp_path_factory.mktemp("root")
    cpu = "sys/devices/system/cpu/cpu{}"
    names = [f"{cpu.format(n)}/topology/thread_siblings_list" for n in range(2)]
    names += [f"{cpu.format(n)}/cpu_capacity" for n in range(2)]
    names += ["sys/devices/system/node/node0/cpulist", "proc/cpuinfo", "sys/fs/cgroup/cpu.max"]
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    (root / "proc/self").mkdir()
    (root / "proc/self/cgroup").write_bytes(b"0::/" + content + b"\n1:cpu:/" + content)
    processors(str(root))


def test_a_list_of_very_many_cpus_is_cut() -> None:
    assert len(cpu_list("0-99999999999999999")) < 1e6


def test_pythons_own_count_of_cpus_is_no_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    before = processors().cpu_count
    monkeypatch.setattr(os, "cpu_count", lambda: 7777)  # what PYTHON_CPU_COUNT does from 3.13 on
    assert processors().cpu_count == before
