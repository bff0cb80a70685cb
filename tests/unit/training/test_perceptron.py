"""Perceptrons that are trained in principal components and saved as heads on all inputs."""

import pytest
import torch
from tiny_training import random_states

from bertvision.encoder.states import StateShape
from bertvision.heads import HEADS, Target
from bertvision.kinds import LABEL
from bertvision.training.perceptron import Components, Recipe, train_perceptron

RECIPE = Recipe(epochs=30, lr=1e-2, dropout=0.0, input_dropout=0.0, least_steps=100)


def inputs(rows: int = 200, size: int = 30) -> torch.Tensor:
    """Three directions hold nearly all of the variance."""
    generator = torch.Generator().manual_seed(0)
    strong = torch.randn(rows, 3, generator=generator) @ torch.randn(3, size, generator=generator)
    return 5 + strong + 0.01 * torch.randn(rows, size, generator=generator)  # (row, input)


def test_components_are_the_directions_of_the_largest_variance() -> None:
    values = inputs()
    projected = Components.of(values, seed=0).project(values)  # (row, component)
    torch.testing.assert_close(projected.mean(0), torch.zeros(30), rtol=0, atol=1e-3)
    spread = projected.std(0)  # (component)
    assert float(spread[0]) == pytest.approx(4.0, rel=0.05) and float(spread[3:].max()) < 0.1
    standard = (values - values.mean(0)) / values.std(0, correction=0)
    singular = torch.linalg.svdvals(standard)  # (component)
    torch.testing.assert_close(spread[:3] / spread[0], singular[:3] / singular[0], rtol=1e-3, atol=1e-3)


def test_a_perceptron_learns_a_function_that_is_not_linear() -> None:
    values = inputs()
    components = Components.of(values, seed=0)
    projected = components.project(values)  # (row, component)
    targets = (projected[:, 0] * projected[:, 1] > 0).long()  # (row)
    found = train_perceptron(components, projected, targets, torch.ones(200), 2, 16, RECIPE, seed=0)
    assert found is not None and (found(values).argmax(1) == targets).float().mean() > 0.95


def test_rows_without_weight_are_not_learned() -> None:
    values = inputs()
    components = Components.of(values, seed=0)
    projected = components.project(values)
    targets = (projected[:, 0] > 0).long()  # (row)
    wrong = torch.where(torch.arange(200) % 2 == 0, targets, 1 - targets)  # every second label is wrong
    weights = (torch.arange(200) % 2 == 0).float()
    found = train_perceptron(components, projected, wrong, weights, 2, 16, RECIPE, seed=0)
    assert found is not None and (found(values).argmax(1) == targets).float().mean() > 0.95


def test_the_same_seed_ends_with_the_same_weights_and_a_stopped_training_with_none() -> None:
    values, weights = inputs(), torch.ones(200)
    components = Components.of(values, seed=0)
    given = components, components.project(values), (values[:, 0] > 5).long(), weights, 2, 8, RECIPE
    first, again, other = (train_perceptron(*given, seed=seed) for seed in (0, 0, 1))
    assert first is not None and again is not None and other is not None
    assert torch.equal(first.hidden, again.hidden) and not torch.equal(first.hidden, other.hidden)
    assert train_perceptron(*given, seed=0, should_stop=lambda: True) is None


def test_the_head_with_its_weights_predicts_the_same() -> None:
    shape = StateShape(4, 8, pooled=False)
    states = random_states(shape, [3] * 50)
    read = states.read("mean", "deviation").flatten(1)  # (row, input)
    components = Components.of(read, seed=0)
    targets = (read[:, 0] > 0).long()
    found = train_perceptron(components, components.project(read), targets, torch.ones(50), 2, 8, RECIPE, seed=0)
    assert found is not None
    head = HEADS["mlp"](HEADS["mlp"].Config(size=8), shape, Target(LABEL, 2)).eval()
    head.load_state_dict(found.state())
    torch.testing.assert_close(head(states), found(read))
