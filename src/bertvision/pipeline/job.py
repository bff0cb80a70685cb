"""The parts of a run (task, examples, features, device), each built on first use, and the stamps of its stages.

job.features("train")      job.stamps.finetune      job.stamps.member(epochs, member)
"""

import contextlib
import copy
import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from bertvision.config import EvaluateConfig, RunConfig, load_config
from bertvision.data.examples import Example
from bertvision.data.splits import draw, hold_out
from bertvision.data.spooled import pieces_of
from bertvision.data.windows import Features, build_features
from bertvision.disk import check_files, check_path, fingerprint, lock_in, read_json, spooling_in, writing_in
from bertvision.disk.forms import Count
from bertvision.encoder.loading import identify, load_tokenizer, shape_of, weights_stamp
from bertvision.encoder.reading import ways_to_read
from bertvision.errors import UserError
from bertvision.heads import MemberConfig, Target
from bertvision.kinds import Decoding, Predictions
from bertvision.machine import Machine
from bertvision.pipeline.folder import HELD_OUT, HELD_OUT_ROWS, RunFolder
from bertvision.pipeline.members import build_members, find_head_mistakes
from bertvision.progress import Reporter
from bertvision.tables import counted
from bertvision.tasks import Task, build_task

# Part of the fingerprints: increase a version when a change to the code changes the results of that stage.
FINETUNE_VERSION, TRAIN_VERSION, SCORE_VERSION = 2, 2, 3
# Settings that do not affect the result (`memory_tokens` only changes which units dropout hits).
NO_EFFECT = ("snapshots", "memory_tokens", "checkpoint_seconds", "track", "encode_tokens")
# How many times faster a new output layer for labels or scores learns than the whole encoder, by default. The learning
# rates of BitFit and LoRA are high already.
OUTPUT_TIMES = 10
# Settings that have no effect with a given method; leaving them out keeps older runs finished.
LORA = ("lora_rank", "lora_alpha")
UNUSED = {"full": ("method", *LORA), "bitfit": LORA, "lora": (), "contrastive": LORA}


REFERENCE = "reference.json"


class ReferenceFile(TypedDict):
    """reference.json, instead of the weights of an untouched encoder."""

    name: str
    stamp: str


class HeldOutFile(TypedDict):
    """held_out.json in folders of fitted models."""

    rows: list[Count]
    also_train: bool


def read_reference(folder: Path) -> ReferenceFile | None:
    """The encoder that a snapshot's folder refers to; None if the folder has the weights."""
    check_files(folder, REFERENCE)
    return read_json(folder / REFERENCE, ReferenceFile)


