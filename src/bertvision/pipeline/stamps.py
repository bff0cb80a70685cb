"""Stamps: a hash of everything that affects an outcome. A stage whose folder carries the same stamp is finished.

job.stamps.finetune      job.stamps.member(epochs, member)      job.stamps.predictions(model_stamp, split)
"""

import dataclasses
import hashlib
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bertvision.config import FinetuneConfig
from bertvision.disk import fingerprint, read_json
from bertvision.encoder.loading import identify, weights_stamp
from bertvision.heads import MemberConfig
from bertvision.pipeline.folder import HELD_OUT

if TYPE_CHECKING:
    from bertvision.pipeline.job import Job

# What an outcome depends on besides settings and data: raise a number when the work itself changes its results.
FINETUNE_VERSION, TRAIN_VERSION, SCORE_VERSION = 2, 2, 3
# Settings that change how the work is done, not what comes out of it (`memory_tokens` only where dropout falls).
NO_EFFECT = ("snapshots", "memory_tokens", "checkpoint_seconds", "track", "encode_tokens")
# A method's settings count only where the method is used: runs made before there were methods stay finished.
UNUSED = {"full": ("method", "lora_rank", "lora_alpha"), "bitfit": ("lora_rank", "lora_alpha"), "lora": ()}


class Stamps:
    def __init__(self, job: "Job", hashes: dict[tuple[str, Any], str] | None = None) -> None:
        """`hashes`: those already computed by a job on the same data and encoder."""
        self.job, self.hashes = job, {} if hashes is None else hashes

    def _once(self, name: str, of: Any, compute: Callable[[], str]) -> str:
        """Hashes of data and weights take a while: each is computed once."""
        key = name, of
        if key not in self.hashes:
            self.hashes[key] = compute()
        return self.hashes[key]

    # ------------------------------------------------------------------ what goes in

    @property
    def encoder(self) -> str:
        return self._once("encoder", None, lambda: identify(self.job.config.encoder.name))

    def data(self, split: str) -> str:
        """Hash of a split's examples, its targets, and how they are cut into windows."""
        job = self.job
        parts = job.task.kind, job.task.labels, job.max_length, job.config.data.overlap
        return self._once("data", split, lambda: fingerprint(self.examples(split), *parts))

    def examples(self, split: str) -> str:
        """Hash of the examples alone, however they are cut into windows."""
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
            digest.update(getattr(features, name).tobytes())
        return digest.hexdigest()[:16]

    def weights(self, epochs: float) -> str:
        """Hash of a snapshot's weights."""
        return self._once("weights", epochs, lambda: self._hash_weights(epochs))

    def _hash_weights(self, epochs: float) -> str:
        folder = self.job.folder.encoder(epochs)
        reference = read_json(folder / "reference.json")
        return weights_stamp(reference["name"] if reference else str(folder))

    # ------------------------------------------------------------------ what comes out

    @cached_property
    def finetune(self) -> str:
        config = self.job.config
        settings = {"epochs": 0} if config.finetune.epochs == 0 else _finetune_settings(config.finetune)
        # As asked for, not as found here: a run made on a GPU stays finished when it is opened on a laptop.
        precision = config.encoder.dtype, config.encoder.attention
        return fingerprint(
            "finetune", FINETUNE_VERSION, self.data("train"), self.encoder, settings, config.seed, precision
        )

    def member(self, epochs: float, member: MemberConfig) -> str:
        """Stamp of a head trained on the states of a snapshot."""
        train, seed = self.job.config.train, self.job.config.seed
        batches = train.batch_rows, train.batch_tokens, seed
        parts = batches, member.identity(), *self.states_settings.items()
        return fingerprint("train", TRAIN_VERSION, self.finetune, epochs, *parts)

    @property
    def states_settings(self) -> dict[str, Any]:
        """Settings of the states and their order that differ from the defaults, so that older runs stay finished."""
        train, layers = self.job.config.train, self.job.layers
        found: dict[str, Any] = {}
        if layers is not None:
            found["encoder.layers"] = list(layers)
        if train.shuffle != "windows":
            found["train.shuffle"] = train.shuffle
        if train.source == "stored":  # "auto" streams or stores, whichever is cheaper; a head's facts say which it was
            found["train.source"] = "stored", self.job.config.store.dtype
        return found

    def predictions(self, model_stamp: str, split: str) -> str:
        job = self.job
        held_out = self.data(HELD_OUT) if job.examples(HELD_OUT) else None
        settings = dataclasses.asdict(job.config.evaluate), job.task.metrics, job.task.windowed
        return fingerprint("score", SCORE_VERSION, model_stamp, self.data(split), held_out, settings)


def _finetune_settings(config: FinetuneConfig) -> dict[str, Any]:
    unused = (*NO_EFFECT, *UNUSED[config.method])
    return {key: value for key, value in dataclasses.asdict(config).items() if key not in unused}
