"""A tokenizer in the form of a SentencePiece file, like that of DeBERTa-v3."""

from pathlib import Path

import pytest
from tiny_encoders import tiny_model

from bertvision.encoder import loading
from bertvision.errors import UserError

SENTENCES = ["a man plays a guitar in the park", "who wrote the book about the river", "the quick brown fox"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A DeBERTa folder as on the hub: spm.model, and no tokenizer.json."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="the hub extra is not installed")
    pytest.importorskip("google.protobuf", reason="the hub extra is not installed")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 20), model_prefix=str(tmp_path / "spm"), vocab_size=48, minloglevel=2,
        pad_id=0, bos_id=1, eos_id=2, unk_id=3, hard_vocab_limit=False,
        pad_piece="[PAD]", bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]",
    )  # fmt: skip
    tiny_model("deberta-v2").save_pretrained(tmp_path)
    return tmp_path


def test_it_loads_as_a_fast_tokenizer_with_offsets(folder: Path) -> None:
    encoder = loading.load_encoder(str(folder))
    assert encoder.tokenizer is not None
    text = SENTENCES[1]
    found = encoder.tokenizer(text, return_offsets_mapping=True)
    assert found["input_ids"][0] == encoder.tokenizer.cls_token_id
    assert "".join(text[start:end] for start, end in found["offset_mapping"]).replace(" ", "") == text.replace(" ", "")


def test_missing_packages_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("`tiktoken` is required to read a `tiktoken` file.")

    monkeypatch.setattr(loading.AutoTokenizer, "from_pretrained", refuse)
    with pytest.raises(UserError, match=r"SentencePiece file.*pip install 'bertvision\[hub\]'"):
        loading.load_tokenizer(str(folder))
