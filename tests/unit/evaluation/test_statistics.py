"""Bootstrap scores against the metrics of the drawn examples; intervals and tests against scipy and arithmetic."""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from bertvision.errors import UserError
from bertvision.evaluation.metrics import LABEL_METRICS, SCORE_METRICS
from bertvision.evaluation.spans import decode as spans
from bertvision.evaluation.statistics import (
    BLOCK,
    Comparison,
    Draws,
    Spread,
    auc_measure,
    bootstrap,
    compare,
    holm,
    interval,
    mcnemar,
    mean_measure,
    spread,
)

CLOSE = 1e-4  # in percent: counts and credits are float32


def labels(examples, kinds, seed):
    """Gold labels, and predictions that are right about half of the time."""
    random = np.random.default_rng(seed)
    gold, guess = random.integers(kinds, size=(2, examples))
    return gold, np.where(random.random(examples) < 0.5, gold, guess)


def values(examples, steps, seed):
    """Gold values with ties (`steps` distinct values), and predictions near them without ties."""
    random = np.random.default_rng(seed)
    gold = random.integers(steps, size=examples) / 2
    return gold, gold + random.normal(size=examples)


def of_the_drawn(score, draws, *arrays):
    """Score each round's examples, with each example repeated as often as it was drawn."""
    rounds = np.concatenate(list(draws)).astype(int)  # (round, example)
    return np.array([score(*(np.repeat(array, counts) for array in arrays)) for counts in rounds])


# Draws


def test_each_round_draws_the_full_number_of_examples_and_depends_only_on_the_seed():
    draws = Draws(30, rounds=BLOCK + 7, seed=5)
    blocks = list(draws)
    assert [block.shape for block in blocks] == [(BLOCK, 30), (7, 30)]
    assert {block.dtype for block in blocks} == {np.dtype(np.float32)}
    counts = np.concatenate(blocks)
    assert (counts.sum(axis=1) == 30).all()
    assert np.array_equal(counts, np.concatenate(list(draws)))
    assert np.array_equal(counts, np.concatenate(list(Draws(30, rounds=2 * BLOCK, seed=5)))[: len(counts)])
    assert not np.array_equal(counts, np.concatenate(list(Draws(30, rounds=BLOCK + 7, seed=6))))


def test_counts_are_distributed_like_draws_with_replacement():
    counts = np.concatenate(list(Draws(40, rounds=2000)))
    assert counts.mean(axis=0) == pytest.approx(np.ones(40), abs=0.1)
    for often in range(4):
        assert (counts == often).mean() == pytest.approx(stats.binom.pmf(often, 40, 1 / 40), abs=0.005)


# Measures


def test_all_metrics_are_covered():
    assert set(LABEL_METRICS) >= {"accuracy", "f1", "f1_has_answer", "f1_no_answer", "f1_macro", "matthews"}
    assert set(SCORE_METRICS) >= {"pearson", "spearman"}


@pytest.mark.parametrize("metric", LABEL_METRICS)
@pytest.mark.parametrize(("examples", "kinds"), [(2, 2), (4, 3), (60, 2), (200, 5)])
def test_a_label_measure_equals_the_metric_on_the_drawn_examples(metric, examples, kinds):
    gold, predicted = labels(examples, kinds, seed=examples)
    draws = Draws(examples, rounds=40)
    expected = of_the_drawn(LABEL_METRICS[metric].figure, draws, gold, predicted)
    measure = LABEL_METRICS[metric].measure(gold, predicted)
    assert bootstrap([measure], draws)[0] == pytest.approx(expected, abs=CLOSE)
    everyone = measure(np.ones((1, examples), dtype=np.float32))
    assert everyone == pytest.approx([LABEL_METRICS[metric].figure(gold, predicted)], abs=CLOSE)


