import shutil
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import FixedTrial
from tiny_encoders import say_how_to_read

from bertvision.config import TrainConfig, build_config
from bertvision.errors import ConfigError
from bertvision.kinds import LABEL, SCORE, SPAN, Kind
from bertvision.pipeline.members import build_members
from bertvision.search.space import (
    DEFAULTS,
    Choices,
    build_member,
    build_space,
    find_mistakes,
    reads_of_heads,
    space_tables,
)

RTE = {"task": {"name": "rte"}}
TASKS = {LABEL: "rte", SCORE: "stsb", SPAN: "demo"}


def config_with(space: dict[str, Any], **search: Any) -> Any:
    return build_config({**RTE, "search": {**search, "space": space}}, find_more=find_mistakes)


def mistakes(space: dict[str, Any], **search: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config_with(space, **search)
    return caught.value.mistakes


def test_lists_are_choices_tables_are_ranges_and_the_rest_is_fixed() -> None:
    space = build_space(
        config_with(
            {
                "head": ["adapter", "learned_pooling"], "lr": {"low": 1e-4, "high": 1e-2, "log": True},
                "size": {"low": 4, "high": 64, "log": True}, "decay": 0.1, "skip": [True, False], "epochs": [2, 3],
            }
        )
    )  # fmt: skip
    values = {"head": "adapter", "adapter.size": 9, "adapter.skip": False, "lr": 2e-3, "epochs": 3}
    trial = FixedTrial(values)
    assert space.draw(trial) == {
        "head": "adapter", "size": 9, "skip": False, "read": "mean", "lr": 2e-3, "decay": 0.1, "epochs": 3,
    }  # fmt: skip
    assert trial.params == values, "fixed settings are not parameters of the study"


def test_a_setting_is_drawn_only_for_heads_that_have_it() -> None:
    space = build_space(config_with({"head": ["adapter", "learned_pooling"], "size": [4, 8], "lr": [1e-3, 1e-2]}))
    trial = FixedTrial({"head": "learned_pooling", "lr": 1e-2})  # it would raise if a size were drawn
    assert space.draw(trial) == {"head": "learned_pooling", "read": "mean", "lr": 1e-2}


def test_a_preset_keeps_its_fixed_settings() -> None:
    space = build_space(config_with({"head": ["adapter_64_skip", "adapter"], "size": [4, 8], "skip": [True, False]}))
    assert space.draw(FixedTrial({"head": "adapter_64_skip"})) == {"head": "adapter_64_skip", "read": "mean"}
    member = build_member({"head": "adapter_64_skip"}, "member_000", TrainConfig(epochs=1), 0, LABEL)
    assert (member.name, member.head, member.settings) == ("member_000", "adapter", {"size": 64, "skip": True})


def test_a_setting_that_is_a_list_has_lists_as_choices() -> None:
    layers = [[0, 1], [2]]
    space = build_space(config_with({"head": "ladder", "layers": layers}))
    assert space.draw(FixedTrial({"ladder.layers": "[2]"})) == {"head": "ladder", "layers": [2], "read": "mean"}
    fixed = build_space(config_with({"head": "ladder", "layers": [0, 1]}))
    assert fixed.draw(FixedTrial({})) == {"head": "ladder", "layers": [0, 1], "read": "mean"}


def test_both_ways_of_reading_are_tried_if_the_encoder_does_not_say(tiny_encoder_folder: Path, tmp_path: Path) -> None:
    silent = shutil.copytree(tiny_encoder_folder, tmp_path / "silent", ignore=shutil.ignore_patterns("1_Pooling"))
    tables = {**RTE, "search": {"space": {"head": ["adapter", "attentive"]}}}
    spaces = [
        build_space(build_config({**tables, "encoder": {"name": str(name)}}, find_more=find_mistakes))
        for name in (silent, tiny_encoder_folder)
    ]
    assert [space.read_entries() for space in spaces] == [
        [{"head": "adapter", "read": "cls"}, {"head": "adapter", "read": "mean"}, {"head": "attentive"}],
        [{"head": "adapter", "read": "cls"}, {"head": "attentive"}],
    ]


@pytest.mark.parametrize("kind", TASKS)
def test_the_default_space_has_no_mistakes(kind: Kind) -> None:
    config = build_config({"task": {"name": TASKS[kind]}}, find_more=find_mistakes)
    assert space_tables(config) == DEFAULTS[kind.position]
    entries = [{"head": head} for head in build_space(config).heads]
    assert len(build_members(entries, TrainConfig(epochs=1), 0, kind)) == 1 + len(entries)


def test_every_way_of_reading_is_known_in_advance() -> None:
    space = build_space(config_with({"head": ["adapter", "flat_adapter"], "read": ["cls", "mean"]}))
    assert space.read_entries() == [
        {"head": "adapter", "read": "cls"}, {"head": "adapter", "read": "mean"}, {"head": "flat_adapter"},
    ]  # fmt: skip


def test_all_mistakes_of_a_search_are_shown_at_once_with_the_others() -> None:
    with pytest.raises(ConfigError) as caught:
        build_config(
            {
                **RTE, "data": {"hold_out": 0}, "train": {"lr": -1}, "heads": ["nonsense"],
                "search": {
                    "sampler": "grid", "members": None, "population": 0, "metric": "f1", "rungs": [1.5],
                    "snapshot": 0.3, "seconds": None,
                    "space": {
                        "head": ["adapter", "adaptor"], "lr": {"low": 1.0}, "size": [], "decay": {"low": 2, "high": 1},
                    },
                },
            },
            find_more=find_mistakes,
        )  # fmt: skip
    found = caught.value.mistakes
    keys = (
        "data.hold_out", "train.lr", "nonsense", "search.sampler", "search.members", "search.population",
        "search.metric", "search.rungs", "search.snapshot", "search.space.head", "search.space.lr",
        "search.space.size", "search.space.decay",
    )  # fmt: skip
    assert len(found) == len(keys), found
    assert all(any(f"'{key}'" in line for line in found) for key in keys), found


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"head": "adapter", "sise": [4]}, "did you mean 'search.space.size'?"),
        ({"head": ["learned_pooling"], "size": [4]}, "'search.space.size' is not a setting of learned_pooling"),
        ({"head": "adapter", "size": [4, 0]}, "`size` must be at least 1, not 0"),
        ({"head": "adapter", "size": {"low": 0, "high": 4}}, "`size` must be at least 1, not 0"),
        ({"head": "adapter", "size": {"low": 1.5, "high": 4}}, "must be whole numbers"),
        ({"head": "adapter", "lr": {"low": 0, "high": 1, "log": True}}, "above 0 if `log` is true"),
        ({"head": "adapter", "lr": {"low": 1, "high": 2, "logg": True}}, "must be a table"),
        ({"head": "adapter", "read": {"low": 1, "high": 2}}, "can't be a range"),
        ({"head": "adapter", "read": ["cls", "men"]}, "`read` is 'men'"),
        ({"head": "adapter", "schedule": ["linear", "cosine"]}, "`schedule` is 'cosine'"),
        ({"head": "adapter", "lr": ["fast"]}, "`lr` of head 'adapter' must be a number"),
        ({"head": [], "lr": [1]}, "'search.space.head' must be a head or a list of heads"),
        ({"head": "adapter", "seeds": [3]}, "'search.space.seeds' is not a setting of adapter"),
        ({"head": "adapter", "begin": ["a", "b"]}, "'search.space.begin' is not a setting of adapter"),
        ({"head": "ladder", "width": [64], "attention_heads": [4, 16]}, "`width` = 64 can't be divided among 16"),
    ],
)
def test_one_mistake_is_reported_once_by_the_name_of_its_setting(space: dict[str, Any], words: str) -> None:
    found = mistakes(space)
    assert len(found) == 1 and words in found[0], found


