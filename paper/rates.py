"""The learning rate of fine-tuning: the rates that were tried, and what heads add to better and worse encoders."""

from typing import Any, NamedTuple

from bertvision.heads import CONTROL
from bertvision.pipeline.finished import read_figure
from bertvision.pipeline.folder import BASELINE, ENCODER
from bertvision.report.block import Block
from bertvision.report.drawing import chart_of, import_altair
from bertvision.report.wording import listed, signed
from bertvision.tables import Cell, Column, Table, counted
from paper.experiments import find_experiment
from paper.judging import best_place, compare, signed_mean
from paper.kept import Experiment, Experiments, Mean, Place, show_rate
from paper.names import AUC, FORCED, JUDGED, LABELS, SPAN_NOTES, colour_by_place
from paper.spans import scores_block

WAYS = {"full1": "full, decay to 1 epoch", "lora": "LoRA, decay to 3 epochs", "bitfit": "BitFit, decay to 3 epochs"}
BEST = "best head"
SHOWN = (FORCED, AUC)
"""The metrics that need no threshold."""
PLACES = {"control": 1, BEST: 4}


class Tried(NamedTuple):
    """A run of seed 0 to the end of its decay, at one learning rate."""

    lr: float
    models: dict[str, Any]

    def score(self, key: str, split: str = "dev", model: str = ENCODER) -> float:
        found = read_figure(self.models[model]["scores"][split], key)
        assert found is not None, "encoder, control and baseline were scored"
        return found


def rate_blocks(
    experiments: Experiments, lower: Experiments, rates: list[Experiment], encoders: dict[str, str]
) -> list[Block]:
    tried = {
        (short, way): found
        for short in encoders
        for way in WAYS
        for found in [_tried(experiments.get(f"squad2_{short}_{way}"), rates)]
        if len(found) > 1
    }
    found = [_tried_block(tried, encoders)] if tried else []
    lines = {short: settings for short in encoders if (settings := settings_of(experiments, lower, short))}
    found += [_gain_block(lines, encoders)] if lines else []
    ended = [(experiments.get(f"squad2_{short}_full1"), encoder) for short, encoder in encoders.items()]
    which = ", learning rate decayed to 0"
    return found + [scores_block(one, encoder, 1.0, which) for one, encoder in ended if one is not None]


# ---------------------------------------------------------------------- the rates that were tried


def given_rate(name: str) -> float:
    return float(find_experiment(name).settings()["finetune"]["lr"])


def _tried(experiment: Experiment | None, rates: list[Experiment]) -> list[Tried]:
    """Seed 0 at the experiment's own learning rate and at the others, lowest rate first."""
    if experiment is None or 0 not in experiment.runs:
        return []
    runs = [(given_rate(experiment.name), experiment.runs[0])]
    runs += [(one.lr, one.runs[0]) for one in rates if one.lr and one.name == experiment.name and 0 in one.runs]
    found = [Tried(lr, run["snapshots"][max(run["snapshots"], key=float)]) for lr, run in runs]
    return sorted(found, key=lambda one: one.lr)


def _best(tried: list[Tried]) -> Tried:
    return max(tried, key=lambda one: one.score(FORCED, "held_out"))


def _tried_block(tried: dict[tuple[str, str], list[Tried]], encoders: dict[str, str]) -> Block:
    columns = [Column("encoder"), Column("method"), Column("learning rate"), Column("held-out answerable-only F1", 2)]
    columns += [Column(LABELS[key], 2, SPAN_NOTES[LABELS[key]]) for key in JUDGED]
    columns += [Column(f"{LABELS[key]} of the control", 2) for key in SHOWN]
    rows: list[list[Cell]] = []
    for (short, way), found in tried.items():
        for one in found:
            mark = " (best)" if one == _best(found) else ""
            scores = [one.score(FORCED, "held_out"), *[one.score(key) for key in JUDGED]]
            scores += [one.score(key, model=CONTROL) for key in SHOWN]
            rows.append([encoders[short], WAYS[way], f"{show_rate(one.lr)}{mark}", *scores])
    return Block(
        key="rates",
        title="Scores at other learning rates",
        sentences=_describe_tried(tried, encoders),
        table=Table(columns, rows),
        note="The encoder alone, seed 0; best: by answerable-only F1 on held-out questions. With full fine-tuning, the "
        "next rate is close. Full fine-tuning and LoRA were run twice with this seed at the best rate; these are the "
        "second runs. The fine-tuning curve (decay to 3 epochs) uses the rate chosen for decay to 1 epoch; none was "
        "searched for it. To repeat a run: “python -m paper.experiments run squad2_gte_full1 finetune.lr=1e-4”. "
        "Decay to 2 epochs and answerability were run at 5e-5 only. Never answering has F1 "
        f"{next(iter(tried.values()))[0].score('f1', model=BASELINE):.2f}.",
    )


