import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from bertvision.config import RunConfig, build_config, load_config
from bertvision.errors import ConfigError, UserError
from bertvision.pipeline.ensemble_entries import read_entry
from bertvision.settings import list_settings

RTE = {"task": {"name": "rte"}}
SPANS = {"task": {"name": "demo"}}


def mistakes(tables: dict[str, Any], *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        build_config(tables, overrides)
    return caught.value.mistakes


def one_mistake(tables: dict[str, Any], *overrides: str) -> str:
    found = mistakes(tables, *overrides)
    assert len(found) == 1, found
    return found[0]


def test_all_mistakes_are_shown_at_once() -> None:
    found = mistakes(
        {"task": {"name": "rte"}, "trian": {}, "train": {"lr": "fast", "epoch": 3}, "finetune": {"warmup": 2}},
        "encoder.dtype=float8", "nonsense", "data.limit_train=0",
    )  # fmt: skip
    keys = ("trian", "train.lr", "train.epoch", "finetune.warmup", "encoder.dtype", "nonsense", "data.limit_train")
    assert len(found) == len(keys)
    assert all(any(f"'{key}'" in line for line in found) for key in keys), found


@pytest.mark.parametrize(
    ("tables", "nearest"),
    [
        ({"trian": {}}, "train"),
        ({"train": {"epoch": 3}}, "train.epochs"),
        ({"finetune": {"schedule": "liner"}}, "linear"),
        ({"task": {"name": "rt"}}, "rte"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(tables: dict[str, Any], nearest: str) -> None:
    assert f"did you mean '{nearest}'?" in one_mistake({**RTE, **tables})


def test_an_unknown_name_without_a_near_match_lists_the_choices() -> None:
    line = one_mistake({**RTE, "evaluate": {"zzz": 1}})
    assert "did you mean" not in line and "max_answer_tokens, n_best" in line


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("train.epochs", 1.5, "a whole number or none"),
        ("train.epochs", True, "a whole number or none"),
        ("train.lr", True, "a number"),
        ("train.lr", "1e-3", "a number"),
        ("train.lr", None, "a number"),
        ("encoder.name", 7, "a string"),
        ("finetune.snapshots", 1.0, "a list of numbers"),
        ("finetune.snapshots", [0.5, "1"], "a list of numbers"),
        ("finetune.snapshots", [True], "a list of numbers"),
        ("encoder.layers", 3, "a list of whole numbers or none"),
        ("encoder.layers", [0, 1.5], "a list of whole numbers or none"),
    ],
)
def test_a_wrong_type_is_described_in_words(key: str, value: Any, words: str) -> None:
    section, name = key.split(".")
    assert one_mistake({**RTE, section: {name: value}}) == f"'{key}' must be {words}, not {value!r}."


@pytest.mark.parametrize("value", [3, 0.5, True, []])
def test_a_task_name_of_the_wrong_type_is_reported_with_the_other_mistakes(value: Any) -> None:
    found = mistakes({"task": {"name": value}, "seed": -1})
    assert f"'task.name' must be a string, not {value!r}." in found and any("'seed'" in line for line in found)


def test_a_boolean_is_not_a_seed() -> None:
    assert "'seed' must be a whole number" in one_mistake({**RTE, "seed": True})


def test_a_section_that_is_not_a_table_is_reported() -> None:
    assert "[train] must be a section" in one_mistake({**RTE, "train": 3})
    assert "[task] must be a section" in mistakes({"task": "rte"})[0]


def test_whole_numbers_are_accepted_as_floats() -> None:
    built = build_config({**RTE, "finetune": {"epochs": 2, "snapshots": [1]}})
    assert built.finetune.epochs == 2.0 and isinstance(built.finetune.epochs, float)
    assert isinstance(built.finetune.snapshots[0], float)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("finetune.lr=0", "above 0"),
        ("finetune.lr=nan", "above 0"),
        ("finetune.epochs=-1", "at least 0"),
        ("finetune.epochs=inf", "at most 10,000"),
        ("train.lr=inf", "less than 3e+38"),
        ("train.batch_rows=0", "at least 1"),
        ("train.clip=0", "above 0"),
        ("data.hold_out=1", "less than 1"),
        ("data.hold_out=-0.1", "less than 1"),
        ("seed=-1", "at least 0"),
        ("seed=4294967296", "at most 4,294,967,295"),
        ("train.epochs=99999999999", "at most 10,000"),
        ("finetune.epochs=1e300", "at most 10,000"),
        ("search.population=99999999999999", "at most 10,000"),
        ("train.seeds=1000000000", "at most 10,000"),
        ("data.max_length=9000000000000000000", "at most 1,000,000"),
        ("encoder.layers=[-1, 5000]", "at most 1,000"),
        ("task.text=''", "is empty"),
        ("run=''", "is empty"),
    ],
)
def test_values_out_of_range_are_named(override: str, words: str) -> None:
    line = one_mistake(RTE, override)
    assert f"'{override.partition('=')[0]}'" in line and words in line


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["finetune.epochs=1", "finetune.snapshots=[1.5]"], "'finetune.snapshots' has 1.5"),
        (["finetune.snapshots=[-0.1]"], "'finetune.snapshots' has -0.1"),
        (["train.snapshots=[0.3]"], "'train.snapshots' has 0.3, which fine-tuning does not save"),
        (["train.batch_rows=4", "train.batch_tokens=400"], "not both"),
        (["data.max_length=4", "data.overlap=1"], "at least 8"),
        (["heads=[3]"], "each must be a name"),
        (["heads=[{size = 3}]"], "each must be a name"),
        (["encoder.layers=[]"], "'encoder.layers' is empty"),
        (["encoder.layers=[0, 3, 0, -1]"], "'encoder.layers' is [0, 3, 0, -1]: name each layer once"),
    ],
)
def test_settings_that_contradict_each_other_are_named(overrides: list[str], words: str) -> None:
    assert words in one_mistake(RTE, *overrides)


