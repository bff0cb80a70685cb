"""Which rows judge the candidates."""

import numpy as np
import pytest

from bertvision.errors import UserError
from bertvision.models.split import choose_split


def test_few_rows_are_judged_in_folds_that_hold_each_label_in_proportion() -> None:
    labels = [0] * 50 + [1] * 20 + [2] * 5
    split = choose_split([f"text {row}" for row in range(75)], labels, seed=0)
    assert split.how == "cv" and split.judged.tolist() == list(range(75))
    for number, held in enumerate(split.held):
        counts = np.bincount([labels[row] for row in held.tolist()], minlength=3)
        assert counts.tolist() == [10, 4, 1]
        assert not set(held.tolist()) & set(split.used(number).tolist())


@pytest.mark.parametrize(("rows", "expected"), [(2500, 500), (5000, 1000), (30_000, 2000)])
def test_many_rows_are_judged_on_a_held_out_part(rows: int, expected: int) -> None:
    split = choose_split([str(row) for row in range(rows)], [row % 4 for row in range(rows)], seed=0)
    assert split.how == "held_out" and len(split.held) == 1
    assert len(split.judged) == pytest.approx(expected, rel=0.1) and len(split.judged) >= 500
    assert len(split.used(0)) + len(split.judged) == rows


@pytest.mark.parametrize("rows", [60, 3000])
def test_equal_texts_are_never_on_both_sides(rows: int) -> None:
    texts = [f"text {row // 3}" for row in range(rows)]
    split = choose_split(texts, [row // 3 % 2 for row in range(rows)], seed=0)
    for number, held in enumerate(split.held):
        assert not {texts[row] for row in held.tolist()} & {texts[row] for row in split.used(number).tolist()}


def test_the_seed_decides_the_split() -> None:
    texts, labels = [str(row) for row in range(100)], [row % 2 for row in range(100)]
    first, again, other = (choose_split(texts, labels, seed) for seed in (0, 0, 1))
    assert [part.tolist() for part in first.held] == [part.tolist() for part in again.held]
    assert [part.tolist() for part in first.held] != [part.tolist() for part in other.held]


def test_rows_that_can_not_judge_a_model_are_refused() -> None:
    with pytest.raises(UserError, match="two different texts each"):
        choose_split(["a", "b", "c"], [0, 1, 2], seed=0)
    with pytest.raises(UserError, match="two different texts each"):
        choose_split(["a", "a", "b", "b"], [0, 0, 1, 1], seed=0)  # the same text twice
    with pytest.raises(UserError, match="too few"):
        choose_split(["a", "b"], None, seed=0)


def test_outputs_of_folds_come_back_in_the_order_of_the_rows() -> None:
    import torch

    split = choose_split([str(row) for row in range(20)], [row % 2 for row in range(20)], seed=0)
    joined = split.join([held.unsqueeze(1).float() for held in split.held])
    assert torch.equal(joined[:, 0], torch.arange(20).float())


def test_pairs_of_the_same_texts_are_never_on_both_sides_in_either_order() -> None:
    first, second = [f"a {row // 2}" for row in range(80)], [f"b {row // 2}" for row in range(80)]
    first[1::2], second[1::2] = second[1::2], first[1::2]
    split = choose_split(first, [row % 2 for row in range(80)], 0, second)
    for held in split.held:
        rows = held.tolist()
        assert {row // 2 for row in rows} & {row // 2 for row in range(80) if row not in rows} == set()


def test_pairs_that_share_a_text_are_judged_together_unless_the_group_would_be_large() -> None:
    # 40 passages with five questions each, and a sentence that is in 100 other pairs.
    first = [f"passage {row // 5}" for row in range(200)] + ["the same"] * 100
    second = [f"question {row}" for row in range(300)]
    split = choose_split(first, None, 0, second)
    assert sorted(split.judged.tolist()) == list(range(300))
    sides = [{first[row] for row in held.tolist()} for held in split.held]
    for number, side in enumerate(sides):
        others = set().union(*(other for at, other in enumerate(sides) if at != number))
        assert side & others == {"the same"}, "a passage is on one side only; the sentence is on all"
    assert max(map(len, split.held)) < 1.5 * min(map(len, split.held))
