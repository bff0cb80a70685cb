"""The published experiments: complete, pinned, and with the published settings, sizes and scores."""

from typing import Any

import pytest
import torch
from two_steps import save_wide_encoder, take_two_steps

from bertvision.config import RunConfig, build_config
from bertvision.encoder.states import StateShape
from bertvision.errors import UserError
from bertvision.heads import MemberConfig, Target, build_head, count_parameters, setting_types
from bertvision.kinds import LABEL, SPAN
from bertvision.papers.fragments import follow_rate, merge, settings_of
from bertvision.papers.published import PaperRun, find_paper, list_papers, load_papers
from bertvision.pipeline.job import find_mistakes
from bertvision.pipeline.members import build_members
from bertvision.tasks.config import target_kind

PAPERS = load_papers()
RUNS = {f"{paper.name}/{run.name}": run for paper in PAPERS.values() for run in paper.runs}
GLUE_2021 = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
TENTHS = [tenth / 10 for tenth in range(1, 10)]
# As last published, by task: learning rate, batch, length.
LAST = {
    "cola": (2e-5, 16, 128), "sst2": (2e-5, 32, 128), "mrpc": (2e-5, 32, 128), "stsb": (2e-5, 16, 128),
    "qqp": (1e-5, 32, 128), "mnli": (1e-5, 32, 128), "qnli": (1e-5, 32, 128), "rte": (2e-5, 16, 250),
}  # fmt: skip
# The commands that are printed for its heads, for BERT-base and BERT-large: learning rate, batch, width if it is given.
COMMANDS = {
    "qqp": [(1e-5, 32, None), (1e-5, 32, None)],
    "qnli": [(2.0021e-5, 32, None), (1e-5, 32, None)],
    "mnli": [(1e-5, 32, None), (1e-5, 32, None)],
    "rte": [(0.0003593259178474023, 16, 8), (1.2614e-5, 16, None)],
    "sst2": [(0.0009739884755578448, 64, 32), (2e-5, 32, None)],
    "mrpc": [(0.0007591458513071305, 16, 16), (1.4399e-5, 32, None)],
    "cola": [(2.25972e-5, 16, None), (2.99619e-5, 16, None)],
    "stsb": [(2.7762e-5, 16, None), (2.98363e-5, 16, None)],
}
PINNED = {
    "data": {"max_length", "overlap", "hold_out"},
    "finetune": {"epochs", "method", "lora_rank", "lora_alpha", "lr", "schedule", "warmup", "decay", "clip", "read"},
    "train": {"snapshots", "lr", "epochs", "seeds", "schedule", "warmup", "decay", "clip", "shuffle"},
    "evaluate": {"n_best", "max_answer_tokens"},
}
# Parameters of the 2020 heads with BERT-large: spans, then answerability; the control is first.
COUNTS_SPAN = [
    2_050, 2_076, 2_050, 68_802, 70_850, 1_643_202, 1_645_250, 414_952, 417_000, 9_910_552, 9_912_600, 398_498, 811_400,
]  # fmt: skip
COUNTS_ANSWERABLE = [2_050, 2_077, 398_499, 398_472, 20_716_634, 267_010, 269_058]
# The heads after those: only their percentage of BERT-large is known. The less-data curve of one of them comes last.
SHARES_SPAN = ["0.099", "0.121", "0.099", "0.093", "0.093", "0.207", "0.332", "1.994", "1.970"]


def config_of(run: PaperRun) -> RunConfig:
    return build_config(run.settings | {"encoder": {"name": "bert-base-uncased"}}, (), find_mistakes)


def members_of(config: RunConfig) -> list[MemberConfig]:
    kind = target_kind(config.task)
    assert kind is not None
    return build_members(config.heads, config.train, config.seed, kind)


