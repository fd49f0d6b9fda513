"""The same facts make the same key, everywhere; any other fact makes another."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.facts import DEVICE, MODEL_SIGNATURE, a_key
from tuner.workload import canonical_json

CHANGES: list[dict[str, Any]] = [
    {"backend_type": "other"},
    {"num_envs": 1025},
    {"nthread": 9},
    {"dtype": "float64"},
    {"post_step_forward_sensor": True},
    {"bench_nsteps": 5},
    *({"model_sig": MODEL_SIGNATURE | {name: n + 1}} for name, n in MODEL_SIGNATURE.items()),
    {"device": DEVICE | {"system": "Darwin"}},
    {"device": DEVICE | {"machine": "aarch64"}},
    {"device": DEVICE | {"cpu_count": 9}},
    {"device": DEVICE | {"more": 1}},
]


def test_every_fact_counts() -> None:
    keys = [a_key(), *(a_key(**change) for change in CHANGES)]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("spelling", [np.float32, "float32", np.dtype("float32"), "f4"])
def test_a_type_has_one_key_however_it_is_spelt(spelling: Any) -> None:
    assert a_key(dtype=spelling) == a_key(dtype="float32")


def test_numbers_count_by_their_value() -> None:
    numpy_numbers = {name: np.int32(n) for name, n in MODEL_SIGNATURE.items()}
    backwards = dict(reversed(MODEL_SIGNATURE.items()))
    assert a_key(model_sig=numpy_numbers, num_envs=np.int64(1024)) == a_key()
    assert a_key(model_sig=backwards) == a_key()


@pytest.mark.parametrize(
    "variable", [("PYTHONHASHSEED", "7"), ("LC_ALL", "C"), ("TZ", "Asia/Tokyo")]
)
def test_a_key_is_the_same_in_another_process(variable: tuple[str, str]) -> None:
    program = "from tests.support.facts import a_key; print(a_key())"
    environment = os.environ | {variable[0]: variable[1]}
    printed = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == a_key()


def test_a_key_is_a_text_that_remembers_its_facts() -> None:
    key = a_key()
    assert isinstance(key, str)
    assert key.workload.num_envs == 1024
    again = pickle.loads(pickle.dumps(key))
    assert (again, again.workload) == (key, key.workload)


@pytest.mark.parametrize("fact", [float("nan"), float("inf"), object(), {1, 2}])
def test_a_fact_without_a_canonical_form_is_refused(fact: object) -> None:
    with pytest.raises(ValueError, match="cannot be part of a key"):
        a_key(device={"fact": fact})


@pytest.mark.parametrize("number", [1024.7, 1024.0, float("inf"), None, "8", True, np.array([4])])
@pytest.mark.parametrize("name", ["num_envs", "nthread", "bench_nsteps"])
def test_a_number_that_is_not_whole_is_refused(name: str, number: object) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a whole number"):
        a_key(**{name: number})


def test_a_fact_whose_name_is_no_text_is_refused() -> None:
    with pytest.raises(ValueError, match="must be a text"):
        a_key(device={1: 2, "1": 3})


def test_a_type_that_numpy_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="float32"):
        a_key(dtype="float33")


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), plain))
def test_canonical_json_does_not_depend_on_order_and_is_ascii(facts: dict[str, Any]) -> None:
    text = canonical_json(facts)
    assert text == canonical_json(dict(reversed(facts.items())))
    assert text.isascii()
