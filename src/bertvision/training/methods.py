"""What of an encoder learns in fine-tuning (`finetune.method`): all of it, its biases alone (BitFit: Ben Zaken et al.
2022), or low-rank updates of its attention's queries and values (LoRA: Hu et al. 2022). The output layer always learns.

    method = prepare_method(encoder, config, seed)        before its weights are given to an optimiser
    with method.merged(): encoder.save(folder)             an encoder like any other: updates are in its weights
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

# What a family calls the projections that make queries and values; one that is not named here calls them as BERT does.
BERT_PROJECTIONS = ("query", "value")
PROJECTIONS = {"distilbert": ("q_lin", "v_lin"), "mpnet": ("q", "v"), "deberta-v2": ("query_proj", "value_proj")}
ADAPTER = "default"
"""peft's name for updates that were given none."""


class _Projection(NamedTuple):
    """Where a projection stands in the model."""

    parent: nn.Module
    name: str
    plain: nn.Linear
    updated: Any
    """The same projection and its update, a module of peft's."""


class Method:
    """An encoder that was prepared to learn in one way."""

    def __init__(self, projections: Sequence[_Projection] = ()) -> None:
        self.projections = projections

    @contextlib.contextmanager
    def merged(self) -> Iterator[None]:
        """Inside, the encoder is a plain one, in its modules and their names, with the updates in its weights, which
        must be those in float32: to be saved or used elsewhere."""
        before = [projection.plain.weight.data for projection in self.projections]
        for projection in self.projections:
            projection.plain.weight.data = _merge(projection)
            setattr(projection.parent, projection.name, projection.plain)
        try:
            yield
        finally:
            # The old weights, not the difference: subtracting would round.
            for projection, weight in zip(self.projections, before, strict=True):
                projection.plain.weight.data = weight
                setattr(projection.parent, projection.name, projection.updated)


def check_method(encoder: Encoder, config: FinetuneConfig) -> None:
    """Raises UserError where the encoder has nothing that could learn in this way, or a package is missing."""
    if config.epochs == 0 or config.method == "full":
        return
    if config.method == "bitfit":
        if not any(_is_bias(name) for name, _ in encoder.model.named_parameters()):
            raise UserError(
                f"finetune.method = 'bitfit' trains an encoder's biases, and '{encoder.name}' "
                f"({encoder.model.config.model_type}) has none: set another method, or give another encoder.name."
            )
        return
    _find_projections(encoder)
    _import_peft()


def prepare_method(encoder: Encoder, config: FinetuneConfig, seed: int) -> Method:
    """Freezes what does not learn and adds what learns besides; the first updates are drawn from the seed and change
    nothing yet."""
    check_method(encoder, config)
    if config.epochs == 0 or config.method == "full":
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
        peft.inject_adapter_in_model(settings, encoder.model, ADAPTER)  # all else is frozen
    updated = [
        _Projection(parent, name, getattr(parent, name).base_layer, getattr(parent, name)) for parent, name in found
    ]
    learning = [weight for weight in encoder.model.parameters() if weight.requires_grad]
    assert len(learning) == 2 * len(updated), f"{len(learning)} weights of {len(updated)} updates learn"
    return updated


def _projections_of(encoder: Encoder) -> tuple[str, str]:
    return PROJECTIONS.get(encoder.model.config.model_type, BERT_PROJECTIONS)


def _find_projections(encoder: Encoder) -> list[tuple[nn.Module, str]]:
    """The modules that hold a projection of queries or values, and its name there."""
    wanted, family = _projections_of(encoder), encoder.model.config.model_type
    linear = [name for name, module in encoder.model.named_modules() if isinstance(module, nn.Linear)]
    names = [name.rpartition(".") for name in linear]
    missing = [name for name in wanted if name not in {last for _, _, last in names}]
    if missing:
        there = ", ".join(sorted({last for _, _, last in names}))
        raise UserError(
            f"finetune.method = 'lora' updates the linear modules {' and '.join(wanted)} of an encoder's attention, "
            f"and '{encoder.name}' ({family}) has no {' and no '.join(missing)}, only {there}: "
            "set another method, or give another encoder.name."
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
    assert projection.plain.weight.dtype == up.dtype == torch.float32, "half-precision weights are not merged"
    return projection.plain.weight.data + (up @ down) * projection.updated.scaling[ADAPTER]  # (output, input)
