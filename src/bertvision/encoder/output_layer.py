"""The encoder's own output layer: trained in fine-tuning, and used for the "encoder alone" row of every table.

    layer = build_output_layer(SPAN, encoder.shape, outputs=2)
    logits = layer(encoder(tokens, keep=layer.keep))

Several that read differently train together as `OutputLayers`; one of them is kept.
`load_output_layer` loads the output layer of a checkpoint that is already fine-tuned.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling

from bertvision.disk import as_form, damaged, load_shapes, load_tensors, read_json, save_tensors
from bertvision.disk.forms import Facts, Layer, Name, Share, Width
from bertvision.encoder.loading import BUILD_ERRORS, check_sizes, load_config, load_weights, refuse_missing
from bertvision.encoder.states import HiddenStates, Part, StateShape
from bertvision.errors import UserError
from bertvision.kinds import KINDS, Kind, kind_in

OutputPart = Literal["tokens", "pooled", "cls", "mean", "max"]

WEIGHTS, CONFIG = "output_layer.safetensors", "output_layer.json"
_KEEP: dict[str, Part] = {"tokens": "last", "pooled": "cls", "cls": "cls", "mean": "mean", "max": "max"}


class OutputLayer(nn.Module):
    """Logits from the last states: `(token, 2)` for spans, `(sequence, outputs)` for labels and scores."""

    def __init__(
        self,
        kind: Kind,
        reads: OutputPart,
        hidden: int,
        outputs: int,
        dropout: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        assert (kind.position == "token") == (reads == "tokens"), f"a {kind} is predicted per {kind.position}"
        self.kind = kind
        self.reads = reads
        self.labels: tuple[str, ...] | None = None
        # BERT has dropout before its classifier, but not before its span layer (Devlin et al. 2019).
        self.dropout = nn.Dropout(0.0 if kind.position == "token" else dropout)
        self.linear = nn.Linear(hidden, outputs)
        with torch.no_grad():
            nn.init.normal_(self.linear.weight, std=0.02, generator=generator)
            self.linear.bias.zero_()

    @property
    def keep(self) -> tuple[Part, ...]:
        """The parts of the states that the encoder must return."""
        return (_KEEP[self.reads],)

    def forward(self, states: HiddenStates) -> Tensor:
        logits: Tensor = self.linear(self.dropout(_cast(_read(states, self.reads), self.linear.weight)))
        return logits  # (token, 2) or (sequence, outputs)

    def save(self, folder: str | Path) -> None:
        """Write weights and config; `restore_output_layer` reads them back."""
        linear = self.linear
        config = {
            "form": "linear",
            "kind": str(self.kind),
            "reads": self.reads,
            "hidden": linear.in_features,
            "outputs": linear.out_features,
            "dropout": self.dropout.p,
        }
        _write(folder, config, self)


class OutputLayers(nn.Module):
    """Output layers that read the states in different ways, by `finetune.read`. They train together."""

    def __init__(self, layers: dict[str, OutputLayer]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self.keep: tuple[Part, ...] = tuple(sorted({part for layer in layers.values() for part in layer.keep}))
        """The parts of the states that the encoder must return."""

    def forward(self, states: HiddenStates) -> Tensor:
        return torch.stack([layer(states) for layer in self.layers.values()])  # (layer, sequence, output)


class CheckpointOutputLayer(nn.Module):
    """The output layer of a fine-tuned checkpoint of any model family, applied to precomputed states.

    It is the checkpoint's own class with the encoder replaced by a module that returns the given states. Everything
    after the encoder (dense layers, activations, dropout) is the family's own code.
    """

    def __init__(self, kind: Kind, model: PreTrainedModel) -> None:
        super().__init__()
        self.kind = kind
        self.reads: OutputPart = _checkpoint_reads(kind, model)
        self.labels: tuple[str, ...] | None = _label_names(model.config) if kind.has_labels else None
        setattr(model, model.base_model_prefix, _GivenStates(pooled=self.reads == "pooled"))
        self.model = model
        self.register_buffer("index", None, persistent=False)  # (label) `order` on the device
        self.order: list[int] | None = None
        """For each of the task's labels, its index in the checkpoint; None: the order is the same."""

    def match_labels(self, labels: Sequence[str]) -> bool:
        """Reorder the outputs to the task's labels. Return False, and change nothing, if the label names differ."""
        own = [name.lower() for name in self.labels or ()]
        wanted = [name.lower() for name in labels]
        if sorted(own) != sorted(wanted) or len(set(own)) < len(own):
            return False
        self.take_order([own.index(name) for name in wanted])
        return True

    def take_order(self, order: list[int] | None) -> None:
        self.order = None if order == sorted(order or ()) else order
        self.index = None if self.order is None else torch.tensor(self.order, device=self._weight().device)

    @property
    def keep(self) -> tuple[Part, ...]:
        return (_KEEP[self.reads],)

    def forward(self, states: HiddenStates) -> Tensor:
        if self.kind.reads_answers:
            output = self.model(inputs_embeds=_cast(states.last_tokens, self._weight()).unsqueeze(0))
            return torch.stack([output.start_logits[0], output.end_logits[0]], dim=1)  # (token, 2)
        read = _cast(_read(states, self.reads), self._weight())  # (token or sequence, hidden)
        if self.kind.position == "token":
            logits: Tensor = self.model(inputs_embeds=read.unsqueeze(0)).logits[0]  # (token, outputs)
        else:
            logits = self.model(inputs_embeds=read.unsqueeze(1)).logits  # (sequence, outputs)
        return logits if self.index is None else logits.index_select(1, self.index)  # (token or sequence, outputs)

    def save(self, folder: str | Path) -> None:
        """Write weights and config; `restore_output_layer` reads them back."""
        config = {"form": "checkpoint", "kind": str(self.kind), "order": self.order}
        config["model"] = json.loads(self.model.config.to_json_string())
        _write(folder, config, self)

    def _weight(self) -> Tensor:
        return next(self.parameters())


