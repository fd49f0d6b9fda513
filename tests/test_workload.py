"""What a model's structure says about the cost of a step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.facts import MODEL, MODEL_SIGNATURE
from tuner import model_signature


def test_the_signature_has_exactly_its_fields_as_plain_ints() -> None:
    signature = model_signature(MODEL, 1)
    assert signature == MODEL_SIGNATURE
    assert all(type(count) is int for count in signature.values())


def test_variants_count() -> None:
    assert model_signature(MODEL, 3)["n_variants"] == 3


@pytest.mark.parametrize("count", [1.5, float("inf"), "7", None])
def test_a_count_that_is_no_whole_number_is_refused(count: object) -> None:
    model = SimpleNamespace(**(vars(MODEL) | {"nq": count}))
    with pytest.raises(ValueError, match="nq"):
        model_signature(model, 1)


def test_something_that_is_no_model_is_refused() -> None:
    with pytest.raises(ValueError, match="nsensordata"):
        model_signature(SimpleNamespace(nq=1), 1)
