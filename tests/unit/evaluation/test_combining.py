"""Ensembles against values computed by hand, fitted weights against scipy, and ensembles of a single member."""

import dataclasses
import math

import numpy as np
import pytest

from bertvision.data.examples import Example
from bertvision.data.windows import Features
from bertvision.errors import UserError
from bertvision.evaluation.combining import LOWEST, METHODS
from bertvision.evaluation.spans.answers import Candidate, SpanAnswer
from bertvision.evaluation.spans.combining import combine_answers
from bertvision.evaluation.spans.decode import decode_spans
from bertvision.kinds import KINDS, LABEL, SCORE, SPAN, Decoding, Kind
from bertvision.tasks.base import Task

PROBABILISTIC = (LABEL, SPAN)


def windows_of(lengths: list[int], start=None, end=None, target=None, example=None, offsets=None) -> Features:
    sizes = np.array(lengths, dtype=np.int32)
    zeros, count = np.zeros(len(lengths), dtype=np.int32), int(sizes.sum())
    return Features(
        input_ids=np.zeros(count, dtype=np.int32),
        type_ids=np.zeros(count, dtype=np.int8),
        lengths=sizes,
        starts=np.cumsum(sizes, dtype=np.int64) - sizes,
        example=np.arange(len(lengths), dtype=np.int32) if example is None else np.array(example, dtype=np.int32),
        offsets=-np.ones((count, 2), dtype=np.int32) if offsets is None else np.array(offsets, dtype=np.int32),
        start=zeros if start is None else np.array(start, dtype=np.int32),
        end=zeros if end is None else np.array(end, dtype=np.int32),
        target=np.full(len(lengths), np.nan, dtype=np.float32) if target is None else np.float32(target),
    )


def questions(windows: list[tuple[int, int, int]], words: int = 9) -> tuple[Features, list[Example]]:
    """[CLS] words [SEP] of passages "w0 w1 …"; a window is (question, first word, one past its last word)."""
    passage = " ".join(f"w{number}" for number in range(words))
    offsets = []
    for _, low, high in windows:
        offsets += [(-1, -1), *((3 * word, 3 * word + 2) for word in range(low, high)), (-1, -1)]
    features = windows_of(
        [high - low + 2 for _, low, high in windows], example=[question for question, *_ in windows], offsets=offsets
    )
    return features, [Example(f"q{index}", "who?", passage) for index in range(windows[-1][0] + 1)]


def random_outputs(kind: Kind, features: Features, members: int, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    shape = {
        SPAN: (len(features.input_ids), 2),
        LABEL: (len(features), 3),
        SCORE: (len(features), 1),
    }[kind]
    return [random.normal(0, 3, size=shape).astype(np.float32) for _ in range(members)]


def weights_for(method: str, *weights: float) -> np.ndarray | None:
    return np.array(weights) if method == "fitted" else None


def logits(probabilities: list, shift: float = 0.0) -> np.ndarray:
    return (np.log(np.array(probabilities)) + shift).astype(np.float32)


# ------------------------------------------------------------------------------------------------ raw outputs


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("max", [0.8, 0.6]),
        ("mean", [0.6, 0.4]),
        ("sum", [8 / 11, 3 / 11]),  # 0.8 · 0.4 : 0.2 · 0.6
        ("fitted", [0.5, 0.5]),  # weights 1/4 and 3/4
    ],
)
def test_labels_of_two_members_by_hand(method, expected):
    outputs = [logits([[0.8, 0.2]], shift=7.0), logits([[0.4, 0.6]], shift=-3.0)]
    combined = LABEL.combine(outputs, windows_of([4]), method, weights_for(method, 0.25, 0.75))
    assert combined.dtype == np.float32
    assert np.exp(combined) == pytest.approx(np.array([expected]), rel=1e-5)


