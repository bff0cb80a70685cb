import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_encoders import say_how_to_read

from bertvision.config import RunConfig, TrainConfig
from bertvision.encoder.states import StateShape
from bertvision.errors import ConfigError, UserError
from bertvision.heads import HEADS, MemberConfig, Target, build_head, list_presets, load_head, outline_head, save_head
from bertvision.kinds import LABEL, SPAN, Kind
from bertvision.pipeline.members import build_members, find_head_mistakes
from bertvision.tasks import TaskConfig

TRAIN = TrainConfig(lr=0.5, epochs=3, schedule="constant", warmup=0.2, decay=0.1, clip=2.0, batch_rows=4)


def members_of(*entries: Any) -> list[MemberConfig]:
    return build_members(list(entries), TRAIN, 9, LABEL)


def mistakes_of(*entries: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        members_of(*entries)
    return caught.value.mistakes


def test_the_control_comes_first_unless_it_is_listed() -> None:
    assert [member.name for member in members_of("adapter")] == ["last_linear", "adapter"]
    assert [member.name for member in members_of("adapter", "last_linear")] == ["adapter", "last_linear"]
    assert [member.name for member in members_of()] == ["last_linear"]


def test_settings_a_head_omits_come_from_the_train_section() -> None:
    plain, own = members_of("learned_pooling", {"head": "adapter", "lr": 1, "epochs": 7, "seed": 4, "size": 8})[1:]
    assert dataclasses.astuple(plain)[3:11] == (0.5, 3, "constant", 0.2, 0.1, 2.0, 9, 1.0)
    assert (own.lr, own.epochs, own.seed, own.settings) == (1, 7, 4, {"size": 8})


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ({"head": "adapter"}, "adapter"),
        ({"head": "adapter", "size": 386, "shared": False, "skip": True}, "adapter_386_separate_skip"),
        ({"head": "adapter", "shared": True, "skip": False}, "adapter_shared_no_skip"),
        ({"head": "pooled_adapter", "pooling": "average"}, "pooled_adapter_average"),
        ({"head": "learned_pooling", "lr": 5e-4, "seed": 1}, "learned_pooling_lr0.0005_seed1"),
        ({"head": "adapter", "name": "my-own.2"}, "my-own.2"),
    ],
)
def test_names_contain_the_settings(entry: dict[str, Any], name: str) -> None:
    assert members_of(entry)[-1].name == name


def test_a_preset_is_a_head_with_settings_that_can_be_overridden() -> None:
    plain, changed = members_of("adapter_386_skip", {"head": "adapter_386_skip", "skip": False, "lr": 0.25})[1:]
    assert (plain.name, plain.head, plain.settings) == ("adapter_386_skip", "adapter", {"size": 386, "skip": True})
    assert changed.settings == {"size": 386, "skip": False} and changed.lr == 0.25
    assert changed.name == "adapter_386_skip_no_skip_lr0.25"


def test_lists_are_grids_with_one_member_per_point() -> None:
    found = members_of({"head": "adapter", "size": [8, 16], "lr": [0.5, 0.25], "seed": [1, 2, 3], "skip": True})[1:]
    points = {(member.settings["size"], member.lr, member.seed) for member in found}
    assert len(found) == 12 == len({member.name for member in found})
    assert points == {(size, lr, seed) for size in (8, 16) for lr in (0.5, 0.25) for seed in (1, 2, 3)}
    assert all(member.settings["skip"] for member in found)
    groups = {f"adapter_{size}_lr{lr}_skip" for size in (8, 16) for lr in (0.5, 0.25)}
    assert {member.group for member in found} == groups


def test_a_grid_may_span_heads_and_then_a_name_becomes_a_prefix() -> None:
    found = members_of({"head": ["adapter_64", "learned_pooling"], "data_fraction": [0.3, 1.0], "name": "less"})[1:]
    assert [(member.name, member.data_fraction) for member in found] == [
        ("less_adapter_64_data_fraction0.3", 0.3),
        ("less_adapter_64_data_fraction1", 1.0),
        ("less_learned_pooling_data_fraction0.3", 0.3),
        ("less_learned_pooling_data_fraction1", 1.0),
    ]


