"""`bertvision export`: the graph answers as the kit or model it was made from, and what is damaged is refused."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bertvision_runtime
import numpy as np
import onnx
import pytest
from bertvision_runtime import ExportError
from tiny_encoders import say_how_to_read, tiny_model, tiny_tokenizer

import bertvision as bv
from bertvision.config import build_config
from bertvision.errors import UserError
from bertvision.kits.make import make_kit

FIXTURES = Path(__file__).parents[1] / "fixtures"
HEADS: dict[str, list[Any]] = {
    "sst2": ["learned_pooling"],
    "mrpc": [{"head": "mlp", "pairs": "towers", "size": 8, "name": "towers"}],
    "stsb": ["linear_deviation"],
    "squad2": [{"head": "ladder", "width": 16, "attention_heads": 2, "layers": [-2, -1]}],
    "squad2_answerable": ["attentive"],
}
LONG = "Ada lives in Paris . " * 30 + "The book was written by Ada in 1850 . " + "It rains . " * 20
PAIRS = [
    ("Who wrote the book ?", "The book was written by Ada in 1850 ."),
    ("Who wrote the book ?", LONG),
    ("A film .", "It is about the sea ."),
    ("Where is the café ?", "Le cafe\u0301 est à Paris , \U0001f469\u200d\U0001f680 et Rome ."),
]
Command = Callable[..., Any]
pytestmark = pytest.mark.timeout(900)  # tracing takes half a minute of CPU time


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run for each task, on one untouched encoder."""
    folder = tmp_path_factory.mktemp("runs")
    tiny_model("bert", max_position_embeddings=128).save_pretrained(folder / "encoder")
    tiny_tokenizer().save_pretrained(folder / "encoder")
    say_how_to_read(folder / "encoder", "mean")
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
    return {task: folder / task for task in HEADS}


