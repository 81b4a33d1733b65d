"""ONNX to scheduled TIR to a shared library. Knows nothing of tuning or of the store."""