def test_seeds_of_an_entry_start_at_its_own_or_the_runs_seed() -> None:
    plain = members_of({"head": "adapter", "seeds": 3})[1:]
    own = members_of({"head": "adapter", "seeds": 2, "seed": 40})[1:]
    assert [member.seed for member in plain] == [9, 10, 11] and [member.seed for member in own] == [40, 41]
    assert {member.group for member in plain} == {"adapter"} and plain[1].name == "adapter_seed10"


def test_seeds_of_the_train_section_apply_to_every_head_without_its_own() -> None:
    train = dataclasses.replace(TRAIN, seeds=2)
    found = build_members(["learned_pooling", {"head": "adapter", "seed": 5}], train, 0, LABEL)
    assert [(member.group, member.seed) for member in found] == [
        ("last_linear", 0), ("last_linear", 1), ("learned_pooling", 0), ("learned_pooling", 1), ("adapter", 5),
    ]  # fmt: skip


def test_different_numbers_give_different_names_without_a_plus() -> None:
    seeds = members_of({"head": "adapter", "seed": 20240101, "seeds": 2}, {"head": "adapter", "lr": [0.3, 0.3000001]})
    assert [member.name for member in seeds[1:]] == [
        "adapter_seed20240101", "adapter_seed20240102", "adapter_lr0.3", "adapter_lr0.3000001",
    ]  # fmt: skip
    assert members_of({"head": "adapter", "lr": 1e6})[-1].name == "adapter_lr1e06"
    assert members_of({"head": "adapter", "clip": "none"})[-1].name == "adapter_no_clip"


def test_the_control_is_added_unless_a_member_is_one() -> None:
    less = members_of({"head": "last_linear", "data_fraction": [0.1, 0.5]})
    assert [member.data_fraction for member in less] == [1.0, 0.1, 0.5]
    whole = members_of({"head": "last_linear", "data_fraction": [0.1, 1.0]})
    assert [member.data_fraction for member in whole] == [0.1, 1.0]


def test_members_of_one_group_differ_only_in_their_seed() -> None:
    (found,) = mistakes_of(
        {"head": "adapter", "size": 16, "seed": 1, "name": "mine"},
        {"head": "adapter", "size": 64, "seeds": 2, "seed": 5, "name": "mine"},
    )
    assert "several heads named 'mine' differ in more than their seed" in found


def test_preset_names_are_unique_and_differ_from_head_names() -> None:
    rows = list_presets()
    named = [name for head in HEADS for name in HEADS[head].presets]
    # A preset with the name of its head stands for the head's defaults.
    defaults = {head for head in HEADS if HEADS[head].presets.get(head) == {}}
    assert len(named) == len(set(named)) and set(named) & set(HEADS) == defaults
    assert {head for head, _ in rows.values()} == set(HEADS)


def test_all_mistakes_of_all_heads_are_shown_at_once() -> None:
    found = mistakes_of("adaptor", {"head": "adapter", "sise": 3}, {"head": "adapter", "size": "64"})
    assert len(found) == 3
    assert "did you mean 'adapter'?" in found[0] and "did you mean 'size'?" in found[1]
    assert found[2] == "`size` of head 'adapter' must be a whole number, not '64'."


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"size": True}, "a whole number"),
        ({"size": []}, "a whole number"),
        ({"size": [64, "many"]}, "a whole number"),
        ({"data_fraction": 0.0}, "`data_fraction` must be above 0 and at most 1"),
        ({"data_fraction": 1.5}, "`data_fraction` must be above 0 and at most 1"),
        ({"seeds": 0}, "`seeds` of head 'adapter' must be a whole number of at least 1"),
        ({"seeds": 2, "seed": [1, 2]}, "not both"),
        ({"size": 6.5}, "a whole number"),
        ({"size": 0}, "`size` must be at least 1"),
        ({"shared": 1}, "true or false"),
        ({"read": "last"}, "choose from cls, max, mean"),
        ({"lr": "fast"}, "a number"),
        ({"lr": 0}, "`lr` must be above 0"),
        ({"lr": float("nan")}, "`lr` must be above 0"),
        ({"lr": float("inf")}, "`lr` must be above 0 and less than 3e+38"),
        ({"epochs": 0}, "`epochs` must be at least 1"),
        ({"epochs": 1.5}, "a whole number"),
        ({"schedule": "cosine"}, "choose from constant, linear"),
        ({"warmup": 1.0}, "`warmup` must be from 0 to less than 1"),
        ({"decay": -0.1}, "`decay` must be from 0 to less than 3e+38"),
        ({"decay": float("inf")}, "`decay` must be from 0 to less than 3e+38"),
        ({"clip": 0}, "`clip` must be above 0"),
        ({"seed": -1}, "`seed` must be at least 0"),
    ],
)
def test_a_wrong_value_is_one_readable_mistake(settings: dict[str, Any], words: str) -> None:
    (found,) = mistakes_of({"head": "adapter", **settings})
    assert words in found and "adapter" in found


