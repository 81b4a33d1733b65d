"""Compare what an artifact computes with what the original model computes, on random and on edge inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tvmstack.core.errors import ModelError
from tvmstack.core.model import TensorSpec

__all__ = ["Case", "Difference", "Verification", "compare", "make_cases", "verify"]

Feeds = Mapping[str, np.ndarray]
Run = Callable[[Feeds], Mapping[str, np.ndarray]]

# Largest difference allowed, as a share of the largest |expected| value.
_TOLERANCE = {"float64": 1e-3, "float32": 1e-3, "float16": 1e-2, "bfloat16": 3e-2}
# Inputs this large amplify rounding, so the same computation in another order may differ more.
_LARGE, _LARGE_SLACK = 1e3, 10.0
# Outputs smaller than this are compared with it instead of with themselves: onnxruntime's own sigmoid is off by 1e-7.
_FLOOR = 1e-3
# Rounding may put a quantised value on the other side of a half: one step off, and only here and there.
_QUANTISED, _QUANTISED_SHARE = ("int8", "uint8"), 0.05
# Where the original itself moves when its inputs move by a rounding error, we may be off by a few times as much.
_NUDGE, _NUDGE_SLACK, _NUDGES = 1e-6, 4.0, 2
_WIDE = 100
# Integers that pick one of two by their nature, by what models call them.
_BINARY = ("mask", "type", "segment")


@dataclass(frozen=True)
class Case:
    """One set of inputs.

    Attributes:
        name: "random 0", "zeros", "large", "nan", "larger integers", or the caller's.
        feeds: an array for each input.
        slack: factor on the tolerance.
        overflows: values the original does not keep finite are left out of the comparison.
    """

    name: str
    feeds: Feeds
    slack: float = 1.0
    overflows: bool = False


@dataclass(frozen=True)
class Difference:
    """How far one output is from the original's.

    Attributes:
        output: its name.
        worst: the largest difference as a share of the largest |expected|.
        ok: whether that is within tolerance.
        reason: what is wrong, in words; empty where nothing is.
    """

    output: str
    worst: float
    ok: bool
    reason: str = ""


@dataclass(frozen=True)
class Verification:
    """What a comparison gave.

    Attributes:
        cases: how many were compared.
        worst: the largest difference of cases without slack, as a share of the largest |expected|.
        tolerance: what was allowed there.
        skipped: cases that the original refuses, and its words.
        unsettled: outputs off by more than that where the original is as unsteady itself, and by how much.
        failures: cases and what is wrong in them.
    """

    cases: int
    worst: float
    tolerance: float
    skipped: tuple[str, ...] = ()
    unsettled: tuple[str, ...] = ()
    failures: tuple[tuple[str, Difference], ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether every output of every case was right."""
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        data = asdict(self)
        data["failures"] = [{"case": case, **asdict(d)} for case, d in self.failures]
        data["skipped"], data["unsettled"] = list(self.skipped), list(self.unsettled)
        return data


def make_cases(specs: Sequence[TensorSpec], seed: int = 0) -> list[Case]:
    """Return two random cases, zeros, and, where an input's type has them, large values, NaN and larger integers.

    The first case is one that any model takes: its integers are 0 and 1, so that they are good as indices.
    """
    cases = [Case(f"random {i}", {s.name: _random(s, seed + i) for s in specs}) for i in range(2)]
    cases.append(Case("zeros", {s.name: np.zeros(_shape(s), s.dtype) for s in specs}))
    floats = [s for s in specs if np.dtype(s.dtype).kind == "f"]
    if floats:
        large = {s.name: _random(s, seed, _LARGE) for s in specs}
        cases.append(Case("large", large, slack=_LARGE_SLACK, overflows=True))
        cases.append(Case("nan", {s.name: _with_nan(s, seed) for s in specs}))
    wide = {s.name: _random(s, seed, limit=_WIDE) for s in specs if _is_index(s)}
    if wide:
        feeds = {s.name: wide[s.name] if s.name in wide else _random(s, seed) for s in specs}
        cases.append(Case("larger integers", feeds, slack=_LARGE_SLACK))
    return cases


def _is_index(spec: TensorSpec) -> bool:
    """Whether an input may hold indices: integers of more than a byte that are no flags."""
    dtype = np.dtype(spec.dtype)
    flags = any(word in spec.name.lower() for word in _BINARY)
    return dtype.kind in "iu" and dtype.itemsize > 1 and len(spec.shape) > 0 and not flags


def _shape(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else 1 for d in spec.shape)


def _random(spec: TensorSpec, seed: int, scale: float = 1.0, limit: int = 2) -> np.ndarray:
    """Return normal floats, whole bytes, or integers from 0 to below `limit`."""
    rng = np.random.default_rng([seed, *spec.name.encode()])
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, _shape(spec)), np.bool_)
    if dtype.kind in "iu":
        low, high = (0, limit) if dtype.itemsize > 1 else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max) + 1)
        return np.asarray(rng.integers(low, high, _shape(spec))).astype(dtype)
    return np.asarray(rng.standard_normal(_shape(spec)) * scale).astype(spec.dtype)


