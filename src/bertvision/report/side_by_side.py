"""Compare several runs (encoders, snapshots or tasks), with one table across tasks like the GLUE leaderboard."""

from dataclasses import dataclass
from typing import Any

from bertvision.pipeline.finished import FinishedRun
from bertvision.pipeline.folder import BASELINE
from bertvision.report.block import Block, Section
from bertvision.report.certainty import Certainty
from bertvision.report.drawing import chart_of, colour_by, import_altair, off_zero, tips
from bertvision.report.ranking import baseline_figure, heading_of
from bertvision.report.summary import chance_of, encoder_name, surprise
from bertvision.report.wording import CHOSEN, ENCODER, show_p, signed
from bertvision.tables import Cell, Column, Headings, Rows, Table, counted

CONTROL, BEST = "control", "best head"


def name_runs(found: list[FinishedRun]) -> list[str]:
    """The names of the folders, numbered if two are the same."""
    plain = [run.name for run in found]
    return [name if plain.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(plain, start=1)]


def compare_runs(certainties: list[Certainty]) -> tuple[list[Section], list[str]]:
    """Return the section that compares all runs, and the sentences of the summary."""
    names = name_runs([certainty.run for certainty in certainties])
    lines = [_line(name, certainty) for name, certainty in zip(names, certainties, strict=True)]
    blocks = [_runs_block(lines), _tasks_block(certainties)]
    return [Section("Side by side", [block for block in blocks if block is not None])], _summary(lines)


def _line(name: str, certainty: Certainty) -> dict[str, Any]:
    """The results of one run."""
    run, split, epochs = certainty.run, certainty.split, certainty.epochs
    key, best, control = run.main, run.best_head(epochs), run.control(epochs)
    ensemble = run.best(epochs, "ensemble")
    against = next((one for one in certainty.against(run.encoder(epochs)) if best and one.ours.name == best.name), None)
    return {
        "run": name,
        "task": run.task.name,
        "encoder": encoder_name(run),
        "epochs": epochs,
        "metric": heading_of(run, key),
        "baseline": baseline_figure(run, split, key),
        ENCODER: run.encoder(epochs).mean(split, key),
        CONTROL: control.mean(split, key) if control else None,
        "head": best.name if best else None,
        BEST: best.mean(split, key) if best else None,
        "ensemble": ensemble.mean(split, key) if ensemble else None,
        "gap": against,
        "surprise": surprise(run, epochs),
    }


def _runs_block(lines: list[dict[str, Any]]) -> Block:
    columns: Headings = [
        "run", "task", "encoder name", "epochs", "metric", Column("baseline", 2), Column(ENCODER, 2),
        Column(CONTROL, 2), "head", Column(BEST, 2), Column("difference", 2, "Best head minus encoder alone"),
        Column("from", 2, "Lower end of the 95 % interval"), Column("to", 2, "Upper end of the 95 % interval"),
        Column("corrected p", 4), Column("ensemble", 2),
    ]  # fmt: skip
    rows = []
    for line in lines:
        gap = line["gap"]
        cells = [gap.gap.difference, gap.gap.low, gap.gap.high, gap.p] if gap else [None] * 4
        names = ("run", "task", "encoder", "epochs", "metric", "baseline", ENCODER, CONTROL, "head", BEST)
        rows.append([*(line[name] for name in names), *cells, line["ensemble"]])
    return Block(
        "runs",
        "Results of each run",
        table=Table(columns, rows),
        picture=_dumbbells(lines),
        drawn=[ENCODER, CONTROL, BEST],
        note="The best head of a run is the one with the highest score on held-out training data (on dev if none was "
        "held out). The tests are those of each run's own report.",
    )


def _runs_sentence(lines: list[dict[str, Any]]) -> str:
    sure = [line["run"] for line in lines if line["gap"] and line["gap"].is_sure and line["gap"].gap.difference > 0]
    where = f"in {len(sure)} of" if sure else "in none of the"
    names = f": {', '.join(sure)}" if sure else ""
    return (
        f"The best head scores significantly higher than the encoder alone {where} {counted(len(lines), 'run')}{names}."
    )


def _dumbbells(lines: list[dict[str, Any]]) -> dict[str, Any]:
    altair = import_altair()
    rows = [
        {"run": line["run"], "model": name, "score": line[name], "task": line["task"], "metric": line["metric"]}
        for line in lines
        for name in (ENCODER, CONTROL, BEST)
        if line[name] is not None
    ]
    base = chart_of(rows, 34 * len(lines) + 20).encode(y=altair.Y("run:N", sort=None, title=None))
    tooltip = tips("run:N", "task:N", "model:N", "metric:N", ("score:Q", None, ".2f"))
    x = off_zero("X", "score:Q", "score")
    bars = base.mark_line(opacity=0.4, strokeWidth=3).encode(x=x, detail="run:N")
    points = base.mark_point(filled=True, size=110, opacity=1).encode(
        x=x, color=colour_by("model", (ENCODER, CONTROL, BEST), "", rows), tooltip=tooltip
    )
    return dict((bars + points).to_dict())