@pytest.mark.parametrize("name", ["encoder", "baseline", "", ".", "..", ".hidden", "a/b", "-x", "a b", 7, ["a", "b"]])
def test_invalid_and_reserved_names_are_refused(name: Any) -> None:
    (found,) = mistakes_of({"head": "adapter", "name": name})
    assert f"the `name` of head 'adapter' can't be {name!r}" in found


def test_two_heads_with_one_name_are_refused() -> None:
    assert "two heads are named 'adapter'" in mistakes_of("adapter", "adapter")[0]


def test_loading_a_folder_without_a_head_states_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected config.json and head.safetensors"):
        load_head(tmp_path)


# ---------------------------------------------------------------------- how heads read


def read_by(encoder: Path, *entries: Any, kind: Kind = LABEL) -> dict[str, Any]:
    members = build_members(list(entries), TRAIN, 9, kind, str(encoder))
    return {member.name: member.settings.get("read") for member in members}


@pytest.fixture
def made_for(tiny_encoder_folder: Path, tmp_path: Path) -> Callable[[str | None], Path]:
    """made_for("mean") → an encoder that says it is read so; None: one that does not say."""

    def copy(mode: str | None) -> Path:
        folder = tmp_path / f"made_for_{mode}"
        shutil.copytree(tiny_encoder_folder, folder, ignore=shutil.ignore_patterns("1_Pooling"))
        if mode is not None:
            say_how_to_read(folder, mode)
        return folder

    return copy


ENTRIES = ("adapter_64", "ladder_64", "mlp", "linear", "attentive", {"head": "adapter", "read": "cls", "name": "own"})


@pytest.mark.parametrize(
    ("made", "adapter", "ladder", "mlp", "linear"),
    [
        ("mean", "mean", "mean", "mean+deviation", "mean"),
        ("cls", "cls", "cls", "cls", "cls"),
        ("max", "max", "mean", "max", "max"),  # a ladder reads [CLS] or the mean
    ],
)
def test_heads_and_controls_read_as_the_encoder_was_made(
    made: str, adapter: str, ladder: str, mlp: str, linear: str, made_for: Callable[..., Path]
) -> None:
    assert read_by(made_for(made), *ENTRIES) == {
        "last_linear": made, "last_lr": made, "adapter_64": adapter, "ladder_64": ladder, "mlp": mlp, "linear": linear,
        "attentive": None, "own": "cls",
    }  # fmt: skip


def test_both_ways_are_tried_if_the_encoder_does_not_say(made_for: Callable[..., Path]) -> None:
    assert read_by(made_for(None), "adapter_64", {"head": "mlp", "name": "mine"}, "attentive", "linear_mean") == {
        "last_linear_cls": "cls", "last_linear_mean": "mean", "last_lr_cls": "cls", "last_lr_mean": "mean",
        "adapter_64_cls": "cls", "adapter_64_mean": "mean", "mine_cls": "cls", "mine_mean+deviation": "mean+deviation",
        "attentive": None, "linear_mean": "mean",
    }  # fmt: skip


def test_a_way_that_is_listed_and_tried_is_trained_once(made_for: Callable[..., Path]) -> None:
    silent = made_for(None)
    assert list(read_by(silent, "linear", "linear_mean"))[-2:] == ["linear_cls", "linear_mean"]
    with pytest.raises(ConfigError, match="two heads are named 'attentive'"):
        read_by(silent, "attentive", "attentive")


