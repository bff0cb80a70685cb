"""What was kept of the runs: one small file a run in `paper/kept`; the seeds of an experiment belong together."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertvision.evaluation.statistics import spread
from bertvision.heads import CONTROL
from bertvision.pipeline.finished import Entry, best_by_mean, build_entry, read_figure
from bertvision.pipeline.folder import BASELINE, ENCODER, HELD_OUT
from bertvision.report.analyses.spending import BACKWARD
from bertvision.report.wording import with_spread
from paper.names import ENCODERS

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "paper" / "kept"
AGAIN = "again"
"""The folder in it of runs that were repeated with the GPU to themselves: their seconds count, and not their scores."""
RATES = "rates"
"""The folder of runs with another learning rate of fine-tuning than their experiment's: those that a rate was chosen
among, and those at the lower rate."""
LOWER = 5e-5
"""The learning rate of fine-tuning that all encoders for spans had before a better one was chosen: claims, and what
heads add, are shown for both."""
ALONE = {
    ("squad2_minilm", LOWER, 0),
    *((f"squad2_{encoder}_{peer}", 1e-3, 1) for encoder in ("gte", "minilm") for peer in ("lora", "bitfit")),
}
"""Runs (experiment, rate, seed) in RATES that had the GPU to themselves, as all in AGAIN had. The seconds of all others
are upper bounds."""


@dataclass(frozen=True)
class Mean:
    """A figure over seeds."""

    values: list[float]

    @property
    def mean(self) -> float:
        return spread(self.values).mean

    @property
    def deviation(self) -> float | None:
        return spread(self.values).deviation

    def __str__(self) -> str:
        return with_spread(self.values)


@dataclass(frozen=True)
class Seconds:
    value: float
    alone: bool
    """Whether the run had the GPU to itself; an upper bound where others shared it."""


@dataclass(frozen=True)
class Experiment:
    """The runs of one experiment, one a seed."""

    name: str
    runs: dict[int, dict[str, Any]]
    """By seed: what `keep.py` wrote."""
    again: list[dict[str, Any]] = field(default_factory=list)
    """Runs that were repeated with the GPU to themselves, at the same rate."""
    timed: list[dict[str, Any]] = field(default_factory=list)
    """Its runs that had the GPU to themselves, at whatever rate: fine-tuning takes as long at any."""
    lr: float | None = None
    """The rate of fine-tuning, where it is not the experiment's own."""

    @property
    def title(self) -> str:
        """What repeats it."""
        return self.name + ("" if self.lr is None else f" finetune.lr={show_rate(self.lr)}")

    @property
    def seeds(self) -> list[int]:
        return sorted(self.runs)

    @property
    def first(self) -> dict[str, Any]:
        return self.runs[self.seeds[0]]

    @property
    def snapshots(self) -> list[float]:
        return sorted({float(epochs) for run in self.runs.values() for epochs in run["snapshots"]})

    @property
    def head_snapshots(self) -> list[float]:
        return [epochs for epochs in self.snapshots if len(self.models(epochs)) > 2]

    def models(self, epochs: float) -> list[str]:
        """Those that any seed has, in the order of the tables."""
        return list(dict.fromkeys(name for seed in self.seeds for name in self._models(seed, epochs)))

    def entry(self, epochs: float, model: str) -> Entry:
        """What is the same for all seeds of a model: parameters, kind of head …"""
        found = next(self._models(seed, epochs)[model] for seed in self.seeds if model in self._models(seed, epochs))
        return build_entry(model, epochs, found)

    def tokens(self, epochs: float, model: str) -> int:
        """That training sent through the encoder, of a run that has recorded them."""
        found = self.entry(epochs, model).tokens
        assert found is not None, f"{self.name} has not recorded the tokens of {model}"
        return found

    def by_seed(self, epochs: float, model: str, key: str, split: str = "dev") -> dict[int, float]:
        """A score of each seed that has it; a dot in the key leads into `at_threshold`."""
        found = {}
        for seed in self.seeds:
            value = read_figure(self._models(seed, epochs).get(model, {}).get("scores", {}).get(split, {}), key)
            if value is not None:
                found[seed] = value
        return found

    def mean(self, epochs: float, model: str, key: str, split: str = "dev") -> Mean | None:
        values = list(self.by_seed(epochs, model, key, split).values())
        return Mean(values) if values else None

    def show(self, epochs: float, model: str, key: str) -> str | None:
        """The mean over seeds and their spread, for a table."""
        mean = self.mean(epochs, model, key)
        return None if mean is None else str(mean)

    def seconds(self, epochs: float, model: str) -> Seconds | None:
        """Of fine-tuning up to the snapshot, and of the pass where it is a head: the fewest of the runs that had the
        GPU to themselves, or of all."""
        tuned = _fewest(self.timed, list(self.runs.values()), lambda run: _seconds(run, epochs, ENCODER))
        if model == ENCODER or tuned is None:
            return tuned
        own = _fewest(self._timed_alike(epochs), list(self.runs.values()), lambda run: _seconds(run, epochs, model))
        return None if own is None else Seconds(tuned.value + own.value, tuned.alone and own.alone)

    def seconds_of_passes(self) -> Seconds | None:
        """Of all snapshots together: heads of one pass took as long, and those that read every token have their own."""
        shots = self.head_snapshots
        alike = [run for run in self.timed if all(run in self._timed_alike(epochs) for epochs in shots)]
        return _fewest(alike, list(self.runs.values()), lambda run: sum(_passes(run, epochs) for epochs in shots))

    def _timed_alike(self, epochs: float) -> list[dict[str, Any]]:
        """All heads of a run share the pass: only a run with the same ones tells what it takes."""
        models = set(self.models(epochs))
        return [run for run in self.timed if set(_models_of(run, epochs)) == models]

    def compute(self, epochs: float, model: str) -> int | None:
        """Training tokens through the encoder up to here, in those of a forward pass: a backward one counts twice."""
        tuned = self.entry(epochs, ENCODER).tokens
        own = 0 if model == ENCODER else self.entry(epochs, model).tokens
        return None if tuned is None or own is None else (1 + BACKWARD) * tuned + own

    def best_head(self, epochs: float, key: str, names: list[str] | None = None) -> str | None:
        """By held-out data, never by dev: of the heads that all seeds have, on all of the data."""
        found = {
            name: list(scores.values())
            for name in self.models(epochs)
            if is_head(self.entry(epochs, name)) and name != CONTROL and (names is None or name in names)
            for scores in [self.by_seed(epochs, name, key, HELD_OUT)]
            if len(scores) == len(self.seeds)
        }
        return best_by_mean(found)

    def analyses(self, key: str) -> dict[int, Any]:
        """An analysis by seed, of the runs that have it."""
        return {seed: run["analyses"][key] for seed, run in sorted(self.runs.items()) if key in run["analyses"]}

    def _models(self, seed: int, epochs: float) -> dict[str, Any]:
        return _models_of(self.runs[seed], epochs)


