from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest
from tiny_reports import TinyRun, build_tiny_run, label_results, score_results, span_results

from bertvision.data.examples import Answer, Example
from bertvision.kinds import KINDS, LABEL, SCORE, SPAN, ExampleResults, Kind
from bertvision.kinds.base import to_json_line
from bertvision.pipeline.finished import FinishedRun
from bertvision.pipeline.folder import HELD_OUT
from bertvision.report.analyses.disagreements import cut, disagreements, draw_evenly
from bertvision.report.block import Block

Said = list[dict[str, Any]]


def run_of(folder: Path, kind: Kind, **models: tuple[ExampleResults, Said]) -> FinishedRun:
    """Models with their results and the rows of their predictions.jsonl."""
    run = TinyRun(folder, kind)
    for name, (results, said) in models.items():
        run.add(name, results=results)
        place = run.folder.predictions(1.0, "dev", name) / "predictions.jsonl"
        place.write_text("".join(map(to_json_line, said)), encoding="utf-8")
    return run.write()


def with_data(monkeypatch: pytest.MonkeyPatch, examples: list[Example]) -> None:
    monkeypatch.setattr(FinishedRun, "examples", lambda self, split: examples)


def label_rows(second: list[float]) -> Said:
    return [{"label": "yes" if p > 0.5 else "no", "probabilities": {"no": 1 - p, "yes": p}} for p in second]


def labels(folder: Path, encoder: list[float], head: list[float]) -> FinishedRun:
    """All of the first label, "no", with what both gave the second, "yes"."""
    targets = [0] * len(encoder)
    return run_of(
        folder,
        LABEL,
        encoder=(label_results(targets, encoder), label_rows(encoder)),
        adapter_64=(label_results(targets, head), label_rows(head)),
    )


def squares(block: Block | None) -> dict[tuple[str, str], int]:
    assert block and block.picture
    return {(row["encoder"], row["head"]): row["examples"] for row in block.picture["data"]["values"]}


# ---------------------------------------------------------------------- labels


def test_who_alone_was_right_is_counted_and_tested(tmp_path: Path) -> None:
    # Both right twice, only the encoder once, only the head five times, neither three times.
    encoder = [0.1] * 3 + [0.9] * 8
    head = [0.1] * 2 + [0.9] + [0.1] * 5 + [0.9] * 3
    block = disagreements(labels(tmp_path, encoder, head), "dev")
    found = {("right", "right"): 2, ("right", "wrong"): 1, ("wrong", "right"): 5, ("wrong", "wrong"): 3}
    assert squares(block) == found
    p = binomtest(1, 6).pvalue
    assert block and block.sentences == [
        "Of 11 examples, both models get 2 right and 3 wrong. Only adapter_64 is right on 5, and only the encoder "
        "alone on 1.",
        f"adapter_64 is ahead by 4 examples. This could be due to chance (McNemar's exact test: p = {p:.3f}).",
    ]
    assert block.in_words() == (
        "Two-by-two table of counts. Both right: 2; only the encoder alone right: 1; only adapter_64 right: 5; neither "
        "right: 3."
    )


def test_the_encoder_can_be_ahead_by_more_than_chance(tmp_path: Path) -> None:
    block = disagreements(labels(tmp_path, [0.1] * 12, [0.9] * 11 + [0.1]), "dev")
    assert block and block.sentences[1].startswith(
        "The encoder alone is ahead by 11 examples. This is unlikely to be due to chance"
    )


def test_equal_numbers_put_nobody_ahead(tmp_path: Path) -> None:
    block = disagreements(labels(tmp_path, [0.1, 0.9], [0.9, 0.1]), "dev")
    assert block and block.sentences[1] == "Neither is ahead (McNemar's exact test: p = 1.000)."


def test_models_that_never_disagree_have_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_data(monkeypatch, [Example("a", "one", target=0), Example("b", "two", target=0)])
    block = disagreements(labels(tmp_path, [0.1, 0.9], [0.3, 0.6]), "dev")
    assert block and block.table is None and block.note == ""
    assert block.sentences == ["The encoder alone and adapter_64 get the same 1 of 2 examples right."]