def _describe_tried(tried: dict[tuple[str, str], list[Tried]], encoders: dict[str, str]) -> list[str]:
    """How far the best rate is above the lowest, which was tried first: a sentence for each encoder."""
    parts: dict[str, list[str]] = {}
    for (short, way), found in tried.items():
        best, lowest = _best(found), found[0]
        gaps = [f"{LABELS[key]} {signed(best.score(key) - lowest.score(key))}" for key in SHOWN]
        text = f"{show_rate(best.lr)} for “{WAYS[way]}” ({', '.join(gaps)} on dev over {show_rate(lowest.lr)})"
        parts.setdefault(encoders[short], []).append(text)
    return [f"Best on held-out questions with {encoder}: {listed(own)}." for encoder, own in parts.items()]


# ---------------------------------------------------------------------- what heads add


class Setting(NamedTuple):
    """A fine-tuned encoder and the best head on its states."""

    words: str
    rate: str
    head: Place

    def other(self, model: str) -> Place:
        return Place(self.head.experiment, self.head.epochs, model)

    def gaps(self, model: str) -> dict[str, Mean]:
        """Points of the head above another model, by metric."""
        found = compare("", self.head, self.other(model), SHOWN)
        assert found is not None, "both were scored"
        return found.gaps


def settings_of(experiments: Experiments, lower: Experiments, short: str) -> list[Setting]:
    """The snapshots of the main runs at both learning rates, and the encoder whose rate decayed to 0 at 1 epoch."""
    name, found = f"squad2_{short}", []
    for runs in (lower, experiments):
        main = runs.get(name)
        if main is None:
            continue
        rate = show_rate(main.lr or given_rate(name))
        for epochs in (epochs for epochs in main.head_snapshots if epochs):
            head = best_place(main, runs.get(f"{name}_kernels"), epochs, FORCED, theirs=False)
            found += [Setting(f"{epochs:g} of {counted(main.snapshots[-1], 'epoch')}", rate, head)] if head else []
    ended = experiments.get(f"{name}_full1")
    head = best_place(ended, None, 1.0, FORCED, theirs=False) if ended is not None else None
    return found + ([Setting("decay to 1 epoch", show_rate(given_rate(f"{name}_full1")), head)] if head else [])


def _gain_block(lines: dict[str, list[Setting]], encoders: dict[str, str]) -> Block:
    columns = [Column("encoder"), Column("learning rate"), Column("fine-tuned"), Column("best head")]
    for name in (LABELS[key] for key in SHOWN):
        columns += [Column(f"encoder's {name}"), Column(f"head's {name} over it"), Column(f"{name} over the control")]
    rows: list[list[Cell]] = []
    for short, settings in lines.items():
        for one in settings:
            rows.append([encoders[short], one.rate, one.words, one.head.model])
            for key in SHOWN:
                gaps = [signed_mean(one.gaps(model)[key]) for model in (ENCODER, CONTROL)]
                rows[-1] += [one.other(ENCODER).show(key), *gaps]
    return Block(
        key="rates_gain",
        title="What heads add to better and worse encoders",
        table=Table(columns, rows),
        picture=draw_gain(lines, encoders),
        alt="Scatter plot for each encoder: points of answerable-only F1 of best head and control above the encoder, "
        "against the encoder's own score. All values are in the table.",
        note="The best head on held-out questions, ladders and kernels along tokens included; where the learning rate "
        "had decayed, five heads were run, none with kernels. Points, mean ± standard deviation over seeds. Never "
        "answering has neither metric; its F1 is in the tables below.",
    )


def draw_gain(lines: dict[str, list[Setting]], encoders: dict[str, str]) -> dict[str, Any]:
    """Points of control and best head above the encoder, against the encoder's own score."""
    altair = import_altair()
    colour, shape = colour_by_place("model", PLACES, list(PLACES))
    panels = []
    for short, settings in lines.items():
        rows = []
        for one in settings:
            own = one.other(ENCODER).mean(FORCED)
            assert own is not None, "the encoder was scored"
            best, over = (one.gaps(model)[FORCED].mean for model in (ENCODER, CONTROL))
            above = {BEST: best, "control": best - over}
            rows += [{"encoder": own.mean, "model": name, "above": gap} for name, gap in above.items()]
        marks = chart_of(rows, 240).encode(
            x=altair.X(
                "encoder:Q", title=f"{LABELS[FORCED]} of the encoder", scale=altair.Scale(zero=False, padding=12)
            ),
            y=altair.Y("above:Q", title="points above the encoder"),
            color=colour,
            shape=shape,
        )
        points = marks.mark_point(size=60, strokeWidth=1.5, opacity=1, filled=False)
        panels.append(points.properties(width=260, title=encoders[short]))
    return dict(altair.hconcat(*panels).resolve_scale(y="shared").to_dict())
