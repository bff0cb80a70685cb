"""Bad input to the real command: exit code 2, no traceback, a message that explains what to do, and no lost work."""

import contextlib
import errno
import gzip
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

Command = Callable[..., Any]
GOOD = "text,label\n" + "".join(f"the king {n},yes\nno river {n},no\n" for n in range(6))


@pytest.fixture
def refused(command: Command) -> Callable[..., str]:
    """refused("run", …) → the error message, after checking exit code and output."""

    def call(*words: object) -> str:
        said = command(*words)
        assert said.code == 2, said
        assert "Traceback" not in said.err
        assert "error: " in said.err
        assert said.out == ""
        return said.err.replace("\n", " ")

    return call


@pytest.fixture
def files(tmp_path: Path, write_config: Callable[..., Path]) -> Callable[..., Path]:
    """files("train.csv", content, …) → a config for a user's own files, valid by default."""

    def write(train: str = "train.csv", content: str | bytes = GOOD, **task: object) -> Path:
        path = tmp_path / train
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        (tmp_path / "dev.csv").write_text(GOOD)
        dev = path if ".json" in train else tmp_path / "dev.csv"
        return write_config(tmp_path, **{"name": "files", "train": path, "dev": dev, **task})

    return write


@pytest.fixture
def rte(tmp_path: Path, write_config: Callable[..., Path], glue_folder: Path) -> Path:
    return write_config(tmp_path, name="rte", data=glue_folder)


def says(message: str, *words: str) -> None:
    assert not [word for word in words if word not in message], message


# ---------------------------------------------------------------------- data


def test_missing_files(files: Callable[..., Path], refused: Callable[..., str], tmp_path: Path) -> None:
    config = files(train="train.csv")
    says(refused("run", config, "task.train=gone.csv"), "task.train", "gone.csv", "no such file", "task.train=FILE")
    says(refused("run", config, "task.dev=gone.csv", "task.train=away.csv"), "2 mistakes", "gone.csv", "away.csv")
    says(refused("run", config, f"task.train={tmp_path}"), "is a folder", "task.data")
    says(refused("run", config, "task.train=none", "task.dev=none", "task.data=gone"), "task.data", "no such folder")


def test_empty_files(files: Callable[..., Path], refused: Callable[..., str]) -> None:
    says(refused("run", files(content="")), "train.csv is empty")
    says(refused("run", files(content="text,label\n")), "train.csv has no rows")
    says(refused("run", files("train.jsonl", "\n\n")), "train.jsonl is empty")
    says(refused("run", files("train.json", "")), "train.json is empty")


def test_a_wrong_column(files: Callable[..., Path], refused: Callable[..., str]) -> None:
    message = refused("run", files(text="txt", label="lable"))
    says(message, "train.csv", "'txt'", "task.text", "did you mean 'text'", "'lable'", "did you mean 'label'")


def test_an_unknown_label_is_reported_before_any_work(
    files: Callable[..., Path], refused: Callable[..., str], tmp_path: Path
) -> None:
    config = files()
    (tmp_path / "dev.csv").write_text(GOOD + "the city,maybe\n")
    for name in ("check", "run", "finetune"):
        says(refused(name, config), "dev.csv, line 14", "'maybe'", "no, yes")
        assert not (tmp_path / "run").exists()
    says(refused("run", files(labels=["yes", "perhaps"])), "train.csv, line 3", "'no'", "yes, perhaps")


def test_an_empty_text_is_reported_before_any_work(
    files: Callable[..., Path], refused: Callable[..., str], tmp_path: Path
) -> None:
    config = files()
    (tmp_path / "dev.csv").write_text(GOOD + " ,yes\n")
    for name in ("check", "run"):
        says(refused(name, config), "dev.csv: 1 row has no text in column 'text' (line 14)", "remove these rows")
        assert not (tmp_path / "run").exists()


def test_a_table_that_makes_no_run(tmp_path: Path, refused: Callable[..., str]) -> None:
    table = tmp_path / "train.csv"
    says(refused("run", table), "train.csv")
    table.write_text("note,remark,level\na,b,1\nb,a,2\n")
    says(refused("run", table), "can't tell which column is the label", "Name it with task.label=COLUMN.")
    table.write_text(GOOD)
    says(refused("run", table, "task.text=words"), "there is no column 'words' (task.text=…)")
    says(refused("run", table, "task.name=rte"), "task.name is 'rte'")


