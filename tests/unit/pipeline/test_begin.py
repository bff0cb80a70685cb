"""Members that begin with the weights of a trained head: which weights are loaded, what fits, what is reported."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import member_of

from bertvision.config import TrainConfig, build_config, load_config
from bertvision.encoder.states import StateShape
from bertvision.errors import ConfigError, UserError
from bertvision.heads import HEADS, Head, MemberConfig, Target, build_head, load_head, save_head
from bertvision.heads.base import outline_head
from bertvision.kinds import LABEL, SCORE, SPAN
from bertvision.pipeline.begin import begin_head, check_begin, find_folder
from bertvision.pipeline.folder import SHIPPED, describe_task
from bertvision.pipeline.job import Job
from bertvision.pipeline.members import build_members
from bertvision.pipeline.train import check_heads
from bertvision.tasks.base import Task

SPAN, LABEL, SCORE = SPAN, LABEL, SCORE
SHAPE = StateShape(4, 16, pooled=False)
YES_NO = Task("answerable", LABEL, ("accuracy",), readers={}, labels=("yes", "no"))
SPANS = Task("squad2", SPAN, ("f1",), readers={})
Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """save("adapter", SPANS, size=4) → the folder of a head as saved by a run, or outside a run if `known` is false."""

    def write(row: str, task: Task, known: bool = True, place: str = "run", **settings: Any) -> Path:
        run, member = tmp_path / place, member_of(row, task.kind, seed=77, **settings)
        folder = run / "snapshots/epoch_1/heads" / member.name if known else run / member.name
        save_head(folder, build_head(member, SHAPE, target_of(task)), member)
        if known:
            (run / "task.json").write_text(json.dumps(describe_task(task)))
        return folder

    return write


def target_of(task: Task) -> Target:
    return Target(task.kind, len(task.labels))


def begun(member: MemberConfig, task: Task, shape: StateShape = SHAPE) -> Head:
    head = build_head(member, shape, target_of(task))
    begin_head(head, member, task)
    return head


def taken(head: Head, member: MemberConfig, folder: Path) -> set[str]:
    """The names of the weights loaded from the folder; all others must be drawn from the member's seed."""
    there, drawn = load_head(folder)[0].state_dict(), build_head(member, head.shape, head.target).state_dict()
    found = set()
    for name, weight in head.state_dict().items():
        if name in there and there[name].shape == weight.shape and torch.equal(there[name], weight):
            found.add(name)
        else:
            assert torch.equal(weight, drawn[name]), name
    return found