def _with_nan(spec: TensorSpec, seed: int) -> np.ndarray:
    array = _random(spec, seed)
    if array.dtype.kind == "f" and array.size:
        array.reshape(-1)[array.size // 2] = np.nan
    return array


def compare(
    outputs: Sequence[TensorSpec], ours: Feeds, theirs: Feeds, case: Case, wider: float = 0.0
) -> list[Difference]:
    """Return one difference an output: floats within tolerance, NaN and infinities alike, integers equal.

    `wider` is a tolerance that replaces smaller ones of floats.
    """
    return [_difference(s.name, np.asarray(ours[s.name]), np.asarray(theirs[s.name]), case, wider) for s in outputs]


def _difference(name: str, ours: np.ndarray, theirs: np.ndarray, case: Case, wider: float) -> Difference:
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        words = f"is {ours.dtype}{list(ours.shape)}, the original gives {theirs.dtype}{list(theirs.shape)}"
        return Difference(name, float("inf"), False, words)
    if theirs.size == 0:
        return Difference(name, 0.0, True)
    if theirs.dtype.kind not in "fV":
        return _exact(name, ours, theirs)
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    use = np.isfinite(b)
    if case.name == "nan":
        # onnxruntime's recurrent kernels swallow NaN; a NaN that we carry on to the end is right as well
        b = np.where(np.isnan(a), np.nan, b)
        use = np.isfinite(b)
    if not case.overflows and not _same_places(a, b):
        return Difference(name, float("inf"), False, "has NaN or infinity in other places than the original")
    if not np.isfinite(a[use]).all():
        return Difference(name, float("inf"), False, "has NaN or infinity where the original is finite")
    if not use.any():
        return Difference(name, 0.0, True)
    largest = max(float(np.abs(b[use]).max()), _FLOOR)
    gaps = np.where(use, np.abs(np.where(use, a - b, 0.0)), 0.0)
    worst = float(gaps.max()) / largest
    limit = max(wider, _TOLERANCE.get(theirs.dtype.name, 1e-3)) * case.slack
    if worst <= limit:
        return Difference(name, worst, True)
    at = np.unravel_index(int(gaps.argmax()), gaps.shape)
    index = ", ".join(str(int(i)) for i in at)
    return Difference(name, worst, False, f"at [{index}] is {ours[at]:.6g}, the original gives {theirs[at]:.6g}")


def _same_places(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.array_equal(np.isnan(a), np.isnan(b)) and np.array_equal(a[np.isinf(a)], b[np.isinf(b)]))


def _exact(name: str, ours: np.ndarray, theirs: np.ndarray) -> Difference:
    gaps = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
    few = np.count_nonzero(gaps) <= max(1.0, gaps.size * _QUANTISED_SHARE)
    allowed = 1.0 if theirs.dtype.name in _QUANTISED and few else 0.0
    if gaps.max() <= allowed:
        return Difference(name, 0.0, True)
    at = np.unravel_index(int(gaps.argmax()), gaps.shape)
    index = ", ".join(str(int(i)) for i in at)
    return Difference(name, float("inf"), False, f"at [{index}] is {ours[at]}, the original gives {theirs[at]}")


def verify(
    outputs: Sequence[TensorSpec], cases: Sequence[Case], run: Run, oracle: Run, wider: float = 0.0
) -> Verification:
    """Run every case both ways; a case that the original itself refuses is skipped, and said.

    `wider` is a tolerance that replaces smaller ones of floats: that of a target which computes less exactly.

    Raises:
        ModelError: the original refuses every case.
    """
    failures: list[tuple[str, Difference]] = []
    skipped, unsettled, worst, done = [], [], 0.0, 0
    for case in cases:
        try:
            expected = oracle(case.feeds)
        except ModelError as err:
            skipped.append(f"{case.name}: {err}")
            continue
        done += 1
        ours = run(case.feeds)
        for difference in compare(outputs, ours, expected, case, wider):
            if difference.ok:
                worst = max(worst, difference.worst if case.slack == 1.0 else 0.0)
            elif _is_unsteady(difference.output, ours, expected, case, oracle):
                unsettled.append(f"{case.name}: output {difference.output} {difference.reason}")
            else:
                failures.append((case.name, difference))
    if not done and cases:
        raise ModelError(f"the original model refuses every input tried; the last said: {skipped[-1]}")
    floats = [_TOLERANCE[s.dtype] for s in outputs if s.dtype in _TOLERANCE]
    tolerance = max([*floats, wider], default=0.0) if floats else 0.0
    return Verification(done, worst, tolerance, tuple(skipped), tuple(unsettled), tuple(failures))


def _is_unsteady(output: str, ours: Feeds, expected: Feeds, case: Case, oracle: Run) -> bool:
    """Whether the original's own output moves as far as ours is off when its inputs move by a rounding error."""
    gap = _distance(np.asarray(ours[output]), np.asarray(expected[output]))
    moved = [0.0]
    for seed in range(_NUDGES):
        try:
            nudged = oracle({name: _nudged(value, seed) for name, value in case.feeds.items()})
        except ModelError:
            return False
        moved.append(_distance(np.asarray(nudged[output]), np.asarray(expected[output])))
    return gap <= _NUDGE_SLACK * max(m for m in moved if np.isfinite(m))


def _nudged(value: np.ndarray, seed: int) -> np.ndarray:
    if value.dtype.kind != "f":
        return value
    step = max(_NUDGE, float(np.finfo(value.dtype).eps))
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], value.shape)
    return np.asarray(value * (1 + step * signs)).astype(value.dtype)


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest difference of floats, the count of differing integers, or infinity where neither fits."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if b.dtype.kind not in "fV":
        return float(np.count_nonzero(a != b))
    a, b = a.astype(np.float64), b.astype(np.float64)
    use = np.isfinite(b)
    if not np.array_equal(use, np.isfinite(a)):
        return float("inf")
    return float(np.abs(a[use] - b[use]).max(initial=0.0))
