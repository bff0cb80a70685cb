"""Any Hugging Face encoder behind one call: packed tokens in, hidden states of every layer out.

    states = encoder(tokens, keep=("cls",))

Layer 0 is the embedding output. The last layer is the model's `last_hidden_state`, which includes a final norm
(ModernBERT). With `layers`, the encoder returns the states of those layers only.
"""

import contextlib
import logging
import warnings
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers import logging as transformers_logging

from bertvision.encoder.attention import LOOPED, VARLEN, register, varlen_obstacle
from bertvision.encoder.states import POOLED, HiddenStates, PackedTokens, Packing, Part, StateShape, pad_batches
from bertvision.errors import UserError, suggest

DEFAULT_KEEP: tuple[Part, ...] = ("tokens",)

# Model types whose classes pass extra keyword arguments on to the attention function. Others (MPNet, DeBERTa) silently
# ignore an unknown attention function, so that sequences would attend to each other.
PACKED_TYPES = frozenset({"bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "modernbert"})

# Largest allowed difference between the packed and the padded route: the mean over tokens of |difference| / |state|.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.05}


class Route(NamedTuple):
    """How sequences are run through the encoder, "varlen", "looped" or "padded", and why."""

    name: str
    reason: str


class Encoder(nn.Module):
    """A loaded encoder. Gradients flow through it unless the caller disables them or freezes the weights."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        name: str = "",
        attention: str = "auto",
        padded_tokens: int | None = None,
        layers: Sequence[int] | None = None,
    ) -> None:
        """`padded_tokens` limits the size of a padded micro-batch; None means 2,048 on a CPU and 65,536 elsewhere.
        `layers` lists the layers to return and must include the last one; None means all."""
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.padded_tokens = padded_tokens
        pooled = getattr(model, "pooler", None) is not None
        self.model_layers = model.config.num_hidden_layers + 1
        self.layers = choose_layers(layers, self.model_layers, name)
        self.shape = StateShape(len(self.layers), model.config.hidden_size, pooled)
        self.position_offset, self.max_length = _positions(model)
        self.has_types = has_types(model)
        self._own_attention = model.config._attn_implementation
        self._model_layers = find_layers(model)
        self._listener = Listener(self._model_layers) if self._model_layers else None
        self.compiled = False
        self.raw: list[Tensor] | None = None
        """If this is a list, each call appends the layers to it as the model returned them: (row, slot, hidden)."""
        self.route_reason = ""
        self.take_route(attention)
        self.train(model.training)

    @property
    def device(self) -> torch.device:
        return self.model.device

    def take_route(self, attention: str = "auto", dtype: torch.dtype | None = None) -> Route:
        """Choose the route. Under autocast, `dtype` is the autocast dtype."""
        route = choose_route(self.model.config, self.device, dtype or self.model.dtype, attention)
        self.route, self.route_reason = route
        own = {"varlen": VARLEN, "looped": LOOPED, "padded": self._own_attention}[route.name]
        if own != self.model.config._attn_implementation:
            register()
            self.model.set_attn_implementation(own)
            assert self.model.config._attn_implementation == own, f"{self.name} did not accept the attention {own}"
        return route

    def forward(self, batch: PackedTokens, keep: Collection[Part] = DEFAULT_KEEP) -> HiddenStates:
        """Return the states of a batch. Only the parts in `keep` are built."""
        if self.max_length is not None and batch.longest > self.max_length:
            raise UserError(
                f"{self.name or 'the encoder'} takes at most {self.max_length} tokens, but one text has "
                f"{batch.longest}: set data.max_length to {self.max_length} or less."
            )
        batch = batch if batch.device == self.device else batch.to(self.device)
        return self._forward_padded(batch, keep) if self.route == "padded" else self._forward_packed(batch, keep)

    @property
    def pad_id(self) -> int:
        return self.model.config.pad_token_id or 0

    @cached_property
    def work(self) -> int:
        """Approximate operations per token: two for each weight of the layers."""
        return 2 * sum(weight.numel() for layer in self._model_layers for weight in layer.parameters())

    def compile_layers(self) -> bool:
        """Compile the layers if they run unpadded, and return whether they were compiled. The first batch then takes
        a few seconds longer."""
        self.compiled = self.route == "varlen" and bool(self._model_layers)
        if self.compiled:
            compile_layers(self._model_layers)
        return self.compiled

    def save(self, folder: str | Path) -> None:
        """Save in Hugging Face format (config.json, safetensors, tokenizer files), for `AutoModel` to load."""
        with quiet_transformers():
            self.model.save_pretrained(folder)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)

    def _forward_packed(self, batch: PackedTokens, keep: Collection[Part]) -> HiddenStates:
        inputs = {
            "input_ids": batch.input_ids.unsqueeze(0),  # (1, token)
            "position_ids": (batch.position_ids + self.position_offset).unsqueeze(0),  # (1, token)
            "packed_bounds": batch.packing.bounds,
            "packed_longest": batch.longest,
        }
        layers, _ = self._run(inputs, batch.type_ids.unsqueeze(0), keep)  # each (token, hidden)
        pooled = None
        if self.shape.pooled and "cls" in keep:
            first = layers[-1].index_select(0, batch.packing.starts)  # (sequence, hidden)
            pooler: Any = self.model.pooler
            pooled = pooler(first.unsqueeze(1))  # (sequence, hidden)
        return _collect(layers, batch.lengths, batch.packing, batch.packing.starts, None, pooled, keep)

    def _forward_padded(self, batch: PackedTokens, keep: Collection[Part]) -> HiddenStates:
        budget = self.padded_tokens or (2048 if self.device.type == "cpu" else 65536)
        chunks, rows, sources = [], [], []
        for chunk in pad_batches(batch.lengths, budget):
            source, mask, real = (part.to(self.device, non_blocking=True) for part in chunk[1:])
            inputs = {
                "input_ids": batch.input_ids[source].masked_fill(~mask, self.pad_id),  # (row, longest)
                "attention_mask": mask.long(),  # (row, longest)
            }
            layers, pooled = self._run(inputs, batch.type_ids[source].masked_fill(~mask, 0), keep)
            lengths = batch.lengths[chunk.rows]  # (row,)
            firsts = torch.arange(len(lengths), device=self.device) * mask.shape[1]  # (row,)
            packing = Packing.of(lengths, self.device)
            chunks.append(_collect(layers, lengths, packing, firsts, real, pooled, keep))
            rows.append(chunk.rows)
            sources.append(chunk.source.flatten()[chunk.real])  # (token of the chunk,)
        return _restore(chunks, torch.cat(rows).argsort(), torch.cat(sources).argsort(), batch)

    def _run(
        self, inputs: dict[str, Any], type_ids: Tensor, keep: Collection[Part]
    ) -> tuple[list[Tensor], Tensor | None]:
        """Call the model once. Return the requested layers, each `(slot, hidden)`, and the pooled output per row."""
        if self.has_types:
            inputs = {**inputs, "token_type_ids": type_ids}
        inner = self.layers[:-1] if set(keep) != {"last"} else ()
        found: Sequence[Tensor] = ()  # each (row, slot, hidden)
        if self._listener is not None and inner:
            output, found = self._listener.run(self.model, inputs)
        else:
            output = self.model(**inputs, output_hidden_states=bool(inner))
            found = output.hidden_states if inner else ()
        last = output.last_hidden_state  # (row, slot, hidden)
        assert not inner or len(found) == self.model_layers, f"{self.name} returned {len(found)} states"
        layers = [*(found[layer] for layer in inner), last]
        if self.raw is not None:
            self.raw.extend(layers)
        flat = [layer.flatten(0, 1).to(last.dtype) for layer in layers]  # each (slot, hidden)
        return flat, output.pooler_output if self.shape.pooled else None


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide transformers' progress bars and load report. If loading fails, the report is shown.

    Weights missing from a checkpoint appear in the report, but the caller checks them anyway: a missing pooler is fine,
    everything else is an error. Download bars and all other messages are untouched.
    """
    logger, reports = logging.getLogger("transformers.modeling_utils"), []

    def hold_report(record: logging.LogRecord) -> bool:
        is_report = "LOAD REPORT" in record.getMessage()
        reports.extend([record] * is_report)
        return not is_report

    set_hook = getattr(transformers_logging, "set_tqdm_hook", lambda _: None)
    previous = set_hook(lambda build, given, named: build(*given, **{**named, "disable": True}))
    logger.addFilter(hold_report)
    try:
        yield
    except Exception:
        logger.removeFilter(hold_report)
        for record in reports:
            logger.handle(record)
        raise
    finally:
        logger.removeFilter(hold_report)
        set_hook(previous)


def choose_layers(wanted: Sequence[int] | None, count: int, name: str = "") -> tuple[int, ...]:
    """Return the wanted layers of a model with `count` layers, numbered from 0. Raise UserError if they do not fit."""
    if wanted is None:
        return tuple(range(count))
    found = tuple(layer + count if layer < 0 else layer for layer in wanted)
    missing = [str(layer) for layer in wanted if not -count <= layer < count]
    twice = [str(layer) for layer in sorted(set(found)) if found.count(layer) > 1]
    if missing:
        problem = f"there is no layer {', '.join(missing)}"
    elif twice:
        problem = f"layer {', '.join(twice)} is listed twice"
    elif list(found) != sorted(found):
        problem = f"list the layers in ascending order, {sorted(found)}"
    elif count - 1 not in found:
        problem = "add -1, the last layer: the control, a head's `skip` and the encoder's own output layer read it"
    else:
        return found
    raise UserError(
        f"encoder.layers = {list(wanted)} does not fit {name or 'this encoder'}: {problem}. "
        f"It has layers 0 (embeddings) to {count - 1} (the last, also -1)."
    )


# ---------------------------------------------------------------------- routes


def choose_route(
    config: PretrainedConfig, device: torch.device | str, dtype: torch.dtype, wanted: str = "auto"
) -> Route:
    """Choose the route that the model, device and dtype support. `dtype` is the dtype of the computation: under
    autocast, the autocast dtype."""
    if wanted not in ("auto", "varlen", "looped", "padded"):
        raise UserError(f"encoder.attention: {suggest(wanted, ('auto', 'varlen', 'looped', 'padded'))}")
    if wanted == "padded":
        return Route("padded", "requested")
    obstacle = None
    if config.model_type not in PACKED_TYPES:
        obstacle = f"'{config.model_type}' models use their own attention code"
    elif wanted != "looped":
        obstacle = _kernel_obstacle(config, torch.device(device), dtype)
    if obstacle is None:
        return Route("looped", "requested") if wanted == "looped" else Route("varlen", "no padding is computed")
    if wanted == "auto":
        return Route("padded", obstacle)
    raise UserError(f"encoder.attention = '{wanted}' is not possible: {obstacle}. Use 'auto' or 'padded'.")


def _kernel_obstacle(config: PretrainedConfig, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why the variable-length kernel cannot run for an encoder, or None if it can."""
    if device.type != "cuda":
        return f"variable-length attention needs CUDA, but the device is {device.type}"
    head_size = config.hidden_size // config.num_attention_heads
    return varlen_obstacle(device, dtype, head_size, getattr(config, "sliding_window", None) is not None)


class RouteError(RuntimeError):
    """The packed and the padded route return different states."""


@torch.no_grad()
def check_route(encoder: Encoder, batch: PackedTokens) -> float:
    """Compare the packed route with the padded one on a few sequences; raise if they differ by more than rounding.

    Return the largest mean relative difference over the layers, or 0 on the padded route.
    """
    if encoder.route == "padded":
        return 0.0
    route, reason, training = encoder.route, encoder.route_reason, encoder.training
    encoder.eval()
    try:
        packed = encoder(batch, keep=("tokens",)).read("tokens").float()  # (token, layer, hidden)
        encoder.take_route("padded")
        padded = encoder(batch, keep=("tokens",)).read("tokens").float()  # (token, layer, hidden)
    finally:
        encoder.train(training)
        compute = torch.get_autocast_dtype(encoder.device.type) if _autocast(encoder) else encoder.model.dtype
        encoder.take_route(route, compute)
        encoder.route_reason = reason
    difference = ((packed - padded).norm(dim=-1) / padded.norm(dim=-1).clamp_min(1e-6)).mean(dim=0).max().item()
    if not difference <= TOLERANCE[compute]:
        raise RouteError(
            f"the {route} route of {encoder.name or 'the encoder'} differs from the padded one by {difference:.2g}, "
            f"but rounding explains at most {TOLERANCE[compute]:g}: set encoder.attention = 'padded'."
        )
    return difference


def _autocast(encoder: Encoder) -> bool:
    return torch.is_autocast_enabled(encoder.device.type)


# ---------------------------------------------------------------------- the model's layers


def find_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Return the model's layers, first to last, or [] for a model type that may not hold them in one list."""
    if model.config.model_type not in PACKED_TYPES:
        return []
    count = model.config.num_hidden_layers
    lists = [list(part) for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) == count]
    return lists[0] if len(lists) == 1 else []


class Listener:
    """Collects the input of the first layer and the output of every layer, like `output_hidden_states`.

    `output_hidden_states` also adds hooks inside the attention, and a layer with hooks inside can't be compiled as one.
    """

    def __init__(self, layers: list[nn.Module]) -> None:
        self.found: list[Tensor] | None = None
        layers[0].register_forward_pre_hook(self._take_input, with_kwargs=True)
        for layer in layers:
            layer.register_forward_hook(self._take_output)

    def run(self, model: PreTrainedModel, inputs: dict[str, Any]) -> tuple[Any, list[Tensor]]:
        """Return the model's output, and the states before the first layer and after each layer."""
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
    """Compile each layer's forward and backward into a few fused kernels. Shapes are dynamic: the first call compiles
    for all lengths and all layers. A layer that fails to compile runs uncompiled."""
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
            warnings.warn(f"a layer could not be compiled and runs uncompiled: {reason}", stacklevel=2)
            restore_layers([self.layer])
            return self.layer.forward(*given, **named)


def restore_layers(layers: list[nn.Module]) -> None:
    """Undo `compile_layers`."""
    for layer in layers:
        layer.__dict__.pop("forward", None)


# ---------------------------------------------------------------------- parts of the forward pass


def _positions(model: PreTrainedModel) -> tuple[int, int | None]:
    """Return the first position in the model's table, and the most tokens it holds (None: no table, so no limit)."""
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    if not isinstance(table, nn.Embedding):
        return 0, None
    # RoBERTa and related models reserve the positions up to their padding index.
    offset = 0 if table.padding_idx is None else table.padding_idx + 1
    return offset, table.num_embeddings - offset


def has_types(model: PreTrainedModel) -> bool:
    embeddings = getattr(getattr(model, "embeddings", None), "token_type_embeddings", None)
    return isinstance(embeddings, nn.Embedding) and embeddings.num_embeddings > 1


def _collect(
    layers: list[Tensor],  # each (slot, hidden)
    lengths: Tensor,
    packing: Packing,
    firsts: Tensor,  # (sequence,) slot of each sequence's first token
    real: Tensor | None,  # (token,) slot of each token; None: every slot is a token, in order
    pooled: Tensor | None,  # (sequence, hidden)
    keep: Collection[Part],
) -> HiddenStates:
    states = HiddenStates(lengths, packing=packing)

    def pick(layer: Tensor) -> Tensor:
        return layer if real is None else layer.index_select(0, real)  # (token, hidden)

    if "tokens" in keep:
        states.tokens = torch.stack([pick(layer) for layer in layers], dim=1)  # (token, layer, hidden)
    if "last" in keep:
        states.last = pick(layers[-1])  # (token, hidden)
    if "mean" in keep:
        means = [packing.mean(pick(layer)) for layer in layers]  # each (sequence, hidden)
        states.mean = torch.stack(means, dim=1)  # (sequence, layer, hidden)
    if "max" in keep:
        states.max = torch.stack([packing.max(pick(layer)) for layer in layers], dim=1)  # (sequence, layer, hidden)
    if "deviation" in keep:
        spreads = [packing.deviation(pick(layer)) for layer in layers]  # each (sequence, hidden)
        states.deviation = torch.stack(spreads, dim=1)  # (sequence, layer, hidden)
    if "cls" in keep:
        read = [layer.index_select(0, firsts) for layer in layers]  # each (sequence, hidden)
        if pooled is not None:
            read.append(pooled.to(read[0].dtype))
        states.cls = torch.stack(read, dim=1)  # (sequence, layer [+ pooled], hidden)
        states.pooled = pooled is not None
    return states


def _restore(
    chunks: list[HiddenStates], sequence_order: Tensor, token_order: Tensor, batch: PackedTokens
) -> HiddenStates:
    """Join micro-batches and restore the order of sequences and tokens in the packed batch."""
    joined = HiddenStates(batch.lengths, pooled=chunks[0].pooled, packing=batch.packing)
    sequences, tokens = (order.to(batch.device, non_blocking=True) for order in (sequence_order, token_order))
    orders = {"tokens": tokens, "last": tokens} | dict.fromkeys(POOLED, sequences)
    for name, order in orders.items():
        parts = [getattr(chunk, name) for chunk in chunks]
        if parts[0] is not None:
            setattr(joined, name, torch.cat(parts).index_select(0, order))
    return joined