def mistakes_of(*entries: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        build_members(list(entries), TrainConfig(epochs=1), 0, LABEL)
    return caught.value.mistakes


# ---------------------------------------------------------------------- which weights


@pytest.mark.parametrize("row", [row for row in HEADS if HEADS[row].positions == {"token", "sequence"}])
def test_a_label_head_loads_everything_from_a_span_head_except_the_output_layer(row: str, save: Save) -> None:
    folder = save(row, SPANS)
    member = member_of(row, LABEL, begin=str(folder), seed=3, name="begun")
    body = {name for name in load_head(folder)[0].state_dict() if not name.startswith("output.")}
    if not body:
        with pytest.raises(UserError, match="can't use any weights"):
            begun(member, YES_NO)
    else:
        assert taken(begun(member, YES_NO), member, folder) == body


OTHER_ORDER = dataclasses.replace(YES_NO, labels=("no", "yes"))
THREE = Task("answerable", LABEL, ("accuracy",), readers={}, labels=("yes", "no", "perhaps"))
OTHER_NAME = dataclasses.replace(YES_NO, name="rte")
FILES = dataclasses.replace(YES_NO, name="files")  # all tasks on a user's own files have this name
ONE_SCORE, OTHER_SCORE = (Task(name, SCORE, ("pearson",), readers={}) for name in ("stsb", "mine"))


@pytest.mark.parametrize(
    ("there", "here", "known", "whole"),
    [
        (YES_NO, YES_NO, True, True),
        (YES_NO, YES_NO, False, True),
        (FILES, FILES, True, False),
        (YES_NO, OTHER_NAME, True, False),
        (YES_NO, OTHER_NAME, False, True),
        (YES_NO, OTHER_ORDER, True, False),
        (YES_NO, THREE, True, False),
        (YES_NO, THREE, False, False),
        (SPANS, SPANS, True, True),
        (SPANS, YES_NO, False, False),
        (YES_NO, SPANS, False, False),
        (ONE_SCORE, ONE_SCORE, True, True),
        (ONE_SCORE, OTHER_SCORE, True, False),
    ],
)
def test_the_output_layer_is_loaded_only_if_both_heads_predict_the_same(
    there: Task, here: Task, known: bool, whole: bool, save: Save
) -> None:
    folder = save("adapter", there, known, size=4)
    member = member_of("adapter", here.kind, begin=str(folder), seed=3, size=4)
    found = taken(begun(member, here), member, folder)
    assert ({"output.weight", "output.bias"} <= found) == whole
    assert {"adapter.weight", "adapter.bias"} <= found


def test_the_heads_of_a_kit_are_accepted_and_know_their_task() -> None:
    folder = SHIPPED / "default" / "squad2"
    head, member = load_head(folder)
    answerable = member_of("ladder", LABEL, begin=str(folder), **member.settings)
    body = taken(begun(answerable, YES_NO, head.shape), answerable, folder)
    assert body == {name for name in head.state_dict() if not name.startswith("output.")}
    same, other = SPANS, dataclasses.replace(SPANS, name="mine")
    spans = member_of("ladder", SPAN, begin=str(folder), **member.settings)
    outline = outline_head(spans, head.shape, Target(SPAN))
    assert set(check_begin(outline, spans, same)) - set(check_begin(outline, spans, other)) == {
        "output.weight", "output.bias",
    }  # fmt: skip


def test_settings_without_weights_may_differ(save: Save) -> None:
    settings = {"width": 32, "blocks": 2}
    folder = save("ladder", SPANS, **settings)
    member = member_of("ladder", LABEL, begin=str(folder), dropout=0.5, drop_states=0.25, read="mean", **settings)
    assert len(taken(begun(member, YES_NO), member, folder)) > 10


def test_seeds_share_the_initial_weights_and_draw_their_own_output_layers(save: Save) -> None:
    entry = {"head": "adapter", "size": 4, "seeds": 2, "begin": str(save("adapter", SPANS, size=4))}
    one, other = (begun(m, YES_NO) for m in build_members([entry], TrainConfig(epochs=1), 0, LABEL)[1:])
    assert torch.equal(one.state_dict()["adapter.weight"], other.state_dict()["adapter.weight"])
    assert not torch.equal(one.state_dict()["output.weight"], other.state_dict()["output.weight"])


# ---------------------------------------------------------------------- what does not fit


@pytest.mark.parametrize(
    ("settings", "shape", "words"),
    [
        ({"size": 8}, SHAPE, "adapter.bias (8,) vs. (4,)"),
        ({"size": 4, "shared": False}, SHAPE, "adapter.bias"),
        ({"size": 4}, StateShape(4, 24, False),
         "4 layers of size 24 and predicts a span; the saved one reads 4 layers of size 16"),
        ({"size": 4}, StateShape(5, 16, False), "output.weight (2, 20) vs. (2, 16)"),
        ({"size": 4, "skip": True}, SHAPE, "output.weight (2, 32) vs. (2, 16)"),
    ],
)  # fmt: skip
def test_weights_of_other_shapes_are_refused_by_name(
    settings: dict[str, Any], shape: StateShape, words: str, save: Save
) -> None:
    folder = save("adapter", SPANS, size=4)
    member = member_of("adapter", SPAN, begin=str(folder), **settings)
    with pytest.raises(UserError, match="or remove `begin`") as caught:
        check_begin(outline_head(member, shape, Target(SPAN)), member, SPANS)
    assert words in str(caught.value) and str(folder) in str(caught.value)


def test_missing_and_extra_weights_are_refused(save: Save) -> None:
    folder = save("ladder", SPANS, width=32, blocks=2)
    for blocks in (1, 3):
        member = member_of("ladder", LABEL, begin=str(folder), width=32, blocks=blocks)
        with pytest.raises(UserError, match=r"the shapes differ \(blocks\.\d.*missing.*; and \d+ more\)"):
            begun(member, YES_NO)


def test_a_missing_or_different_head_is_reported_with_all_other_mistakes(save: Save, tmp_path: Path) -> None:
    folder, empty, damaged = save("adapter", SPANS), tmp_path / "empty", save("adapter", SPANS, place="damaged")
    empty.mkdir()
    (damaged / "head.safetensors").unlink()
    found = mistakes_of(
        {"head": "adapter", "begin": str(tmp_path / "nowhere"), "name": "a"},
        {"head": "adapter", "begin": str(empty), "name": "b"},
        {"head": "adapter", "begin": str(damaged), "name": "c"},
        {"head": "learned_pooling", "begin": str(folder), "name": "d"},
        {"head": "adapter", "begin": 3, "name": "e"},
        {"head": "adapter", "lr": -1.0},
    )
    expected = ("expected config.json and head.safetensors", "expected config.json and head.safetensors",
                "expected head.safetensors next to", "a head of type 'adapter', but must hold one of type 'learned_p",
                "must be a string or none, not 3", "`lr` must be above 0")  # fmt: skip
    assert len(found) == len(expected)
    assert all(words in line for words, line in zip(expected, found, strict=True)), found


def test_damaged_and_changed_files_are_reported(save: Save) -> None:
    folder = save("adapter", SPANS)
    member = member_of("adapter", LABEL, begin=str(folder))
    (folder / "head.safetensors").write_bytes(b"no tensors")
    with pytest.raises(UserError, match="has changed since this run was started"):
        begun(member, YES_NO)
    with pytest.raises(UserError, match="is damaged"):
        begun(member_of("adapter", LABEL, begin=str(folder)), YES_NO)


# ---------------------------------------------------------------------- fingerprints and saved heads


def test_the_content_of_the_file_matters_not_its_path(save: Save, tmp_path: Path) -> None:
    folder, other = save("adapter", SPANS), save("adapter", SPANS, place="other", lr=0.5)
    shutil.move(tmp_path / "run", tmp_path / "moved")
    moved = tmp_path / "moved" / folder.relative_to(tmp_path / "run")
    first = member_of("adapter", LABEL, begin=str(moved)).identity()
    assert first == member_of("adapter", LABEL, begin=str(other)).identity(), "the same weights from the same seed"
    save_head(other, build_head(member_of("adapter", SPAN, seed=78), SHAPE, Target(SPAN)), member_of("adapter", SPAN))
    assert first != member_of("adapter", LABEL, begin=str(other)).identity()
    assert first != member_of("adapter", LABEL).identity()


def test_without_begin_nothing_about_it_is_saved(save: Save) -> None:
    fields = {"name", "head", "settings", "lr", "epochs", "schedule", "warmup", "decay", "clip", "seed",
              "data_fraction", "group"}  # fmt: skip
    for member in (member_of("adapter", SPAN), member_of("adapter", SPAN, begin="none")):
        assert set(member.identity()) == fields - {"name", "group"}
    assert set(json.loads((save("adapter", SPANS) / "config.json").read_text())["member"]) == fields


def test_a_saved_head_records_its_initial_weights_and_loads_without_them(save: Save, tmp_path: Path) -> None:
    member = member_of("adapter", LABEL, begin=str(save("adapter", SPANS)))
    head = begun(member, YES_NO)
    save_head(tmp_path / "mine", head, member)
    shutil.rmtree(tmp_path / "run")
    again, found = load_head(tmp_path / "mine")
    assert found.identity() == member.identity() and found.begin_stamp is not None
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), head.parameters(), strict=True))
    assert str(tmp_path) not in (tmp_path / "mine" / "config.json").read_text()


