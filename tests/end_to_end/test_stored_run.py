"""Runs with stored states: written once, read in every pass, chosen if cheaper, resumed, never stale."""

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bertvision.errors import UserError
from bertvision.pipeline import check, states, train
from bertvision.pipeline.job import Stamps
from bertvision.sources import Store
from bertvision.sources.store import StoreWriter
from bertvision.sources.store.location import Folder

Command = Callable[..., Any]
HEADS = ("last_linear", "learned_pooling", "adapter_4")


@pytest.fixture
def squad(tmp_path: Path, write_config: Callable[..., Path], squad_folder: Path) -> Path:
    return write_config(tmp_path, name="squad2", data=squad_folder)


@pytest.fixture
def rte(tmp_path: Path, write_config: Callable[..., Path], glue_folder: Path) -> Path:
    return write_config(tmp_path, name="rte", data=glue_folder)


def ok(said: Any) -> Any:
    assert said.code == 0, said.err
    return said


def heads(run: Path) -> dict[str, torch.Tensor]:
    files = {name: run / "snapshots/epoch_1/heads" / name / "head.safetensors" for name in HEADS}
    return {f"{name}/{key}": value for name, file in files.items() for key, value in load_file(file).items()}


def states_of(run: Path, name: str = "adapter_4") -> str:
    return json.loads((run / "snapshots/epoch_1/heads" / name / "stamp.json").read_text())["states"]


def assert_near(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], tolerance: float) -> None:
    for name, tensor in one.items():
        if not name.endswith("output.bias"):  # for spans, its gradient is pure rounding: docs/concepts.md
            torch.testing.assert_close(other[name], tensor, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 5e-3), ("int8", 5e-2)])
@pytest.mark.parametrize("task", ["squad", "rte"])
def test_heads_trained_from_a_store_end_near_the_streamed_ones(
    task: str, dtype: str, tolerance: float, request: pytest.FixtureRequest, command: Command
) -> None:
    config = request.getfixturevalue(task)
    run = config.parent / "run"
    ok(command("train", config, "train.source=streamed"))
    expected = heads(run)
    ok(command("train", config, "train.source=stored", f"store.dtype={dtype}", "store.shard_mb=1"))
    assert states_of(run) == ("stored" if task == "squad" else "memory")
    assert_near(expected, heads(run), tolerance)
    (store,) = (run / "states").iterdir()
    assert store.name == ("train_epoch_1_tokens" if task == "squad" else "train_epoch_1_cls")
    assert Store.open(store).contents.dtype == dtype


def test_a_store_is_written_once_and_read_by_the_next_command(squad: Path, command: Command) -> None:
    run, options = squad.parent / "run", ("train.source=stored", "store.dtype=float32")
    ok(command("encode", squad, *options))
    files = {path: path.stat().st_mtime_ns for path in (run / "states").rglob("*") if path.is_file()}
    assert files and "is damaged" not in ok(command("encode", squad, *options)).err
    ok(command("run", squad, *options))
    assert {path: path.stat().st_mtime_ns for path in (run / "states").rglob("*") if path.is_file()} == files
    assert states_of(run) == "stored"


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("store.dtype=int8", "dtype (float16 found, int8 wanted)"),
        ("data.max_length=40", "window settings"),
        ("encoder.layers=[0,3]", "layers ([0, 1, 2, 3] found, [0, 3] wanted)"),
        ("data.limit_train=4", "data"),
        ("finetune.lr=1e-2", "encoder weights"),
    ],
)
def test_a_store_of_other_states_is_refused_and_the_difference_is_named(
    squad: Path, command: Command, override: str, named: str
) -> None:
    ok(command("encode", squad))
    said = command("train", squad, override, "train.source=stored")
    assert said.code == 2 and named in said.err and "bertvision store rm" in said.err
    assert "Traceback" not in said.err and "fine-tuning:" not in said.err, "reported before any work"
    assert command("check", squad, override, "train.source=stored").code == 2
    said = ok(command("train", squad, override))  # with "auto" it continues without the store and explains why
    assert "holds different states" in said.err and named in said.err
    assert states_of(squad.parent / "run") == "streamed"


def test_a_damaged_manifest_is_written_again_though_stored_states_are_wanted(squad: Path, command: Command) -> None:
    run, options = squad.parent / "run", ("train.source=stored",)
    ok(command("encode", squad, *options))
    (manifest,) = (run / "states").rglob("manifest.json")
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[:-20])
    ok(command("encode", squad, *options))
    before, after = json.loads(whole), json.loads(manifest.read_text())
    for page in (before, after):  # written in another second, so its checksum differs
        del page["about"]["written"], page["sha256"]
    assert after == before
    manifest.write_bytes(b"")
    ok(command("run", squad, *options))
    assert states_of(run) == "stored"


