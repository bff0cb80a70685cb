"""All heads side by side: for spans with one seed, for sentences over all seeds.

The heads were trained in two runs, the main one and the zoo's. Their encoders had the same seeds but are not
bit-identical, since GPU sums vary: each head is compared with the control of its own run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from bertvision.heads import CONTROL
from bertvision.pipeline.folder import BASELINE, ENCODER
from bertvision.report.block import Block
from bertvision.report.drawing import chart_of, import_altair
from bertvision.report.wording import listed, signed
from bertvision.tables import Cell, Column, Table, counted
from paper.kept import Experiment, Experiments, Mean
from paper.names import AUC, FORCED, LABELS, SPAN_NOTES, colour_by_place, title_of
from paper.spans import folded_scores, head_names

OWN_TOKEN, KERNELS, LADDER = "its own token", "kernels along tokens", "ladder (ours)"
CLS, FLAT, MEANS = "[CLS]", "all tokens, flattened", "means of tokens (ours)"
ALONG_TOKENS = ("pooled_adapter_cnn_nxn", "pooled_adapter_inception", "pooled_adapter_xception")
ENDS = [400, 4e7]
"""The ends of the parameter axis."""
TIE = 0.005
"""The largest difference, in points, that rounding of the kept scores can cause."""


class Entry(NamedTuple):
    """A model of one of the two runs, over some of its seeds."""

    run: Experiment
    seeds: list[int]
    model: str

    def score(self, epochs: float, key: str, split: str = "dev") -> float | None:
        """The mean over seeds; None if a seed has none."""
        found = self.run.by_seed(epochs, self.model, key, split)
        return fmean(found[seed] for seed in self.seeds) if all(seed in found for seed in self.seeds) else None

    def points(self, epochs: float, key: str, split: str = "dev") -> float:
        found = self.score(epochs, key, split)
        assert found is not None, "all seeds were scored"
        return found

    def above(self, model: str, epochs: float, key: str) -> float:
        """Points above another model of the same run."""
        return self.points(epochs, key) - self._replace(model=model).points(epochs, key)

    @property
    def parameters(self) -> int:
        return self.run.entry(self.run.head_snapshots[-1], self.model).parameters


@dataclass(frozen=True)
class View:
    """Which metrics of a task's heads are shown, and how heads are grouped."""

    metrics: dict[str, str]
    """By heading; the first is drawn."""
    kind_of: Callable[[str], str]
    """What a head looks at, by its name."""
    kinds: dict[str, int]
    """Positions of the groups among the colours; the group that looks at least comes first."""
    beyond: str
    """What the heads of all other groups do."""
    examples: str = "examples"
    baseline: str = "The baseline is in the tables around it."

    @property
    def heading(self) -> str:
        return next(iter(self.metrics))

    @property
    def drawn(self) -> str:
        return self.metrics[self.heading]

    def is_narrow(self, entry: Entry) -> bool:
        return self.kind_of(entry.model) == next(iter(self.kinds))


def look_of_spans(head: str) -> str:
    if head in ALONG_TOKENS:
        return KERNELS
    return LADDER if head.startswith("ladder") else OWN_TOKEN


def look_of_sentences(head: str) -> str:
    if head.startswith("ladder"):
        return LADDER
    if head.endswith("_mean"):
        return MEANS
    return FLAT if head.startswith("flat_adapter") else CLS


SPANS = View(
    {"answerable-only F1": FORCED, "AUC": AUC},
    look_of_spans,
    {OWN_TOKEN: 3, KERNELS: 4, LADDER: 5},
    "look beyond their own token (kernels along tokens, ladders)",
    "questions",
    "Never answering has neither metric.",
)


def zoo_blocks(lower: Experiments, zoos: Experiments, encoders: dict[str, str]) -> list[Block]:
    """Spans on encoders fine-tuned at the lower learning rate: all heads with one seed, and all scores."""
    found = []
    for short, encoder in encoders.items():
        main, zoo = lower.get(f"squad2_{short}"), zoos.get(f"squad2_{short}_zoo")
        if main is not None and zoo is not None and zoo.seeds[0] in main.seeds:
            lineup = Lineup(SPANS, main, zoo, zoo.seeds[:1])
            found += [lineup.overview(encoder), lineup.table(encoder)] if lineup.shots else []
            found += folded_scores(zoo, encoder)
        for run in (main, lower.get(f"squad2_{short}_kernels")):
            found += folded_scores(run, encoder) if run is not None else []
    return found


