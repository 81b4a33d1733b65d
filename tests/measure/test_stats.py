from __future__ import annotations

import pytest

from tvmstack.measure.stats import geometric_mean, quantile, ratio, summarise

pytestmark = pytest.mark.null


def test_quantile_interpolates_between_neighbours() -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert quantile([1.0, 2.0], 0.1) == pytest.approx(1.1)
    assert quantile([7.0], 0.9) == 7.0


def test_one_slow_run_moves_neither_the_median_nor_the_deviation() -> None:
    summary = summarise([1.0, 1.1, 0.9, 1.0, 50.0])
    assert summary.median_s == 1.0
    assert summary.mad_s == pytest.approx(0.1)
    assert summary.min_s == 0.9


def test_ratio_pairs_rounds_so_that_a_slow_phase_cancels() -> None:
    both_slowed = ratio([1.0, 2.0, 1.0], [2.0, 4.0, 2.0])
    assert (both_slowed.low, both_slowed.median, both_slowed.high) == (0.5, 0.5, 0.5)


def test_ratio_refuses_rounds_that_do_not_pair() -> None:
    with pytest.raises(ValueError, match="longer"):
        ratio([1.0], [1.0, 2.0])


def test_geometric_mean_weighs_twice_and_half_alike() -> None:
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
