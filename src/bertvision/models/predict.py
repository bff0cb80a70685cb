"""Predictions of a fitted model for new text, each with its trust."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from bertvision.config import EncoderConfig
from bertvision.data.examples import Example
from bertvision.data.windows import Features
from bertvision.disk import as_form, as_path, damaged, inside, read_json
from bertvision.disk.forms import Count, Epochs, Facts, Few, Name, Seed
from bertvision.errors import UserError
from bertvision.kinds import Predictions, kind_in
from bertvision.models.folder import FILE, FOLDER_NAMES, FORMAT, TFIDF_FOLDER, TUNED
from bertvision.models.tfidf import Tfidf
from bertvision.pipeline.folder import ENCODER, check_format
from bertvision.pipeline.predict import Predictor, check_choice
from bertvision.progress import Reporter

SPAN_ALIASES = {"last_linear": ENCODER}


class TuningFile(TypedDict):
    epochs: Epochs


class ChoiceFile(TypedDict):
    how: str
    folds: Few
    rows: Count


class FittedFile(TypedDict):
    """What is read of model.json, which models/save.py writes. Its other entries are for people."""

    format: int
    model: str
    task: Name
    kind: Name
    labels: list[str]
    encoder: str
    metric: str
    choice: ChoiceFile
    chosen: Name
    leaderboard: list[dict[str, str | int | float | None]]
    trust: dict[str, Any]
    notes: NotRequired[list[str]]
    seed: NotRequired[Seed]
    tuned: NotRequired[TuningFile | None]


class FittedPredictor(Predictor):
    """A model of a fitted folder, loaded for new text: the chosen one, or another of its leaderboard."""

    def __init__(
        self,
        folder: Path | str,
        head: str | None = None,
        reporter: Reporter | None = None,
        encoder: Mapping[str, Any] | None = None,
    ) -> None:
        check_choice(head)
        self.facts = read_facts(as_path(folder, "the model's folder"))
        self._tfidf: Tfidf | None = None
        name, epochs = find_fitted(self.facts, head, folder)
        super().__init__(folder, name, epochs, reporter, encoder)

    def _load(self, names: list[str], settings: EncoderConfig) -> None:
        if self.model.role == "peer":
            self._tfidf = Tfidf.load(inside(self.folder.snapshot(self.epochs), TFIDF_FOLDER))
            return
        absent = [name for name in names if name != ENCODER and not self.folder.head(self.epochs, name).is_dir()]
        if absent:
            raise UserError(
                f"'{self.folder.path}' has only the scores of {', '.join(absent)}, not the model: fit again with "
                f"--heads {','.join(absent)}."
            )
        super()._load(names, settings)

    def _build_features(self, examples: Sequence[Example]) -> Features:
        if self._tfidf is not None:
            nothing: Any = None  # TF-IDF reads the texts themselves
            return nothing
        return super()._build_features(examples)

    def _predict(self, examples: Sequence[Example], features: Features) -> Predictions:
        if self._tfidf is None:
            return super()._predict(examples, features)
        texts = [one.text if one.text_pair is None else f"{one.text}\n{one.text_pair}" for one in examples]
        return self.task.kind.decode(self.task, self._tfidf(texts), features, examples)


def find_fitted(facts: Mapping[str, Any], head: str | None, folder: Path | str) -> tuple[str | None, float | None]:
    """The name that the folder has for a model of the leaderboard, and its snapshot. None: the chosen one's."""
    tuned, epochs = facts.get("tuned"), None
    if tuned is None and head is not None and head.startswith(TUNED):
        raise UserError(
            f"'{folder}' has no tuned encoder, so no '{head}': `fit --tune` saves one only if a head on it is chosen."
        )
    if tuned is not None and head is not None:  # the folder has two encoders
        epochs = tuned["epochs"] if head.startswith(TUNED) else 0.0
    aliases = SPAN_ALIASES if facts["kind"] == "span" else FOLDER_NAMES
    return (None if head is None else aliases.get(head, head)), epochs


def read_facts(folder: Path) -> dict[str, Any]:
    """The contents of model.json, with what is only shown."""
    path = inside(folder, FILE)
    found = read_json(path, Facts)
    if found is None:
        raise UserError(f"'{folder}' is not a fitted model: it has no {FILE}. `bertvision fit` creates one.")
    if isinstance(stated := found.get("format"), int):
        check_format(folder, stated, FORMAT, "fit the model again")
    try:
        facts = as_form(found, FittedFile)
        as_form(facts["trust"], kind_in(path, facts["kind"]).trust_form)
    except UserError:
        raise
    except ValueError as error:
        raise damaged(path, error) from None
    return {**found, **facts}
