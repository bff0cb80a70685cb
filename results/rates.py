"""The page's part on the learning rate of fine-tuning: what rates were tried, and what heads add to an encoder that was
fine-tuned at the best of them."""

import tomllib
from typing import Any, NamedTuple

from bertvision.analysis.block import Block, Cell, Column, Frame
from bertvision.analysis.drawing import chart_of, import_altair
from bertvision.analysis.words import listed, signed
from bertvision.heads import CONTROL
from bertvision.results import counted, read_figure
from bertvision.stages import BASELINE, ENCODER
from results.claims import compare, signed_mean
from results.kept import CONFIGS, Experiment, Mean, Place
from results.names import AUC, CHOSEN_RATE, FORCED, JUDGED, LABELS, SPAN_NOTES, colour_by_place
from results.spans import scores_block

WAYS = {"full1": "full, decay to 1 epoch", "lora": "LoRA, decay to 3 epochs"}
BEST = "best head"
SHOWN = (FORCED, AUC)
"""What hangs on no threshold."""
PLACES = {"control": 1, BEST: 4}


class Tried(NamedTuple):
    """A run to the end of its decay at some rate, seed 0."""

    lr: float
    is_given: bool
    """Whether it is the config's, which the other tables have."""
    models: dict[str, Any]

    def figure(self, key: str, split: str = "dev", model: str = ENCODER) -> float:
        found = read_figure(self.models[model]["scores"][split], key)
        assert found is not None, "encoder, control and baseline were scored"
        return found


def rate_blocks(
    experiments: dict[str, Experiment], rates: list[dict[str, Any]], encoders: dict[str, str]
) -> list[Block]:
    tried = {
        (short, way): found
        for short in encoders
        for way in WAYS
        for found in [_tried(experiments.get(f"squad2_{short}_{way}"), rates)]
        if len(found) > 1
    }
    tuned = {short: experiments[name] for short in encoders if (name := f"squad2_{short}_tuned") in experiments}
    found = [_tried_block(tried, encoders)] if tried else []
    lines = {short: _settings(experiments, short) for short in tuned if f"squad2_{short}" in experiments}
    found += [_gain_block(lines, encoders)] if lines else []
    return found + [scores_block(one, encoders[short], 1.0, f" {CHOSEN_RATE}") for short, one in tuned.items()]


# ---------------------------------------------------------------------- what was tried


def given_rate(config: str) -> float:
    tables = tomllib.loads((CONFIGS / f"{config}.toml").read_text(encoding="utf-8"))
    return float(tables["finetune"]["lr"])


def show_rate(lr: float) -> str:
    """As people write it: 2e-4."""
    return f"{lr:.0e}".replace("e-0", "e-")


def _tried(experiment: Experiment | None, rates: list[dict[str, Any]]) -> list[Tried]:
    """The config's own rate among the others, lowest first, of seed 0."""
    if experiment is None or 0 not in experiment.runs:
        return []
    runs = [(given_rate(experiment.name), True, experiment.runs[0])]
    runs += [(run["lr"], False, run) for run in rates if run["config"] == experiment.name and run["seed"] == 0]
    found = [Tried(lr, is_given, run["snapshots"][max(run["snapshots"], key=float)]) for lr, is_given, run in runs]
    return sorted(found, key=lambda one: one.lr)


def _best(tried: list[Tried]) -> Tried:
    return max(tried, key=lambda one: one.figure(FORCED, "held_out"))


def _tried_block(tried: dict[tuple[str, str], list[Tried]], encoders: dict[str, str]) -> Block:
    columns = [Column("encoder"), Column("way"), Column("rate"), Column("held-out forced F1", 2)]
    columns += [Column(LABELS[key], 2, SPAN_NOTES[LABELS[key]]) for key in JUDGED]
    columns += [Column(f"{LABELS[key]} of the control", 2) for key in SHOWN]
    rows: list[list[Cell]] = []
    for (short, way), found in tried.items():
        for one in found:
            mark = " (best)" if one == _best(found) else ""
            figures = [one.figure(FORCED, "held_out"), *[one.figure(key) for key in JUDGED]]
            figures += [one.figure(key, model=CONTROL) for key in SHOWN]
            rows.append([encoders[short], WAYS[way], f"{show_rate(one.lr)}{mark}", *figures])
    return Block(
        key="rates",
        title="What other rates give",
        sentences=[_tell_tried(tried, encoders)],
        frame=Frame(columns, rows),
        note="Seed 0 of the encoder itself; best: by forced F1 on held-out questions, where the next rate is not far. "
        "Decay to 1 epoch at the best rate was run again with that seed for the tables below. Runs such as “bertvision "
        "run configs/results/squad2_gte_full1.toml finetune.lr=1e-4”. The lowest rate of each is that of the other "
        "tables. There are no others of decay to 2 or 3 epochs, of BitFit and of answerability. Never answering has F1 "
        f"{next(iter(tried.values()))[0].figure('f1', model=BASELINE):.2f}.",
    )


