"""The choice among models that accuracy can't tell apart."""

from dataclasses import replace

import torch

from bertvision.encoder.states import StateShape
from bertvision.heads import Target
from bertvision.kinds import LABEL
from bertvision.models.candidates import Fitted, Rows, Trial
from bertvision.models.fit import _choose
from bertvision.models.split import Split

ROWS = 200


def trial(name: str, wrong: int, sure: float, role: str = "head") -> Trial:
    """Right on all rows but the first `wrong` ones; `sure` is the size of its logits."""
    outputs = torch.full((ROWS, 2), -sure)
    outputs[:, 0] = sure
    outputs[:wrong] *= -1
    return Trial(name, outputs, 10, 0.0, lambda: Fitted(None), role)


def choose(*trials: Trial) -> tuple[str, int]:
    rows = Rows(
        ["a"] * ROWS, torch.zeros(ROWS, dtype=torch.long), torch.ones(ROWS), {}, StateShape(2, 4, False),
        Target(LABEL, 2), 0,
    )  # fmt: skip
    split = Split([torch.arange(ROWS)[:100], torch.arange(ROWS)[100:]], ROWS)
    scores = {one.name: (100 * float((one.outputs.argmax(1) == 0).double().mean()), None, None) for one in trials}
    found, tied = _choose(list(trials), scores, rows, split)
    return found.name, tied


def test_a_model_that_is_clearly_better_is_chosen_whatever_its_loss() -> None:
    assert choose(trial("good", 5, sure=0.1), trial("poor", 60, sure=0.5)) == ("good", 1)


def test_among_models_that_are_as_good_the_lowest_loss_decides() -> None:
    # One more mistake in 200 rows: a difference of 0.5 points with a standard error of 0.5.
    assert choose(trial("first", 10, sure=0.1), trial("sure", 11, sure=1.0)) == ("sure", 2)


def test_the_baseline_is_never_chosen() -> None:
    assert choose(trial("majority", 0, sure=3.0, role="baseline"), trial("poor", 90, sure=0.5)) == ("poor", 1)


def test_a_tuned_encoder_is_preferred_among_models_that_are_as_good() -> None:
    tuned = trial("tuned_last_lr", 11, sure=0.1, role="tuned")
    assert choose(trial("untouched", 10, sure=1.0), tuned) == ("tuned_last_lr", 2)
    assert choose(trial("untouched", 5, sure=1.0), trial("tuned_last_lr", 60, sure=2.0, role="tuned"))[0] == "untouched"


def test_a_tuned_encoder_is_preferred_within_two_standard_errors() -> None:
    # 3 and 8 more mistakes in 200 rows: differences of 1.7 and 2.9 standard errors.
    few, many = (trial("tuned_last_lr", wrong, sure=0.1, role="tuned") for wrong in (3, 8))
    assert choose(trial("untouched", 0, sure=1.0), few) == ("tuned_last_lr", 1)
    assert choose(trial("untouched", 0, sure=1.0), many) == ("untouched", 1)


def test_among_tuned_models_that_are_as_good_the_average_or_else_the_first_is_chosen() -> None:
    last, all_layers, behind = (trial(f"tuned_{name}", wrong, 0.1, "tuned") for name, wrong in
                                (("last_lr", 11), ("linear", 10), ("poor", 30)))  # fmt: skip
    untouched, average = trial("untouched", 10, sure=1.0), replace(last, name="tuned_average", members=("a", "b"))
    assert choose(untouched, last, all_layers)[0] == "tuned_last_lr"
    assert choose(untouched, behind, all_layers)[0] == "tuned_linear"
    assert choose(untouched, last, all_layers, average)[0] == "tuned_average"
    assert choose(untouched, all_layers, replace(behind, members=("a", "b")))[0] == "tuned_linear"
