"""Published scores beside measured ones: the right models, metrics, snapshots and differences."""

from pathlib import Path

import pytest
from tiny_reports import TinyRun

from bertvision.kinds import LABEL, SCORE, SPAN
from bertvision.papers.beside import build_report, build_table, describe, measure
from bertvision.papers.published import Line, PaperTable
from bertvision.pipeline.finished import FinishedRun


def line(name: str, model: str, epochs: float, scores: tuple[float, ...], **more: object) -> Line:
    given = {"task": "", "run": "spans", "split": None, "figures": ("exact", "f1"), **more}
    return Line(name=name, model=model, epochs=epochs, scores=scores, **given)  # type: ignore[arg-type]


@pytest.fixture
def spans(tmp_path: Path) -> FinishedRun:
    run = TinyRun(tmp_path / "spans", SPAN, baseline={"exact": 50.0, "f1": 51.0})
    for epochs, exact in ((0.3, 60.0), (1.0, 70.0)):
        run.add("encoder", epochs, scores=spans_at(exact))
        run.add("last_linear", epochs, scores=spans_at(exact + 1))
        run.add("adapter_386", epochs, scores=spans_at(exact + 4))
    return run.write()


def spans_at(exact: float) -> dict[str, dict[str, object]]:
    own = {"exact": exact, "f1": exact + 2, "total": 100}
    return {"dev": {**own, "at_threshold": {"exact": exact + 5, "f1": exact + 7}}, "held_out": {**own, "threshold": 0}}


def test_ours_stands_beside_published_with_baseline_encoder_and_control(spans: FinishedRun) -> None:
    table = PaperTable(
        "Heads", [line("AP", "adapter_386", 1.0, (74.9, 79.0)), line("AP", "adapter_386", 0.3, ())], None
    )
    shown = build_table(table, measure(table, {"spans": spans})).records()
    names = [(row["model"], row["epochs"]) for row in shown]
    control = "control"
    assert names == [
        ("baseline", None), ("AP", 1.0), ("AP", 0.3), ("BERT", 0.3), (control, 0.3), ("BERT", 1.0), (control, 1.0),
    ]  # fmt: skip
    ours = shown[1]
    assert (ours["EM paper"], ours["EM ours"], ours["F1 paper"], ours["F1 ours"]) == (74.9, 74.0, 79.0, 76.0)
    assert ours["EM diff"] == pytest.approx(-0.9) and ours["F1 diff"] == pytest.approx(-3.0)
    assert (ours["EM*"], ours["F1*"]) == (79.0, 81.0)
    assert shown[2]["EM paper"] is None and shown[2]["EM ours"] == 64.0 and shown[2]["EM diff"] is None
    assert (shown[0]["EM ours"], shown[0]["F1 ours"], shown[0]["F1*"]) == (50.0, 51.0, None)
    assert [row["EM ours"] for row in shown[3:]] == [60.0, 61.0, 70.0, 71.0]


def test_a_model_that_the_run_lacks_has_no_score(spans: FinishedRun) -> None:
    lines = [line("gone", "cnn_1xn", 1.0, (74.5, 78.9)), line("later", "adapter_386", 2.0, (75.0, 79.0))]
    table = PaperTable("Heads", lines, None)
    found = measure(table, {"spans": spans})
    assert [one.ours for one in found if one.line in lines] == [[None, None], [None, None]]
    assert describe([(table, found)]) == "No published score can be compared. 2 published rows have no score of ours."
    only = [one for one in found if one.line != lines[1]]
    assert describe([(table, only)]).endswith("1 published row has no score of ours.")


def test_rows_with_different_metrics_get_a_column_for_the_metric(tmp_path: Path) -> None:
    runs = {}
    for name, metrics in (("first_cola", ("matthews",)), ("first_stsb", ("pearson", "spearman"))):
        run = TinyRun(tmp_path / name, SCORE if "pearson" in metrics else LABEL, metrics=metrics)
        run.add("encoder", 1.0, scores={split: {key: 50.0 for key in metrics} for split in ("dev", "held_out")})
        for head, score in (("adapter_8", 60.0), ("adapter_16", 61.0)):
            run.add(head, 1.0, scores={split: {key: score for key in metrics} for split in ("dev", "held_out")})
        runs[name] = run.write()
    table = PaperTable(
        "GLUE",
        [
            line("BERT", "encoder", 1.0, (51.3,), task="CoLA", run="first_cola", figures=("matthews",)),
            line("head", "adapter_16", 1.0, (54.1,), task="CoLA", run="first_cola", figures=("matthews",)),
            line("BERT", "encoder", 1.0, (84.5, 84.6), task="STS-B", run="first_stsb", figures=("pearson", "spearman")),
        ],
        None,
    )
    shown = build_table(table, measure(table, runs)).records()
    key = ("task", "model", "metric", "paper", "ours")
    assert [tuple(row[one] for one in key) for row in shown] == [
        ("CoLA", "baseline", "Matthews", None, 50.0), ("CoLA", "BERT", "Matthews", 51.3, 50.0),
        ("CoLA", "head", "Matthews", 54.1, 61.0),
        ("STS-B", "baseline", "Pearson", None, 50.0), ("STS-B", "baseline", "Spearman", None, 50.0),
        ("STS-B", "BERT", "Pearson", 84.5, 50.0), ("STS-B", "BERT", "Spearman", 84.6, 50.0),
    ]  # fmt: skip
    # 50 − 51.3, 61 − 54.1, 50 − 84.5 and 50 − 84.6: none within a point, −15.9 on average. 54.1 > 51.3, and 61 > 50.
    assert describe([(table, measure(table, runs))]) == (
        "0 of our 4 scores are within one point of the papers'; on average ours are 15.9 points below the papers'. A "
        "head or an ensemble beats BERT at the same stage in 1 of 1 row of the papers, and in 1 of ours."
    )


def test_the_report_has_every_table_and_its_picture(spans: FinishedRun) -> None:
    lines = [line("BERT", "encoder", epochs, (65.0, 70.0)) for epochs in (0.3, 1.0)]
    heads = PaperTable("Heads", [line("AP", "adapter_386", 1.0, (74.9, 79.0))], None)
    tables = [(table, measure(table, {"spans": spans})) for table in (PaperTable("Curve", lines, None), heads)]
    report = build_report("2020-spans with tiny", ["cpu"], tables, {"spans": spans}, "A finding.", ["A note."])
    blocks, runs = report.sections[0].blocks, report.sections[1].blocks[0].table
    assert [block.title for block in blocks] == ["Curve", "Heads"]
    assert all(block.table is not None for block in blocks) and (report.finding, report.summary) == (
        "A finding.", ["A note."],
    )  # fmt: skip
    assert runs is not None
    assert [(row["run"], row["examples"], row["report"]) for row in runs.records()] == [
        ("spans", "100 dev examples, 100 held out of train", "spans/report.html")
    ]
    # One model with published scores is a curve; of others, each row has a point of the paper's and one of ours.
    curve, rows = (block.picture for block in blocks)
    assert curve is not None and rows is not None and "layer" not in rows
    assert [layer.get("transform") for layer in curve["layer"]] == [
        [{"filter": {"field": "model", "equal": "BERT"}}], None,
    ]  # fmt: skip
    values = rows["data"]["values"]
    assert [(one["scores"], one["score"]) for one in values if one["model"] == "AP"] == [
        ("paper", 74.9),
        ("ours", 74.0),
    ]
