"""The runtime cuts windows, decodes outputs, combines members and looks up trust as bertvision does."""

from typing import Any

import numpy as np
import pytest
import regex
from bertvision_runtime.answers import _graphemes, decode
from bertvision_runtime.folder import Task
from bertvision_runtime.texts import build_windows
from tiny_encoders import tiny_tokenizer
from tokenizers import Tokenizer

from bertvision.data.examples import Example
from bertvision.data.windows import Features, build_features
from bertvision.kinds import LABEL, SCORE, SPAN, Decoding

PASSAGES = [
    "The book was written by Ada in 1850 .",
    "It rains . " * 30 + "Ada lives in Paris . " * 20,
    "  Le cafe\u0301 est à\tParis ,\n\U0001f469\u200d\U0001f680 et \u1100\u1161 Rome .  ",
    "\u200b\u3000 a \ud800 b",
    "x" * 300,
]
KINDS = {"span": SPAN, "label": LABEL, "score": SCORE}


def task_of(kind: str, **changes: Any) -> Task:
    facts: dict[str, Any] = {
        "name": "own", "kind": kind, "labels": {"label": ("no", "yes")}.get(kind, ()), "pairs": True,
        "windowed": kind == "span", "towers": False, "max_length": 40, "overlap": 10, "n_best": 5,
        "max_answer_tokens": 6, "threshold": 0.25, "trust": None, "outputs": ("output_0",), "method": None,
        "weights": None,
    }  # fmt: skip
    return Task(**(facts | changes))


def features_of(task: Task, examples: list[Example]) -> Features:
    kind = KINDS[task.kind]
    return build_features(examples, tiny_tokenizer(), kind, task.windowed, task.max_length, task.overlap)


def rows_of(
    task: Task, members: list[np.ndarray], features: Features, examples: list[Example], trust: Any
) -> list[Any]:
    """What bertvision makes of the members' outputs."""
    kind, joined = KINDS[task.kind], members[0]
    if task.method is not None:
        joined = kind.combine(members, features, task.method, None if task.weights is None else np.array(task.weights))
    how = Decoding(task.n_best, task.max_answer_tokens, are_logs=task.method is not None)
    rows = kind.decode(task, joined, features, examples, how).rows(task.threshold)
    return [row | {"trust": None if trust is None else kind.trust_row(row, trust, task.threshold)} for row in rows]


def results_of(task: Task, members: list[np.ndarray], features: Features, examples: list[Example]) -> list[Any]:
    """What the runtime makes of them."""
    tokenizer = Tokenizer.from_str(tiny_tokenizer().backend_tokenizer.to_str())
    pairs = [(one.text, one.text_pair) for one in examples]
    found, row = [], 0
    for pair, windows in zip(pairs, build_windows(tokenizer, task, pairs, True), strict=True):
        outputs: list[list[np.ndarray]] = [[] for _ in members]
        for _ in windows:
            some = features.tokens_of(row) if task.kind == "span" else row
            for member, own in zip(members, outputs, strict=True):
                own.append(member[some])
            row += 1
        found.append(decode(task, outputs, windows, pair).to_dict())
    return found


@pytest.mark.parametrize("windowed", [True, False])
def test_windows_have_the_same_tokens_and_offsets(windowed: bool) -> None:
    examples = [Example(str(n), "Who wrote the book ?", passage) for n, passage in enumerate(PASSAGES)]
    task = task_of("span" if windowed else "label", windowed=windowed)
    features = features_of(task, examples)
    tokenizer = Tokenizer.from_str(tiny_tokenizer().backend_tokenizer.to_str())
    own = build_windows(tokenizer, task, [(one.text, one.text_pair) for one in examples], True)
    flat = [window for windows in own for window in windows]
    assert [len(windows) for windows in own] == np.bincount(features.example).tolist()
    assert (max(map(len, own)) > 2) == windowed
    for number, window in enumerate(flat):
        tokens = features.tokens_of(number)
        assert list(window.ids) == features.input_ids[tokens].tolist()
        assert list(window.types) == features.type_ids[tokens].tolist()
        assert (window.offsets == features.offsets[tokens]).all()


