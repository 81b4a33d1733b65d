"""Which nodes the importer lowers, and why it refuses the others. Never imports TVM: `scan` asks this on any machine.

The rule: a node that passes is computed rightly for every input; a node whose attributes, types or run-time operands
are outside what the converters do rightly is refused with the reason, and runs in onnxruntime instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import onnx_ir

from tvmstack.core.verdict import Verdict

__all__ = ["SUPPORTED", "supported"]

# Returns the reason for a refusal, None where there is none.
Check: TypeAlias = Callable[[onnx_ir.Node, int], "str | None"]

_D = onnx_ir.DataType
_FLOATS = frozenset({_D.FLOAT, _D.FLOAT16, _D.DOUBLE})
_SIGNED = frozenset({_D.INT8, _D.INT16, _D.INT32, _D.INT64})
_UNSIGNED = frozenset({_D.UINT8, _D.UINT16, _D.UINT32, _D.UINT64})
_TYPES = _FLOATS | _SIGNED | _UNSIGNED | {_D.BOOL}
_PACKED = frozenset({_D.INT4, _D.UINT4})
# Counting ranks costs the square of a row's length.
_TOP_K_ROW = 256


def supported(node: onnx_ir.Node, opset: int) -> Verdict:
    """Say whether the importer lowers this node, and gives right values.

    Args:
        node: a node whose values carry shapes and types, as repair leaves them.
        opset: version of the operator set that the node belongs to.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    checks = SUPPORTED.get((domain, node.op_type))
    if checks is None:
        return Verdict.no(f"no lowering for {node.op_type}", "it runs in onnxruntime")
    for check in (_values, *checks):
        reason = check(node, opset)
        if reason:
            return Verdict.no(reason)
    return Verdict.yes()


def _is_constant(value: onnx_ir.Value | None) -> bool:
    if value is None:
        return False
    producer = value.producer()
    return value.const_value is not None or (producer is not None and producer.op_type == "Constant")


def _present(node: onnx_ir.Node, index: int) -> bool:
    return index < len(node.inputs) and node.inputs[index] is not None and node.inputs[index].name != ""


def _shape(value: onnx_ir.Value | None) -> tuple[int, ...] | None:
    if value is None or value.shape is None:
        return None
    dims = tuple(d for d in value.shape if isinstance(d, int))
    return dims if len(dims) == len(value.shape) else None


def _rank(node: onnx_ir.Node, index: int = 0) -> int:
    return len(_shape(node.inputs[index]) or ())


def _dtype(node: onnx_ir.Node, index: int = 0) -> onnx_ir.DataType | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else value.dtype


def _attr(node: onnx_ir.Node, name: str, default: Any = None) -> Any:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.value


def _values(node: onnx_ir.Node, opset: int) -> str | None:
    """Every value must be a tensor of a type TVM computes with, its shape known and not empty."""
    constants = [v for v in node.inputs if v is not None and v.name != "" and _is_constant(v)]
    computed = [v for v in node.inputs if v is not None and v.name != "" and not _is_constant(v)]
    for value in (*computed, *(v for v in node.outputs if v.name)):
        if value.dtype is None or not isinstance(value.type, (onnx_ir.TensorType, type(None))):
            return f"{value.name} has no known tensor type"
        if value.dtype not in _TYPES:
            return f"{value.name} is of type {value.dtype.name}"
        shape = _shape(value)
        if shape is None:
            return f"the shape of {value.name} depends on data or was not inferred"
        if 0 in shape:
            return f"{value.name} is empty, shape {shape}"
    for value in constants:
        if value.dtype is not None and value.dtype not in _TYPES | (
            _PACKED if node.op_type == "DequantizeLinear" else set()
        ):
            return f"{value.name} is of type {value.dtype.name}"
    return None


def _constant(*indices: int) -> Check:
    def check(node: onnx_ir.Node, opset: int) -> str | None:
        for index in indices:
            if _present(node, index) and not _is_constant(node.inputs[index]):
                return f"input {index} ({node.inputs[index].name}) is computed at run time"
        return None

    return check