@pytest.mark.parametrize("metric", LABEL_METRICS)
@pytest.mark.parametrize(
    ("gold", "predicted"), [([0, 0], [0, 0]), ([1, 1], [0, 0]), ([0, 1], [1, 1]), ([2, 2], [2, 3])]
)
def test_an_undefined_label_measure_equals_the_metric(metric, gold, predicted):
    measure = LABEL_METRICS[metric].measure(np.array(gold), np.array(predicted))
    expected = LABEL_METRICS[metric].figure(np.array(gold), np.array(predicted))
    assert measure(np.ones((1, 2), dtype=np.float32)) == pytest.approx([expected], abs=CLOSE)


@pytest.mark.parametrize("metric", SCORE_METRICS)
@pytest.mark.parametrize(("examples", "steps"), [(3, 2), (5, 3), (50, 4), (300, 11)])
def test_a_score_measure_equals_the_metric_on_the_drawn_examples(metric, examples, steps):
    gold, predicted = values(examples, steps, seed=examples)
    draws = Draws(examples, rounds=60)
    for said in (predicted, np.round(predicted), 1e6 + predicted, 1e-6 * predicted):
        measure = SCORE_METRICS[metric].measure(gold, said)
        expected = of_the_drawn(SCORE_METRICS[metric].figure, draws, gold, said)
        assert bootstrap([measure], draws)[0] == pytest.approx(expected, abs=CLOSE)
        everyone = measure(np.ones((1, examples), dtype=np.float32))
        assert everyone == pytest.approx([SCORE_METRICS[metric].figure(gold, said)], abs=CLOSE)


@pytest.mark.parametrize("metric", SCORE_METRICS)
def test_constant_values_have_zero_correlation(metric):
    gold = np.random.default_rng(6).random(40)
    ones, one_example = np.ones((1, 40), dtype=np.float32), 7 * np.eye(40, dtype=np.float32)
    assert SCORE_METRICS[metric].measure(gold, np.full(40, 1 / 3))(ones) == [0.0]
    assert (SCORE_METRICS[metric].measure(gold, gold)(one_example) == 0.0).all()
    assert SCORE_METRICS[metric].measure(gold, gold)(ones) == pytest.approx([100.0])


@pytest.mark.parametrize("steps", [2, 5, 1000])
def test_auc_equals_that_of_the_drawn_examples(steps):
    random = np.random.default_rng(steps)
    positive = random.random(80) < 0.3
    lead = random.integers(steps, size=80) + steps * 0.3 * positive
    lead = np.round(lead)
    draws = Draws(80, rounds=40)
    expected = of_the_drawn(lambda gold, said: 100 * roc_auc_score(gold, said), draws, positive, lead)
    assert bootstrap([auc_measure(lead, positive)], draws)[0] == pytest.approx(expected, abs=CLOSE)
    everyone = auc_measure(lead, positive)(np.ones((1, 80), dtype=np.float32))
    assert everyone == pytest.approx([100 * spans._auc(lead, positive)], abs=CLOSE)


def test_auc_without_positives_or_negatives_is_nan():
    counts = np.array([[1, 1, 1], [3, 0, 0], [0, 1, 2]], dtype=np.float32)
    result = auc_measure(np.array([2.0, 1.0, 3.0]), np.array([True, False, False]))(counts)
    assert result == pytest.approx([50.0, np.nan, np.nan], nan_ok=True)
    assert np.isnan(auc_measure(np.array([2.0, 1.0, 3.0]), np.array([True, True, True]))(counts)).all()


def test_a_mean_equals_that_of_the_selected_drawn_examples():
    random = np.random.default_rng(2)
    credits, where = random.random(9000), random.random(9000) < 0.4
    draws = Draws(9000, rounds=5)
    rounds = bootstrap([mean_measure(credits), mean_measure(credits, where)], draws)
    assert rounds[0] == pytest.approx(of_the_drawn(lambda c: 100 * c.mean(), draws, credits), abs=CLOSE)
    assert rounds[1] == pytest.approx(of_the_drawn(lambda c, w: 100 * c[w].mean(), draws, credits, where), abs=CLOSE)