Experiments = dict[str, Experiment]
"""By name."""


def _models_of(run: dict[str, Any], epochs: float) -> dict[str, Any]:
    found: dict[str, Any] = run["snapshots"].get(f"{epochs:g}", {})
    return found


def _seconds(run: dict[str, Any], epochs: float, model: str) -> float | None:
    """Of fine-tuning for the encoder, of the pass for a head; None where the run has no such model, and for the
    baseline, which takes none."""
    models = _models_of(run, epochs)
    return None if model not in models or model == BASELINE else float(models[model].get("seconds") or 0.0)


def _passes(run: dict[str, Any], epochs: float) -> float:
    return sum({model["seconds"] for model in _models_of(run, epochs).values() if "head" in model})


def _fewest(
    alone: list[dict[str, Any]], runs: list[dict[str, Any]], seconds: Callable[[dict[str, Any]], float | None]
) -> Seconds | None:
    """Of the runs that had the GPU to themselves, or else of all."""
    for some, is_alone in ((alone, True), (runs, False)):
        found = [own for run in some for own in [seconds(run)] if own is not None]
        if found:
            return Seconds(min(found), is_alone)
    return None


def show_seconds(seconds: Seconds | None, digits: int) -> str | float | None:
    """For a table, where bounds are marked."""
    if seconds is None:
        return None
    return seconds.value if seconds.alone or seconds.value == 0 else f"≤ {seconds.value:,.{digits}f}"


