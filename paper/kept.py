"""The kept scores: one small JSON file per run in `paper/kept`, grouped into experiments with several seeds."""

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
from bertvision.report.wording import ENCODER as ENCODER_ALONE
from bertvision.report.wording import with_spread
from paper.names import ENCODERS

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "paper" / "kept"
AGAIN = "again"
"""Subfolder of runs repeated with the GPU to themselves: only their seconds count."""
RATES = "rates"
"""Subfolder of runs whose learning rate of fine-tuning differs from their experiment's: the candidates a rate was
chosen from, and the runs at the lower rate."""
LOWER = 5e-5
"""The learning rate all span encoders had before a better one was chosen. Claims and gains are shown for both."""
ALONE = {
    ("squad2_minilm", LOWER, 0),
    *((f"squad2_{encoder}_{peer}", 1e-3, 1) for encoder in ("gte", "minilm") for peer in ("lora", "bitfit")),
}
"""Runs in RATES, as (experiment, learning rate, seed), that had the GPU to themselves, as all runs in AGAIN had. All
other seconds are upper bounds."""
OLD_NAME = "encoder itself"
"""The name of the encoder alone in kept analyses."""


@dataclass(frozen=True)
class Mean:
    """A score over seeds."""

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
    """Whether the run had the GPU to itself. If not, the value is an upper bound."""


@dataclass(frozen=True)
class Experiment:
    """The runs of one experiment, one per seed."""

    name: str
    runs: dict[int, dict[str, Any]]
    """The content of the kept files, by seed."""
    again: list[dict[str, Any]] = field(default_factory=list)
    """Repeated runs at the same learning rate that had the GPU to themselves."""
    timed: list[dict[str, Any]] = field(default_factory=list)
    """Its runs at any learning rate that had the GPU to themselves: the rate does not affect the time."""
    lr: float | None = None
    """The learning rate of fine-tuning; None: the experiment's own."""

    @property
    def title(self) -> str:
        """The arguments that repeat it."""
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
        """The models that any seed has, in table order."""
        return list(dict.fromkeys(name for seed in self.seeds for name in self._models(seed, epochs)))

    def entry(self, epochs: float, model: str) -> Entry:
        """The facts of a model that are the same for all seeds, such as parameters and kind of head."""
        found = next(self._models(seed, epochs)[model] for seed in self.seeds if model in self._models(seed, epochs))
        return build_entry(model, epochs, found)

    def tokens(self, epochs: float, model: str) -> int:
        """Tokens that training sent through the encoder."""
        found = self.entry(epochs, model).tokens
        assert found is not None, f"{self.name} did not record the tokens of {model}"
        return found

    def by_seed(self, epochs: float, model: str, key: str, split: str = "dev") -> dict[int, float]:
        """A score by seed, for the seeds that have it. A dot in the key reads inside `at_threshold`."""
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
        """The mean and standard deviation over seeds, for a table."""
        mean = self.mean(epochs, model, key)
        return None if mean is None else str(mean)

    def seconds(self, epochs: float, model: str) -> Seconds | None:
        """Seconds of fine-tuning up to the snapshot, plus the pass for a head: the fastest of the runs that had the
        GPU to themselves, or else of all runs."""
        tuned = _fewest(self.timed, list(self.runs.values()), lambda run: _seconds(run, epochs, ENCODER))
        if model == ENCODER or tuned is None:
            return tuned
        own = _fewest(self._timed_alike(epochs), list(self.runs.values()), lambda run: _seconds(run, epochs, model))
        return None if own is None else Seconds(tuned.value + own.value, tuned.alone and own.alone)

    def seconds_of_passes(self) -> Seconds | None:
        """Seconds of all head passes of all snapshots. Heads that read every token train in a separate pass."""
        shots = self.head_snapshots
        alike = [run for run in self.timed if all(run in self._timed_alike(epochs) for epochs in shots)]
        return _fewest(alike, list(self.runs.values()), lambda run: sum(_passes(run, epochs) for epochs in shots))

    def _timed_alike(self, epochs: float) -> list[dict[str, Any]]:
        """Timed runs with the same heads. All heads of a run share a pass, so other runs are not comparable."""
        models = set(self.models(epochs))
        return [run for run in self.timed if set(_models_of(run, epochs)) == models]

    def compute(self, epochs: float, model: str) -> int | None:
        """Training tokens through the encoder up to here, in units of a forward pass: a backward pass counts twice."""
        tuned = self.entry(epochs, ENCODER).tokens
        own = 0 if model == ENCODER else self.entry(epochs, model).tokens
        return None if tuned is None or own is None else (1 + BACKWARD) * tuned + own

    def best_head(self, epochs: float, key: str, names: list[str] | None = None) -> str | None:
        """The best head on held-out data, among the heads that all seeds have and that saw all of the data."""
        found = {
            name: list(scores.values())
            for name in self.models(epochs)
            if is_head(self.entry(epochs, name)) and name != CONTROL and (names is None or name in names)
            for scores in [self.by_seed(epochs, name, key, HELD_OUT)]
            if len(scores) == len(self.seeds)
        }
        return best_by_mean(found)

    def analyses(self, key: str) -> dict[int, Any]:
        """An analysis by seed, for the runs that have it."""
        return {seed: run["analyses"][key] for seed, run in sorted(self.runs.items()) if key in run["analyses"]}

    def rows_at(self, key: str, epochs: float) -> dict[int, list[dict[str, Any]]]:
        """The rows of an analysis at a snapshot, by seed, for the runs that have some. Rows without epochs are of the
        last snapshot with heads: of the only one, or of a file kept by an earlier version."""
        last = self.head_snapshots[-1] if self.head_snapshots else None
        found = {
            seed: [row for row in rows if row.get("epochs", last) == epochs]
            for seed, rows in self.analyses(key).items()
        }
        return {seed: rows for seed, rows in found.items() if rows}

    def _models(self, seed: int, epochs: float) -> dict[str, Any]:
        return _models_of(self.runs[seed], epochs)