class Job:
    def __init__(self, config: RunConfig, reporter: Reporter | None = None, wait: bool = False) -> None:
        """`wait`: if another process is writing to the run folder, wait until it ends."""
        self.config, self.reporter, self.wait = config, reporter or Reporter(), wait
        self.folder = RunFolder(_free_of_files(config.folder), lambda text: self.reporter.say(text))
        self.stamps = Stamps(self)
        self._examples: dict[str, Sequence[Example]] = {}
        self._features: dict[str, Features] = {}

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock of the run folder. It may be nested, also with jobs on the same folder (`with_heads`)."""
        if self.folder.is_locked:
            yield
            return
        machine, place = self.machine, lock_in(self.folder.path)
        with writing_in(place, self.wait, self.reporter.say, machine.first) as is_locked:
            self.folder.is_locked = True
            try:
                if machine.is_main:
                    self.folder.sweep(is_locked)
                machine.check_shared(self.folder.path)
                yield
            finally:
                self.folder.is_locked = False
                if machine.is_main:
                    self.folder.tidy()

    @cached_property
    def machine(self) -> Machine:
        encoder = self.config.encoder
        track = self.config.finetune.track
        machine = Machine(encoder.device, encoder.dtype, track, self.folder.path, encoder.record, shares=True)
        if not machine.is_main:
            self.reporter = Reporter()  # only the main process prints
        self.reporter.detail("threads", str(machine.threads))
        return machine

    @cached_property
    def task(self) -> Task:
        return build_task(self.config.task)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return load_tokenizer(self.config.encoder.name)

    @cached_property
    def target(self) -> Target:
        return Target(self.task.kind, len(self.task.labels))

    @cached_property
    def layers(self) -> tuple[int, ...] | None:
        """The layers that heads read, counted from 0, if `encoder.layers` selects some; None for all."""
        name, wanted = self.config.encoder.name, self.config.encoder.layers
        if wanted is None or shape_of(name, wanted).layers == shape_of(name).layers:
            return None
        return shape_of(name, wanted).layers

    @cached_property
    def members(self) -> list[MemberConfig]:
        config = self.config
        return build_members(config.heads, config.train, config.seed, self.task.kind, config.encoder.name)

    @cached_property
    def output_reads(self) -> tuple[str, ...]:
        """What new output layers read in fine-tuning. Several train together, and held-out data chooses one."""
        own, config = self.config.finetune.read, self.config.finetune
        if self.task.kind.position == "token" or config.epochs == 0:  # an output layer that does not learn is random
            return ("cls",)
        found = (own,) if own is not None else ways_to_read(self.config.encoder.name)
        return found if self.examples(HELD_OUT) else found[:1]

    @property
    def output_rate(self) -> float:
        """The learning rate of a new output layer."""
        config = self.config.finetune
        assert config.lr is not None, "the config is resolved"
        is_faster = self.task.kind.position == "sequence" and config.method == "full"
        return config.lr * (OUTPUT_TIMES if is_faster else 1) if config.output_lr is None else config.output_lr

    @cached_property
    def encode_tokens(self) -> int:
        """How many tokens the frozen encoder takes at once. On a GPU: as many as possible while their states take only
        a small part of its memory."""
        wanted, device = self.config.train.encode_tokens, self.machine.device
        if wanted is not None or device.type != "cuda":
            return wanted or 8192
        shape = shape_of(self.config.encoder.name, self.config.encoder.layers).shape
        room = torch.cuda.get_device_properties(device).total_memory // 32
        return max(8192, min(32768, room // (shape.layers * shape.hidden * self.machine.dtype.itemsize)))

    @cached_property
    def snapshots(self) -> list[float]:
        """Epochs at which the encoder is saved, in ascending order."""
        return sorted({*self.config.finetune.snapshots, self.config.finetune.epochs})

    @cached_property
    def head_snapshots(self) -> list[float]:
        """Snapshots on which heads are trained."""
        return sorted(set(self.config.train.snapshots or [self.snapshots[-1]]))

    @cached_property
    def dev_splits(self) -> list[str]:
        if not self.task.dev_splits:
            raise UserError(f'{self.task.name} has no dev set to score on: set task.dev = "FILE".')
        return list(self.task.dev_splits)

    @property
    def scored_splits(self) -> list[str]:
        """Held-out data first, if there is any: thresholds and other choices are made on it."""
        return [*([HELD_OUT] if self.examples(HELD_OUT) else []), *self.dev_splits]

    @cached_property
    def _train_parts(self) -> tuple[Sequence[Example], Sequence[Example]]:
        if "train" not in self.task.splits:
            raise UserError(f'{self.task.name} has no training data in {self.task.source}: set task.train = "FILE".')
        examples = draw(self._labelled("train"), self.config.data.limit_train, self.config.seed)
        kept = read_json(self.folder.file(HELD_OUT_ROWS), HeldOutFile)
        if kept is not None:
            return _fitted_parts(examples, kept)
        return hold_out(examples, self.config.data.hold_out, self.config.seed)

    def _labelled(self, split: str) -> Sequence[Example]:
        with spooling_in(self.folder.path):
            examples = self.task.read(split)
        count, first = 0, ""
        for example in examples:
            if (example.answers if self.task.kind.reads_answers else example.target) is None:
                count, first = count + 1, first or example.id
        if count:
            raise UserError(
                f"the {split} split of {self.task.name} has {counted(count, 'example')} without a target; the "
                f"first is '{first}'. Use labelled data here, and `bertvision predict` for unlabelled data."
            )
        if not examples:
            raise UserError(f"the {split} split of {self.task.name} is empty ({self.task.source}).")
        return examples

    def examples(self, split: str) -> Sequence[Example]:
        """The examples of "train" (without the held-out part), "held_out" or a dev split: a list, or those of a long
        table on disk."""
        if split not in self._examples:
            if split in ("train", HELD_OUT):
                self._examples["train"], self._examples[HELD_OUT] = self._train_parts
            else:
                self._examples[split] = draw(self._labelled(split), self.config.data.limit_dev, self.config.seed)
        return self._examples[split]

    def features(self, split: str) -> Features:
        if split not in self._features:
            examples = self.examples(split)
            with self.reporter.bar(f"tokenizing {split}", len(examples), "examples") as bar:
                self._features[split] = self.build_features(examples, bar.advance)
        return self._features[split]

    def build_features(self, examples: Sequence[Example], on_progress: Callable[[int], None] | None = None) -> Features:
        task, how = self.task, (self.max_length, self.config.data.overlap, on_progress)
        with spooling_in(self.folder.path):
            return build_features(examples, self.tokenizer, task.kind, task.windowed, *how)

    def decode(
        self,
        outputs: np.ndarray,
        split: str,
        evaluate: EvaluateConfig | None = None,
        n_best: int | None = None,
        are_logs: bool = False,
    ) -> Predictions:
        """Turn a model's raw outputs (token or window, output) for a split into predictions. `evaluate` defaults to the
        job's own settings; `are_logs` is for outputs of an ensemble."""
        settings = evaluate or self.config.evaluate
        how = Decoding(n_best or settings.n_best, settings.max_answer_tokens, self.machine.device, are_logs)
        return self.task.kind.decode(self.task, outputs, self.features(split), self.examples(split), how)

    @property
    def max_length(self) -> int:
        return self.config.data.max_length or self.task.max_length

    def with_heads(self, heads: list[Any], snapshots: list[float]) -> "Job":
        """Return the same job with other heads on these snapshots. Data, features and device are shared."""
        other = copy.copy(self)
        for name in ("members", "head_snapshots"):
            other.__dict__.pop(name, None)
        train = dataclasses.replace(self.config.train, snapshots=snapshots)
        # The average of the best was meant for the heads that are replaced.
        ensembles = [one for one in self.config.ensembles if not (isinstance(one, dict) and "best" in one)]
        other.config = dataclasses.replace(self.config, heads=heads, ensembles=ensembles, train=train)
        other.stamps = Stamps(other, self.stamps.hashes)
        return other

    def tokens_of(self, batches: list[np.ndarray], split: str = "train") -> list[int]:
        lengths = self.features(split).lengths
        return [int(lengths[batch].sum()) for batch in batches]