def test_no_experiment_and_no_run_is_overlooked() -> None:
    assert {name: len(paper.runs) for name, paper in PAPERS.items()} == {
        "2020-spans": 1, "2020-answerability": 1, "2021-squad": 3, "2021-glue": 24,
    }  # fmt: skip
    assert {run.name for run in PAPERS["2021-glue"].runs} == {
        f"{which}_{task}" for which in ("first", "last", "last_large") for task in GLUE_2021
    }
    with pytest.raises(UserError, match="did you mean '2020-spans'"):
        find_paper("2020-span")


def test_the_list_has_what_each_experiment_needs() -> None:
    rows = [tuple(row[:4]) for row in list_papers().rows]
    assert rows == [
        ("2020-spans", "SQuAD 2.0", "BERT-large", 1), ("2020-answerability", "SQuAD 2.0", "BERT-large", 1),
        ("2021-squad", "SQuAD 2.0", "BERT-base", 2), ("", "", "BERT-large", 1),
        ("2021-glue", "GLUE", "BERT-base", 16), ("", "", "BERT-large", 8),
    ]  # fmt: skip
    assert {run.examples for name in ("2020-spans", "2021-squad") for run in PAPERS[name].runs} == {130_319}


def test_an_encoder_of_another_size_gets_the_tables_of_bert_base() -> None:
    for hidden, size in ((768, "base"), (384, "base"), (1024, "large")):
        runs, tables = PAPERS["2021-squad"].of_size(hidden)
        assert {run.size for run in runs} == {size} == {table.size for table in tables}
    assert PAPERS["2020-spans"].of_size(384) == (PAPERS["2020-spans"].runs, PAPERS["2020-spans"].tables)
    runs, tables = PAPERS["2021-glue"].of_size(1024)
    assert [run.name for run in runs] == [f"last_large_{task}" for task in GLUE_2021] and len(tables) == 1


@pytest.mark.parametrize("name", RUNS)
def test_a_run_leaves_nothing_that_matters_to_the_defaults(name: str) -> None:
    settings, config = RUNS[name].settings, config_of(RUNS[name])
    assert set(settings["task"]) == {"name"} and settings["seed"] == 0
    for section, keys in PINNED.items():
        assert keys <= set(settings[section])
    assert all(len({"batch_rows", "batch_tokens"} & set(settings[section])) == 1 for section in ("finetune", "train"))
    assert settings["finetune"]["read"] == "cls"
    assert settings["task"]["name"] == "squad2" or settings["finetune"]["output_lr"] == settings["finetune"]["lr"]
    for member in members_of(config) if settings["task"]["name"] != "squad2" else []:
        assert "read" in member.settings or "read" not in setting_types(member.head)


@pytest.mark.parametrize("paper", PAPERS.values(), ids=[*PAPERS])
def test_every_published_row_names_a_model_and_metrics_of_its_run(paper: Any) -> None:
    known = {}
    for run in paper.runs:
        config = config_of(run)
        ensembles = [f"max_{'_'.join(entry)}" for entry in config.ensembles]
        names = {member.group for member in members_of(config)} | {"encoder", *ensembles}
        snapshots = {*config.finetune.snapshots, config.finetune.epochs}
        known[run.name] = names, snapshots, set(config.train.snapshots or []), config.task.name
    lines = [line for table in paper.tables for line in table.lines]
    assert lines
    for line in lines:
        names, snapshots, with_heads, task = known[line.run]
        assert line.model in names and line.epochs in (snapshots if line.model == "encoder" else with_heads)
        assert all(0 < score < 100 for score in line.scores)
        assert (line.split is not None) == (task == "mnli")


