"""Export a model or a kit as one ONNX graph, which bertvision-runtime runs without torch."""
