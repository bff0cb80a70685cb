"""`bertvision fit questions.json`: from questions on passages to a model that predicts, is reported and joins a kit."""

import csv
import gzip
import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import bertvision as bv
from bertvision.disk import read_json
from bertvision.evaluation.spans import official
from bertvision.models.clock import Clock
from bertvision.models.spans import candidates
from bertvision.models.spans.candidates import Recipe, Trained

Command = Callable[..., Any]
PLACES = ("city", "river", "school", "house", "country", "north", "south", "west")
QUICK = "adapter_64"
"""A head that trains in a second."""


def write_questions(path: Path, articles: int = 4, first: int = 0) -> Path:
    """Six questions on two passages of each article, a third of them without an answer."""
    data, number = [], 0
    for article in range(first, first + articles):
        paragraphs = []
        for passage in range(2):
            who, where = ("king", "queen")[passage], PLACES[article % len(PLACES)]
            context = f"the {who} lives in the {where} {article} . the film was made in {1900 + article} ."
            asked = [("where", f"{where} {article}"), ("when", str(1900 + article)), ("how many", None)]
            qas = []
            for word, answer in asked:
                answers = [] if answer is None else [{"text": answer, "answer_start": context.rindex(answer)}]
                qas.append({"id": f"q{first}-{number}", "question": f"{word} is the {who} ?", "answers": answers})
                number += 1
            paragraphs.append({"context": context, "qas": qas})
        data.append({"title": f"article {article}", "paragraphs": paragraphs})
    path.write_text(json.dumps({"data": data}), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, command: Command, tiny_encoder_folder: Path) -> tuple[Path, Any]:
    """A model on an encoder that the shipped head does not fit, and what `fit --json` printed."""
    folder = tmp_path_factory.mktemp("questions")
    train, dev = write_questions(folder / "train.json"), write_questions(folder / "dev.json", 2, first=4)
    with mock.patch.object(candidates, "START", (Recipe(2, 1e-3),)):  # enough to tell models apart
        said = command("fit", train, "--dev", dev, "--to", folder / "model", "--encoder", tiny_encoder_folder, "--json")
    assert said.code == 0, said.err
    return folder / "model", said


@pytest.fixture(scope="module")
def continued(fitted: tuple[Path, Any], command: Command, tiny_encoder_folder: Path) -> dict[str, Any]:
    """A fit for which the head of `fitted` stands in for the shipped one."""
    folder, _ = fitted
    kit = folder.parent / "kit"
    said = command("kit", folder, "--to", kit)
    assert said.code == 0, said.err
    train, dev = write_questions(folder.parent / "more.json", 3, first=6), folder.parent / "dev.json"
    with mock.patch.object(candidates, "KIT_HEAD", str((kit / "model").resolve())):
        bv.fit(train, dev=dev, to=folder.parent / "continued", encoder=str(tiny_encoder_folder))
    return dict(read_json(folder.parent / "continued" / "model.json"))


def test_the_json_says_what_was_tried_and_how_it_was_judged(fitted: tuple[Path, Any]) -> None:
    folder, said = fitted
    found = said.json
    assert found["model"] == str(folder) and found["kind"] == "span" and found["rows"] == 24
    assert found["choice"] == {"how": "cv", "folds": 3, "rows": 24, "unit": "article"}
    assert [line["name"] for line in found["leaderboard"]] == ["never_answering", "last_linear", "ladder_128_deep"]
    assert found["chosen"] == "ladder_128_deep" and found["gain"] == ""  # nothing to compare training with
    assert all(line["dev_f1"] is not None for line in found["leaderboard"])
    # A third of the questions has no answer, so never answering is right for them.
    baseline = found["leaderboard"][0]
    assert baseline["f1"] == baseline["exact"] == baseline["dev_f1"] == pytest.approx(100 / 3)
    assert "24 questions, 8 of them without an answer, on 8 passages of 4 articles" in said.err
    assert "reads only the embedded encoder" in said.err and "Only 24 questions to judge by" in said.err


def test_scores_on_dev_are_those_of_the_saved_model_by_the_official_definition(fitted: tuple[Path, Any]) -> None:
    folder, said = fitted
    dev = json.loads((folder.parent / "dev.json").read_text())
    asked = [(qa, one["context"]) for art in dev["data"] for one in art["paragraphs"] for qa in one["qas"]]
    for line in said.json["leaderboard"][1:]:
        rows = bv.load(folder, head=line["name"]).predict([(qa["question"], context) for qa, context in asked])
        gold = {qa["id"]: [answer["text"] for answer in qa["answers"]] for qa, _ in asked}
        answers = {qa["id"]: row.answer for (qa, _), row in zip(asked, rows, strict=True)}
        scores = official.score_answers(gold, answers)
        assert scores["f1"] == pytest.approx(line["dev_f1"]) and scores["exact"] == pytest.approx(line["dev_exact"])