def test_scores_are_those_of_the_papers() -> None:
    """A few of each table, in the papers' own notation."""
    spans = {(line.name, line.epochs): line.scores for table in PAPERS["2020-spans"].tables for line in table.lines}
    assert spans["BERT", 0.3] == pytest.approx((100 * 0.654, 100 * 0.702))
    assert spans["adapter 386 shared, skip", 0.3] == pytest.approx((100 * 0.699, 100 * 0.740))
    assert spans["adapter 386 shared", 1] == pytest.approx((100 * 0.749, 100 * 0.790))
    assert spans["with adapter 386", 1] == pytest.approx((100 * 0.756, 100 * 0.798))
    assert spans["10 %", 1] == pytest.approx((100 * 0.716, 100 * 0.765)) and len(spans) == 16 + 44 + 6 + 10
    glue = {
        (table.title[:4], table.size, line.task, line.name): line.scores
        for table in PAPERS["2021-glue"].tables
        for line in table.lines
    }
    assert glue["Last", "large", "CoLA", "head, width 128"] == pytest.approx((43.2,))
    assert glue["Last", "base", "STS-B", "head, width 128"] == pytest.approx((86.2, 85.9))
    assert glue["Firs", "base", "STS-B", "head"] == pytest.approx((85.7, 85.7)) and len(glue) == 18 + 18 + 18


# ---------------------------------------------------------------------- published settings


@pytest.mark.parametrize("task", GLUE_2021)
def test_glue_follows_the_settings_first_published(task: str) -> None:
    first = RUNS[f"2021-glue/first_{task}"].settings
    rate = 3e-5 if task == "mrpc" else 1e-5
    for section in ("finetune", "train"):
        own = first[section]
        assert (own["epochs"], own["lr"], own["batch_rows"], own["decay"]) == (1, rate, 16, 1.0)
    assert first["data"]["max_length"] == 128 and first["heads"][1] == "flat_adapter_128"


@pytest.mark.parametrize("size", ["base", "large"])
@pytest.mark.parametrize("task", GLUE_2021)
def test_the_last_heads_of_glue_have_the_rate_batch_and_width_of_their_command(task: str, size: str) -> None:
    run = RUNS[f"2021-glue/last_{'large_' if size == 'large' else ''}{task}"]
    finetune, train, length = run.settings["finetune"], run.settings["train"], run.settings["data"]["max_length"]
    assert (run.size, finetune["lr"], finetune["batch_rows"], length) == (size, *LAST[task])
    for section in (finetune, train):
        assert (section["epochs"], section["decay"], section["warmup"]) == (1, 0.01, 0.1)
        assert section["schedule"] == "linear"
    rate, batch, width = COMMANDS[task][size == "large"]
    assert (train["lr"], train["batch_rows"]) == (rate, batch)
    (head,) = [one for one in members_of(config_of(run)) if one.head == "flat_adapter"]
    assert head.settings == {"tokens": length, "size": width or length} and head.lr == rate


@pytest.mark.parametrize(("name", "batch", "decay"), [("first", 16, 1.0), ("last", 16, 0.01), ("last_large", 8, 0.01)])
def test_the_squad_rows_of_2021_follow_the_published_settings(name: str, batch: int, decay: float) -> None:
    settings = RUNS[f"2021-squad/{name}"].settings
    finetune, train = settings["finetune"], settings["train"]
    assert (finetune["lr"], finetune["batch_rows"], finetune["decay"], finetune["epochs"]) == (2e-5, batch, decay, 1)
    assert settings["data"]["max_length"] == 384 and (train["epochs"], train["batch_rows"]) == (1, batch)
    assert (train["lr"], train["decay"], train["schedule"], train["warmup"]) == (2e-5, decay, "linear", 0.1)
    member = members_of(config_of(RUNS[f"2021-squad/{name}"]))[1]
    assert (member.name, member.lr) == ("adapter_384", 2e-5)
    with torch.device("meta"):
        sizes = [build_head(member, StateShape(*shape, True), Target(SPAN)) for shape in ((13, 768), (25, 1024))]
    assert [count_parameters(head) for head in sizes] == [305_282, 412_802]


