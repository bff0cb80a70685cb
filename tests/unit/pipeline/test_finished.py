"""Reading a finished run, including old folders, and the rule for its best model."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from best_cases import CASES, ENSEMBLE, FITTED, BestCase
from sealed import edit_json
from tiny_reports import TinyRun, build_tiny_run, label_results

from bertvision.disk import mark_done, read_json, write_json, write_sealed
from bertvision.errors import UserError
from bertvision.kinds import SPAN
from bertvision.kits import make
from bertvision.pipeline import predict
from bertvision.pipeline.finished import EnsembleMember, FinishedRun, best_by_mean, build_entry, rank_by_mean
from bertvision.pipeline.folder import HELD_OUT
from bertvision.report.build import make_report
from bertvision.report.cards import build_card
from bertvision.report.certainty import Certainty
from bertvision.report.summary import _passed_over, build_summary

RESULTS = label_results([0, 1] * 10, [0.4, 0.6] * 10)


def write_case(folder: Path, case: BestCase) -> FinishedRun:
    """A run on an untouched encoder with the models of a case."""
    run, place = TinyRun(folder), HELD_OUT if case.held_out else "dev"
    for name, figure in case.figures.items():
        group, _, seed = name.partition("_seed")
        facts: dict[str, Any] = {"group": group, "seed": int(seed or 0)}
        if group == "last_linear":
            facts["head"] = "last_linear"
        if group == "half":
            facts["data_fraction"] = 0.5
        if group in (ENSEMBLE, FITTED):
            voices = [{"run": None, "epochs": 0.0, "name": one} for one in ("encoder", f"pooled_seed{seed}")]
            facts |= {"ensemble": ["encoder", "pooled"], "voices": voices, "head": None}
            facts["method"] = "fitted" if group == FITTED else "max"
        if name in case.stopped:
            run.add(name, 0.0, failed=True, **facts)
        else:
            run.add(name, 0.0, results=RESULTS, scores={place: {"accuracy": figure, "total": 20}}, **facts)
    return run.write(finetune={"lr": 1e-4}, encoder={"name": "tiny"})


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_everything_that_names_the_best_names_the_same(case: BestCase, tmp_path: Path) -> None:
    run = write_case(tmp_path, case)
    model, why = predict.choose_model(run, None, None)
    assert model.name == case.best and why == run.reason
    assert make._choose(run, None).name == case.head
    said = " ".join(build_summary(Certainty(run, 0.0, "dev")))
    assert case.summary in said and f"By default, predict uses {model.title}: {why}." in said
    for other in run.models():
        if other.role in ("control", "head") and not other.failed:
            used = "this model" if other.name == model.name else model.title
            assert f"`bertvision predict` uses {used}" in build_card(run, other)


def test_the_best_of_a_role_follows_the_same_rule(tmp_path: Path) -> None:
    run = write_case(tmp_path, CASES["a fitted ensemble is highest"])
    for role, name in (("head", "pooled"), ("ensemble", ENSEMBLE), ("control", "last_linear"), ("encoder", "encoder")):
        best = run.best(0.0, role)
        assert best is not None and best.name == name
    assert run.best_head(0.0) == run.best(0.0, "head")


def test_a_fitted_ensemble_is_best_only_if_there_is_no_other(tmp_path: Path) -> None:
    figures = {name: value for name, value in CASES["a head is best"].figures.items() if ENSEMBLE not in name}
    run = write_case(tmp_path, BestCase(figures, "", "", ""))
    best = run.best(0.0, "ensemble")
    assert best is not None and best.name == FITTED


def test_an_ensemble_of_several_encoders_is_not_used_as_one_model(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    run.add("encoder", scores={HELD_OUT: {"accuracy": 50.0}})
    voices = [{"run": "/elsewhere", "epochs": 1.0, "name": "encoder"}, {"run": None, "epochs": 1.0, "name": "encoder"}]
    own = {"ensemble": ["encoder", "/elsewhere:encoder"], "voices": voices, "method": "max"}
    run.add("far", scores={HELD_OUT: {"accuracy": 90.0}}, **own)
    finished = run.write()
    best = finished.best_model(1.0)
    assert best is not None and best.name == "encoder"
    (far,) = finished.groups(1.0, "ensemble")
    assert not far.is_local and finished.best(1.0, "ensemble") == far, "a table may name it if it is the only one"


def test_spans_are_ranked_at_the_threshold_used_for_predictions(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, SPAN)
    for name, exact, f1 in (("encoder", 70.0, 71.0), ("adapter_64", 60.0, 75.0)):
        run.add(name, scores={HELD_OUT: {"f1": 0.0, "at_threshold": {"exact": exact, "f1": f1}}})
    best = run.write().best_model(1.0)
    assert best is not None and best.name == "adapter_64"


def test_the_highest_mean_comes_first_and_ties_keep_their_order() -> None:
    figures = {"a": [1.0, 3.0], "none": [], "b": [2.0], "c": [2.5]}
    assert rank_by_mean(figures) == ["c", "a", "b"]
    assert best_by_mean(figures) == "c" and best_by_mean({"none": []}) is None
    assert best_by_mean({"first": [1.0], "second": [1.0]}) == "first"


# ---------------------------------------------------------------------- reading


def test_missing_fields_of_an_old_run_are_none() -> None:
    old = build_entry("adapter_64", 1.0, {"parameters": 7, "scores": {"dev": {"accuracy": 1.0}}})
    assert (old.group, old.data_fraction, old.failed, old.members) == ("adapter_64", 1.0, False, ())
    assert old.seconds is None and old.trained_epochs is None and old.role == "head" and old.is_local
    voices = [{"run": None, "epochs": 1, "name": "encoder"}, {"run": "there", "epochs": 2, "name": "adapter_64"}]
    found = build_entry("both", 1.0, {"ensemble": ["encoder", "there:adapter_64"], "voices": voices, "weights": [1, 2]})
    assert found.members[1] == EnsembleMember("there", 2.0, "adapter_64")
    assert found.role == "ensemble" and not found.is_local and found.weights == (1, 2)


def first_encoder(scores: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = scores["snapshots"]["1"]["encoder"]
    return found


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda scores: scores.pop("snapshots"), "missing required field `snapshots`"),
        (lambda scores: scores.update(kind="grade"), "there is no kind of target 'grade'"),
        (lambda scores: scores.update(metrics=["speed"]), "a label has no metric 'speed'"),
        (lambda scores: scores["snapshots"].update({"1e999": {}}), "regex"),
        (lambda scores: first_encoder(scores).update(parameters="many"), "expected `int | null`, got `str`"),
        (lambda scores: first_encoder(scores).update(scores={"dev": {"accuracy": "high"}}), "got `str`"),
        (lambda scores: first_encoder(scores).update(epochs=10**9), "expected `int` <= 1000000"),
        (lambda scores: first_encoder(scores).update(voices=[{"run": None}]), "missing required field `epochs`"),
    ],
)
def test_changed_scores_are_one_sentence(change: Callable[[Any], Any], says: str, tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    run.add("encoder", scores={"dev": {"accuracy": 50.0}})
    scores = read_json(run.write().folder.path / "scores.json")
    change(scores)
    write_json(tmp_path / "scores.json", scores)
    with pytest.raises(UserError, match=re.escape(says)) as caught:
        FinishedRun(tmp_path)
    assert "scores.json is damaged" in str(caught.value)


def test_a_snapshot_without_the_encoder_is_one_sentence(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    run.add("adapter_64", scores={"dev": {"accuracy": 50.0}})
    with pytest.raises(UserError, match="there is no encoder at 1 epoch"):
        run.write().encoder(1.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"label": "no"}', "probabilities"),
        ('{"label": 1, "probabilities": {"no": 0.5}}', "label: expected `str`"),
        ('{"label": "no", "probabilities": {}}', "probabilities"),
        ("", "it has no line 1"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_predictions_of_another_form_are_one_sentence(text: str, says: str, tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    run.add("encoder", results=label_results([0], [0.2]))
    model = run.write().models(1.0)[1]
    (model.predictions("dev") / "predictions.jsonl").write_text(text + "\n" if text else "")
    with pytest.raises(UserError, match=says) as caught:
        model.said("dev", {0})
    assert "predictions.jsonl is damaged" in str(caught.value)


@pytest.mark.parametrize("missing", ["scores", "task", "config"])
def test_an_unfinished_run_folder_is_refused(missing: str, tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    run.add("encoder", scores={"dev": {"accuracy": 50.0}})
    run.write()
    (tmp_path / f"{missing}.json").unlink()
    with pytest.raises(UserError, match=rf"is not a finished run or model: it has no {missing}\.json"):
        predict.Predictor(tmp_path)


@pytest.mark.parametrize(
    ("task", "settings", "pairs"),
    [
        ({"name": "rte", "windowed": False}, {"name": "rte"}, True),
        ({"name": "sst2", "windowed": False}, {"name": "sst2"}, False),
        ({"name": "squad2", "windowed": True}, {"name": "squad2"}, True),
        ({"name": "files", "windowed": False}, {"name": "files", "text_pair": "second"}, True),
        ({"name": "files", "windowed": False}, {"name": "files"}, False),
    ],
    ids=str,
)
def test_old_folders_derive_takes_pairs_from_their_task(
    task: dict[str, Any], settings: dict[str, Any], pairs: bool, tmp_path: Path
) -> None:
    run = TinyRun(tmp_path)
    run.add("encoder", scores={"dev": {"accuracy": 50.0}})
    run.write(task=settings)
    described = {key: value for key, value in read_json(tmp_path / "task.json").items() if key != "takes_pairs"}
    write_json(tmp_path / "task.json", {**described, **task})
    assert FinishedRun(tmp_path).task.takes_pairs is pairs
    write_json(tmp_path / "task.json", {**described, **task, "takes_pairs": not pairs})
    assert FinishedRun(tmp_path).task.takes_pairs is not pairs, "the recorded value takes precedence"


def test_a_name_selects_a_model_or_its_best_seed(tmp_path: Path) -> None:
    run = write_case(tmp_path, CASES["a seed was stopped"])
    assert run.find("wide", 0.0).name == "wide_seed0" and run.find("pooled_seed0", 0.0).name == "pooled_seed0"
    with pytest.raises(UserError, match="no model 'wide_seed1' at 0 epochs"):
        run.find("wide_seed1", 0.0)
    assert json.loads((tmp_path / "scores.json").read_text())["snapshots"]["0"]["wide_seed1"]["failed"]


def test_snapshots_are_rounded_to_six_digits_like_their_folders() -> None:
    third = {"baseline": {"scores": {"dev": {"accuracy": 50.0}}}, "encoder": {"scores": {"dev": {"accuracy": 60.0}}}}
    voices = [{"run": None, "epochs": 0.3333333, "name": "encoder"}]
    both = {"scores": {"dev": {"accuracy": 61.0}}, "ensemble": ["encoder"], "voices": voices, "method": "max"}
    kept = {"task": "rte", "kind": "label", "metrics": ["accuracy"], "snapshots": {"0.333333": {**third, "both": both}}}
    run = FinishedRun("nowhere", kept)
    assert [model.name for model in run.models(0.3333333)] == ["baseline", "encoder", "both"]
    assert all(model.is_local for model in run.models()), "members recorded with all their digits are found"


def run_of(**models: Any) -> FinishedRun:
    """A run at one snapshot whose models have these entries."""
    scores = {"task": "rte", "kind": "label", "metrics": ["accuracy"], "snapshots": {"1": models}}
    return FinishedRun("nowhere", scores)


def entry(figure: float, **more: Any) -> dict[str, Any]:
    return {"scores": {"held_out": {"accuracy": figure}, "dev": {"accuracy": 1.0}}, **more}


def test_nan_and_infinity_are_never_best() -> None:
    for first, second in ((math.nan, 70.0), (70.0, math.nan)):
        run = run_of(baseline=entry(0.0), encoder=entry(60.0), h=entry(first, head="h"), g=entry(second, head="g"))
        best = run.best_model(1.0)
        assert best is not None and best.scores("held_out")["accuracy"] == 70.0


def test_an_ensemble_with_heads_trained_on_a_fraction_of_the_data_is_not_chosen() -> None:
    voices = [{"run": None, "epochs": 1.0, "name": "half"}, {"run": None, "epochs": 1.0, "name": "encoder"}]
    together = entry(90.0, ensemble=["half", "encoder"], voices=voices, method="max")
    half = entry(80.0, head="adapter", data_fraction=0.5)
    run = run_of(baseline=entry(0.0), encoder=entry(60.0), half=half, together=together)
    best = run.best_model(1.0)
    assert best is not None and best.name == "encoder"
    assert _passed_over(run, 1.0, run.encoder(1.0)) == (
        "Higher there, but not chosen: half (trained on 50 % of the data) and together (a member was trained on "
        "part of the data)."
    )


@pytest.mark.parametrize("snapshots", [{}, {"1": {"encoder": {"scores": {}}}}])
def test_scores_without_models_are_refused(snapshots: dict[str, Any]) -> None:
    run = FinishedRun("nowhere", {"task": "rte", "kind": "label", "metrics": ["accuracy"], "snapshots": snapshots})
    for ask in (lambda: run.splits, lambda: run.last):
        with pytest.raises(UserError, match="score the run again"):
            ask()


@pytest.mark.parametrize(("form", "best"), [("linear", "last_linear"), ("checkpoint", "encoder"), (None, "encoder")])
def test_an_output_layer_that_never_learned_is_never_the_best(form: str | None, best: str, tmp_path: Path) -> None:
    """An untouched encoder has a random one, unless its checkpoint brings its own. Here all models are equal."""
    run = TinyRun(tmp_path)
    for name in ("encoder", "last_linear", "linear"):
        facts = {"group": name, "seed": 0, **({"head": name} if name != "encoder" else {})}
        run.add(name, 0.0, results=RESULTS, scores={HELD_OUT: {"accuracy": 80.0, "total": 20}}, **facts)
    found = run.write(finetune={"lr": 1e-4}, encoder={"name": "tiny"})
    if form is not None:
        found.folder.encoder(0.0).mkdir(parents=True, exist_ok=True)
        write_json(found.folder.encoder(0.0) / "output_layer.json", {"form": form, "kind": "label"})
    model = FinishedRun(tmp_path).best_model(0.0)
    assert model is not None and model.name == best


# ---------------------------------------------------------------------- a stranger's run, and damage


@pytest.mark.parametrize("name", ["../../../../evil", "..", "/evil", "a/b", "a\\b", ".hidden", "", "x" * 201])
def test_a_model_or_split_whose_name_is_a_path_is_refused(tmp_path: Path, name: str) -> None:
    run = build_tiny_run(tmp_path / "box" / "run")
    whole = read_json(run.folder.path / "scores.json")
    for what in ("model", "split"):
        scores = json.loads(json.dumps(whole))
        models = scores["snapshots"]["1"]
        holder = models if what == "model" else models["encoder"]["scores"]
        holder[name] = holder["learned_pooling" if what == "model" else "dev"]
        write_sealed(run.folder.path / "scores.json", scores)
        reason = f"a {what}'s name in .*scores\\.json can't be the name of a folder" if name else "is damaged"
        with pytest.raises(UserError, match=reason):
            FinishedRun(run.folder.path).models()


def test_a_report_on_a_hostile_run_changes_nothing_outside(tmp_path: Path) -> None:
    run = build_tiny_run(tmp_path / "box" / "run").folder.path
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "README.md").write_text("mine")
    edit_json(
        run / "scores.json",
        lambda scores: scores["snapshots"]["1"].update({"../../../../../evil": scores["snapshots"]["1"]["adapter_64"]}),
    )
    for folder in ("report", "analyses"):
        (tmp_path / folder).mkdir()
    with pytest.raises(UserError, match="can't be the name of a folder"):
        make_report([run], with_encoder=False)
    edit_json(run / "scores.json", lambda scores: scores["snapshots"]["1"].pop("../../../../../evil") and None)
    (run / "report").symlink_to(tmp_path / "report")
    with pytest.raises(UserError, match="leads out of"):
        make_report([run], with_encoder=False)
    assert (tmp_path / "evil" / "README.md").read_text() == "mine"
    assert not any((tmp_path / "report").iterdir()) and not any((tmp_path / "analyses").iterdir())


def test_damaged_predictions_are_refused(tmp_path: Path) -> None:
    run = build_tiny_run(tmp_path)
    model = run.find("adapter_64", 1.0)
    path = model.predictions("dev") / "predictions.jsonl"
    mark_done(path.parent, "stamp")
    assert set(model.said("dev", {0, 2})) == {0, 2}
    path.write_bytes(path.read_bytes().replace(b"0", b"1", 1))
    with pytest.raises(UserError, match=r"predictions\.jsonl is damaged \(its checksum is wrong\)"):
        model.said("dev", {0, 2})


def test_damaged_lines_of_the_log_are_left_out_and_counted(tmp_path: Path) -> None:
    run = FinishedRun(tmp_path, {})
    for number in range(4):
        run.folder.log("scores", number=number)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"number": 2', b'"number": 7') + b'{"time": 1, "eve')
    found = FinishedRun(tmp_path, {})
    assert len(found.log.lines) == 3 and found.log.lost == 2


def test_a_log_behind_a_link_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "profile").write_text("mine\n")
    (tmp_path / "run" / "metrics.jsonl").symlink_to(tmp_path / "profile")
    with pytest.raises(UserError, match="leads out of"):
        FinishedRun(tmp_path / "run", {}).folder.log("scores")
    assert (tmp_path / "profile").read_text() == "mine\n"