def test_the_folder_predicts_from_the_command_line_and_from_files(fitted: tuple[Path, Any], command: Command) -> None:
    folder, _ = fitted
    pair = ("where is the king ?", "the king lives in the city 0 .")
    (row,) = bv.load(folder).predict([pair])
    typed = command("predict", folder, "--text", pair[0], "--text-pair", pair[1], "--json").json
    assert typed == row.to_dict() and row.trust
    assert bv.load(folder).kind == "span" and "answers" in repr(bv.load(folder))
    said = command("predict", folder, "--file", folder.parent / "dev.json", "--json")
    assert len(said.json) == 12 and all("answer" in one and "trust" in one for one in said.json)
    assert "--text QUESTION --text-pair PASSAGE" in command("predict", folder, "--text", "who ?").err
    with pytest.raises(bv.UserError, match=r"predicts a span: load it with bv\.load"):
        bv.Classifier.load(folder)


def test_the_report_and_a_kit_read_the_folder(fitted: tuple[Path, Any], command: Command) -> None:
    folder, _ = fitted
    assert command("report", folder).code == 0 and (folder / "report.html").is_file()
    kit = folder.parent / "own_kit"
    assert command("kit", folder, "--to", kit).code == 0
    pair = ("where is the king ?", "the king lives in the city 0 .")
    (by_kit,), (own,) = bv.load(kit).predict([pair]), bv.load(folder).predict([pair])
    assert by_kit["model"].answer == own.answer and by_kit["model"].trust == own.trust


def test_the_card_names_no_local_path(fitted: tuple[Path, Any]) -> None:
    folder, _ = fitted
    card = (folder / "README.md").read_text()
    assert str(folder.parent) not in card and "ladder_128_deep" in card and "24 questions" in card


def test_the_shipped_head_is_tried_as_it_is_and_continued(continued: dict[str, Any], fitted: tuple[Path, Any]) -> None:
    folder = fitted[0].parent
    lines = {line["name"]: line for line in continued["leaderboard"]}
    assert list(lines) == ["never_answering", "last_linear", "kit", "continued"]
    assert lines["kit"]["parameters"] == lines["continued"]["parameters"]
    assert "the best of 2 settings" in lines["continued"]["note"]
    assert continued["gain"].startswith("Training on your questions (continued) changes F1 by ")
    # As it is: the same weights. Its answers on dev, for which no threshold is needed, score the same too.
    heads = [read_weights(path) for path in (folder / "kit" / "model", saved_head(folder / "continued", "kit"))]
    assert heads[0] == heads[1] != read_weights(saved_head(folder / "continued", "continued"))
    before = next(line for line in fitted[1].json["leaderboard"] if line["name"] == "ladder_128_deep")
    assert lines["kit"]["dev_answerable_f1"] == pytest.approx(before["dev_answerable_f1"])


def saved_head(folder: Path, name: str) -> Path:
    return folder / "snapshots" / "epoch_0" / "heads" / name


def read_weights(folder: Path) -> bytes:
    return (folder / "head.safetensors").read_bytes()


def test_a_continued_head_begins_with_all_weights_of_the_shipped_one(
    continued: dict[str, Any], fitted: tuple[Path, Any], tiny_encoder_folder: Path
) -> None:
    """Also the output layer, which `begin` leaves out for a user's own files."""
    import torch

    folder = fitted[0].parent
    train, seen = folder / "more.json", []
    with (
        mock.patch.object(candidates, "KIT_HEAD", str((folder / "kit" / "model").resolve())),
        mock.patch.object(candidates, "_train", lambda members, *rest: seen.append(members)),
    ):
        bv.fit(train, to=folder / "untrained", encoder=str(tiny_encoder_folder), heads=["kit", "continued"])
    begun = [member.head for members in seen for member in members if member.config.head == "ladder"]
    shipped, _ = candidates.load_head(folder / "kit" / "model")
    wanted = shipped.state_dict()
    assert len(begun) >= 2 * 3  # two settings, three folds
    assert all(torch.equal(value, wanted[name]) for head in begun for name, value in head.state_dict().items())


