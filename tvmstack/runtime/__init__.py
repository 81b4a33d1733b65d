"""Load an artifact and run it. Never imports the compiler, onnx or, unless a region needs it, onnxruntime."""

from tvmstack.runtime.session import KernelTime, Session, load

__all__ = ["KernelTime", "Session", "load"]
