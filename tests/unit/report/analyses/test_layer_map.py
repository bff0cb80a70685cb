"""Layer maps in a report: text, picture, and that they are computed once."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_training import Listening

from bertvision.disk import read_json, write_json
from bertvision.pipeline.finished import FinishedRun
from bertvision.progress import Reporter
from bertvision.report import strengths
from bertvision.report.analyses import layer_map as module
from bertvision.report.analyses.layer_map import choose_tokens, layer_map_section
from bertvision.report.block import Block, Section
from bertvision.report.strengths import LayerMap

QUIET = Reporter()


def map_of(strength: list[list[float]], **changes: Any) -> LayerMap:
    layers = ["embeddings", "layer 1", "layer 2", "layer 3"][: len(strength)]
    tokens = ["[CLS]", "who", "?", "[SEP]", "anna", "said"]
    values = {
        "example": "e", "head": "ladder_16", "layers": layers, "tokens": tokens[: len(strength[0])],
        "strength": np.array(strength), "score": 6.0, "what": "the score", "through": False, "said": "anna",
        "gold": "anna / anna said", "other": "no answer", "answer": (4, 4), "target": (4, 5), "front": 4,
        "texts": ("who?", "anna said"), "place": (0, 4), "gold_place": (0, 9),
    }  # fmt: skip
    return LayerMap(**{**values, **changes})


def section_of(run: Path, monkeypatch: pytest.MonkeyPatch, *maps: LayerMap) -> Section:
    monkeypatch.setattr(module, "_cached_maps", lambda *_: list(maps))
    section = layer_map_section(FinishedRun(run), "dev", QUIET)
    assert section is not None
    return section


def block_of(run: Path, monkeypatch: pytest.MonkeyPatch, found: LayerMap) -> Block:
    (block,) = section_of(run, monkeypatch, found).blocks
    return block


def test_the_block_tells_about_the_example_and_where_the_strength_is(
    mapped_squad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All that is positive: 20, of which layer 2 has 12, the upper half 12 + 5, the answer's token 10 + 4.
    found = map_of([[0, 1, 0, 0, 0, 0], [0, 2, 0, 0, 0, 0], [0, 0, -3, 0, 10, 2], [0, 0, 0, 1, 4, 0]])
    block = block_of(mapped_squad, monkeypatch, found)
    assert block.table is not None and block.picture is not None and block.shown is not None
    assert block.sentences == [
        "Asked “who?”, ladder_16 answers “anna”. The right answer is “anna / anna said”; the encoder alone gives no "
        "answer."
    ]
    assert block.shown.passages == [[("anna", "both"), (" said", "gold")]]
    assert block.after == [
        "The strongest single state is “anna” at layer 2: it pushes towards the prediction, by 10.00.",
        "Over all layers, “anna”, “who” and “said” push most towards the prediction.",
        "The largest share of that push comes from layer 2: 60.0 % (an even share would be 25.0 %). The upper half of "
        "the layers has 85.0 % (even: 50.0 %).",
        "The answer's own tokens (1 of 6) have 70.0 % of it.",
    ]
    assert block.table.rows[4] == [4, "anna", 0.0, 0.0, 10.0, 4.0]
    assert "at layer 2: it pushes towards the prediction, by 10.00" in block.in_words()
    assert "tokens are shown" not in block.note


def test_the_strongest_state_may_push_against_the_prediction(
    mapped_squad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = block_of(mapped_squad, monkeypatch, map_of([[0, 1, 0, 0, 2, 0], [0, 0, -7, 0, 5, 0]]))
    strongest = "The strongest single state is “?” at layer 1: it pushes against the prediction, by 7.00."
    assert block.after[0] == strongest and block.alt.endswith(strongest)


def test_through_the_encoder_each_layer_adds_up_on_its_own(mapped_squad: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = map_of([[0, 3, 0, 0, 1, 0], [0, 0, 0, 0, 5, 0]], through=True)
    block = block_of(mapped_squad, monkeypatch, found)
    assert not any("share" in sentence for sentence in block.after)
    told = "The answer's own tokens (1 of 6) carry 25 % of the push at the embeddings and 100 % at layer 1."
    assert block.after[-1] == told


def test_labels_and_scores_are_described_in_their_own_words(
    mapped_rte: Path, mapped_stsb: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none: dict[str, Any] = {"answer": None, "target": None, "place": None, "gold_place": None}
    label = block_of(mapped_rte, monkeypatch, map_of([[0, -2]], said="yes", gold="no", other="no", **none))
    assert label.sentences == ["ladder_16 predicts “yes”. The right label is “no”; the encoder alone predicts “no”."]
    assert label.shown is not None and label.shown.passages == [[("who?", "")], [("anna said", "")]]
    assert label.after == ["No state pushes towards the prediction."]
    section = section_of(mapped_stsb, monkeypatch, map_of([[0, -2, 1]], said="1.20", gold="1.00", other="3.00", **none))
    score = section.blocks[0]
    assert score.sentences == ["ladder_16 predicts 1.20. The gold score is 1.00; the encoder alone predicts 3.00."]
    assert "at the embeddings: it pushes towards a lower score, by 2.00." in score.after[0]
    assert section.intro.endswith("Blue pushed the score up, orange down.")


def test_examples_are_picked_from_a_list_with_files_of_their_own(
    mapped_squad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps = [map_of([[0, 1]], texts=(f"who {number}?" * 20, "anna"), outcome=f"group {number}") for number in range(3)]
    section = section_of(mapped_squad, monkeypatch, *maps)
    assert section.is_picked and [block.key for block in section.blocks] == [
        "layer_map_dev", "layer_map_dev_2", "layer_map_dev_3",
    ]  # fmt: skip
    assert [block.shown.group for block in section.blocks if block.shown] == ["group 0", "group 1", "group 2"]
    assert all(block.shown and block.shown.label.endswith(" …") for block in section.blocks)
    assert "Each square is one hidden state: tokens across, layers up." in section.intro


def test_the_picture_has_every_state_and_marks_both_answers(
    mapped_squad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = map_of([[0, 1, 0, 0, 0, 0], [0, 2, 0, 0, 0, -5]])
    block = block_of(mapped_squad, monkeypatch, found)
    assert block.picture is not None
    cells, results = (layer["data"]["values"] for layer in block.picture["layer"])
    assert len(cells) == 12 and {(mark["token"], mark["row"]) for mark in results} == {
        ("anna", "prediction"), ("anna", "gold answer"), ("said", "gold answer"),
    }  # fmt: skip
    colour, rows = (block.picture["layer"][0]["encoding"][name]["scale"]["domain"] for name in ("color", "y"))
    assert colour == [-5, 5] and rows == ["gold answer", "prediction", "layer 1", "embeddings"]


@pytest.mark.parametrize("answer", [(100, 104), (21, 22), (198, 198), None])
def test_of_a_long_window_the_question_and_what_is_around_the_answer_are_shown(answer: Any) -> None:
    strength = np.zeros((2, 200))
    strength[1, 150] = 9
    found = map_of(strength.tolist(), tokens=["t"] * 200, front=20, answer=answer)
    shown = choose_tokens(found)
    centre = 150 if answer is None else answer[0]
    assert len(shown) == 60 == len(set(shown)) and shown[:20] == list(range(20)) and centre in shown
    assert shown[20:] == list(range(shown[20], shown[20] + 40)) and shown[-1] < 200
    columns = module._columns({place: str(place) for place in shown})
    gap = [*map(str, range(20)), *(["gap …"] if shown[20] > 20 else []), *map(str, shown[20:])]
    assert columns == gap, "what is left out shows"


@pytest.mark.parametrize(
    ("text", "said", "gold", "expected"),
    [
        ("anna said so", (0, 4), (0, 4), [("anna", "both"), (" said so", "")]),
        ("anna said so", (0, 4), (5, 9), [("anna", "said"), (" ", ""), ("said", "gold"), (" so", "")]),
        ("anna said so", (0, 9), (5, 12), [("anna ", "said"), ("said", "both"), (" so", "gold")]),
        ("anna said so", None, (5, 9), [("anna ", ""), ("said", "gold"), (" so", "")]),
        ("it was anna", None, None, [("it was anna", "")]),
        ("word " * 120, (300, 304), None,
         [("… ", ""), ("word " * 39, ""), ("word", "said"), (" word" * 39, ""), (" …", "")]),
        ("字" * 500, (250, 252), None,
         [("… ", ""), ("字" * 200, ""), ("字字", "said"), ("字" * 200, ""), (" …", "")]),
    ],
)  # fmt: skip
def test_a_passage_is_shown_around_its_answers_in_whole_words(text: str, said: Any, gold: Any, expected: Any) -> None:
    assert module.excerpt(text, map_of([[0.0]], place=said, gold_place=gold)) == expected


def test_an_empty_text_is_named_in_the_list_and_on_the_page(
    mapped_squad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = map_of([[1.0, 0.0, 0.0, 0.0, 0.0]] * 2, texts=(" ", ""), place=None, gold_place=None)
    shown = block_of(mapped_squad, monkeypatch, found).shown
    assert shown is not None and shown.label == "(empty text)" and shown.passages == [[("(empty text)", "")]]


def test_answers_that_are_far_apart_show_the_predicted_one() -> None:
    text = "anna " + "word " * 200 + "bert"
    shown = module.excerpt(text, map_of([[0.0]], place=(0, 4), gold_place=(len(text) - 4, len(text))))
    assert shown[0] == ("anna", "said") and shown[-1] == (" …", "") and len(shown) == 3


def test_a_short_window_is_shown_whole() -> None:
    assert choose_tokens(map_of([[0.0] * 6])) == [0, 1, 2, 3, 4, 5]


def test_maps_that_were_made_once_are_read_without_encoder_or_data(
    mapped_squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(mapped_squad, tmp_path / "copy", ignore=shutil.ignore_patterns("analyses"))
    assert layer_map_section(FinishedRun(run), "dev", QUIET, with_encoder=False) is None
    first = layer_map_section(FinishedRun(run), "dev", QUIET)
    monkeypatch.setattr(strengths, "open_encoder", lambda *_: pytest.fail("the encoder is not needed"))
    monkeypatch.setattr(FinishedRun, "examples", lambda *_: pytest.fail("the data are not needed"))
    assert first is not None and len(first.blocks) > 1
    assert layer_map_section(FinishedRun(run), "dev", QUIET, with_encoder=False) == first


def test_maps_of_other_predictions_or_of_an_older_version_are_made_anew(mapped_squad: Path, tmp_path: Path) -> None:
    run = shutil.copytree(mapped_squad, tmp_path / "copy", ignore=shutil.ignore_patterns("analyses"))
    layer_map_section(FinishedRun(run), "dev", QUIET)
    path = run / "analyses" / "layer_map_dev.json"
    before = read_json(path)
    write_json(path, {"stamp": "of version 1", "map": before["maps"][0]})
    for stamp in run.glob("snapshots/epoch_1/predictions/dev/*/stamp.json"):
        write_json(stamp, {**read_json(stamp), "stamp": "other"})
    layer_map_section(FinishedRun(run), "dev", QUIET)
    after = read_json(path)
    assert after["stamp"] != before["stamp"] and after["maps"] == before["maps"]


def test_without_the_data_the_map_is_left_out_and_that_is_said(
    mapped_squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(mapped_squad, tmp_path / "copy", ignore=shutil.ignore_patterns("analyses"))
    monkeypatch.setattr(FinishedRun, "examples", lambda *_: None)
    reporter = Listening()
    assert layer_map_section(FinishedRun(run), "dev", reporter) is None
    assert len(reporter.lines) == 1 and "no longer available" in reporter.lines[0]
