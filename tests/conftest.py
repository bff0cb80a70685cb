"""Shared by all tests: no network, one thread, a tiny encoder with a tokenizer, and tiny tasks in official layouts."""

import os

# Set before importing transformers, datasets and torch, which read these on import. Subprocesses inherit them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# `make test` runs one process per core, and the tensors of the tests are too small for several threads.
os.environ["OMP_NUM_THREADS"] = "1"
# Printed tables must not depend on the width of the terminal that runs the tests.
os.environ.pop("COLUMNS", None)

import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bertvision import network

network.SCHEMES.append("memory")  # stores in the memory of this process, for tests only

FIXTURES = Path(__file__).parent / "fixtures"
LOOPBACK = ("127.", "::1", "localhost")


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Block all connections that leave this machine. Unix sockets and loopback stay open."""
    before = {name: getattr(socket.socket, name) for name in ("connect", "connect_ex")}

    def guarded(name: str) -> Callable[..., Any]:
        def call(self: socket.socket, address: Any, *rest: Any) -> Any:
            if self.family in (socket.AF_INET, socket.AF_INET6) and not str(address[0]).startswith(LOOPBACK):
                raise ConnectionRefusedError(f"tests must not use the network: {address}")
            return before[name](self, address, *rest)

        return call

    for name in before:
        setattr(socket.socket, name, guarded(name))
    yield
    for name, method in before.items():
        setattr(socket.socket, name, method)


@pytest.fixture(scope="session")
def tiny_encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with 3 layers, hidden size 32 and 2 attention heads, as a Hugging Face folder with its tokenizer. It says
    that it was made to be read at [CLS]."""
    from tiny_encoders import say_how_to_read, tiny_model, tiny_tokenizer

    folder = tmp_path_factory.mktemp("tiny_encoder")
    tiny_model("bert", num_attention_heads=2).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    say_how_to_read(folder, "cls")
    return folder


@pytest.fixture(scope="session")
def mean_encoder_folder(tiny_encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same encoder, which says that it was made to be read by the mean over tokens."""
    from tiny_encoders import say_how_to_read

    folder = tmp_path_factory.mktemp("mean_encoder")
    shutil.copytree(tiny_encoder_folder, folder, dirs_exist_ok=True)
    say_how_to_read(folder, "mean")
    return folder


@pytest.fixture(scope="session")
def glue_folder() -> Path:
    return FIXTURES / "glue_tiny"


@pytest.fixture(scope="session")
def squad_folder() -> Path:
    return FIXTURES / "squad_tiny"


@pytest.fixture(scope="session")
def tiny_features() -> Callable[[str], Any]:
    """tiny_features("rte") → the training windows of a tiny task, at most 48 tokens each."""
    from functools import cache

    from tiny_training import build_tiny_features

    return cache(build_tiny_features)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with real data. Tests that use it are skipped if there is none."""
    folder = os.environ.get("BERTVISION_REAL_DATA")
    if not folder:
        pytest.skip("BERTVISION_REAL_DATA is not set")
    return Path(folder)
