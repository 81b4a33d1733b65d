from tvmstack.core.kernel import Choice
from tvmstack.tuning.seeds import adapted

POOL = [Choice("matmul", {"m": m, "n": n}) for m in (1, 2, 4, 7) for n in (1, 2)]


def test_a_choice_that_is_no_candidate_moves_to_the_nearest() -> None:
    assert adapted([Choice("matmul", {"m": 8, "n": 2})], POOL, 3) == [Choice("matmul", {"m": 7, "n": 2})]


def test_a_candidate_stays_and_equal_seeds_count_once() -> None:
    near = [POOL[3], Choice("matmul", {"m": 9, "n": 1}), Choice("matmul", {"m": 8, "n": 1})]
    assert adapted(near, POOL, 3) == [POOL[3], POOL[6]]


def test_other_templates_and_other_decisions_are_left_out() -> None:
    assert adapted([Choice("conv", {"m": 1, "n": 1}), Choice("matmul", {"m": 1})], POOL, 3) == []
    trace = Choice("meta_schedule", {"trace": []})
    assert adapted([trace], POOL, 3) == [trace]