def test_labels_are_read_with_their_probabilities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_data(monkeypatch, [Example("a", "one", "two", target=0), Example("b", "three", "word " * 70, target=0)])
    block = disagreements(labels(tmp_path, [0.1, 0.75], [0.75, 0.1]), "dev")
    assert block and block.table
    first, second = block.table.records()
    assert second == {
        "id": "a", "text": "one", "second text": "two", "gold": "no", "encoder's prediction": "no",
        "encoder's probability": 0.9, "head's prediction": "yes", "head's probability": 0.75, "right": "encoder alone",
    }  # fmt: skip
    assert (first["id"], first["right"]) == ("b", "adapter_64")
    assert first["second text"] == "word " * 59 + "word …"
    assert "drawn evenly across the split (seed 0)" in block.note


def test_at_most_twenty_of_each_direction_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_data(monkeypatch, [Example(str(number), "text", target=0) for number in range(60)])
    block = disagreements(labels(tmp_path, [0.9] * 50 + [0.1] * 10, [0.1] * 50 + [0.9] * 10), "dev")
    assert block and block.table
    right = [row["right"] for row in block.table.records()]
    assert right == ["adapter_64"] * 20 + ["encoder alone"] * 10
    assert "second text" not in block.table.records()[0]


def test_without_the_data_the_counts_remain(tmp_path: Path) -> None:
    block = disagreements(labels(tmp_path, [0.1, 0.9], [0.9, 0.9]), "dev")
    assert block and block.table is None and block.picture
    assert block.note == "No examples are shown, because the data of this split is no longer available."


