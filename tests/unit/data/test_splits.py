from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.data import spooled
from bertvision.data.examples import Example
from bertvision.data.splits import draw, hold_out
from bertvision.errors import UserError


def articles(sizes: list[int], passages: int = 3) -> list[Example]:
    """Articles with these numbers of questions, each spread over a few passages."""
    return [
        Example(f"{article}-{number}", "q", f"passage {article}.{number % passages}", group=f"article {article}")
        for article, size in enumerate(sizes)
        for number in range(size)
    ]


def ids(examples: Sequence[Example]) -> list[str]:
    return [example.id for example in examples]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.floats(0.01, 0.6), st.integers(0, 1000))
def test_training_and_held_out_examples_are_disjoint_ordered_and_complete(
    sizes: list[int], share: float, seed: int
) -> None:
    examples = articles(sizes)
    if len(examples) < 2:
        return
    kept, held = hold_out(examples, share, seed)
    assert kept and held and not set(ids(kept)) & set(ids(held))
    order = {example.id: place for place, example in enumerate(examples)}
    for part in (kept, held):
        assert [order[name] for name in ids(part)] == sorted(order[name] for name in ids(part))
    assert len(kept) + len(held) == len(examples)
    again = hold_out(examples, share, seed)
    assert (ids(again[0]), ids(again[1])) == (ids(kept), ids(held))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.05, 0.2])
def test_whole_articles_stay_together_and_the_share_is_about_right(share: float, seed: int) -> None:
    examples = articles([5 + number % 11 for number in range(80)])  # 5 to 15 questions each
    kept, held = hold_out(examples, share, seed)
    assert not {example.group for example in kept} & {example.group for example in held}
    assert share * len(examples) <= len(held) + 1 and len(held) < share * len(examples) + 15


@pytest.mark.parametrize("seed", range(5))
def test_if_articles_are_too_large_whole_passages_stay_together(seed: int) -> None:
    examples = articles([300], passages=60)
    kept, held = hold_out(examples, 0.05, seed)
    assert len(held) == 15 and not {example.text_pair for example in kept} & {example.text_pair for example in held}


def test_one_passage_alone_is_still_split() -> None:
    kept, held = hold_out(articles([10], passages=1), 0.05, 0)
    assert kept and held and len(kept) >= len(held)


@pytest.mark.parametrize(
    ("count", "share", "expected"), [(100, 0.05, 5), (2490, 0.05, 124), (10, 0.01, 1), (2, 0.9, 1)]
)
def test_examples_without_groups_are_drawn_one_by_one(count: int, share: float, expected: int) -> None:
    examples = [Example(str(number), "text", target=0) for number in range(count)]
    assert len(hold_out(examples, share, 0)[1]) == expected


def test_pairs_that_share_a_second_text_are_not_a_group() -> None:
    examples = [Example(str(number), "text", "the same", target=0) for number in range(100)]
    assert len(hold_out(examples, 0.1, 0)[1]) == 10


def test_another_seed_holds_out_other_examples() -> None:
    examples = [Example(str(number), "text", target=0) for number in range(100)]
    assert ids(hold_out(examples, 0.1, 0)[1]) != ids(hold_out(examples, 0.1, 1)[1])


def test_a_share_of_zero_holds_out_nothing_and_too_few_examples_are_refused() -> None:
    one = [Example("1", "text", target=0)]
    assert hold_out(one, 0, 0) == (one, [])
    for few in ([], one):
        with pytest.raises(UserError, match="data.hold_out=0"):
            hold_out(few, 0.05, 0)


def test_a_draw_is_without_replacement_in_order_and_by_seed() -> None:
    examples = [Example(str(number), "text", target=0) for number in range(100)]
    chosen = ids(draw(examples, 30, 1))
    assert len(set(chosen)) == 30 and [int(name) for name in chosen] == sorted(int(name) for name in chosen)
    assert chosen == ids(draw(examples, 30, 1)) != ids(draw(examples, 30, 2))
    assert draw(examples, None, 0) == examples == draw(examples, 100, 0) == draw(examples, 1000, 0)


@pytest.mark.parametrize(
    ("count", "held"),
    [(10, 2), (100, 20), (2_000, 400), (2_500, 500), (5_000, 500), (10_000, 500), (20_000, 1_000), (100_000, 5_000)],
)
def test_without_a_share_few_examples_are_not_too_few_to_choose_by(count: int, held: int) -> None:
    examples = [Example(str(number), "text") for number in range(count)]
    assert len(hold_out(examples, None, 0)[1]) == held


def held_by_dictionaries(examples: list[Example], share: float, seed: int) -> list[str]:
    """The same rule, with a list of rows for each group."""
    wanted = max(1, round(share * len(examples)))
    held: set[int] = set()
    for key in (lambda one: one.group or one.id, lambda one: one.text_pair or one.id):
        groups: dict[str, list[int]] = {}
        for row, one in enumerate(examples):
            groups.setdefault(key(one), []).append(row)
        held = set()
        for number in np.random.default_rng([seed, 2]).permutation(len(groups)):
            if len(held) >= wanted:
                break
            held.update(list(groups.values())[number])
        if len(held) <= max(2 * wanted, wanted + 2):
            break
    if len(held) >= len(examples):
        held = set(sorted(held)[: len(examples) // 2])
    return [examples[row].id for row in sorted(held)]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=60),
    st.booleans(),
    st.floats(0.01, 0.9),
    st.integers(0, 1000),
)
def test_the_held_out_part_is_that_of_groups_in_dictionaries(
    drawn: list[tuple[int, int]], has_groups: bool, share: float, seed: int
) -> None:
    examples = [
        Example(str(row), "q", f"passage {passage}", group=f"article {article}" if has_groups else None)
        for row, (article, passage) in enumerate(drawn)
    ]
    kept, held = hold_out(examples, share, seed)
    assert ids(held) == held_by_dictionaries(examples, share, seed)
    assert ids(kept) == [one.id for one in examples if one.id not in set(ids(held))]


@pytest.mark.parametrize("group", [None, "article"])
def test_splits_of_examples_on_disk_are_those_of_a_list(group: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = [Example(str(row), "q", group=group and f"{group} {row % 37}") for row in range(500)]
    monkeypatch.setattr(spooled, "MOST_EXAMPLES", 10)
    on_disk = spooled.collect_examples(iter(examples))
    assert not isinstance(on_disk, list)
    for found, wanted in zip(hold_out(on_disk, 0.1, 3), hold_out(examples, 0.1, 3), strict=True):
        assert list(found) == list(wanted)
    assert list(draw(on_disk, 123, 3)) == list(draw(examples, 123, 3))
    assert draw(on_disk, 500, 3) is on_disk