class _GivenStates(nn.Module):
    """Replaces the encoder: returns its input embeddings as the last states, and as the pooled output if wanted."""

    def __init__(self, pooled: bool) -> None:
        super().__init__()
        self.pooled = pooled

    def forward(self, *_: Any, inputs_embeds: Any, **__: Any) -> BaseModelOutput | BaseModelOutputWithPooling:
        if self.pooled:
            return BaseModelOutputWithPooling(last_hidden_state=inputs_embeds, pooler_output=inputs_embeds[:, 0])
        return BaseModelOutput(last_hidden_state=inputs_embeds)


def build_output_layer(
    kind: Kind,
    shape: StateShape,
    outputs: int,
    reads: OutputPart | None = None,
    generator: torch.Generator | None = None,
) -> OutputLayer:
    """Build a new output layer. By default labels and scores read the pooled output, or [CLS] if the encoder has no
    pooler."""
    if kind.position == "token":
        reads = "tokens"
    elif reads is None:
        reads = "pooled" if shape.pooled else "cls"
    assert reads != "pooled" or shape.pooled, "this encoder has no pooled output"
    return OutputLayer(kind, reads, shape.hidden, outputs, generator=generator)


def load_output_layer(name: str, kind: Kind, labels: int) -> CheckpointOutputLayer | None:
    """Load the checkpoint's own output layer; None if it has none for this kind of target and number of labels.

    The layer's `labels` are the checkpoint's names in the checkpoint's order: call `match_labels` before comparing.
    """
    config = load_config(name)
    if not any(architecture.endswith(kind.checkpoint) for architecture in config.architectures or ()):
        return None
    if not kind.reads_answers and config.num_labels != kind.output_count(labels):
        return None
    model, missing = load_weights(name, _class_for(kind), config, torch.float32)
    refuse_missing(name, missing)
    return CheckpointOutputLayer(kind, model).eval()


class OutputFile(TypedDict):
    """output_layer.json. Each form of output layer has more."""

    form: Literal["linear", "checkpoint"]
    kind: Name


class LinearFile(TypedDict):
    form: Literal["linear"]
    kind: Name
    reads: OutputPart
    hidden: Width
    outputs: Width
    dropout: Share


