import torch

from bertvision.encoder.states import HiddenStates, PackedTokens, Packing, StateShape


def make_states() -> HiddenStates:
    lengths = torch.tensor([3, 1, 4])
    return HiddenStates(
        lengths,
        tokens=torch.randn(8, 5, 6),
        cls=torch.randn(3, 6, 6),
        mean=torch.randn(3, 5, 6),
        pooled=True,
    )


def test_packing_counts_starts_bounds_owners_and_positions() -> None:
    packing = Packing.of(torch.tensor([3, 1, 4]))
    assert packing.starts.tolist() == [0, 3, 4]
    assert packing.bounds.tolist() == [0, 3, 4, 8] and packing.bounds.dtype == torch.int32
    assert packing.owners.tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    assert packing.positions.tolist() == [0, 1, 2, 0, 0, 1, 2, 3]


def test_packed_tokens_are_laid_end_to_end() -> None:
    tokens = PackedTokens.from_lists([[2, 9], [2, 7, 8]], [[0, 1], [0, 0, 1]])
    assert tokens.input_ids.tolist() == [2, 9, 2, 7, 8]
    assert tokens.type_ids.tolist() == [0, 1, 0, 0, 1]
    assert tokens.position_ids.tolist() == [0, 1, 0, 1, 2]
    assert (len(tokens), tokens.longest, tokens.lengths.tolist()) == (2, 3, [2, 3])
    assert PackedTokens.from_lists([[4, 5]]).type_ids.tolist() == [0, 0]


def test_last_cls_is_never_the_pooled_output() -> None:
    states = make_states()
    assert torch.equal(states.last_cls, states.cls[:, 4]) and torch.equal(states.pooled_output, states.cls[:, 5])
    unpooled = HiddenStates(states.lengths, cls=states.cls)
    assert torch.equal(unpooled.last_cls, states.cls[:, 5])


def test_last_tokens_are_the_last_layer_with_or_without_the_other_layers() -> None:
    states = make_states()
    alone = HiddenStates(states.lengths, last=states.tokens[:, -1])
    assert torch.equal(states.last_tokens, alone.last_tokens)


def test_a_pooler_adds_one_state_to_cls() -> None:
    large = StateShape(layers=25, hidden=1024, pooled=True)
    assert [large.read_layers(what) for what in ("tokens", "cls", "mean")] == [25, 26, 25]
    assert StateShape(25, 1024, pooled=False).read_layers("cls") == 25


def test_split_returns_consecutive_views() -> None:
    states = make_states()
    first, second = states.split([2, 1])
    assert first.lengths.tolist() == [3, 1] and second.lengths.tolist() == [4]
    assert torch.equal(first.tokens, states.tokens[:4]) and torch.equal(second.tokens, states.tokens[4:])
    assert torch.equal(second.cls, states.cls[2:]) and torch.equal(second.mean, states.mean[2:])
    assert second.tokens.data_ptr() == states.tokens[4:].data_ptr() and second.pooled
    assert second.starts.tolist() == [0] and second.last is None


def test_pad_and_unpad_are_inverse_and_pass_gradients() -> None:
    states = make_states()
    values = torch.randn(8, 2, requires_grad=True)
    padded, mask = states.pad(values, fill=-1.0)
    assert padded.shape == (3, 4, 2) and mask.tolist() == [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]
    assert torch.equal(padded[0, :3], values[:3]) and (padded[~mask] == -1).all()
    assert torch.equal(states.unpad(padded), values)
    (states.unpad(padded) * 2).sum().backward()
    assert torch.equal(values.grad, torch.full((8, 2), 2.0))


def test_to_changes_the_dtype_of_states_and_keeps_lengths() -> None:
    half = make_states().to(dtype=torch.bfloat16)
    assert half.tokens.dtype == half.cls.dtype == half.mean.dtype == torch.bfloat16
    assert half.lengths.dtype == torch.int64 and half.pooled and half.starts.tolist() == [0, 3, 4]


def test_tokens_are_pooled_by_sequence() -> None:
    packing = Packing.of(torch.tensor([3, 1]))
    values = torch.tensor([[1.0, -2.0], [4.0, -2.0], [7.0, -2.0], [5.0, 3.0]])  # (token, value)
    torch.testing.assert_close(packing.max(values), torch.tensor([[7.0, -2.0], [5.0, 3.0]]))
    torch.testing.assert_close(packing.sum(values), torch.tensor([[12.0, -6.0], [5.0, 3.0]]))
    torch.testing.assert_close(packing.deviation(values), torch.tensor([[6.0**0.5, 0.0], [0.0, 0.0]]))
    shares = packing.softmax(torch.tensor([[0.0], [0.0], [0.0], [9.0]]))
    torch.testing.assert_close(shares, torch.tensor([[1 / 3], [1 / 3], [1 / 3], [1.0]]))


def test_the_deviation_of_equal_tokens_has_a_finite_gradient() -> None:
    values = torch.tensor([[1.0, 2.0], [1.0, 5.0]], requires_grad=True)  # (token, value)
    Packing.of(torch.tensor([2])).deviation(values).sum().backward()
    torch.testing.assert_close(values.grad, torch.tensor([[0.0, -0.5], [0.0, 0.5]]))


def test_several_parts_are_read_side_by_side_along_the_layers() -> None:
    mean, spread = torch.zeros(2, 3, 4), torch.ones(2, 3, 4)  # (sequence, layer, hidden)
    states = HiddenStates(torch.tensor([2, 2]), mean=mean, deviation=spread)
    assert torch.equal(states.read("mean", "deviation"), torch.cat([mean, spread], dim=1))
    picked = states.pick(torch.tensor([1]), "mean", "deviation")
    assert picked.mean is not None and picked.deviation is not None and len(picked.mean) == 1
    assert StateShape(3, 4, pooled=True).read_layers("mean", "cls") == 7
