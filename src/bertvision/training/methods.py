"""Which parameters of an encoder are fine-tuned (`finetune.method`): all of them, only the biases (BitFit: Ben Zaken et
al. 2022), or low-rank updates of the attention's queries and values (LoRA: Hu et al. 2022). "contrastive" trains all
weights, with another loss (contrastive.py). The output layer always trains.

    method = prepare_method(encoder, config, seed)        call this before creating the optimiser
    with method.merged(): encoder.save(folder)             saves a plain encoder with the updates in its weights
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bertvision.config import FinetuneConfig
from bertvision.encoder.encoder import Encoder
from bertvision.errors import UserError
from bertvision.machine import drawing_from

# Names of the query and value projections by model family; families not listed here use BERT's names.
BERT_PROJECTIONS = ("query", "value")
PROJECTIONS = {"distilbert": ("q_lin", "v_lin"), "mpnet": ("q", "v"), "deberta-v2": ("query_proj", "value_proj")}
ADAPTER = "default"
"""peft's default name for an adapter."""


class _Projection(NamedTuple):
    """A query or value projection and its position in the model."""

    parent: nn.Module
    name: str
    plain: nn.Linear
    updated: Any
    """The same projection with its update: a peft module."""


class Method:
    """An encoder prepared for one fine-tuning method."""

    def __init__(self, projections: Sequence[_Projection] = ()) -> None:
        self.projections = projections

    @contextlib.contextmanager
    def merged(self) -> Iterator[None]:
        """Inside this context, the encoder has its original modules and names, with the updates merged into its
        weights, so that it can be saved or used elsewhere. The weights must be in float32."""
        before = [projection.plain.weight.data for projection in self.projections]
        for projection in self.projections:
            projection.plain.weight.data = _merge(projection)
            setattr(projection.parent, projection.name, projection.plain)
        try:
            yield
        finally:
            # Restore the old weights: subtracting the update would round.
            for projection, weight in zip(self.projections, before, strict=True):
                projection.plain.weight.data = weight
                setattr(projection.parent, projection.name, projection.updated)


def check_method(encoder: Encoder, config: FinetuneConfig) -> None:
    """Raise UserError if the method does not apply to this encoder, or a package is missing."""
    if config.epochs == 0 or config.method in ("full", "contrastive"):
        return
    if config.method == "bitfit":
        if not any(_is_bias(name) for name, _ in encoder.model.named_parameters()):
            raise UserError(
                f"finetune.method = 'bitfit' trains an encoder's biases, but '{encoder.name}' "
                f"({encoder.model.config.model_type}) has none: set another method or another encoder.name."
            )
        return
    _find_projections(encoder)
    _import_peft()


def prepare_method(encoder: Encoder, config: FinetuneConfig, seed: int) -> Method:
    """Freeze the parameters that are not trained, and add LoRA updates if the method uses them. They are initialised
    from the seed and do not change the outputs yet."""
    check_method(encoder, config)
    if config.epochs == 0 or config.method in ("full", "contrastive"):
        return Method()
    if config.method == "bitfit":
        for name, weight in encoder.model.named_parameters():
            weight.requires_grad_(_is_bias(name))
        return Method()
    return Method(_add_updates(encoder, config, seed))


def _is_bias(name: str) -> bool:
    return name.endswith("bias")


def _add_updates(encoder: Encoder, config: FinetuneConfig, seed: int) -> list[_Projection]:
    peft, found = _import_peft(), _find_projections(encoder)
    settings = peft.LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=0.0,
        target_modules=list(_projections_of(encoder)),
    )
    with drawing_from(encoder.device, seed, 12):
        peft.inject_adapter_in_model(settings, encoder.model, ADAPTER)  # freezes everything else
    updated = [
        _Projection(parent, name, getattr(parent, name).base_layer, getattr(parent, name)) for parent, name in found
    ]
    learning = [weight for weight in encoder.model.parameters() if weight.requires_grad]
    assert len(learning) == 2 * len(updated), f"{len(learning)} trainable weights in {len(updated)} updates"
    return updated


def _projections_of(encoder: Encoder) -> tuple[str, str]:
    return PROJECTIONS.get(encoder.model.config.model_type, BERT_PROJECTIONS)


def _find_projections(encoder: Encoder) -> list[tuple[nn.Module, str]]:
    """The modules that contain a query or value projection, and its name in them."""
    wanted, family = _projections_of(encoder), encoder.model.config.model_type
    linear = [name for name, module in encoder.model.named_modules() if isinstance(module, nn.Linear)]
    names = [name.rpartition(".") for name in linear]
    missing = [name for name in wanted if name not in {last for _, _, last in names}]
    if missing:
        there = ", ".join(sorted({last for _, _, last in names}))
        raise UserError(
            f"finetune.method = 'lora' updates the linear modules {' and '.join(wanted)} of an encoder's attention, "
            f"but '{encoder.name}' ({family}) has no {' and no '.join(missing)}, only {there}: "
            "set another method or another encoder.name."
        )
    return [(encoder.model.get_submodule(parent), last) for parent, _, last in names if last in wanted]


def _import_peft() -> Any:
    try:
        import peft
    except ImportError:
        raise UserError(
            "finetune.method = 'lora' needs the package peft: pip install peft (or 'bertvision[lora]')."
        ) from None
    return peft


@torch.no_grad()
def _merge(projection: _Projection) -> Tensor:
    down, up = (part[ADAPTER].weight for part in (projection.updated.lora_A, projection.updated.lora_B))
    # (rank, input), (output, rank)
    assert projection.plain.weight.dtype == up.dtype == torch.float32, "can't merge half-precision weights"
    return projection.plain.weight.data + (up @ down) * projection.updated.scaling[ADAPTER]  # (output, input)