def test_compressed_files_give_the_same_model(tmp_path: Path, tiny_encoder_folder: Path) -> None:
    plain = write_questions(tmp_path / "a.json")
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(plain.read_bytes()))
    (tmp_path / "c.json.xz").write_bytes(lzma.compress(plain.read_bytes()))
    boards = []
    for path in (plain, tmp_path / "b.json.gz", tmp_path / "c.json.xz"):
        model = bv.fit(path, to=tmp_path / path.name[0], encoder=str(tiny_encoder_folder), heads=QUICK)
        boards.append([{**line, "seconds": 0} for line in model.leaderboard])
    assert boards[0] == boards[1] == boards[2]


def test_heads_are_judged_on_questions_that_they_have_not_read(tmp_path: Path, tiny_encoder_folder: Path) -> None:
    seen: list[Any] = []
    train = candidates._train

    def spy(members: Any, asked: Any, steps: Any, clock: Clock) -> None:
        seen.append((members, asked, steps))
        train(members, asked, steps, clock)

    with mock.patch.object(candidates, "_train", spy):
        bv.fit(write_questions(tmp_path / "q.json"), to=tmp_path / "m", encoder=str(tiny_encoder_folder), heads=QUICK)
    members, asked, steps = seen[1]  # after the last layer
    assert len(members) == 3
    articles = [asked.examples[number].group for number in asked.features.example]
    for member, held in zip(members, asked.split.held, strict=True):
        read = {articles[window] for step in member.steps for window in steps[step]}
        assert read and not read & {articles[window] for window in held.tolist()}
    whole, asked, steps = seen[-1]
    assert len(whole) == 1 and {w for step in steps for w in step} == set(range(len(asked.features)))


def test_without_memory_for_the_states_the_encoder_runs_in_every_pass(
    tmp_path: Path, tiny_encoder_folder: Path
) -> None:
    from bertvision.models.spans import fit

    train, found = write_questions(tmp_path / "q.json"), []
    for name, there_is in (("kept", True), ("streamed", False)):
        with mock.patch.object(fit, "tokens_fit", lambda *given, answer=there_is: answer):
            bv.fit(train, to=tmp_path / name, encoder=str(tiny_encoder_folder), heads=QUICK)
        found.append(read_weights_of(saved_head(tmp_path / name, QUICK)))
    # States in memory are in half precision.
    for name, weight in found[0].items():
        assert weight == pytest.approx(found[1][name], abs=0.02), name