def test_settings_are_checked_together_not_with_the_others_at_their_defaults() -> None:
    config_with({"head": "ladder", "width": [8], "attention_heads": [1]})  # 8 is not valid with the default of 4


def test_nested_settings_can_be_given_as_overrides() -> None:
    words = ['search.space.head=["adapter"]', "search.space.lr={low=1e-4, high=1e-3}", "search.members=7"]
    config = build_config(RTE, words, find_mistakes)
    assert config.search.space == {"head": ["adapter"], "lr": {"low": 1e-4, "high": 1e-3}}
    assert config.search.members == 7
    with pytest.raises(ConfigError, match="'search.members' in 'search.members.x=3' is not a section"):
        build_config({**RTE, "search": {"members": 4}}, ["search.members.x=3"])


@pytest.mark.parametrize("mode", ["cls", "mean"])
def test_a_preset_for_two_towers_reads_as_the_encoder_was_made(
    mode: str, tiny_encoder_folder: Path, tmp_path: Path
) -> None:
    """The winner of a search is built as its entry says, so the search must try what a run would train."""
    encoder = tmp_path / "encoder"
    shutil.copytree(tiny_encoder_folder, encoder)
    say_how_to_read(encoder, mode)
    config = build_config({**RTE, "encoder": {"name": str(encoder)}, "search": {"space": {"head": ["mlp_towers"]}}})
    assert reads_of_heads(config) == {"mlp_towers": (mode,)}
    assert build_space(config).heads["mlp_towers"]["read"] == Choices((mode,))
    *_, member = build_members(["mlp_towers"], config.train, 0, LABEL, str(encoder))
    assert member.settings["read"] == mode
