"""Whom a key tells apart, and whom it does not: no false hit, no false miss."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mujoco
import pytest

from tests.support.facts import DEVICE, MODEL, MODEL_SIGNATURE, a_key
from tests.support.real_models import QUADRUPED
from tuner import device, device_fingerprint, make_cache_key, model_signature
from tuner.device import Processors, processors
from tuner.model_facts import MORE_COUNTS, OPTION_COUNTS, OPTION_NAMES, SIGNATURE_FIELDS
from tuner.store.schema import DEVICE_FIELDS, MODEL_FIELDS, RUN_PARAMETERS

ROOT = Path(__file__).parents[1]
FULL_DEVICE = DEVICE | {
    "cpu_model": "amd epyc 7763",
    "usable_cpus": 8,
    "cpu_quota": 0.0,
    "threads_per_core": 2,
    "unequal_cores": False,
    "numa_nodes": 1,
}
OPTION = dict.fromkeys((*OPTION_COUNTS, *OPTION_NAMES), 1)


def a_model(**changes: Any) -> SimpleNamespace:
    """Make a model with all that a key knows, but for what is changed."""
    facts = vars(MODEL) | dict.fromkeys(MORE_COUNTS, 0) | OPTION | changes
    option = SimpleNamespace(**{name: facts.pop(name) for name in OPTION})
    return SimpleNamespace(**facts, opt=option)


def key_of(model: Any = None, n_variants: int = 1, **changes: Any) -> str:
    """Make the key of a model on a device of which everything is known."""
    signature = model_signature(model or a_model(), n_variants)
    return a_key(**({"model_sig": signature, "device": FULL_DEVICE} | changes))


def test_the_columns_are_the_facts_that_a_key_has() -> None:
    counts = (*SIGNATURE_FIELDS, "n_variants", *MORE_COUNTS, *OPTION_COUNTS, *OPTION_NAMES)
    assert set(MODEL_FIELDS) == set(counts)
    assert set(DEVICE_FIELDS) == {"system", "machine", *Processors._fields}
    signature = model_signature(a_model(), 1)
    assert set(MODEL_FIELDS) == {*signature, *signature.settings}
    assert set(RUN_PARAMETERS) == set(a_key().workload._fields) - {"model", "device"}


@pytest.mark.parametrize("name", [name for name in MODEL_FIELDS if name != "n_variants"])
def test_models_that_differ_in_one_fact_have_different_keys(name: str) -> None:
    assert key_of(a_model(**{name: 2})) != key_of()


@pytest.mark.parametrize("name", DEVICE_FIELDS)
def test_devices_that_differ_in_one_fact_have_different_keys(name: str) -> None:
    value: Any = FULL_DEVICE[name]
    other = f"{value}x" if isinstance(value, str) else (not value if value is False else value + 2)
    assert key_of(device=FULL_DEVICE | {name: other}) != key_of()
    unknown = {fact: value for fact, value in FULL_DEVICE.items() if fact != name}
    assert key_of(device=unknown) != key_of()
    assert key_of(device=FULL_DEVICE | {name: None}) == key_of(device=unknown)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_variants": 2},
        {"backend_type": "other"},
        {"num_envs": 1025},
        {"nthread": 9},
        {"dtype": "float64"},
        {"post_step_forward_sensor": True},
        {"bench_nsteps": 5},
    ],
)
def test_work_that_differs_in_one_parameter_has_different_keys(changes: dict[str, Any]) -> None:
    assert key_of(**changes) != key_of()


def test_an_option_of_the_xml_reaches_the_key() -> None:
    spec = QUADRUPED.read_text()
    keys = set()
    for option in ("", 'iterations="4"', 'solver="CG"', 'integrator="RK4"', 'cone="pyramidal"'):
        xml = spec.replace("</mujoco>", f"<option {option}/></mujoco>")
        keys.add(key_of(mujoco.MjModel.from_xml_string(xml)))
    flag = '<option><flag warmstart="disable"/></option></mujoco>'
    keys.add(key_of(mujoco.MjModel.from_xml_string(spec.replace("</mujoco>", flag))))
    assert len(keys) == 6


def test_mujocos_names_are_those_of_its_numbers() -> None:
    enums = {
        "integrator": mujoco.mjtIntegrator,
        "solver": mujoco.mjtSolver,
        "cone": mujoco.mjtCone,
        "jacobian": mujoco.mjtJacobian,
    }
    for option, enum in enums.items():
        for name, member in enum.__members__.items():
            ours = OPTION_NAMES[option][int(member)]
            assert name.rpartition("_")[2].lower() == ours.lower()


def test_the_signature_of_the_api_keeps_its_eight_fields() -> None:
    signature = model_signature(a_model(), 1)
    assert signature == MODEL_SIGNATURE
    assert list(signature) == list(MODEL_SIGNATURE)


def test_facts_of_ones_own_make_the_key_they_always_made() -> None:
    # From a database of revision 0001: what it holds is still found.
    assert a_key() == "k1_a69d7f34f26a0c06f54f0f0601eb2a98"


PROGRAM = f"""
import mujoco, tuner
model = mujoco.MjModel.from_xml_path({str(QUADRUPED)!r})
print(tuner.make_cache_key(
    backend_type="mujoco", model_sig=tuner.model_signature(model, 1),
    device=tuner.device_fingerprint(), num_envs=1024, nthread=8, dtype="float32",
    post_step_forward_sensor=False, bench_nsteps=4,
))
"""


def printed(*prefix: str, **options: Any) -> str:
    """Make the key in another process."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | options.pop("env", {})
    command = [*prefix, sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, **options
    )
    return str(done.stdout.strip())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"env": {"PYTHONHASHSEED": "1"}},
        {"env": {"PYTHONHASHSEED": "2", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"}},
        {"env": {"HOME": "/nowhere", "USER": "somebody", "TMPDIR": "/"}},
        {"cwd": "/"},
    ],
)
def test_the_same_facts_make_the_same_key_in_every_process(options: dict[str, Any]) -> None:
    model = mujoco.MjModel.from_xml_path(str(QUADRUPED))
    here = make_cache_key(
        backend_type="mujoco",
        model_sig=model_signature(model, 1),
        device=device_fingerprint(),
        num_envs=1024,
        nthread=8,
        dtype="float32",
        post_step_forward_sensor=False,
        bench_nsteps=4,
    )
    assert printed(**options) == here


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
def test_another_host_name_makes_no_other_key() -> None:
    unshare = shutil.which("unshare")
    can = unshare and not subprocess.run([unshare, "--uts", "true"], capture_output=True).returncode
    if not can:
        pytest.skip("host names cannot be set apart here")
    renamed = ("unshare", "--uts", "sh", "-c", 'hostname node-7.elsewhere && exec "$@"', "sh")
    assert printed(*renamed) == printed()


def test_ranks_on_equal_halves_of_a_node_share_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    node = processors()._replace(cpu_count=64, usable_cpus=32, numa_nodes=1)
    monkeypatch.setattr(device, "processors", lambda: node)
    keys = set()
    for usable in (range(32), range(32, 64)):
        monkeypatch.setattr(device, "usable_cpu_numbers", lambda numbers=usable: set(numbers))
        keys.add(key_of(device=device_fingerprint()))
    assert len(keys) == 1


def test_a_process_that_is_pinned_later_is_another_device() -> None:
    program = "\n".join(
        [
            "import os, tuner",
            "before = tuner.device_fingerprint()",
            "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})",
            "after = tuner.device_fingerprint()",
            "print(before['usable_cpus'], after['usable_cpus'])",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(len(os.sched_getaffinity(0))), "1"]
