"""The states of a text are those that transformers returns for it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from bertvision.data.examples import Example
from bertvision.encoder.loading import load_encoder
from bertvision.errors import UserError
from bertvision.pipeline.text_states import text_states
from bertvision.progress import Reporter

EXAMPLES = [Example("0", "a king"), Example("1", "who is it ?", "the queen of the city " * 20), Example("2", "a")]


def test_states_are_those_of_every_layer(tiny_encoder_folder: Path) -> None:
    encoder, most = load_encoder(str(tiny_encoder_folder)), 24
    tokens, cls, mean = (text_states(encoder, EXAMPLES, most, r, Reporter()) for r in ("tokens", "cls", "mean"))
    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder_folder)
    model = AutoModel.from_pretrained(tiny_encoder_folder)
    for number, one in enumerate(EXAMPLES):
        given = tokenizer(one.text, one.text_pair, truncation="longest_first", max_length=most, return_tensors="pt")
        with torch.no_grad():
            expected = torch.stack(model(**given, output_hidden_states=True).hidden_states)  # (layer, 1, token, hidden)
        expected = expected[:, 0].transpose(0, 1).numpy()  # (token, layer, hidden)
        assert tokens[number].dtype == np.float32 and tokens[number].shape == expected.shape
        np.testing.assert_allclose(tokens[number], expected, atol=1e-5)
        np.testing.assert_allclose(cls[number], expected[0], atol=1e-5)
        np.testing.assert_allclose(mean[number], expected.mean(axis=0), atol=1e-5)


def test_what_can_not_be_read_is_refused(tiny_encoder_folder: Path) -> None:
    with pytest.raises(UserError, match="read is 'max': choose from cls, mean, tokens"):
        text_states(load_encoder(str(tiny_encoder_folder)), EXAMPLES, 24, "max", Reporter())
