"""From what a user has (a file, bytes, a ModelProto, a torch program) to a `Model`, and who could run its nodes.

This room knows nothing of TVM.
"""

from tvmstack.frontend.load import load_model, save_onnx
from tvmstack.frontend.scan import Answer, BackendAnswers, ScanReport, ScanRow, scan

__all__ = ["Answer", "BackendAnswers", "ScanReport", "ScanRow", "load_model", "save_onnx", "scan"]