def _tasks_block(certainties: list[Certainty]) -> Block | None:
    """A table with a row per model and columns for each task; only for runs of several tasks, one run each."""
    tasks = [certainty.run.task.name for certainty in certainties]
    if len(tasks) < 2 or len(set(tasks)) < len(tasks):
        return None
    columns = [column for certainty in certainties for column in _task_columns(certainty)]
    rows = [_task_row(name, columns) for name in _row_names(certainties)]
    shown = [Column("model"), *(Column(column.heading, 2) for column in columns), Column("mean", 2)]
    return Block(
        "tasks",
        "Across tasks",
        _tasks_sentences(rows, len(tasks)),
        Table(shown, rows),
        note="The columns are the metrics of each task on each of its dev splits. The mean averages first within each "
        f"task, then over the tasks, and is shown only for models that every task has. The {BEST} is chosen for each "
        "task on held-out training data (on dev if none was held out).",
    )


@dataclass(frozen=True)
class _TaskColumn:
    """One metric of one task on one split."""

    certainty: Certainty
    split: str
    key: str

    @property
    def heading(self) -> str:
        run = self.certainty.run
        split = "" if len(run.splits) == 1 else f" {self.split}"
        return f"{run.task.name}{split} ({heading_of(run, self.key)})"

    def value(self, name: str) -> float | None:
        run, epochs = self.certainty.run, self.certainty.epochs
        if name == BASELINE:
            return baseline_figure(run, self.split, self.key)
        best = run.best_head(epochs)
        groups = {ENCODER if group.role == "encoder" else group.name: group for group in run.groups(epochs)}
        group = best if name == BEST else groups.get(name)
        return group.mean(self.split, self.key) if group else None


def _task_columns(certainty: Certainty) -> list[_TaskColumn]:
    run = certainty.run
    keys = [run.main, *(metric for metric in run.task.metrics if metric != run.main)]
    if run.main.startswith(CHOSEN):
        keys = [f"{CHOSEN}exact", f"{CHOSEN}f1"]
    return [_TaskColumn(certainty, split, key) for split in run.splits for key in keys]


def _row_names(certainties: list[Certainty]) -> list[str]:
    """The baseline, the encoder, every model that at least two tasks have, and the best head of each task."""
    found = [
        [group.name for group in certainty.run.groups(certainty.epochs) if group.role != "encoder"]
        for certainty in certainties
    ]
    names = dict.fromkeys(name for some in found for name in some)
    return [BASELINE, ENCODER, *(name for name in names if sum(name in some for some in found) > 1), BEST]


def _task_row(name: str, columns: list[_TaskColumn]) -> list[Cell]:
    values = [column.value(name) for column in columns]
    by_task: dict[str, list[float | None]] = {}
    for column, value in zip(columns, values, strict=True):
        by_task.setdefault(column.certainty.run.task.name, []).append(value)
    means = [
        sum(value for value in some if value is not None) / len(some) for some in by_task.values() if None not in some
    ]
    return [name, *values, sum(means) / len(means) if len(means) == len(by_task) else None]


def _tasks_sentences(rows: Rows, tasks: int) -> list[str]:
    means = {row[0]: row[-1] for row in rows if isinstance(row[-1], float)}
    if BEST not in means or ENCODER not in means:
        return ["The means can't be compared: some tasks have no score for the encoder alone or for a best head."]
    return [
        f"Averaged over {tasks} tasks, the best head of each task scores {means[BEST]:.2f} and the encoder alone "
        f"{means[ENCODER]:.2f}."
    ]


def _summary(lines: list[dict[str, Any]]) -> list[str]:
    sentences = [_runs_sentence(lines)]
    for line in lines:
        gap = line["gap"]
        if gap is not None:
            sentences.append(
                f"{line['run']} ({line['metric']}): {line['head']} scores {line[BEST]:.2f} and the encoder alone "
                f"{line[ENCODER]:.2f}. The difference is {signed(gap.gap.difference)} (95 % interval "
                f"{signed(gap.gap.low)} to {signed(gap.gap.high)}, corrected {show_p(gap.p)}): "
                f"{chance_of(gap)}. {line['surprise']}".rstrip()
            )
    return sentences
