"""Pairs as two towers in a run: every way to compute their states gives what plain calls on single texts give."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tiny_encoders import say_how_to_read, tiny_tokenizer
from tiny_training import member_of
from transformers import AutoModel

import bertvision as bv
from bertvision.config import build_config
from bertvision.data.examples import Example
from bertvision.data.windows import build_features
from bertvision.disk import read_json
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.loading import load_encoder
from bertvision.encoder.states import HiddenStates
from bertvision.errors import UserError
from bertvision.heads import Head, load_head
from bertvision.kinds import SCORE, SPAN
from bertvision.pipeline import states as pipeline_states
from bertvision.pipeline.check import estimate_costs
from bertvision.pipeline.job import Job
from bertvision.pipeline.predict import Predictor
from bertvision.report.build import make_report
from bertvision.sources import TowersSource, encode_pairs

HEADS: list[Any] = [
    {"head": "mlp", "read": "mean", "pairs": "towers", "size": 8, "name": "mlp"},
    {"head": "ladder", "width": 16, "attention_heads": 2, "pairs": "towers", "read": "mean", "name": "ladder"},
    {"head": "linear_towers", "strength": 1.0, "name": "linear_towers"},
    {"head": "mlp", "read": "mean", "size": 8, "name": "joined"},
]
OURS = ("mlp", "ladder", "linear_towers", "last_lr_towers")


def run(folder: Path, encoder: Path, data: Path, **train: Any) -> Path:
    made = bv.run(
        task={"name": "mrpc", "data": str(data)},
        encoder={"name": str(encoder), "device": "cpu"},
        heads=HEADS,
        data={"hold_out": 0.25, "max_length": 48},
        finetune={"epochs": 0},
        train={"epochs": 2, "batch_rows": 2, "lr": 0.01, **train},
        run=str(folder),
    )
    return made.folder


@pytest.fixture(scope="module")
def tiny_encoder_folder(tmp_path_factory: pytest.TempPathFactory, tiny_encoder_folder: Path) -> Path:
    """The tiny encoder, made to be read by the mean."""
    folder = Path(shutil.copytree(tiny_encoder_folder, tmp_path_factory.mktemp("encoder") / "mean"))
    say_how_to_read(folder, "mean")
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_encoder_folder: Path, glue_folder: Path) -> Path:
    return run(tmp_path_factory.mktemp("towers") / "run", tiny_encoder_folder, glue_folder)


def head_of(folder: Path, name: str) -> Head:
    return load_head(folder / "snapshots/epoch_0/heads" / name)[0]


def alone(encoder: Path, text: str) -> HiddenStates:
    """The states of one text, from a plain call of the model."""
    model = AutoModel.from_pretrained(encoder).eval()
    ids = tiny_tokenizer()(text, return_tensors="pt", truncation=True, max_length=48)
    with torch.no_grad():
        layers = model(**ids, output_hidden_states=True).hidden_states  # each (1, token, hidden)
    tokens = torch.stack(layers, dim=2)[0]  # (token, layer, hidden)
    return HiddenStates(torch.tensor([len(tokens)]), tokens=tokens, mean=tokens.mean(0, keepdim=True))


@pytest.mark.parametrize("name", OURS)
def test_outputs_are_those_of_each_text_alone(name: str, finished: Path, tiny_encoder_folder: Path) -> None:
    job = Job(build_config(read_json(finished / "config.json")))
    outputs = load_file(finished / "snapshots/epoch_0/predictions/dev" / name / "outputs.safetensors")["outputs"]
    head = head_of(finished, name)
    for row, example in enumerate(job.examples("dev")):
        pair = alone(tiny_encoder_folder, example.text)
        pair.second = alone(tiny_encoder_folder, str(example.text_pair))
        with torch.no_grad():
            np.testing.assert_allclose(head(pair)[0].numpy(), outputs[row], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", OURS)
def test_a_predictor_repeats_the_scored_predictions(name: str, finished: Path) -> None:
    predictor = Predictor(finished, head=name)
    examples = Job(build_config(read_json(finished / "config.json"))).examples("dev")
    rows = predictor.predict_texts([(example.text, str(example.text_pair)) for example in examples])
    outputs = load_file(finished / "snapshots/epoch_0/predictions/dev" / name / "outputs.safetensors")["outputs"]
    assert [row.label for row in rows] == [predictor.task.labels[at] for at in outputs.argmax(1)]


def test_streamed_states_train_the_same_heads_as_states_in_memory(
    finished: Path, tmp_path: Path, tiny_encoder_folder: Path, glue_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_states, "fits_in_memory", lambda *_: False)
    heads = [entry for entry in HEADS if entry["name" if "name" in entry else "head"] in ("mlp", "ladder")]
    other = bv.run(
        build_config({**read_json(finished / "config.json"), "run": str(tmp_path / "other"), "heads": heads})
    ).folder
    assert read_json(finished / "sources.json")["train_epoch_0_mean_towers"]["source"] == "memory"
    assert read_json(other / "sources.json")["train_epoch_0_mean_towers"]["source"] == "streamed"
    for name in ("mlp", "ladder"):
        for one, two in zip(head_of(finished, name).parameters(), head_of(other, name).parameters(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_a_convex_head_on_towers_has_its_twin_on_the_last_layer(finished: Path) -> None:
    names = [folder.name for folder in (finished / "snapshots/epoch_0/heads").iterdir()]
    assert "last_lr_towers" in names and "last_lr" not in names


def test_the_report_and_the_estimate_of_a_run_with_towers_work(finished: Path) -> None:
    make_report([finished])
    assert (finished / "report.html").is_file()
    found = estimate_costs(Job(build_config(read_json(finished / "config.json"))))
    assert "alone" in str(found["states"])


@pytest.mark.parametrize(
    ("task", "said"), [("sst2", "sst2 has single texts"), ("squad2_answerable", "needs? both texts in one sequence")]
)
def test_tasks_without_two_texts_side_by_side_are_refused(
    task: str, said: str, tmp_path: Path, tiny_encoder_folder: Path, glue_folder: Path, squad_folder: Path
) -> None:
    data = squad_folder if task.startswith("squad") else glue_folder
    with pytest.raises(UserError, match=said):
        bv.run(
            task={"name": task, "data": str(data)}, encoder={"name": str(tiny_encoder_folder)}, heads=HEADS[:1],
            finetune={"epochs": 0}, data={"max_length": 48, "overlap": 8}, run=str(tmp_path / "run"),
        )  # fmt: skip


def test_stores_refuse_towers(tmp_path: Path, tiny_encoder_folder: Path, glue_folder: Path) -> None:
    with pytest.raises(UserError, match="the states of single texts are not stored"):
        run(tmp_path / "run", tiny_encoder_folder, glue_folder, source="stored")


def test_spans_refuse_towers() -> None:
    with pytest.raises(UserError, match="`pairs` = 'towers' for a span"):
        member_of("ladder_64", SPAN, pairs="towers")


def test_a_text_in_many_pairs_is_tokenized_and_encoded_once(tiny_encoder_folder: Path) -> None:
    texts = ["the film", "a book", "it was good", "the sea"]
    pairs = [(0, 1), (0, 2), (3, 0), (1, 2), (2, 2)]
    examples = [Example(str(row), texts[one], texts[two], 1.0) for row, (one, two) in enumerate(pairs)]
    features = build_features(examples, tiny_tokenizer(), SCORE, False, 48)
    assert len(features.towers.texts) == 4
    encoder: Encoder = load_encoder(str(tiny_encoder_folder), torch.device("cpu"), torch.float32, "padded").eval()
    seen: list[int] = []
    forward = encoder.forward

    def counting(tokens: Any, **settings: Any) -> Any:
        seen.extend(tokens.lengths.tolist())
        return forward(tokens, **settings)

    encoder.forward = counting  # type: ignore[method-assign]
    states = encode_pairs(encoder, features.towers, np.array([4, 0, 1, 2, 3]), ("tokens", "mean"), 10)
    assert sorted(seen) == sorted(features.towers.texts.lengths.tolist())
    assert states.second is not None
    expected = [alone(tiny_encoder_folder, text) for text in texts]
    for row, pair in enumerate([4, 0, 1, 2, 3]):
        for side, text in zip((states, states.second), pairs[pair], strict=True):
            torch.testing.assert_close(side.read("mean")[row], expected[text].read("mean")[0], rtol=1e-4, atol=1e-5)
            start = int(side.starts[row])
            tokens = side.read("tokens")[start : start + int(side.lengths[row])]
            torch.testing.assert_close(tokens, expected[text].read("tokens"), rtol=1e-4, atol=1e-5)


def test_a_resumed_pass_and_several_processes_get_the_same_states(tiny_encoder_folder: Path) -> None:
    texts = ["the film", "a book", "it was good", "the sea", "a good book"]
    examples = [Example(str(row), texts[row % 5], texts[row * 3 % 5], float(row)) for row in range(12)]
    features = build_features(examples, tiny_tokenizer(), SCORE, False, 48)
    encoder: Encoder = load_encoder(str(tiny_encoder_folder), torch.device("cpu"), torch.float32, "padded").eval()
    plan = [np.arange(first, first + 3) for first in (6, 0, 9, 3)]

    def batches(first: int = 0, share: tuple[int, int] = (0, 1)) -> list[Any]:
        return list(TowersSource(encoder, features, plan, ("mean",), 20, share).batches(first))

    whole = batches()
    for one, two in zip(batches(2), whole[2:], strict=True):
        assert one.windows.tolist() == two.windows.tolist() and one.states.second is not None
        assert torch.equal(one.states.read("mean"), two.states.read("mean"))
        assert torch.equal(one.states.second.read("mean"), two.states.second.read("mean"))
        assert one.targets.value.tolist() == two.windows.tolist()
    for step, parts in enumerate(zip(batches(share=(0, 2)), batches(share=(1, 2)), strict=True)):
        assert sorted(pair for part in parts for pair in part.windows) == sorted(plan[step])
        assert all(part.total == 3 for part in parts)
