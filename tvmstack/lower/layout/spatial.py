"""Convolution and pooling: blocked layouts, weights packed with numpy at compile time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmstack._tvm import relax
from tvmstack.lower import kernels
from tvmstack.lower.algorithms import Site
from tvmstack.lower.layout.rewriter import Rewriter, Value, dtype_of, handles, shape_of
from tvmstack.lower.winograd import conv2d_winograd, winograd_weight

__all__ = ["pack_conv_weight"]

# Images of up to this many channels are read plain: the padding stage changes their layout on the way.
_FEW_CHANNELS = 4


def pack_conv_weight(weight: np.ndarray, ic: int, oc: int) -> np.ndarray:
    """(O, I, KH, KW) -> (ceil(O/oc), ceil(I/ic), KH, KW, ic, oc), padded with zeros to whole blocks."""
    o, i, kh, kw = weight.shape
    weight = np.pad(weight, ((0, -o % oc), (0, -i % ic), (0, 0), (0, 0)))
    blocks = weight.reshape(-(-o // oc), oc, -(-i // ic), ic, kh, kw)
    return np.ascontiguousarray(blocks.transpose(0, 2, 4, 5, 3, 1))


def _ints(values: Any) -> list[int]:
    return [int(v) for v in values]


def _four_pads(padding: Sequence[int]) -> list[int]:
    return list(padding) if len(padding) == 4 else [padding[0], padding[1], padding[0], padding[1]]


@handles("relax.nn.conv2d")
def conv2d(rewriter: Rewriter, call: Any) -> Value | None:
    """Turn a convolution with constant weights into a blocked kernel."""
    attrs, shape = call.attrs, shape_of(call)
    weight = rewriter.array(call.args[1])
    if weight is None or shape is None or str(attrs.data_layout) != "NCHW" or dtype_of(call) != dtype_of(call.args[0]):
        return None
    settings = {
        "strides": _ints(attrs.strides),
        "pads": _four_pads(_ints(attrs.padding)),
        "dilations": _ints(attrs.dilation),
    }
    return convolve(rewriter, rewriter.value(call.args[0]), weight, int(attrs.groups), settings, shape)


@handles("relax.nn.conv1d")
def conv1d(rewriter: Rewriter, call: Any) -> Value | None:
    """Run a one-dimensional convolution as a two-dimensional one of height 1."""
    attrs, shape = call.attrs, shape_of(call)
    weight = rewriter.array(call.args[1])
    if weight is None or shape is None or str(attrs.data_layout) != "NCW" or dtype_of(call) != dtype_of(call.args[0]):
        return None
    left, right = (_ints(attrs.padding) * 2)[:2]
    settings = {
        "strides": [1, *_ints(attrs.strides)],
        "pads": [0, left, 0, right],
        "dilations": [1, *_ints(attrs.dilation)],
    }
    value = rewriter.value(call.args[0])
    return convolve(rewriter, value, weight[:, :, None, :], int(attrs.groups), settings, shape)


def convolve(
    rewriter: Rewriter,
    value: Value,
    weight: np.ndarray,
    groups: int,
    settings: dict[str, list[int]],
    shape: tuple[int, ...],
) -> Value | None:
    """Emit the blocked convolution of `value` with a constant weight (O, I/groups, KH, KW) -> logical `shape`."""
    if value.nchw is None:
        return None
    channels, out = value.nchw[1], weight.shape[0]
    if value.nchw[3] == weight.shape[3] == 1 and value.nchw[2] > 1 and settings["pads"][1] == settings["pads"][3] == 0:
        return _lying(rewriter, value, weight, groups, settings, shape)
    if groups == channels == out and groups > 1:
        return _depthwise(rewriter, value, weight, settings, shape)
    site = _site(value.nchw, weight, groups, settings)
    algorithm = rewriter.pick(site) if site else "direct"
    name = f"{algorithm}_{site.text}" if site else None
    if site and algorithm != "direct":
        x, oc = rewriter.blocked(value), rewriter.best_block(out)
        tile, ic = int(algorithm[-1]), (shape_of(x) or ())[4]
        packed = relax.const(winograd_weight(weight, tile, ic, oc))
        made = rewriter.te(conv2d_winograd, x, packed, name=name, pads=list(site.pads), tile=tile)
        return Value(shape=shape, blocked=made)
    x, ic = _conv_input(rewriter, value, channels, groups)
    oc = rewriter.best_block(out) if groups == 1 else rewriter.group_block(out // groups)
    plain_block = ic if len(shape_of(x) or ()) == 4 else None
    packed = relax.const(pack_conv_weight(weight, ic, oc))
    options: dict[str, Any] = {"groups": groups, "channels": out, "plain_block": plain_block, **settings}
    made = rewriter.te(kernels.conv2d_nchwc, x, packed, name=name, **options)
    return Value(shape=shape, blocked=made)


def _lying(
    rewriter: Rewriter,
    value: Value,
    weight: np.ndarray,
    groups: int,
    settings: dict[str, list[int]],
    shape: tuple[int, ...],
) -> Value | None:
    """Convolve a picture one column wide as one of one row, along which tiles go."""
    n, c, h, _ = value.nchw or (0, 0, 0, 0)
    lying = Value(shape=(n, c, 1, h))
    if value.blocked is not None:
        lying.blocked = rewriter.reshape(value.blocked, (n, -(-c // value.block), 1, h, value.block))
    else:
        lying.plain = rewriter.reshape(rewriter.plain(value), (n, c, 1, h))
    top, _, bottom, _ = settings["pads"]
    turned = {
        "strides": settings["strides"][::-1],
        "dilations": settings["dilations"][::-1],
        "pads": [0, top, 0, bottom],
    }
    rows = shape[2]
    made = convolve(rewriter, lying, weight.transpose(0, 1, 3, 2), groups, turned, (n, shape[1], 1, rows))
    if made is None or made.blocked is None:
        return None
    blocks = -(-shape[1] // made.block)
    return Value(shape=shape, blocked=rewriter.reshape(made.blocked, (n, blocks, rows, 1, made.block)))


def _site(
    nchw: tuple[int, int, int, int], weight: np.ndarray, groups: int, settings: Mapping[str, Sequence[int]]
) -> Site | None:
    """Return the site of a convolution that Winograd can compute too."""
    filters, channels, *taps = weight.shape
    if taps != [3, 3] or groups != 1 or weight.dtype != np.float32 or min(channels, filters) <= _FEW_CHANNELS:
        return None
    if any(n != 1 for n in (*settings["strides"], *settings["dilations"])):
        return None
    top, left, bottom, right = settings["pads"]
    site = Site(*nchw, filters, (top, left, bottom, right))
    return site if min(site.out) >= 4 else None


def _depthwise(
    rewriter: Rewriter, value: Value, weight: np.ndarray, settings: dict[str, list[int]], shape: tuple[int, ...]
) -> Value:
    x = rewriter.blocked(value)
    block, channels = (shape_of(x) or ())[4], weight.shape[0]
    padded = np.pad(weight[:, 0], ((0, -channels % block), (0, 0), (0, 0)))
    packed = padded.reshape(-1, block, *weight.shape[2:]).transpose(0, 2, 3, 1)
    made = rewriter.te(kernels.depthwise_conv2d_nchwc, x, relax.const(np.ascontiguousarray(packed)), **settings)
    return Value(shape=shape, blocked=made)


def _conv_input(rewriter: Rewriter, value: Value, channels: int, groups: int) -> tuple[Any, int]:
    """Return the input in a form that the convolution can read, and its block."""
    assert value.nchw is not None
    if groups > 1:
        block = rewriter.group_block(channels // groups)
        return rewriter.blocked(value, block), block
    if value.blocked is None and channels <= _FEW_CHANNELS:
        return rewriter.reshape(rewriter.plain(value), value.nchw), channels
    x = rewriter.blocked(value)
    return x, (shape_of(x) or ())[4]


@handles("relax.nn.conv2d_transpose")
def conv2d_transpose(rewriter: Rewriter, call: Any) -> Value | None:
    """Run a transposed convolution as a convolution per output phase, then interleave the phases.

    Output o with o + pad = i * stride + k takes the taps k of phase (o + pad) mod stride only, so stride x stride
    convolutions with
    ceil(kernel / stride) taps, computed as one with that many times the channels, give every output (the
    "sub-pixel" form of     Shi et al., 2016).
    """
    attrs, shape = call.attrs, shape_of(call)
    weight = rewriter.array(call.args[1])
    value = rewriter.value(call.args[0])
    if weight is None or shape is None or value.nchw is None or len(shape) != 4 or str(attrs.data_layout) != "NCHW":
        return None
    if any(d != 1 for d in _ints(attrs.dilation)) or int(attrs.groups) != 1:
        return None
    strides, pads = _ints(attrs.strides), _four_pads(_ints(attrs.padding))
    return _phases(rewriter, value, weight, strides, pads, shape)


def _phases(
    rewriter: Rewriter,
    value: Value,
    weight: np.ndarray,
    strides: list[int],
    pads: list[int],
    shape: tuple[int, ...],
) -> Value | None:
    (sh, sw), (kh, kw) = strides, weight.shape[2:]
    channels, out = weight.shape[:2]
    th, tw = -(-kh // sh), -(-kw // sw)
    block = rewriter.best_block(out)
    stays_blocked = block == rewriter.lanes
    padded = -(-out // block) * block if stays_blocked else out
    full = np.zeros((channels, padded, th * sh, tw * sw), weight.dtype)
    full[:, :out, :kh, :kw] = weight
    # (I, O, th, sh, tw, sw) -> the phases outermost for whole blocks of channels, else innermost, then I, th, tw;
    # the taps reversed because convolution correlates
    order = (3, 5, 1, 0, 2, 4) if stays_blocked else (1, 3, 5, 0, 2, 4)
    phases = full.reshape(channels, padded, th, sh, tw, sw).transpose(*order)[..., ::-1, ::-1]
    merged = np.ascontiguousarray(phases.reshape(padded * sh * sw, channels, th, tw))
    _, _, h, w = value.nchw or (0, 0, 0, 0)
    rows, cols = h + th - 1, w + tw - 1
    settings = {"strides": [1, 1], "pads": [th - 1, tw - 1, th - 1, tw - 1], "dilations": [1, 1]}
    made = convolve(rewriter, value, merged, 1, settings, (shape[0], padded * sh * sw, rows, cols))
    if made is None:
        return None
    if stays_blocked:
        crop, size = (pads[0], pads[1]), shape[2:]
        woven = rewriter.te(kernels.interleave_nchwc, rewriter.blocked(made), (sh, sw), crop, size)
        return Value(shape=shape, blocked=woven)
    plain = rewriter.te(_interleave, rewriter.plain(made), out, (sh, sw), (pads[0], pads[1]), shape[2:])
    return Value(shape=shape, plain=plain)


def _interleave(x: Any, out: int, strides: tuple[int, int], crop: tuple[int, int], size: Sequence[int]) -> Any:
    """(N, out*sh*sw, H, W) -> (N, out, *size): output (y, x) is phase ((y + top) mod sh, (x + left) mod sw)."""
    from tvmstack._tvm import te, tirx

    (sh, sw), (top, left) = strides, crop
    n, _, rows, cols = (int(d) for d in x.shape)

    def value(b: Any, c: Any, y: Any, xx: Any) -> Any:
        py, px = y + top, xx + left
        item = x[b, (c * sh + py % sh) * sw + px % sw, py // sh, px // sw]
        inside = tirx.all(py // sh < rows, px // sw < cols)
        whole = (size[0] - 1 + top) // sh < rows and (size[1] - 1 + left) // sw < cols
        return item if whole else tirx.if_then_else(inside, item, tirx.const(0, x.dtype))

    return te.compute((n, out, size[0], size[1]), value, name="interleave")


@handles("relax.nn.max_pool2d", "relax.nn.avg_pool2d")
def pool2d(rewriter: Rewriter, call: Any) -> Value | None:
    """Pool in blocked form."""
    attrs, shape, value = call.attrs, shape_of(call), rewriter.value(call.args[0])
    if shape is None or value.nchw is None or str(attrs.layout) != "NCHW" or dtype_of(call) != "float32":
        return None
    kind = "max" if call.op.name.endswith("max_pool2d") else "average"
    made = rewriter.te(
        kernels.pool2d_nchwc,
        rewriter.blocked(value),
        kind=kind,
        kernel=_ints(attrs.pool_size),
        strides=_ints(attrs.strides),
        pads=_four_pads(_ints(attrs.padding)),
        dilations=_ints(attrs.dilation),
        out=shape[2:],
        count_include_pad=bool(attrs.count_include_pad),
    )
    return Value(shape=shape, blocked=made)


@handles("relax.nn.adaptive_avg_pool2d")
def adaptive_avg_pool2d(rewriter: Rewriter, call: Any) -> Value | None:
    """Average over the whole image in blocked form."""
    shape, value = shape_of(call), rewriter.value(call.args[0])
    if shape is None or value.nchw is None or shape[2:] != (1, 1) or dtype_of(call) != "float32":
        return None
    return Value(shape=shape, blocked=rewriter.te(kernels.spatial_mean_nchwc, rewriter.blocked(value)))


@handles("relax.mean", "relax.max")
def over_the_picture(rewriter: Rewriter, call: Any) -> Value | None:
    """Take the mean or the maximum of all rows and columns in blocked form; others stay plain."""
    value, shape = rewriter.value(call.args[0]), shape_of(call)
    if value.nchw is None or value.shape is None or call.attrs.axis is None or dtype_of(call) != "float32":
        return None
    rank = len(value.shape)
    axes = sorted(int(a) % rank for a in call.attrs.axis)
    if axes != list(range(2, rank)) or shape is None or (value.blocked is None and value.shape[1] < rewriter.lanes):
        return None
    kernel = kernels.spatial_mean_nchwc if call.op.name == "relax.mean" else kernels.spatial_max_nchwc
    kept = Value(shape=(*value.shape[:2], *[1] * (rank - 2)), blocked=rewriter.te(kernel, rewriter.blocked(value)))
    if bool(call.attrs.keepdims):
        return kept
    return Value(shape=shape, plain=rewriter.reshape(rewriter.plain(kept), shape))