# ---------------------------------------------------------------------- names and paths


def test_names_distinguish_the_folders_of_a_grid_and_omit_a_single_one(save: Save) -> None:
    one, other = (str(save("adapter", SPANS, place=place)) for place in ("squad2", "new s"))
    entries = [{"head": "adapter", "begin": one, "lr": 0.5}, {"head": "adapter", "begin": [one, other, "none"]}]
    entries.append({"head": "adapter", "begin": ["none", one], "seeds": 2, "name": "mine"})
    found = build_members(entries, TrainConfig(epochs=1), 0, LABEL)[1:]
    assert [member.name for member in found] == [
        "adapter_lr0.5", "adapter_begin_squad2", "adapter_begin_new-s", "adapter_no_begin",
        "mine_seed0_no_begin", "mine_seed1_no_begin",
        "mine_seed0_begin_adapter_seed77", "mine_seed1_begin_adapter_seed77",
    ]  # fmt: skip
    assert [member.begin for member in found[1:4]] == [one, other, None]


def test_a_head_that_begins_with_trained_weights_is_not_the_control(save: Save) -> None:
    entry = {"head": "last_linear", "begin": str(save("last_linear", YES_NO)), "name": "begun"}
    assert [member.name for member in build_members([entry], TrainConfig(epochs=1), 0, LABEL)] == [
        "last_linear",
        "begun",
    ]


