"""`bv.load`, the one way in, and Model: an encoder with one head, or an ensemble, that answers.

model = bv.load("models/intents")                   a fitted model, or a run
model.predict("Where is my card?")                  <intents: card_arrival (card_arrival 98 %) …>
kit = bv.load("default")                            a kit: several tasks, one pass
"""

import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertvision.data.examples import Example
from bertvision.data.spooled import collect_examples
from bertvision.data.texts import is_alone
from bertvision.disk import as_path
from bertvision.errors import UserError
from bertvision.hub import Pushable, is_hub_name, pull
from bertvision.kinds import Result
from bertvision.kits.folder import FILE as KIT
from bertvision.kits.folder import find_kit, is_kit, shipped_kits
from bertvision.kits.kit import Kit
from bertvision.models.exported import is_export, open_export
from bertvision.models.folder import is_fitted
from bertvision.models.predict import FittedPredictor, find_fitted, read_facts
from bertvision.pipeline.finished import SCORES, FinishedRun
from bertvision.pipeline.finished import Model as SavedModel
from bertvision.pipeline.folder import TASK
from bertvision.pipeline.predict import Predictor, check_choice, choose_model
from bertvision.progress import Reporter
from bertvision.tables import counted
from bertvision.tasks.config import files_columns
from bertvision.tasks.data_file import DataFile, find_data_file
from bertvision.tasks.files import Columns
from bertvision.tasks.new_text import read_new_text, usual_columns


class Model(Pushable):
    """A model of a run or of a fitted model's folder. The encoder is loaded with the first prediction and kept."""

    def __init__(
        self,
        folder: Path | str,
        head: str | None = None,
        reporter: Reporter | None = None,
        epochs: float | None = None,
        device: str | None = None,
        dtype: str | None = None,
    ) -> None:
        """`head` names another model than the best or chosen one. For a run, `epochs` chooses a snapshot. `device` and
        `dtype` replace those of the run's settings."""
        check_choice(head, epochs)
        self.folder = as_path(folder, "the model's folder")
        self.facts: dict[str, Any] = read_facts(self.folder) if is_fitted(self.folder) else {}
        self.run = FinishedRun(self.folder)
        self._head, self._reporter, self._epochs = head, reporter, epochs
        if not self.facts:
            _ = self.saved  # raises at once for a name that is not there
        elif epochs is not None:
            raise UserError(f"epochs is for runs, and '{folder}' is a fitted model: leave it out.")
        self._settings = {key: one for key, one in (("device", device), ("dtype", dtype)) if one is not None}

    @cached_property
    def saved(self) -> SavedModel:
        """The model as the run's folder describes it."""
        if self.facts:
            name, epochs = find_fitted(self.facts, self._head, self.folder)
            return choose_model(self.run, name, epochs)[0]
        return choose_model(self.run, self._head, self._epochs)[0]

    @property
    def task(self) -> str:
        return self.run.task.name

    @property
    def kind(self) -> str:
        """What it predicts: "label", "score" or "span"."""
        return str(self.run.kind)

    @property
    def labels(self) -> list[str]:
        return list(self.run.task.labels)

    @property
    def encoder(self) -> str:
        """The encoder's name."""
        return self.run.settings.encoder.name

    @property
    def leaderboard(self) -> list[dict[str, Any]]:
        """What `fit` tried: name, scores, seconds and parameters of each. Empty for a run: see `Run.summary`."""
        return list(self.facts.get("leaderboard", []))

    @property
    def chosen(self) -> str:
        """The name of the model that predicts."""
        if self.facts:
            return self._head or str(self.facts["chosen"])
        return self.saved.name

    @cached_property
    def predictor(self) -> Predictor:
        if self.facts:
            return FittedPredictor(self.folder, self._head, self._reporter, self._settings)
        return Predictor(self.folder, self._head, self._epochs, self._reporter, self._settings)

    def predict(self, texts: Any) -> Any:
        """Predict on texts: a list gives a list of results, one text or pair gives one result.

        A pair is a tuple (question, passage), or a mapping with `question` and `passage` or `text` and `text_pair`.
        """
        results: list[Result] = self.predictor.predict_texts(texts)
        return results[0] if is_alone(texts) else results

    def read(self, path: str | DataFile) -> Sequence[Example]:
        """Read new text from a file, or from an address, in any format the model's task supports. Many rows wait on
        disk. The encoder is not needed."""
        columns = files_columns(self.run.settings.task)
        return collect_examples(read_new_text(self.run.task, find_data_file(path), columns))

    def columns(self) -> list[Columns]:
        """The names that texts may have in lines of JSON: the run's own, or any that are usual."""
        return usual_columns(self.run.task, files_columns(self.run.settings.task))

    def states(self, texts: Any, read: str = "tokens") -> "np.ndarray | list[np.ndarray]":
        """The hidden states of each text, or of one, as float32: (token, layer, hidden), layer 0 being the embeddings.
        With `read` "cls" or "mean": (layer, hidden). Texts are cut at the model's number of tokens."""
        found = self.predictor.states(texts, read)
        return found[0] if is_alone(texts) else found

    def save_pretrained(self, folder: Path | str, **sharing: Any) -> Path:
        """Save what predicts, and nothing else, to a new or empty folder, which `bv.load` reads on any machine.
        `sharing`: `license` and `datasets`, for the card."""
        from bertvision.models.share import save_model
        from bertvision.report.hub_card import Sharing

        return save_model(self, as_path(folder, "the folder"), sharing=Sharing(**sharing))

    def _push(self, name: str, license: str | None, datasets: Sequence[str], **settings: Any) -> str:
        from bertvision.models.share import push_model
        from bertvision.report.hub_card import Sharing

        return push_model(self, name, Sharing(license, datasets), **settings)

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, revision: str | None = None, token: str | None = None, **settings: Any
    ) -> Self:
        """Open a model from a folder, or from the hub by its name. `settings` are those of `Model`."""
        return cls(pull(name, (TASK,), revision, token) if is_hub_name(name) else name, **settings)

    def __repr__(self) -> str:
        what = counted(len(self.labels), "label") if self.labels else {"span": "answers"}.get(self.kind, "a score")
        return f"<Model {self.folder.name}: {self.chosen} on {self.encoder}, {what}>"