def test_without_a_head_there_is_nothing_to_compare(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    for name in ("encoder", "last_linear"):
        run.add(name, results=label_results([0], [0.1]))
    assert disagreements(run.write(), "dev") is None


def test_the_first_seed_that_did_not_fail_stands_for_its_group(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    run.add("encoder", results=label_results([0, 0], [0.1, 0.9]))
    for seed, second in enumerate([[0.1, 0.9], [0.9, 0.1], [0.1, 0.9]]):
        results = label_results([0, 0], second)
        run.add(f"adapter_seed{seed}", results=results, group="adapter", head="adapter", failed=seed == 0)
    block = disagreements(run.write(), "dev")
    assert block and block.sentences[0].endswith("Only adapter is right on 1, and only the encoder alone on 1.")
    assert "adapter has 3 seeds; the first that finished training is shown: adapter_seed1." in block.note


# ---------------------------------------------------------------------- spans


def span_row(answer: str, start: int, probability: float) -> dict[str, Any]:
    place = {"start": start, "end": start + len(answer)} if answer else {"start": None, "end": None}
    return {"answer": answer, "probability": probability, **place}


def test_answers_are_read_with_the_passage_around_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passage = "before " * 100 + "Paris " + "after " * 100
    gold, late = (Answer("Paris", 700), Answer("Paris", 700)), passage.rindex("after")
    with_data(monkeypatch, [Example("a", "Where?", passage, answers=gold), Example("b", "Who?", passage, answers=())])
    has, leads = [True, False], [-1.0, 1.0]
    run = run_of(
        tmp_path,
        SPAN,
        encoder=(span_results([0, 0], has, leads), [span_row("before", 0, 0.6), span_row("", 0, 0.9)]),
        adapter_64=(
            span_results([1, 0], has, [-1.0, -1.0]),
            [span_row("Paris", 700, 0.7), span_row("after", late, 0.5)],
        ),
    )
    block = disagreements(run, "dev")
    assert block and block.table
    first, second = block.table.records()
    shown = str(first.pop("passage"))
    assert first == {
        "id": "a", "question": "Where?", "gold": "Paris", "encoder's prediction": "before",
        "encoder's probability": 0.6, "head's prediction": "Paris", "head's probability": 0.7, "right": "adapter_64",
    }  # fmt: skip
    assert " Paris " in shown and shown.startswith("… ") and shown.endswith(" …") and len(shown.split()) == 62
    predictions = second["encoder's prediction"], second["head's prediction"]
    assert (second["gold"], *predictions) == ("no answer", "no answer", "after")
    assert str(second["passage"]).startswith("… ") and str(second["passage"]).endswith("after")


def test_answers_are_right_at_the_threshold_of_each_model(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, SPAN)
    results = span_results([1, 1], [True, True], [-1, -1])
    for name, threshold in (("encoder", -2.0), ("adapter_64", 0.0)):  # below its leads: the encoder says nothing
        run.add(name, results={"dev": results, HELD_OUT: results}, threshold=threshold)
    assert squares(disagreements(run.write(), "dev"))["wrong", "right"] == 2


@pytest.mark.parametrize(
    ("start", "end", "shown"),
    [
        (0, 0, "0 1 2 3 …"),
        (0, 1, "0 1 2 3 …"),
        (10, 11, "… 4 5 6 7 …"),
        (18, 19, "… 6 7 8 9"),
        (4, 13, "… 2 3 4 5 …"),  # longer than what is shown: from its start
    ],
)
def test_a_text_is_cut_around_a_place(start: int, end: int, shown: str) -> None:
    assert cut(" ".join(map(str, range(10))), start, end, words=4) == shown


def test_a_short_text_stays_whole() -> None:
    assert cut(" a  b\nc ", 0, 0, words=3) == "a  b\nc"


# ---------------------------------------------------------------------- scores


def test_of_scores_the_closer_one_is_counted_and_the_largest_differences_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gold, encoder, head = [1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 3.5, 4.0], [1.0, 5.0, 3.25, 4.0]
    with_data(
        monkeypatch, [Example(name, f"text {name}", target=score) for name, score in zip("abcd", gold, strict=True)]
    )
    run = run_of(
        tmp_path,
        SCORE,
        encoder=(score_results(gold, encoder), [{"score": value} for value in encoder]),
        adapter_64=(score_results(gold, head), [{"score": value} for value in head]),
    )
    block = disagreements(run, "dev")
    assert block and block.table and block.picture
    assert block.sentences == [
        "adapter_64 is closer to the gold score on 2 of 4 examples and the encoder alone on 1; the errors are equal on "
        f"1 (sign test: p = {binomtest(1, 3).pvalue:.3f}).",
        "The mean absolute error is 0.812 for adapter_64 and 0.375 for the encoder alone.",
    ]
    assert block.table.rows == [
        ["a", "text a", 1.0, 2.0, 1.0, "adapter_64"],
        ["c", "text c", 3.0, 3.5, 3.25, "adapter_64"],
        ["b", "text b", 2.0, 2.0, 5.0, "encoder alone"],
    ]
    points = block.picture["layer"][1]["data"]["values"]
    assert [(row["encoder_error"], row["head_error"]) for row in points] == [(1, 0), (0, 3), (0.5, 0.25), (0, 0)]


def test_a_large_set_is_drawn_in_part(tmp_path: Path) -> None:
    results = score_results([0.0] * 1500, np.linspace(0, 1, 1500).tolist())
    block = disagreements(run_of(tmp_path, SCORE, encoder=(results, []), adapter_64=(results, [])), "dev")
    assert block and block.picture and len(block.picture["layer"][1]["data"]["values"]) == 1000
    assert "1,000 of 1,500 examples" in block.note


# ---------------------------------------------------------------------- the draw


def test_examples_are_drawn_from_the_whole_split_and_always_the_same() -> None:
    numbers = np.arange(0, 3000, 3)
    drawn = draw_evenly(numbers, 20)
    assert [number // 150 for number in drawn] == list(range(20)) and set(drawn) <= set(numbers.tolist())
    assert drawn == draw_evenly(numbers, 20) != draw_evenly(numbers, 20, seed=1)


def test_few_examples_are_all_taken() -> None:
    assert draw_evenly(np.array([3, 1, 4]), 3) == [3, 1, 4]


@pytest.mark.parametrize("kind", KINDS.values())
def test_a_whole_run_of_any_kind_has_a_table_for_reading(tmp_path: Path, kind: Kind) -> None:
    run = build_tiny_run(tmp_path, kind)
    block = disagreements(run, "dev")
    assert block and block.table and block.table.rows and block.picture and block.in_words()
    known = {example.id for example in run.examples("dev") or ()}
    assert {row[0] for row in block.table.rows} <= known