class Stamps:
    """Fingerprints of everything that affects a result. A stage whose folder holds the same stamp is finished."""

    def __init__(self, job: Job, hashes: dict[tuple[str, Any], str] | None = None) -> None:
        """`hashes` are those already computed by a job on the same data and encoder."""
        self.job, self.hashes = job, {} if hashes is None else hashes

    def _once(self, name: str, of: Any, compute: Callable[[], str]) -> str:
        """Cache: hashing data and weights takes a while."""
        key = name, of
        if key not in self.hashes:
            self.hashes[key] = compute()
        return self.hashes[key]

    # ------------------------------------------------------------------ inputs

    @property
    def encoder(self) -> str:
        return self._once("encoder", None, lambda: identify(self.job.config.encoder.name))

    def data(self, split: str) -> str:
        """Hash of a split's examples and targets, and of how they are split into windows."""
        job = self.job
        parts = job.task.kind, job.task.labels, job.max_length, job.config.data.overlap
        return self._once("data", split, lambda: fingerprint(self.examples(split), *parts))

    def examples(self, split: str) -> str:
        """Hash of the examples alone, independent of windows."""
        return self._once("examples", split, lambda: self._hash_examples(split))

    def _hash_examples(self, split: str) -> str:
        digest = hashlib.sha256()
        for example in self.job.examples(split):
            parts = (example.id, example.text, example.text_pair, example.target, example.answers)
            digest.update(repr(parts).encode())
        return digest.hexdigest()

    def tokens(self, split: str) -> str:
        """Hash of the windows as the encoder sees them, and of their targets."""
        return self._once("tokens", split, lambda: self._hash_tokens(split))

    def _hash_tokens(self, split: str) -> str:
        digest, features = hashlib.sha256(), self.job.features(split)
        for name in ("input_ids", "type_ids", "lengths", "example", "start", "end", "target"):
            for piece in pieces_of(getattr(features, name)):
                digest.update(piece)
        return digest.hexdigest()[:16]

    def weights(self, epochs: float) -> str:
        """Hash of a snapshot's weights."""
        return self._once("weights", epochs, lambda: self._hash_weights(epochs))

    def _hash_weights(self, epochs: float) -> str:
        folder = self.job.folder.encoder(epochs)
        reference = read_reference(folder)
        return weights_stamp(reference["name"] if reference else str(folder))

    # ------------------------------------------------------------------ results

    @cached_property
    def finetune(self) -> str:
        config = self.job.config
        settings = {"epochs": 0} if config.finetune.epochs == 0 else self._finetune_settings()
        # The settings, not the values resolved on this machine: a run from a GPU stays finished on a laptop.
        precision = config.encoder.dtype, config.encoder.attention
        return fingerprint(
            "finetune", FINETUNE_VERSION, self.data("train"), self.encoder, settings, config.seed, precision
        )

    def _finetune_settings(self) -> dict[str, Any]:
        """What the output layer reads and its learning rate are left out where they are those of older runs, which
        thus stay finished."""
        config = self.job.config.finetune
        unused = (*NO_EFFECT, *UNUSED[config.method], "read", "output_lr")
        found = {key: value for key, value in dataclasses.asdict(config).items() if key not in unused}
        if self.job.output_reads != ("cls",):
            found["read"] = self.job.output_reads
        if config.method == "contrastive" and self.job.output_reads == ("cls",):
            found["compare"] = "cls"  # earlier, means were compared
        if self.job.output_rate != config.lr:
            found["output_lr"] = self.job.output_rate
        return found

    def member(self, epochs: float, member: MemberConfig) -> str:
        """Stamp of a head trained on the states of a snapshot."""
        train, seed = self.job.config.train, self.job.config.seed
        batches = train.batch_rows, train.batch_tokens, seed
        parts = batches, member.identity(), *self.states_settings.items()
        return fingerprint("train", TRAIN_VERSION, self.finetune, epochs, *parts)

    @property
    def states_settings(self) -> dict[str, Any]:
        """Settings that affect the states or their order, where they differ from the defaults. Leaving out the defaults
        keeps older runs finished."""
        train, layers = self.job.config.train, self.job.layers
        found: dict[str, Any] = {}
        if layers is not None:
            found["encoder.layers"] = list(layers)
        if train.shuffle != "windows":
            found["train.shuffle"] = train.shuffle
        if train.source == "stored":  # with "auto", the head's stamp.json records which source was used
            found["train.source"] = "stored", self.job.config.store.dtype
        return found

    def predictions(self, model_stamp: str, split: str) -> str:
        job = self.job
        held_out = self.data(HELD_OUT) if job.examples(HELD_OUT) else None
        settings = job.config.evaluate.given(), job.task.metrics, job.task.windowed
        return fingerprint("score", SCORE_VERSION, model_stamp, self.data(split), held_out, settings)


