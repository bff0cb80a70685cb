"""The arithmetic of ensembles: combine the outputs of several models into outputs of the same form.

combined = kind.combine(outputs, features, "max")
weights = kind.fit_weights(outputs_of_held_out, held_out)
combined = kind.combine(outputs, features, "fitted", weights)
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from bertvision.data.windows import Features
from bertvision.errors import UserError, suggest

METHODS = ("max", "mean", "sum", "fitted")
LOWEST = -1e4  # lower bound of log-probabilities: keeps scores finite (and valid JSON)
LEAST_GAIN = 1e-9  # fitting weights stops when one iteration raises the log-likelihood by less
MOST_ITERATIONS = 1000

Float64 = npt.NDArray[np.float64]
Array = npt.NDArray[Any]


def check_method(method: str) -> None:
    if method not in METHODS:
        raise UserError(f"unknown ensemble method '{method}': {suggest(method, METHODS)}")


def combine_probabilities(
    log_probabilities: Callable[[Array, Features], Float64],
    outputs: list[Array],
    features: Features,
    method: str,
    weights: Array | None = None,
) -> npt.NDArray[np.float32]:
    """Return the finite log-probabilities of the ensemble.

    "max" and "mean" combine the members' probabilities, "sum" adds their logits, "fitted" is the mean of probabilities
    weighted by `weights`. The maxima do not sum to 1.
    """
    _check(outputs, method, weights)
    # Work with log-probabilities, so that outputs that all members find very unlikely keep their order. Process one
    # member at a time: a large split has millions of tokens, too many for the float64 values of all members at once.
    if method == "max":
        combined = log_probabilities(outputs[0], features)  # (token or window, output)
        for output in outputs[1:]:
            np.maximum(combined, log_probabilities(output, features), out=combined)
    elif method == "sum":
        total = np.zeros(outputs[0].shape)  # (token or window, output)
        for output in outputs:
            total += output
        combined = log_probabilities(total, features)
    else:
        shares = np.ones(len(outputs)) if weights is None else np.asarray(weights, dtype=np.float64)  # (member,)
        combined = _mean(log_probabilities, outputs, features, shares)
    return _finite(combined)


def combine_values(outputs: list[Array], method: str, weights: Array | None = None) -> npt.NDArray[np.float32]:
    """Return the values of the ensemble (window, 1). Values have no probabilities, so they are combined directly."""
    _check(outputs, method, weights)
    values = np.stack(outputs).astype(np.float64)  # (member, window, 1)
    if method == "max":
        return _finite(values.max(axis=0))
    if method in ("mean", "sum"):  # values have no logits, and their sum would be on another scale
        return _finite(values.mean(axis=0))
    return _finite(np.tensordot(np.asarray(weights, dtype=np.float64), values, axes=1))


def _check(outputs: list[Array], method: str, weights: Array | None) -> None:
    check_method(method)
    assert outputs, "an ensemble needs at least one member"
    for output in outputs:
        assert output.shape == outputs[0].shape, f"a member's outputs are {output.shape}, not {outputs[0].shape}"
    assert (weights is not None) == (method == "fitted"), f"'{method}' with weights {weights}"


def _finite(combined: Float64) -> npt.NDArray[np.float32]:
    assert np.isfinite(combined).all(), "an ensemble's outputs are not finite: a member has diverged"
    return combined.astype(np.float32)


def _mean(
    log_probabilities: Callable[[Array, Features], Float64], outputs: list[Array], features: Features, shares: Float64
) -> Float64:
    assert shares.shape == (len(outputs),) and (shares >= 0).all() and shares.sum() > 0, f"weights {shares}"
    total = np.full(outputs[0].shape, -np.inf)  # (token or window, output)
    for output, share in zip(outputs, shares / shares.sum(), strict=True):
        if share > 0:
            scores = log_probabilities(output, features)  # (token or window, output)
            scores += math.log(share)
            np.logaddexp(total, scores, out=total)
    return total


# -------------------------------------------------------------------------------------------------------- weights


def most_likely(gold: Float64) -> Float64:
    """Fit the weights (member,) of the mixture with the highest likelihood by expectation maximisation, given
    log-probabilities (observation, member).

    The log-likelihood is concave, and each iteration raises it: w_i becomes the mean over n of
    w_i p_i(n) / Σ_j w_j p_j(n).
    """
    assert len(gold), "weights need windows whose target is known"
    # A factor common to all members of an observation has no effect, so the highest probability of each is set to 1.
    chances = np.exp(gold - gold.max(axis=1, keepdims=True))  # (observation, member)
    weights = np.full(gold.shape[1], 1.0 / gold.shape[1])  # (member,)
    mixed = chances @ weights  # (observation,)
    likelihood = float(np.log(mixed).sum())
    for _ in range(MOST_ITERATIONS):
        weights = weights * (chances.T @ (1.0 / mixed)) / len(gold)  # (member,)
        mixed = chances @ weights
        before, likelihood = likelihood, float(np.log(mixed).sum())
        if likelihood - before < LEAST_GAIN:
            break
    scaled: Float64 = weights / weights.sum()  # (member,)
    return scaled


def fit_values(outputs: list[Array], targets: Array) -> Float64:
    """(member,) weights ≥ 0, fitted by least squares. Windows whose target (window,) is unknown are skipped."""
    from scipy.optimize import nnls

    known = ~np.isnan(targets)  # (window,)
    assert known.any(), "weights need windows whose target is known"
    values = np.concatenate(outputs, axis=1)[known].astype(np.float64)  # (observation, member)
    weights: Float64 = nnls(values, targets[known].astype(np.float64))[0]  # (member,)
    # If no member helps, use equal weights: better than a constant prediction of 0.
    return weights if weights.any() else np.full(len(outputs), 1.0 / len(outputs))