def fix_rates(monkeypatch: pytest.MonkeyPatch, encoder: float, disk: float) -> None:
    monkeypatch.setattr(states, "measure_encoder", lambda *_: encoder)
    monkeypatch.setattr(states, "measure_disk", lambda *_: (disk, disk))


@pytest.mark.parametrize(("encoder", "disk", "expected"), [(10.0, 1e9, "stored"), (1e9, 10.0, "streamed")])
def test_auto_chooses_the_cheaper_source_explains_and_records_it(
    squad: Path, command: Command, monkeypatch: pytest.MonkeyPatch, encoder: float, disk: float, expected: str
) -> None:
    run = squad.parent / "run"
    fix_rates(monkeypatch, encoder, disk)
    said = ok(command("run", squad))
    kept = json.loads((run / "sources.json").read_text())["train_epoch_1_tokens"]
    assert kept["source"] == expected == states_of(run) and kept["figures"]["passes"] == 2.0
    assert f"states (tokens) are {expected}: {kept['reason']}." in said.err
    assert (run / "states").exists() == (expected == "stored")


@pytest.mark.parametrize("task", ["squad", "rte"])
def test_a_run_that_stores_nothing_builds_no_writer_and_hashes_no_weights(
    task: str, request: pytest.FixtureRequest, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = request.getfixturevalue(task)
    fix_rates(monkeypatch, 1e9, 10.0)
    monkeypatch.setattr(StoreWriter, "__init__", lambda *_, **__: pytest.fail("nothing is to be written"))
    monkeypatch.setattr(Stamps, "weights", lambda *_: pytest.fail("there is nothing to compare them with"))
    ok(command("train", config, f"store.path={tmp_path / 'shared'}"))
    assert states_of(tmp_path / "run") == ("streamed" if task == "squad" else "memory")


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize(("encoder", "disk"), [(10.0, 1e9), (1e9, 10.0)])
def test_check_predicts_the_choice_of_run_and_its_reason(
    squad: Path, command: Command, monkeypatch: pytest.MonkeyPatch, encoder: float, disk: float, epochs: int
) -> None:
    fix_rates(monkeypatch, encoder, disk)
    monkeypatch.setattr(check, "measure_encoder", lambda *_: encoder)
    checked = ok(command("check", squad, "--json", f"train.epochs={epochs}")).json["states"]["tokens"]
    ok(command("train", squad, f"train.epochs={epochs}"))
    chosen = json.loads((squad.parent / "run/sources.json").read_text())["train_epoch_1_tokens"]
    assert checked == f"{chosen['source']}: {chosen['reason']}"


class Killed(BaseException):
    """Simulates a kill: no code catches it."""


def test_a_resumed_pass_keeps_its_source(squad: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    run, options = squad.parent / "run", ("train.checkpoint_seconds=0", "train.epochs=4")

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    fix_rates(monkeypatch, 1e9, 10.0)
    with monkeypatch.context() as patch:
        patch.setattr(train, "_save_member", die)  # after the last step, with its checkpoint on disk
        with pytest.raises(Killed):
            command("train", squad, *options)
    fix_rates(monkeypatch, 10.0, 1e9)  # by now storing would be cheaper
    ok(command("train", squad, *options))
    assert states_of(run) == "streamed"
    shutil.rmtree(run / "snapshots/epoch_1/heads")
    ok(command("train", squad, *options))  # started over, it is free to choose
    assert states_of(run) == "stored"


def test_a_single_pass_is_streamed_without_measuring_the_disk(
    squad: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "measure_disk", lambda *_: pytest.fail("there is nothing to measure"))
    said = ok(command("train", squad, "train.epochs=1"))
    assert "are streamed: there is only one pass" in said.err


def test_small_states_are_held_in_memory_and_read_from_a_store_if_there_is_one(rte: Path, command: Command) -> None:
    said = ok(command("train", rte)).err
    assert "hidden states (cls) are held in memory: they are small, so they are encoded once" in said
    ok(command("encode", rte))
    shutil.rmtree(rte.parent / "run/snapshots/epoch_1/heads")
    assert "they are read once from" in ok(command("train", rte)).err


def test_states_too_large_for_memory_are_stored_for_many_passes(
    rte: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "MEMORY_SHARE", 0.0)
    fix_rates(monkeypatch, 10.0, 1e9)
    ok(command("train", rte, "train.epochs=10"))
    assert states_of(rte.parent / "run") == "stored"


def test_parts_can_be_written_by_separate_commands(squad: Path, command: Command) -> None:
    store = squad.parent / "run/states/train_epoch_1_tokens"
    # Shards as small as possible: one example each.
    small = ("store.dtype=float32", "store.shard_mb=1", "train.encode_tokens=64")
    said = ok(command("encode", squad, *small, "--part", "2/2"))
    if "is not complete yet" in said.out:
        assert not (store / "manifest.json").exists()
    ok(command("encode", squad, *small, "--part", "1/2"))
    assert Store.open(store).manifest.examples > 0
    said = command("encode", squad, "--part", "3/2")
    assert said.code == 2 and "--part is '3/2'" in said.err


def test_other_splits_can_be_stored_and_unknown_ones_are_named(squad: Path, command: Command) -> None:
    ok(command("encode", squad, "--split", "dev"))
    assert Store.open(squad.parent / "run/states/dev_epoch_1_tokens").manifest.about["split"] == "dev"
    said = command("encode", squad, "--split", "test")
    assert said.code == 2 and "no split 'test'" in said.err


def test_store_keep_selects_the_stored_parts(rte: Path, command: Command) -> None:
    ok(command("encode", rte, 'store.keep=["tokens", "mean"]', "store.dtype=bfloat16"))
    found = {path.name: Store.open(path).contents for path in (rte.parent / "run/states").iterdir()}
    assert {name: contents.parts for name, contents in found.items()} == {
        "train_epoch_1_tokens": ("tokens",),
        "train_epoch_1_mean": ("mean",),
    }
    said = command("encode", rte, 'store.keep=["all"]', "store.dtype=int4")
    assert said.code == 2 and "'store.keep' has 'all'" in said.err and "'store.dtype' is 'int4'" in said.err


def test_encode_rewrites_only_what_verify_reports(squad: Path, command: Command) -> None:
    run = squad.parent / "run"
    ok(command("encode", squad))
    (store,) = (run / "states").iterdir()
    (shard,) = store.glob("states-*")
    whole = shard.read_bytes()
    data = bytearray(whole)
    data[len(data) // 2] ^= 16
    shard.write_bytes(data)
    said = command("store", "verify", store)
    assert said.code == 1 and shard.name in said.out + said.err
    with pytest.raises(UserError, match="is damaged"):
        Store.open(store)
    ok(command("encode", squad))
    assert shard.read_bytes() == whole and command("store", "verify", store).code == 0


def test_check_reports_the_source_of_the_states_and_their_size(squad: Path, command: Command) -> None:
    said = ok(command("check", squad, "--json", "store.dtype=float32"))
    facts = said.json["states"]
    assert facts["tokens"].startswith(("streamed: ", "stored: ")) and facts["tokens: passes"] == 2.0
    ok(command("encode", squad, "store.dtype=float32"))
    written = Store.open(squad.parent / "run/states/train_epoch_1_tokens").manifest.bytes
    assert facts["tokens: MB in a store"] == pytest.approx(written / 1e6, abs=0.06)  # rounded to a tenth
    assert "a finished store" in ok(command("check", squad, "--json", "store.dtype=float32")).json["states"]["tokens"]
    assert not list(squad.parent.rglob("*probe*"))


def test_blocks_are_shuffled_the_same_when_streamed_and_stored(squad: Path, command: Command) -> None:
    run = squad.parent / "run"
    ok(command("train", squad, "train.source=streamed", "train.shuffle=blocks"))
    expected = heads(run)
    ok(command("train", squad, "train.source=stored", "train.shuffle=blocks", "store.dtype=float32"))
    assert_near(expected, heads(run), 1e-5)


def test_a_search_on_tokens_reads_one_store_for_all_its_populations(
    squad: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    fix_rates(monkeypatch, 10.0, 1e9)
    said = ok(
        command("search", squad, "search.members=4", "search.population=2", "train.epochs=1", "search.prune=false")
    )
    assert "states (tokens) are stored" in said.err and said.err.count("MB/s)") == 1


def test_encode_can_finish_a_store_killed_before_its_manifest(
    squad: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "finish", die)
        with pytest.raises(Killed):
            command("encode", squad)
    store = squad.parent / "run/states/train_epoch_1_tokens"
    assert not (store / "manifest.json").exists()
    ok(command("encode", squad))
    assert Store.open(store).manifest.windows > 0


def test_part_applies_to_every_store(rte: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "StoreWriter", functools.partial(StoreWriter, shard_tokens=60))
    both = 'store.keep=["tokens", "cls"]'
    said = ok(command("encode", rte, both, "--part", "1/2"))
    assert said.out.count("is not complete yet: the command that writes the last part finishes the store") == 2
    ok(command("encode", rte, both, "--part", "2/2"))
    for name in ("tokens", "cls"):
        assert len(Store.open(rte.parent / f"run/states/train_epoch_1_{name}").manifest.shards) > 2


def test_an_unusable_location_is_reported_or_bypassed(squad: Path, command: Command) -> None:
    path = squad.parent / "file"
    path.write_text("mine")
    said = ok(command("train", squad, f"store.path={path}"))
    assert "are streamed: " in said.err and str(path) in said.err
    for name in ("train", "encode", "check"):
        said = command(name, squad, f"store.path={path}", "train.source=stored", "train.epochs=3")
        assert said.code == 2 and str(path) in said.err and "Traceback" not in said.err


@pytest.mark.parametrize("address", ["foo://x/y", "http://127.0.0.1:9/states", "zip://x::http://127.0.0.1:9/"])
def test_an_address_of_another_scheme_is_refused_with_the_config(squad: Path, command: Command, address: str) -> None:
    for name in ("train", "encode", "check", "run"):
        said = command(name, squad, f"store.path={address}")
        assert said.code == 2 and "is not the address of a store: give a folder, or an address" in said.err
    assert not (squad.parent / "run" / "states").exists()


def test_a_full_disk_is_bypassed(squad: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Folder, "free_bytes", lambda _: 1000)
    monkeypatch.setattr(states, "measure_encoder", lambda *_: 1.0)
    said = ok(command("train", squad))
    assert "are free on its disk" in said.err and states_of(squad.parent / "run") == "streamed"


def test_one_location_serves_several_tasks_and_runs(
    tmp_path: Path, write_config: Callable[..., Path], glue_folder: Path, command: Command
) -> None:
    shared = f"store.path={tmp_path / 'shared'}"
    for name in ("rte", "mrpc"):
        config = write_config(tmp_path, name=name, data=glue_folder)
        ok(command("train", config, shared, "train.source=stored", "finetune.epochs=0", f"run={tmp_path / name}"))
    folders = sorted(path.name for path in (tmp_path / "shared").iterdir())
    assert [name.split("_")[0] for name in folders] == ["mrpc", "rte"]
    said = ok(command("train", config, shared, "finetune.epochs=0", f"run={tmp_path / 'again'}"))
    assert "read once from" in said.err, "another run with the same encoder and data"


def test_a_store_with_more_parts_serves_heads_that_read_fewer(rte: Path, command: Command) -> None:
    ok(command("encode", rte, 'store.keep=["cls", "mean"]'))
    assert "they are read once from" in ok(command("train", rte)).err
    ok(command("train", rte, "train.source=stored"))
    assert [path.name for path in (rte.parent / "run/states").iterdir()] == ["train_epoch_1_cls_mean"]


def test_a_flipped_bit_is_found_when_states_are_loaded_into_memory(rte: Path, command: Command) -> None:
    ok(command("encode", rte))
    (shard,) = (rte.parent / "run/states/train_epoch_1_cls").glob("states-*")
    data = bytearray(shard.read_bytes())
    data[-5] ^= 4
    shard.write_bytes(data)
    said = command("train", rte)
    assert said.code == 2 and "is damaged" in said.err
    ok(command("encode", rte))
    ok(command("train", rte))


def test_a_store_can_be_read_without_the_data(squad: Path, command: Command) -> None:
    ok(command("encode", squad, "store.dtype=int8"))
    store = Store.open(squad.parent / "run/states/train_epoch_1_tokens")
    lengths = store.facts()["lengths"]
    states = store.read("tokens", [2, 0])
    assert states.dtype == torch.float32 and states.shape == (lengths[2] + lengths[0], 4, 32)
    assert len(store.ids()) == store.manifest.examples and "int8" in repr(store)
    with pytest.raises(UserError, match="has no 'cls' states, only tokens"):
        store.read("cls", [0])
    with pytest.raises(UserError, match="has windows 0 to"):
        store.read("tokens", [len(store)])
    with pytest.raises(UserError, match="no store at"):
        Store.open(squad.parent)
