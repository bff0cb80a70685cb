"""A kit predicts the same as each run's own predictor, with one pass of the encoder."""

import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sealed import edit_json
from tiny_encoders import say_how_to_read, tiny_model, tiny_tokenizer

import bertvision as bv
from bertvision.config import build_config
from bertvision.disk import check_files, read_json, read_stamp, write_json
from bertvision.errors import UserError
from bertvision.kits import edit
from bertvision.kits.card import build_card
from bertvision.kits.edit import add_heads, remove_heads
from bertvision.kits.kit import Kit
from bertvision.kits.make import make_kit
from bertvision.kits.scoring import kit_table, score_kit
from bertvision.pipeline.folder import SHIPPED
from bertvision.pipeline.job import Job, reopen
from bertvision.pipeline.predict import Predictor

FIXTURES = Path(__file__).parents[2] / "fixtures"
HEADS = {
    "sst2": ["adapter_64", {"head": "adapter_64", "read": "mean", "name": "by_mean"}],
    "mrpc": [{"head": "learned_pooling", "read": "mean"}],
    "stsb": ["ladder_64"],
    "qqp": [{"head": "mlp", "pairs": "towers", "size": 8, "name": "towers"}],
    "qnli": [{"head": "ladder", "width": 16, "attention_heads": 2, "pairs": "towers", "name": "towers"}],
    "squad2": ["ladder_64", "adapter_64"],
    "squad2_answerable": ["learned_pooling"],
}
PAIRS = [("Who wrote the book?", "The book was written by Ada in 1850 ."), ("A film .", "It is about the sea .")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run per task, all on the same untouched encoder."""
    folder = tmp_path_factory.mktemp("runs")
    tiny_model("bert", max_position_embeddings=128).save_pretrained(folder / "encoder")
    tiny_tokenizer().save_pretrained(folder / "encoder")
    say_how_to_read(folder / "encoder", "cls")
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
    heads = {"qqp": "towers", "qnli": "towers"}
    return make_kit(list(runs.values()), tmp_path_factory.mktemp("kits") / "tiny", heads)


@pytest.fixture(scope="module")
def kit(folder: Path) -> Kit:
    return bv.load(folder, device="cpu")


def differences(one: Any, other: Any) -> bool:
    """Whether two rows differ by more than rounding."""
    if isinstance(one, dict):
        return one.keys() != other.keys() or any(differences(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) != len(other) or any(differences(*pair) for pair in zip(one, other, strict=True))
    return abs(one - other) > 1e-3 if isinstance(one, float) else one != other


@pytest.mark.parametrize("task", HEADS)
def test_a_kit_predicts_the_same_as_the_runs_own_predictor(task: str, runs: dict[str, Path], kit: Kit) -> None:
    predictor = Predictor(runs[task], head=kit.tasks[task].facts["head"])
    texts: list[Any] = PAIRS if predictor.takes_pairs else [first for first, _ in PAIRS]
    expected = predictor.predict_texts(texts)
    for ours, theirs in zip(kit.predict(PAIRS), expected, strict=True):
        assert not differences(ours[task].to_dict(), theirs.to_dict())


def test_a_sequence_that_several_tasks_share_goes_through_the_encoder_once(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    forward = kit.encoder.forward

    def counting(tokens: Any, **settings: Any) -> Any:
        lengths.extend(tokens.lengths.tolist())
        return forward(tokens, **settings)

    monkeypatch.setattr(kit.encoder, "forward", counting)
    kit.predict(PAIRS)
    together = len(lengths)
    kit.predict(PAIRS, tasks=["qnli"])
    # Each pair once for the four tasks that join them. Each text once, for the task on single texts and for two towers.
    # Two towers that read all tokens have a pass of their own.
    assert together == (1 + 2) * len(PAIRS) + 2 * len(PAIRS) and len(lengths) == together + 2 * len(PAIRS)


def test_tasks_on_pairs_skip_single_texts(kit: Kit) -> None:
    single, pair = kit.predict(["A film .", PAIRS[0]])
    assert set(single) == {"sst2"} and set(pair) == set(HEADS)
    assert set(kit.predict([PAIRS[0]], tasks=["mrpc", "squad2"])[0]) == {"mrpc", "squad2"}


def test_every_prediction_comes_with_its_trust(kit: Kit) -> None:
    rows = kit.predict(PAIRS[:1])[0]
    assert set(rows["stsb"].trust) == {"off_by", "examples"}
    for task in ("sst2", "mrpc", "qqp", "squad2", "squad2_answerable"):
        trust = rows[task].trust
        assert 0 <= trust["right"] <= 1 if trust["examples"] else set(trust) == {"examples"}


def test_trust_counts_every_held_out_prediction_once(folder: Path, runs: dict[str, Path]) -> None:
    for task, facts in read_json(folder / "kit.json")["tasks"].items():
        counts = {key: sum(group["examples"] for group in groups) for key, groups in facts["trust"].items()}
        where = runs[task] / "snapshots/epoch_0/predictions/held_out" / facts["head"] / "predictions.jsonl"
        rows = [json.loads(line) for line in where.read_text(encoding="utf-8").splitlines()]
        assert counts == Counter(_predicted(row) for row in rows)


def _predicted(row: dict[str, Any]) -> str:
    if "answer" in row:
        return "answer" if row["answer"] else "no answer"
    return str(row.get("label", "score"))


def test_pairs_without_a_second_text_are_single_texts_and_any_iterable_is_accepted(kit: Kit) -> None:
    expected = kit.predict(["A film ."])
    assert kit.predict([("A film .", None)]) == expected == kit.predict(text for text in ["A film ."])


def test_errors_name_texts_by_their_ids(kit: Kit) -> None:
    with pytest.raises(UserError, match="'q7' is empty"):
        kit.predict(["A film .", " "], ids=["q6", "q7"])
    question = ("Who wrote " + "the book " * 60, "The book was written by Ada . " * 30)
    with pytest.raises(UserError, match=r"'q7' is too long for squad2.*Shorten") as error:
        kit.predict([PAIRS[0], question], tasks=["squad2"], ids=["q6", "q7"])
    assert "data.max_length" not in str(error.value)


def test_a_subset_of_tasks_can_be_loaded(folder: Path) -> None:
    assert list(bv.load(folder, tasks=["mrpc"], device="cpu").tasks) == ["mrpc"]


def test_invalid_arguments_raise_clear_errors(kit: Kit, folder: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no task 'sst' .*|no task 'sst': .*sst2"):
        kit.predict(["A film ."], tasks=["sst"])
    with pytest.raises(UserError, match="two texts are needed for mrpc"):
        kit.predict(["A film ."], tasks=["mrpc"])
    with pytest.raises(UserError, match="text 1 is empty"):
        kit.predict(["A film .", ("A film .", " ")])
    assert kit.predict([]) == []
    with pytest.raises(UserError, match="2 texts but 1 ids"):
        kit.predict(["A film .", "A king ."], ids=["q6"])
    with pytest.raises(UserError, match="no task '5'"):
        kit.predict(["A film ."], tasks=[5])  # type: ignore[list-item]
    with pytest.raises(UserError, match="no examples to score mrpc on"):
        kit.score("mrpc", [])
    with pytest.raises(UserError, match="dtype is 'wide': choose from auto, float32 or bfloat16"):
        bv.load(folder, dtype="wide")
    with pytest.raises(UserError, match=r"a pair is a tuple .* Found \('A film .', 'It', 'is'\) as text 0"):
        kit.predict([("A film .", "It", "is")])
    with pytest.raises(UserError, match=r"pass \['sst2'\]"):
        kit.predict(["A film ."], tasks="sst2")
    for ask in (lambda: kit.predict(["A film ."], tasks=[]), lambda: bv.load(folder, tasks=[])):
        with pytest.raises(UserError, match=r"no task selected: .* has sst2, mrpc"):
            ask()
    with pytest.raises(UserError, match="head is given for task 'rte', but no run is for that task: found mrpc"):
        make_kit([runs["mrpc"]], tmp_path / "unknown", {"rte": "wide"})
    with pytest.raises(UserError, match="card is given for task 'rte', but no run is for that task: found mrpc"):
        make_kit([runs["mrpc"]], tmp_path / "unknown", about={"rte": "Free."})
    with pytest.raises(UserError, match="'nowhere' is no model: give the folder of a run"):
        bv.load("nowhere")
    with pytest.raises(UserError, match="two runs are for task 'mrpc'"):
        make_kit([runs["mrpc"], runs["mrpc"]], tmp_path / "twice")
    with pytest.raises(UserError, match="no model 'wide' at 0 epochs"):
        make_kit([runs["mrpc"]], tmp_path / "unknown", {"mrpc": "wide"})
    assert not (tmp_path / "twice").exists() and not (tmp_path / "unknown").exists()


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json"])
def test_a_changed_encoder_is_refused(file: str, folder: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    changed = runs["mrpc"].parent / "encoder" / file
    before = changed.read_bytes()
    try:
        changed.write_bytes(before + b" ")
        with pytest.raises(UserError, match="was trained on a different version of"):
            bv.load(folder, device="cpu")
        with pytest.raises(UserError, match="is not the one the runs were made with"):
            make_kit([runs["mrpc"]], tmp_path / "kit")
    finally:
        changed.write_bytes(before)
    assert not (tmp_path / "kit").exists()


def test_a_head_trained_on_an_earlier_encoder_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(runs["mrpc"], tmp_path / "mrpc")
    for stamp in (tmp_path / "mrpc/snapshots/epoch_0/heads").glob("*/stamp.json"):
        write_json(stamp, {**read_json(stamp), "encoder": "another"})
    with pytest.raises(UserError, match="was not trained on the encoder that is there now"):
        make_kit([tmp_path / "mrpc"], tmp_path / "kit")


def test_only_a_kit_is_replaced(runs: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "runs" / "mrpc"
    shutil.copytree(runs["mrpc"], run)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    (run.parent / "kit.json").write_text("{}", encoding="utf-8")  # looks like a kit, but contains the run
    (tmp_path / "link").symlink_to(run.parent)
    before = _listing(tmp_path)
    for place in ("notes", "file", "runs", "runs/mrpc", "link", "runs/../runs"):
        with pytest.raises(UserError, match=f"'.*{place}' (is or contains|exists and is not a kit)"):
            make_kit([run], tmp_path / place)
        assert _listing(tmp_path) == before
    with pytest.raises(UserError, match="is or contains"):
        make_kit([run], run.parent)


def test_a_folder_that_contains_the_encoder_is_not_replaced(runs: dict[str, Path]) -> None:
    place = runs["mrpc"].parent / "encoder"
    (place / "kit.json").write_text("{}", encoding="utf-8")
    try:
        with pytest.raises(UserError, match="is or contains"):
            make_kit([runs["mrpc"]], place)
    finally:
        (place / "kit.json").unlink()
    assert (place / "model.safetensors").is_file()


def test_a_kit_or_an_empty_folder_is_replaced(runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "kit").mkdir()
    for tasks in (["mrpc", "sst2"], ["stsb"]):
        make_kit([runs[task] for task in tasks], tmp_path / "kit")
        assert {path.name for path in (tmp_path / "kit").iterdir()} == {*tasks, "kit.json"}


def _listing(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def run_again(run: Path, to: Path, **changes: dict[str, Any]) -> Path:
    """Repeat a run in another folder with some settings changed."""
    tables = {**(read_json(run / "config.json")), "run": str(to)}
    bv.run(build_config({**tables, **{table: {**tables[table], **own} for table, own in changes.items()}}))
    return to


def test_a_kit_reads_the_layers_its_heads_were_trained_on(runs: dict[str, Path], tmp_path: Path) -> None:
    some = run_again(runs["sst2"], tmp_path / "some", encoder={"layers": [0, 3]})
    kit = bv.load(make_kit([some], tmp_path / "kit"), device="cpu")
    assert kit.encoder.layers == (0, 3)
    (expected,) = Predictor(some, head=kit.tasks["sst2"].facts["head"]).predict_texts(["A film ."])
    (rows,) = kit.predict(["A film ."])
    assert not differences(rows["sst2"].probabilities, expected.probabilities)
    with pytest.raises(UserError, match=r"same layers.*sst2: \(0, 3\); mrpc: all"):
        make_kit([some, runs["mrpc"]], tmp_path / "mixed")
    facts = read_json(tmp_path / "kit" / "kit.json")
    write_json(tmp_path / "kit" / "kit.json", {**facts, "layers": [0, 1, 3]})
    with pytest.raises(UserError, match="it is a head for another encoder or task"):
        bv.load(tmp_path / "kit", device="cpu")


def test_naming_all_layers_is_the_same_as_naming_none(runs: dict[str, Path], tmp_path: Path) -> None:
    named = run_again(runs["sst2"], tmp_path / "named", encoder={"layers": [0, 1, 2, 3]})
    make_kit([named, runs["mrpc"]], tmp_path / "kit")
    assert read_json(tmp_path / "kit" / "kit.json")["layers"] is None


def test_a_kit_needs_held_out_examples(runs: dict[str, Path], tmp_path: Path) -> None:
    run = run_again(runs["sst2"], tmp_path / "run", data={"hold_out": 0.0})
    with pytest.raises(UserError, match="data.hold_out > 0"):
        make_kit([run], tmp_path / "kit")


def test_cards_show_what_is_in_kit_json_and_no_local_path(runs: dict[str, Path], tmp_path: Path) -> None:
    (runs["mrpc"] / "snapshots/epoch_0/heads/last_linear/README.md").write_text("of the run", encoding="utf-8")
    folder = make_kit(list(runs.values()), tmp_path / "cards", {"mrpc": "last_linear"}, {"mrpc": "Free for all."})
    for task, facts in read_json(folder / "kit.json")["tasks"].items():
        card = (folder / task / "README.md").read_text(encoding="utf-8")
        assert f"# {facts['head']} for {task}\n" in card and f"{facts['parameters']:,} parameters" in card
        assert f"({100 * facts['share']:.3g} % of the encoder's)" in card
        for split, figures in facts["scores"].items():
            (row,) = [line.split(" | ") for line in card.splitlines() if line.startswith(f"| {split} | this head ")]
            assert f"{figures[facts['task']['metrics'][0]]:.2f}" in [cell.strip("| ") for cell in row]
        assert ("no-answer threshold is" in card) == (task == "squad2")
        assert f"predict cards --tasks {task} --text" in card and "optimistic" in card
        assert ("Free for all." in card) == (task == "mrpc") and "of the run" not in card
        for path in (tmp_path, runs["mrpc"].parent):
            assert str(path) not in card


@pytest.mark.parametrize("task", HEADS)
def test_a_kit_scores_what_its_runs_scored(task: str, runs: dict[str, Path], kit: Kit) -> None:
    expected = read_json(runs[task] / "scores.json")["snapshots"]["0"]
    found = score_kit(kit, reopen(runs[task]))
    assert found["task"] == task and set(found["splits"]) == {"held_out", "dev"}
    for split, scores in found["splits"].items():
        assert not differences(scores["head"], expected[found["head"]]["scores"][split])
        assert scores["card"] == expected[found["head"]]["scores"][split]
    assert found["splits"]["dev"]["baseline"] == expected["baseline"]["scores"]["dev"]
    rows = kit_table(kit, found).rows
    assert [row[:2] for row in rows] == [
        [split, who] for split in ("held_out", "dev") for who in ("baseline", "head", "card")
    ]


@pytest.mark.parametrize("words", [{"seed": 1}, {"data": {"hold_out": 0.2}}], ids=str)
def test_held_out_examples_are_skipped_if_the_head_may_have_been_trained_on_them(
    words: dict[str, Any], runs: dict[str, Path], kit: Kit
) -> None:
    tables = read_json(runs["sst2"] / "config.json")
    tables = {key: {**tables[key], **value} if isinstance(value, dict) else value for key, value in words.items()} | {
        key: value for key, value in tables.items() if key not in words
    }
    found = score_kit(kit, Job(build_config(tables)))
    assert set(found["splits"]) == {"dev"}


def test_scoring_needs_a_task_of_the_kit_with_its_labels(
    runs: dict[str, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = bv.load(folder, tasks=["mrpc"], device="cpu")
    with pytest.raises(UserError, match="the config is for sst2, but kit 'tiny' has only mrpc"):
        score_kit(some, reopen(runs["sst2"]))
    job = reopen(runs["mrpc"])
    monkeypatch.setitem(vars(job), "task", dataclasses.replace(job.task, labels=("yes", "no")))
    with pytest.raises(UserError, match="the labels of mrpc must be equal: .*, the data has yes, no"):
        score_kit(some, job)


def test_cards_show_baseline_and_control_and_warn_about_heads_that_are_no_better() -> None:
    facts: dict[str, Any] = {
        "task": {"name": "rte", "kind": "label", "metrics": ["accuracy"], "labels": ["yes", "no"], "windowed": False},
        "head": "wide", "parameters": 10, "share": 0.5, "pairs": True, "seed": 3, "trust": {},
        "scores": {"held_out": {"accuracy": 60.0, "total": 10}, "dev": {"accuracy": 52.0, "total": 20}},
        "beside": {
            "baseline": {"dev": {"accuracy": 52.0, "total": 20}},
            "control": {"dev": {"accuracy": 51.0, "total": 20}, "held_out": {"accuracy": 50.0, "total": 10}},
        },
    }  # fmt: skip
    kit = {"name": "tiny", "encoder": "embedded", "layers": None}
    card = build_card(kit, facts)
    rows = [line for line in card.splitlines() if line.startswith(("| held_out", "| dev"))]
    assert rows == [
        "| held_out | this head | 10 | 60.00 |",
        "| held_out | control | 10 | 50.00 |",
        "| dev | this head | 20 | 52.00 |",
        "| dev | baseline | 20 | 52.00 |",
        "| dev | control | 20 | 51.00 |",
    ]
    assert "seed 3" in card and "No better than the baseline in accuracy on dev" in card
    assert "Accuracy is 60.0 on held-out examples but 52.0 on dev: trust its predictions less" in card
    facts["scores"]["dev"]["accuracy"] = 58.1
    assert "No better" not in build_card(kit, facts) and "trust its predictions less" not in build_card(kit, facts)
    facts["beside"].pop("control")
    assert "control" not in build_card(kit, facts)


def test_a_kit_contains_no_local_path_except_that_of_its_encoder(folder: Path, runs: dict[str, Path]) -> None:
    text = (folder / "kit.json").read_text(encoding="utf-8")
    assert text.count(str(runs["mrpc"].parent)) == 1


# ---------------------------------------------------------------------- a stranger's kit or run


def test_a_task_whose_name_is_a_path_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "box" / "kit")
    shutil.copytree(folder / "sst2", tmp_path / "outside" / "h")
    for name in ("../../outside/h", str(tmp_path / "outside" / "h"), "..", "a\\b"):
        edit_json(copy / "kit.json", lambda facts, name=name: {**facts, "tasks": {name: facts["tasks"]["sst2"]}})
        with pytest.raises(UserError, match=r"a task in .*kit\.json can't be the name of a folder"):
            Kit(copy)
        shutil.copyfile(folder / "kit.json", copy / "kit.json")


def test_a_head_behind_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "box" / "kit")
    shutil.move(copy / "sst2", tmp_path / "outside")
    (copy / "sst2").symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match="leads out of"):
        Kit(copy, ["sst2"])


@pytest.mark.parametrize("name", ["../../pwn", "{}/pwn"])
def test_a_run_whose_task_is_a_path_makes_no_kit(runs: dict[str, Path], tmp_path: Path, name: str) -> None:
    run = shutil.copytree(runs["sst2"], tmp_path / "box" / "run")
    edit_json(run / "task.json", lambda facts: {**facts, "name": name.format(tmp_path)})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=r"the task's name in .*task\.json can't be the name of a folder"):
        make_kit([run], tmp_path / "box" / "kit")
    assert sorted(tmp_path.rglob("*")) == before


def test_the_shipped_kit_is_checked(tmp_path: Path) -> None:
    for path in sorted((SHIPPED / "default").rglob("*")):
        if path.is_dir():
            assert set((read_stamp(path) or {})["files"]) == {"config.json", "head.safetensors"}
            check_files(path)
    assert list(json.loads((SHIPPED / "default" / "kit.json").read_text(encoding="utf-8")))[-1] == "sha256"
    copy = shutil.copytree(SHIPPED / "default", tmp_path / "kit")
    weights = bytearray((copy / "sst2" / "head.safetensors").read_bytes())
    weights[-5] ^= 1
    (copy / "sst2" / "head.safetensors").write_bytes(weights)
    with pytest.raises(UserError, match=r"head\.safetensors is damaged \(its checksum is wrong\).*build the kit again"):
        Kit(copy, ["sst2"])


# ---------------------------------------------------------------------- changing a kit


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_kit_that_grew_is_the_kit_made_at_once_and_its_other_heads_are_byte_identical(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    whole = bytes_of(make_kit([runs["sst2"], runs["stsb"], runs["mrpc"]], tmp_path / "whole" / "kit"))
    kit = make_kit([runs["sst2"], runs["stsb"]], tmp_path / "kit")
    (kit / "sst2" / "README.md").write_text("a card of my own", encoding="utf-8")
    (kit / "notes.txt").write_text("mine", encoding="utf-8")
    before = bytes_of(kit)
    assert list(add_heads(kit, [runs["mrpc"]])) == ["mrpc"]
    grown = bytes_of(kit)
    assert {name: grown[name] for name in before.keys() - {"kit.json"}} == {
        name: data for name, data in before.items() if name != "kit.json"
    }
    assert {name: grown[name] for name in whole.keys() - {"sst2/README.md"}} == {
        name: data for name, data in whole.items() if name != "sst2/README.md"
    }
    remove_heads(kit, ["mrpc"])
    assert bytes_of(kit) == before


def test_a_replaced_head_predicts_and_the_others_do_not_change(runs: dict[str, Path], tmp_path: Path) -> None:
    kit = make_kit([runs["sst2"], runs["mrpc"]], tmp_path / "kit", {"sst2": "adapter_64"})
    before, facts = bytes_of(kit), read_json(kit / "kit.json")["tasks"]
    add_heads(kit, [runs["sst2"]], {"sst2": "by_mean"}, replace=True)
    after = bytes_of(kit)
    same = [name for name in before if name.startswith("mrpc/")]
    assert len(same) == 4 and [after[name] for name in same] == [before[name] for name in same]
    now = read_json(kit / "kit.json")["tasks"]
    assert list(now) == ["sst2", "mrpc"] and now["mrpc"] == facts["mrpc"] and now["sst2"]["head"] == "by_mean"
    expected = bv.load(runs["sst2"], head="by_mean").predict("A film .")
    assert not differences(bv.load(kit, device="cpu").predict("A film .")["sst2"].to_dict(), expected.to_dict())


def test_a_change_that_is_refused_or_fails_leaves_the_kit_as_it_was(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = make_kit([runs["sst2"], runs["mrpc"]], tmp_path / "kit")
    before = bytes_of(kit)
    layers = run_again(runs["stsb"], tmp_path / "layers", encoder={"layers": [0, 3]})
    shutil.copytree(runs["sst2"].parent / "encoder", tmp_path / "encoder")
    tiny_model("bert", max_position_embeddings=128, seed=5).save_pretrained(tmp_path / "encoder")
    other = run_again(runs["stsb"], tmp_path / "other", encoder={"name": str(tmp_path / "encoder")})
    for change, words in (
        (lambda: add_heads(kit, [runs["mrpc"]]), "has a head for mrpc: use `bertvision kit replace`"),
        (lambda: add_heads(kit, [runs["stsb"]], replace=True), "has no head for stsb: use `bertvision kit add`"),
        (lambda: add_heads(kit, [layers]), r"reads the layers \[0, 3\], but those of .* read all"),
        (lambda: add_heads(kit, [other]), "reads another encoder"),
        (lambda: remove_heads(kit, ["mrp"]), "no head for 'mrp': did you mean 'mrpc'"),
        (lambda: remove_heads(kit, ["mrpc", "sst2"]), "would have no head left"),
        (lambda: remove_heads(Path("default"), ["rte"]), "'default' is shipped with bertvision"),
        (lambda: remove_heads(tmp_path / "encoder", ["rte"]), "has no kit.json. Give the folder of a kit"),
    ):
        with pytest.raises(UserError, match=words):
            change()
        assert bytes_of(kit) == before

    def fail(*_: Any) -> None:
        raise OSError("no more")

    monkeypatch.setattr(edit, "write_head", fail)
    with pytest.raises(OSError, match="no more"):
        add_heads(kit, [runs["stsb"]])
    assert bytes_of(kit) == before and sorted(path.name for path in tmp_path.iterdir()) == [
        "encoder", "kit", "layers", "other",
    ]  # fmt: skip
    weights = kit / "mrpc" / "head.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match="mrpc.*is damaged"):
        remove_heads(kit, ["sst2"])