@pytest.mark.parametrize(
    ("name", "head_snapshots", "head_rows", "head_epochs"),
    [("2020-spans/spans", [0.3, 1, 2], 16, 1), ("2020-answerability/answerability", [0.2, 1, 3], 64, 10)],
)
def test_2020_follows_the_published_recipe(
    name: str, head_snapshots: list[float], head_rows: int, head_epochs: int
) -> None:
    settings = RUNS[name].settings
    finetune, train = settings["finetune"], settings["train"]
    assert (finetune["lr"], finetune["schedule"], finetune["batch_rows"]) == (1e-5, "constant", 4)
    assert (finetune["warmup"], finetune["decay"]) == (0, 0)  # AdamW without decay is Adam
    assert finetune["epochs"] == 6 and finetune["snapshots"] == [0, *TENTHS, 1, 2, 3, 4, 5, 6]
    assert (settings["data"]["max_length"], settings["data"]["overlap"]) == (386, 128)
    assert train["snapshots"] == head_snapshots
    assert (train["lr"], train["schedule"], train["warmup"], train["decay"]) == (1e-3, "constant", 0, 0)
    assert (train["batch_rows"], train["epochs"]) == (head_rows, head_epochs)


@pytest.mark.parametrize(
    ("name", "target", "counts"),
    [
        ("2020-spans/spans", Target(SPAN), COUNTS_SPAN),
        ("2020-answerability/answerability", Target(LABEL, 2), COUNTS_ANSWERABLE),
    ],
)
def test_2020_heads_have_the_published_parameter_counts(name: str, target: Target, counts: list[int]) -> None:
    members = members_of(config_of(RUNS[name]))
    with torch.device("meta"):
        heads = [build_head(member, StateShape(25, 1024, True), target) for member in members]
    found = [count_parameters(head) for head in heads]
    assert found[: len(counts)] == counts
    rest = found[len(counts) :]
    if target.kind is SPAN:
        assert [f"{100 * parameters / 335_143_938:.3f}" for parameters in rest[:9]] == SHARES_SPAN
        fractions = [member.data_fraction for member in members[-9:]]
        assert rest[9:] == [417_000] * 9 and fractions == TENTHS
    else:
        assert not rest


# ---------------------------------------------------------------------- they run

SOME = ("2021-squad/last_large", "2021-glue/last_large_rte", "2021-glue/last_rte", "2021-glue/first_stsb")


@pytest.fixture(scope="module")
def wide_encoder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return save_wide_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.mark.parametrize(
    "name", [name if name in SOME else pytest.param(name, marks=pytest.mark.slow) for name in RUNS]
)
def test_two_steps_of_a_run_give_scores_of_every_model(name: str, wide_encoder: Any, tmp_path: Any) -> None:
    take_two_steps(RUNS[name].settings, wide_encoder, tmp_path)


# ---------------------------------------------------------------------- fragments


def test_merging_goes_into_tables_and_replaces_lists() -> None:
    below = {"train": {"lr": 1, "epochs": 2}, "heads": ["a", "b"], "seed": 0}
    above = {"train": {"lr": 3}, "heads": ["c"]}
    assert merge(below, above) == {"train": {"lr": 3, "epochs": 2}, "heads": ["c"], "seed": 0}
    assert below["train"] == {"lr": 1, "epochs": 2}


def test_bases_come_first_then_the_grid_then_the_entry_itself() -> None:
    file = {
        "bases": {"deep": {"seed": 1, "run": "a"}, "top": {"base": ["deep"], "seed": 2}},
        "grids": {"size": {"big": {"seed": 3, "train": {"lr": 1}}}},
    }
    entry = {"name": "{size}", "base": ["top"], "grid": {"size": ["big"]}, "heads": ["adapter"], "train": {"epochs": 4}}
    found = settings_of(entry, {"size": "big"}, file)
    assert found == {"seed": 3, "run": "a", "train": {"lr": 1, "epochs": 4}, "heads": ["adapter"]}


def test_the_rate_of_the_output_layer_follows_the_encoders_unless_it_is_given() -> None:
    words = follow_rate(["finetune.lr=1e-4", "seed=1"])
    assert words == ["finetune.output_lr=1e-4", "finetune.lr=1e-4", "seed=1"]
    own = follow_rate(["finetune.lr=1e-4", "finetune.output_lr=5e-4"])
    assert own.index("finetune.output_lr=1e-4") < own.index("finetune.output_lr=5e-4")  # the last one counts
