"""The network is used only for what the user named."""

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from bertvision import network
from bertvision.config import build_config
from bertvision.encoder import loading, reading
from bertvision.errors import ConfigError, UserError
from bertvision.network import find_address_mistake, may_download, no_downloads
from bertvision.tasks import hub


@pytest.mark.parametrize(
    "address", ["runs/states", "/data/x", "file:///x", "s3://b/x", "gs://b", "az://b", "abfs://b", "hf://b"]
)
def test_folders_and_six_schemes_are_addresses_of_stores(address: str) -> None:
    assert find_address_mistake(address) == ""


@pytest.mark.parametrize(
    "address", ["http://x/y", "ftp://x", "zip://a::http://x", "s3://a::http://x", "github://a:b@c/"]
)
def test_a_config_with_another_scheme_is_refused(address: str) -> None:
    with pytest.raises(
        ConfigError, match=r"'store.path': .* is not the address of a store: give a folder, or an address"
    ):
        build_config({"task": {"name": "rte"}, "store": {"path": address}})


def test_memory_is_not_offered() -> None:
    assert "memory" in network.SCHEMES, "the tests add it"
    assert "memory" not in find_address_mistake("http://x")


def test_downloads_are_off_only_inside_of_the_context() -> None:
    with no_downloads():
        with no_downloads():
            assert not may_download()
        assert not may_download()
    assert may_download()


def test_a_hub_name_is_not_looked_up_on_the_hub(monkeypatch: pytest.MonkeyPatch, tiny_encoder_folder: Path) -> None:
    asked: list[tuple[str, bool]] = []

    def note(name: str, *_: Any, local_files_only: bool, **__: Any) -> None:
        asked.append((Path(name).name, local_files_only))
        raise OSError("not found")

    monkeypatch.setattr(loading, "cached_file", note)
    monkeypatch.setattr(reading, "cached_file", note)
    monkeypatch.setattr(AutoConfig, "from_pretrained", note)
    for load in (loading.identify, loading.load_config):
        with pytest.raises(UserError, match="check the name and the network|Check the name and the network"):
            load("some/encoder")
        with no_downloads(), pytest.raises(UserError, match=r"'some/encoder' is not on this machine.*hf download some"):
            load("some/encoder")
    with no_downloads():
        assert reading.read_as_made("some/encoder") is None
    assert asked[:4] == [("encoder", False), ("encoder", True)] * 2 and all(only for _, only in asked[4:])
    with pytest.raises(UserError):  # a folder never needs the hub, whatever its files say
        loading.load_config(str(tiny_encoder_folder))
    assert asked[-1] == (tiny_encoder_folder.name, True)


def test_a_hub_dataset_is_taken_from_the_cache_only(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="the hub extra is not installed")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    seen: list[bool] = []

    def load(*_: Any, **__: Any) -> None:
        seen.append(datasets.config.HF_HUB_OFFLINE)
        raise ConnectionError("offline")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with no_downloads(), pytest.raises(UserError, match="'some/data' is not on this machine.*--repo-type dataset some"):
        hub.load_hub("some/data", None, None)
    with pytest.raises(UserError, match="could not load the hub dataset 'some/data'"):
        hub.load_hub("some/data", None, None)
    assert seen == [True, False] and not datasets.config.HF_HUB_OFFLINE


# ---------------------------------------------------------------------- a hub that counts its visitors


@pytest.fixture
def hub_server() -> Iterator[tuple[str, list[str]]]:
    """The address of a server that knows nothing, and the paths that it is asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_POST = do_GET

        def log_message(self, *_: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    thread.join()


STRANGERS_RUN = """
import sys
from pathlib import Path
from bertvision.config import build_config
from bertvision.encoder.loading import identify
from bertvision.errors import UserError
from bertvision.kits.kit import Kit
from bertvision.pipeline.predict import Predictor
from bertvision.disk import mark_done, read_json, write_json, write_sealed
from bertvision.pipeline.folder import SHIPPED
folder, kit = Path(sys.argv[1]) / "run", Path(sys.argv[1]) / "kit"
encoder = folder / "snapshots" / "epoch_0" / "encoder"
encoder.mkdir(parents=True)
write_json(encoder / "reference.json", {"name": "some/encoder", "stamp": "0"})
mark_done(encoder, "x", parameters=1)
figures = {"scores": {"dev": {"accuracy": 50.0, "total": 2}}, "parameters": 1, "seconds": 0.0}
facts = {"task": "rte", "kind": "label", "metrics": ["accuracy"]}
write_sealed(folder / "scores.json", {**facts, "snapshots": {"0": {"baseline": figures, "encoder": figures}}})
config = build_config({"task": {"name": "rte"}, "encoder": {"name": "some/encoder"}})
write_sealed(folder / "config.json", config.to_dict())
task = {"name": "rte", "kind": "label", "metrics": ["accuracy"], "labels": ["a", "b"], "windowed": False,
        "max_length": 48, "source": "", "takes_pairs": True}
write_sealed(folder / "task.json", task)
kit.mkdir()
write_sealed(kit / "kit.json", {**read_json(SHIPPED / "default" / "kit.json"), "encoder": "some/encoder"})
for load in (lambda: Predictor(folder, "encoder"), lambda: Kit(kit)):
    try:
        load()
    except UserError as error:
        print(error)
if sys.argv[2] == "named":
    try:
        identify("some/encoder")
    except UserError as error:
        print(error)
"""


@pytest.mark.parametrize("who", ["a file", "named"])
def test_what_a_strangers_run_or_kit_names_is_not_downloaded(
    hub_server: tuple[str, list[str]], tmp_path: Path, who: str
) -> None:
    address, asked = hub_server
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(
        [sys.executable, "-c", STRANGERS_RUN, str(tmp_path), who], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert ["is not on this machine" in line and "hf download some/encoder" in line for line in lines[:2]] == [True] * 2
    assert bool(asked) == (who == "named"), (asked, done.stderr)
