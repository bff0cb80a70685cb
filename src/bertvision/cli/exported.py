"""`bertvision predict` with an exported model or kit: without torch, so that it answers at once."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertvision.errors import UserError
from bertvision.models.exported import open_export
from bertvision.progress import Reporter, RichReporter

BATCH = 256
"""Texts that are predicted together."""


class Results(dict[str, Any]):
    """Task → result, for one text."""

    def to_dict(self) -> dict[str, Any]:
        return {task: result.to_dict() for task, result in self.items()}


class Exported:
    """An exported model or kit, and what was asked of it: like `predict.Asked`."""

    is_kit = True
    """Results are shown and written as those of a kit."""

    def __init__(self, folder: str, tasks: list[str] | None) -> None:
        self.model = open_export(folder, tasks)
        self.title = Path(folder).name

    def open(self) -> None:
        """It is loaded already."""

    def read(self, file: str, most_megabytes: int, place: Path) -> Sequence[Any]:
        """The examples in a file. Those of a long one wait on disk."""
        from bertvision.cli.predict import read_texts_of

        return read_texts_of(file, most_megabytes, place)

    def predict(self, examples: Sequence[Any]) -> list[Any]:
        """The result of each example. One that can't be predicted gets {"error": sentence}."""
        texts = [one.text if one.text_pair is None else (one.text, one.text_pair) for one in examples]
        try:
            return self._ask(texts)
        except UserError:
            return [self._try(one) for one in examples]

    def _try(self, example: Any) -> Any:
        from bertvision.data.texts import blank

        if problem := blank(example.text, example.text_pair):
            return {"error": problem}
        try:
            return self.predict_one(example.text, example.text_pair, example.id)
        except UserError as error:
            return {"error": str(error)}

    def predict_file(self, examples: Sequence[Any], one_bar: bool) -> Iterator[Any]:
        """The same, in batches."""
        from bertvision.tasks.text_batches import batches_of

        reporter = RichReporter() if one_bar else Reporter()
        with reporter.bar("predicting", len(examples), "texts") as bar:
            for batch in batches_of(examples, BATCH):
                yield from self.predict(batch)
                bar.advance(len(batch))

    def predict_one(self, text: str, pair: str | None, name: str) -> Any:
        return self._ask([text if pair is None else (text, pair)])[0]

    def _ask(self, texts: list[Any]) -> list[Any]:
        with _for_users():
            found = self.model.predict(texts)
        return [Results(one) if isinstance(one, dict) else one for one in found]


@contextmanager
def _for_users() -> Iterator[None]:
    from bertvision_runtime import ExportError

    try:
        yield
    except ExportError as error:
        raise UserError(str(error)) from None
