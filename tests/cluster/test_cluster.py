"""Real Ray clusters of several nodes on this machine. CI runs one test; `make test-cluster` runs the others, which take
minutes each."""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from bertvision.cluster import Predict, predict, predict_files  # noqa: E402
from bertvision.cluster.shards import encode  # noqa: E402
from bertvision.errors import UserError  # noqa: E402
from bertvision.sources.store import open_location  # noqa: E402
from tests.cluster.nodes import ROWS, Made, Nodes, cluster_of, make_all, start_nodes, workers_of  # noqa: E402

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_all(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """In an S3 server on loopback, which nodes that are started later know."""
    s3fs, server = pytest.importorskip("s3fs"), pytest.importorskip("moto.server")
    running = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    none = str(tmp_path_factory.mktemp("none") / "none")
    own = {
        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": none,
        "AWS_SHARED_CREDENTIALS_FILE": none,
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("cluster-bucket")
    yield "s3://cluster-bucket"
    running.stop()
    s3fs.S3FileSystem.clear_instance_cache()
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture(scope="module")
def nodes(made: Made, bucket: str) -> Iterator[Nodes]:
    with start_nodes() as found:
        yield found


def predict_all(made: Made, workers: int = 2) -> Any:
    return predict_files(str(made.run), str(made.place / "in"), str(made.out), cluster_of(workers))


def clear(made: Made) -> None:
    shutil.rmtree(made.states, ignore_errors=True)
    shutil.rmtree(made.out, ignore_errors=True)


def test_a_cluster_gives_the_bytes_and_rows_of_one_process(made: Made, nodes: Nodes) -> None:
    clear(made)
    encode(made.job(), "train", cluster_of(2))
    assert not made.wrong_store()
    found = predict_all(made)
    assert not made.wrong_outputs() and (found.rows, found.errors) == (ROWS * len(made.rows), len(made.rows))
    (made.out / "f1.csv.parquet").unlink()
    again = predict_all(made)
    assert (again.files, again.skipped) == (1, len(made.rows) - 1) and not made.wrong_outputs()
    victim = sorted(made.states.rglob("states-*"))[2]
    victim.write_bytes(victim.read_bytes()[:-8] + b"damaged!")
    encode(made.job(), "train", cluster_of(2))  # finished shards are verified
    assert not made.wrong_store()


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_number_of_workers_changes_nothing(made: Made, nodes: Nodes, workers: int) -> None:
    clear(made)
    encode(made.job(), "train", cluster_of(workers))
    assert not made.wrong_store()
    predict_all(made, workers)
    assert not made.wrong_outputs()


@pytest.mark.slow
@pytest.mark.cluster
def test_stores_and_files_in_an_object_store(made: Made, nodes: Nodes, bucket: str, tmp_path: Path) -> None:
    files = open_location(f"{bucket}/in")
    for path in (made.place / "in").iterdir():
        files.write(path.name, [memoryview(path.read_bytes())])
    for _ in range(2):
        predict_files(str(made.run), f"{bucket}/in/*.csv", f"{bucket}/out", cluster_of(2))
        out = open_location(f"{bucket}/out")
        for name in out.sizes():
            (tmp_path / name).write_bytes(out.read(name))
        assert not made.wrong_outputs(tmp_path)
        out.remove("f2.csv.parquet")
    job = made.job(**{"store.path": f"{bucket}/states"})
    (store,) = encode(job, "train", cluster_of(2))
    found = {name: hashlib.sha256(store.location.read(name)).hexdigest() for name in store.location.sizes()}
    assert {name: own for name, own in found.items() if name.startswith("states-")} == made.shards
    assert set(found) == {*made.shards, "manifest.json"}


@pytest.mark.slow
@pytest.mark.cluster
def test_actors_in_a_job_of_ones_own(made: Made, nodes: Nodes) -> None:
    import ray.data

    expected = {row["id"]: row["prediction"] for rows in made.rows.values() for row in rows}
    source = ray.data.read_csv(str(made.place / "in"))
    settings = {"model": str(made.run)}
    for dataset in (
        source.map_batches(Predict, fn_constructor_kwargs=settings, concurrency=2, batch_size=50),
        predict(source, str(made.run), workers=2),
    ):
        rows = dataset.to_pandas().to_dict("records")
        assert len(rows) == len(expected)
        for row in rows:
            wanted = expected[row["id"]]
            assert (row["prediction"] is None) == (wanted is None) == (row["error"] is not None)
            if wanted is not None:  # other texts share a batch, so the last digit may differ
                assert dict(row["prediction"]["probabilities"]) == pytest.approx(wanted["probabilities"], abs=2e-6)
                assert row["prediction"]["label"] in wanted["probabilities"]


@pytest.mark.slow
@pytest.mark.cluster
def test_an_encoder_that_workers_can_not_reach_is_one_sentence(
    made: Made, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    clear(made)
    job = made.job()
    monkeypatch.setattr("bertvision.cluster.shards.read_reference", lambda _: {"name": "/nowhere/encoder", "stamp": ""})
    with pytest.raises(UserError, match="has no folder '/nowhere/encoder', where the encoder is"):
        encode(job, "train", cluster_of(2))


@pytest.mark.slow
@pytest.mark.cluster
def test_a_cluster_without_room_ends_with_one_sentence(made: Made, nodes: Nodes) -> None:
    clear(made)
    from bertvision.cluster.engine import Cluster

    with pytest.raises(UserError, match="nothing has moved on the Ray cluster for 20 seconds"):
        encode(made.job(), "train", Cluster("auto", 1, 64.0, 0.0, patience=20))
    encode(made.job(), "train", cluster_of(2))
    assert not made.wrong_store()


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("signal_after", [None, 12.0])
def test_a_local_cluster_leaves_nothing_behind(made: Made, signal_after: float | None, tmp_path: Path) -> None:
    """The home and the temporary folder, and the processes. Ray would write a token into the home folder."""
    clear(made)
    home, temporary = tmp_path / "home", Path("/tmp") / f"bv{os.getpid()}"
    home.mkdir()
    temporary.mkdir()
    own = {"HOME": str(home), "TMPDIR": str(temporary), "BERTVISION_TRIAL": str(tmp_path)}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    words = ["encode", str(made.config.with_suffix(".json")), "--cluster", "local", "--workers", "2"]
    running = subprocess.Popen(
        [sys.executable, "-m", "bertvision", *words], env={**kept, **own}, stderr=subprocess.PIPE, text=True
    )
    try:
        if signal_after:
            time.sleep(signal_after)
            running.terminate()
        _, said = running.communicate(timeout=300)
        if signal_after:
            assert running.returncode == 143 and "Terminated. Progress is saved" in said and "Traceback" not in said
        else:
            assert running.returncode == 0 and not made.wrong_store(), said
        assert [str(path) for path in home.rglob("*") if "ray" in path.name] == []
        assert [path.name for path in temporary.iterdir() if not path.name.startswith("bertvision-locks")] == []
        assert processes_with(str(tmp_path)) == []
    finally:
        running.kill()
        shutil.rmtree(temporary, ignore_errors=True)


def processes_with(trial: str) -> list[str]:
    import psutil

    found = []
    for process in psutil.process_iter(["name", "status"]):
        try:
            if process.environ().get("BERTVISION_TRIAL") == trial and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.name())
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
@pytest.mark.cluster
def test_no_worker_is_left(nodes: Nodes) -> None:
    end = time.monotonic() + 30
    while workers_of() and time.monotonic() < end:
        time.sleep(0.2)
    assert workers_of() == []