def sentence_zoo_block(main: Experiment, zoo: Experiment, title: str) -> Block | None:
    """Sentences: all heads by the task's first metric, over the seeds that both runs have; None for a single seed."""
    metric = main.first["metrics"][0]
    beyond = "read more than the [CLS] states (all tokens, or means of them)"
    kinds = {CLS: 3, FLAT: 4, MEANS: 6, LADDER: 5}
    view = View({LABELS.get(metric, metric): metric}, look_of_sentences, kinds, beyond)
    lineup = Lineup(view, main, zoo, [seed for seed in zoo.seeds if seed in main.seeds])
    return lineup.overview(title) if len(lineup.seeds) > 1 and lineup.shots else None


def _when(epochs: float) -> str:
    return f"after {counted(epochs, 'epoch')}" if epochs else "untouched"


@dataclass(frozen=True)
class Lineup:
    """The heads of two runs over the same seeds."""

    view: View
    main: Experiment
    zoo: Experiment
    seeds: list[int]

    @property
    def shots(self) -> list[float]:
        return [epochs for epochs in self.zoo.head_snapshots if epochs in self.main.head_snapshots]

    @cached_property
    def heads(self) -> list[Entry]:
        """The heads that have all scores with all seeds, by size."""
        names = [(run, name) for run in (self.main, self.zoo) for name in head_names(run, self.shots[-1])]
        found = [Entry(run, self.seeds, name) for run, name in names if name != CONTROL]
        return sorted(filter(self._has_all_scores, found), key=lambda entry: entry.parameters)

    def _has_all_scores(self, entry: Entry) -> bool:
        places = product(self.shots, self.view.metrics.values(), ("dev", "held_out"))
        return all(entry.score(*place) is not None for place in places)

    @property
    def words_of_seeds(self) -> str:
        return f"seed {self.seeds[0]}" if len(self.seeds) == 1 else counted(len(self.seeds), "seed")

    def overview(self, title: str) -> Block:
        """A picture of all heads, and a table of the best at each snapshot."""
        heading = self.view.heading
        luck = (
            "One seed; even a second run of the same seed changes such differences (runs.md)."
            if len(self.seeds) == 1
            else "Means over seeds. Grey: one standard deviation of the control over seeds, which heads largely share."
        )
        return Block(
            key=f"{self.zoo.name}_all",
            title=f"{title}: all heads, {self.words_of_seeds}",
            sentences=[self._describe_first()],
            table=self._overview(),
            picture=self._draw(),
            alt=f"{heading} against parameters of {counted(len(self.heads), 'head')}, one panel per snapshot: "
            + "; ".join(map(self._in_words, self.shots)),
            note=f"{luck} Dashed: encoder and control of {self.zoo.name}. Panels have different scales. For each "
            "snapshot, the table counts the heads above the control of their run, and compares the best head by "
            f"{heading} on held-out {self.view.examples} with the control and the encoder of its run. "
            f"{self.view.baseline}",
        )

    def table(self, title: str) -> Block:
        return Block(
            key=f"{self.zoo.name}_table",
            title=f"{title}: scores of all heads, {self.words_of_seeds}",
            table=self._table(),
            note=f"Heads by size. Tables with all {len(self.main.seeds)} seeds of {self.main.title} are below.",
            folded=True,
        )

    def _describe_first(self) -> str:
        """How many of the top ranks go to heads that look beyond the narrowest group."""
        wide, parts = sum(not self.view.is_narrow(entry) for entry in self.heads), []
        for epochs in self.shots:
            ranked = self._ranked(epochs)
            last = ranked[wide - 1].points(epochs, self.view.drawn)
            first = [entry for entry in ranked if entry.points(epochs, self.view.drawn) > last - TIE]
            further = sum(not self.view.is_narrow(entry) for entry in first)
            when = _when(epochs) if epochs else "on the untouched encoder"
            parts.append(f"{further} of the top {len(first)} {when}")
        text = f"{wide} of {len(self.heads)} heads {self.view.beyond}. By {self.view.heading} on dev they are "
        return f"{text}{listed(parts)} (ties share a rank)."

    def _ranked(self, epochs: float) -> list[Entry]:
        return sorted(self.heads, key=lambda entry: -entry.points(epochs, self.view.drawn))

    def _in_words(self, epochs: float) -> str:
        """The best, the middle and the worst head."""
        ranked = self._ranked(epochs)
        shown = [ranked[0], ranked[len(ranked) // 2], ranked[-1]]
        best, middle, worst = (f"{one.model} {one.points(epochs, self.view.drawn):.1f}" for one in shown)
        return f"{_when(epochs)} best {best}, middle {middle}, worst {worst}"

    def _overview(self) -> Table:
        metrics, heads = self.view.metrics, self.heads
        columns = [Column("epochs"), Column("heads")]
        columns += [Column(f"above the control, {heading}") for heading in metrics]
        columns += [Column(f"best on held-out {self.view.examples}"), Column("its parameters")]
        for name in metrics:
            columns += [Column(f"its {name}", 2), Column(f"{name} over control"), Column(f"{name} over encoder")]
        rows: list[list[Cell]] = []
        for epochs in self.shots:
            above = [sum(entry.above(CONTROL, epochs, key) > TIE for entry in heads) for key in metrics.values()]
            best = max(heads, key=lambda entry: entry.points(epochs, self.view.drawn, "held_out"))
            rows.append([epochs, len(heads), *above, best.model, best.parameters])
            for key in metrics.values():
                tuned = signed(best.above(ENCODER, epochs, key)) if epochs else None  # random at 0 epochs
                rows[-1] += [best.score(epochs, key), signed(best.above(CONTROL, epochs, key)), tuned]
        return Table(columns, rows)

    def _table(self) -> Table:
        columns = [Column("model"), Column("experiment"), Column("parameters"), Column("looks at")]
        for epochs in self.shots:
            metrics = self.view.metrics
            columns += [Column(f"{name} {_when(epochs)}", 2, SPAN_NOTES.get(name, "")) for name in metrics]
        runs, heads = (self.main, self.zoo), self.heads
        levels = [Entry(self.zoo, self.seeds, BASELINE)]
        levels += [Entry(run, self.seeds, name) for name in (ENCODER, CONTROL) for run in runs]
        rows: list[list[Cell]] = []
        for entry in [*levels, *heads]:
            kind = self.view.kind_of(entry.model) if entry in heads else None
            rows.append([title_of(entry.model), entry.run.title, entry.parameters, kind])
            rows[-1] += [entry.score(epochs, key) for epochs in self.shots for key in self.view.metrics.values()]
        return Table(columns, rows)

    def _band(self, epochs: float) -> list[float]:
        """One standard deviation around the control's mean; empty for one seed."""
        found = self.zoo.by_seed(epochs, CONTROL, self.view.drawn)
        mean = Mean([found[seed] for seed in self.seeds])
        return [] if mean.deviation is None else [mean.mean - mean.deviation, mean.mean + mean.deviation]

    def _draw(self) -> dict[str, Any]:
        """One panel per snapshot, two per row; three snapshots share a row."""
        altair, per_row = import_altair(), 3 if len(self.shots) == 3 else 2
        panels = [self._panel(epochs, 720 // per_row - 30) for epochs in self.shots]
        lines = [altair.hconcat(*panels[at : at + per_row]) for at in range(0, len(panels), per_row)]
        return dict(altair.vconcat(*lines).to_dict())

    def _panel(self, epochs: float, width: int) -> Any:
        altair, key = import_altair(), self.view.drawn
        places = {ENCODER: 0, "control": 1, **self.view.kinds}  # encoder, control, ladders: as in the other pictures
        colour, shape = colour_by_place("kind", places, list(places))
        rows: list[dict[str, Any]] = [
            {"parameters": one.parameters, "score": one.points(epochs, key), "kind": self.view.kind_of(one.model)}
            for one in sorted(self.heads, key=lambda one: not self.view.is_narrow(one))  # the rarer ones on top
        ]
        control = Entry(self.zoo, self.seeds, CONTROL)
        levels = {"control": control}
        if epochs:  # else it is random
            levels[ENCODER] = control._replace(model=ENCODER)
        data = [{"score": one.points(epochs, key), "kind": kind} for kind, one in levels.items()]
        edges = self._band(epochs)
        shown = [*edges, *(row["score"] for row in [*rows, *data])]
        room = 0.05 * (max(shown) - min(shown))
        scale = altair.Scale(zero=False, nice=False, domain=[min(shown) - room, max(shown) + room])
        points = chart_of(rows, 220).encode(
            x=altair.X(
                "parameters:Q",
                scale=altair.Scale(type="log", nice=False, domain=ENDS),
                axis=altair.Axis(format="~s", tickCount=4),
            ),
            y=altair.Y("score:Q", title=self.view.heading, scale=scale, axis=altair.Axis(minExtent=35)),  # panels align
            color=colour,
        )
        marks = points.mark_point(size=45, strokeWidth=1.5, opacity=1, filled=False).encode(shape=shape)
        rules = altair.Chart(altair.Data(values=data)).mark_rule(strokeDash=[5, 4]).encode(y="score:Q", color=colour)
        layers = [rules, marks]
        if edges:
            spread = altair.Chart(altair.Data(values=[{"low": edges[0], "high": edges[1]}]))
            place = altair.Y("low:Q", title=self.view.heading)
            layers.insert(0, spread.mark_rect(opacity=0.15, color="gray").encode(y=place, y2="high:Q"))
        return altair.layer(*layers).properties(width=width, height=220, title=_when(epochs))