@pytest.mark.parametrize(
    ("method", "starts", "ends"),
    [
        ("max", [0.5, 0.75, 0.5, 0.25, 0.5], [0.9, 0.8, 0.2, 0.7, 0.6]),
        ("mean", [0.375, 0.625, 0.375, 0.25, 0.375], [0.55, 0.45, 0.15, 0.45, 0.4]),
        ("sum", [0.25, 0.75, 0.4, 0.2, 0.4], [9 / 13, 4 / 13, 2 / 28, 14 / 28, 12 / 28]),
        ("fitted", [0.3, 0.7, 0.45, 0.25, 0.3], [0.34, 0.66, 0.18, 0.3, 0.52]),  # weights 1/5 and 4/5
    ],
)
def test_spans_of_two_members_by_hand(method, starts, ends):
    features = windows_of([2, 3])
    # Shifting all logits of a window must not matter: probabilities are over the tokens of one window.
    shift = np.array([4.0, 4.0, -9.0, -9.0, -9.0])
    first = np.stack([logits([0.5, 0.5, 0.25, 0.25, 0.5]), logits([0.9, 0.1, 0.1, 0.7, 0.2])], axis=1)
    second = np.stack([logits([0.25, 0.75, 0.5, 0.25, 0.25]), logits([0.2, 0.8, 0.2, 0.2, 0.6])], axis=1)
    outputs = [first + shift[:, None], second - 2 * shift[:, None]]
    combined = SPAN.combine(outputs, features, method, weights_for(method, 0.2, 0.8))
    assert np.exp(combined) == pytest.approx(np.array([starts, ends]).T, rel=1e-5)


@pytest.mark.parametrize(
    ("method", "expected"), [("max", [3.0, -1.0]), ("mean", [2.0, -2.5]), ("sum", [2.0, -2.5]), ("fitted", [6.5, -4.0])]
)
def test_scores_of_two_members_by_hand(method, expected):
    outputs = [np.float32([[1.0], [-4.0]]), np.float32([[3.0], [-1.0]])]
    combined = SCORE.combine(outputs, windows_of([4, 4]), method, weights_for(method, 0.5, 2.0))
    assert combined.dtype == np.float32
    assert combined[:, 0] == pytest.approx(np.array(expected))


@pytest.mark.parametrize("method", METHODS)
def test_an_ensemble_of_one_member_predicts_the_same_as_the_member(method):
    features, examples = questions([(0, 0, 6), (0, 4, 9), (1, 0, 9), (2, 0, 3)])
    output = random_outputs(SPAN, features, 1)[0]
    combined = SPAN.combine([output], features, method, weights_for(method, 0.3))
    alone = decode_spans(output[:, 0], output[:, 1], features, examples)
    decoded = decode_spans(combined[:, 0], combined[:, 1], features, examples)
    for answer, expected in zip(decoded, alone, strict=True):
        assert [(c.start, c.end) for c in answer.n_best] == [(c.start, c.end) for c in expected.n_best]
        assert [c.score for c in answer.n_best] == pytest.approx([c.score for c in expected.n_best], abs=1e-5)
        assert answer.null_lead == pytest.approx(expected.null_lead, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS.values())