@pytest.fixture(scope="module")
def kit(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    heads = {"mrpc": "towers", "stsb": "linear_deviation", "sst2": "learned_pooling"}
    return make_kit(list(runs.values()), tmp_path_factory.mktemp("kits") / "tiny", heads)


@pytest.fixture(scope="module")
def exported(kit: Path, tmp_path_factory: pytest.TempPathFactory, command: Command) -> Path:
    """The kit as a graph. The data of one task is at hand."""
    folder = tmp_path_factory.mktemp("exports") / "float"
    data = f"squad2={FIXTURES / 'squad_tiny'}"
    said = command("export", kit, "--onnx", "--to", folder, "--data", data)
    assert said.code == 0, said.err
    assert "squad2: 100.0 % of" in said.out and "measured again" in said.out
    assert "sst2: 100.0 %" in said.out and "--data sst2=FOLDER" in said.out
    return folder


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def assert_alike(one: dict[str, Any], other: dict[str, Any], without: tuple[str, ...] = ("id", "trust")) -> None:
    """Rows of the same prediction, up to rounding. They are compared on the keys of the first."""
    for key in one.keys() - {*without, "task", "probability", "no_answer"}:
        if isinstance(one[key], dict):
            assert one[key] == pytest.approx(other[key], abs=1e-3)
        else:
            assert one[key] == (pytest.approx(other[key], abs=1e-3) if isinstance(one[key], float) else other[key]), key


def plain(result: Any) -> dict[str, Any]:
    found: dict[str, Any] = result if isinstance(result, dict) else result.to_dict()
    return found


@pytest.mark.parametrize("batch", [1, len(PAIRS)])
def test_an_exported_kit_answers_as_the_kit(batch: int, kit: Path, exported: Path) -> None:
    ours, theirs = bertvision_runtime.load(exported), bv.load(kit, device="cpu")
    for first in range(0, len(PAIRS), batch):
        texts = PAIRS[first : first + batch]
        for own, expected in zip(ours.predict(texts), theirs.predict(texts), strict=True):
            assert own.keys() == expected.keys() == HEADS.keys()
            for task in own:
                assert_alike(own[task].to_dict(), plain(expected[task]))


def test_a_long_passage_is_read_in_windows(exported: Path) -> None:
    model = bertvision_runtime.load(exported, ["squad2"])
    lengths: list[int] = []
    run = model._exported.graph.run

    def counting(windows: Any, *rest: Any) -> Any:
        lengths.extend(len(window.ids) for window in windows)
        return run(windows, *rest)

    model._exported.graph.run = counting
    model.predict([PAIRS[1]])
    assert len(lengths) > 2 and max(lengths) == 64


def test_results_have_the_agreed_form(exported: Path) -> None:
    found = bertvision_runtime.load(exported).predict({"question": PAIRS[0][0], "passage": PAIRS[0][1]})
    label, score, span = found["sst2"].to_dict(), found["stsb"].to_dict(), found["squad2"].to_dict()
    assert list(label) == ["task", "label", "probability", "probabilities", "trust"]
    assert label["probability"] == label["probabilities"][label["label"]] == max(label["probabilities"].values())
    assert list(score) == ["task", "score", "trust"]
    assert list(span) == ["task", "answer", "start", "end", "probability", "no_answer", "trust"]
    assert span["no_answer"] == (span["start"] is None)
    assert "squad2" in repr(found["squad2"])


def test_one_text_gives_one_result_and_a_list_a_list(exported: Path) -> None:
    kit = bertvision_runtime.load(exported, ["sst2"])
    alone, listed = kit.predict("A film ."), kit.predict(["A film ."])
    assert isinstance(listed, list) and listed[0] == alone and kit.predict([]) == []
    pair = {"text": "A film .", "text_pair": "A book ."}
    assert kit.predict(pair) == alone  # a task on single texts reads the first
    for wrong in (5, [5], {"a": "b"}, [("a", "b", "c")], b"text", {"a film"}):
        with pytest.raises(ExportError, match="a pair is a tuple"):
            kit.predict(wrong)
    with pytest.raises(ExportError, match="empty"):
        kit.predict([" "])


def test_threshold_and_trust_are_measured_on_the_graph(runs: dict[str, Path], kit: Path, exported: Path) -> None:
    manifest = json.loads((exported / "manifest.json").read_text())
    theirs = json.loads((kit / "kit.json").read_text())["tasks"]
    span, label = manifest["tasks"]["squad2"], manifest["tasks"]["sst2"]
    # In float32 the held-out answers are the same, so their threshold and trust are those that the kit states.
    assert span["measured_again"] and span["threshold"] == pytest.approx(theirs["squad2"]["threshold"], abs=1e-3)
    counted = {said: sum(g["examples"] for g in groups) for said, groups in span["trust"].items()}
    assert counted == {said: sum(g["examples"] for g in groups) for said, groups in theirs["squad2"]["trust"].items()}
    assert not label["measured_again"] and label["why_not"] and label["trust"] == theirs["sst2"]["trust"]


def test_parity_is_kept(exported: Path) -> None:
    parity = json.loads((exported / "parity.json").read_text())
    assert all(parity[task]["equal_answers"] == 1 for task in HEADS)
    assert all(0 < parity[task]["largest_difference"] < 1e-3 for task in HEADS)
    assert parity["squad2"]["examples_are"] == "held-out data" and "f1" in parity["squad2"]["scores"]


def test_a_single_head_is_alone_in_its_graph(
    exported: Path, runs: dict[str, Path], tmp_path: Path, command: Command
) -> None:
    said = command("export", runs["sst2"], "--onnx", "--to", tmp_path / "one", "--head", "learned_pooling", "--json")
    assert said.code == 0, said.err
    assert said.json["manifest"]["tasks"]["sst2"]["measured_again"]  # the run says where its data is
    one, whole = bertvision_runtime.load(tmp_path / "one"), bertvision_runtime.load(exported)
    assert one.predict("A film .").probabilities == pytest.approx(
        whole.predict("A film .")["sst2"].probabilities, abs=1e-4
    )
    with pytest.raises(ExportError, match="single texts"):
        one.predict(("A film .", "A book ."))
    assert (tmp_path / "one" / "model.onnx").stat().st_size < (exported / "model.onnx").stat().st_size


def test_int8_is_smaller_and_close(runs: dict[str, Path], exported: Path, tmp_path: Path, command: Command) -> None:
    said = command("export", runs["sst2"], "--onnx", "--int8", "--to", tmp_path / "int8", "--head", "learned_pooling")
    assert said.code == 0 and "int8" in said.out, said.err
    graph = onnx.load(tmp_path / "int8" / "model.onnx").graph
    types = {one.name: one.data_type for one in graph.initializer if np.prod(one.dims) >= 32 * 32}
    assert types and set(types.values()) <= {onnx.TensorProto.INT8, onnx.TensorProto.UINT8}  # embeddings too
    one, whole = bertvision_runtime.load(tmp_path / "int8"), bertvision_runtime.load(exported)
    texts = ["A film .", "It rains in Paris ."]
    for own, other in zip(one.predict(texts), whole.predict(texts), strict=True):
        assert own.probabilities == pytest.approx(other["sst2"].probabilities, abs=0.1)


def test_bv_load_opens_an_export(exported: Path, tmp_path: Path) -> None:
    assert bv.load(exported).predict("A film .") == bertvision_runtime.load(exported).predict("A film .")
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match="states no format"):
        bv.load(tmp_path)


def test_predict_answers_from_an_export(exported: Path, tmp_path: Path, command: Command) -> None:
    said = command("predict", exported, "--text", PAIRS[0][0], "--text-pair", PAIRS[0][1], "--json")
    expected = bertvision_runtime.load(exported).predict(PAIRS[0])
    assert said.json == {task: one.to_dict() for task, one in expected.items()}
    (tmp_path / "texts.jsonl").write_text('{"text": "A film ."}\n{"text": " "}\n')
    said = command("predict", exported, "--file", tmp_path / "texts.jsonl", "--json")
    assert said.code == 1 and "empty" in said.json[1]["error"]
    assert said.json[0]["sst2"] == bertvision_runtime.load(exported).predict("A film .")["sst2"].to_dict()
    said = command("predict", exported, "--text", "A film .", "--head", "linear")
    assert said.code != 0 and "--head" in said.err