def test_the_overlap_must_be_smaller_than_a_window() -> None:
    words = ["data.max_length=64", "data.overlap=64"]
    assert "must be less than 'data.max_length'" in one_mistake(SPANS, *words)
    assert build_config(RTE, words).data.max_length == 64


def test_an_unknown_kind_is_reported_with_the_other_mistakes() -> None:
    found = mistakes({"task": {"name": "files", "kind": "spam", "data": "."}, "data": {"max_length": 64}, "seed": -1})
    assert any("task.kind" in line for line in found) and any("'seed'" in line for line in found)


def test_the_file_overrides_defaults_and_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text('heads = ["adapter"]\n[task]\nname = "rte"\n[train]\nlr = 3e-4\nepochs = 2\n')
    built = load_config(file, ["train.epochs=5", "encoder.name=bert-base-uncased", "seed = 7"])
    assert (built.train.lr, built.train.epochs, built.train.decay) == (3e-4, 5, 0.0)
    assert built.encoder.name == "bert-base-uncased" and built.seed == 7 and built.heads == ["adapter"]


def test_overrides_accept_lists_tables_text_and_none() -> None:
    words = ["finetune.snapshots=[0.5, 1]", 'heads=[{head = "adapter", size = 8}]', "finetune.clip=none", "run=a=b"]
    built = build_config(RTE, words)
    assert built.finetune.snapshots == [0.5, 1.0] and built.heads == [{"head": "adapter", "size": 8}]
    assert built.finetune.clip is None and built.run == "a=b"


@pytest.mark.parametrize("word", ["train.lr", "=3", "train.lr.x=3", "seed.x=3"])
def test_an_invalid_override_is_reported(word: str) -> None:
    assert mistakes({**RTE, "seed": 1}, word)


def test_the_given_tables_are_not_modified() -> None:
    tables = {"task": {"name": "rte"}, "train": {"lr": 0.1}}
    build_config(tables, ["train.lr=0.2", "data.hold_out=0.1"])
    assert tables == {"task": {"name": "rte"}, "train": {"lr": 0.1}}


@pytest.mark.parametrize(
    ("task", "lr", "rows", "head_epochs", "head_rows"),
    [
        # SPEC section 2 and 4: the recipe of 2021 for the encoder, of 2020 for heads.
        ("mnli", 1e-5, 32, 10, 64),
        ("qnli", 1e-5, 32, 10, 64),
        ("qqp", 1e-5, 32, 10, 64),
        ("sst2", 2e-5, 32, 10, 64),
        ("mrpc", 2e-5, 32, 10, 64),
        ("rte", 2e-5, 16, 10, 64),
        ("cola", 2e-5, 16, 10, 64),
        ("stsb", 2e-5, 16, 10, 64),
        ("squad2", 2e-5, 16, 1, 16),
        ("squad2_answerable", 2e-5, 16, 10, 64),
    ],
)
def test_recipes_fill_in_unset_values(task: str, lr: float, rows: int, head_epochs: int, head_rows: int) -> None:
    built = build_config({"task": {"name": task}})
    assert (built.finetune.lr, built.finetune.batch_rows) == (lr, rows)
    assert (built.train.epochs, built.train.batch_rows) == (head_epochs, head_rows)