def test_a_mean_of_no_examples_is_nan_and_unselected_examples_do_not_matter():
    counts = np.array([[2, 0], [1, 1]], dtype=np.float32)
    credits, where = np.array([np.nan, 0.25]), np.array([False, True])
    assert mean_measure(credits, where)(counts) == pytest.approx([np.nan, 25.0], nan_ok=True)


def test_an_unknown_metric_suggests_the_nearest():
    with pytest.raises(UserError, match="did you mean 'accuracy'"):
        LABEL_METRICS["acuracy"]
    with pytest.raises(UserError, match="pearson, spearman"):
        SCORE_METRICS["accuracy"]


# Intervals


def test_an_interval_ignores_nan():
    assert interval(np.array([np.nan, *range(101), np.nan]), level=0.9) == pytest.approx((5.0, 95.0))
    assert all(math.isnan(end) for end in interval(np.array([np.nan, np.nan])))


def test_the_interval_of_a_mean_equals_scipys_and_is_close_to_the_normal_interval():
    credits = np.random.default_rng(0).beta(0.5, 0.5, size=400)
    error = 100 * credits.std() / math.sqrt(400)
    low, high = interval(bootstrap([mean_measure(credits)], Draws(400, rounds=4000))[0])
    # Each end is a quantile of 4,000 rounds: error sqrt(0.025·0.975 / 4000) / density(1.96) = 0.04 standard errors.
    theirs = stats.bootstrap((100 * credits,), np.mean, n_resamples=4000, method="percentile", rng=1)
    assert (low, high) == pytest.approx(tuple(theirs.confidence_interval), abs=0.2 * error)
    assert (low, high) == pytest.approx(
        (100 * credits.mean() - 1.96 * error, 100 * credits.mean() + 1.96 * error), abs=0.2 * error
    )
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.05)


def test_intervals_contain_the_true_value_about_as_often_as_their_level():
    samples = np.random.default_rng(4).random((400, 100)) < 0.7
    rounds = bootstrap([mean_measure(sample) for sample in samples], Draws(100, rounds=500))
    held = [low <= 70.0 <= high for low, high in map(interval, rounds)]
    # 400 intervals: standard error sqrt(0.95·0.05 / 400) = 0.011. With 100 examples, they are also slightly too narrow.
    assert 0.90 < np.mean(held) < 0.98


# Comparisons


def test_a_comparison_follows_from_its_rounds():
    ours = np.array([[3.0, 5.0, 1.0, 4.0], [5.0, 5.0, 1.0, 6.0]])  # mean over seeds 4, 5, 1, 5
    theirs = np.array([[2.0, 2.0, 2.0, 2.0]])
    result = compare([4.0, 6.0], [2.5], ours, theirs, level=0.5)
    # Differences 2, 3, -1, 3: one of four is not above 0. The quartiles of -1, 2, 3, 3 are 1.25 and 3.
    assert result == Comparison(difference=2.5, low=1.25, high=3.0, p=2 * (1 + 1) / (4 + 1))
    mirrored = compare([2.5], [4.0, 6.0], theirs, ours, level=0.5)
    assert mirrored == Comparison(difference=-2.5, low=-3.0, high=-1.25, p=result.p)


def test_a_model_does_not_differ_from_itself_and_nan_rounds_are_ignored():
    rounds = bootstrap([mean_measure(np.random.default_rng(1).random(50))], Draws(50, rounds=99))
    assert compare([50.0], [50.0], rounds, rounds) == Comparison(0.0, 0.0, 0.0, 1.0)
    broken = np.where(np.arange(99) < 60, np.nan, rounds + 1)
    result = compare([51.0], [50.0], broken, rounds)
    assert result.p == pytest.approx(2 / (39 + 1))  # none of the remaining 39 rounds
    assert (result.low, result.high) == pytest.approx((1.0, 1.0))