Experiments = dict[str, Experiment]
"""By name."""


def _models_of(run: dict[str, Any], epochs: float) -> dict[str, Any]:
    found: dict[str, Any] = run["snapshots"].get(f"{epochs:g}", {})
    return found


def _seconds(run: dict[str, Any], epochs: float, model: str) -> float | None:
    """Seconds of fine-tuning for the encoder, of the pass for a head. None for the baseline and for missing models."""
    models = _models_of(run, epochs)
    return None if model not in models or model == BASELINE else float(models[model].get("seconds") or 0.0)


def _passes(run: dict[str, Any], epochs: float) -> float:
    return sum({model["seconds"] for model in _models_of(run, epochs).values() if "head" in model})


def _fewest(
    alone: list[dict[str, Any]], runs: list[dict[str, Any]], seconds: Callable[[dict[str, Any]], float | None]
) -> Seconds | None:
    """The fastest of the runs that had the GPU to themselves, or else of all runs."""
    for some, is_alone in ((alone, True), (runs, False)):
        found = [own for run in some for own in [seconds(run)] if own is not None]
        if found:
            return Seconds(min(found), is_alone)
    return None


def show_seconds(seconds: Seconds | None, digits: int) -> str | float | None:
    """Seconds for a table, with upper bounds marked."""
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
        """Its parameters that were trained. With LoRA and BitFit most are frozen."""
        return self.experiment.entry(self.epochs, self.model).trained_parameters or self.parameters

    def seeds(self, key: str) -> int:
        """The number of seeds that have a score."""
        return len(self.experiment.by_seed(self.epochs, self.model, key))

    def mean(self, key: str) -> Mean | None:
        return self.experiment.mean(self.epochs, self.model, key)

    def show(self, key: str) -> str | None:
        return self.experiment.show(self.epochs, self.model, key)

    @property
    def seconds(self) -> Seconds | None:
        return self.experiment.seconds(self.epochs, self.model)

    def passes(self, one_epoch: int | None) -> float | None:
        """What training cost, in forward passes of the training set through the encoder."""
        compute = None if self.model == BASELINE else self.experiment.compute(self.epochs, self.model)
        return None if compute is None or not one_epoch else compute / one_epoch


def compared_seconds(*places: Place) -> list[float]:
    """Seconds of each model; empty if any of the runs shared the GPU."""
    found = [place.seconds for place in places]
    known = [seconds.value for seconds in found if seconds is not None and seconds.alone]
    return known if len(known) == len(places) else []


def to_text(run: dict[str, Any]) -> str:
    """JSON with one line per model, so that diffs are readable."""
    parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in run.items() if key != "snapshots"]
    shots = []
    for epochs, models in run["snapshots"].items():
        lines = [f"   {json.dumps(name)}: {json.dumps(model)}" for name, model in models.items()]
        shots.append(f"  {json.dumps(epochs)}: {{\n" + ",\n".join(lines) + "\n  }")
    parts.append(' "snapshots": {\n' + ",\n".join(shots) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def is_head(entry: Entry) -> bool:
    """Whether a model is a head that saw all of the data."""
    return entry.head is not None and entry.data_fraction == 1


def kept_seeds(folder: Path = KEPT) -> dict[str, list[int]]:
    """The kept seeds of each experiment, from the file names."""
    found: dict[str, list[int]] = {}
    for path in sorted(folder.glob("*.json")):
        name, _, seed = path.stem.rpartition("_seed")
        found.setdefault(name, []).append(int(seed))
    return found


def load_kept(folder: Path = KEPT) -> Experiments:
    return {one.name: one for one in _gather(folder, _read(folder))}


def load_rates(folder: Path = KEPT) -> list[Experiment]:
    """One experiment for each learning rate, other than its own, that it was run at."""
    return _gather(folder, _read(folder / RATES))


def by_encoder(experiments: Experiments, pattern: str) -> list[tuple[str, Experiment]]:
    """(encoder, experiment) for each encoder that has an experiment of a name such as squad2_{}_full1."""
    names = {title: pattern.format(short) for short, title in ENCODERS.items()}
    return [(title, experiments[name]) for title, name in names.items() if name in experiments]


def at_lower_rate(rates: list[Experiment]) -> Experiments:
    return {one.name: one for one in rates if one.lr == LOWER}


def _gather(folder: Path, runs: list[dict[str, Any]]) -> list[Experiment]:
    """Group runs by experiment and learning rate, and add the experiment's timed runs."""
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
    """A learning rate as people write it: 2e-4."""
    return f"{lr:.0e}".replace("e-0", "e-")


def _read(folder: Path) -> list[dict[str, Any]]:
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.json"))]
    return [json.loads(text.replace(OLD_NAME, ENCODER_ALONE)) for text in texts]