TEXTS = ["linear", "linear_deviation", "mlp", "attentive"]
PAIRS = ["linear_cosines", "linear_towers", "mlp_towers", "linear"]
PAPERS = ["learned_pooling", "adapter"]
FIXTURES = Path(__file__).parents[1] / "fixtures"


def own(kind: str, folder: str, ends: str, **columns: str) -> dict[str, Any]:
    """A task on the user's own files."""
    files = {split: str(FIXTURES / folder / f"{split}{ends}") for split in ("train", "dev")}
    return {"name": "files", "kind": kind, **files, **columns}


@pytest.mark.parametrize(
    ("task", "epochs", "heads"),
    [
        ({"name": "cola"}, 0, TEXTS),
        ({"name": "rte"}, 0, PAIRS),
        ({"name": "stsb"}, 0, PAIRS),
        (own("label", "files_tiny", ".csv"), 0, TEXTS),
        (own("label", "files_tiny", ".csv", text_pair="label", label="text"), 0, PAIRS),
        ({"name": "squad2"}, 1, PAPERS),
        ({"name": "squad2_answerable"}, 1, PAPERS),
        (own("span", "squad_tiny", "-v2.0.json"), 1, PAPERS),
    ],
)
def test_a_config_without_heads_or_settings_gets_those_of_its_task(
    task: dict[str, Any], epochs: float, heads: list[str]
) -> None:
    built = build_config({"task": task})
    names = [entry if isinstance(entry, str) else entry["name"] for entry in built.heads]
    assert names == heads and built.finetune.epochs == epochs
    assert [one["name"] for one in built.ensembles] == ([] if heads == PAPERS else ["average"])


def test_whoever_sets_how_to_fine_tune_fine_tunes() -> None:
    assert build_config({"task": {"name": "rte"}}, ["finetune.lr=1e-4"]).finetune.epochs == 1
    assert build_config({"task": {"name": "rte"}, "finetune": {"snapshots": [0.3]}}).finetune.snapshots == [0.3]
    assert build_config({"task": {"name": "rte"}}, ["finetune.epochs=0", "finetune.lr=1e-4"]).finetune.epochs == 0


def test_the_average_is_left_out_where_heads_are_named_or_nothing_chooses() -> None:
    from bertvision.pipeline.job import find_mistakes

    assert build_config({"task": {"name": "rte"}, "heads": ["linear"]}).ensembles == []
    assert build_config({"task": {"name": "rte"}}, ["data.hold_out=0"], find_mistakes).ensembles == []
    given = [["encoder", "linear"]]
    assert build_config({"task": {"name": "rte"}, "ensembles": given}).ensembles == given


def test_the_settings_of_train_hold_for_the_heads_of_a_recipe_too() -> None:
    heads = {entry["name"]: entry for entry in build_config({"task": {"name": "cola"}}, ["train.lr=0.5"]).heads[2:]}
    assert "lr" not in heads["mlp"] and "lr" not in heads["attentive"] and heads["mlp"]["epochs"] == 20


@pytest.mark.parametrize(
    "entry",
    [
        {"best": 1, "members": ["last_linear", "linear"]}, {"best": 3, "members": ["last_linear", "linear"]},
        {"best": 3, "members": ["linear"]}, {"best": "x", "members": ["last_linear", "linear"]},
        {"best": 3, "members": 3}, {"members": [["a"]]}, {"best": True}, {"best": 2.5}, {"best": None}, {}, 3,
    ],
)  # fmt: skip
def test_an_ensemble_has_members_or_a_number_of_the_best(entry: Any) -> None:
    found: list[str] = []
    assert read_entry(entry, found) is None
    assert len(found) == 1 and "members" in found[0] and "best" in found[0]


def test_snapshots_without_fine_tuning_come_with_the_remedy() -> None:
    assert "set finetune.epochs" in mistakes(RTE, "train.snapshots=[1]")[0]


def test_recipes_are_not_shared_between_configs() -> None:
    build_config({"task": {"name": "cola"}}).heads[2]["lr"] = 7.0
    assert build_config({"task": {"name": "cola"}}).heads[2]["lr"] != 7.0


def test_recipes_do_not_override_given_values() -> None:
    built = build_config(
        SPANS, ["finetune.lr=1e-4", "finetune.batch_tokens=900", "train.epochs=3", "train.batch_rows=5"]
    )
    assert built.finetune.lr == 1e-4 and built.finetune.batch_rows is None
    assert (built.train.epochs, built.train.batch_rows) == (3, 5)


