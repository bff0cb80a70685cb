"""The command line as users see it: separate stages, whole runs, which stages are repeated, JSON output."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file as load_arrays
from safetensors.torch import load_file
from tiny_encoders import tiny_model, tiny_tokenizer
from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification

import bertvision as bv
from bertvision.cli import print_table
from bertvision.encoder.encoder import RouteError
from bertvision.tables import Column, Table

Command = Callable[..., Any]


@pytest.fixture
def rte(tmp_path: Path, write_config: Callable[..., Path], glue_folder: Path) -> Path:
    return write_config(tmp_path, name="rte", data=glue_folder)


def stamps(run: Path) -> dict[str, str]:
    """Every finished part of a run with the time it was written."""
    return {
        str(path.parent.relative_to(run)): f"{path.stat().st_mtime_ns} {path.stat().st_ino}"
        for path in run.rglob("stamp.json")
    }


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    """The parts that are new or were written again."""
    return {part for part in after if before.get(part) != after[part]}


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# ---------------------------------------------------------------------- stages, and which are repeated


def test_separate_stages_make_a_run_that_run_leaves_unchanged(rte: Path, command: Command) -> None:
    run = rte.parent / "run"
    assert command("check", rte).code == 0
    assert not run.exists(), "check writes nothing"
    assert command("evaluate", rte).code == 2
    assert command("finetune", rte).code == 0
    assert set(stamps(run)) == {"snapshots/epoch_1/encoder"}
    assert command("train", rte).code == 0
    heads = {f"snapshots/epoch_1/heads/{name}" for name in ("last_linear", "learned_pooling", "adapter_4")}
    assert set(stamps(run)) == {"snapshots/epoch_1/encoder", *heads}
    assert command("evaluate", rte).code == 0
    before, metrics = stamps(run), (run / "metrics.jsonl").read_bytes()

    again = command("run", rte)

    assert again.code == 0
    assert again.err.count("already done") == 2
    assert stamps(run) == before
    assert (run / "metrics.jsonl").read_bytes() == metrics


def test_a_run_folder_is_a_config(rte: Path, command: Command) -> None:
    assert command("run", rte).code == 0
    before = stamps(rte.parent / "run")
    for name in ("run", "finetune", "train", "evaluate"):
        assert command(name, rte.parent / "run").code == 0
    assert stamps(rte.parent / "run") == before


def test_a_changed_setting_repeats_only_what_depends_on_it(rte: Path, command: Command) -> None:
    run, places = rte.parent / "run", {}
    assert command("run", rte).code == 0

    def redone(*overrides: str) -> set[str]:
        before = stamps(run)
        said = command("run", rte, *overrides)
        assert said.code == 0, said.err
        return {part.removeprefix("snapshots/epoch_1/") for part in changed(before, stamps(run))}

    places = {
        name: {f"heads/{name}", f"predictions/dev/{name}", f"predictions/held_out/{name}"}
        for name in ("last_linear", "learned_pooling", "adapter_4", "average_pooling")
    }
    encoder = {"encoder", "predictions/dev/encoder", "predictions/held_out/encoder"}

    no_matter = ("checkpoint_seconds=7", "memory_tokens=64")
    assert (
        redone(
            *(f"finetune.{word}" for word in no_matter),
            "train.encode_tokens=64",
            "encoder.compile=off",
            "encoder.record=false",
        )
        == set()
    )
    more = 'heads=["learned_pooling", {head="adapter", size=4}, "average_pooling"]'
    assert redone(more) == places["average_pooling"]
    assert redone('heads=[{head="learned_pooling", lr=0.01, name="learned_pooling"}]') == places["learned_pooling"]
    assert redone() == places["learned_pooling"], "back to what it was"
    assert redone("train.lr=0.002") == places["last_linear"] | places["learned_pooling"] | places["adapter_4"]
    everything = encoder | places["last_linear"] | places["learned_pooling"] | places["adapter_4"]
    assert redone("finetune.lr=0.002") == everything
    assert redone("finetune.lr=0.002", "evaluate.n_best=3") == {part for part in everything if "pred" in part}


def test_changed_data_repeats_only_what_depends_on_it(
    tmp_path: Path, command: Command, write_config: Callable[..., Path]
) -> None:
    rows = [f"the king {n},yes\nno river {n},no\n" for n in range(6)]
    for name in ("train.csv", "dev.csv"):
        (tmp_path / name).write_text("text,label\n" + "".join(rows))
    config, run = write_config(tmp_path, name="files", data=tmp_path), tmp_path / "run"
    assert command("run", config).code == 0
    before = stamps(run)
    (tmp_path / "dev.csv").write_text("text,label\n" + "".join(rows[1:]))
    assert command("run", config).code == 0
    parts = changed(before, stamps(run))
    assert parts and all("predictions/dev" in part for part in parts)
    (tmp_path / "train.csv").write_text("text,label\nthe king 0,no\n" + "".join(rows)[len("the king 0,yes\n") :])
    before = stamps(run)
    assert command("run", config).code == 0
    assert changed(before, stamps(run)) == set(before)


# ---------------------------------------------------------------------- the run folder


def test_the_run_folder_explains_itself(finished: Callable[..., Path], squad_folder: Path) -> None:
    run = finished(name="squad2", data=squad_folder)
    config = json.loads((run / "config.json").read_text())
    assert config["finetune"]["batch_rows"] == 2
    assert config["finetune"]["schedule"] == "linear", "defaults are filled in"
    environment = json.loads((run / "environment.json").read_text())
    assert environment["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0], "builds name themselves"
    assert environment["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"commit", "dirty", "device", "platform", "threads"} <= set(environment)
    events = read_jsonl(run / "metrics.jsonl")
    assert {"finetune", "snapshot", "scores"} <= {event["event"] for event in events}
    for name in ("last_linear", "learned_pooling", "adapter_4"):
        head = run / "snapshots" / "epoch_1" / "heads" / name
        facts = json.loads((head / "config.json").read_text())
        weights = load_file(head / "head.safetensors")
        assert sum(weight.numel() for weight in weights.values()) == facts["parameters"]
    rows = read_jsonl(run / "snapshots" / "epoch_1" / "predictions" / "dev" / "adapter_4" / "predictions.jsonl")
    assert [row["id"] for row in rows] == ["dev0a", "dev0b", "dev0c", "dev1a", "dev1b", "dev1c"]
    models = json.loads((run / "scores.json").read_text())["snapshots"]["1"]
    assert list(models) == ["baseline", "encoder", "last_linear", "learned_pooling", "adapter_4"]
    assert models["baseline"]["scores"]["dev"]["exact"] == pytest.approx(100 * 2 / 6)
    summary = (run / "summary.md").read_text()
    assert all(name in summary for name in ("baseline", "encoder alone", "last_linear (control)", "adapter_4"))
    assert not list(run.rglob(".writing-*")), "no half-written files remain"
    assert not (run / "checkpoints" / "finetune").exists(), "a finished run needs no checkpoint"


def test_thresholds_follow_the_expected_share_of_unanswerable_questions(
    finished: Callable[..., Path], squad_folder: Path, command: Command, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished(name="squad2", data=squad_folder), run)
    ended = command("evaluate", run, "evaluate.unanswerable=0.9")
    assert ended.code == 0 and "as if 90 % of the held-out questions had no answer" in " ".join(ended.out.split())
    assert json.loads((run / "config.json").read_text())["evaluate"]["unanswerable"] == 0.9
    scores = json.loads((run / "scores.json").read_text())["snapshots"]["1"]
    for name, model in scores.items():
        if name == "baseline":
            continue
        place = run / "snapshots/epoch_1/predictions/held_out" / name
        found = {key: values.astype(float) for key, values in load_arrays(place / "results.safetensors").items()}
        lead, has = found["null_score"] - found["score"], found["has_answer"]
        # Questions with an answer count for a tenth, the others for nine; every threshold by itself.
        weights = np.where(has, 0.1 / has.mean(), 0.9 / (1 - has).mean())  # (example)
        thresholds = np.array([model["scores"]["held_out"]["threshold"], lead.min() - 1, *lead])  # (threshold)
        is_silent = lead > thresholds[:, None]  # (threshold, example)
        chosen, *gains = (weights * np.where(is_silent, found["silent"], found["f1"])).sum(axis=1)
        assert chosen == pytest.approx(max(gains))
    wrong = command("check", run, "task.name=rte", "evaluate.unanswerable=0.5")
    assert wrong.code == 2 and "for questions that may have no answer, but the task predicts a label" in wrong.err


def test_every_snapshot_is_scored_and_heads_train_on_the_chosen_ones(
    tmp_path: Path, command: Command, write_config: Callable[..., Path], glue_folder: Path
) -> None:
    config = write_config(tmp_path, name="rte", data=glue_folder)
    said = command("run", config, "finetune.snapshots=[0, 0.34]", "train.snapshots=[0, 1]", "--json")
    assert said.code == 0, said.err
    snapshots = said.json["snapshots"]
    assert {epochs: len(models) for epochs, models in snapshots.items()} == {"0": 5, "0.34": 2, "1": 5}
    seconds = [models["encoder"]["tokens"] for models in snapshots.values()]
    assert seconds == sorted(seconds) and seconds[0] == 0


# ---------------------------------------------------------------------- every kind of task


@pytest.mark.parametrize("name", ["rte", "stsb", "cola", "mnli", "squad2", "squad2_answerable"])
def test_official_tasks_run_and_every_table_has_its_rows(
    name: str, finished: Callable[..., Path], command: Command, glue_folder: Path, squad_folder: Path
) -> None:
    run = finished(name=name, data=squad_folder if name.startswith("squad") else glue_folder)
    scores = command("evaluate", run, "--json").json
    models = scores["snapshots"]["1"]
    splits = ["dev_matched", "dev_mismatched"] if name == "mnli" else ["dev"]
    for model in models.values():
        assert [split for split in model["scores"] if split != "held_out"] == splits
        for split in splits:
            assert set(scores["metrics"]) <= set(model["scores"][split])
    tables = command("evaluate", run).out
    assert all(split in tables for split in splits)


def test_mnli_scores_each_dev_set_on_its_own_rows(finished: Callable[..., Path], glue_folder: Path) -> None:
    scores = bv.Run(finished(name="mnli", data=glue_folder)).scores["snapshots"]["1"]["encoder"]["scores"]
    assert (scores["dev_matched"]["total"], scores["dev_mismatched"]["total"]) == (5, 6)


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl"])
def test_a_users_own_labelled_files(
    form: str, tmp_path: Path, command: Command, write_config: Callable[..., Path]
) -> None:
    rows = [(f"the king {n}", "the queen", ("fine", "bad", "so so")[n % 3]) for n in range(12)]
    for split in ("train", "dev"):
        path = tmp_path / f"{split}.{form}"
        if form == "jsonl":
            lines = [json.dumps(dict(zip("abc", row, strict=True))) for row in rows]
        else:
            lines = [(",", "\t")[form == "tsv"].join(cells) for cells in ["abc", *rows]]
        path.write_text("\n".join(lines) + "\n")
    config = write_config(tmp_path, name="files", data=tmp_path, text="a", text_pair="b", label="c")
    said = command("run", config, "--json")
    assert said.code == 0, said.err
    assert said.json["metrics"] == ["accuracy", "f1_macro"]
    assert said.json["snapshots"]["1"]["baseline"]["scores"]["dev"]["accuracy"] == pytest.approx(100 / 3)


def test_a_users_own_scores_and_spans(
    tmp_path: Path, command: Command, write_config: Callable[..., Path], squad_json: Callable[..., Any]
) -> None:
    (tmp_path / "s.csv").write_text("text,grade\n" + "".join(f"the king {n},{n / 2}\n" for n in range(8)))
    files = {"train": tmp_path / "s.csv", "dev": tmp_path / "s.csv"}
    said = command("run", write_config(tmp_path, name="files", kind="score", label="grade", **files), "--json")
    assert said.code == 0, said.err
    assert said.json["metrics"] == ["pearson", "spearman"]
    questions = [(f"who was born in {n}?", f"in {n} the queen was born.", "the queen") for n in range(8)]
    (tmp_path / "mine.json").write_text(json.dumps(squad_json(*questions, ("who died?", "no man.", None))))
    files = {"train": tmp_path / "mine.json", "dev": tmp_path / "mine.json"}
    said = command("run", write_config(tmp_path, name="files", **files), f"run={tmp_path}/spans", "--json")
    assert said.code == 0, said.err
    baseline = said.json["snapshots"]["1"]["baseline"]["scores"]["dev"]
    assert baseline["exact"] == pytest.approx(100 / 9)
    assert (baseline["HasAns_total"], baseline["NoAns_total"]) == (8, 1)


# ---------------------------------------------------------------------- untouched encoders


def test_without_fine_tuning_the_encoder_is_untouched(
    finished: Callable[..., Path], tiny_encoder_folder: Path, glue_folder: Path
) -> None:
    run = finished("finetune.epochs=0", name="rte", data=glue_folder)
    place = run / "snapshots" / "epoch_0" / "encoder"
    assert json.loads((place / "reference.json").read_text())["name"] == str(tiny_encoder_folder)
    assert not (place / "model.safetensors").exists(), "the encoder is not copied"
    assert len(bv.Run(run).scores["snapshots"]["0"]) == 5


def test_a_fine_tuned_classifier_is_the_encoder_row(
    tmp_path: Path, command: Command, write_config: Callable[..., Path], glue_folder: Path
) -> None:
    labels = {0: "not_entailment", 1: "entailment"}  # in the opposite order to the task's
    model = tiny_model("bert", AutoModelForSequenceClassification, num_attention_heads=2, id2label=labels)
    tokenizer = tiny_tokenizer()
    model.save_pretrained(tmp_path / "tuned")
    tokenizer.save_pretrained(tmp_path / "tuned")
    config = write_config(tmp_path, encoder=tmp_path / "tuned", name="rte", data=glue_folder)
    said = command("run", config, "finetune.epochs=0")
    assert said.code == 0, said.err
    assert "the checkpoint has an output layer for this task" in said.err

    place = tmp_path / "run" / "snapshots" / "epoch_0" / "predictions" / "dev" / "encoder"
    rows = read_jsonl(place / "predictions.jsonl")
    lines = (glue_folder / "RTE" / "dev.tsv").read_text(encoding="utf-8").rstrip("\n").split("\n")[1:]
    assert len(rows) == len(lines) == 5
    for row, line in zip(rows, lines, strict=True):
        _, first, second, _ = line.split("\t")
        inputs = tokenizer(first, second, truncation=True, max_length=48, return_tensors="pt")
        with torch.no_grad():
            expected = model(**inputs).logits[0].softmax(-1)
        found = [row["probabilities"]["not_entailment"], row["probabilities"]["entailment"]]
        np.testing.assert_allclose(found, expected.numpy(), atol=2e-6)


def test_a_classifier_of_another_task_gets_a_fresh_output_layer(
    tmp_path: Path, command: Command, write_config: Callable[..., Path], glue_folder: Path
) -> None:
    for names, line in (("negative positive", "using a new one"), ("LABEL_0 LABEL_1", "in this order")):
        labels = dict(enumerate(names.split()))
        model = tiny_model("bert", AutoModelForSequenceClassification, num_attention_heads=2, id2label=labels)
        model.save_pretrained(tmp_path / labels[0])
        tiny_tokenizer().save_pretrained(tmp_path / labels[0])
        config = write_config(tmp_path, encoder=tmp_path / labels[0], name="rte", data=glue_folder)
        said = command("finetune", config, "finetune.epochs=0", f"run={tmp_path / 'run'}{labels[0]}")
        assert said.code == 0 and line in said.err, said.err


def test_a_packed_route_that_differs_is_reported_and_replaced_by_padding(
    rte: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differ(encoder: object, batch: object) -> float:
        raise RouteError("the varlen route differs from the padded one by 0.9.")

    monkeypatch.setattr("bertvision.pipeline.snapshot.check_route", differ)
    said = command("finetune", rte)
    assert said.code == 0 and "differs" in said.err and "attention: padded (requested)" in said.err


def test_a_fine_tuned_encoder_is_scored_before_any_head_is_trained(rte: Path, command: Command) -> None:
    assert command("finetune", rte).code == 0
    said = command("evaluate", rte, "--json")
    assert said.code == 0 and set(said.json["snapshots"]["1"]) == {"baseline", "encoder"}
    assert "skipping head 'adapter_4': it has not been trained with these settings" in said.err


def test_a_fine_tuned_question_answering_model_is_the_encoder_row(
    tmp_path: Path, command: Command, write_config: Callable[..., Path], squad_json: Callable[..., Any]
) -> None:
    model = tiny_model("bert", AutoModelForQuestionAnswering, num_attention_heads=2)
    tokenizer = tiny_tokenizer()
    model.save_pretrained(tmp_path / "tuned")
    tokenizer.save_pretrained(tmp_path / "tuned")
    questions = [(f"who was born in {n}?", f"in {n} the queen was born.", "the queen") for n in range(8)]
    (tmp_path / "mine.json").write_text(json.dumps(squad_json(*questions)))
    files = {"train": tmp_path / "mine.json", "dev": tmp_path / "mine.json"}
    config = write_config(tmp_path, encoder=tmp_path / "tuned", name="files", **files)
    assert command("run", config, "finetune.epochs=0").code == 0

    place = tmp_path / "run" / "snapshots" / "epoch_0" / "predictions" / "dev" / "encoder"
    for row, (question, passage, _) in zip(read_jsonl(place / "predictions.jsonl"), questions, strict=True):
        inputs = tokenizer(question, passage, return_tensors="pt", return_offsets_mapping=True)
        offsets = inputs.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            output = model(**inputs)
        starts, ends = output.start_logits[0].log_softmax(-1), output.end_logits[0].log_softmax(-1)
        places = [n for n, part in enumerate(inputs.sequence_ids(0)) if part == 1]
        spans = [(float(starts[i] + ends[j]), i, j) for i in places for j in places if i <= j < i + 30]
        score, first, last = max(spans)
        assert row["n_best"][0]["score"] == pytest.approx(score, abs=1e-4)
        assert row["null_score"] == pytest.approx(float(starts[0] + ends[0]), abs=1e-4)
        assert row["n_best"][0]["text"] == passage[offsets[first][0] : offsets[last][1]]


# ---------------------------------------------------------------------- scoring a file


def test_a_predictions_file_is_scored_by_the_official_metrics(
    tmp_path: Path, command: Command, squad_json: Callable[..., Any]
) -> None:
    data = squad_json(
        ("q", "the old house in the city", "the old house"),  # said "house": EM 0, F1 = 2·1·½/(1+½) = 2/3
        ("q", "Anna wrote it", "Anna"),  # said "anna!": EM 1 after normalising
        ("q", "nothing here", None),  # said nothing: right
        ("q", "nothing there", None),  # said something: wrong
    )
    (tmp_path / "data.json").write_text(json.dumps(data))
    (tmp_path / "said.json").write_text(json.dumps({"q0": "house", "q1": "anna!", "q2": "", "q3": "there"}))
    said = command("evaluate", "--predictions", tmp_path / "said.json", "--data", tmp_path / "data.json", "--json")
    scores = said.json
    expected = {
        "exact": 50.0, "f1": 100 * (2 / 3 + 1 + 1) / 4, "total": 4,
        "HasAns_exact": 50.0, "HasAns_f1": 100 * (2 / 3 + 1) / 2, "HasAns_total": 2,
        "NoAns_exact": 50.0, "NoAns_f1": 50.0, "NoAns_total": 2,
    }  # fmt: skip
    assert {key: scores[key] for key in expected} == pytest.approx(expected)
    table = command("evaluate", "--predictions", tmp_path / "said.json", "--data", tmp_path / "data.json").out
    assert "HasAns_f1" in table and "83.3333" in table


# ---------------------------------------------------------------------- JSON, help, the module, Python


def test_standard_output_is_only_json(
    finished: Callable[..., Path], command: Command, glue_folder: Path, tiny_encoder_folder: Path
) -> None:
    run = finished(name="rte", data=glue_folder)
    words: list[list[object]] = [
        ["run", run], ["evaluate", run], ["check", run], ["tasks"], ["tasks", "--data", glue_folder], ["settings"],
        ["heads"], ["heads", "--encoder", tiny_encoder_folder, "--task", "stsb"],
        ["predict", run, "--text", "a king", "--text-pair", "a man"],
        ["predict", run, "--file", glue_folder / "RTE" / "test.tsv"],
    ]  # fmt: skip
    for line in words:
        said = command(*line, "--json")
        assert said.code == 0, said.err
        assert said.json, line


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("120", 120), (None, 200), ("", 200), ("wide", 200)])
def test_piped_tables_are_as_wide_as_columns_says(
    columns: str | None, width: int, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    for name in ("heads", "tasks", "settings"):
        assert max(map(len, command(name).out.splitlines())) <= width, name
    heads = " ".join(command("heads").out.split())
    assert ("columns not shown:" in heads) == (width < 200)
    assert ("pooled_adapter_inception" in heads) and ("6,583,122" in heads)


def test_in_a_narrow_terminal_the_headings_of_numbers_take_several_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table(["the model", Column("EM paper", 1), Column("EM ours", 1)], [["adapter 64 shared", 67.7, -1.5]])
    for width, heading in ((60, "the model EM paper EM ours"), (40, "the model paper ours")):
        monkeypatch.setenv("COLUMNS", str(width))
        print_table(table)
        lines = capsys.readouterr().out.splitlines()
        assert [" ".join(line.split()) for line in lines if "model" in line] == [heading]
        assert [" ".join(line.split()) for line in lines if "adapter" in line] == ["adapter 64 shared 67.7 −1.5"]


def test_heads_are_counted_for_an_encoder(command: Command) -> None:
    rows = {row["name"]: row for row in command("heads", "--encoder", "bert-large-uncased", "--json").json}
    assert rows["learned_pooling"]["parameters"] == 2076
    assert rows["last_linear"]["parameters"] == 2050


def test_the_module_runs_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "bertvision", "tasks"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "rte" in done.stdout


def test_verbose_shows_the_number_of_threads_before_and_after_the_commands_name(rte: Path, command: Command) -> None:
    line = f"{torch.get_num_threads()} thread"
    assert line in command("-v", "run", rte).err
    assert line in command("run", rte, "--verbose").err
    assert line not in command("run", rte).err, "one command's option does not change the next one"


def test_every_command_has_help(command: Command) -> None:
    names = ("demo", "run", "check", "tasks", "heads", "settings", "finetune", "train", "evaluate", "predict")
    whole = command("--help").out
    for name in names:
        said = command(name, "--help")
        assert name in whole
        assert said.code == 0 and "Usage" in said.out
    assert command("--version").out.strip() == bv.__version__


def test_python_does_the_same_as_the_command(tmp_path: Path, tiny_encoder_folder: Path, glue_folder: Path) -> None:
    run = bv.run(
        task={"name": "rte", "data": str(glue_folder)},
        encoder=str(tiny_encoder_folder),
        heads=["learned_pooling"],
        data={"max_length": 48, "hold_out": 0.25},
        finetune={"batch_rows": 2},
        train={"epochs": 1},
        run=str(tmp_path / "run"),
    )
    assert list(run.scores["snapshots"]["1"]) == ["baseline", "encoder", "last_linear", "learned_pooling"]
    assert "| learned_pooling |" in run.summary()
    assert run.summary() in (tmp_path / "run" / "summary.md").read_text()
    rows = run.predict([("a king", "a man"), ("he", "she")], head="learned_pooling")
    assert [set(row.probabilities) for row in rows] == [{"entailment", "not_entailment"}] * 2
    with pytest.raises(bv.UserError, match="two texts"):
        run.predict("a king")
    before = stamps(tmp_path / "run")
    again = bv.run(run.config)
    assert stamps(tmp_path / "run") == before
    assert again.scores == run.scores


def test_a_config_excludes_keywords(rte: Path) -> None:
    with pytest.raises(bv.UserError, match="not both"):
        bv.run(rte, finetune={"epochs": 0.1})


def test_a_folder_without_scores_has_no_summary(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    run = bv.Run(tmp_path)
    with pytest.raises(bv.UserError, match="no scores yet"):
        run.summary()
    assert "no scores yet" in repr(run)
    with pytest.raises(bv.UserError, match=r"is not a run: it has no config\.json"):
        bv.Run(tmp_path / "nothing")


def test_a_task_may_be_given_by_name_alone_from_python() -> None:
    with pytest.raises(bv.UserError, match="did you mean 'rte'"):
        bv.run(task="rt")
    with pytest.raises(bv.UserError, match=r"task\.name"):
        bv.run()


def test_a_moved_run_is_used_in_its_new_folder(
    tmp_path: Path, finished: Callable[..., Path], command: Command, glue_folder: Path
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(finished(name="rte", data=glue_folder), moved)
    said = command("evaluate", moved, "--json")
    assert said.json["run"] == str(moved)