@dataclass(frozen=True)
class Place:
    """A model at a snapshot of an experiment."""

    experiment: Experiment
    epochs: float
    model: str

    @property
    def exists(self) -> bool:
        return self.model in self.experiment.models(self.epochs)

    @property
    def parameters(self) -> int:
        return self.experiment.entry(self.epochs, self.model).parameters

    @property
    def trained_parameters(self) -> int:
        """Its own that learned: of LoRA and BitFit not all do."""
        return self.experiment.entry(self.epochs, self.model).trained_parameters or self.parameters

    def seeds(self, key: str) -> int:
        """How many have the figure."""
        return len(self.experiment.by_seed(self.epochs, self.model, key))

    def mean(self, key: str) -> Mean | None:
        return self.experiment.mean(self.epochs, self.model, key)

    def show(self, key: str) -> str | None:
        return self.experiment.show(self.epochs, self.model, key)

    @property
    def seconds(self) -> Seconds | None:
        return self.experiment.seconds(self.epochs, self.model)

    def passes(self, one_epoch: int | None) -> float | None:
        """What it took of the encoder to train, in forward passes over the training set."""
        compute = None if self.model == BASELINE else self.experiment.compute(self.epochs, self.model)
        return None if compute is None or not one_epoch else compute / one_epoch


def compared_seconds(*places: Place) -> list[float]:
    """Seconds of each; none at all where some can't be compared, since other runs shared the GPU."""
    found = [place.seconds for place in places]
    known = [seconds.value for seconds in found if seconds is not None and seconds.alone]
    return known if len(known) == len(places) else []


def to_text(run: dict[str, Any]) -> str:
    """JSON with a line for each model: what changed can be read."""
    parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in run.items() if key != "snapshots"]
    shots = []
    for epochs, models in run["snapshots"].items():
        lines = [f"   {json.dumps(name)}: {json.dumps(model)}" for name, model in models.items()]
        shots.append(f"  {json.dumps(epochs)}: {{\n" + ",\n".join(lines) + "\n  }")
    parts.append(' "snapshots": {\n' + ",\n".join(shots) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def is_head(entry: Entry) -> bool:
    """Whether a model is a head on all of the data."""
    return entry.head is not None and entry.data_fraction == 1


def kept_seeds(folder: Path = KEPT) -> dict[str, list[int]]:
    """The seeds that were kept of each experiment, by the names of the files."""
    found: dict[str, list[int]] = {}
    for path in sorted(folder.glob("*.json")):
        name, _, seed = path.stem.rpartition("_seed")
        found.setdefault(name, []).append(int(seed))
    return found


def load_kept(folder: Path = KEPT) -> Experiments:
    return {one.name: one for one in _gather(folder, _read(folder))}


def load_rates(folder: Path = KEPT) -> list[Experiment]:
    """Of each experiment and each learning rate but its own that it was run at."""
    return _gather(folder, _read(folder / RATES))


def by_encoder(experiments: Experiments, pattern: str) -> list[tuple[str, Experiment]]:
    """(encoder, experiment) for those that exist of a name such as squad2_{}_full1."""
    names = {title: pattern.format(short) for short, title in ENCODERS.items()}
    return [(title, experiments[name]) for title, name in names.items() if name in experiments]


def at_lower_rate(rates: list[Experiment]) -> Experiments:
    return {one.name: one for one in rates if one.lr == LOWER}


def _gather(folder: Path, runs: list[dict[str, Any]]) -> list[Experiment]:
    """Runs of one experiment at the same rate together, with what had the GPU to itself of that experiment."""
    found: dict[tuple[str, float | None], dict[int, dict[str, Any]]] = {}
    for run in runs:
        found.setdefault((run["config"], run.get("lr")), {})[run["seed"]] = run
    again = _read(folder / AGAIN)
    timed = again + [run for run in _read(folder / RATES) if (run["config"], run["lr"], run["seed"]) in ALONE]
    experiments = []
    for (name, lr), seeds in found.items():
        own = [run for run in timed if run["config"] == name]
        repeated = [run for run in again if run["config"] == name and run.get("lr") == lr]
        experiments.append(Experiment(name, seeds, repeated, own, lr))
    return experiments


def show_rate(lr: float) -> str:
    """As people write it: 2e-4."""
    return f"{lr:.0e}".replace("e-0", "e-")


def _read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
