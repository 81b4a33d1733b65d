"""A store of 100,000 records is as quick as one of a few, on a file and on a server."""

from __future__ import annotations

import pytest

from benchmarks.store import fill, measure

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_hundred_thousand_records_are_no_wait(place: str) -> None:
    fill(place, 100_000)
    facts = measure(place, 100_000)
    assert facts["look_up_s"] <= 0.2, facts
    assert facts["stats_s"] <= 1.0, facts
