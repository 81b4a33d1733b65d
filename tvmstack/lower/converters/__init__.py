"""Converters from ONNX nodes to Relax, one file for each family of operators, and the table of all."""

from __future__ import annotations

from collections.abc import Mapping

from tvmstack.lower.converters import (
    convolution,
    elementwise,
    indexing,
    matmul,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    resize,
    sampling,
    shape,
)
from tvmstack.lower.converters._context import Context, Converter

__all__ = ["CONVERTERS", "Context", "Converter"]

_FAMILIES = (
    convolution,
    elementwise,
    indexing,
    matmul,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    resize,
    sampling,
    shape,
)

# (domain, operator) to the function that lowers it.
CONVERTERS: Mapping[tuple[str, str], Converter] = {
    key: value for family in _FAMILIES for key, value in family.CONVERTERS.items()
}
