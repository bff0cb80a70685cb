from pathlib import Path

import numpy as np
import pytest
from tiny_blocks import accuracy
from tiny_reports import TinyRun, build_tiny_run

from bertvision.kinds import KINDS, Kind
from bertvision.report import wording as words


def test_differences_have_their_sign_and_nothing_has_no_minus() -> None:
    assert [words.signed(value) for value in (3.214, -0.5, -0.001, 0.0)] == ["+3.21", "−0.50", "+0.00", "+0.00"]
    assert [words.apart(value) for value in (3.214, -0.5, -0.001)] == ["3.21 above", "0.50 below", "level with"]


def test_numbers_have_a_true_minus_and_words_keep_their_hyphens() -> None:
    shown = "from -12.43 (-0.5 to 3), 1e-4, dev-0006, F1-2, 2020-01-31, a/-1, held-out"
    assert words.typeset(shown) == "from −12.43 (−0.5 to 3), 1e-4, dev-0006, F1-2, 2020-01-31, a/-1, held-out"
    assert [words.show_score(score) for score in (52.04, -3.06, -0.04)] == ["52.0 %", "−3.1 %", "0.0 %"]


def test_metrics_take_their_article() -> None:
    names = ("accuracy", "F1", "exact match", "the Pearson correlation", "macro F1")
    assert [words.with_article(name) for name in names] == [
        "an accuracy", "an F1", "an exact match", "a Pearson correlation", "a macro F1",
    ]  # fmt: skip


def test_a_p_that_would_read_as_zero_is_below_a_thousandth() -> None:
    assert [words.show_p(p) for p in (0.0004, 0.001, 0.25)] == ["p < 0.001", "p = 0.001", "p = 0.250"]


def test_a_spread_is_that_of_numpy_and_one_value_has_none() -> None:
    values = [60.0, 62.0, 67.0]
    assert words.with_spread(values) == f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"
    assert words.with_spread([62.0]) == "62.00" and words.deviation_of([62.0]) is None


def test_a_negative_mean_has_the_minus_of_other_cells_and_nothing_has_none() -> None:
    assert words.with_spread([-1.0, -3.0]) == "−2.00 ± 1.41"  # the square root of 2
    assert [words.with_spread([value]) for value in (-0.5, -0.001)] == ["−0.50", "0.00"]
    assert words.with_spread([-0.5]).startswith(words.MINUS)


def test_lists_and_sentences_read_as_people_write_them() -> None:
    assert [words.listed("abc"[:count]) for count in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
    assert words.joined("One.", "", "Two.") == "One. Two."
    assert [words.opening(text) for text in ("the encoder", "adapter_64 is")] == ["The encoder", "adapter_64 is"]


def test_models_are_named_without_their_seeds_and_notes_say_what_became_of_these(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    run.add("encoder", scores=accuracy(60.0))
    run.add("last_linear", scores=accuracy(60.0))
    run.add("mine_seed0", scores={}, group="mine", failed=True)
    for seed in (1, 2):
        run.add(f"mine_seed{seed}", scores=accuracy(60.0), group="mine", seed=seed)
    encoder, control, mine = run.write().groups(1.0)
    assert [words.title_of(group) for group in (encoder, control, mine)] == [
        "encoder alone", "last_linear (control)", "mine",
    ]  # fmt: skip
    assert [words.in_text(group) for group in (encoder, control, mine)] == [
        "the encoder alone", "the control (last_linear)", "mine",
    ]  # fmt: skip
    assert words.seeds_note([encoder, control]) == words.stand_in_note([encoder, control]) == ""
    assert "mean" in words.seeds_note([encoder, mine])
    assert (
        words.stand_in_note([mine] * 3)
        == "For heads with several seeds, the first seed that finished training is shown."
    )
    assert words.stand_in_note([mine]).endswith(": mine_seed1.") and "mine has 3 seeds;" in words.stand_in_note([mine])


@pytest.mark.parametrize(
    ("key", "name"), [("f1", "F1"), ("at_threshold.exact", "EM at the chosen threshold"), ("mine", "mine")]
)
def test_figures_have_names_and_those_at_a_threshold_say_so(key: str, name: str) -> None:
    assert words.figure_name(key) == name


@pytest.mark.parametrize("kind", KINDS.values())
def test_what_is_true_of_an_example_is_said_as_its_kind_asks(kind: Kind, tmp_path: Path) -> None:
    run = build_tiny_run(tmp_path, kind, examples=3, held_out=0.0)
    golds = [words.gold_of(run, example) for example in run.job.examples("dev")]
    expected = {"span": ["1900", "1901", "no answer"], "label": ["no", "maybe", "yes"], "score": [0.0, 0.5, 1.0]}
    assert golds == expected[str(kind)]
