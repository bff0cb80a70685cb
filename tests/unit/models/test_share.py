"""What is pushed to a hub, pulled and loaded is byte-identical and predicts the same. The hub is a small one on
loopback."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard, constants
from sealed import edit_json
from tiny_encoders import tiny_model, tiny_tokenizer
from tiny_hub import TOKEN, Hub, tiny_hub

import bertvision as bv
from bertvision.config import build_config
from bertvision.encoder.loading import identify
from bertvision.encoder.shared import forget
from bertvision.errors import UserError
from bertvision.hub import is_hub_name, pull
from bertvision.kits.make import make_kit
from bertvision.models.fit import Options, fit_table
from bertvision.models.save import save_fit
from bertvision.pipeline.folder import SHIPPED
from bertvision.tasks.own_table import from_columns

FIXTURES = Path(__file__).parents[2] / "fixtures"
TEXTS = [f"{'the cat' if row % 2 else 'a river'} {row}" for row in range(24)]
PAIR = ("a king", "a man")


def _point_to(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """What HF_ENDPOINT does in a new process."""
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub, its cache, and a user who is logged in."""
    with tiny_hub() as found:
        _point_to(monkeypatch, found.address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield found


@pytest.fixture(scope="module")
def runs(tiny_encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run on an untouched encoder from a folder, one on a tuned encoder, and one of a second task, untouched."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    for name, task, epochs in (("untouched", "sst2", 0), ("tuned", "rte", 1), ("second", "rte", 0)):
        tables: dict[str, Any] = {
            "run": str(folder / name),
            "task": {"name": task, "data": str(FIXTURES / "glue_tiny")},
            "data": {"max_length": 48, "hold_out": 0.4},
            "encoder": {"name": str(tiny_encoder_folder), "device": "cpu"},
            "finetune": {"epochs": epochs, "lr": 1e-3, "batch_rows": 2, "snapshots": [epochs]},
            "train": {"snapshots": [epochs], "epochs": 1},
            "heads": ["learned_pooling", {"head": "adapter", "size": 4}],
            "ensembles": [["learned_pooling", "adapter_4"]],
        }
        bv.run(build_config(tables))
        found[name] = folder / name
    return found


@pytest.fixture(scope="module")
def fitted(tiny_encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    table = from_columns(TEXTS, ["cat" if row % 2 else "river" for row in range(24)], kind="label")
    options = Options(str(tiny_encoder_folder), ["linear"])
    return save_fit(fit_table(table, options), tmp_path_factory.mktemp("fitted") / "animals", "/secret/place/rows.csv")


@pytest.fixture(scope="module")
def words(tiny_encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fitted model that reads no encoder."""
    table = from_columns(TEXTS, ["cat" if row % 2 else "river" for row in range(24)], kind="label")
    options = Options(str(tiny_encoder_folder), ["tfidf_lr"])
    found = fit_table(table, options)
    assert found.chosen.name == "tfidf_lr"
    return save_fit(found, tmp_path_factory.mktemp("words") / "words")


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def open_elsewhere(name: Any, **settings: Any) -> Any:
    forget()  # an encoder that is loaded already proves nothing
    return bv.load(name, **settings)


def models(runs: dict[str, Path], fitted: Path, words: Path) -> list[tuple[bv.Model, Any]]:
    """Models of every form, and something to predict on."""
    return [
        (bv.load(runs["untouched"]), "a fine film"),
        (bv.load(runs["untouched"], head="max_learned_pooling_adapter_4"), "a fine film"),
        (bv.load(runs["tuned"], head="adapter_4"), PAIR),
        (bv.load(runs["tuned"], head="encoder"), PAIR),
        (bv.load(fitted), "the cat"),
        (bv.load(words), "the cat"),
        (bv.load(fitted, head="last_lr"), "the cat"),
    ]


def test_what_is_pushed_pulled_and_loaded_is_byte_identical_and_predicts_the_same(
    hub: Hub, runs: dict[str, Path], fitted: Path, words: Path, tmp_path: Path
) -> None:
    for number, (model, text) in enumerate(models(runs, fitted, words)):
        name, expected = f"user/model{number}", model.predict(text)
        model.push_to_hub(name, license="mit", datasets=["user/data"])
        saved = bytes_of(model.save_pretrained(tmp_path / str(number)))
        there = hub.files(name)
        assert {file: saved[file] for file in saved if file != "README.md"} == {
            file: data for file, data in there.items() if file != "README.md"
        }
        pulled = open_elsewhere(name)
        assert bytes_of(pulled.folder) == there
        assert pulled.predict(text) == expected and pulled.chosen == model.chosen


def test_a_kit_is_pushed_pulled_and_loaded(hub: Hub, runs: dict[str, Path], tmp_path: Path) -> None:
    kit = bv.load(make_kit([runs["untouched"], runs["second"]], tmp_path / "kit"), device="cpu")
    expected, address = kit.predict([PAIR, "a film"]), kit.push_to_hub("user/kit", private=True)
    assert address.startswith(f"{hub.address}/user/kit/commit/") and hub.repositories["user/kit"].private
    pulled = open_elsewhere("user/kit")
    assert bytes_of(pulled.folder) == hub.files("user/kit")
    assert pulled.predict([PAIR, "a film"]) == expected and "_encoder/model.safetensors" in hub.files("user/kit")
    for task in kit.tasks:
        assert {path.name: path.read_bytes() for path in (tmp_path / "kit" / task).iterdir()} == {
            path.name: path.read_bytes() for path in (pulled.folder / task).iterdir()
        }
    pulled = bv.Kit.from_pretrained("user/kit", tasks=["rte"])
    assert list(pulled.tasks) == ["rte"]
    pulled.push_to_hub("user/kit")  # the repository then has these heads only
    assert {file.split("/")[0] for file in hub.files("user/kit")} == {"_encoder", "kit.json", "README.md", "rte"}


def test_the_card_has_the_hubs_format_and_nothing_local(
    hub: Hub, runs: dict[str, Path], fitted: Path, tmp_path: Path
) -> None:
    bv.load(runs["tuned"], head="adapter_4").push_to_hub("user/rte", license="mit", datasets=["user/more"])
    card = ModelCard(hub.files("user/rte")["README.md"].decode())
    figures = bv.Run(runs["tuned"]).scores["snapshots"]["1"]["adapter_4"]["scores"]
    found = {(one.dataset_split, one.metric_type): one.metric_value for one in card.data.eval_results}
    assert found == {
        (split, "accuracy"): pytest.approx(scores["accuracy"], abs=1e-3) for split, scores in figures.items()
    }
    assert (card.data.license, card.data.datasets) == ("mit", ["nyu-mll/glue", "user/more"])
    assert card.data.library_name == "bertvision" and card.data.pipeline_tag == "text-classification"
    assert 'bv.load("user/rte")' in card.text and "a fine-tuned encoder, which is in this repository" in card.text
    kit = bv.load("default", tasks=["squad2", "stsb"])
    front = (kit.save_pretrained(tmp_path / "kit") / "README.md").read_text().split("---")[1]
    assert yaml.safe_load(front)["base_model"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert {one["task"]["name"] for one in yaml.safe_load(front)["model-index"][0]["results"]} == {"squad2", "stsb"}
    bv.load(fitted).push_to_hub("user/animals")
    local = [str(place) for place in (runs["tuned"].parent, fitted.parent, "/secret", FIXTURES)]
    for name in ("user/rte", "user/animals"):
        for file, data in hub.files(name).items():
            assert not any(place.encode() in data for place in local), (name, file)
            assert "suspects" not in file and "predictions.jsonl" not in file


def test_only_what_predicts_is_shared(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = bv.load(runs["tuned"], head="adapter_4").save_pretrained(tmp_path / "shared")
    files = set(bytes_of(folder))
    assert {file for file in files if "/heads/" in file} == {
        f"snapshots/epoch_1/heads/adapter_4/{name}" for name in ("config.json", "head.safetensors", "stamp.json")
    }
    assert {file for file in files if "/" not in file} == {"README.md", "config.json", "scores.json", "task.json"}
    shared = open_elsewhere(folder)
    assert shared.predict(PAIR).trust == bv.load(runs["tuned"], head="adapter_4").predict(PAIR).trust
    with pytest.raises(UserError, match="exists: choose a new or empty folder"):
        shared.save_pretrained(runs["tuned"])


def test_an_untouched_encoder_from_the_hub_is_named_by_its_revision_and_checked(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "encoder"
    tiny_model("bert").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    commit = hub.add("some/encoder", bytes_of(folder))
    config = {
        "run": str(tmp_path / "run"), "task": {"name": "sst2", "data": str(FIXTURES / "glue_tiny")},
        "data": {"max_length": 48, "hold_out": 0.4}, "encoder": {"name": "some/encoder", "device": "cpu"},
        "finetune": {"epochs": 0}, "train": {"snapshots": [0], "epochs": 1}, "heads": [{"head": "adapter", "size": 4}],
    }  # fmt: skip
    run = bv.run(build_config(config))
    kit = bv.load(make_kit([run.folder], tmp_path / "kit"), device="cpu")
    head = kit.tasks["sst2"].facts["head"]
    expected = run.predict("a fine film", head=head)
    run.model(head).push_to_hub("user/model")
    kit.push_to_hub("user/kit")
    for name in ("user/model", "user/kit"):
        assert not any("model.safetensors" in file for file in hub.files(name))
        text = hub.files(name)["README.md"].decode()
        assert "base_model: some/encoder" in text and commit in text
    # The encoder changes on the hub. The revision that the heads were trained on is used all the same.
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    tiny_model("bert", seed=1).save_pretrained(other)
    hub.add("some/encoder", bytes_of(other))
    assert identify(f"some/encoder@{commit}") != identify("some/encoder")
    assert open_elsewhere("user/model").predict("a fine film") == expected
    assert open_elsewhere("user/kit").predict("a fine film")["sst2"].label == expected.label
    # On another machine, what only a file names is not downloaded.
    asked = len(hub.asked)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "new" / "hub"))
    for name in ("user/model", "user/kit"):
        with pytest.raises(UserError, match=rf"hf download some/encoder --revision {commit}"):
            open_elsewhere(name).predict("a fine film")
    assert not any("some/encoder" in request for request in hub.asked[asked:])
    copy = shutil.copytree(pull("user/kit", ("kit.json",)), tmp_path / "copy")
    edit_json(copy / "kit.json", lambda facts: {**facts, "encoder": str(other)})
    with pytest.raises(UserError, match="was trained on a different version of"):
        open_elsewhere(copy)


def test_what_was_pulled_is_there_without_the_hub_and_an_update_is_pulled(
    hub: Hub, fitted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = bv.load(fitted)
    model.push_to_hub("user/animals", revision="v1")
    model.push_to_hub("user/animals")
    first = open_elsewhere("user/animals")
    bv.load(fitted, head="last_lr").push_to_hub("user/animals")
    assert open_elsewhere("user/animals").chosen == "last_lr" and first.chosen == model.chosen
    assert open_elsewhere("user/animals", revision="v1").chosen == model.chosen
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert open_elsewhere("user/animals").predict("the cat") and not hub.asked
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    _point_to(monkeypatch, "http://127.0.0.1:9")
    assert open_elsewhere("user/animals").chosen == "last_lr"
    for revision in (None, "v2"):
        with pytest.raises(UserError, match=r"can't be reached|did not answer") as error:
            open_elsewhere("user/nothing", revision=revision)
        assert len(str(error.value).splitlines()) == 1


def test_bad_input_is_one_sentence(
    hub: Hub, runs: dict[str, Path], fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = bv.load(fitted)
    model.push_to_hub("user/private", private=True)
    hub.add("other/encoder", {"config.json": b"{}", "model.safetensors": b"x" * 1000})
    (tmp_path / "empty").mkdir()
    for wrong, words in (
        (lambda: open_elsewhere("user/private", revision="v9"), "has no such revision"),
        (lambda: open_elsewhere("other/encoder"), "is not a BERTVision model: it has no task.json and no kit.json"),
        (lambda: bv.Kit.from_pretrained("user/private"), "it has no kit.json"),
        (lambda: model.push_to_hub("nothing"), "give USER/NAME"),
        (lambda: model.push_to_hub("user/../x"), "give USER/NAME"),
        (lambda: open_elsewhere(tmp_path / "empty"), "is no model: give the folder of a run"),
        (lambda: open_elsewhere("user/private", tasks=["x"]), "tasks can't be given here"),
        (lambda: open_elsewhere("default", head="x"), "head can't be given here: 'default' is not a run"),
    ):
        with pytest.raises(UserError, match=words) as error:
            wrong()
        assert len(str(error.value).splitlines()) == 1, str(error.value)
    assert "GET /other/encoder/resolve/main/model.safetensors" not in hub.asked
    monkeypatch.delenv("HF_TOKEN")
    for wrong in (lambda: open_elsewhere("user/nobody"), lambda: open_elsewhere("user/private", token="wrong")):
        with pytest.raises(UserError, match=r"no such repository on http.*, or it is private.*hf auth login"):
            wrong()
    with pytest.raises(UserError, match=r"can't be pushed: .*hf auth login"):
        model.push_to_hub("user/mine")


def test_names_of_files_on_the_hub_can_not_lead_out_of_their_folder(hub: Hub, fitted: Path, tmp_path: Path) -> None:
    bv.load(fitted).push_to_hub("user/animals")
    files = hub.files("user/animals")
    for bad in ("../../evil.json", "/tmp/evil.json", "a/../../../evil.json", "a\\b.json"):
        hub.add("evil/one", {**files, bad: b"{}"})
        before = set(tmp_path.parent.rglob("evil.json"))
        with pytest.raises(UserError, match="can't be the name of a folder|can't be loaded"):
            open_elsewhere("evil/one")
        assert set(tmp_path.parent.rglob("evil.json")) == before
    hub.add("evil/two", {**files, "code.py": b"raise SystemExit", "weights.bin": b"pickle"})
    assert not {"code.py", "weights.bin"} & set(bytes_of(open_elsewhere("evil/two").folder))
    damaged = {**files, "scores.json": files["scores.json"].replace(b"label", b"lxbel")}
    hub.add("evil/three", damaged)
    with pytest.raises(UserError, match=r"scores\.json is damaged"):
        open_elsewhere("evil/three")


def test_a_path_is_no_name_on_the_hub(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    hub.asked.clear()
    for name in ("models/intents", "./models/intents", "~/intents", "a/b/c", "nothing", Path("user/name"), "../name"):
        assert not is_hub_name(name)
        with pytest.raises(UserError, match="is no model"):
            bv.load(name)
    assert not hub.asked and is_hub_name("user/name") and is_hub_name("user/na.me-1_x")


def test_the_command_pushes_and_predict_takes_the_name(fitted: Path, tmp_path: Path) -> None:
    with tiny_hub() as hub:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        environment |= {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": TOKEN}
        environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

        def call(*words: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "bertvision", *words]
            return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

        pushed = call("push", str(fitted), "user/animals", "--private", "--license", "mit")
        assert pushed.returncode == 0, pushed.stderr
        hub.add("user/kit", bytes_of(SHIPPED / "default"))
        kit = call("predict", "user/kit", "--tasks", "sst2", "--text", "A fine film.", "--json")
        assert json.loads(kit.stdout)["sst2"]["label"] == "positive", kit.stderr
        assert "/user/animals/commit/" in pushed.stdout and hub.repositories["user/animals"].private
        said = call("predict", "user/animals", "--text", "the cat 7")
        assert said.returncode == 0, said.stderr
        expected = bv.load(fitted).predict("the cat 7")
        assert said.stdout.strip() == expected.line()
        environment["HF_TOKEN"] = ""
        refused = call("predict", "user/other", "--text", "a")
        assert refused.returncode == 2 and "Traceback" not in refused.stderr and "private" in refused.stderr
