"""The layers of a transformers model: found, listened to, compiled."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertvision.encoder.attention import PACKED_TYPES


def find_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The model's layers, first to last; none where its family is not known to keep them in one list."""
    if model.config.model_type not in PACKED_TYPES:
        return []
    count = model.config.num_hidden_layers
    lists = [list(part) for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) == count]
    return lists[0] if len(lists) == 1 else []


class Listener:
    """Takes what goes into the first layer and what comes out of each, as `output_hidden_states` would.

    That would leave hooks in the attention too, and a layer with hooks inside can't be compiled as a whole.
    """

    def __init__(self, layers: list[nn.Module]) -> None:
        self.found: list[Tensor] | None = None
        layers[0].register_forward_pre_hook(self._take_input, with_kwargs=True)
        for layer in layers:
            layer.register_forward_hook(self._take_output)

    def run(self, model: PreTrainedModel, inputs: dict[str, Any]) -> tuple[Any, list[Tensor]]:
        """The model's output, and the states before the first and after each layer."""
        self.found = []
        try:
            output = model(**inputs)
            return output, self.found
        finally:
            self.found = None

    def _take_input(self, _: nn.Module, given: tuple[Tensor, ...], named: dict[str, Any]) -> None:
        if self.found is not None:
            self.found.append(given[0] if given else named["hidden_states"])

    def _take_output(self, _: nn.Module, __: Any, output: Tensor | tuple[Tensor, ...]) -> None:
        if self.found is not None:
            self.found.append(output[0] if isinstance(output, tuple) else output)


def compile_layers(layers: list[nn.Module]) -> None:
    """Each layer's forward, and its backward, as a few fused kernels. Sizes are left open: the first call pays for all
    lengths and all layers, and nothing is compiled again on the way. Where it fails, layers run as they are."""
    for layer in layers:
        layer.forward = _CompiledForward(layer)


class _CompiledForward:
    def __init__(self, layer: nn.Module) -> None:
        self.layer, self.compiled = layer, torch.compile(layer.forward, dynamic=True)

    def __call__(self, *given: Any, **named: Any) -> Any:
        from torch._dynamo.exc import TorchDynamoException

        try:
            return self.compiled(*given, **named)
        except TorchDynamoException as error:
            reason = str(error).strip().splitlines()[0][:200]
            warnings.warn(f"a layer could not be compiled and runs as it is: {reason}", stacklevel=2)
            restore_layers([self.layer])
            return self.layer.forward(*given, **named)


def restore_layers(layers: list[nn.Module]) -> None:
    """Layers as they were before `compile_layers`."""
    for layer in layers:
        layer.__dict__.pop("forward", None)
