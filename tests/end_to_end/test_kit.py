"""Kits from the command line: built from runs, used on typed text and on files."""

import csv
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sealed import edit_json

Command = Callable[..., Any]
UNTOUCHED = ("finetune.epochs=0", "train.snapshots=[0]", "finetune.snapshots=[]")
ECHOED = {"id", "text", "text_pair"}
QUESTION, PASSAGE = "When did the café open?", "In 1900 the café of Zürich opened with 3 tables."


@pytest.fixture
def kit(finished: Callable[..., Path], glue_folder: Path, squad_folder: Path, command: Command, tmp_path: Path) -> Path:
    runs = [
        finished(*UNTOUCHED, name=name, data=squad_folder if name == "squad2" else glue_folder)
        for name in ("sst2", "rte", "squad2")
    ]
    made = command("kit", *runs, "--to", tmp_path / "kit")
    assert "kit of 3 tasks" in made.out
    (tmp_path / "runs.json").write_text(json.dumps([str(run) for run in runs]), encoding="utf-8")
    return tmp_path / "kit"


def test_every_task_predicts_on_typed_text_and_shows_trust(kit: Path, command: Command) -> None:
    rows = command("predict", kit, "--text", QUESTION, "--text-pair", PASSAGE, "--tasks", "all", "--json").json
    assert set(rows) == {"sst2", "rte", "squad2"} and all("trust" in row for row in rows.values())
    said = command("predict", kit, "--text", QUESTION, "--text-pair", PASSAGE).out.splitlines()
    assert [line.split()[0] for line in said] == ["sst2", "rte", "squad2"]
    assert all(("held-out answer" in line) != ("no similar answers on held-out data" in line) for line in said)
    assert set(command("predict", kit, "--text", "a king", "--json").json) == {"sst2"}


def test_files_in_several_formats_are_read(kit: Path, command: Command, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a king\n\na man\n", encoding="utf-8")
    rows = command("predict", kit, "--file", tmp_path / "lines.txt", "--json").json
    assert [(row["id"], row["text"], set(row) - ECHOED) for row in rows] == [
        ("1", "a king", {"sst2"}),
        ("3", "a man", {"sst2"}),
    ]
    (tmp_path / "pairs.csv").write_text('sentence1,sentence2\na king,"a man, old"\n', encoding="utf-8")
    out = tmp_path / "predictions.jsonl"
    command("predict", kit, "--file", tmp_path / "pairs.csv", "--tasks", "rte,squad2", "--out", out)
    (row,) = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert set(row) == {"id", "text", "text_pair", "rte", "squad2"} and row["text_pair"] == "a man, old"


def test_rows_have_the_ids_of_the_file_and_a_json_file_gets_one_object(
    kit: Path, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "texts.csv").write_text("id,text\nx7,a king\nx8,a man\n", encoding="utf-8")
    rows = command("predict", kit, "--file", tmp_path / "texts.csv", "--json").json
    assert [row["id"] for row in rows] == ["x7", "x8"]
    out = tmp_path / "predictions.json"
    command("predict", kit, "--file", tmp_path / "texts.csv", "--out", out)
    found = json.loads(out.read_text(encoding="utf-8"))
    assert [{"id": id, "text": row["text"], **found[id]} for id, row in zip(found, rows, strict=True)] == rows


def test_an_answer_without_similar_held_out_answers_is_marked(kit: Path, command: Command) -> None:
    edit_json(kit / "kit.json", lambda facts: facts["tasks"]["sst2"].update(trust={}))
    assert "[no similar answers on held-out data]" in command("predict", kit, "--text", "a king").out


def test_a_kit_replaces_no_other_folder(
    finished: Callable[..., Path], glue_folder: Path, command: Command, tmp_path: Path
) -> None:
    run = finished(*UNTOUCHED, name="sst2", data=glue_folder)
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    for place in (tmp_path, run, run.parent):
        made = command("kit", run, "--to", place)
        assert made.code == 2 and str(place) in made.err
    assert (tmp_path / "mine.txt").is_file() and (run / "scores.json").is_file()
    odd = command("kit", run, "--to", tmp_path / "kit", "--head", "rte=adapter")
    assert odd.code == 2 and "a head is given for task 'rte', but no run is for that task" in " ".join(odd.err.split())
    assert "kit of 1 task:" in command("kit", run, "--to", tmp_path / "kit").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", "a king", "--head", "encoder"], "--head: only for runs"),
        (["--text", "a king", "--tasks", "rte"], "two texts are needed for rte"),
        (["--text", "a king", "--tasks", "cola"], "no task 'cola'"),
        (["--text", "a king", "--tasks", ","], "no task selected"),
        (["--text", " "], "'--text' is empty"),
        ([], "nothing to predict on"),
        (["--file", "FOLDER/odd.csv"], "expected one of these sets of columns: question, passage"),
    ],
)
def test_invalid_arguments_raise_clear_errors(
    arguments: list[str], message: str, kit: Path, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "odd.csv").write_text("first,second\na,b\n", encoding="utf-8")
    found = command("predict", kit, *[word.replace("FOLDER", str(tmp_path)) for word in arguments])
    assert found.code == 2 and message in found.err


