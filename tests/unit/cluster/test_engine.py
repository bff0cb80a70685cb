"""Starting Ray and giving up on it: what can be tested without it."""

import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bertvision.cli import PATIENCE, app
from bertvision.errors import UserError

pytest.importorskip("ray")
pyarrow = pytest.importorskip("pyarrow")

from bertvision.cluster import engine  # noqa: E402
from bertvision.cluster.engine import Cluster, Engine, Worker, open_cluster  # noqa: E402

ROWS = [pyarrow.table({"number": [0]}), pyarrow.table({"number": [1, 2]})]


class Fed(Engine):
    """An engine with a dataset of our own in the place of Ray's."""

    def __init__(self, feed: Any, patience: float = 30.0) -> None:
        super().__init__(Cluster("local", patience=patience), 1, 1.0, 0.0)
        self.feed = feed

    def _feed(self, *arguments: Any) -> None:
        self.feed(arguments[-2])


def answer(results: Any) -> None:
    for number in range(3):
        results.put({"number": number, "amount": 10})


def test_the_patience_of_the_command_line_is_that_of_the_engine() -> None:
    assert PATIENCE == engine.PATIENCE == Cluster().patience


def test_all_results_arrive_and_progress_adds_up() -> None:
    done: list[float] = []
    assert [found["number"] for found in Fed(answer).run(ROWS, print, {}, done.append)] == [0, 1, 2]
    assert sum(done) == 30


def test_a_dataset_that_hangs_ends_with_one_sentence() -> None:
    started = time.monotonic()
    with pytest.raises(UserError, match=r"nothing has moved on the Ray cluster for 1 seconds \(--patience\)"):
        list(Fed(lambda results: threading.Event().wait(30), patience=1).run(ROWS, print, {}))
    assert time.monotonic() - started < 10


def test_beats_keep_a_long_row_alive_but_not_one_that_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "POLL", 0.01)
    beats = iter([*range(1, 60), *60 * [5]])
    monkeypatch.setattr(engine, "_keys", lambda key: [key])
    monkeypatch.setattr(engine, "_get", lambda key: f"[0, {next(beats, 5)}]".encode())
    found = engine._Beats(b"x")
    moved = [found.read() for _ in range(100) if not time.sleep(0.011)]
    assert sum(moved) == 59 and not any(moved[60:])


def test_mistakes_of_users_come_back_as_sentences() -> None:
    def refuse(results: Any) -> None:
        results.put({"number": 0, "failed": "no such encoder"})

    with pytest.raises(UserError, match="^no such encoder$"):
        list(Fed(refuse).run(ROWS, print, {}))

    def crash(results: Any) -> None:
        results.put(MemoryError("12 GB wanted"))

    with pytest.raises(UserError, match="stopped with MemoryError: .*12 GB wanted"):
        list(Fed(crash).run(ROWS, print, {}))


def test_a_worker_that_can_not_open_says_so_for_every_row() -> None:
    def refuse() -> Any:
        raise UserError("no such encoder")

    found = Worker(refuse, {}, b"", 1.0)(ROWS[1])["result"]
    assert found == ['{"number": 1, "failed": "no such encoder"}', '{"number": 2, "failed": "no such encoder"}']


@pytest.mark.parametrize("address", ["nowhere", "ray://host:10001", "host:", ":6379", "host:99999999"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="expected local, auto, or the HOST:PORT"), open_cluster(Cluster(address)):
        pass


def test_an_address_where_nothing_listens_is_refused_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(UserError, match=f"no Ray cluster answers at {address}"), open_cluster(Cluster(address)):
            pass


def test_rays_folder_is_private_and_those_of_killed_commands_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(engine, "LONGEST_PLACE", 1000)
    left = tmp_path / f"{engine.LEFTOVERS}old"
    (left / "session").mkdir(parents=True)
    (left / "lock").write_bytes(b"")
    with engine._place_for_ray() as place:
        assert place.parent == tmp_path and place.stat().st_mode & 0o777 == 0o700 and not left.exists()
        with engine._place_for_ray() as other:
            assert place.is_dir() and other != place
    assert list(tmp_path.iterdir()) == []


def test_ray_gets_a_token_from_the_environment_and_writes_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    engine._local_settings(Cluster(workers=1), tmp_path)
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    monkeypatch.setenv("RAY_AUTH_TOKEN", "own")
    engine._local_settings(Cluster(workers=1), tmp_path)
    assert os.environ["RAY_AUTH_TOKEN"] == "own"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["encode", "x.toml", "--workers", "2"], "--workers: only with --cluster"),
        (["encode", "x.toml", "--part", "1/2", "--cluster", "local"], "give only one of them"),
        (["predict", "default", "--patience", "5", "--text", "x"], "--patience: only with --cluster"),
        (["predict", "default", "--cluster", "local", "--text", "x"], "--cluster predicts files"),
        (["predict", "default", "--file", "x.csv", "--out", "s3://out/"], "with --cluster"),
        (["predict", "default", "--text", "x", "--no-texts"], "--no-texts is only for --cluster"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, UserError) and said in str(done.exception)
