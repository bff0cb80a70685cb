"""Convex fits: the optimum is scikit-learn's, whatever is solved together, and wherever the solver starts."""

import numpy as np
import pytest
import torch
from sklearn import linear_model
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertvision.training.convex import Linear, LogisticRegression, fit_ridge, measure_scales

ROWS, TIGHT = 160, 1e-6


def data(inputs: int, labels: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Correlated inputs far from zero, on different scales, and one that is constant."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(ROWS, inputs)) @ random.normal(size=(inputs, inputs)) * random.uniform(0.1, 9, inputs)
    targets = (values[:, :labels] / values[:, :labels].std(0) + random.normal(size=(ROWS, labels))).argmax(1)
    values = np.concatenate([values + 3, np.full((ROWS, 1), 0.25)], axis=1)
    return torch.tensor(values, dtype=torch.float32), torch.tensor(targets)


def three_weights() -> torch.Tensor:
    """All rows; all but every fifth; different weights."""
    weights = torch.ones(3, ROWS)
    weights[1, ::5] = 0
    weights[2] = torch.linspace(0.1, 2, ROWS)
    return weights  # (fit, row)


@pytest.mark.parametrize("labels", [2, 4])
@pytest.mark.parametrize("inputs", [20, 200])  # fewer inputs than rows, and more
@pytest.mark.parametrize("strength", [0.5, 20.0])
def test_logistic_regression_equals_that_of_scikit_learn(labels: int, inputs: int, strength: float) -> None:
    values, targets = data(inputs, labels)
    weights = three_weights()
    fits = LogisticRegression(values, targets, labels, weights).fit(strength, tolerance=TIGHT)
    for fit in range(3):
        used = weights[fit] > 0
        expected = make_pipeline(
            StandardScaler(), linear_model.LogisticRegression(C=1 / strength, tol=1e-9, max_iter=10_000)
        ).fit(values[used], targets[used], logisticregression__sample_weight=weights[fit][used].numpy())
        found = fits(values)[fit].softmax(1).numpy()  # (row, label)
        np.testing.assert_allclose(found, expected.predict_proba(values), atol=3e-3)
        assert np.abs(found - expected.predict_proba(values)).mean() < 2e-4


@pytest.mark.parametrize("inputs", [20, 200])
def test_ridge_regression_equals_that_of_scikit_learn(inputs: int) -> None:
    values, _ = data(inputs, 2)
    targets = values[:, :1] * 2 + torch.randn(ROWS, 1, generator=torch.Generator().manual_seed(0))  # (row, 1)
    weights, strengths = three_weights(), [0.3, 3.0, 30.0]
    for strength, fits in zip(strengths, fit_ridge(values, targets, strengths, weights), strict=True):
        for fit in range(3):
            used = weights[fit] > 0
            expected = make_pipeline(StandardScaler(), linear_model.Ridge(alpha=strength)).fit(
                values[used], targets[used, 0], ridge__sample_weight=weights[fit][used].numpy()
            )
            np.testing.assert_allclose(fits(values)[fit, :, 0], expected.predict(values), rtol=1e-3, atol=1e-3)


def test_fits_that_are_solved_together_equal_those_solved_alone() -> None:
    values, targets = data(20, 3)
    weights = three_weights()
    together = LogisticRegression(values, targets, 3, weights).fit(5.0, tolerance=TIGHT)
    for fit in range(3):
        alone = LogisticRegression(values, targets, 3, weights[fit : fit + 1]).fit(5.0, tolerance=TIGHT)
        torch.testing.assert_close(alone(values)[0], together(values)[fit], rtol=0, atol=5e-3)


def test_the_start_does_not_change_the_optimum() -> None:
    values, targets = data(20, 3)
    problem = LogisticRegression(values, targets, 3, torch.ones(1, ROWS))
    far = Linear(torch.randn(1, 21, 3, generator=torch.Generator().manual_seed(1)), torch.zeros(1, 3))
    from_far, from_zero = problem.fit(5.0, far, TIGHT), problem.fit(5.0, tolerance=TIGHT)
    # The same number may be added to all logits.
    torch.testing.assert_close(from_far(values).softmax(2), from_zero(values).softmax(2), rtol=0, atol=3e-3)


def test_sparse_inputs_are_fitted_without_scaling() -> None:
    random = np.random.default_rng(0)
    values = torch.tensor(random.poisson(0.3, (ROWS, 40)), dtype=torch.float32)
    targets = (values[:, 0] + values[:, 1] > values[:, 2]).long()  # (row)
    sparse = values.to_sparse()
    found = LogisticRegression(sparse, targets, 2, torch.ones(1, ROWS)).fit(1.0, tolerance=TIGHT)
    expected = linear_model.LogisticRegression(C=1.0, tol=1e-9, max_iter=10_000).fit(values, targets)
    np.testing.assert_allclose(found(values)[0].softmax(1), expected.predict_proba(values), atol=2e-3)


def test_a_fit_that_is_stopped_stays_where_it_is() -> None:
    values, targets = data(20, 3)
    problem = LogisticRegression(values, targets, 3, torch.ones(1, ROWS))
    stopped = problem.fit(5.0, should_stop=lambda: True)
    assert stopped.weight.abs().max() == 0 and stopped.bias.abs().max() == 0


def test_scales_are_those_of_the_rows_that_a_fit_reads() -> None:
    values = torch.tensor([[1.0, 7.0], [3.0, 7.0], [100.0, 7.0]])
    mean, scale = measure_scales(values, torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]))
    torch.testing.assert_close(mean[0], torch.tensor([2.0, 7.0]))
    torch.testing.assert_close(scale[0], torch.tensor([1.0, 1.0]))  # the second is constant
    assert float(scale[1, 0]) == pytest.approx(float(values[:, 0].std(correction=0)), rel=1e-5)