def is_run(folder: Path) -> bool:
    return os.path.isfile(folder / TASK) or os.path.isfile(folder / SCORES)


def load(
    name: str | Path = "default",
    tasks: Iterable[str] | None = None,
    *,
    head: str | None = None,
    epochs: float | None = None,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    token: str | None = None,
    reporter: Reporter | None = None,
) -> Any:
    """Open a model: the folder of a run, of a fitted model or of a kit, the name of a shipped kit, or USER/NAME on the
    Hugging Face hub.

    `head` names another model of a run or of a leaderboard than the chosen one, and `epochs` another snapshot of a run.
    `tasks` selects the tasks of a kit (default: all). `device` and `dtype` are as in the settings (default: "auto").
    `revision` (a branch or commit) and `token` are for the hub.
    """
    folder = as_path(name, "the model")  # raises for what is no path
    if is_hub_name(name) and not folder.exists():
        folder = name = pull(str(name), (TASK, KIT), revision, token)
    if is_run(folder):  # or a fitted model, which has the files of a run
        _refuse(name, "a kit", tasks=tasks)
        return Model(folder, head, reporter, epochs, device, dtype)
    if is_export(folder):
        _refuse(name, "a run", head=head, epochs=epochs, device=device, dtype=dtype)
        return open_export(folder, tasks)
    if is_kit(name):
        _refuse(name, "a run", head=head, epochs=epochs)
        return Kit(find_kit(name), tasks, device=device or "auto", dtype=dtype or "auto", reporter=reporter)
    known = ", ".join(shipped_kits())
    raise UserError(
        f"'{name}' is no model: give the folder of a run, of a fitted model, of a kit or of an export, the name of a "
        f"shipped kit ({known}), or USER/NAME on the Hugging Face hub."
    )


def _refuse(name: str | Path, what: str, **settings: Any) -> None:
    given = [setting for setting, value in settings.items() if value is not None]
    if given:
        raise UserError(f"{' and '.join(given)} can't be given here: '{name}' is not {what}.")