def _constant_from(opset_from: int, *indices: int) -> Check:
    """Like `_constant`, for operators whose input was an attribute before."""
    inner = _constant(*indices)
    return lambda node, opset: inner(node, opset) if opset >= opset_from else None


def _absent(index: int, what: str) -> Check:
    return lambda node, opset: f"{what} is given" if _present(node, index) else None


def _types(allowed: frozenset[onnx_ir.DataType], index: int = 0) -> Check:
    def check(node: onnx_ir.Node, opset: int) -> str | None:
        dtype = _dtype(node, index)
        return None if dtype is None or dtype in allowed else f"{node.op_type} of {dtype.name} is not lowered"

    return check


def _spatial(low: int, high: int) -> Check:
    def check(node: onnx_ir.Node, opset: int) -> str | None:
        rank = _rank(node) - 2
        return None if low <= rank <= high else f"{rank} spatial axes"

    return check


def _outputs(count: int) -> Check:
    def check(node: onnx_ir.Node, opset: int) -> str | None:
        used = [v for v in node.outputs[count:] if v.name and (v.uses() or v.is_graph_output())]
        return f"output {used[0].name} is not computed" if used else None

    return check


def _only(name: str, default: object, *allowed: object) -> Check:
    def check(node: onnx_ir.Node, opset: int) -> str | None:
        value = _attr(node, name, default)
        return None if value in allowed else f"{name}={value}"

    return check


def _constant_value(node: onnx_ir.Node, opset: int) -> str | None:
    known = {"value", "value_float", "value_floats", "value_int", "value_ints"}
    return None if known & set(node.attributes) else f"given as {', '.join(node.attributes)}"


def _dropout(node: onnx_ir.Node, opset: int) -> str | None:
    if opset < 12:
        return "is_test=0" if opset < 7 and not _attr(node, "is_test", 0) else None
    value = node.inputs[2] if _present(node, 2) else None
    if value is None:
        return None
    known = onnx_ir.convenience.get_const_tensor(value)
    if known is None:
        return "training_mode is computed at run time"
    return "training_mode is on" if bool(known.numpy().reshape(-1)[0]) else None


def _batch_norm(node: onnx_ir.Node, opset: int) -> str | None:
    if _attr(node, "training_mode", 0):
        return "training_mode is on"
    if opset < 7 and not _attr(node, "is_test", 0):
        return "is_test=0"
    return "spatial=0" if opset < 9 and not _attr(node, "spatial", 1) else None


def _top_k(node: onnx_ir.Node, opset: int) -> str | None:
    shape = _shape(node.inputs[0]) or ()
    length = shape[int(_attr(node, "axis", -1))] if shape else 0
    if length > _TOP_K_ROW:
        return f"rows of {length}: onnxruntime sorts them faster"
    return None


def _stretched(node: onnx_ir.Node, opset: int) -> str | None:
    both = max(_attr(node, "strides", (1,))) > 1 and max(_attr(node, "dilations", (1,))) > 1
    return "strides together with dilations" if both else None


def _storage_order(node: onnx_ir.Node, opset: int) -> str | None:
    column_major = _attr(node, "storage_order", 0) and _outputs(1)(node, opset)
    return "column-major indices" if column_major else None