def test_layers_are_all_unless_some_are_named() -> None:
    assert build_config(RTE).encoder.layers is None
    assert build_config(RTE, ["encoder.layers=[0, 3, -1]"]).encoder.layers == [0, 3, -1]
    assert build_config({**RTE, "encoder": {"layers": [0]}}, ["encoder.layers=none"]).encoder.layers is None


def test_a_resolved_config_survives_json_and_a_run_folder(tmp_path: Path) -> None:
    built = build_config(SPANS, ["finetune.snapshots=[0.1, 0.5]", 'heads=["adapter", {head = "adapter", size = 8}]'])
    (tmp_path / "config.json").write_text(json.dumps(built.to_dict()))
    assert load_config(tmp_path) == built == load_config(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("name", "text"), [("a.toml", "x = ["), ("a.json", "{"), ("b.toml", "\xff"), ("b.json", "[]"), ("c.json", "3")]
)
def test_an_invalid_config_file_is_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=re.escape(name)):
        load_config(tmp_path / name)


def test_a_missing_file_is_reported_with_the_accepted_inputs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no config at .*TOML"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(UserError, match="config.json"):
        load_config(tmp_path)


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[task]\nname = "rte"\n', encoding="utf-8-sig")
    assert load_config(tmp_path / "a.toml").task.name == "rte"


def test_the_run_folder_is_named_after_task_and_encoder() -> None:
    assert build_config(RTE, ["encoder.name=org/some-bert"]).folder == Path("runs/rte_some-bert")
    assert build_config(RTE, ["run=there"]).folder == Path("there")


def test_every_setting_is_listed_with_its_help() -> None:
    rows = list(list_settings(RunConfig))
    sections = [field for field in dataclasses.fields(RunConfig)]
    assert len(rows) > 50 and {key.split(".")[0] for key, *_ in rows} == {field.name for field in sections}
    assert not [key for key, kind, _, help in rows if not help or not kind]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (f"seed={'9' * 401}", "at most 18 digits"),
        (f"finetune.lr={'9' * 400}", "at most 18 digits"),
        (f"seed={'9' * 5000}", "must be a whole number"),  # Python reads no such number, so it is a text
        (f"heads={'[' * 30}{']' * 30}", "nested more than 20 deep"),
        (f"{'a.' * 50_000}b=1", "nested more than 20 deep"),
        ('task.train="a\\u0000b"', "it has a null character"),
        ("run=a\0b", "it has a null character"),
        ("store.path=\udcff", "characters that are not Unicode"),
        (f"task.train={'x' * 5000}", "it is longer than 4,000 bytes"),
        (f"run={'x' * 300}", "a name in it is longer than 255 bytes"),
        (f"encoder.name={'é' * 200}", "a name in it is longer than 255 bytes"),
        (f"{'x' * 2000}=1", "can't be the name of a setting"),
    ],
    ids=lambda value: str(value)[:30].encode("ascii", "replace").decode().replace("\0", "?"),
)
def test_values_that_no_setting_can_have_are_refused_in_one_short_sentence(override: str, words: str) -> None:
    line = one_mistake(RTE, override)
    assert words in line and len(line) < 400


def test_settings_made_in_python_are_checked_like_those_of_a_file() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for tables in ({**RTE, "heads": endless}, {**RTE, "seed": 10**5000}, {**RTE, "run": "\ud800"}, {**RTE, 5: 1}):
        assert len(mistakes(tables)) == 1
    with pytest.raises(UserError, match="settings must be a dict of sections"):
        build_config(5)  # type: ignore[arg-type]


def test_a_mistake_with_a_value_shows_only_its_beginning() -> None:
    line = one_mistake(RTE, f"finetune.epochs={'a' * 100_000}")
    assert line.startswith("'finetune.epochs' must be a number, not 'aaaa") and len(line) < 200


def test_snapshots_that_would_share_a_folder_are_refused() -> None:
    found = one_mistake({**RTE, "finetune": {"epochs": 1, "snapshots": [0.1234567, 0.1234568]}})
    assert "saved as epoch_0.123457" in found


def test_a_list_has_a_bound() -> None:
    found = one_mistake({**RTE, "finetune": {"epochs": 2.0, "snapshots": [1.0] * 1001}})
    assert found == "'finetune.snapshots' has 1,001 entries, but can have at most 1,000."
