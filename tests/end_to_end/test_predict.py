"""Prediction on new text: given on the command line, in files of every format, and the official submission files."""

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sealed import edit_json

import bertvision as bv
from bertvision.pipeline.predict import Predictor

Command = Callable[..., Any]
PASSAGE = "In 1900 the café of Zürich opened 😀 with 3 tables. “It was loud”, Anna said."
QUESTION = "When did the café open?"


@pytest.fixture
def squad_run(finished: Callable[..., Path], squad_folder: Path) -> Path:
    return finished(name="squad2", data=squad_folder)


@pytest.fixture
def rte_run(finished: Callable[..., Path], glue_folder: Path) -> Path:
    return finished(name="rte", data=glue_folder)


def held_out_scores(run: Path) -> dict[str, dict[str, Any]]:
    models = json.loads((run / "scores.json").read_text())["snapshots"]["1"]
    return {name: model["scores"]["held_out"] for name, model in models.items() if name != "baseline"}


# ---------------------------------------------------------------------- single texts


@pytest.mark.parametrize("head", ["encoder", "last_linear", "learned_pooling", "adapter_4"])
def test_an_answer_is_at_its_offsets_in_the_passage(head: str, squad_run: Path, command: Command) -> None:
    typed = ["--text", QUESTION, "--text-pair", PASSAGE, "--head", head]
    row = command("predict", squad_run, *typed, "--threshold", "1e9", "--json").json
    assert row["answer"] and PASSAGE[row["start"] : row["end"]] == row["answer"]
    candidates = bv.load(squad_run, head=head).predict((QUESTION, PASSAGE)).candidates
    for candidate in candidates:
        assert PASSAGE[candidate["start"] : candidate["end"]] == candidate["text"]
    assert 0 < sum(candidate["probability"] for candidate in candidates) <= 1
    silent = command("predict", squad_run, *typed, "--threshold", "-1e9", "--json").json
    assert (silent["answer"], silent["start"], silent["end"]) == ("", None, None)
    assert silent["no_answer"] and not row["no_answer"]
    total = silent["probability"] + sum(candidate["probability"] for candidate in candidates)
    assert total == pytest.approx(1, abs=1e-3)
    said = command("predict", squad_run, *typed, "--threshold", "1e9").out
    assert said.startswith(row["answer"]) and f"characters {row['start']} to {row['end']}" in said
    assert command("predict", squad_run, *typed, "--threshold", "-1e9").out.startswith("no answer")


def test_a_label_has_the_probability_of_every_label(rte_run: Path, command: Command) -> None:
    row = command("predict", rte_run, "--text", "a king", "--text-pair", "a man", "--json").json
    assert set(row["probabilities"]) == {"entailment", "not_entailment"}
    assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    assert row["label"] == max(row["probabilities"], key=row["probabilities"].get)


def test_a_score_is_a_number(finished: Callable[..., Path], command: Command, glue_folder: Path) -> None:
    run = finished(name="stsb", data=glue_folder)
    typed = ["--text", "a king", "--text-pair", "a man"]
    row = command("predict", run, *typed, "--json").json
    assert set(row["trust"]) == {"off_by", "examples"}
    score, _, trust = command("predict", run, *typed).out.partition("  [off by ")
    assert float(score) == pytest.approx(row["score"], abs=1e-3) and trust


def test_answerability_is_a_label(finished: Callable[..., Path], command: Command, squad_folder: Path) -> None:
    run = finished(name="squad2_answerable", data=squad_folder)
    row = command("predict", run, "--text", QUESTION, "--text-pair", PASSAGE, "--json").json
    assert set(row["probabilities"]) == {"no_answer", "has_answer"}


