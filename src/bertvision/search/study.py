"""An Optuna study with the members tried so far, from which the next populations are proposed.

A population depends only on the seed and the members before it, so drawing it again after a kill returns the same one.
"""

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.errors import UserError
from bertvision.search.space import Space

try:
    import optuna
    from optuna.samplers import BaseSampler, RandomSampler, TPESampler
    from optuna.trial import FrozenTrial, TrialState, create_trial
except ImportError:
    raise UserError("a search needs optuna: pip install 'bertvision[search]'.") from None

from bertvision.search.journal import open_journal  # needs optuna

STATES = {
    TrialState.COMPLETE: "complete", TrialState.PRUNED: "dropped", TrialState.FAIL: "failed",
    TrialState.RUNNING: "running", TrialState.WAITING: "running",
}  # fmt: skip


@dataclass(frozen=True)
class TriedMember:
    """One member of the study."""

    number: int
    population: int
    entry: dict[str, Any]
    """Its head and settings, as an entry of a config's `heads`."""
    state: str
    """complete, dropped (at a rung), failed (its outputs are NaN or infinite), or running."""
    score: float | None
    """On held-out data: at the end, or at the last rung of a dropped member."""
    rung: int
    """The number of rungs at which it was judged."""

    @property
    def name(self) -> str:
        return f"member_{self.number:03d}"


class Study:
    def __init__(self, path: Path, name: str, space: Space, sampler: str, seed: int) -> None:
        self.path, self.name, self.space, self.sampler, self.seed = path, name, space, sampler, seed

    @cached_property
    def _storage(self) -> optuna.storages.JournalStorage:
        return open_journal(self.path)

    @cached_property
    def _study(self) -> optuna.Study:
        """Opened on first use, and only in the main process. Its own sampler is never used: see `_draw`."""
        return optuna.create_study(
            storage=self._storage, study_name=self.name, direction="maximize", sampler=RandomSampler(0),
            load_if_exists=True,
        )  # fmt: skip

    # ------------------------------------------------------------------ members tried so far

    def tried(self) -> list[TriedMember]:
        return [_to_tried(trial) for trial in self._trials()]

    @property
    def facts(self) -> dict[str, Any]:
        """The study's user attributes: its inputs, and the seconds of its passes."""
        return dict(self._study.user_attrs)

    def note(self, key: str, value: Any) -> None:
        self._study.set_user_attr(key, value)

    def other_studies(self) -> dict[str, dict[str, Any]]:
        """User attributes of the other studies in the file, by name, in order of creation."""
        summaries = optuna.get_all_study_summaries(self._storage)
        return {one.study_name: dict(one.user_attrs) for one in summaries if one.study_name != self.name}

    # ------------------------------------------------------------------ populations

    def take_population(self, count: int) -> list[TriedMember]:
        """Return the unfinished population if there is one, otherwise a new one of `count` members."""
        trials = self._trials()
        last = trials[-1].user_attrs["population"] if trials else -1
        some = [trial for trial in trials if trial.user_attrs["population"] == last]
        if any(trial.state is TrialState.RUNNING for trial in some):
            count = some[0].user_attrs["of"]
        else:
            some, last = [], last + 1
        before = trials[: len(trials) - len(some)]
        if len(some) < count:  # a kill may have interrupted writing them
            self._study.add_trials(self._draw(before, count, last)[len(some) :])
        return [_to_tried(trial) for trial in self._trials()[len(before) :]]

    def _draw(self, before: list[FrozenTrial], count: int, population: int) -> list[FrozenTrial]:
        """Draw a population, one member at a time, from a sampler created for it."""
        found = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study = optuna.create_study(direction="maximize", sampler=self._build_sampler(len(before)))
            study.add_trials(before)
            for _ in range(count):
                trial = study.ask()
                notes = {"entry": self.space.draw(trial), "population": population, "of": count}
                found.append(
                    create_trial(
                        state=TrialState.RUNNING, params=trial.params, distributions=trial.distributions,
                        user_attrs=notes,
                    )
                )  # fmt: skip
        return found

    def _build_sampler(self, number: int) -> BaseSampler:
        seed = int(np.random.SeedSequence([self.seed, 5, number]).generate_state(1)[0])
        if self.sampler == "random":
            return RandomSampler(seed=seed)
        # `group`: draw the settings of one head jointly. `constant_liar`: keep away from members still running.
        return TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)

    # ------------------------------------------------------------------ outcomes

    def report(self, scores: dict[int, tuple[int, float]]) -> None:
        """Record intermediate scores: number → (rung, score). A rung reported before a kill is not overwritten."""
        trials = self._trials()
        for number, (rung, score) in scores.items():
            trial = trials[number]
            if rung not in trial.intermediate_values:
                optuna.trial.Trial(self._study, trial._trial_id).report(score, rung)

    def finish(self, outcomes: Iterable[tuple[int, str, float]]) -> None:
        """Record (number, state, score) of members whose pass has ended. A dropped one keeps its last rung's score."""
        for number, state, score in outcomes:
            if state == "complete":
                self._study.tell(number, score, skip_if_finished=True)
            else:
                ended = TrialState.PRUNED if state == "dropped" else TrialState.FAIL
                self._study.tell(number, state=ended, skip_if_finished=True)

    def _trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)


def quiet_optuna() -> None:
    """Turn off Optuna's own log messages, for the command line."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def _to_tried(trial: FrozenTrial) -> TriedMember:
    notes, rungs = trial.user_attrs, trial.intermediate_values
    score = trial.value if trial.state.is_finished() else (rungs[max(rungs)] if rungs else None)
    score = None if score is None or math.isnan(score) else score
    return TriedMember(trial.number, notes["population"], notes["entry"], STATES[trial.state], score, len(rungs))