def test_broken_json_names_file_and_line(files: Callable[..., Path], refused: Callable[..., str]) -> None:
    says(refused("run", files("t.jsonl", '{"text": "a", "label": "x"}\n{"text": \n')), "t.jsonl, line 2", "JSON")
    says(refused("run", files("t.json", '{"data": [\n{"title" }')), "t.json", "line 2", "JSON")
    says(refused("run", files("t.json", '{"data": [{"title": "x"}]}')), "t.json", "'paragraphs' is missing")
    says(refused("run", files("t.csv", 'text,label\n"open,yes\n')), "t.csv, line 2", "CSV")
    says(refused("run", files("t.csv", "text,label\na,b,c\n")), "t.csv, line 2", "expected 2 cells", "found 3")
    says(refused("run", files("t.csv", b"text,label\ncaf\xe9,yes\n")), "t.csv", "line 2", "UTF-8")


def test_a_truncated_archive(files: Callable[..., Path], refused: Callable[..., str], squad_folder: Path) -> None:
    table = gzip.compress((GOOD + "".join(f"{n * n},yes\n" for n in range(5000))).encode())
    says(refused("run", files("t.csv.gz", table[: len(table) // 2])), "t.csv.gz is truncated", "after line", "again")
    questions = gzip.compress((squad_folder / "train-v2.0.json").read_bytes())
    says(refused("run", files("t.json.gz", questions[:-20])), "t.json.gz is truncated", "again")
    says(refused("run", files("t.csv.gz", GOOD)), "t.csv.gz is not a valid .gz file")


def test_repeated_ids(files: Callable[..., Path], refused: Callable[..., str], squad_json: Callable[..., Any]) -> None:
    rows = "text,label,n\na,yes,7\nb,no,7\n"
    config = files(content=rows, id="n")
    says(refused("run", config, f"task.dev={config.parent / 'train.csv'}"), "train.csv", "unique", "7")
    document = squad_json(("who?", "the king", "king"), ("who?", "the queen", "queen"))
    document["data"][1]["paragraphs"][0]["qas"][0]["id"] = "q0"
    says(refused("run", files("t.json", json.dumps(document))), "t.json", "unique", "q0")


def test_an_answer_that_is_not_in_its_passage(
    files: Callable[..., Path], refused: Callable[..., str], squad_json: Callable[..., Any]
) -> None:
    document = squad_json(("who?", "the king", "king"), ("who?", "the old queen", "queen"))
    document["data"][1]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = 4
    message = refused("run", files("t.json", json.dumps(document)))
    says(message, "t.json, question q1", "'queen'", "answer_start 4", "'old queen'", "Correct")


def test_a_question_longer_than_the_window_is_reported_before_any_work(
    files: Callable[..., Path],
    refused: Callable[..., str],
    squad_json: Callable[..., Any],
    tmp_path: Path,
    squad_folder: Path,
) -> None:
    document = squad_json(("who " * 60 + "?", "the king", "king"), ("who?", "the queen", "queen"))
    config = files("t.json", json.dumps(document), dev=squad_folder / "dev-v2.0.json")
    for name in ("check", "run"):
        says(refused(name, config), "'q0' (61 tokens)", "data.max_length = 48", "Raise")
    config = files("t.json", json.dumps(document))
    says(refused("run", config, f"task.train={squad_folder / 'train-v2.0.json'}"), "'q0' (61 tokens)", "48")
    assert not (tmp_path / "run" / "snapshots").exists(), "it is in dev, and reported before fine-tuning"


def test_a_window_longer_than_the_encoder_takes(rte: Path, refused: Callable[..., str]) -> None:
    for name in ("check", "run"):
        says(refused(name, rte, "data.max_length=100"), "at most 64 tokens", "data.max_length")


# ---------------------------------------------------------------------- encoder and network


def test_an_invalid_encoder_folder(
    tmp_path: Path, rte: Path, refused: Callable[..., str], tiny_encoder_folder: Path
) -> None:
    shutil.copytree(tiny_encoder_folder, tmp_path / "bare")
    (tmp_path / "bare" / "model.safetensors").unlink()
    for name in ("run", "check"):
        message = refused(name, rte, f"encoder.name={tmp_path / 'bare'}")
        says(message, "bare", "no weights", "model.safetensors")
        assert message.count("no weights") == 1
    (tmp_path / "bare" / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    says(refused("run", rte, f"encoder.name={tmp_path / 'bare'}"), "bare", "damaged")
    says(refused("run", rte, f"encoder.name={tmp_path / 'nowhere'}"), "the encoder", "no such folder")
    says(refused("run", rte, f"encoder.name={rte}"), "is a file", "folder")


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"model_type": "t5", "d_model": 8, "num_layers": 1, "vocab_size": 99}, "encoder-decoder"),
        ({"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1}, "not an encoder"),
        ({"model_type": "bert", "is_decoder": True}, "not an encoder"),
    ],
)
def test_an_encoder_folder_with_a_decoder_in_it(
    config: dict[str, Any], word: str, tmp_path: Path, rte: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps(config))
    says(refused("run", rte, f"encoder.name={tmp_path / 'other'}"), "the encoder", word, "BERT-like encoder")


def test_no_network(rte: Path, refused: Callable[..., str]) -> None:
    says(refused("run", rte, "encoder.name=some/encoder"), "'some/encoder'", "hub", "local folder")
    message = refused("run", rte, "task.data=none")
    says(message, "nyu-mll/glue", "'rte'", "network", "task.data")
    both = refused("check", rte, "task.data=none", "encoder.name=some/encoder")
    says(both, "nyu-mll/glue", "some/encoder")
    says(refused("heads", "--encoder", "some/encoder"), "some/encoder", "local folder")


# ---------------------------------------------------------------------- config


def test_a_head_that_does_not_fit_the_encoder_is_reported_before_any_work(
    rte: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    for command in ("run", "train"):
        says(refused(command, rte, 'heads=[{head="ladder", layers=[-9]}]'), "no layer -9", "layers 0")
    says(refused("search", rte, 'search.space={head="ladder", layers=[[-9], [-1]]}'), "no layer -9")
    assert not list(tmp_path.rglob("encoder/stamp.json"))


def test_unknown_names_suggest_the_nearest(rte: Path, refused: Callable[..., str]) -> None:
    says(refused("run", rte, "finetune.epoch=2"), "'finetune.epoch'", "did you mean 'finetune.epochs'")
    says(refused("run", rte, "finetun.epochs=2"), "'finetun'", "did you mean 'finetune'")
    says(refused("run", rte, "task.name=rt"), "'rt'", "did you mean 'rte'")
    for name in ("run", "train", "check"):
        says(refused(name, rte, 'heads=["lerned_pooling"]'), "'lerned_pooling'", "did you mean 'learned_pooling'")
    says(refused("run", rte, 'heads=[{head="adapter", sise=3}]'), "'sise'", "did you mean 'size'")
    says(refused("heads", "--task", "rt"), "did you mean 'rte'")


def test_all_mistakes_in_a_config_are_reported_at_once(rte: Path, refused: Callable[..., str]) -> None:
    wrong = ("finetune.epoch=2", "train.lr=-1", "encoder.dtype=float99", "data.hold_out=yes", "task.data=gone", "word")
    heads = 'heads=["lerned_pooling", {head="adapter", size="big"}, {head="adapter", depth=2}]'
    message = refused("run", rte, *wrong, heads)
    says(message, "9 mistakes", "finetune.epoch", "train.lr", "float99", "data.hold_out", "gone", "'word'")
    says(message, "lerned_pooling", "'big'", "'depth'")


def test_an_invalid_config(tmp_path: Path, refused: Callable[..., str]) -> None:
    says(refused("run", "gone.toml"), "gone.toml", "TOML")
    says(refused("run", tmp_path), "config.json", "TOML")
    (tmp_path / "c.toml").write_text("[task\n")
    says(refused("run", tmp_path / "c.toml"), "c.toml", "line 1")
    (tmp_path / "c.toml").write_text("")
    says(refused("run", tmp_path / "c.toml"), "task.name")


# ---------------------------------------------------------------------- the disk


def test_a_run_folder_that_is_a_file(tmp_path: Path, rte: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "deeper"):
        for name in ("run", "check", "finetune"):
            says(refused(name, rte, f"run={place}"), "run =", f"'{tmp_path / 'file'}' is a file", "folder")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_run_folder_that_cannot_be_written(
    tmp_path: Path, rte: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("os.replace", deny)  # root may write anywhere, so file permissions are not enough
    says(refused("run", rte), "can't be written", "set `run`")


def test_a_full_disk(small_disk: Path, rte: Path, refused: Callable[..., str], command: Command) -> None:
    run = small_disk / "run"
    message = refused("run", rte, f"run={run}")
    says(message, "no space left on the disk", str(run), "is saved", "free up space", "another disk")
    assert not list(run.rglob(".writing-*")), "half-written files would take up space"
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    assert command("run", rte, f"run={run}").code == 0


def test_check_reports_that_the_disk_is_too_small(
    rte: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    says(refused("check", rte), "MB are free", "Free some space")


# ---------------------------------------------------------------------- predict and evaluate


def test_predict_with_an_unfinished_run(
    tmp_path: Path, rte: Path, refused: Callable[..., str], command: Command
) -> None:
    says(refused("predict", tmp_path / "gone", "--text", "x"), "gone", "no model, run or kit")
    assert command("finetune", rte).code == 0
    says(
        refused("predict", tmp_path / "run", "--text", "x"),
        "not a finished run or model",
        "scores.json",
        "bertvision run",
    )
    says(refused("evaluate", rte, "finetune.lr=0.5"), "no encoder fine-tuned for 1 epoch with these settings",
         "bertvision finetune")  # fmt: skip


def test_predict_with_wrong_arguments(
    tmp_path: Path, finished: Callable[..., Path], refused: Callable[..., str], glue_folder: Path, squad_folder: Path
) -> None:
    run, spans = finished(name="rte", data=glue_folder), finished(name="squad2", data=squad_folder)
    (tmp_path / "x.csv").write_text("text,label\na,b\n")
    pair = ["--text", "a", "--text-pair", "b"]
    says(refused("predict", run, *pair, "--head", "adaptr_4"), "'adaptr_4'", "did you mean 'adapter_4'")
    says(refused("predict", run, *pair, "--epochs", "3"), "no snapshot at 3 epochs", "only at 1")
    says(refused("predict", run), "--text", "--file", "--submission")
    says(refused("predict", run, *pair, "--file", tmp_path / "x.csv"), "one of --text, --file")
    says(refused("predict", run, "--text", "a"), "two texts", "--text-pair")
    says(refused("predict", spans, "--text", "a"), "--text QUESTION --text-pair PASSAGE")
    says(refused("predict", run, "--text", "", "--text-pair", "b"), "empty")
    says(refused("predict", run, "--text-pair", "b"), "--text-pair needs --text")
    says(refused("predict", run, *pair, "--out", tmp_path / "o.jsonl"), "--out needs --file")
    says(refused("predict", run, "--file", tmp_path / "gone.csv"), "gone.csv")
    says(refused("predict", run, "--file", tmp_path / "x.csv"), "x.csv", "sentence1, sentence2")
    says(refused("predict", run, "--file", squad_folder / "dev-v2.0.json"), "SQuAD", "rte")
    says(refused("predict", spans, "--text", "who " * 60, "--text-pair", "the king"), "(60 tokens)")


def test_a_predictions_file_of_the_wrong_shape(tmp_path: Path, refused: Callable[..., str], squad_folder: Path) -> None:
    dev, said = squad_folder / "dev-v2.0.json", tmp_path / "said.json"
    for content in ("[]", '{"dev0a": ["x"]}', '"x"'):
        said.write_text(content)
        says(refused("evaluate", "--predictions", said, "--data", dev), "said.json", "id → answer text")
    said.write_text('{"dev0a": "1900"}')
    says(refused("evaluate", "--predictions", said, "--data", dev), "5 of 6 questions have no prediction", "dev0b")
    says(refused("evaluate", "--predictions", said, "--data", squad_folder / "test-v2.0.json"), "without gold answers")
    says(refused("evaluate", "--predictions", said), "--data FILE")
    says(refused("evaluate", "--predictions", tmp_path / "gone.json", "--data", dev), "gone.json")
    says(refused("evaluate"), "--predictions FILE --data FILE")


def test_fine_tuning_that_diverges_is_reported(
    tmp_path: Path,
    refused: Callable[..., str],
    write_config: Callable[..., Path],
    glue_folder: Path,
    squad_folder: Path,
) -> None:
    for name, data in (("rte", glue_folder), ("squad2", squad_folder)):
        message = refused("run", write_config(tmp_path, name=name, data=data), "finetune.lr=1e30")
        says(message, "diverged", "finetune.lr")
        assert not (tmp_path / "run" / "snapshots").exists(), "nothing of it is saved"


# ---------------------------------------------------------------------- interruptions


LONG = ("finetune.epochs=40", "train.epochs=2")


def start(*words: object) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "bertvision", *map(str, words)]
    return subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Wait until the run has logged this many lines."""
    for _ in range(1200):
        if path.is_file() and path.read_bytes().count(b"\n") >= count:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise AssertionError("the run does not make progress")


def weights(run: Path) -> dict[str, torch.Tensor]:
    found = {}
    for path in sorted(run.rglob("snapshots/**/*.safetensors")):
        found |= {f"{path.relative_to(run)}: {name}": tensor for name, tensor in load_file(path).items()}
    return found


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, command: Command, write_config: Callable[..., Path], glue_folder: Path
) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert command("run", write_config(folder, name="rte", data=glue_folder), *LONG).code == 0
    return weights(folder / "run")


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(expected)
    assert not [name for name in found if not torch.equal(found[name], expected[name])]


def test_ctrl_c_saves_the_state_and_explains_how_to_resume(
    rte: Path, command: Command, undisturbed: dict[str, torch.Tensor]
) -> None:
    run = rte.parent / "run"
    process = start("run", rte, *LONG)
    wait_for_lines(run / "metrics.jsonl", 2, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "Progress is saved: run the same command again to resume." in said
    assert list((run / "checkpoints" / "finetune").glob("step_*")), "the state is there"

    again = command("run", rte, *LONG)

    assert again.code == 0
    assert "resuming fine-tuning at step" in again.err
    assert_same(weights(run), undisturbed)


def test_a_run_killed_at_any_moment_resumes_to_the_same_weights(
    rte: Path, command: Command, undisturbed: dict[str, torch.Tensor]
) -> None:
    run, moment = rte.parent / "run", random.Random().uniform(0, 0.6)
    process = start("run", rte, *LONG, "finetune.checkpoint_seconds=0", "train.checkpoint_seconds=0")
    wait_for_lines(run / "metrics.jsonl", 1, process)
    time.sleep(moment)
    process.kill()
    process.communicate()

    again = command("run", rte, *LONG)

    assert again.code == 0, (moment, again.err)
    assert_same(weights(run), undisturbed)
    assert not list(run.rglob(".writing-*")), "half-written files are removed"


def test_ctrl_c_outside_of_training_prints_the_same_message(
    rte: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bertvision.pipeline.finetune.output_layer", interrupt)
    said = command("run", rte)
    assert said.code == 130 and "run the same command again to resume" in said.err
    monkeypatch.setattr("bertvision.encoder.loading.shape_of", interrupt)
    said = command("heads")
    assert said.code == 130 and said.err.strip() == "Interrupted.", "there is nothing to resume"


def test_heads_on_streamed_states_resume_to_the_same_weights(
    tmp_path: Path,
    command: Command,
    write_config: Callable[..., Path],
    squad_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, long = write_config(tmp_path, name="squad2", data=squad_folder), "train.epochs=12"
    assert command("run", config, long, f"run={tmp_path / 'whole'}").code == 0
    answers = iter([False, False, True])  # whether Ctrl-C was pressed, asked after each step

    class Pressed(list[int]):
        def __bool__(self) -> bool:
            return next(answers, False)

    with monkeypatch.context() as patched:
        patched.setattr("bertvision.training.train.held_interrupts", lambda: contextlib.nullcontext(Pressed()))
        assert command("run", config, long).code == 130
    again = command("run", config, long)
    assert "resuming the training of the heads at step 3" in again.err
    assert_same(weights(tmp_path / "run"), weights(tmp_path / "whole"))


HUGE = "x" * 5000


@pytest.mark.parametrize(
    "words",
    [
        ("run", HUGE), ("check", "a" * 300), ("run", "CONFIG", f"task.train={HUGE}"), ("run", "CONFIG", f"run={HUGE}"),
        ("run", "CONFIG", f"store.path={HUGE}"), ("run", "CONFIG", f"encoder.name={HUGE}"), ("predict", HUGE),
        ("predict", "x", "--text", "a", "--file", HUGE), ("report", HUGE), ("report", "x", "--to", HUGE),
        ("evaluate", HUGE), ("evaluate", "CONFIG", "--kit", HUGE), ("tasks", "--data", HUGE),
        ("kit", HUGE, "--to", "x"), ("heads", "--encoder", HUGE), ("store", "ls", HUGE), ("fit", HUGE),
        ("store", "export", "x", "--hdf5", HUGE), ("fit", "x.csv", "--to", HUGE), ("ensemble", HUGE, "a", "b"),
        ("features", "CONFIG", "--to", HUGE), ("reproduce", "2020-spans", "--to", HUGE),
        ("reproduce", "2020-spans", "--data", HUGE), ("fit", "~nobody_here/a.csv"),
    ],
    ids=lambda words: " ".join(word[:14] for word in words),
)  # fmt: skip
def test_a_path_that_no_system_can_open_is_one_short_sentence(
    words: tuple[str, ...], rte: Path, refused: Callable[..., str]
) -> None:
    said = refused(*(rte if word == "CONFIG" else word for word in words))
    assert len(said) < 600 and ("longer than" in said or "no file" in said), said


def test_folders_that_cannot_be_listed_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bertvision.tasks.describe import describe_folder

    (tmp_path / "a").mkdir()
    (tmp_path / "locked").mkdir()
    (tmp_path / "a" / "train.csv").write_text(GOOD)
    listed = Path.iterdir

    def iterdir(path: Path) -> Any:
        if path.name == "locked":
            raise PermissionError(errno.EACCES, "Permission denied")
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert [found["rows"] for found in describe_folder(tmp_path)] == [12]


def test_a_compressed_file_that_holds_gigabytes_is_refused_by_every_command(
    tmp_path: Path, finished: Callable[..., Path], glue_folder: Path, refused: Callable[..., str], rte: Path
) -> None:
    run = finished(name="rte", data=glue_folder)
    path, pairs = tmp_path / "bomb.csv.gz", tmp_path / "pairs.csv.gz"
    for each, start in ((path, b"text,label\na,b\n"), (pairs, b"sentence1,sentence2\na,b\n")):
        with gzip.open(each, "wb", 1) as file:
            file.write(start)
            for _ in range(40):
                file.write(b"a" * 1_000_000)
    for words in (
        ("fit", path), ("run", path), ("predict", run, "--file", pairs),
        ("run", rte, "task.name=files", f"task.train={path}"),
    ):  # fmt: skip
        assert "it has more than 16 MB, the most that a row can have" in refused(*words)


def test_the_size_of_a_file_to_fit_or_predict_has_an_option(
    tmp_path: Path, finished: Callable[..., Path], glue_folder: Path, refused: Callable[..., str]
) -> None:
    run = finished(name="rte", data=glue_folder)
    path, more = tmp_path / "rows.csv", tmp_path / "more.csv"
    path.write_text("sentence1,sentence2,label\n" + "a,b,x\n" * 3000)  # 506 bytes each: `fit` holds them in memory
    more.write_text("sentence1,sentence2,label\n" + "a,b,x\n" * 20_000)  # 56 bytes each
    for line, words in ((1977, ("fit", path)), (17857, ("predict", run, "--file", more))):
        said = refused(*words, "--most-megabytes", 1)
        says(said, f"line {line}: the file takes more than the 1 MB allowed", "--most-megabytes", "task.most_megabytes")


def test_check_says_nothing_good_of_nonsense(rte: Path, refused: Callable[..., str]) -> None:
    nonsense = (
        "train.epochs=99999999999", "finetune.epochs=1e300", "search.population=99999999999999", f"seed={'9' * 401}",
        "train.seeds=1000000000", 'heads=[{head="adapter", seeds=1000000000}]', "task.text=''",
        'heads=[{head="adapter", size=99999999999}]', "heads=[{head='adapter', size=100001}]", "task.name=-1",
    )  # fmt: skip
    for override in nonsense[:-2]:
        assert "1 mistake in the config" in refused("check", rte, override)
    says(refused("check", rte, nonsense[-1]), "'task.name' must be a string, not -1")
    assert len(refused("check", rte, *nonsense)) < 2000
