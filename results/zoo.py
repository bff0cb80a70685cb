"""The page's part on every head for spans, side by side on the states of one seed.

The heads learned in two runs, the main one and the zoo's. Their encoders had the same seed, and still differ by what a
GPU's sums do: each head is held against the control of its own run.
"""

from typing import Any, NamedTuple

from bertvision.analysis.block import Block, Cell, Column, Frame
from bertvision.analysis.drawing import chart_of, import_altair
from bertvision.analysis.words import listed, signed
from bertvision.heads import CONTROL
from bertvision.results import counted
from bertvision.stages import BASELINE, ENCODER
from results.kept import Experiment
from results.names import AUC, FORCED, SPAN_NOTES, colour_by_place, title_of
from results.spans import head_names, scores_block

FIGURES = {"forced F1": FORCED, "AUC": AUC}
OWN_TOKEN, KERNELS, LADDER = "its own token alone", "kernels along tokens", "ladder (ours)"
ALONG_TOKENS = ("pooled_adapter_cnn_nxn", "pooled_adapter_inception", "pooled_adapter_xception")
PLACES = {ENCODER: 0, "control": 1, OWN_TOKEN: 3, KERNELS: 4, LADDER: 5}
"""Colours: encoder, control and ladder have the same as in the other pictures."""
ENDS = [400, 2e7]
"""Of the axis of parameters."""


class Entry(NamedTuple):
    """A model of one of the two runs."""

    run: Experiment
    seed: int
    model: str

    def score(self, epochs: float, key: str, split: str = "dev") -> float | None:
        return self.run.by_seed(epochs, self.model, key, split).get(self.seed)

    def above(self, model: str, epochs: float, key: str) -> float:
        """Points above another model of the same run."""
        own, other = self.score(epochs, key), self._replace(model=model).score(epochs, key)
        assert own is not None and other is not None, "both were scored"
        return own - other

    @property
    def parameters(self) -> int:
        return int(self.run.facts(self.run.head_snapshots[-1], self.model)["parameters"])

    @property
    def kind(self) -> str:
        if self.model in ALONG_TOKENS:
            return KERNELS
        return LADDER if self.model.startswith("ladder") else OWN_TOKEN


def zoo_blocks(experiments: dict[str, Experiment], encoders: dict[str, str]) -> list[Block]:
    found = []
    for short, encoder in encoders.items():
        main, zoo, kernels = (experiments.get(f"squad2_{short}{end}") for end in ("", "_zoo", "_kernels"))
        if main is not None and zoo is not None and zoo.seeds[0] in main.seeds:
            found += _blocks(main, zoo, encoder)
        found += _whole(kernels, encoder) if kernels is not None else []
    return found


def _whole(run: Experiment, encoder: str) -> list[Block]:
    """All figures of a run, the last snapshot first."""
    which = f", heads of {run.name}.toml"
    return [scores_block(run, encoder, epochs, which, folded=True) for epochs in reversed(run.head_snapshots)]


def _blocks(main: Experiment, zoo: Experiment, encoder: str) -> list[Block]:
    seed, shots = zoo.seeds[0], [epochs for epochs in zoo.head_snapshots if epochs in main.head_snapshots]
    if not shots:
        return []
    names = [(run, name) for run in (main, zoo) for name in head_names(run, shots[-1]) if name != CONTROL]
    heads = sorted((Entry(run, seed, name) for run, name in names), key=lambda entry: entry.parameters)
    overview = Block(
        key=f"{zoo.name}_all",
        title=f"{encoder}: every head, seed {seed}",
        sentences=[_tell_first(heads, shots)],
        frame=_overview(heads, shots),
        picture=_draw(Entry(zoo, seed, CONTROL), heads, shots),
        alt=f"Forced F1 against parameters of {counted(len(heads), 'head')}, a panel a snapshot: "
        + "; ".join(_in_words(heads, epochs) for epochs in shots),
        note="One seed, and a second run of it would change such differences, too (“The same seed again”, below). "
        "Dashed: encoder and control of the zoo's run. The table has of each snapshot how many heads are above the "
        "control of their run, and the best by forced F1 on held-out questions, held against control and encoder of "
        "its run. Never answering has neither figure.",
    )
    table = Block(
        key=f"{zoo.name}_table",
        title=f"{encoder}: the figures of every head, seed {seed}",
        frame=_table(main, zoo, heads, shots),
        note=f"Heads by size. Those of {main.name}.toml have {counted(len(main.seeds), 'seed')} in the tables above.",
        folded=True,
    )
    return [overview, table, *_whole(zoo, encoder)]


def _when(epochs: float) -> str:
    return f"after {counted(epochs, 'epoch')}" if epochs else "as it came"