def test_spans_are_not_read_as_sequences(made_for: Callable[..., Path]) -> None:
    assert read_by(made_for(None), "adapter_64", kind=SPAN) == {"last_linear": None, "adapter_64": None}


def test_a_head_that_continues_another_reads_what_that_one_read(made_for: Callable[..., Path], tmp_path: Path) -> None:
    shape, target = StateShape(4, 32, True), Target(LABEL, 2)
    for read, settings in (("mean", {"read": "mean"}), ("cls", {})):  # a saved head without `read` has the default
        member = build_members([{"head": "adapter", **settings}], TRAIN, 0, LABEL)[-1]
        save_head(tmp_path / read, build_head(member, shape, target), member)
        entry = {"head": "adapter", "begin": str(tmp_path / read), "name": "begun"}
        for made in ("max", None):
            folder = tmp_path / f"made_for_{made}"
            assert read_by(folder if folder.exists() else made_for(made), entry)["begun"] == read


def test_members_are_counted_before_they_are_built() -> None:
    entries: list[Any] = [
        {"head": "adapter", "seeds": 1_000_000_000},
        {"head": "adapter", "seeds": 10**18},
        {"head": "adapter", "seed": 2**32 - 1, "lr": [0.1, 0.2], "seeds": 5001},
        {"head": ["adapter", "mlp"], "size": list(range(1, 5002))},
        {"head": "adapter", "size": list(range(1, 102)), "decay": [0.1 + 0.001 * x for x in range(100)]},
    ]
    for entry in entries:
        found = mistakes_of(entry)
        assert found == [
            "`heads` has more than 10,000 members, as lists and seeds multiply: try fewer values or seeds at a time."
        ]
    with pytest.raises(ConfigError, match="more than 10,000 members"):
        build_members(["adapter", "mlp"], TrainConfig(seeds=9000), 0, LABEL)


def test_heads_are_counted_on_every_snapshot() -> None:
    snapshots = [number / 1000 for number in range(1, 1000)]
    config = RunConfig(
        TaskConfig("rte"), heads=[{"head": "adapter", "seeds": 11}], train=TrainConfig(snapshots=snapshots)
    )
    (found,) = find_head_mistakes(config)  # and the control: 12 heads
    assert found.startswith("12 heads on 999 snapshots ('train.snapshots') are more than 10,000 to train")


def test_ten_thousand_members_are_built() -> None:
    found = build_members([{"head": "last_linear", "seeds": 10_000}], TRAIN, 0, LABEL)
    assert len(found) == 10_000 and found[-1].seed == 9999


@pytest.mark.parametrize("setting", ["size", "epochs", "seed", "warmup"])
def test_every_number_of_a_head_has_an_upper_bound(setting: str) -> None:
    (found,) = mistakes_of({"head": "adapter", setting: 99_999_999_999})
    assert f"`{setting}` must be" in found and ("at most" in found or "less than" in found)


def test_every_number_of_every_head_has_bounds() -> None:
    for name in HEADS:
        for item in dataclasses.fields(HEADS[name].Config):
            if isinstance(item.default, int | float) and not isinstance(item.default, bool):
                assert any(item.metadata[key] is not None for key in ("below", "at_most")), (name, item.name)


def test_names_that_are_too_long_for_a_folder_are_found_before_any_work() -> None:
    assert "at most 199 letters" in mistakes_of({"head": "adapter", "name": "a" * 300})[0]
    (found,) = mistakes_of({"head": "adapter", "name": "a" * 190, "size": [8, 16], "lr": [0.1, 0.2], "epochs": [1, 200]}
    )[:1]  # fmt: skip
    assert "can't be the name of a folder: it is longer than 200 bytes. Give it a `name`." in found


def test_a_head_with_too_many_parameters_is_refused_by_arithmetic() -> None:
    member = members_of({"head": "adapter", "size": 100_000, "shared": False})[-1]
    with pytest.raises(
        UserError, match="'adapter_100000_separate' would have .* a head can have at most 2,000,000,000"
    ):
        outline_head(member, StateShape(layers=25, hidden=1024, pooled=True), Target(LABEL, 2))
