"""Repair: passes on the ONNX graph that leave a valid ONNX model, with static shapes wherever they can be known.

Each pass is one file with a `name` and `run(model) -> list of changes`. This room knows nothing of TVM.
"""

from tvmstack.graph.repair import PASSES, Pass, repair, tidy

__all__ = ["PASSES", "Pass", "repair", "tidy"]