@pytest.mark.parametrize(("name", "metric"), [("rte", "accuracy"), ("squad2", "f1")])
def test_without_a_head_the_best_on_held_out_data_is_used(
    name: str, metric: str, finished: Callable[..., Path], command: Command, glue_folder: Path, squad_folder: Path
) -> None:
    run = finished(name=name, data=squad_folder if name == "squad2" else glue_folder)
    scores = {model: found.get("at_threshold", found)[metric] for model, found in held_out_scores(run).items()}
    out = run.parent / "best.jsonl"
    test = squad_folder / "test-v2.0.json" if name == "squad2" else glue_folder / "RTE" / "test.tsv"
    said = command("predict", run, "--file", test, "--out", out)
    used = said.err.split("predictions by ")[1].split(":")[0]
    assert scores[used] == max(scores.values())


def test_a_name_without_its_seed_is_the_best_of_the_seeds(rte_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(rte_run, tmp_path / "run")

    def pair_up(scores: Any) -> None:
        (models,) = scores["snapshots"].values()
        for place, name in enumerate(["last_linear", "learned_pooling"]):
            models[name] |= {"group": "pair", "scores": {"held_out": {"accuracy": 40.0 + place}}}

    edit_json(run / "scores.json", pair_up)
    found = Predictor(run, "pair")
    assert found.name == "learned_pooling" and "best on held-out training data, out of 2 seeds" in found.why


def test_the_threshold_is_the_one_chosen_on_held_out_data(
    squad_run: Path, command: Command, squad_folder: Path
) -> None:
    for head, scores in held_out_scores(squad_run).items():
        words = ["predict", squad_run, "--head", head, "--file", squad_folder / "dev-v2.0.json", "--json"]
        chosen = command(*words).json
        assert chosen == command(*words, "--threshold", scores["threshold"]).json
        kept = squad_run / "snapshots" / "epoch_1" / "predictions" / "dev" / head / "predictions.jsonl"
        answers = [json.loads(line)["answer"] for line in kept.read_text(encoding="utf-8").rstrip("\n").split("\n")]
        assert [row["answer"] for row in chosen] == answers


# ---------------------------------------------------------------------- files


def write_pairs(folder: Path, names: tuple[str, str], rows: list[tuple[str, str]]) -> list[Path]:
    """The same pairs as CSV, TSV and JSON lines."""
    lines = [dict(zip(names, row, strict=True)) for row in rows]
    (folder / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for ending, mark in (("csv", ","), ("tsv", "\t")):
        (folder / f"p.{ending}").write_text("".join(mark.join(row) + "\n" for row in [names, *rows]))
    return [folder / f"p.{ending}" for ending in ("csv", "tsv", "jsonl")]


@pytest.mark.parametrize("names", [("question", "passage"), ("question", "context")])
def test_questions_are_read_from_every_file_format(
    names: tuple[str, str], tmp_path: Path, squad_run: Path, command: Command, squad_json: Callable[..., Any]
) -> None:
    rows = [("who was born?", "the queen was born in 1900."), ("who died?", "no man died in the old city.")]
    files = write_pairs(tmp_path, names, rows)
    (tmp_path / "p.json").write_text(json.dumps(squad_json(*((*row, None) for row in rows))))
    found = []
    for file in [*files, tmp_path / "p.json"]:
        said = command("predict", squad_run, "--head", "adapter_4", "--file", file, "--json")
        assert said.code == 0, said.err
        found.append([{**row, "id": None} for row in said.json])
    assert len(found[0]) == 2
    assert all(rows == found[0] for rows in found)


def test_glue_text_is_read_from_every_file_format(tmp_path: Path, rte_run: Path, command: Command) -> None:
    files = write_pairs(tmp_path, ("sentence1", "sentence2"), [("a king", "a man"), ("the river", "a city")])
    found = [command("predict", rte_run, "--file", file, "--json").json for file in files]
    assert len(found[0]) == 2
    assert all([row["probabilities"] for row in rows] == [row["probabilities"] for row in found[0]] for rows in found)


def test_a_users_own_columns_and_ids_are_those_of_the_run_even_when_its_data_is_gone(
    tmp_path: Path, command: Command, write_config: Callable[..., Path]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    rows = "".join(f"{n},the king {n},{'yes' if n % 2 else 'no'}\n" for n in range(8))
    for name in ("train.csv", "dev.csv"):
        (data / name).write_text("number,words,verdict\n" + rows)
    config = write_config(tmp_path, name="files", data=data, text="words", label="verdict", id="number")
    assert command("run", config).code == 0
    shutil.rmtree(data)
    (tmp_path / "new.csv").write_text("number,words\nx7,the queen\nx2,a river\n")
    out = tmp_path / "out.jsonl"
    said = command("predict", tmp_path / "run", "--file", tmp_path / "new.csv", "--out", out)
    assert said.code == 0, said.err
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["id"] for line in lines] == ["x7", "x2"]
    assert all(line["label"] in ("yes", "no") for line in lines)
    typed = command("predict", tmp_path / "run", "--text", "the queen", "--json").json
    assert typed["probabilities"] == lines[0]["probabilities"]
    gone = command("predict", tmp_path / "run", "--submission", tmp_path / "sub")
    assert gone.code == 2 and "task.data" in gone.err


def test_a_row_of_a_file_that_can_not_be_predicted_has_an_error(
    tmp_path: Path, squad_run: Path, rte_run: Path, command: Command
) -> None:
    rows = [("who died?", "no man died."), ("who?", " "), ("who " * 60, "the king"), ("", "the queen")]
    for run, names, wrong in ((squad_run, ("question", "passage"), 3), (rte_run, ("sentence1", "sentence2"), 2)):
        for file in write_pairs(tmp_path, names, rows)[::2]:  # GLUE's own reader reads its TSV files
            said = command("predict", run, "--file", file, "--json")
            assert said.code == 1 and f"{wrong} of 4 rows could not be predicted." in said.err
            errors = [row.get("error", "") for row in said.json]
            assert errors[1::2] == [
                "the second text (the passage) is empty.", "the first text (the question) is empty.",
            ]  # fmt: skip
            assert errors[0] == "" and ("question is too long: it" in errors[2]) == (run == squad_run)
            assert [(row["text"], row["text_pair"]) for row in said.json] == rows
    printed = command("predict", rte_run, "--file", tmp_path / "p.csv").out.splitlines()
    assert printed[1] == "3\terror: the second text (the passage) is empty." and len(printed) == 4


def test_files_of_single_texts_have_ids_and_may_be_plain_text(
    tmp_path: Path, finished: Callable[..., Path], rte_run: Path, command: Command, glue_folder: Path
) -> None:
    run = finished(name="sst2", data=glue_folder)
    (tmp_path / "new.csv").write_text("id,sentence\nx7,a king\nx7,a man\n,a city\n")
    rows = command("predict", run, "--file", tmp_path / "new.csv", "--json").json
    assert [(row["id"], row["text"]) for row in rows] == [("x7", "a king"), ("x7", "a man"), ("4", "a city")]
    (tmp_path / "new.txt").write_text("a king\n\na man\n")
    lines = command("predict", run, "--file", tmp_path / "new.txt", "--json").json
    assert [line["id"] for line in lines] == ["1", "3"]
    assert [line["label"] for line in lines] == [row["label"] for row in rows[:2]]
    pairs = command("predict", rte_run, "--file", tmp_path / "new.txt")
    assert pairs.code == 2 and "rte reads two texts" in pairs.err


def test_python_takes_texts_pairs_and_lists_of_them(
    finished: Callable[..., Path], rte_run: Path, glue_folder: Path
) -> None:
    run = bv.Run(finished(name="sst2", data=glue_folder))
    two = run.predict(["a king", "a man"])
    assert len(two) == 2 and two == run.predict(np.array(["a king", "a man"])) == bv.load(run.folder).predict(
        text for text in ("a king", "a man")
    )
    one = run.predict("a king")
    assert one == two[0] and run.predict(["a king"]) == [one] and run.predict([]) == []
    with pytest.raises(bv.UserError, match="trained on single texts"):
        run.predict(("a king", "a man"))
    pairs = bv.load(rte_run)
    pair = pairs.predict(("a king", "a man"))
    assert [pair] == pairs.predict([("a king", "a man")]) == pairs.predict([{"text": "a king", "text_pair": "a man"}])
    assert pair == pairs.predict({"question": "a king", "passage": "a man"})
    with pytest.raises(bv.UserError, match="rte needs two texts"):
        pairs.predict(["a king", "a man"])  # two texts, never a pair


def test_out_writes_json_lines_or_the_official_json(
    tmp_path: Path, squad_run: Path, command: Command, squad_folder: Path
) -> None:
    file = squad_folder / "test-v2.0.json"
    for name in ("a.jsonl", "a.json"):
        said = command("predict", squad_run, "--file", file, "--out", tmp_path / "deep" / name)
        assert said.code == 0 and said.out == "" and "3 predictions" in said.err
    lines = [
        json.loads(line)
        for line in (tmp_path / "deep" / "a.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n")
    ]
    official = json.loads((tmp_path / "deep" / "a.json").read_text(encoding="utf-8"))
    assert official == {line["id"]: line["answer"] for line in lines}
    assert list(official) == ["test0a", "test0b", "test0c"]


def test_evaluate_scores_the_output_of_predict(
    tmp_path: Path, squad_run: Path, command: Command, squad_folder: Path
) -> None:
    dev, out = squad_folder / "dev-v2.0.json", tmp_path / "said.json"
    command("predict", squad_run, "--head", "encoder", "--threshold", "0", "--file", dev, "--out", out)
    scores = command("evaluate", "--predictions", out, "--data", dev, "--json").json
    table = json.loads((squad_run / "scores.json").read_text())["snapshots"]["1"]["encoder"]["scores"]["dev"]
    assert {key: table[key] for key in scores} == pytest.approx(scores)


# ---------------------------------------------------------------------- official submissions

FORMS = {
    "cola": ("CoLA.tsv", {"0", "1"}), "sst2": ("SST-2.tsv", {"0", "1"}), "mrpc": ("MRPC.tsv", {"0", "1"}),
    "qqp": ("QQP.tsv", {"0", "1"}), "wnli": ("WNLI.tsv", {"0", "1"}),
    "qnli": ("QNLI.tsv", {"entailment", "not_entailment"}), "rte": ("RTE.tsv", {"entailment", "not_entailment"}),
    "stsb": ("STS-B.tsv", None),
}  # fmt: skip


def submission_of(path: Path) -> tuple[list[str], list[str]]:
    header, *rows = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    assert header == "index\tprediction"
    indices, values = zip(*(row.split("\t") for row in rows), strict=True)
    return list(indices), list(values)


@pytest.mark.parametrize("name", ["cola", "qnli", "rte", "stsb"])
def test_glue_submissions_have_the_official_format(
    name: str, tmp_path: Path, finished: Callable[..., Path], command: Command, glue_folder: Path
) -> None:
    run = finished(name=name, data=glue_folder)
    said = command("predict", run, "--submission", tmp_path)
    assert said.code == 0, said.err
    file, labels = FORMS[name]
    assert [path.name for path in tmp_path.iterdir()] == [file]
    indices, values = submission_of(tmp_path / file)
    assert indices == ["0", "1", "2", "3"]
    assert all(0 <= float(value) <= 5 for value in values) if labels is None else set(values) <= labels


def test_mnli_submits_two_test_sets_and_the_diagnostic_one(
    tmp_path: Path, finished: Callable[..., Path], command: Command, glue_folder: Path
) -> None:
    said = command("predict", finished(name="mnli", data=glue_folder), "--submission", tmp_path)
    assert said.code == 0, said.err
    rows = {path.name: submission_of(path) for path in tmp_path.iterdir()}
    assert {name: indices for name, (indices, _) in rows.items()} == {
        "MNLI-m.tsv": ["0", "1", "2", "3"], "MNLI-mm.tsv": ["0", "1", "2"], "AX.tsv": ["0", "1", "2"],
    }  # fmt: skip
    assert {value for _, values in rows.values() for value in values} <= {"entailment", "neutral", "contradiction"}


def test_the_diagnostic_set_is_found_next_to_the_mnli_folder(
    tmp_path: Path, finished: Callable[..., Path], command: Command, glue_folder: Path
) -> None:
    run = finished(name="mnli", data=glue_folder)
    assert command("predict", run, "--submission", tmp_path, "--data", glue_folder / "MNLI").code == 0
    assert (tmp_path / "AX.tsv").is_file()


def test_files_of_cola_are_read_with_and_without_a_header(
    finished: Callable[..., Path], command: Command, glue_folder: Path
) -> None:
    run = finished(name="cola", data=glue_folder)
    for name in ("dev.tsv", "test.tsv"):
        said = command("predict", run, "--file", glue_folder / "CoLA" / name, "--json")
        assert said.code == 0, said.err
        rows = (glue_folder / "CoLA" / name).read_text(encoding="utf-8").rstrip("\n").split("\n")
        assert len(said.json) == len(rows) - (name == "test.tsv")


def test_a_submission_takes_its_test_files_from_another_folder(
    tmp_path: Path, rte_run: Path, command: Command, glue_folder: Path
) -> None:
    (tmp_path / "RTE").mkdir()
    lines = (glue_folder / "RTE" / "test.tsv").read_text(encoding="utf-8").split("\n")
    (tmp_path / "RTE" / "test.tsv").write_text("\n".join([lines[0], lines[3], lines[1]]) + "\n", encoding="utf-8")
    said = command("predict", rte_run, "--submission", tmp_path / "out", "--data", tmp_path)
    assert said.code == 0, said.err
    assert submission_of(tmp_path / "out" / "RTE.tsv")[0] == ["2", "0"]


def test_squad_submission_is_id_to_text(tmp_path: Path, squad_run: Path, command: Command, squad_folder: Path) -> None:
    assert command("predict", squad_run, "--submission", tmp_path).code == 0
    (path,) = tmp_path.iterdir()
    answers = json.loads(path.read_text(encoding="utf-8"))
    assert list(answers) == ["test0a", "test0b", "test0c"]
    assert all(answer in PASSAGE for answer in answers.values())


def test_a_submission_without_a_test_file_names_what_to_do(
    tmp_path: Path, squad_run: Path, command: Command, squad_folder: Path
) -> None:
    shutil.copy(squad_folder / "dev-v2.0.json", tmp_path)
    said = command("predict", squad_run, "--submission", tmp_path / "out", "--data", tmp_path)
    assert said.code == 2 and "found only dev. Add the test file, or give another folder with --data." in said.err


# ---------------------------------------------------------------------- a head belongs to its encoder


def test_a_head_is_not_used_on_an_encoder_it_was_not_trained_on(
    tmp_path: Path, rte_run: Path, command: Command
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(rte_run, moved)
    assert command("finetune", moved, "finetune.lr=0.01").code == 0
    typed = ["--text", "a king", "--text-pair", "a man", "--head", "adapter_4"]
    refused = command("predict", moved, *typed)
    assert refused.code == 2 and "bertvision run" in refused.err
    assert command("run", moved).code == 0
    assert command("predict", moved, *typed).code == 0


def test_an_encoder_that_was_not_fine_tuned_is_found_from_another_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Command,
    write_config: Callable[..., Path],
    tiny_encoder_folder: Path,
    glue_folder: Path,
) -> None:
    monkeypatch.chdir(tiny_encoder_folder.parent)
    config = write_config(tmp_path, encoder=Path(tiny_encoder_folder.name), name="rte", data=glue_folder)
    assert command("run", config, "finetune.epochs=0").code == 0
    monkeypatch.chdir(tmp_path)
    said = command("predict", "run", "--text", "a king", "--text-pair", "a man")
    assert said.code == 0, said.err


# ---------------------------------------------------------------------- standard input, and mistakes that cost nothing


def give(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def test_a_text_is_read_from_standard_input(squad_run: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = command("predict", squad_run, "--text", QUESTION, "--text-pair", PASSAGE, "--json").json
    give(monkeypatch, f"{PASSAGE}\n".encode())
    assert command("predict", squad_run, "--text", QUESTION, "--text-pair", "-", "--json").json == expected
    give(monkeypatch, b"\xff")
    refused = command("predict", squad_run, "--text", QUESTION, "--text-pair", "-")
    assert refused.code == 2 and "standard input is not UTF-8" in refused.err
    both = command("predict", squad_run, "--text", "-", "--text-pair", "-")
    assert both.code == 2 and "standard input is one text" in both.err


def test_lines_of_standard_input_are_answered(
    finished: Callable[..., Path], rte_run: Path, command: Command, glue_folder: Path, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    run = finished(name="sst2", data=glue_folder)
    give(monkeypatch, b"a king\n\na man\r\na city")
    said = command("predict", run, "--file", "-", "--json")
    rows = [json.loads(line) for line in said.out.splitlines()]
    texts = ["a king", "a man", "a city"]
    assert [(row["id"], row["text"]) for row in rows] == list(zip("134", texts, strict=True))
    assert [row["label"] for row in rows] == [one.label for one in bv.load(run).predict(texts)]
    lines = [
        {"id": "x", "sentence1": "a king", "sentence2": "a man"}, {"text": "a king", "text_pair": "a man"},
        {"text": "alone"}, {"sentence1": "a king", "sentence2": ""},
    ]  # fmt: skip
    give(monkeypatch, "\n".join(map(json.dumps, lines)).encode() + b"\n{broken\n")
    said = command("predict", rte_run, "--file", "-", "--json")
    first, second, *wrong = [json.loads(line) for line in said.out.splitlines()]
    assert said.code == 1 and "3 of 5 rows could not be predicted" in said.err
    assert first["id"] == "x" and first["probabilities"] == second["probabilities"]
    assert [row["error"].split(":")[0] for row in wrong] == [
        "line 3", "the second text (the passage) is empty.", "line 5 is not a JSON object",
    ]  # fmt: skip
    give(monkeypatch, b"a king\n")
    assert command("predict", run, "--file", "-", "--out", tmp_path / "o.json").code == 0
    assert json.loads((tmp_path / "o.json").read_text()) == {"1": rows[0]["label"]}


def test_a_line_is_answered_before_the_next_one_comes(
    finished: Callable[..., Path], glue_folder: Path, tmp_path: Path
) -> None:
    run = finished(name="sst2", data=glue_folder)
    words = [sys.executable, "-m", "bertvision", "predict", str(run), "--file", "-"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None and process.stdout is not None
        for number in (1, 2):
            process.stdin.write(b"a king\n")
            process.stdin.flush()
            assert process.stdout.readline().startswith(f"{number}\t".encode())
        process.stdin.close()
        assert process.wait() == 0


def test_cheap_mistakes_are_reported_before_a_model_is_loaded(
    squad_run: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("the encoder was loaded")

    monkeypatch.setattr("bertvision.pipeline.predict.shared_encoder", never)
    monkeypatch.setattr("bertvision.kits.kit.shared_encoder", never)
    for name, content in (("a.xlsx", ""), ("a.csv", "one,two\n1,2\n"), ("b.jsonl", "{")):
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    for model in (squad_run, "default"):
        for words, message in (
            (["--file", tmp_path / "a.xlsx"], "ends in '.xlsx', expected .csv"),
            (["--file", tmp_path / "no.csv"], "there is no file"),
            (["--file", tmp_path / "a.csv"], "columns"),
            (["--file", tmp_path / "b.jsonl"], "b.jsonl"),
            (["--text-pair", "a"], "--text-pair needs --text"),
            ([], "nothing to predict on"),
        ):
            said = command("predict", model, *words)
            assert said.code == 2 and message in said.err, (model, words, said.err)
    for words, message in (
        ([squad_run, "--head", "adaptr_4"], "did you mean 'adapter_4'"),
        ([squad_run, "--epochs", "7"], "no snapshot at 7 epochs"),
        (["default", "--tasks", "sst"], "no task 'sst'"),
        (["nowhere"], "there is no model, run or kit 'nowhere'"),
    ):
        said = command("predict", *words, "--text", "a")
        assert said.code == 2 and message in said.err, (words, said.err)
