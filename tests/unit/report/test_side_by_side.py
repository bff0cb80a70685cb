"""Several runs beside each other: what each comes to, and models across tasks."""

import dataclasses
from pathlib import Path

import pytest
from tiny_reports import TinyRun, label_results

from bertvision.report.certainty import Certainty
from bertvision.report.side_by_side import compare_runs, name_runs

TARGETS = [0, 1] * 40


def right(count: int) -> list[float]:
    return [0.6 if (number < count) == bool(target) else 0.4 for number, target in enumerate(TARGETS)]


def make(folder: Path, task: str, encoder: int, head: int) -> Certainty:
    """A run whose models are right on so many of 80 examples; the control on as many as the encoder."""
    run = TinyRun(folder)
    for name, count in (("encoder", encoder), ("last_linear", encoder), ("adapter_64", head)):
        run.add(
            name, results=label_results(TARGETS, right(count)), scores={"held_out": {"accuracy": count, "total": 5}}
        )
    return Certainty(run.write(finetune={"lr": 1e-4}, encoder={"name": f"encoders/of_{task}"}), 1.0, "dev")


def named(certainty: Certainty, task: str) -> Certainty:
    """The same run as one of another task."""
    certainty.run.__dict__["task"] = dataclasses.replace(certainty.run.task, name=task)
    return certainty


def test_runs_and_tasks_are_tabled(tmp_path: Path) -> None:
    one = named(make(tmp_path / "a" / "first", "rte", 40, 72), "rte")
    two = named(make(tmp_path / "b" / "second", "mrpc", 60, 60), "mrpc")
    (section,), summary = compare_runs([one, two])
    runs, tasks = section.blocks
    assert runs.table is not None and tasks.table is not None
    first, second = runs.table.records()
    assert (first["run"], first["task"], first["encoder name"]) == ("first", "rte", "of_rte")
    assert (first["encoder alone"], first["best head"], first["difference"]) == pytest.approx((50, 90, 40))
    assert (second["difference"], second["corrected p"]) == (0, 1)
    assert summary[0] == "The best head scores significantly higher than the encoder alone in 1 of 2 runs: first."
    assert summary[1].startswith(
        "first (accuracy): adapter_64 scores 90.00 and the encoder alone 50.00. The difference is +40.00 (95 % "
        "interval "
    )
    assert summary[1].endswith("more than chance.")
    assert summary[2].endswith(
        ": the two differ on too few examples to say more. On held-out data the encoder alone is best: no head beats "
        "it there."
    )
    table = {row["model"]: row for row in tasks.table.records()}
    assert table["adapter_64"]["rte (accuracy)"] == pytest.approx(90)
    assert table["adapter_64"]["mean"] == pytest.approx((90 + 75) / 2)
    assert table["baseline"]["mrpc (accuracy)"] == 50.0 and table["best head"]["mean"] == pytest.approx(82.5)
    assert tasks.sentences == [
        "Averaged over 2 tasks, the best head of each task scores 82.50 and the encoder alone 62.50."
    ]


def test_runs_of_one_task_have_no_table_across_tasks_and_names_of_their_own(tmp_path: Path) -> None:
    runs = [make(tmp_path / folder / "run", "rte", 40, 60) for folder in ("a", "b")]
    (section,), _ = compare_runs(runs)
    assert [block.key for block in section.blocks] == ["runs"]
    assert name_runs([run.run for run in runs]) == ["run (1)", "run (2)"]
