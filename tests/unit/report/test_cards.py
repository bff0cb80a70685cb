"""Each head's card is one that Hugging Face's own reader understands, with the scores of scores.json."""

import dataclasses
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from tiny_reports import build_tiny_run

from bertvision.kinds import KINDS, LABEL, Kind
from bertvision.pipeline.finished import read_figure
from bertvision.report.cards import build_card, write_cards


@pytest.mark.parametrize("kind", KINDS.values())
def test_cards_hold_what_the_scores_say(kind: Kind, tmp_path: Path) -> None:
    run = build_tiny_run(tmp_path, kind, seeds=2, ensemble="both", snapshots=(0.5, 1.0), head_snapshots=(0.5, 1.0))
    heads = [model for model in run.models() if model.role in ("control", "head")]
    assert write_cards(run) == len(heads) == 12
    for model in heads:
        text = (run.head_folder(model) / "README.md").read_text(encoding="utf-8")
        card = ModelCard(text)
        assert card.data.library_name == "bertvision"
        results = {result.metric_type: result for result in card.data.eval_results or []}
        assert results and all(result.dataset_split == "dev" for result in results.values())
        for key, result in results.items():
            assert result.metric_value == pytest.approx(read_figure(model.scores("dev"), key), abs=1e-4)
        assert f"{model.parameters:,} parameters" in text and "encoder alone" in text
        assert ("epochs=0.5" in text) == (model.epochs == 0.5), "how to use it names an earlier snapshot"


def test_a_card_names_the_data_without_the_folders_of_its_author(tmp_path: Path) -> None:
    run = build_tiny_run(tmp_path, LABEL)
    run.task = dataclasses.replace(run.task, source="train: /home/ada/data/train.tsv, dev: ~/dev.tsv")
    card = build_card(run, next(model for model in run.models() if model.role == "head"))
    assert "- data: train: train.tsv, dev: dev.tsv\n" in card