def _tell_tried(tried: dict[tuple[str, str], list[Tried]], encoders: dict[str, str]) -> str:
    parts: dict[str, list[str]] = {}
    for (short, way), found in tried.items():
        best, given = _best(found), next(one for one in found if one.is_given)
        gaps = [f"{LABELS[key]} {signed(best.figure(key) - given.figure(key))}" for key in SHOWN]
        rates = f"{show_rate(best.lr)} instead of {show_rate(given.lr)} for {WAYS[way]} ({', '.join(gaps)} on dev)"
        parts.setdefault(encoders[short], []).append(
            f"{show_rate(best.lr)}, as in the other tables, for {WAYS[way]}" if best.is_given else rates
        )
    told = "; ".join(f"with {encoder} {listed(own)}" for encoder, own in parts.items())
    return f"Held-out questions choose, {told}."


# ---------------------------------------------------------------------- what heads add there


class Setting(NamedTuple):
    """An encoder as it was fine-tuned, and the best head on its states."""

    words: str
    head: Place

    def other(self, model: str) -> Place:
        return Place(self.head.experiment, self.head.epochs, model)

    def gaps(self, model: str) -> dict[str, Mean]:
        """By figure: how far the head is above another model there, seed by seed."""
        found = compare("", self.head, self.other(model), SHOWN)
        assert found is not None, "both were scored"
        return found.gaps


def _settings(experiments: dict[str, Experiment], short: str) -> list[Setting]:
    """The snapshots of the main run, and the encoder whose rate was chosen; the heads that both runs have compete."""
    main, tuned = experiments[f"squad2_{short}"], experiments[f"squad2_{short}_tuned"]
    last = counted(main.snapshots[-1], "epoch")
    places = [(f"{epochs:g} of {last}", main, epochs) for epochs in main.head_snapshots if epochs]
    found = []
    for words, run, epochs in [*places, ("1 epoch, rate chosen", tuned, 1.0)]:
        head = run.best_head(epochs, FORCED, tuned.models(1.0))
        found += [Setting(words, Place(run, epochs, head))] if head is not None else []
    return found


def _gain_block(lines: dict[str, list[Setting]], encoders: dict[str, str]) -> Block:
    columns = [Column("encoder"), Column("fine-tuned"), Column("best head")]
    for name in (LABELS[key] for key in SHOWN):
        columns += [Column(f"{name} of the encoder"), Column(f"{name} over it"), Column(f"{name} over the control")]
    rows: list[list[Cell]] = []
    for short, settings in lines.items():
        for one in settings:
            rows.append([encoders[short], one.words, one.head.model])
            for key in SHOWN:
                gaps = [signed_mean(one.gaps(model)[key]) for model in (ENCODER, CONTROL)]
                rows[-1] += [one.other(ENCODER).show(key), *gaps]
    rates = listed(sorted({show_rate(given_rate(f"squad2_{short}")) for short in lines}))
    return Block(
        key="rates_gain",
        title="What heads add, the better the encoder was fine-tuned",
        sentences=[_tell_gain(lines, encoders)],
        frame=Frame(columns, rows),
        picture=_draw_gain(lines, encoders),
        alt=_tell_gain(lines, encoders),
        note="The best on held-out questions of the heads that both runs have, the ladder among them; kernels along "
        f"tokens are not. Those of 3 epochs were stopped on the way there, at {rates}. Under the picture: how the "
        "encoder was fine-tuned, and its own forced F1. Points, mean over seeds ± standard deviation. Never answering "
        "has neither figure; its F1 is in the tables below.",
    )


def _tell_gain(lines: dict[str, list[Setting]], encoders: dict[str, str]) -> str:
    parts = []
    for short, settings in lines.items():
        told = []
        for one in settings:
            over, beside = (signed(one.gaps(model)[FORCED].mean) for model in (ENCODER, CONTROL))
            told.append(f"{over} ({beside}) at {one.words}")
        parts.append(f"with {encoders[short]} {listed(told)}")
    return f"Forced F1 of the best head over the encoder, and in brackets over the control: {'; '.join(parts)}."


def _draw_gain(lines: dict[str, list[Setting]], encoders: dict[str, str]) -> dict[str, Any]:
    """How far control and best head are above the encoder; under each how it was fine-tuned, and its own score."""
    altair = import_altair()
    colour, shape = colour_by_place("model", PLACES, list(PLACES))
    panels = []
    for short, settings in lines.items():
        rows, order = [], []
        for one in settings:
            order.append(f"{one.words}: {one.other(ENCODER).show(FORCED)}")
            best, beside = (one.gaps(model)[FORCED].mean for model in (ENCODER, CONTROL))
            above = {BEST: best, "control": best - beside}
            rows += [{"fine-tuned": order[-1], "model": name, "above": gap} for name, gap in above.items()]
        base = chart_of(rows, 240).encode(
            x=altair.X("fine-tuned:N", sort=order, title=None, axis=altair.Axis(labelAngle=-25, labelLimit=240)),
            y=altair.Y("above:Q", title=f"{LABELS[FORCED]} above the encoder"),
            color=colour,
        )
        marks = base.encode(shape=shape).mark_point(size=60, strokeWidth=1.5, opacity=1, filled=False)
        panels.append(marks.properties(width=260, title=encoders[short]))
    return dict(altair.hconcat(*panels).resolve_scale(y="shared").to_dict())