def test_equal_sums_tie_regardless_of_the_order_of_addition():
    random = np.random.default_rng(8)
    credits = random.integers(8, size=12_000) / 7
    once = np.ones((1, 12_000), dtype=np.float32)
    rounds = np.stack([mean_measure(random.permutation(credits))(once) for _ in range(41)], axis=1)  # (1, round)
    result = compare([50.0], [50.0], rounds[:, 1:], rounds[:, :1].repeat(40, axis=1))
    assert (result.low, result.high, result.p) == (0.0, 0.0, 1.0)


def test_p_of_a_paired_comparison_equals_that_of_the_paired_t_test():
    theirs, noise = np.random.default_rng(3).normal(size=(2, 600))
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    theirs = 0.5 + 0.1 * theirs
    ours = theirs + 0.05 * (noise + 1.6 / math.sqrt(600))  # so that t = 1.6
    draws = Draws(600, rounds=4000)
    rounds = bootstrap([mean_measure(ours), mean_measure(theirs)], draws)
    result = compare([100 * ours.mean()], [100 * theirs.mean()], rounds[:1], rounds[1:])
    expected = stats.ttest_rel(100 * ours, 100 * theirs)
    assert expected.statistic == pytest.approx(1.6)
    assert result.p == pytest.approx(expected.pvalue, abs=0.03)
    wanted = expected.confidence_interval(0.95)
    assert (result.low, result.high) == pytest.approx((wanted.low, wanted.high), abs=0.1 * (wanted.high - wanted.low))
    apart = compare([0.0], [0.0], rounds[:1], rounds[1:, ::-1])  # rounds from different draws
    assert apart.high - apart.low > 1.5 * (result.high - result.low)


# Tests


def test_mcnemar_by_hand():
    ours = np.array([1, 1, 1, 1, 1, 0, 1, 0])
    theirs = np.array([0, 0, 0, 0, 0, 1, 1, 0])
    # One of 6 disagreements is theirs: 2 · (1 + 6) / 2⁶.
    result = mcnemar(ours, theirs)
    assert (result.only_ours, result.only_theirs) == (5, 1)
    assert result.p == pytest.approx(14 / 64)
    assert mcnemar(theirs, ours).p == pytest.approx(14 / 64)


@pytest.mark.parametrize(("only_ours", "only_theirs"), [(0, 1), (3, 3), (4, 3), (12, 30), (900, 1000)])
def test_mcnemar_equals_the_binomial_test_on_the_disagreements(only_ours, only_theirs):
    ours = np.repeat([True, False, True, False], [only_ours, only_theirs, 7, 5])
    theirs = np.repeat([False, True, True, False], [only_ours, only_theirs, 7, 5])
    expected = stats.binomtest(only_ours, only_ours + only_theirs).pvalue
    assert mcnemar(ours, theirs).p == pytest.approx(expected)


def test_models_that_never_disagree_do_not_differ():
    assert mcnemar(np.array([True, False]), np.array([True, False])).p == 1.0


def test_holm_by_hand():
    adjusted = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    # In order: d 4 · 0.005 = 0.02, a 3 · 0.01 = 0.03, c 2 · 0.03 = 0.06, b 1 · 0.04 = 0.04 but not below c's.
    assert adjusted == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert list(adjusted) == ["a", "b", "c", "d"]
    assert holm({"a": 0.6, "b": 0.9}) == {"a": 1.0, "b": 1.0}
    assert holm({"a": 0.2}) == {"a": 0.2}
    assert holm({}) == {}


def test_spread_by_hand():
    # Mean 4; squared deviations (4 + 0 + 4) / 2.
    assert spread([2.0, 4.0, 6.0]) == Spread(mean=4.0, deviation=2.0, count=3)
    assert spread([7.5]) == Spread(mean=7.5, deviation=None, count=1)
