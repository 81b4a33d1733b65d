"""Code for ARM uses NEON: nothing is run here, the assembly is read."""

from __future__ import annotations

import re

import onnx
import pytest

from tests.conftest import attention, conv_block, mlp
from tvmstack import schedules
from tvmstack._tvm import tvm
from tvmstack.driver.steps import prepare

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("model", "templates"),
    [
        (conv_block(channels=32), {"conv2d_nchwc", "depthwise_nchwc"}),
        (attention(16, 64), {"dense", "attention", "norm_out"}),
        (mlp(8, 64), {"dense"}),
    ],
    ids=["cnn", "transformer", "mlp"],
)
def test_multiply_adds_are_done_four_at_a_time(model: onnx.ModelProto, templates: set[str]) -> None:
    prepared = prepare(model, None, "cpu:cortex-a72", (), None)
    seen = set()
    for kernel in prepared.lowered.kernels:
        if kernel.template in templates:
            scheduled = schedules.apply(
                kernel.func, schedules.default_choice(kernel.func, prepared.device), prepared.device
            )
            code = tvm.compile(scheduled, target=tvm.target.Target(prepared.device.target())).mod.inspect_source("asm")
            vector, scalar = (len(re.findall(pattern, str(code))) for pattern in (r"\sfmla\s+v", r"\sfmadd\s+s"))
            assert vector > 10 * scalar, kernel.name
            seen.add(kernel.template)
    assert seen == templates