@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_members_does_not_matter(kind, method):
    features = windows_of([3, 5, 1])
    outputs = random_outputs(kind, features, 4)
    combined = kind.combine(outputs, features, method, weights_for(method, 0.1, 0.2, 0.3, 0.4))
    turned = kind.combine(outputs[::-1], features, method, weights_for(method, 0.4, 0.3, 0.2, 0.1))
    assert turned == pytest.approx(combined, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("kind", PROBABILISTIC)
@pytest.mark.parametrize("method", ["max", "mean", "fitted"])
def test_an_ensemble_of_equal_members_predicts_the_same_as_one(kind, method):
    features = windows_of([3, 5, 1])
    output = random_outputs(kind, features, 1)[0]
    alone = kind.combine([output], features, "mean")
    combined = kind.combine([output] * 3, features, method, weights_for(method, 0.2, 0.5, 0.3))
    assert combined == pytest.approx(alone, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("kind", PROBABILISTIC)
def test_a_member_of_weight_0_changes_nothing(kind):
    features = windows_of([3, 5])
    outputs = random_outputs(kind, features, 3)
    combined = kind.combine(outputs, features, "fitted", np.array([0.5, 0.0, 0.5]))
    assert combined == pytest.approx(kind.combine([outputs[0], outputs[2]], features, "mean"), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS.values())
@pytest.mark.parametrize("method", METHODS)
def test_extreme_logits_produce_finite_outputs_and_keep_the_best_output(kind, method):
    features = windows_of([3, 4], target=[0, 1])
    outputs = [np.full_like(output, -1e4) for output in random_outputs(kind, features, 20)]
    for output in outputs:
        output[1 if kind is SPAN else (slice(None), -1)] = 1e4
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        combined = kind.combine(outputs, features, method, weights_for(method, *[1.0] * 20))
        assert np.isfinite(kind.fit_weights(outputs, features)).all()
    assert np.isfinite(combined).all()
    if kind is SPAN:
        assert combined[:3].argmax(axis=0).tolist() == [1, 1]
        assert np.exp(combined[3:]) == pytest.approx(np.full((4, 2), 0.25))  # all tokens of the second window are equal
    elif kind is LABEL:
        assert combined.argmax(axis=1).tolist() == [2, 2]


@pytest.mark.parametrize("method", METHODS)
def test_impossible_tokens_get_the_lowest_score_and_very_unlikely_ones_keep_their_order(method):
    features = windows_of([4])
    column = np.array([0.0, -2000.0, -3000.0, -np.inf], dtype=np.float32)  # e^-2000 is 0 in float64
    outputs = [np.stack([column, column], axis=1)] * 2
    combined = SPAN.combine(outputs, features, method, weights_for(method, 0.5, 0.5))
    factor = 2 if method == "sum" else 1
    assert combined[:, 1] == pytest.approx(np.array([0.0, -2000.0 * factor, -3000.0 * factor, LOWEST]))


@pytest.mark.parametrize("kind", PROBABILISTIC)
@pytest.mark.parametrize("method", METHODS)
def test_a_diverged_member_is_refused(kind, method):
    features = windows_of([3, 5])
    outputs = random_outputs(kind, features, 2)
    outputs[1][1, 1] = np.nan
    with pytest.raises(AssertionError, match="diverged"):
        kind.combine(outputs, features, method, weights_for(method, 0.5, 0.5))


@pytest.mark.parametrize("kind", KINDS.values())
@pytest.mark.parametrize("method", METHODS)
def test_without_windows_there_are_no_outputs(kind, method):
    features = windows_of([], target=[])
    outputs = random_outputs(kind, features, 2)
    combined = kind.combine(outputs, features, method, weights_for(method, 0.5, 0.5))
    assert combined.shape == outputs[0].shape


def test_members_with_different_windows_are_refused():
    outputs = [np.zeros((5, 2), dtype=np.float32), np.zeros((4, 2), dtype=np.float32)]
    with pytest.raises(AssertionError, match=r"\(4, 2\), expected \(5, 2\)"):
        SPAN.combine(outputs, windows_of([2, 3]), "max")


def test_an_unknown_method_suggests_the_nearest():
    with pytest.raises(UserError, match="did you mean 'mean'"):
        SCORE.combine([np.zeros((1, 1))], windows_of([2]), "meen")
    with pytest.raises(UserError, match="did you mean 'max'"):
        combine_answers([[]], "maxx")


def test_predictions_of_an_ensemble_are_decoded_like_those_of_a_model():
    task = Task("toy", LABEL, ("accuracy",), {}, labels=("no", "yes"))
    outputs = [logits([[0.8, 0.2], [0.1, 0.9]]), logits([[0.4, 0.6], [0.3, 0.7]])]
    features, examples = windows_of([4, 4]), [Example("a", "one"), Example("b", "two")]
    predictions = task.kind.decode(task, task.kind.combine(outputs, features, "max"), features, examples)
    expected = np.array([[0.8 / 1.4, 0.6 / 1.4], [0.3 / 1.2, 0.9 / 1.2]])
    assert predictions.probabilities == pytest.approx(expected, rel=1e-5)
    assert predictions.predicted() == [0, 1]


def test_maxima_are_compared_across_windows_without_normalising_them():
    """A passage of six words in two windows of three. In the first, two members are sure of different words: its maxima
    sum to 1.9. In the second both give the same word 0.6: its maxima sum to 1."""
    features, examples = questions([(0, 0, 3), (0, 3, 6)])
    first = [[0.02, 0.9, 0.03, 0.03, 0.02], [0.02, 0.03, 0.9, 0.03, 0.02]]
    second = [0.1, 0.1, 0.1, 0.6, 0.1]
    outputs = [np.stack([logits([*own, *second])] * 2, axis=1) for own in first]
    combined = SPAN.combine(outputs, features, "max")
    task = Task("toy", SPAN, ("f1",), {}, windowed=True)

    def best(are_logs: bool) -> tuple[str, float, float]:
        how = Decoding(n_best=2, longest=1, are_logs=are_logs)
        (answer,) = SPAN.decode(task, combined, features, examples, how).answers
        return answer.text, answer.n_best[0].score, answer.null_score

    # Unscaled: 0.9 · 0.9 against 0.6 · 0.6, and "no answer" 0.02 · 0.02 against 0.1 · 0.1.
    text, score, null = best(are_logs=True)
    assert text == "w0" and (math.exp(score), math.exp(null)) == pytest.approx((0.81, 0.0004), rel=1e-4)
    # Scaled, the first window would divide by its sum of maxima, 1.87, and the second by 1.
    text, score, null = best(are_logs=False)
    assert text == "w5" and (math.exp(score), math.exp(null)) == pytest.approx((0.36, (0.02 / 1.87) ** 2), rel=1e-3)


def test_maxima_over_windows_equal_those_of_a_search_through_all_spans():
    """The papers' ensemble, computed token by token: a softmax in each window for each member, the larger probability,
    the best product over all windows, and the least one for "no answer"."""
    windows = [(question, low, low + 4) for question in range(60) for low in (0, 2, 5)]
    features, examples = questions(windows)
    outputs = random_outputs(SPAN, features, 2, seed=3)
    expected: list[tuple[str, float, float]] = []
    for question in range(60):
        spans, silence = {}, []
        for row in range(3 * question, 3 * question + 3):
            part = slice(features.starts[row], features.starts[row] + features.lengths[row])
            start, end = (np.maximum(*(softmax(member[part, side]) for member in outputs)) for side in (0, 1))
            silence.append(start[0] * end[0])
            for first in range(1, 5):
                for last in range(first, min(first + 2, 5)):
                    words = [f"w{windows[row][1] + at - 1}" for at in range(first, last + 1)]
                    spans[" ".join(words)] = max(start[first] * end[last], spans.get(" ".join(words), 0.0))
        best = max(spans, key=lambda text: spans[text])
        expected.append((best, spans[best], min(silence)))
    task, combined = Task("toy", SPAN, ("f1",), {}, windowed=True), SPAN.combine(outputs, features, "max")
    found, scaled = (
        SPAN.decode(task, combined, features, examples, Decoding(n_best=3, longest=2, are_logs=are_logs)).answers
        for are_logs in (True, False)
    )
    assert [answer.text for answer in found] == [text for text, *_ in expected]
    scores = [(math.exp(answer.n_best[0].score), math.exp(answer.null_score)) for answer in found]
    assert np.array(scores) == pytest.approx(np.array([numbers for _, *numbers in expected]), rel=1e-5)
    # Maxima that are scaled to sum to 1 in each window give some other answers: the two are told apart.
    assert [answer.text for answer in scaled] != [text for text, *_ in expected]


# ---------------------------------------------------------------------------------------------------- weights


def likeliest_by_slsqp(gold: np.ndarray) -> np.ndarray:
    """Fit weights on the simplex for probabilities (observation, member) with a general-purpose optimiser."""
    from scipy.optimize import minimize

    members = gold.shape[1]
    found = minimize(
        lambda weights: -np.log(gold @ weights).mean(),
        np.full(members, 1.0 / members),
        jac=lambda weights: -(gold / (gold @ weights)[:, None]).mean(axis=0),
        method="SLSQP",
        bounds=[(0.0, 1.0)] * members,
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1.0},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert found.success, found.message
    return found.x


def softmax(row: np.ndarray) -> np.ndarray:
    return np.exp(row.astype(np.float64)) / np.exp(row.astype(np.float64)).sum()


def test_weights_for_labels_equal_those_of_a_general_optimiser():
    random = np.random.default_rng(3)
    target = random.integers(0, 3, size=200)
    features = windows_of([2] * 200, target=target)
    outputs = random_outputs(LABEL, features, 4, seed=3)
    for member, gain in enumerate([2.0, 1.0, 3.0, -2.0]):
        outputs[member][np.arange(200), target] += gain
    gold = np.array([[softmax(output[row])[target[row]] for output in outputs] for row in range(200)])
    weights = LABEL.fit_weights(outputs, features)
    expected = likeliest_by_slsqp(gold)
    assert weights == pytest.approx(expected, abs=1e-4)
    assert weights.sum() == pytest.approx(1.0) and (weights >= 0).all()
    assert (expected > 0.05).sum() >= 2 and expected.min() < 0.02  # otherwise the case is too easy


def test_weights_for_spans_equal_those_of_a_general_optimiser():
    random = np.random.default_rng(4)
    lengths = random.integers(3, 9, size=150).tolist()
    start = [int(random.integers(0, length)) for length in lengths]
    end = [int(random.integers(first, length)) for first, length in zip(start, lengths, strict=True)]
    features = windows_of(lengths, start, end)
    outputs = random_outputs(SPAN, features, 3, seed=4)
    for output, gain in zip(outputs, [1.0, 2.0, 3.0], strict=True):
        output[features.starts + start, 0] += gain
        output[features.starts + end, 1] += gain
    gold = [
        [softmax(output[features.tokens_of(window), column])[place[window]] for output in outputs]
        for column, place in enumerate([start, end])
        for window in range(150)
    ]
    weights = SPAN.fit_weights(outputs, features)
    assert weights == pytest.approx(likeliest_by_slsqp(np.array(gold)), abs=1e-4)


def test_weights_of_two_members_by_hand():
    # 2 log(0.2 + 0.6 w) + log(0.8 - 0.6 w) is highest where 2 (0.8 - 0.6 w) = 0.2 + 0.6 w.
    right, wrong = [0.8, 0.2], [0.2, 0.8]
    features = windows_of([4, 4, 4, 4], target=[0, 0, 0, np.nan])  # the last target is unknown
    outputs = [logits([right, right, wrong, wrong]), logits([wrong, wrong, right, right])]
    weights = LABEL.fit_weights(outputs, features)
    assert weights == pytest.approx(np.array([7 / 9, 2 / 9]), abs=1e-4)


def test_the_gold_token_of_a_window_without_an_answer_is_its_first():
    # As above: the first member is right about both starts, the second about the first end; they agree on the last end.
    features = windows_of([2, 3], start=[1, 0], end=[1, 0])
    outputs = [
        np.stack([logits([0.2, 0.8, 0.8, 0.1, 0.1]), logits([0.8, 0.2, 0.5, 0.1, 0.4])], axis=1),
        np.stack([logits([0.8, 0.2, 0.2, 0.7, 0.1]), logits([0.2, 0.8, 0.5, 0.4, 0.1])], axis=1),
    ]
    weights = SPAN.fit_weights(outputs, features)
    assert weights == pytest.approx(np.array([7 / 9, 2 / 9]), abs=1e-4)


def test_equal_members_get_equal_weights():
    features = windows_of([3] * 5, target=[0, 1, 2, 0, 1])
    output = random_outputs(LABEL, features, 1)[0]
    assert LABEL.fit_weights([output] * 4, features) == pytest.approx(np.full(4, 0.25))


@pytest.mark.parametrize("kind", PROBABILISTIC)
def test_a_member_that_is_always_right_gets_nearly_all_the_weight(kind):
    random = np.random.default_rng(5)
    place = random.integers(0, 3, size=100)
    features = windows_of([3] * 100, start=place, end=place, target=place)
    outputs = random_outputs(kind, features, 5, seed=5)
    rows = features.starts + place if kind is SPAN else np.arange(100)
    outputs[2][:] = 0.0
    outputs[2][rows, slice(None) if kind is SPAN else place] = 5.0
    weights = kind.fit_weights(outputs, features)
    assert weights.argmax() == 2 and weights[2] > 0.95


def test_weights_for_scores_are_the_non_negative_least_squares_solution():
    random = np.random.default_rng(6)
    values = random.normal(size=(30, 3)).astype(np.float32)
    target = 2.0 * values[:, 0] + 0.5 * values[:, 2]
    known = np.where(np.arange(30) < 25, target, np.nan)
    columns = [values[:, [member]] for member in range(3)]
    weights = SCORE.fit_weights(columns, windows_of([2] * 30, target=known))
    assert weights == pytest.approx(np.array([2.0, 0.0, 0.5]), abs=1e-5)
    # With orthogonal members, each weight is a projection, and negative ones become 0.
    columns = [np.float32([[1.0], [1.0]]), np.float32([[1.0], [-1.0]])]
    weights = SCORE.fit_weights(columns, windows_of([2, 2], target=[1.0, 4.0]))
    assert weights == pytest.approx(np.array([2.5, 0.0]))


def test_members_with_only_negative_weights_get_equal_weights():
    columns = [np.float32([[-1.0], [-2.0]]), np.float32([[-3.0], [-1.0]])]
    weights = SCORE.fit_weights(columns, windows_of([2, 2], target=[1.0, 2.0]))
    assert weights.tolist() == [0.5, 0.5]


def test_equal_members_for_scores_predict_the_same_as_one():
    column = np.float32([[1.0], [2.0], [4.0]])
    features = windows_of([2, 2, 2], target=[2.0, 3.0, 9.0])
    predicted = [
        SCORE.combine(outputs, features, "fitted", SCORE.fit_weights(outputs, features))
        for outputs in ([column], [column] * 3)
    ]
    assert predicted[1] == pytest.approx(predicted[0])
    assert predicted[0][:, 0] == pytest.approx(column[:, 0] * (2 + 6 + 36) / 21)  # Σ xy / Σ x²


# ---------------------------------------------------------------------------------------------------- answers


def answer(null: float, spans: dict[tuple[int, int], float], shift: float = 0.0) -> SpanAnswer:
    """Candidates in the passage "abcdefghij" with the given probabilities, best first."""
    n_best = [Candidate("abcdefghij"[a:b], a, b, math.log(p) + shift, p) for (a, b), p in spans.items()]
    return SpanAnswer("q0", *n_best[0][:4], math.log(null) + shift, null, n_best)


@pytest.mark.parametrize(
    ("method", "null", "spans"),
    [
        ("max", 0.5, {"efg": 0.65, "abc": 0.3}),
        ("mean", 0.3, {"efg": 0.425, "abc": 0.15}),  # "i" has 0.125 and is dropped: members have two candidates
    ],
)
def test_candidates_that_cover_the_same_characters_are_merged(method, null, spans):
    first = answer(0.5, {(0, 3): 0.3, (4, 7): 0.2}, shift=-2.0)
    second = answer(0.1, {(4, 7): 0.65, (8, 9): 0.25}, shift=1.0)
    combined = combine_answers([[first], [second]], method)[0]
    total = null + sum(spans.values())
    assert [candidate.text for candidate in combined.n_best] == list(spans)
    assert [candidate.score for candidate in combined.n_best] == pytest.approx([math.log(p) for p in spans.values()])
    assert [candidate.probability for candidate in combined.n_best] == pytest.approx(
        [p / total for p in spans.values()]
    )
    assert combined.null_score == pytest.approx(math.log(null))
    assert combined.null_probability == pytest.approx(null / total)
    assert (combined.id, combined.text, combined.start, combined.end, combined.score) == ("q0", *combined.n_best[0][:4])


def random_answers() -> tuple[list[SpanAnswer], list[SpanAnswer]]:
    """Two members' answers to the same questions, with passages split into different windows."""
    decoded = []
    for seed, windows in enumerate([[(0, 0, 6), (0, 4, 9), (1, 0, 9)], [(0, 0, 9), (1, 0, 5), (1, 4, 9)]]):
        features, examples = questions(windows)
        output = random_outputs(SPAN, features, 1, seed)[0]
        decoded.append(decode_spans(output[:, 0], output[:, 1], features, examples))
    return decoded[0], decoded[1]


@pytest.mark.parametrize("method", ["max", "mean"])
def test_answers_of_a_single_member_stay_unchanged(method):
    alone = random_answers()[0]
    for combined, expected in zip(combine_answers([alone], method), alone, strict=True):
        assert [c[:3] for c in combined.n_best] == [c[:3] for c in expected.n_best]
        assert [c.probability for c in combined.n_best] == pytest.approx([c.probability for c in expected.n_best])
        assert combined.null_lead == pytest.approx(expected.null_lead)
        assert combined.null_probability == pytest.approx(expected.null_probability)


@pytest.mark.parametrize("method", ["max", "mean"])
def test_combined_answers_are_distinct_sorted_limited_and_independent_of_the_order_of_members(method):
    first, second = random_answers()
    combined = combine_answers([first, second], method)
    assert combined == combine_answers([second, first], method)
    assert [answer.id for answer in combined] == ["q0", "q1"]
    for answer in combined:
        scores = [candidate.score for candidate in answer.n_best]
        assert scores == sorted(scores, reverse=True)
        assert len({(c.start, c.end) for c in answer.n_best}) == len(answer.n_best) == 20
        assert sum(c.probability for c in answer.n_best) + answer.null_probability == pytest.approx(1.0)


@pytest.mark.parametrize("method", ["max", "mean"])
def test_candidates_far_below_no_answer_keep_their_order_and_finite_scores(method):
    sure = SpanAnswer("q0", "a", 0, 1, -900.0, 0.0, 1.0, [Candidate("a", 0, 1, -900.0, 0.0)])
    surer = SpanAnswer("q0", "b", 1, 2, -800.0, 0.0, 1.0, [Candidate("b", 1, 2, -800.0, 0.0)])
    surest = SpanAnswer("q0", "c", 2, 3, -2e4, 0.0, 1.0, [Candidate("c", 2, 3, -2e4, 0.0)])
    longer = dataclasses.replace(surest, n_best=[*surest.n_best, Candidate("d", 3, 4, -3e4, 0.0)])
    combined = combine_answers([[sure], [surer], [longer]], method)[0]
    assert combined.text == "b" and [candidate.text for candidate in combined.n_best] == ["b", "a"]
    assert combine_answers([[surest]], method)[0].score == LOWEST


def test_a_passage_without_text_has_no_candidates():
    features, examples = questions([(0, 0, 0)], words=0)
    decoded = decode_spans(np.zeros(2), np.zeros(2), features, examples)
    combined = combine_answers([decoded, decoded], "mean")[0]
    assert combined.text == "" and combined.n_best == [] and combined.null_probability == 1.0
    assert combined.null_lead > 1e5


@pytest.mark.parametrize("method", ["sum", "fitted"])
def test_methods_that_need_common_tokens_are_refused_for_answers(method):
    with pytest.raises(UserError, match=f"'{method}'.*Use 'max' or 'mean'"):
        combine_answers([list(random_answers()[0])], method)


def test_members_that_answered_different_questions_are_refused():
    first, second = random_answers()
    with pytest.raises(UserError, match="same questions.*first member has 2, another has 1"):
        combine_answers([first, second[:1]], "max")
