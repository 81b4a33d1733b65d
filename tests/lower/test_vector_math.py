"""The polynomials against float64, over the whole range of float32 that matters and at its edges."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tvmstack._tvm import te, tvm
from tvmstack.core.device import detect_device
from tvmstack.lower import vector_math

pytestmark = pytest.mark.cpu


def evaluate(name, values):
    x = te.placeholder((len(values),), name="x")
    y = te.compute(x.shape, lambda i: getattr(vector_math, f"{name}_f32")(x[i]), name="y")
    func = te.create_prim_func([x, y]).with_attr("global_symbol", "kernel")
    library = tvm.compile(func, target=tvm.target.Target(detect_device().target()))
    result = tvm.runtime.tensor(np.zeros(len(values), "float32"))
    library["kernel"](tvm.runtime.tensor(values), result)
    return result.numpy()


def exact(name, values):
    wide = values.astype("float64")
    with np.errstate(over="ignore"):
        if name == "exp":
            return np.exp(wide)
        if name == "exp_nonpositive":
            return np.where(wide < -87.0, 0.0, np.exp(wide))
        if name == "tanh":
            return np.tanh(wide)
        if name == "sigmoid":
            return 1 / (1 + np.exp(-wide))
        return np.array([math.erf(v) for v in wide])


RANGES = [(-1e-4, 1e-4), (-1, 1), (-10, 10), (-87, 88.7)]
# the largest relative error allowed, in units of 2**-24 (half a unit in the last place of a number just above 1)
BOUNDS = {"exp": 2.0, "tanh": 3.0, "sigmoid": 4.0, "erf": 7.0}


@pytest.mark.parametrize("bounds", RANGES, ids=str)
@pytest.mark.parametrize("name", BOUNDS)
def test_relative_error_is_bounded(name, bounds):
    values = np.linspace(*bounds, 100_001).astype("float32")
    expected = exact(name, values)
    normal = np.abs(expected) > 1.2e-38
    error = np.abs(evaluate(name, values)[normal] - expected[normal]) / np.abs(expected[normal])
    assert error.max() < BOUNDS[name] * 2.0**-24, values[normal][error.argmax()]


@pytest.mark.parametrize("name", BOUNDS)
def test_edges(name):
    edges = np.array([np.nan, np.inf, -np.inf, 0.0, 3e38, -3e38, 1e-40], "float32")
    got, expected = evaluate(name, edges), exact(name, edges).astype("float32")
    np.testing.assert_allclose(got, expected, atol=1e-38)


def test_exp_of_what_is_not_positive():
    values = np.concatenate([np.linspace(-87, 0, 400_001), np.linspace(-1e-3, 0, 10_001)]).astype("float32")
    expected = exact("exp_nonpositive", values)
    error = np.abs(evaluate("exp_nonpositive", values) - expected) / expected
    assert error.max() < BOUNDS["exp"] * 2.0**-24, values[error.argmax()]
    edges = np.array([np.nan, -np.inf, 0.0, -0.0, -1e-40, -87.1, -104.0, -3e38], "float32")
    np.testing.assert_array_equal(evaluate("exp_nonpositive", edges), [np.nan, 0, 1, 1, 1, 0, 0, 0])


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_odd_functions_stay_within_one(name):
    values = np.linspace(-20, 20, 10_001).astype("float32")
    assert np.abs(evaluate(name, values)).max() <= 1.0
