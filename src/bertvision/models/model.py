"""A fitted model, and `bv.load`, which opens fitted models and kits.

model = bv.load("models/intents")
model.predict(["Where is my card?"])      [{'label': 'card_arrival', 'probabilities': {…}, 'trust': {…}}]
"""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from bertvision.data.texts import Text
from bertvision.disk import as_path
from bertvision.errors import UserError
from bertvision.kits.kit import is_kit, shipped_kits
from bertvision.kits.kit import load as load_kit
from bertvision.models.exported import is_export, open_export
from bertvision.models.folder import is_fitted
from bertvision.models.predict import FittedPredictor, read_facts
from bertvision.progress import Reporter
from bertvision.tables import counted


class Model:
    """A fitted model. The encoder is loaded with the first prediction and stays in memory."""

    def __init__(self, folder: Path | str, head: str | None = None, reporter: Reporter | None = None) -> None:
        """`head` names another model of the leaderboard than the chosen one."""
        self.folder = as_path(folder, "the model's folder")
        self._head, self._reporter = head, reporter
        self.facts: dict[str, Any] = read_facts(self.folder)

    @property
    def kind(self) -> str:
        """What it predicts: "label", "score" or "span"."""
        return str(self.facts["kind"])

    @property
    def labels(self) -> list[str]:
        return list(self.facts["labels"])

    @property
    def leaderboard(self) -> list[dict[str, Any]]:
        """What was tried: name, scores, seconds and parameters of each."""
        return list(self.facts["leaderboard"])

    @property
    def chosen(self) -> str:
        return self._head or str(self.facts["chosen"])

    @cached_property
    def predictor(self) -> FittedPredictor:
        return FittedPredictor(self.folder, self._head, self._reporter)

    def predict(self, texts: Iterable[Text]) -> list[dict[str, Any]]:
        """Predict one row per text: a label with probabilities, a score or an answer, and its trust. A pair, such as
        (question, passage), is a tuple."""
        rows = self.predictor.predict_texts(texts)
        return [{key: value for key, value in row.items() if key != "id"} for row in rows]

    def __repr__(self) -> str:
        what = counted(len(self.labels), "label") if self.labels else {"span": "answers"}.get(self.kind, "a score")
        return f"<Model {self.folder.name}: {self.chosen} on {self.facts['encoder']}, {what}>"


def load(name: str | Path = "default", tasks: Iterable[str] | None = None, **settings: Any) -> Any:
    """Load a fitted model from its folder, a shipped kit by name, or any kit or exported model from its folder.

    For a fitted model, `head` names another model of its leaderboard than the chosen one. For a kit, `tasks` selects
    its tasks (default: all), and `settings` are `device` and `dtype` (default: "auto").
    """
    as_path(name, "the model")  # raises for what is no path
    if is_fitted(name):
        return Model(name, **settings)
    if is_export(name):
        return open_export(name, tasks)
    if not is_kit(name):
        known = ", ".join(shipped_kits())
        raise UserError(
            f"'{name}' is neither a fitted model nor a kit: give the folder that `bertvision fit` or `bertvision kit` "
            f"wrote, or the name of a shipped kit ({known})."
        )
    return load_kit(name, tasks, **settings)
