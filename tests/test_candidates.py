"""Which chunk sizes are worth timing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner import filter_candidates, make_candidates
from tuner.candidates import native_chunk_size, whole_number

sizes = st.integers(1, 100_000)
threads = st.integers(1, 512)


@given(sizes, threads)
def test_candidates_hold_the_anchors_and_nothing_above_the_ceiling(
    num_envs: int, nthread: int
) -> None:
    candidates = make_candidates(num_envs, nthread)
    ceiling = -(-num_envs // nthread)
    assert candidates == sorted(set(candidates))
    assert all(type(chunk) is int and 1 <= chunk <= ceiling for chunk in candidates)
    assert {1, ceiling} <= set(candidates)
    if num_envs <= nthread:
        assert candidates == [1]
    else:
        heuristic = round(num_envs / (10 * nthread))
        assert max(1, heuristic) in candidates
        assert native_chunk_size(num_envs, nthread) in candidates


def test_candidates_are_dense_around_the_heuristic() -> None:
    candidates = make_candidates(8192, 16)  # the heuristic is 51
    near = [chunk for chunk in candidates if 51 / 2 <= chunk <= 51 * 2]
    assert len(near) >= 8
    assert len(candidates) <= 20


@pytest.mark.parametrize(("num_envs", "nthread"), [(0, 4), (-1, 4), (16, 0), (16, -2)])
def test_no_candidates_without_environments_or_threads(num_envs: int, nthread: int) -> None:
    with pytest.raises(ValueError, match="must be a whole number >= 1"):
        make_candidates(num_envs, nthread)


@given(st.lists(st.integers(-10, 5000), max_size=60), sizes, st.integers(1, 32))
def test_filtered_candidates_are_clamped_sorted_and_few(
    candidates: list[int], num_envs: int, most: int
) -> None:
    kept = filter_candidates(candidates, num_envs, max_candidates=most)
    clamped = sorted({min(max(chunk, 1), num_envs) for chunk in candidates})
    assert kept == sorted(set(kept))
    assert len(kept) == min(most, len(clamped))
    assert set(kept) <= set(clamped)
    if kept:
        assert kept[-1] == clamped[-1]
        assert kept[:-1] == clamped[: len(kept) - 1]


def test_trimming_keeps_the_smallest_and_the_one_largest() -> None:
    assert filter_candidates(range(1, 30), 100, max_candidates=5) == [1, 2, 3, 4, 29]


@pytest.mark.parametrize("value", [0, -1, True, False, 2.0, "3", None, np.bool_(True), 1.5])
def test_what_is_not_a_whole_number_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="whole number"):
        whole_number(value, "chunk_size")


@pytest.mark.parametrize("value", [1, np.int64(7), np.uint8(3)])
def test_a_whole_number_comes_back_as_a_plain_int(value: object) -> None:
    assert type(whole_number(value, "chunk_size")) is int