def test_tasks_are_for_kits(finished: Callable[..., Path], glue_folder: Path, command: Command) -> None:
    run = finished(name="sst2", data=glue_folder)
    asked = command("predict", run, "--text", "a king", "--tasks", "all")
    assert asked.code == 2 and "--tasks is for kits" in asked.err
    made = command("kit", run, "--to", run.parent / "kit")
    assert made.code == 2 and "has no head on the untouched encoder" in made.err


def test_several_texts_can_be_typed_at_the_prompt_one_after_another(
    kit: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = ["a king", "", QUESTION, PASSAGE, ""]  # a single text, a pair, then quit

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("".join(f"{line}\n" for line in typed)))
    said = command("predict", kit)
    assert said.code == 0, said.err
    assert re.findall(r"(sst2|rte|squad2) {2,}", said.out) == ["sst2", "sst2", "rte", "squad2"]


def test_a_kit_is_scored_on_a_configs_data(kit: Path, command: Command, tmp_path: Path) -> None:
    rte = json.loads((tmp_path / "runs.json").read_text(encoding="utf-8"))[1]
    scores = command("evaluate", rte, "--kit", kit, "--json").json
    assert scores["task"] == "rte" and set(scores["splits"]["dev"]) == {"baseline", "head", "card"}
    assert scores["splits"]["dev"]["head"] == pytest.approx(scores["splits"]["dev"]["card"])
    said = command("evaluate", rte, "--kit", kit).out
    assert "for rte, kit kit" in said and "baseline" in said and "card" in said
    for arguments, message in (
        ((rte, "--kit", "nowhere"), "no kit 'nowhere': give a shipped kit (default)"),
        (("--kit", kit), "give a config or run folder"),
        (("--kit", kit, "--predictions", "a.json", "--data", "b.json"), "no config or kit"),
    ):
        refused = command("evaluate", *arguments)
        assert refused.code == 2 and message in " ".join(refused.err.split())


def test_cards_contain_the_text_of_the_about_file(kit: Path, command: Command, tmp_path: Path) -> None:
    runs = [Path(word) for word in json.loads((tmp_path / "runs.json").read_text(encoding="utf-8"))]
    about = tmp_path / "about.toml"
    about.write_text('sst2 = "Reviews, free for all."\n', encoding="utf-8")
    assert command("kit", *runs, "--to", kit, "--about", about).code == 0
    assert "Reviews, free for all." in (kit / "sst2" / "README.md").read_text(encoding="utf-8")
    for text, message in (
        ("sst2 = 1\n", "expected lines such as"),
        ("sst2 =\n", "is not valid TOML"),
        ("sst2 = " + "[" * 100_000, "it is nested too deeply"),
        (None, "no such file"),
    ):
        about.unlink(missing_ok=True) if text is None else about.write_text(text, encoding="utf-8")
        refused = command("kit", *runs, "--to", kit, "--about", about)
        assert refused.code == 2 and message in " ".join(refused.err.split()) and "Traceback" not in refused.err


