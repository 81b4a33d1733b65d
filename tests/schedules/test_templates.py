"""Every template gives numpy's values at awkward sizes, by default and under other decisions."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from tvmstack import schedules
from tvmstack._tvm import te, topi, tvm
from tvmstack.core.device import Device, detect_device
from tvmstack.core.errors import TuningError
from tvmstack.core.kernel import Choice
from tvmstack.lower import kernels
from tvmstack.lower.layout.matmul import pack_dense_weight
from tvmstack.lower.layout.spatial import pack_conv_weight
from tvmstack.lower.winograd import conv2d_winograd, transforms, winograd_weight

pytestmark = pytest.mark.cpu
DEVICE = detect_device()
LANES = DEVICE.vector_bits // 32


def placeholder(name, shape):
    return te.placeholder(shape, name=name)


def run(args, out, arrays, choice=None, device: Device = DEVICE):
    func = te.create_prim_func([*args, out]).with_attr("global_symbol", "kernel")
    scheduled = schedules.apply(func, choice or schedules.default_choice(func, device), device)
    library = tvm.compile(scheduled, target=tvm.target.Target(device.target()))
    result = tvm.runtime.tensor(np.full([int(d) for d in out.shape], np.nan, "float32"))
    library["kernel"](*[tvm.runtime.tensor(np.ascontiguousarray(a)) for a in arrays], result)
    return func, result.numpy()


def random_array(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def other_choices(func, count=3):
    """Return some choices of the space other than the default, those that are illegal left out."""
    space = schedules.space(func, DEVICE)
    every = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    random.Random(1).shuffle(every)
    found = []
    for decisions in every:
        choice = Choice(schedules.template_name(func), decisions)
        size = int(np.prod([v for k, v in decisions.items() if k in ("oh", "ow", "oc", "m", "n")]))
        if size > 32:
            continue
        try:
            schedules.apply(func, choice, DEVICE)
        except TuningError:
            continue
        found.append(choice)
        if len(found) == count:
            break
    return found


def conv_reference(x, w, stride, pads, dilation, groups):
    n, _, h, wd = x.shape
    o, per_group, kh, kw = w.shape
    padded = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3]))).astype("float64")
    oh = (h + pads[0] + pads[2] - dilation * (kh - 1) - 1) // stride + 1
    ow = (wd + pads[1] + pads[3] - dilation * (kw - 1) - 1) // stride + 1
    out = np.zeros((n, o, oh, ow))
    for g in range(groups):
        outs = slice(g * o // groups, (g + 1) * o // groups)
        part = padded[:, g * per_group : (g + 1) * per_group]
        for y, xx in itertools.product(range(kh), range(kw)):
            window = part[:, :, y * dilation :, xx * dilation :][:, :, : oh * stride : stride, : ow * stride : stride]
            out[:, outs] += np.einsum("nchw,oc->nohw", window, w[outs, :, y, xx])
    return out


def unblock(y, channels):
    n, co, h, w, c = y.shape
    return y.transpose(0, 1, 4, 2, 3).reshape(n, co * c, h, w)[:, :channels]


CONVOLUTIONS = [
    # channels, size, out, kernel, stride, pads, dilation, groups, ic, oc
    (16, (14, 14), 32, 3, 1, (1, 1, 1, 1), 1, 1, 16, 16),
    (3, (23, 17), 24, 7, 2, (3, 3, 3, 3), 1, 1, None, 16),
    (8, (1, 37), 12, 1, 1, (0, 0, 0, 0), 1, 1, 8, 16),
    (24, (13, 19), 40, 3, 2, (0, 1, 1, 0), 1, 1, 8, 8),
    (16, (11, 29), 16, 3, 1, (2, 2, 2, 2), 2, 2, 8, 8),
    (5, (7, 7), 7, 5, 3, (1, 0, 2, 1), 1, 1, 5, 8),
    (64, (1, 1), 16, 1, 1, (0, 0, 0, 0), 1, 1, 16, 16),
    (4, (9, 61), 1, 3, 1, (1, 1, 1, 1), 1, 1, 4, 1),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda c: f"{c[0]}x{c[1][0]}x{c[1][1]}-{c[2]}-k{c[3]}s{c[4]}g{c[7]}")
def test_convolution_equals_numpy_under_any_decision(case):
    channels, size, out, kernel, stride, pads, dilation, groups, ic, oc = case
    x, w = random_array(1, channels, *size), random_array(out, channels // groups, kernel, kernel, seed=1)
    shape = (1, channels, *size) if ic is None else (1, channels // ic, *size, ic)
    data = x if ic is None else x.reshape(1, channels // ic, ic, *size).transpose(0, 1, 3, 4, 2)
    weight = pack_conv_weight(w, ic or channels, oc)
    px, pw = placeholder("x", shape), placeholder("w", weight.shape)
    settings = {"strides": [stride] * 2, "pads": pads, "dilations": [dilation] * 2, "groups": groups, "channels": out}
    conv = kernels.conv2d_nchwc(px, pw, plain_block=channels if ic is None else None, **settings)
    result = te.compute(conv.shape, lambda *i: te.max(conv(*i), 0.0), name="relu")
    expected = np.maximum(conv_reference(x, w, stride, pads, dilation, groups), 0)
    func, got = run([px, pw], result, [data, weight])
    np.testing.assert_allclose(unblock(got, out), expected, atol=1e-3)
    for choice in other_choices(func):
        _, got = run([px, pw], result, [data, weight], choice)
        np.testing.assert_allclose(unblock(got, out), expected, atol=1e-3, err_msg=choice.text)


WINOGRAD = [
    # batch, channels, size, out, pads, ic, oc
    (1, 32, (14, 14), 48, (1, 1, 1, 1), 16, 16),
    (2, 16, (9, 23), 16, (1, 1, 1, 1), 8, 16),
    (1, 8, (7, 7), 8, (0, 0, 0, 0), 8, 8),
    (3, 16, (5, 6), 32, (0, 1, 2, 1), 16, 16),
    (1, 16, (29, 4), 16, (2, 2, 2, 2), 16, 8),
]


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("case", WINOGRAD, ids=lambda c: f"{c[0]}x{c[1]}x{c[2][0]}x{c[2][1]}-{c[3]}")
def test_winograd_equals_direct_convolution_under_any_decision(case, tile):
    batch, channels, size, out, pads, ic, oc = case
    x, w = random_array(batch, channels, *size), random_array(out, channels, 3, 3, seed=1)
    data = x.reshape(batch, channels // ic, ic, *size).transpose(0, 1, 3, 4, 2)
    weight = winograd_weight(w, tile, ic, oc)
    px, pw = placeholder("x", data.shape), placeholder("w", weight.shape)
    conv = conv2d_winograd(px, pw, pads=pads, tile=tile)
    result = te.compute(conv.shape, lambda *i: te.max(conv(*i), 0.0), name="relu")
    expected = np.maximum(conv_reference(x, w, 1, pads, 1, 1), 0)
    func, got = run([px, pw], result, [data, weight])
    assert schedules.default_choice(func, DEVICE).template == "winograd"
    bound = 2e-5 * np.abs(expected).max()
    np.testing.assert_allclose(unblock(got, out), expected, atol=bound)
    for choice in other_choices(func, 4):
        _, got = run([px, pw], result, [data, weight], choice)
        np.testing.assert_allclose(unblock(got, out), expected, atol=bound, err_msg=choice.text)


@pytest.mark.parametrize("tile", [2, 4])
def test_the_transforms_are_exact_in_exact_arithmetic(tile):
    at, g, bt = transforms(tile)
    rng = np.random.default_rng(0)
    for _ in range(10):
        d, w = rng.integers(-8, 8, tile + 2).astype(float), rng.integers(-8, 8, 3).astype(float)
        np.testing.assert_allclose(at @ ((g @ w) * (bt @ d)), np.correlate(d, w, "valid"), atol=1e-10)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pads"),
    [((14, 14), 3, 1, 1), ((15, 37), 5, 2, 2), ((1, 8), 1, 1, 0), ((9, 7), 3, 2, 0)],
)
def test_depthwise_convolution_equals_numpy(size, kernel, stride, pads):
    channels, block = 24, 8
    x, w = random_array(1, channels, *size), random_array(channels, 1, kernel, kernel, seed=1)
    data = x.reshape(1, channels // block, block, *size).transpose(0, 1, 3, 4, 2)
    weight = np.ascontiguousarray(w.reshape(channels // block, block, kernel, kernel).transpose(0, 2, 3, 1))
    px, pw = placeholder("x", data.shape), placeholder("w", weight.shape)
    out = kernels.depthwise_conv2d_nchwc(px, pw, strides=[stride] * 2, pads=[pads] * 4, dilations=[1, 1])
    expected = conv_reference(x, w, stride, [pads] * 4, 1, channels)
    func, got = run([px, pw], out, [data, weight])
    np.testing.assert_allclose(unblock(got, channels), expected, atol=1e-3)
    for choice in other_choices(func):
        _, got = run([px, pw], out, [data, weight], choice)
        np.testing.assert_allclose(unblock(got, channels), expected, atol=1e-3, err_msg=choice.text)


@pytest.mark.parametrize(
    ("m", "k", "n", "panel"),
    [(1, 7, 16, 16), (197, 24, 48, 16), (37, 1, 40, 16), (5, 33, 30, 16), (19, 8, 6625, 16), (128, 64, 1, 1)],
)
def test_dense_with_an_epilogue_equals_numpy(m, k, n, panel):
    x, w, b = random_array(m, k), random_array(k, n, seed=1), random_array(n, seed=2)
    packed = pack_dense_weight(w, panel)
    px, pw, pb = placeholder("x", x.shape), placeholder("w", packed.shape), placeholder("b", b.shape)
    product = kernels.dense(px, pw, n)
    out = te.compute((m, n), lambda i, j: te.max(product[i, j] + pb[j], 0.0), name="bias_relu")
    expected = np.maximum(x.astype("float64") @ w + b, 0)
    func, got = run([px, pw, pb], out, [x, packed, b])
    np.testing.assert_allclose(got, expected, atol=1e-3)
    for choice in other_choices(func):
        _, got = run([px, pw, pb], out, [x, packed, b], choice)
        np.testing.assert_allclose(got, expected, atol=1e-3, err_msg=choice.text)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("bx", "by", "m", "k", "n"), [(3, 3, 19, 8, 23), (1, 2, 1, 5, 16), (4, 1, 7, 3, 1), (2, 2, 64, 16, 32)]
)
def test_batched_product_equals_numpy(bx, by, m, k, n, transposed):
    x, y = random_array(bx, m, k), random_array(by, k, n, seed=1)
    second = y.transpose(0, 2, 1) if transposed else y
    px, py = placeholder("x", x.shape), placeholder("y", second.shape)
    out = kernels.batch_matmul(px, py, lanes=min(LANES, n), transposed=transposed)
    _, got = run([px, py], out, [x, second])
    np.testing.assert_allclose(got, x.astype("float64") @ y, atol=1e-3)


@pytest.mark.parametrize(("rows", "length"), [(1, 1), (7, 16), (3, 19), (40, 197), (2, 15), (64, 768)])
def test_softmax_and_layer_norm_equal_numpy(rows, length):
    x, g, b = random_array(rows, length) * 8 + 100, random_array(length, seed=1), random_array(length, seed=2)
    px, pg, pb = placeholder("x", x.shape), placeholder("g", g.shape), placeholder("b", b.shape)
    wide = x.astype("float64")
    shifted = np.exp(wide - wide.max(1, keepdims=True))
    _, got = run([px], kernels.softmax(px, lanes=LANES), [x])
    np.testing.assert_allclose(got, shifted / shifted.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)
    _, got = run([px], kernels.softmax(px, lanes=LANES, log=True), [x])
    np.testing.assert_allclose(got, np.log(shifted / shifted.sum(1, keepdims=True)), atol=1e-4)
    _, got = run([px, pg, pb], kernels.layer_norm(px, pg, pb, epsilon=1e-5, lanes=LANES), [x, g, b])
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * g + b
    np.testing.assert_allclose(got, expected, atol=1e-3)


@pytest.mark.parametrize("shape", [(1, 4, 7), (3, 16, 256), (2, 1, 33), (1, 5, 2), (1, 16, 1)])
def test_softmax_over_a_middle_axis_equals_numpy(shape):
    x = random_array(*shape) * 5
    px = placeholder("x", shape)
    _, got = run([px], kernels.softmax_strided(px), [x])
    wide = np.exp(x.astype("float64"))
    np.testing.assert_allclose(got, wide / wide.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("b", "h", "m", "n", "d", "e", "mask"),
    [
        (12, 1, 16, 16, 8, 8, (1, 1, 1, 16)),
        (1, 3, 197, 197, 64, 64, None),
        (2, 3, 19, 35, 24, 17, (2, 1, 1, 35)),
        (2, 2, 5, 64, 16, 40, (1, 2, 5, 64)),
        (1, 1, 2, 2, 2, 2, (1, 1, 2, 2)),
    ],
)
def test_attention_equals_numpy(b, h, m, n, d, e, mask):
    q, k, v = random_array(b, m, h, d), random_array(b, n, h, d, seed=1), random_array(b, n, h, e, seed=2)
    added = np.zeros((1, 1, 1, n)) if mask is None else random_array(*mask, seed=3)
    args = [placeholder(c, a.shape) for c, a in zip("qkv", (q, k, v), strict=True)]
    pm = placeholder("m", mask) if mask else None
    out = kernels.attention(*args, pm, scale=0.3, lanes=LANES)
    scores = np.einsum("bmhd,bnhd->bhmn", q, k).astype("float64") * 0.3 + added
    share = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("bhmn,bnhe->bmhe", share / share.sum(-1, keepdims=True), v)
    inputs, arrays = [*args, *([pm] if mask else [])], [q, k, v, *([added.astype("float32")] if mask else [])]
    func, got = run(inputs, out, arrays)
    np.testing.assert_allclose(got, expected, atol=1e-4)
    for choice in other_choices(func, 2):
        _, got = run(inputs, out, arrays, choice)
        np.testing.assert_allclose(got, expected, atol=1e-4, err_msg=choice.text)


@pytest.mark.parametrize("kind", ["max", "average"])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pads", "include"),
    [((14, 14), 3, 2, (1, 1, 1, 1), False), ((9, 5), 2, 1, (0, 0, 1, 1), True), ((7, 7), 7, 1, (0, 0, 0, 0), False)],
)
def test_pooling_equals_numpy(kind, size, kernel, stride, pads, include):
    x = random_array(1, 16, *size)
    oh, ow = ((s + pads[i] + pads[i + 2] - kernel) // stride + 1 for i, s in enumerate(size))
    fill = -np.inf if kind == "max" else (0.0 if include else np.nan)
    padded = np.pad(x.astype("float64"), ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])), constant_values=fill)
    reduce = np.max if kind == "max" else np.nanmean
    expected = np.stack(
        [
            [
                reduce(padded[:, :, y * stride : y * stride + kernel, c * stride : c * stride + kernel], axis=(2, 3))
                for c in range(ow)
            ]
            for y in range(oh)
        ]
    ).transpose(2, 3, 0, 1)
    data = x.reshape(1, 2, 8, *size).transpose(0, 1, 3, 4, 2)
    px = placeholder("x", data.shape)
    out = kernels.pool2d_nchwc(
        px,
        kind=kind,
        kernel=[kernel] * 2,
        strides=[stride] * 2,
        pads=pads,
        dilations=[1, 1],
        out=(oh, ow),
        count_include_pad=include,
    )
    _, got = run([px], out, [data])
    np.testing.assert_allclose(unblock(got, 16), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concatenation_equals_numpy(axis):
    shapes = [[4, 5, 6], [4, 5, 6], [4, 5, 6]]
    for i, shape in enumerate(shapes):
        shape[axis] = 3 + 2 * i
    arrays = [random_array(*s, seed=i) for i, s in enumerate(shapes)]
    args = [placeholder(f"p{i}", s) for i, s in enumerate(shapes)]
    _, got = run(args, kernels.concat(*args, axis=axis), arrays)
    np.testing.assert_array_equal(got, np.concatenate(arrays, axis))


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((64, 33), 1), ((4, 640), 1), ((640, 4), 0), ((8, 16, 64), (1, 2)), ((300,), 0), ((128, 256), (0, 1))],
)
@pytest.mark.parametrize("op", ["sum", "max"])
def test_plain_reductions_equal_numpy(shape, axis, op):
    x = random_array(*shape)
    px = placeholder("x", shape)
    out = getattr(topi, op)(px, axis=axis)
    _, got = run([px], out, [x])
    np.testing.assert_allclose(got, getattr(np, op)(x.astype("float64"), axis=axis), rtol=1e-4, atol=1e-4)


def test_the_same_kernel_can_be_scheduled_twice():
    px = placeholder("x", (1, 2, 8, 8, 16))
    func = te.create_prim_func([px, kernels.spatial_mean_nchwc(px)]).with_attr("global_symbol", "kernel")
    before = func.script()
    first = schedules.apply(func, schedules.default_choice(func, DEVICE), DEVICE).script()
    assert schedules.apply(func, schedules.default_choice(func, DEVICE), DEVICE).script() == first
    assert func.script() == before


def test_a_choice_of_another_template_is_refused():
    px = placeholder("x", (4, 4))
    func = te.create_prim_func([px, topi.nn.relu(px)]).with_attr("global_symbol", "kernel")
    with pytest.raises(TuningError, match="does not serve this kernel"):
        schedules.apply(func, Choice("dense", {"m": 1}), DEVICE)