def read_weights_of(folder: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return dict(load_file(folder / "head.safetensors"))


def test_ctrl_c_keeps_the_best_so_far(tmp_path: Path, tiny_encoder_folder: Path) -> None:
    attempt = Trained.attempt

    def interrupted(self: Trained, asked: Any, clock: Clock) -> Any:
        if self.name == "adapter_64_skip":
            raise KeyboardInterrupt
        return attempt(self, asked, clock)

    with mock.patch.object(Trained, "attempt", interrupted):
        model = bv.fit(
            write_questions(tmp_path / "q.json"), to=tmp_path / "m", encoder=str(tiny_encoder_folder),
            heads=[QUICK, "adapter_64_skip", "learned_pooling"],
        )  # fmt: skip
    notes = {line["name"]: line["note"] for line in model.leaderboard}
    assert notes["adapter_64_skip"] == "interrupted" and notes["learned_pooling"] == "not tried: interrupted"
    assert model.chosen == QUICK and model.predict([("who ?", "the king .")])


def test_what_the_time_does_not_allow_is_not_tried(tmp_path: Path, tiny_encoder_folder: Path) -> None:
    model = bv.fit(
        write_questions(tmp_path / "q.json"), to=tmp_path / "m", encoder=str(tiny_encoder_folder),
        heads=[QUICK, "ladder_128_deep"], seconds=0.1,
    )  # fmt: skip
    assert model.chosen == QUICK  # there is always time for one
    assert "out of time" in next(line["note"] for line in model.leaderboard if line["name"] == "ladder_128_deep")


# ---------------------------------------------------------------------- input that can't be used


@pytest.fixture
def refuse(tmp_path: Path, command: Command, tiny_encoder_folder: Path) -> Callable[..., str]:
    """refuse(content, *options) → the message of `fit` on a file with that content."""

    def call(content: Any, *options: object, name: str = "q.json") -> str:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        said = command("fit", path, "--to", tmp_path / "model", "--encoder", tiny_encoder_folder, *options)
        assert said.code != 0 and "Traceback" not in said.err and not (tmp_path / "model").exists()
        return " ".join(said.err.split())

    return call


@pytest.fixture
def questions(tmp_path: Path) -> Any:
    return json.loads(write_questions(tmp_path / "good.json").read_text())


def test_other_json_is_refused_and_the_format_shown(refuse: Callable[..., str], questions: Any) -> None:
    message = refuse([{"question": "who ?", "answer": "king"}])
    assert "not in SQuAD's format" in message and "found a list" in message and '"paragraphs"' in message
    assert "the keys 'rows'" in refuse({"rows": []})
    assert "q.json is empty" in refuse("")
    assert "has no questions" in refuse({"data": []})
    del questions["data"][1]["paragraphs"][0]["context"]
    assert "article 2 ('article 1'), paragraph 1: 'context' is missing" in refuse(questions)


def test_questions_that_nothing_can_be_learned_from_are_refused(refuse: Callable[..., str], questions: Any) -> None:
    asked = questions["data"][0]["paragraphs"][0]["qas"]
    few = {"data": [{"paragraphs": [{"context": questions["data"][0]["paragraphs"][0]["context"], "qas": asked}]}]}
    assert "has 3 questions; at least 5 are needed" in refuse(few)
    for article in questions["data"]:
        for passage in article["paragraphs"]:
            for qa in passage["qas"]:
                qa["answers"] = []
    assert "no question with an answer" in refuse(questions)
    del asked[0]["answers"]
    assert '1 question without "answers" (id q0-0)' in refuse(questions)


def test_mistakes_name_the_question(refuse: Callable[..., str], questions: Any) -> None:
    first, second = questions["data"][0]["paragraphs"][0]["qas"][:2]
    first["answers"][0]["answer_start"] += 1
    assert "question q0-0: the answer 'city 0' is not in its passage at answer_start" in refuse(questions)
    first["answers"][0]["answer_start"] -= 1
    first["id"] = second["id"]
    assert "ids must be unique" in refuse(questions)
    first["id"], first["question"] = "q0-0", "  "
    assert "question q0-0: the first text (the question) is empty" in refuse(questions)
    first["question"] = "who " * 80
    assert "1 question leaves too little room for the passage: 'q0-0'" in refuse(questions)


def test_options_for_tables_are_refused(refuse: Callable[..., str], questions: Any, tmp_path: Path) -> None:
    assert "label, kind: not for questions" in refuse(questions, "--label", "answer", "--kind", "score")
    assert "dev must have questions" in refuse(questions, "--dev", tmp_path / "dev.csv")
    assert "the shipped head reads only the encoder 'embedded'" in refuse(questions, "--heads", "continued")
    assert "heads has 'linear'" in refuse(questions, "--heads", "linear")  # it predicts no spans
    assert "needs questions in SQuAD's JSON format" in refuse("text,label\na,b\n", "--kind", "span", name="q.csv")


def test_a_table_of_questions_passages_and_answers_says_which_format_is_needed(
    refuse: Callable[..., str], tmp_path: Path
) -> None:
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["Question", "Context", "Answer"])
        writer.writerows([f"where {n} ?", f"the king of {n} lives in city {n} .", f"city {n}"] for n in range(12))
    content = (tmp_path / "rows.csv").read_text()
    message = refuse(content, name="q.csv")
    assert "holds questions, passages and answers ('Question', 'Context', 'Answer')" in message
    assert '"answer_start"' in message and "--label Answer" in message


def test_yes_and_no_are_labels_not_answers(tmp_path: Path, command: Command, tiny_encoder_folder: Path) -> None:
    with (tmp_path / "boolq.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["question", "passage", "answer"])
        writer.writerows([f"is it {n} ?", f"yes or no , it is {n} .", ("yes", "no")[n % 2]] for n in range(12))
    said = command(
        "fit", tmp_path / "boolq.csv", "--to", tmp_path / "m", "--encoder", tiny_encoder_folder, "--heads", "linear",
        "--label", "answer",
    )  # fmt: skip
    assert said.code == 0, said.err


def test_an_existing_folder_is_kept_unless_it_is_to_be_replaced(fitted: tuple[Path, Any], command: Command) -> None:
    folder, _ = fitted
    copy = folder.parent / "copy"
    shutil.copytree(folder, copy)
    said = command("fit", folder.parent / "train.json", "--to", copy)
    assert said.code != 0 and "--overwrite" in said.err and (copy / "model.json").is_file()