ENSEMBLES = [(None, None), ("max", None), ("mean", None), ("sum", None), ("fitted", (0.2, 0.0, 0.8))]


@pytest.mark.parametrize("method, weights", ENSEMBLES)
@pytest.mark.parametrize("seed", range(4))
def test_the_same_answers_are_found(seed: int, method: str | None, weights: Any) -> None:
    examples = [Example(str(n), "Who wrote the book ?", passage) for n, passage in enumerate(PASSAGES)]
    groups = [{"from": 0.0, "right": 0.4, "examples": 9}, {"from": 1.5, "right": 0.9, "examples": 8}]
    trust: Any = {"answer": groups, "no answer": groups}
    outputs = ("output_0",) if method is None else ("output_0", "output_1", "output_2")
    task = task_of("span", method=method, weights=weights, outputs=outputs, trust=trust)
    features, draw = features_of(task, examples), np.random.default_rng(seed)
    members = [draw.normal(0, 3, (len(features.input_ids), 2)).astype(np.float32) for _ in outputs]
    for member in members:  # ties, and an answer that is beyond the longest
        member[3::7] = member[3]
    expected = rows_of(task, members, features, examples, trust)
    for own, row in zip(results_of(task, members, features, examples), expected, strict=True):
        assert {key: own[key] for key in ("answer", "start", "end")} == {
            key: row[key] for key in ("answer", "start", "end")
        }
        assert own["probability"] == pytest.approx(row["probability"], abs=1e-6)
        assert own["no_answer"] == (not row["answer"]) and own["trust"] == row["trust"]


@pytest.mark.parametrize("method, weights", ENSEMBLES)
@pytest.mark.parametrize("kind", ["label", "score"])
def test_the_same_labels_and_scores_are_found(kind: str, method: str | None, weights: Any) -> None:
    examples = [Example(str(n), "A film .", "It rains .") for n in range(40)]
    groups = [{"from": 0.6, "right": 0.4, "examples": 9}, {"from": 0.9, "right": 0.9, "examples": 8}]
    trust: Any = {"no": groups} if kind == "label" else {"score": [{"off_by": 0.5, "examples": 7}]}
    outputs = ("output_0",) if method is None else ("output_0", "output_1", "output_2")
    task = task_of(kind, method=method, weights=weights, outputs=outputs, trust=trust)
    features, draw = features_of(task, examples), np.random.default_rng(1)
    count = len(task.labels) or 1
    members = [draw.normal(0, 3, (len(features), count)).astype(np.float32) for _ in outputs]
    for own, row in zip(
        results_of(task, members, features, examples), rows_of(task, members, features, examples, trust), strict=True
    ):
        assert own["trust"] == row["trust"]
        if kind == "label":
            assert own["label"] == row["label"] and own["probabilities"] == pytest.approx(
                row["probabilities"], abs=2e-6
            )
        else:
            assert own["score"] == pytest.approx(row["score"], abs=2e-5)


def test_answerability_is_that_of_the_best_window() -> None:
    examples = [Example(str(n), "Who wrote the book ?", passage) for n, passage in enumerate(PASSAGES)]
    task = task_of("label", windowed=True)
    features = features_of(task, examples)
    members = [np.random.default_rng(2).normal(0, 2, (len(features), 2)).astype(np.float32)]
    expected = rows_of(task, members, features, examples, None)
    for own, row in zip(results_of(task, members, features, examples), expected, strict=True):
        assert own["label"] == row["label"] and own["probabilities"] == pytest.approx(row["probabilities"], abs=2e-6)


def test_characters_are_those_of_the_unicode_standard() -> None:
    """`regex` follows annex 29."""
    text = (
        "".join(PASSAGES[2:3])
        + "\r\n\U0001f1e9\U0001f1ea\U0001f1eb 1\ufe0f\u20e3 नमस्ते \u0e01\u0e33 \U0001f44d\U0001f3fd"
    )
    starts, ends = _graphemes(text)
    for match in regex.finditer(r"\X", text, regex.DOTALL):
        low, high = match.span()
        assert starts[low:high] == [low] * (high - low) and ends[low:high] == [high] * (high - low), repr(match[0])