def _tell_first(heads: list[Entry], shots: list[float]) -> str:
    """How many of the first places heads have that look beyond their own token."""
    wide, parts = sum(entry.kind != OWN_TOKEN for entry in heads), []
    for epochs in shots:
        beyond = [entry for entry in _ranked(heads, epochs)[:wide] if entry.kind != OWN_TOKEN]
        parts.append(f"{len(beyond)} {_when(epochs)}")
    told = f"{wide} of {len(heads)} heads look beyond their own token: kernels along tokens, and ladders. Of the first "
    return f"{told}{wide} places by forced F1 on dev they take {listed(parts)}."


def _ranked(heads: list[Entry], epochs: float) -> list[Entry]:
    return sorted(heads, key=lambda entry: -(entry.score(epochs, FORCED) or 0.0))


def _in_words(heads: list[Entry], epochs: float) -> str:
    """The first, the middle and the last."""
    ranked = _ranked(heads, epochs)
    told = [f"{one.model} {one.score(epochs, FORCED):.1f}" for one in (ranked[0], ranked[len(ranked) // 2], ranked[-1])]
    return f"{_when(epochs)} from {told[0]} over {told[1]} to {told[2]}"


def _overview(heads: list[Entry], shots: list[float]) -> Frame:
    columns = [Column("epochs"), Column("heads")]
    columns += [Column(f"above the control, {heading}") for heading in FIGURES]
    columns += [Column("best on held-out questions"), Column("its parameters")]
    for heading in FIGURES:
        columns += [Column(f"its {heading}", 2), Column(f"{heading} over control"), Column(f"{heading} over encoder")]
    rows: list[list[Cell]] = []
    for epochs in shots:
        above = [sum(entry.above(CONTROL, epochs, key) > 0 for entry in heads) for key in FIGURES.values()]
        best = max(heads, key=lambda entry: entry.score(epochs, FORCED, "held_out") or 0.0)
        rows.append([epochs, len(heads), *above, best.model, best.parameters])
        for key in FIGURES.values():
            tuned = signed(best.above(ENCODER, epochs, key)) if epochs else None  # random as it came
            rows[-1] += [best.score(epochs, key), signed(best.above(CONTROL, epochs, key)), tuned]
    return Frame(columns, rows)


def _table(main: Experiment, zoo: Experiment, heads: list[Entry], shots: list[float]) -> Frame:
    columns = [Column("model"), Column("config"), Column("parameters"), Column("looks at")]
    for epochs in shots:
        columns += [Column(f"{heading} {_when(epochs)}", 2, SPAN_NOTES[heading]) for heading in FIGURES]
    levels = [Entry(zoo, zoo.seeds[0], BASELINE)]
    levels += [Entry(run, zoo.seeds[0], name) for name in (ENCODER, CONTROL) for run in (main, zoo)]
    rows: list[list[Cell]] = []
    for entry in [*levels, *heads]:
        kind = entry.kind if entry in heads else None
        rows.append([title_of(entry.model), f"{entry.run.name}.toml", entry.parameters, kind])
        rows[-1] += [entry.score(epochs, key) for epochs in shots for key in FIGURES.values()]
    return Frame(columns, rows)


def _draw(control: Entry, heads: list[Entry], shots: list[float]) -> dict[str, Any]:
    """A panel for each snapshot, two in a row."""
    altair = import_altair()
    colour, shape = colour_by_place("kind", PLACES, list(PLACES))
    panels = []
    for epochs in shots:
        rows: list[dict[str, Any]] = [
            {"parameters": entry.parameters, "score": entry.score(epochs, FORCED), "kind": entry.kind}
            for entry in heads
        ]
        levels = {"control": control} | ({ENCODER: control._replace(model=ENCODER)} if epochs else {})  # else random
        data = [{"score": one.score(epochs, FORCED), "kind": kind} for kind, one in levels.items()]
        least, most = (end(row["score"] for row in [*rows, *data]) for end in (min, max))
        room = 0.05 * (most - least)
        scale = altair.Scale(zero=False, nice=False, domain=[least - room, most + room])
        points = chart_of(rows, 220).encode(
            x=altair.X(
                "parameters:Q",
                scale=altair.Scale(type="log", nice=False, domain=ENDS),
                axis=altair.Axis(format="~s", tickCount=4),
            ),
            y=altair.Y("score:Q", title="forced F1", scale=scale, axis=altair.Axis(minExtent=35)),  # panels align
            color=colour,
        )
        rules = altair.Chart(altair.Data(values=data)).mark_rule(strokeDash=[5, 4])
        marks = points.mark_point(size=45, strokeWidth=1.5, opacity=1, filled=False).encode(shape=shape)
        panel = altair.layer(rules.encode(y="score:Q", color=colour), marks)
        panels.append(panel.properties(width=330, height=220, title=_when(epochs)))
    pairs = [altair.hconcat(*panels[at : at + 2]) for at in range(0, len(panels), 2)]
    return dict(altair.vconcat(*pairs).to_dict())
