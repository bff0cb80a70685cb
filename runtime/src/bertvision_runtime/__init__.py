"""Predict with exported models and kits: numpy, tokenizers and onnxruntime, no torch.

model = bertvision_runtime.load("my_export")
model.predict("A fine film.").to_dict()
"""

from bertvision_runtime.answers import Label, Result, Score, Span
from bertvision_runtime.folder import ExportError, is_export
from bertvision_runtime.model import Kit, Model, load

__version__ = "0.1.0"
__all__ = ["ExportError", "Kit", "Label", "Model", "Result", "Score", "Span", "__version__", "is_export", "load"]