def test_paths_are_independent_of_the_working_directory(
    save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save("adapter", SPANS)
    relative = str(folder.relative_to(tmp_path))
    monkeypatch.chdir(tmp_path)
    heads = [
        "learned_pooling",
        {"head": "adapter", "begin": relative},
        {"head": "adapter", "begin": ["none", relative]},
    ]
    whole = build_config({"task": {"name": "rte"}, "heads": heads}).with_absolute_paths().heads
    assert whole == ["learned_pooling", {"head": "adapter", "begin": str(folder)},
                     {"head": "adapter", "begin": ["none", str(folder)]}]  # fmt: skip
    member = member_of("adapter", LABEL, begin=relative)
    monkeypatch.chdir("/")
    assert taken(begun(member, YES_NO), member, folder) == {"adapter.weight", "adapter.bias"}


def test_a_head_of_a_shipped_kit_is_found_by_name_unless_a_local_folder_has_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_folder("default/squad2") == SHIPPED / "default" / "squad2"
    assert find_folder("default/nothing") == tmp_path / "default" / "nothing"
    (tmp_path / "default" / "squad2").mkdir(parents=True)
    assert find_folder("default/squad2") == SHIPPED / "default" / "squad2", "there is no head in it"
    entry = {"head": "ladder_128_deep", "begin": "default/squad2"}
    config = build_config({"task": {"name": "squad2"}, "heads": [entry]})
    assert config.with_absolute_paths().heads == [entry], "and the empty folder is not what the run folder records"
    (tmp_path / "default" / "squad2" / "config.json").touch()
    assert find_folder("default/squad2") == tmp_path / "default" / "squad2"


def test_an_unknown_home_and_a_missing_head_are_reported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"member": {}, "shape": {}, "target": {}}')
    for begin, says in (("~nobody_here/head", "no head in"), (str(tmp_path), "config.json is damaged")):
        with pytest.raises(ConfigError, match=says):
            build_members([{"head": "adapter", "begin": begin}], TrainConfig(epochs=1), 0, LABEL)


def test_the_shipped_span_head_fits_the_config_that_begins_with_it() -> None:
    files = {split: Path("tests/fixtures/squad_tiny") / f"{split}-v2.0.json" for split in ("train", "dev")}
    words = [f"task.{split}={Path(__file__).parents[3] / path}" for split, path in files.items()]
    job = Job(load_config(Path(__file__).parents[3] / "configs" / "kit" / "squad2_answerable.toml", words))
    check_heads(job)
    assert any(member.begin == str(SHIPPED / "default" / "squad2") for member in job.members)