def _pad(node: onnx_ir.Node, opset: int) -> str | None:
    mode = _attr(node, "mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        return f"mode={mode}"
    return None


def _roi_align(node: onnx_ir.Node, opset: int) -> str | None:
    if int(_attr(node, "sampling_ratio", 0)) <= 0:
        return "the number of samples depends on data (sampling_ratio=0)"
    if _attr(node, "mode", "avg") != "avg":
        return "mode=max"
    return None


def _scatter(node: onnx_ir.Node, opset: int) -> str | None:
    if _dtype(node) == _D.BOOL:
        return "scattering bool"
    if _attr(node, "reduction", "none") != "none" and _dtype(node) == _D.FLOAT16:
        return "reduction in float16"
    return None


def _resize(node: onnx_ir.Node, opset: int) -> str | None:
    dtype = _dtype(node)
    mode = _attr(node, "mode", "nearest")
    if mode != "nearest" and dtype not in _FLOATS:
        return f"interpolating {dtype.name if dtype else 'unknown'} rounds in a way of its own"
    return None


def _recurrent(node: onnx_ir.Node, opset: int) -> str | None:
    for index, what in ((1, "W"), (2, "R"), (3, "B"), (7, "P")):
        if _present(node, index) and not _is_constant(node.inputs[index]):
            return f"the weights {what} are computed at run time"
    names = [str(n).lower() for n in (_attr(node, "activations", ()) or ())]
    unknown = set(names) - _ACTIVATIONS
    if unknown:
        return f"activation {sorted(unknown)[0]}"
    return None if _dtype(node) in (_D.FLOAT, _D.FLOAT16) else "only float32 and float16 are lowered"


_ACTIVATIONS = frozenset(
    {
        "affine",
        "elu",
        "hardsigmoid",
        "leakyrelu",
        "relu",
        "scaledtanh",
        "sigmoid",
        "softplus",
        "softsign",
        "tanh",
        "thresholdedrelu",
    }
)


_ATTENTION_ATTRIBUTES = frozenset(
    ["is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap", "softmax_precision"]
)


def _attention(node: onnx_ir.Node, opset: int) -> str | None:
    if _present(node, 4) or _present(node, 5) or _present(node, 6):
        return "a key-value cache"
    unknown = set(node.attributes) - _ATTENTION_ATTRIBUTES
    if unknown:
        return f"attribute {sorted(unknown)[0]}"
    if opset > 23 and _attr(node, "is_causal", 0):
        return "is_causal of opset 24"
    if _dtype(node, 3) == _D.BOOL:
        return "a boolean mask: what a fully masked row gives is onnxruntime's to say"
    if _attr(node, "qk_matmul_output_mode", 0):
        return "qk_matmul_output_mode"
    if _attr(node, "is_causal", 0):
        queries, keys = _shape(node.inputs[0]), _shape(node.inputs[1])
        if queries is None or keys is None or queries[-2] != keys[-2]:
            return "is_causal with keys and queries of different length"
    if _present(node, 3) and (_shape(node.inputs[3]) or (0,))[-1] != (_shape(node.inputs[1]) or (0, 0))[-2]:
        return "a mask shorter than the keys"
    return None


def _zero_point_axis(node: onnx_ir.Node, opset: int) -> str | None:
    """MatMulInteger and QLinearMatMul: zero points a row or a column, of plain matrices."""
    names = {"MatMulInteger": (2, 3), "QLinearMatMul": (1, 2, 4, 5, 6, 7)}[node.op_type]
    for index in names:
        shape = _shape(node.inputs[index]) if _present(node, index) else ()
        if shape is None or (len(shape) > 1) or (math.prod(shape) > 1 and (_rank(node) != 2 or index >= 6)):
            return f"input {index} has shape {shape}"
    if node.op_type == "QLinearMatMul" and any(
        math.prod(_shape(node.inputs[i]) or ()) > 1 for i in (1, 4) if _present(node, i)
    ):
        return "scales a row or a column"
    return None


def _linear_quantization(node: onnx_ir.Node, opset: int) -> str | None:
    shape, scale = _shape(node.inputs[0]) or (), _shape(node.inputs[1])
    if scale is None:
        return "the shape of the scale is unknown"
    if len(scale) > 1 and not _attr(node, "block_size", 0):
        return "a scale of several axes without block_size"
    if len(scale) == 1 and scale[0] > 1 and not shape:
        return "a scale with an axis on a scalar"
    if _attr(node, "precision", 0):
        return "precision is given"
    return None


def _quantize(node: onnx_ir.Node, opset: int) -> str | None:
    if _dtype(node) == _D.INT32:
        return "quantising int32"
    return None


def _cast(node: onnx_ir.Node, opset: int) -> str | None:
    source, target = _dtype(node), node.outputs[0].dtype
    if source is not None and target is not None and source in _FLOATS and target in _UNSIGNED - {_D.UINT8}:
        return f"{source.name} to {target.name} is undefined for negative values"
    return None


def _einsum(node: onnx_ir.Node, opset: int) -> str | None:
    return None if _dtype(node) in _FLOATS | {_D.INT32, _D.INT64} else "integers of other widths"


def _eye_like(node: onnx_ir.Node, opset: int) -> str | None:
    return None if _rank(node) == 2 else "only matrices"


def _depth(node: onnx_ir.Node, opset: int) -> str | None:
    return None if _rank(node) == 4 else f"rank {_rank(node)}"


def _same_types(node: onnx_ir.Node, opset: int) -> str | None:
    """Before opset 7 broadcasting was asked for by an attribute, along an axis."""
    return "broadcast along an axis (before opset 7)" if opset < 7 and _attr(node, "broadcast", 0) else None


def _split(node: onnx_ir.Node, opset: int) -> str | None:
    if opset < 13 and _present(node, 1):
        return "split as an input before opset 13"
    return None


def _layer_norm(node: onnx_ir.Node, opset: int) -> str | None:
    return None if int(_attr(node, "stash_type", 1)) == 1 else "stash_type other than float32"


def _gather_bounds(node: onnx_ir.Node, opset: int) -> str | None:
    return None if _rank(node) >= 1 else "gathering from a scalar"


def _row_softmax(node: onnx_ir.Node, opset: int) -> str | None:
    return None if _rank(node) >= 1 else "a scalar"


def _skip_norm(node: onnx_ir.Node, opset: int) -> str | None:
    if _shape(node.inputs[0]) != _shape(node.inputs[1]):
        return "a skip input that broadcasts"
    mean = [v for v in node.outputs[1:3] if v.name and v.uses()]
    return f"output {mean[0].name} (statistics) is not computed" if mean else None


def _fused_matmul(node: onnx_ir.Node, opset: int) -> str | None:
    return "transBatch" if _attr(node, "transBatchA", 0) or _attr(node, "transBatchB", 0) else None


_FLOAT_ONLY = (_types(_FLOATS),)
_ARITHMETIC = (_same_types,)
_REDUCE_18 = (_constant_from(18, 1),)

SUPPORTED: Mapping[tuple[str, str], tuple[Check, ...]] = {
    ("", "Abs"): (),
    ("", "Acos"): _FLOAT_ONLY,
    ("", "Acosh"): _FLOAT_ONLY,
    ("", "Add"): _ARITHMETIC,
    ("", "AffineGrid"): (_constant(1),),
    ("", "And"): _ARITHMETIC,
    ("", "ArgMax"): (),
    ("", "ArgMin"): (),
    ("", "Asin"): _FLOAT_ONLY,
    ("", "Asinh"): _FLOAT_ONLY,
    ("", "Atan"): _FLOAT_ONLY,
    ("", "Atanh"): _FLOAT_ONLY,
    ("", "Attention"): (_types(_FLOATS), _outputs(1), _attention),
    ("", "AveragePool"): (_types(_FLOATS), _spatial(1, 3)),
    ("", "BatchNormalization"): (_types(_FLOATS), _outputs(1), _batch_norm),
    ("", "BitShift"): (_types(_UNSIGNED),),
    ("", "BitwiseAnd"): (),
    ("", "BitwiseNot"): (),
    ("", "BitwiseOr"): (),
    ("", "BitwiseXor"): (),
    ("", "Cast"): (_cast,),
    ("", "CastLike"): (_cast,),
    ("", "Ceil"): _FLOAT_ONLY,
    ("", "Celu"): _FLOAT_ONLY,
    ("", "Clip"): (),
    ("", "Concat"): (),
    ("", "Constant"): (_constant_value,),
    ("", "ConstantOfShape"): (_constant(0),),
    ("", "Conv"): (_types(_FLOATS), _spatial(1, 3)),
    ("", "ConvInteger"): (_spatial(1, 2), _constant(1)),
    ("", "ConvTranspose"): (_types(_FLOATS), _spatial(1, 3), _constant(1), _stretched),
    ("", "Cos"): _FLOAT_ONLY,
    ("", "Cosh"): _FLOAT_ONLY,
    ("", "CumProd"): (_constant(1),),
    ("", "CumSum"): (_constant(1),),
    ("", "DepthToSpace"): (_depth,),
    ("", "DequantizeLinear"): (_linear_quantization,),
    ("", "Div"): _ARITHMETIC,
    ("", "Dropout"): (_dropout,),
    ("", "DynamicQuantizeLinear"): _FLOAT_ONLY,
    ("", "Einsum"): (_einsum,),
    ("", "Elu"): _FLOAT_ONLY,
    ("", "Equal"): _ARITHMETIC,
    ("", "Erf"): _FLOAT_ONLY,
    ("", "Exp"): _FLOAT_ONLY,
    ("", "Expand"): (),
    ("", "EyeLike"): (_eye_like,),
    ("", "Flatten"): (),
    ("", "Floor"): _FLOAT_ONLY,
    ("", "GRU"): (_recurrent,),
    ("", "Gather"): (_gather_bounds,),
    ("", "GatherElements"): (_gather_bounds,),
    ("", "GatherND"): (_gather_bounds,),
    ("", "Gelu"): _FLOAT_ONLY,
    ("", "Gemm"): (_same_types,),
    ("", "GlobalAveragePool"): (_types(_FLOATS),),
    ("", "GlobalLpPool"): (_types(_FLOATS),),
    ("", "GlobalMaxPool"): (_types(_FLOATS),),
    ("", "Greater"): _ARITHMETIC,
    ("", "GreaterOrEqual"): (),
    ("", "GridSample"): (_types(_FLOATS), _spatial(2, 3)),
    ("", "GroupNormalization"): (_types(_FLOATS),),
    ("", "HardSigmoid"): _FLOAT_ONLY,
    ("", "HardSwish"): _FLOAT_ONLY,
    ("", "Hardmax"): _FLOAT_ONLY,
    ("", "Identity"): (),
    ("", "InstanceNormalization"): (_types(_FLOATS),),
    ("", "IsInf"): _FLOAT_ONLY,
    ("", "IsNaN"): _FLOAT_ONLY,
    ("", "LRN"): (_types(_FLOATS),),
    ("", "LSTM"): (_recurrent,),
    ("", "LayerNormalization"): (_types(_FLOATS), _outputs(1), _layer_norm),
    ("", "LeakyRelu"): _FLOAT_ONLY,
    ("", "Less"): _ARITHMETIC,
    ("", "LessOrEqual"): (),
    ("", "Log"): _FLOAT_ONLY,
    ("", "LogSoftmax"): (_types(_FLOATS), _row_softmax),
    ("", "LpNormalization"): (_types(_FLOATS),),
    ("", "LpPool"): (_types(_FLOATS), _spatial(1, 3)),
    ("", "MatMul"): (),
    ("", "MatMulInteger"): (_zero_point_axis,),
    ("", "Max"): (),
    ("", "MaxPool"): (_types(_FLOATS | {_D.INT8, _D.UINT8}), _spatial(1, 3), _storage_order),
    ("", "MaxUnpool"): (_types(_FLOATS), _absent(2, "output_shape")),
    ("", "Mean"): _FLOAT_ONLY,
    ("", "Min"): (),
    ("", "Mish"): _FLOAT_ONLY,
    ("", "Mod"): (_types(_SIGNED | _UNSIGNED),),
    ("", "Mul"): _ARITHMETIC,
    ("", "Neg"): (),
    ("", "Not"): (),
    ("", "OneHot"): (_constant(1),),
    ("", "Or"): _ARITHMETIC,
    ("", "PRelu"): _FLOAT_ONLY,
    ("", "Pad"): (_constant_from(11, 1, 2, 3), _pad),
    ("", "Pow"): _ARITHMETIC,
    ("", "QLinearConv"): (_spatial(1, 2), _constant(3)),
    ("", "QLinearMatMul"): (_zero_point_axis,),
    ("", "QuantizeLinear"): (_linear_quantization, _quantize),
    ("", "RMSNormalization"): (_types(_FLOATS), _layer_norm),
    ("", "RNN"): (_recurrent,),
    ("", "Range"): (_constant(0, 1, 2),),
    ("", "Reciprocal"): _FLOAT_ONLY,
    ("", "ReduceL1"): _REDUCE_18,
    ("", "ReduceL2"): _REDUCE_18,
    ("", "ReduceLogSum"): _REDUCE_18,
    ("", "ReduceLogSumExp"): _REDUCE_18,
    ("", "ReduceMax"): _REDUCE_18,
    ("", "ReduceMean"): _REDUCE_18,
    ("", "ReduceMin"): _REDUCE_18,
    ("", "ReduceProd"): _REDUCE_18,
    ("", "ReduceSum"): (_constant_from(13, 1),),
    ("", "ReduceSumSquare"): _REDUCE_18,
    ("", "Relu"): (),
    ("", "Reshape"): (),
    ("", "Resize"): (_constant(1, 2, 3), _resize),
    ("", "ReverseSequence"): (),
    ("", "RoiAlign"): (_types(_FLOATS), _roi_align),
    ("", "Round"): _FLOAT_ONLY,
    ("", "Scatter"): (_scatter,),
    ("", "ScatterElements"): (_scatter,),
    ("", "ScatterND"): (_scatter,),
    ("", "Selu"): _FLOAT_ONLY,
    ("", "Shape"): (),
    ("", "Shrink"): _FLOAT_ONLY,
    ("", "Sigmoid"): _FLOAT_ONLY,
    ("", "Sign"): (),
    ("", "SimplifiedLayerNormalization"): (_types(_FLOATS), _outputs(1), _layer_norm),
    ("", "Sin"): _FLOAT_ONLY,
    ("", "Sinh"): _FLOAT_ONLY,
    ("", "Size"): (),
    ("", "Slice"): (_constant_from(10, 1, 2, 3, 4),),
    ("", "Softmax"): (_types(_FLOATS), _row_softmax),
    ("", "Softplus"): _FLOAT_ONLY,
    ("", "Softsign"): _FLOAT_ONLY,
    ("", "SpaceToDepth"): (_depth,),
    ("", "Split"): (_constant_from(13, 1), _split),
    ("", "Sqrt"): _FLOAT_ONLY,
    ("", "Squeeze"): (_constant_from(13, 1),),
    ("", "Sub"): _ARITHMETIC,
    ("", "Sum"): (),
    ("", "Swish"): _FLOAT_ONLY,
    ("", "Tan"): _FLOAT_ONLY,
    ("", "Tanh"): _FLOAT_ONLY,
    ("", "ThresholdedRelu"): _FLOAT_ONLY,
    ("", "Tile"): (_constant(1),),
    ("", "TopK"): (_constant_from(10, 1), _top_k),
    ("", "Transpose"): (),
    ("", "Trilu"): (_constant(1),),
    ("", "Unsqueeze"): (_constant_from(13, 1),),
    ("", "Upsample"): (_constant_from(9, 1), _resize),
    ("", "Where"): (),
    ("", "Xor"): _ARITHMETIC,
    ("com.microsoft", "BiasGelu"): _FLOAT_ONLY,
    ("com.microsoft", "FastGelu"): _FLOAT_ONLY,
    ("com.microsoft", "FusedMatMul"): (_types(_FLOATS), _fused_matmul),
    ("com.microsoft", "Gelu"): _FLOAT_ONLY,
    ("com.microsoft", "QuickGelu"): _FLOAT_ONLY,
    ("com.microsoft", "SkipLayerNormalization"): (_types(_FLOATS), _skip_norm),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): (_types(_FLOATS), _skip_norm),
}
