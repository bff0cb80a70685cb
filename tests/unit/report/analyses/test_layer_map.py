"""The layer map's block: what it tells, what it draws, and that it is computed once."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_training import Listening

from bertvision.pipeline.finished import FinishedRun
from bertvision.progress import Reporter
from bertvision.report import strengths
from bertvision.report.analyses import layer_map as module
from bertvision.report.analyses.layer_map import choose_tokens, layer_map
from bertvision.report.strengths import LayerMap

QUIET = Reporter()


def map_of(strength: list[list[float]], **changes: Any) -> LayerMap:
    layers = ["embeddings", "layer 1", "layer 2", "layer 3"][: len(strength)]
    tokens = ["[CLS]", "who", "?", "[SEP]", "anna", "said"]
    values = {
        "example": "e", "head": "ladder_16", "layers": layers, "tokens": tokens[: len(strength[0])],
        "strength": np.array(strength), "score": 6.0, "what": "the score", "through": False, "said": "anna",
        "gold": "anna / anna said", "other": "no answer", "answer": (4, 4), "target": (4, 5), "front": 4,
        "texts": ("who?", "anna said"), "place": (0, 4),
    }  # fmt: skip
    return LayerMap(**{**values, **changes})


def test_the_block_tells_where_the_strength_is(mapped_squad: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # All that is positive: 20, of which layer 2 has 12, the upper half 12 + 5, the answer's token 10 + 4.
    found = map_of([[0, 1, 0, 0, 0, 0], [0, 2, 0, 0, 0, 0], [0, 0, -3, 0, 10, 2], [0, 0, 0, 1, 4, 0]])
    monkeypatch.setattr(module, "_cached_map", lambda *_: found)
    block = layer_map(FinishedRun(mapped_squad), "dev", QUIET)
    assert block is not None and block.table is not None and block.picture is not None
    assert block.sentences == [
        "“who?”: ladder_16 says “anna” (gold: “anna / anna said”; the encoder alone: “no answer”).",
        "Passage: “⟦anna⟧ said”",
        "Of all strength that speaks for what was said, the largest share is that of layer 2: 60.0 % (an even share: "
        "25.0 %). The upper half of the layers has 85.0 % (even: 50.0 %).",
        "The strongest single state is that of “anna” at layer 2; over all layers “anna”, “who” and “said” speak most.",
        "70.0 % of that strength is on the answer's own 1 of 6 tokens.",
    ]
    assert block.table.rows[4] == [4, "anna", 0.0, 0.0, 10.0, 4.0]
    assert "at layer 2, by 10.00" in block.in_words() and "tokens are shown" not in block.note


def test_followed_through_the_encoder_each_layer_is_an_account_of_its_own(
    mapped_squad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = map_of([[0, 3, 0, 0, 1, 0], [0, 0, 0, 0, 5, 0]], through=True)
    monkeypatch.setattr(module, "_cached_map", lambda *_: found)
    block = layer_map(FinishedRun(mapped_squad), "dev", QUIET)
    assert block is not None and not any("share" in sentence for sentence in block.sentences)
    told = "On the answer's own 1 of 6 tokens lies 25 % of what speaks for it at the embeddings, and 100 % at layer 1."
    assert block.sentences[-1] == told


def test_the_picture_has_every_state_and_marks_both_answers(
    mapped_squad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = map_of([[0, 1, 0, 0, 0, 0], [0, 2, 0, 0, 0, -5]])
    monkeypatch.setattr(module, "_cached_map", lambda *_: found)
    block = layer_map(FinishedRun(mapped_squad), "dev", QUIET)
    assert block is not None and block.picture is not None
    cells, results = (layer["data"]["values"] for layer in block.picture["layer"])
    assert len(cells) == 12 and {(mark["token"], mark["row"]) for mark in results} == {
        ("anna", "answer given"), ("anna", "gold answer"), ("said", "gold answer"),
    }  # fmt: skip
    colour, rows = (block.picture["layer"][0]["encoding"][name]["scale"]["domain"] for name in ("color", "y"))
    assert colour == [-5, 5] and rows == ["gold answer", "answer given", "layer 1", "embeddings"]


def test_where_nothing_speaks_for_it_that_is_said(mapped_squad: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_cached_map", lambda *_: map_of([[0, 0], [-1, 0]], answer=None, target=None))
    block = layer_map(FinishedRun(mapped_squad), "dev", QUIET)
    assert block is not None and "No state speaks for what was said." in block.sentences


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
    ("text", "place", "expected"),
    [
        ("anna said so", (0, 4), "⟦anna⟧ said so"),
        ("it was anna", None, "it was anna"),
        ("word " * 100, (250, 254), f"… {'word ' * 31}⟦word⟧{' word' * 31} …"),
        ("字" * 400, (200, 202), f"… {'字' * 160}⟦字字⟧{'字' * 160} …"),
    ],
)
def test_a_passage_is_shown_around_its_answer_in_whole_words(text: str, place: Any, expected: str) -> None:
    assert module._excerpt(text, place) == expected


def test_a_short_window_is_shown_whole() -> None:
    assert choose_tokens(map_of([[0.0] * 6])) == [0, 1, 2, 3, 4, 5]


def test_a_map_that_was_made_once_is_read_without_encoder_or_data(
    mapped_squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(mapped_squad, tmp_path / "copy", ignore=shutil.ignore_patterns("analyses"))
    first = layer_map(FinishedRun(run), "dev", QUIET)
    monkeypatch.setattr(strengths, "open_encoder", lambda *_: pytest.fail("the encoder is not needed"))
    monkeypatch.setattr(FinishedRun, "examples", lambda *_: pytest.fail("the data are not needed"))
    assert first is not None and layer_map(FinishedRun(run), "dev", QUIET) == first


def test_a_map_of_other_predictions_is_made_anew(mapped_squad: Path, tmp_path: Path) -> None:
    run = shutil.copytree(mapped_squad, tmp_path / "copy", ignore=shutil.ignore_patterns("analyses"))
    layer_map(FinishedRun(run), "dev", QUIET)
    path = run / "analyses" / "layer_map_dev.json"
    before = json.loads(path.read_text())
    for stamp in run.glob("snapshots/epoch_1/predictions/dev/*/stamp.json"):
        stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "stamp": "other"}))
    layer_map(FinishedRun(run), "dev", QUIET)
    after = json.loads(path.read_text())
    assert after["stamp"] != before["stamp"] and after["map"] == before["map"]


def test_without_the_data_the_map_is_left_out_and_that_is_said(
    mapped_squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(mapped_squad, tmp_path / "copy", ignore=shutil.ignore_patterns("analyses"))
    monkeypatch.setattr(FinishedRun, "examples", lambda *_: None)
    reporter = Listening()
    assert layer_map(FinishedRun(run), "dev", reporter) is None
    assert len(reporter.lines) == 1 and "no longer there" in reporter.lines[0]