# ---------------------------------------------------------------------- folders that are refused


def seal(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest and give it a new checksum, as someone else could."""
    facts = json.loads((folder / "manifest.json").read_text())
    del facts["sha256"]
    change(facts)
    text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
    facts["sha256"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    (folder / "manifest.json").write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")


def refusal(folder: Path) -> str:
    with pytest.raises(ExportError) as refused:
        bertvision_runtime.load(folder)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json", "manifest.json", "parity.json"])
def test_a_flipped_byte_is_found(name: str, copy: Path) -> None:
    data = bytearray((copy / name).read_bytes())
    for place in (0, len(data) // 2, len(data) - 3):
        data[place] ^= 4
        (copy / name).write_bytes(bytes(data))
        assert name in refusal(copy) or "damaged" in refusal(copy)
        data[place] ^= 4


def test_another_format_is_refused(copy: Path) -> None:
    seal(copy, lambda facts: facts.update(format=2))
    assert "format 2" in refusal(copy) and "update bertvision-runtime" in refusal(copy)
    seal(copy, lambda facts: facts.update(format=0))
    assert "export the model again" in refusal(copy)


def test_a_half_written_export_is_refused(copy: Path) -> None:
    graph = (copy / "model.onnx").read_bytes()
    (copy / "model.onnx").write_bytes(graph[: len(graph) // 2])
    assert "checksum" in refusal(copy)
    (copy / "model.onnx").unlink()
    assert "missing" in refusal(copy)
    (copy / "manifest.json").unlink()
    assert "interrupted" in refusal(copy)


def test_a_folder_that_is_none_of_these_is_refused(tmp_path: Path, kit: Path) -> None:
    assert "no folder" in refusal(tmp_path / "nothing")
    assert "not an exported model" in refusal(tmp_path) and "not an exported model" in refusal(kit)
    (tmp_path / "manifest.json").write_text('{"name": "an app"}')
    assert "states no format" in refusal(tmp_path)
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    assert "JSON" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", ".hidden", ""])
def test_names_in_the_manifest_are_not_paths(name: str, copy: Path) -> None:
    seal(copy, lambda facts: facts["files"].update({name: "0" * 16}))
    assert "not the name of a file" in refusal(copy)


def test_a_link_out_of_the_folder_is_refused(copy: Path, tmp_path: Path) -> None:
    shutil.move(copy / "model.onnx", tmp_path / "elsewhere.onnx")
    (copy / "model.onnx").symlink_to(tmp_path / "elsewhere.onnx")
    assert "symbolic link" in refusal(copy)


def test_a_graph_with_weights_in_another_file_is_refused(copy: Path) -> None:
    model = onnx.load(copy / "model.onnx")
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../etc/passwd")
    (copy / "model.onnx").write_bytes(model.SerializeToString())
    seal(copy, lambda facts: facts["files"].update({"model.onnx": digest_of(copy / "model.onnx")}))
    assert "another file" in refusal(copy)
    (copy / "model.onnx").write_bytes(b"not a graph")
    seal(copy, lambda facts: facts["files"].update({"model.onnx": digest_of(copy / "model.onnx")}))
    assert "not an ONNX graph" in refusal(copy) or "can't be loaded" in refusal(copy)


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "poem"}, {"outputs": []}, {"outputs": ["nothing"]}, {"max_length": -1}, {"max_length": 10**12},
        {"labels": []}, {"threshold": float("nan")}, {"trust": {"positive": [{}]}}, {"method": "sum"},
        {"n_best": 10**9},
    ],
)  # fmt: skip
def test_a_manifest_that_makes_no_sense_is_refused(change: dict[str, Any], copy: Path) -> None:
    seal(copy, lambda facts: facts["tasks"]["sst2"].update(change))
    refusal(copy)


# ---------------------------------------------------------------------- what can't be exported


def test_options_that_make_no_sense_are_refused(
    kit: Path, runs: dict[str, Path], tmp_path: Path, command: Command
) -> None:
    to = tmp_path / "to"
    for words, said in (
        ((kit, "--to", to), "--onnx"),
        ((tmp_path / "nothing", "--onnx", "--to", to), "nothing"),
        ((kit, "--onnx", "--to", to, "--head", "linear"), "--head"),
        ((kit, "--onnx", "--to", to, "--data", "x"), "TASK="),
        ((kit, "--onnx", "--to", to, "--data", "rte=x"), "no task 'rte'"),
        ((runs["sst2"], "--onnx", "--to", to, "--tasks", "sst2"), "--tasks"),
        ((runs["sst2"], "--onnx", "--to", kit), "not an exported model"),
    ):
        found = command("export", *words)
        assert found.code != 0 and said in found.err and "Traceback" not in found.err, (words, found.err)
    assert not to.exists()
