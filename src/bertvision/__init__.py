"""BERTVision: very small heads on the hidden states of every layer of a BERT, all trained in one pass.

    import bertvision as bv
    run = bv.run(task="rte", encoder="bert-base-uncased", heads=["learned_pooling", "adapter"])

Public names (Task, Features, Encoder, HiddenStates, Source, Head, Predictions, Run …) are imported on first use. So
`import bertvision` is fast, and `bertvision --help` needs no torch.
"""

from bertvision.waiting import wait_passively

TYPE_CHECKING = False  # importing `typing` would take longer than everything else here
if TYPE_CHECKING:
    from typing import Any

wait_passively()  # before anything here imports torch

__version__ = "0.1.0"

_MODULES = {
    "run": "bertvision.api",
    "Run": "bertvision.api",
    "RunConfig": "bertvision.config",
    "load_config": "bertvision.config",
    "UserError": "bertvision.errors",
    "Task": "bertvision.tasks",
    "TaskConfig": "bertvision.tasks",
    "Example": "bertvision.tasks",
    "KINDS": "bertvision.kinds",
    "Kind": "bertvision.kinds",
    "build_task": "bertvision.tasks",
    "Features": "bertvision.data.windows",
    "build_features": "bertvision.data.windows",
    "Encoder": "bertvision.encoder.encoder",
    "load_encoder": "bertvision.encoder.loading",
    "HiddenStates": "bertvision.encoder.states",
    "PackedTokens": "bertvision.encoder.states",
    "Source": "bertvision.sources",
    "StreamedSource": "bertvision.sources",
    "MemorySource": "bertvision.sources",
    "Store": "bertvision.sources",
    "StoredSource": "bertvision.sources",
    "HEADS": "bertvision.heads",
    "Head": "bertvision.heads",
    "HeadConfig": "bertvision.heads",
    "Target": "bertvision.heads",
    "Predictions": "bertvision.kinds",
    "Result": "bertvision.kinds",
    "Predictor": "bertvision.pipeline.predict",
    "Kit": "bertvision.kits.kit",
    "fit": "bertvision.api",
    "Model": "bertvision.models.model",
    "load": "bertvision.models.model",
    "Classifier": "bertvision.models.estimators",
    "Regressor": "bertvision.models.estimators",
    "LayerFeatures": "bertvision.models.layer_features",
    "cluster": "bertvision.cluster",
}
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> "Any":
    import importlib

    if name not in _MODULES:
        raise AttributeError(f"module 'bertvision' has no attribute '{name}'")
    module = importlib.import_module(_MODULES[name])
    return module if _MODULES[name] == f"{__name__}.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
