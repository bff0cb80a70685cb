"""A kit says what each run's own predictor says, from one pass of the encoder."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_encoders import tiny_model, tiny_tokenizer
from torch import nn

import bertvision as bv
from bertvision.config import build_config
from bertvision.errors import UserError
from bertvision.kits import Kit
from bertvision.kits.making import make_kit
from bertvision.predictor import Predictor

FIXTURES = Path(__file__).parents[2] / "fixtures"
HEADS = {
    "sst2": ["adapter_64", {"head": "adapter_64", "read": "mean", "name": "by_mean"}],
    "mrpc": [{"head": "learned_pooling", "read": "mean"}],
    "stsb": ["ladder_64"],
    "squad2": ["ladder_64", "adapter_64"],
    "squad2_answerable": ["learned_pooling"],
}
PAIRS = [("Who wrote the book?", "The book was written by Ada in 1850 ."), ("A film .", "It is about the sea .")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run a task, all on one encoder that none of them touched."""
    folder = tmp_path_factory.mktemp("runs")
    tiny_model("bert", max_position_embeddings=128).save_pretrained(folder / "encoder")
    tiny_tokenizer().save_pretrained(folder / "encoder")
    found = {}
    for task, heads in HEADS.items():
        data = FIXTURES / ("squad_tiny" if task.startswith("squad2") else "glue_tiny")
        tables: dict[str, Any] = {
            "run": str(folder / task),
            "task": {"name": task, "data": str(data)},
            "data": {"max_length": 64, "overlap": 16, "hold_out": 0.4},
            "encoder": {"name": str(folder / "encoder"), "device": "cpu"},
            "finetune": {"epochs": 0},
            "train": {"snapshots": [0], "epochs": 1, "lr": 0.05},
            "heads": heads,
        }
        bv.run(build_config(tables))
        found[task] = folder / task
    return found


@pytest.fixture(scope="module")
def folder(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_kit(list(runs.values()), tmp_path_factory.mktemp("kits") / "tiny")


@pytest.fixture(scope="module")
def kit(folder: Path) -> Kit:
    return bv.load(folder, device="cpu")


def differences(one: Any, other: Any) -> bool:
    """Whether two rows say something else, rounding aside."""
    if isinstance(one, dict):
        return one.keys() != other.keys() or any(differences(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) != len(other) or any(differences(*pair) for pair in zip(one, other, strict=True))
    return abs(one - other) > 1e-3 if isinstance(one, float) else one != other


@pytest.mark.parametrize("task", HEADS)
def test_a_kit_says_what_the_runs_own_predictor_says(task: str, runs: dict[str, Path], kit: Kit) -> None:
    predictor = Predictor(runs[task], head=kit.tasks[task].facts["head"])
    texts: list[Any] = PAIRS if predictor.takes_pairs else [first for first, _ in PAIRS]
    expected = predictor.predict_texts(texts)
    for ours, theirs in zip(kit.predict(PAIRS), expected, strict=True):
        said = {key: value for key, value in ours[task].items() if key != "trust"}
        assert not differences(said, {key: value for key, value in theirs.items() if key != "id"})


def test_a_sequence_that_several_tasks_ask_about_goes_through_the_encoder_once(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    forward = kit.encoder.forward

    def counting(tokens: Any, **settings: Any) -> Any:
        lengths.extend(tokens.lengths.tolist())
        return forward(tokens, **settings)

    monkeypatch.setattr(kit.encoder, "forward", counting)
    kit.predict(PAIRS)
    # Each pair as it is for the four tasks about pairs, and each first text alone.
    assert len(lengths) == 2 * len(PAIRS)


def test_single_texts_are_left_out_by_tasks_about_pairs(kit: Kit) -> None:
    single, pair = kit.predict(["A film .", PAIRS[0]])
    assert set(single) == {"sst2"} and set(pair) == set(HEADS)
    assert set(kit.predict([PAIRS[0]], tasks=["mrpc", "squad2"])[0]) == {"mrpc", "squad2"}


def test_every_answer_says_how_far_to_trust_it(kit: Kit) -> None:
    rows = kit.predict(PAIRS[:1])[0]
    assert set(rows["stsb"]["trust"]) == {"off_by", "examples"}
    for task in ("sst2", "mrpc", "squad2", "squad2_answerable"):
        assert 0 <= rows[task]["trust"]["right"] <= 1 and rows[task]["trust"]["examples"] > 0


def test_some_tasks_of_a_kit_can_be_loaded_alone(folder: Path) -> None:
    assert list(bv.load(folder, tasks=["mrpc"], device="cpu").tasks) == ["mrpc"]


def test_mistakes_are_told(kit: Kit, folder: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no task 'sst' .*|no task 'sst': .*sst2"):
        kit.predict(["A film ."], tasks=["sst"])
    with pytest.raises(UserError, match="mrpc: about two texts"):
        kit.predict(["A film ."], tasks=["mrpc"])
    with pytest.raises(UserError, match="empty"):
        kit.predict([("A film .", " ")])
    with pytest.raises(UserError, match="no text"):
        kit.predict([])
    with pytest.raises(UserError, match="no kit 'nowhere'"):
        bv.load("nowhere")
    with pytest.raises(UserError, match="two runs are of task 'mrpc'"):
        make_kit([runs["mrpc"], runs["mrpc"]], tmp_path / "twice")
    with pytest.raises(UserError, match="no head 'wide' at 0 epochs"):
        make_kit([runs["mrpc"]], tmp_path / "unknown", {"mrpc": "wide"})
    assert not (tmp_path / "twice").exists() and not (tmp_path / "unknown").exists()


def test_a_kit_refuses_an_encoder_with_other_weights(folder: Path, runs: dict[str, Path]) -> None:
    encoder = runs["mrpc"].parent / "encoder"
    weights = (encoder / "model.safetensors").read_bytes()
    try:
        torch.manual_seed(5)
        tiny_model("bert", max_position_embeddings=128).apply(_draw_anew).save_pretrained(encoder)
        with pytest.raises(UserError, match="belongs to other weights"):
            bv.load(folder, device="cpu")
    finally:
        (encoder / "model.safetensors").write_bytes(weights)


def _draw_anew(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight)


def test_a_kit_names_no_place_of_the_machine_it_was_made_on_but_its_encoder(
    folder: Path, runs: dict[str, Path]
) -> None:
    text = (folder / "kit.json").read_text(encoding="utf-8")
    assert text.count(str(runs["mrpc"].parent)) == 1