class CheckpointFile(TypedDict):
    form: Literal["checkpoint"]
    kind: Name
    order: NotRequired[list[Layer] | None]
    model: Facts
    """The checkpoint's config.json."""


def read_output_file(folder: str | Path) -> LinearFile | CheckpointFile | None:
    """The contents of output_layer.json; None if there is none."""
    path = Path(folder) / CONFIG
    found = read_json(path, Facts)
    if found is None:
        return None
    try:
        form = as_form(found, OutputFile)["form"]
        kind_in(path, found["kind"])
        return as_form(found, LinearFile) if form == "linear" else as_form(found, CheckpointFile)
    except ValueError as error:
        raise damaged(path, error) from None


def restore_output_layer(folder: str | Path) -> OutputLayer | CheckpointOutputLayer:
    """Load an output layer that `save` wrote."""
    config, path = read_output_file(folder), Path(folder) / WEIGHTS
    if config is None or not path.is_file():
        missing = WEIGHTS if config else CONFIG
        raise UserError(f"no output layer in {folder}: {missing} is missing.")
    there = load_shapes(path)
    try:
        with torch.device("meta"):  # without memory first: the sizes may be anything
            outline = _build(config)
        if {name: tuple(one.shape) for name, one in outline.state_dict().items()} != there:
            raise ValueError(f"its weights are not those of the layer in {CONFIG}")
        return _restore(config, load_tensors(path))
    except UserError:
        raise
    except (AssertionError, ValueError, *BUILD_ERRORS) as error:
        raise damaged(path, str(error)[:200]) from None


def _build(config: LinearFile | CheckpointFile) -> OutputLayer | CheckpointOutputLayer:
    kind = KINDS[config["kind"]]
    if config["form"] == "linear":
        return OutputLayer(kind, config["reads"], config["hidden"], config["outputs"], config["dropout"])
    check_sizes(config["model"])
    model_config = AutoConfig.for_model(**config["model"])
    with torch.device("meta"):
        model = _class_for(kind).from_config(model_config)
    return CheckpointOutputLayer(kind, model)


def _restore(config: LinearFile | CheckpointFile, weights: dict[str, Tensor]) -> OutputLayer | CheckpointOutputLayer:
    layer = _build(config)
    layer.load_state_dict(weights, assign=True)
    if isinstance(layer, CheckpointOutputLayer) and config["form"] == "checkpoint":
        order = config.get("order")
        if order is not None and sorted(order) != list(range(len(layer.labels or ()))):
            raise ValueError("order: expected each label once")
        layer.take_order(order)
    return layer.eval()


def _read(states: HiddenStates, reads: OutputPart) -> Tensor:
    if reads == "tokens":
        return states.last_tokens  # (token, hidden)
    if reads == "pooled":
        return states.pooled_output  # (sequence, hidden)
    return states.last_cls if reads == "cls" else states.read(reads)[:, -1]  # (sequence, hidden)


def _cast(values: Tensor, weight: Tensor) -> Tensor:
    """Cast states to the layer's dtype; under autocast, torch casts them."""
    return values if torch.is_autocast_enabled(values.device.type) else values.to(weight.dtype)


def _class_for(kind: Kind) -> Any:
    """The transformers class of a checkpoint with an output layer for this kind."""
    return getattr(transformers, f"AutoModel{kind.checkpoint}")


def _checkpoint_reads(kind: Kind, model: PreTrainedModel) -> OutputPart:
    if kind.position == "token":
        return "tokens"
    if getattr(model.base_model, "pooler", None) is not None:
        return "pooled"
    return "mean" if getattr(model.config, "classifier_pooling", "cls") == "mean" else "cls"


def _label_names(config: PretrainedConfig) -> tuple[str, ...]:
    names: dict[Any, str] = dict(config.id2label or {})
    return tuple(str(names[index]) for index in range(len(names)))


def _write(folder: str | Path, config: dict[str, Any], layer: nn.Module) -> None:
    folder = Path(folder)
    weights = {name: weight.detach().cpu().contiguous() for name, weight in layer.state_dict().items()}
    save_tensors(folder / WEIGHTS, weights)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
