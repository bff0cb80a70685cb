"""Fine-tune an encoder with packed batches and snapshots at any fraction of an epoch. A killed run resumes to the same
weights: all randomness of a step comes from (seed, step), so a checkpoint needs no generator state."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision.config import FinetuneConfig
from bertvision.data.packing import BatchPlan, fill_batches
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.output_layer import OutputLayer, OutputLayers
from bertvision.encoder.recording import MOST_WORK, Graphs, TokenBuffers, fill_up
from bertvision.encoder.states import PackedTokens, Part, pack_tokens
from bertvision.errors import UserError
from bertvision.interrupts import interruption
from bertvision.kinds import Kind
from bertvision.machine import Machine, drawing_from
from bertvision.progress import Reporter
from bertvision.sources.base import Targets, make_ahead, pack_targets
from bertvision.tables import counted
from bertvision.training.checkpoint import Checkpoints, add_prefix, held_interrupts, strip_prefix
from bertvision.training.contrastive import contrastive_loss
from bertvision.training.half_weights import HalfWeights
from bertvision.training.methods import prepare_method
from bertvision.training.optimizer import (
    build_optimizer,
    learning_rate,
    optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
)

LOG_STEPS = 25


@dataclass(frozen=True)
class Usage:
    """The cost of fine-tuning so far."""

    seconds: float
    tokens: int
    """Tokens the encoder processed, forward and backward."""
    memory: int = 0
    """Peak memory in bytes: of the GPU, or of the process."""


class _Micro(NamedTuple):
    """A micro-batch: windows that go through the encoder at once."""

    tokens: PackedTokens
    targets: Targets
    weights: Tensor  # (window) weight of each window in the step's loss; 0 for padding
    filled: bool


class _Step(NamedTuple):
    """One optimiser step, ready for the device."""

    tokens: int
    micros: list[_Micro]
    memory_tokens: int
    """The `finetune.memory_tokens` its micro-batches were made for."""


class Finetuning:
    """Fine-tuning of an encoder and its output layer over a plan of batches."""

    def __init__(
        self,
        encoder: Encoder,
        output: OutputLayer | OutputLayers,
        features: Features,
        plan: BatchPlan,
        kind: Kind,
        config: FinetuneConfig,
        seed: int,
        machine: Machine,
        reporter: Reporter,
    ) -> None:
        self.encoder, self.output, self.features, self.plan = encoder, output, features, plan
        self.kind, self.config, self.seed, self.machine, self.reporter = kind, config, seed, machine, reporter
        self.method = None if config.method == "full" else prepare_method(encoder, config, seed)
        self.contrastive = config.method == "contrastive"
        self.keep: tuple[Part, ...] = (*output.keep, "last") if self.contrastive else output.keep
        # A checkpoint's own output layer says how the checkpoint was fine-tuned, not how its encoder is read.
        self.compares_cls = isinstance(output, OutputLayer) and output.reads in ("cls", "pooled")
        self.model = nn.ModuleDict({"encoder": encoder, "output": output})
        # An encoder that runs padded may belong to a family that can't be trained in pure half precision.
        is_half = encoder.route == "varlen"
        self.half = HalfWeights(encoder, machine.dtype, _learning(output)) if is_half else None
        named = self._named_parameters()
        self.parameters = [parameter for _, parameter in named]
        assert config.lr is not None, "the config is resolved"
        self.lr = config.lr
        self.recorded = self.half is not None and machine.records
        rate = torch.tensor(config.lr, device=machine.device) if self.recorded else config.lr
        times = {"output.": 1.0 if config.output_lr is None else config.output_lr / config.lr}
        self.optimizer = build_optimizer(named, rate, config.decay, times)
        self.memory_tokens = config.memory_tokens
        self.step, self.seconds, self.tokens = 0, 0.0, 0

    def run(
        self,
        snapshots: list[float],
        on_snapshot: Callable[[float, Usage], None],
        checkpoints: Checkpoints,
        log: Callable[..., None],
        missing: list[float] | None = None,
    ) -> None:
        """Train up to the last snapshot and call `on_snapshot(epochs, usage)` at each one, in order. After a kill, a
        snapshot may be repeated, with the same weights. `missing` are the snapshots not yet saved (default: all)."""
        self.machine.watch_memory()
        self._resume(checkpoints, self.plan.step_at(min(missing or snapshots)))
        stops: dict[int, list[float]] = {}  # with few steps, several snapshots may fall on the same one
        for epochs in sorted(snapshots):
            stops.setdefault(self.plan.step_at(epochs), []).append(epochs)
        last = max(stops)
        steps = self.take_steps(last)
        bar_of_work = self.reporter.bar("fine-tuning", self._tokens_up_to(last), "tokens")
        with self._computing(), bar_of_work as bar, held_interrupts() as interrupts:
            bar.advance(self.tokens)
            for epochs in stops.get(self.step, []):  # the resumed step may be a snapshot that was not saved yet
                self._take_snapshot(epochs, on_snapshot)
            while self.step < last:
                started = time.monotonic()
                tokens, loss = next(steps)
                self.seconds += time.monotonic() - started
                self.tokens += tokens
                bar.advance(tokens, f"loss {loss:.3f}" if loss is not None else "")
                if loss is not None and not math.isfinite(loss):
                    raise UserError(
                        f"fine-tuning diverged: the loss at step {self.step:,} is {loss}. Set finetune.lr to less "
                        f"than {self.lr:g} and start again."
                    )
                if loss is not None and self.machine.is_main:
                    log("finetune", step=self.step, loss=loss, tokens=self.tokens, seconds=round(self.seconds, 2))
                    self.machine.accelerator.log({"finetune/loss": loss}, step=self.step)
                # Snapshot before checkpoint: after a kill in between, steps since the last checkpoint are repeated.
                for epochs in stops.get(self.step, []):
                    self._take_snapshot(epochs, on_snapshot)
                due, stopped = self.machine.agree(checkpoints.is_due(), bool(interrupts))
                if self.step in stops or due or stopped:
                    self._save(checkpoints)
                if stopped:
                    raise interruption(*interrupts)

    def run_through(self, on_step: Callable[[int], None]) -> None:
        """Take all steps, without snapshots and checkpoints. `on_step` is told the tokens of each."""
        with self._computing():
            for tokens, _ in self.take_steps(self.plan.steps):
                on_step(tokens)

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        """Use half-precision weights inside, if they apply; the model has its float32 weights again afterwards."""
        if self.half is not None:
            self.half.begin()
        try:
            yield
        finally:
            self._drop_graphs()
            if self.half is not None:
                self.half.end()

    @cached_property
    def graphs(self) -> Graphs:
        return Graphs()

    @cached_property
    def buffers(self) -> TokenBuffers:
        return TokenBuffers(self.machine.device)

    def _drop_graphs(self) -> None:
        """Free the recorded steps and their memory."""
        self.__dict__.pop("graphs", None)

    def _take_snapshot(self, epochs: float, on_snapshot: Callable[[float, Usage], None]) -> None:
        usage = self._measure_usage()
        with self.full_weights(), self.method.merged() if self.method else contextlib.nullcontext():
            on_snapshot(epochs, usage)

    def measure_step(self, step: int) -> int:
        """Take one step of the plan, for timing only. Return its tokens."""
        self.step = step
        return self._take_step(self.plan.steps, self._prepare(step))[0]

    def take_steps(self, last: int) -> Iterator[tuple[int, float | None]]:
        """Take the steps up to `last` lazily. Yield the tokens of each step and, every `LOG_STEPS` steps, its loss. On
        a GPU, the next batches are prepared in the background."""
        ahead = 3 if self.machine.device.type == "cuda" else 0  # a CPU has no capacity to spare
        for prepared in make_ahead(self._prepare, range(self.step, last), ahead):
            yield self._take_step(last, prepared)

    def _take_step(self, steps: int, prepared: _Step) -> tuple[int, float | None]:
        """Take one optimiser step. Return its tokens and, every `LOG_STEPS` steps, its loss (reading it makes a GPU
        wait)."""
        self.model.train()
        while True:
            try:
                if prepared.memory_tokens != self.memory_tokens:
                    prepared = self._prepare(self.step)
                loss = self._accumulate(prepared)
                break
            except torch.cuda.OutOfMemoryError:
                pass  # leave the handler first: the error's frames hold the tensors that must be freed
            # Each process splits only its own part of the step, so processes need not agree.
            if not self._halve_memory():
                raise UserError(
                    "out of GPU memory with a single window: lower data.max_length, use a smaller encoder, or set "
                    "encoder.device=cpu."
                )
        self.machine.sum_gradients(self.parameters)
        schedule = (self.config.schedule, self.config.warmup)
        set_learning_rate(self.optimizer, learning_rate(self.step, steps, self.lr, *schedule))
        if self.recorded:
            self.graphs.run("update", self._update_weights)
        else:
            self._update_weights()
        self.step += 1
        shown = self.step % LOG_STEPS == 0 or self.step == steps
        return prepared.tokens, round(self.machine.sum_numbers([float(loss)])[0], 5) if shown else None

    def _update_weights(self) -> None:
        """Clip the gradients and update the weights."""
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
        self.optimizer.step()
        if self.half is not None:
            self.half.refresh()

    def _prepare(self, step: int) -> _Step:
        """Split a step's windows into micro-batches that fit in memory, pinned for transfer to a GPU."""
        windows, memory_tokens = self.plan.batch(step), self.memory_tokens
        mine = windows[self.machine.rank :: self.machine.processes]
        cuts = fill_batches(self.features.lengths, mine, tokens=memory_tokens) if len(mine) else []
        micros = [self._prepare_micro(cut, len(windows)) for cut in cuts]
        return _Step(int(self.features.lengths[windows].sum()), micros, memory_tokens)

    def _prepare_micro(self, windows: np.ndarray, total: int) -> _Micro:
        tokens, targets = pack_tokens(self.features, windows), pack_targets(self.features, windows)
        weights = torch.full((len(windows),), 1 / total)  # (window)
        filled = self.recorded and 3 * self.encoder.work * len(tokens.input_ids) < MOST_WORK
        if filled:
            tokens = fill_up(tokens, self.encoder.pad_id, self.encoder.max_length)
            padding = (0, len(tokens) - len(windows))
            targets = Targets(*(functional.pad(part, padding) for part in vars(targets).values()))
            weights = functional.pad(weights, padding)
        if self.machine.device.type == "cuda":
            tokens, targets, weights = tokens.pin(), targets.pin(), weights.pin_memory()
        return _Micro(tokens, targets, weights, filled)

    def _accumulate(self, prepared: _Step) -> Tensor:
        """Accumulate the gradient of a step over its micro-batches. Return the loss."""
        if self.half is None or not prepared.micros:  # otherwise the first micro-batch overwrites the old gradients
            self.optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros((), device=self.machine.device)
        with drawing_from(self.machine.device, self.seed, self.step, self.machine.rank):
            for number, micro in enumerate(prepared.micros):
                loss += self._learn(micro, add=number > 0)
        return loss

    def _learn(self, micro: _Micro, add: bool) -> Tensor:
        if not micro.filled:
            return self._backward(micro.tokens, micro.targets, micro.weights, add)
        key, tokens, others = self.buffers.put(micro.tokens, *vars(micro.targets).values(), micro.weights)
        targets, weights = Targets(*others[:3]), others[3]
        loss: Tensor = self.graphs.run((key, add), lambda: self._backward(tokens, targets, weights, add))
        return loss

    def _backward(self, tokens: PackedTokens, targets: Targets, weights: Tensor, add: bool) -> Tensor:
        device = self.machine.device
        with self.machine.autocast() if self.half is None else contextlib.nullcontext():
            states = self.encoder(tokens, keep=self.keep)
            # The contrastive loss alone moves the encoder; the output layer learns on the side.
            outputs = self.output(states.detach() if self.contrastive else states)  # one layer's, or (layer, …)
        targets, weights = targets.to(device), weights.to(device, non_blocking=True)
        several = outputs if isinstance(self.output, OutputLayers) else outputs.unsqueeze(0)
        loss = self.kind.loss(several, states, targets, weights).mean()
        if self.contrastive:
            last = states.last_tokens  # (token, hidden)
            vectors = last[states.starts] if self.compares_cls else states.mean_over_tokens(last)  # (sequence, hidden)
            loss = loss + contrastive_loss(vectors, targets.value, weights)
        if self.half is None:
            loss.backward()
        else:
            self.half.take_gradients(loss, add)
        return loss.detach()

    def _halve_memory(self) -> bool:
        """Halve the size of micro-batches for the next attempt; False if they are single windows already."""
        self._drop_graphs()
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        longest = int(self.features.lengths.max())
        if self.memory_tokens <= longest:
            return False
        self.memory_tokens = max(longest, self.memory_tokens // 2)
        self.reporter.say(
            f"out of GPU memory: continuing with {counted(self.memory_tokens, 'token')} at once "
            "(finetune.memory_tokens); gradients are accumulated, so the batch size is unchanged."
        )
        return True

    def _tokens_up_to(self, step: int) -> int:
        return sum(int(self.features.lengths[self.plan.batch(done)].sum()) for done in range(step))

    def _measure_usage(self) -> Usage:
        if self.machine.device.type == "cuda":  # count the time of steps that are still running
            started = time.monotonic()
            torch.cuda.synchronize(self.machine.device)
            self.seconds += time.monotonic() - started
        return Usage(round(self.seconds, 2), self.tokens, self.machine.peak_memory())

    def full_weights(self) -> contextlib.AbstractContextManager[None]:
        """Inside this context, the model has its float32 weights, even if it trains in half precision."""
        return contextlib.nullcontext() if self.half is None else self.half.full_precision()

    def _named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The trainable parameters, in the model's order; in float32 if the model has half-precision copies."""
        full = {} if self.half is None else dict(zip(map(id, self.half.own), self.half.full, strict=True))
        named = self.model.named_parameters()
        return [(name, full.get(id(weight), weight)) for name, weight in named if weight.requires_grad]

    def _save(self, checkpoints: Checkpoints) -> None:
        if self.machine.is_main:
            with self.full_weights():
                model = add_prefix("model", self.model.state_dict())
                facts = {"seconds": self.seconds, "tokens": self.tokens, "memory_tokens": self.memory_tokens}
                checkpoints.save(self.step, model | add_prefix("optimizer", optimizer_tensors(self.optimizer)), facts)
        else:
            checkpoints.skip()
        self.machine.wait()

    def _resume(self, checkpoints: Checkpoints, first_stop: int) -> None:
        found = checkpoints.load()
        if found is None or found.step > first_stop:  # past a snapshot that is now wanted: start over
            return
        with self.full_weights():
            self.model.load_state_dict(strip_prefix("model", found.tensors))
        restore_optimizer(self.optimizer, strip_prefix("optimizer", found.tensors))
        self.step, self.seconds, self.tokens = found.step, found.facts["seconds"], found.facts.get("tokens", 0)
        # It may have been halved before.
        self.memory_tokens = min(self.memory_tokens, found.facts.get("memory_tokens", self.memory_tokens))
        self.reporter.say(f"resuming fine-tuning at step {self.step:,}.")


def _learning(module: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in module.parameters() if weight.requires_grad]
