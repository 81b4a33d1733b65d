"""LSTM, GRU and RNN equal onnxruntime's in all their forms."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.lower.import_tools import NodeCase, as_model, compare, graph_of, node, refusals

pytestmark = pytest.mark.cpu
_RNG = np.random.default_rng(22)
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def rnd(*shape: int) -> np.ndarray:
    """Return values of a trained network's size."""
    return (_RNG.normal(size=shape) * 0.5).astype(np.float32)


def recurrent(
    op: str,
    *,
    steps: int = 5,
    batch: int = 2,
    width: int = 3,
    hidden: int = 4,
    direction: str = "forward",
    bias: bool = True,
    initial: bool = True,
    lengths: tuple[int, ...] = (),
    peepholes: bool = False,
    **attrs: Any,
) -> NodeCase:
    """Return a recurrent node with constant weights."""
    d, g = 2 if direction == "bidirectional" else 1, _GATES[op]
    inputs: list[np.ndarray | None] = [
        rnd(steps, batch, width),
        rnd(d, g * hidden, width),
        rnd(d, g * hidden, hidden) * np.float32(hidden**-0.5),
    ]
    inputs.append(rnd(d, 2 * g * hidden) if bias else None)
    inputs.append(np.array(lengths, np.int32) if lengths else None)
    inputs.append(rnd(d, batch, hidden) if initial else None)
    if op == "LSTM":
        inputs.append(rnd(d, batch, hidden) if initial else None)
        inputs.append(rnd(d, 3 * hidden) if peepholes else None)
    while inputs[-1] is None:
        inputs.pop()
    return node(
        op,
        *inputs,
        fixed=(1, 2, 3, 7),
        outputs=3 if op == "LSTM" else 2,
        hidden_size=hidden,
        direction=direction,
        **attrs,
    )


def _forms(op: str) -> list[NodeCase]:
    directions = ("forward", "reverse", "bidirectional")
    cases = [
        recurrent(op, direction=d, bias=b, initial=i)
        for d, b, i in itertools.product(directions, (True, False), (True, False))
    ]
    cases += [recurrent(op, direction=d, lengths=(5, 2)) for d in directions]
    cases += [recurrent(op, hidden=h, batch=n, steps=t) for h, n, t in ((16, 1, 1), (33, 3, 7), (48, 1, 12), (8, 6, 3))]
    cases += [recurrent(op, clip=0.3)]
    return cases


def _special() -> list[NodeCase]:
    return [
        recurrent("LSTM", peepholes=True),
        recurrent("LSTM", peepholes=True, direction="bidirectional", lengths=(3, 5)),
        recurrent("LSTM", input_forget=1),
        recurrent("LSTM", activations=["HardSigmoid", "Softsign", "Relu"]),
        recurrent(
            "LSTM",
            activations=["Sigmoid", "Tanh", "Tanh", "HardSigmoid", "Tanh", "Softsign"],
            direction="bidirectional",
        ),
        recurrent("GRU", linear_before_reset=1),
        recurrent("GRU", linear_before_reset=1, direction="bidirectional", lengths=(5, 1)),
        recurrent("GRU", linear_before_reset=1, hidden=32, batch=3),
        recurrent("GRU", activations=["HardSigmoid", "Tanh"], activation_alpha=[0.3], activation_beta=[0.4]),
        recurrent("RNN", activations=["Relu"]),
        recurrent("RNN", activations=["Affine"], activation_alpha=[0.8], activation_beta=[0.1]),
        recurrent("RNN", activations=["LeakyRelu"], activation_alpha=[0.1]),
    ]


@pytest.mark.parametrize(
    "cases",
    [*(pytest.param(_forms(op), id=op) for op in _GATES), pytest.param(_special(), id="special")],
)
def test_every_form_equals_onnxruntime(cases: list[NodeCase]) -> None:
    wrong = compare(cases, 17)
    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong)


def test_weights_computed_at_run_time_are_refused() -> None:
    case = recurrent("LSTM")
    proto, _ = graph_of([NodeCase(case.op, case.inputs, (), 3, "", case.attrs)], 17)
    assert "computed at run time" in refusals(as_model(proto))["case0"]
