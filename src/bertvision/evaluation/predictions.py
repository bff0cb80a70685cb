"""Predictions: what a model says of each example, with ids: what is scored, ensembled, analysed, saved."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

from bertvision.data.windows import Features
from bertvision.evaluation.answers import Candidate, SpanAnswer, SpanAnswers
from bertvision.evaluation.lines import escape_line_ends, write_lines
from bertvision.evaluation.metrics import answerable_by_question
from bertvision.evaluation.spans import answers_at, decode_spans
from bertvision.tasks.base import Example, TargetKind, Task

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Predictions:
    kind: TargetKind
    ids: list[str]
    answers: Sequence[SpanAnswer] = ()
    """Spans: the n best of each question."""
    probabilities: np.ndarray | None = None  # (example, label)
    values: np.ndarray | None = None  # (example)
    labels: tuple[str, ...] = ()

    def label_indices(self) -> np.ndarray:
        assert self.probabilities is not None
        return self.probabilities.argmax(axis=1)  # (example)

    def outputs(self, threshold: float = 0.0) -> list[int] | list[float] | list[str]:
        """The bare prediction of each example: answer text, label index or score."""
        if self.kind is TargetKind.SPAN:
            return list(answers_at(self.answers, threshold).values())
        if self.kind is TargetKind.LABEL:
            return [int(index) for index in self.label_indices()]
        assert self.values is not None
        return [float(value) for value in self.values]

    def rows(self, threshold: float = 0.0) -> list[dict[str, Any]]:
        """One JSON-able row an example, as users read them."""
        if self.kind is TargetKind.SPAN:
            return [_span_row(answer, threshold) for answer in self.answers]
        if self.kind is TargetKind.SCORE:
            assert self.values is not None
            return [{"id": id, "score": round(float(v), 5)} for id, v in zip(self.ids, self.values, strict=True)]
        assert self.probabilities is not None
        return [
            {
                "id": id,
                "label": self.labels[int(row.argmax())],
                "probabilities": {name: round(float(p), 6) for name, p in zip(self.labels, row, strict=True)},
            }
            for id, row in zip(self.ids, self.probabilities, strict=True)
        ]

    def lines(self, threshold: float = 0.0) -> Iterator[str]:
        """The rows as lines of JSON, some at a time."""
        if isinstance(self.answers, SpanAnswers):
            return write_lines(self.answers, threshold)
        return map(to_json_line, self.rows(threshold))


def build_predictions(
    task: Task,
    outputs: np.ndarray,
    features: Features,
    examples: list[Example],
    n_best: int = 20,
    longest: int = 30,
    device: "torch.device | str" = "cpu",
) -> Predictions:
    """Raw outputs of one model become what it says of each example; `device` is where spans are searched."""
    ids = [example.id for example in examples]
    if task.kind is TargetKind.SPAN:
        answers = decode_spans(outputs[:, 0], outputs[:, 1], features, examples, n_best, longest, device)
        return Predictions(task.kind, ids, answers=answers)
    if task.kind is TargetKind.SCORE:
        return Predictions(task.kind, ids, values=outputs[:, 0])
    probabilities = _softmax(outputs)  # (window, label)
    if task.windowed:
        probabilities = answerable_by_question(probabilities, features, examples)  # (example, label)
    return Predictions(task.kind, ids, probabilities=probabilities, labels=task.labels)


def save_predictions(folder: Path, predictions: Predictions, outputs: np.ndarray | None, threshold: float) -> None:
    """predictions.jsonl for people and programs, outputs.safetensors (the raw outputs, if any) for ensembles."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "predictions.jsonl").open("wb", buffering=1 << 20) as file:
        file.writelines(line.encode() for line in predictions.lines(threshold))
    if outputs is not None:
        save_file({"outputs": np.ascontiguousarray(outputs)}, folder / "outputs.safetensors")


def to_json_line(row: dict[str, Any]) -> str:
    """One row as a line: characters that some readers take for the end of a line are escaped."""
    return escape_line_ends(json.dumps(row, ensure_ascii=False)) + "\n"


def _softmax(outputs: np.ndarray) -> np.ndarray:
    powers = np.exp(outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)  # (window, label)


def _span_row(answer: SpanAnswer, threshold: float) -> dict[str, Any]:
    is_silent = answer.null_lead > threshold
    best = answer.n_best[0].probability if answer.n_best else 0.0
    return {
        "id": answer.id,
        "answer": "" if is_silent else answer.text,
        "probability": round(answer.null_probability if is_silent else best, 6),
        "start": None if is_silent else answer.start,
        "end": None if is_silent else answer.end,
        "null_score": round(answer.null_score, 5),
        "score": round(answer.score, 5),
        "n_best": [_candidate_row(candidate) for candidate in answer.n_best],
    }


def _candidate_row(candidate: Candidate) -> dict[str, Any]:
    rounded = {"score": round(candidate.score, 5), "probability": round(candidate.probability, 6)}
    return {**candidate._asdict(), **rounded}