def test_a_row_that_can_not_be_predicted_has_an_error_and_the_others_are_predicted(
    kit: Path, command: Command, tmp_path: Path
) -> None:
    texts, long = tmp_path / "texts.csv", "when " * 50
    rows = [("a", QUESTION, PASSAGE), ("b", " ", PASSAGE), ("c", QUESTION, ""), ("d", long, PASSAGE), ("a", "x", "y")]
    with texts.open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle).writerows([("id", "question", "passage"), *rows])
    said = command("predict", kit, "--file", texts, "--json")
    assert said.code == 1 and said.err.splitlines()[-1] == "error: 3 of 5 rows could not be predicted."
    found = said.json
    assert [(row["id"], row["text"], row["text_pair"]) for row in found] == rows
    tasks = {"sst2", "rte", "squad2"}
    assert [set(row) - ECHOED for row in found] == [tasks, {"error"}, {"error"}, {"error"}, tasks]
    assert [row["error"] for row in found[1:4]] == [
        "the first text (the question) is empty.",
        "the second text (the passage) is empty.",
        "the question is too long for squad2: it leaves too little room for the passage in 48 tokens.",
    ]
    out = tmp_path / "out.jsonl"
    assert command("predict", kit, "--file", texts, "--out", out).code == 1
    assert [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] == found
    printed = command("predict", kit, "--file", texts).out.splitlines()
    assert len(printed) == 2 * 3 + 3 and "b\terror: the first text (the question) is empty." in printed
    repeated = command("predict", kit, "--file", texts, "--out", tmp_path / "out.json")
    assert repeated.code == 2 and "more than once: a" in " ".join(repeated.err.split())
    texts.write_text('text\n \n""\n', encoding="utf-8")
    assert [row["error"] for row in command("predict", kit, "--file", texts, "--json").json] == [
        "the text is empty."
    ] * 2


def test_the_input_file_is_not_overwritten(kit: Path, command: Command, tmp_path: Path) -> None:
    texts = tmp_path / "texts.csv"
    texts.write_text("text\na king\n", encoding="utf-8")
    refused = command("predict", kit, "--file", texts, "--out", texts)
    assert refused.code == 2 and "is the input file" in " ".join(refused.err.split())
    assert texts.read_text(encoding="utf-8") == "text\na king\n"
    assert "a shipped kit (default)" in " ".join(command("predict", "defualt", "--text", "a king").err.split())


def test_heads_are_added_listed_replaced_and_removed(kit: Path, command: Command, tmp_path: Path) -> None:
    runs = dict(zip(("sst2", "rte", "squad2"), json.loads((tmp_path / "runs.json").read_text()), strict=True))
    assert command("kit", "rm", kit, "rte", "squad2").out.endswith("rte, squad2\n")
    assert [row["task"] for row in command("kit", "ls", kit, "--json").json["tasks"]] == ["sst2"]
    assert "already" not in command("kit", "add", kit, runs["rte"]).err
    again = command("kit", "add", kit, runs["rte"])
    assert again.code == 2 and "use `bertvision kit replace`" in again.err
    said = command("kit", "replace", kit, runs["rte"], "--head", "rte=adapter_4")
    assert said.code == 0 and said.out.startswith("rte: adapter_4, ")
    (one, two) = command("kit", "ls", kit, "--json").json["tasks"]
    assert (one["task"], two["task"], two["head"]) == ("sst2", "rte", "adapter_4")
    facts = json.loads((kit / "kit.json").read_text())["tasks"]["rte"]
    assert two["held_out"] == facts["scores"]["held_out"]["accuracy"] and two["parameters"] == facts["parameters"]
    listed = command("kit", "ls", kit).out
    assert "adapter_4" in listed and f"{two['held_out']:.2f}" in listed
    made = command("kit", "make", runs["sst2"], "--to", tmp_path / "new")
    assert "kit of 1 task" in made.out