def _fitted_parts(examples: Sequence[Example], kept: HeldOutFile) -> tuple[Sequence[Example], Sequence[Example]]:
    """The training and held-out examples of a fitted model."""
    held = set(kept["rows"])
    if max(held, default=0) >= len(examples):
        raise UserError("the training file has fewer rows than when the model was fitted.")
    training = examples if kept["also_train"] else [one for row, one in enumerate(examples) if row not in held]
    return training, [one for row, one in enumerate(examples) if row in held]


def find_mistakes(config: RunConfig) -> list[str]:
    """List the mistakes in a config's heads and ensembles, for `config.build_config`."""
    mistakes = find_head_mistakes(config)
    if mistakes or not config.ensembles:
        return mistakes
    from bertvision.pipeline.ensemble_entries import find_ensemble_mistakes

    return find_ensemble_mistakes(config)


def reopen(folder: Path | str, reporter: Reporter | None = None) -> Job:
    """Return the job behind a run folder. The folder may have been moved."""
    return Job(dataclasses.replace(load_config(folder), run=str(folder)), reporter)


def _free_of_files(folder: Path) -> Path:
    """Return the run folder. Raise UserError if it or one of its parents is a file."""
    check_path(folder, "run")
    for path in (folder, *folder.parents):
        if os.path.exists(path) and not os.path.isdir(path):
            raise UserError(f"run = '{folder}': '{path}' is a file. Set `run` to an existing or a new folder.")
    return folder
