"""What runs a region inside an artifact: one engine for each vendor's runtime, looked up by the name in the manifest.

An engine is opened by a function `open_engine(blob, row, threads)`; a stranger's package names its own in the
entry-point group `tvmstack.engines`:

    [project.entry-points."tvmstack.engines"]
    toy_npu = "toy_npu.engine:open_engine"

`row` is the region's row in the manifest: "digest", "target", "versions", "options", "engine_inputs" and
"engine_outputs" (names in the order of the arrays), "inputs" and "outputs" (their dtypes and shapes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tvmstack.core.errors import SetupError, TvmstackError, UsageError
from tvmstack.core.plugins import Plugins
from tvmstack.runtime.engines.native import find_native_engine
from tvmstack.runtime.engines.native import open_engine as native_engine

__all__ = ["GROUP", "Engine", "engine_names", "open_engine"]

GROUP = "tvmstack.engines"
_PLUGINS = Plugins(
    "engine",
    GROUP,
    {
        "onnxruntime": "tvmstack.runtime.engines.onnxruntime:open_engine",
        "openvino": "tvmstack.runtime.engines.openvino:open_engine",
        "qnn": "tvmstack.runtime.engines.qnn:open_engine",
        "tensorrt": "tvmstack.runtime.engines.tensorrt:open_engine",
    },
)


class Engine(Protocol):
    """A region, opened. `run` may be called from several threads at once."""

    def run(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return the outputs, in order; neither may they change later, nor may the inputs be kept or written to."""
        ...

    def close(self) -> None:
        """Give back what the vendor's runtime holds; nothing runs afterwards."""
        ...


def engine_names() -> tuple[str, ...]:
    """Return the names of all engines; nothing is imported."""
    return _PLUGINS.names()


def open_engine(blob: bytes, row: Mapping[str, Any], threads: int) -> Engine:
    """Open a region with the engine that its row names.

    Raises:
        SetupError: this machine has no such engine, or its vendor's runtime is missing, of another version, or refuses
            the blob.
    """
    name, digest = str(row["engine"]), row["digest"]
    if not name:
        raise SetupError(
            f"region {digest} was compiled by {row['backend']} for {row['target']} and runs only where that is"
        )
    try:
        opener = native_engine if name not in engine_names() and find_native_engine(name) else _PLUGINS.load(name)
    except UsageError as err:
        raise SetupError(f"region {digest} needs an engine that is not installed: {err}") from err
    try:
        return opener(blob, row, threads)
    except TvmstackError:
        raise
    except Exception as err:  # the border to a vendor's runtime, which may raise anything
        words = (str(err).strip() or type(err).__name__).splitlines()[0]
        raise SetupError(f"engine {name} cannot open region {digest}: {words}") from err
