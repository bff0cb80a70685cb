"""Fine-tunes an encoder a little: packed batches, snapshots at any fraction of an epoch, killed and resumed to the same
weights. Every draw of a step comes from (seed, step), so a checkpoint needs no generator state."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from bertvision.config import FinetuneConfig
from bertvision.data.packing import BatchPlan, fill_batches
from bertvision.data.windows import Features
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.output_layer import OutputLayer
from bertvision.errors import UserError
from bertvision.machine import Machine, drawing_from
from bertvision.progress import Reporter
from bertvision.sources.base import pack_targets, pack_tokens
from bertvision.tasks.base import TargetKind
from bertvision.training.checkpoint import Checkpoints, named, under
from bertvision.training.interrupts import held_interrupts
from bertvision.training.losses import compute_loss
from bertvision.training.optimizer import (
    build_optimizer,
    learning_rate,
    optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
)

LOG_STEPS = 10


@dataclass(frozen=True)
class Cost:
    """What fine-tuning took up to a moment."""

    seconds: float
    tokens: int
    """Tokens that went through the encoder, forward and backward."""
    memory: int = 0
    """The most bytes in use at once: of the GPU, or of the process."""


class Finetuning:
    """Encoder, output layer and optimiser on the way through a plan of batches."""

    def __init__(
        self,
        encoder: Encoder,
        output: OutputLayer,
        features: Features,
        plan: BatchPlan,
        kind: TargetKind,
        config: FinetuneConfig,
        seed: int,
        machine: Machine,
        reporter: Reporter,
    ) -> None:
        self.encoder, self.output, self.features, self.plan = encoder, output, features, plan
        self.kind, self.config, self.seed, self.machine, self.reporter = kind, config, seed, machine, reporter
        self.model = nn.ModuleDict({"encoder": encoder, "output": output})
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        assert config.lr is not None, "the config is resolved"
        self.lr = config.lr
        self.optimizer = build_optimizer(self.model.named_parameters(), config.lr, config.decay)
        self.memory_tokens = config.memory_tokens
        self.step, self.seconds, self.tokens = 0, 0.0, 0

    def run(
        self,
        snapshots: list[float],
        on_snapshot: Callable[[float, Cost], None],
        checkpoints: Checkpoints,
        log: Callable[..., None],
        missing: list[float] | None = None,
    ) -> None:
        """Trains to the last snapshot; `on_snapshot(epochs, cost)` is called at each, in order (after a kill
        perhaps once more, with the same weights). `missing` are those not kept yet; absent: all."""
        self.machine.watch_memory()
        self._resume(checkpoints, self.plan.step_at(min(missing or snapshots)))
        stops: dict[int, list[float]] = {}  # where steps are few, one of them may end several snapshots
        for epochs in sorted(snapshots):
            stops.setdefault(self.plan.step_at(epochs), []).append(epochs)
        last = max(stops)
        bar_of_work = self.reporter.bar("fine-tuning", self._tokens_up_to(last), "tokens")
        with bar_of_work as bar, held_interrupts() as asked:
            bar.advance(self.tokens)
            for epochs in stops.get(self.step, []):  # the step that was resumed at may be one, and not kept yet
                on_snapshot(epochs, self._cost())
            while self.step < last:
                tokens, loss = self._take_timed_step(last)
                bar.advance(tokens, f"loss {loss:.3f}" if loss is not None else "")
                if loss is not None and not math.isfinite(loss):
                    raise UserError(
                        f"fine-tuning has diverged: the loss at step {self.step:,} is {loss}. Set finetune.lr lower "
                        f"than {self.lr:g} and start again."
                    )
                if loss is not None and self.machine.is_main:
                    log("finetune", step=self.step, loss=loss, tokens=self.tokens, seconds=round(self.seconds, 2))
                    self.machine.accelerator.log({"finetune/loss": loss}, step=self.step)
                # The snapshot first: a kill in between takes the steps since the last checkpoint again.
                for epochs in stops.get(self.step, []):
                    on_snapshot(epochs, self._cost())
                due, stopped = self.machine.agree(checkpoints.is_due(), bool(asked))
                if self.step in stops or due or stopped:
                    self._save(checkpoints)
                if stopped:
                    raise KeyboardInterrupt

    def measure_step(self, step: int) -> int:
        """One step out of its turn, to see how long it takes; gives its tokens."""
        self.step = step
        return self._take_step(self.plan.steps)[0]

    def _take_timed_step(self, steps: int) -> tuple[int, float | None]:
        started = time.monotonic()
        tokens, loss = self._take_step(steps)
        self.seconds += time.monotonic() - started
        self.tokens += tokens
        return tokens, loss

    def _take_step(self, steps: int) -> tuple[int, float | None]:
        """One optimiser step: its tokens, and its loss now and then (reading it makes a GPU wait)."""
        windows = self.plan.batch(self.step)
        self.model.train()
        while True:
            try:
                loss = self._accumulate(windows)
                break
            except torch.cuda.OutOfMemoryError:
                pass  # while it is handled, the error's frames hold the tensors that have to go
            # Each process cuts only its own part of the step into smaller pieces, so nothing has to be agreed on.
            if not self._halve_memory():
                raise UserError(
                    "the GPU's memory does not hold one window of this encoder: set a smaller data.max_length, "
                    "a smaller encoder, or encoder.device=cpu."
                )
        self.machine.sum_gradients(self.parameters)
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
        schedule = (self.config.schedule, self.config.warmup)
        set_learning_rate(self.optimizer, learning_rate(self.step, steps, self.lr, *schedule))
        self.optimizer.step()
        self.step += 1
        shown = self.step % LOG_STEPS == 0 or self.step == steps
        return int(self.features.lengths[windows].sum()), self._mean_loss(loss) if shown else None

    def _accumulate(self, windows: np.ndarray) -> Tensor:
        """The gradient of a whole step, through as many micro-batches as fit."""
        self.optimizer.zero_grad(set_to_none=True)
        mine = windows[self.machine.rank :: self.machine.processes]
        loss = torch.zeros((), device=self.machine.device)
        with drawing_from(self.machine.device, self.seed, self.step, self.machine.rank):
            for micro in fill_batches(self.features.lengths, mine, tokens=self.memory_tokens) if len(mine) else []:
                loss += self._backward(micro, len(windows))
        return loss

    def _backward(self, windows: np.ndarray, total: int) -> Tensor:
        with self.machine.autocast():
            states = self.encoder(pack_tokens(self.features, windows), keep=self.output.keep)
            outputs = self.output(states)
        targets = pack_targets(self.features, windows).to(self.machine.device)
        loss = compute_loss(self.kind, outputs, states, targets, total)
        loss.backward()
        return loss.detach()

    def _halve_memory(self) -> bool:
        """Makes the next try smaller; False where it already was one window."""
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        longest = int(self.features.lengths.max())
        if self.memory_tokens <= longest:
            return False
        self.memory_tokens = max(longest, self.memory_tokens // 2)
        self.reporter.say(
            f"out of GPU memory: going on with {self.memory_tokens:,} tokens at once "
            "(finetune.memory_tokens), accumulated to the same batch."
        )
        return True

    def _mean_loss(self, loss: Tensor) -> float:
        if self.machine.processes > 1:
            loss = self.machine.accelerator.reduce(loss, "sum")
        return round(float(loss), 5)

    def _tokens_up_to(self, step: int) -> int:
        return sum(int(self.features.lengths[self.plan.batch(done)].sum()) for done in range(step))

    def _cost(self) -> Cost:
        return Cost(round(self.seconds, 2), self.tokens, self.machine.peak_memory())

    def _save(self, checkpoints: Checkpoints) -> None:
        if self.machine.is_main:
            tensors = named("model", self.model.state_dict()) | named("optimizer", optimizer_tensors(self.optimizer))
            facts = {"seconds": self.seconds, "tokens": self.tokens, "memory_tokens": self.memory_tokens}
            checkpoints.save(self.step, tensors, facts)
        else:
            checkpoints.skip()
        self.machine.wait()

    def _resume(self, checkpoints: Checkpoints, first_stop: int) -> None:
        found = checkpoints.load()
        if found is None or found.step > first_stop:  # past a snapshot that was asked for later: begin anew
            return
        self.model.load_state_dict(under("model", found.tensors))
        restore_optimizer(self.optimizer, under("optimizer", found.tensors))
        self.step, self.seconds, self.tokens = found.step, found.facts["seconds"], found.facts["tokens"]
        self.memory_tokens = min(self.memory_tokens, found.facts["memory_tokens"])  # what ran out once would again
        self.reporter.say(f"fine-tuning goes on at step {self.step:,}.")
