"""What the files of a store are: shards named by their range of examples, and a manifest, written last, that holds the
identity: everything that affects the states.

docs/store_format.md describes them for other programs; everything here that writes bytes is said there.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bertvision.data.windows import Features
from bertvision.disk import fingerprint
from bertvision.encoder.states import Part, StateShape
from bertvision.errors import UserError
from bertvision.sources.store.dtypes import SAFETENSORS, item_bytes, stored_width
from bertvision.sources.store.location import Buffer, Location

FORMAT = 1
MANIFEST, WRITING = "manifest.json", "writing.json"
LISTED = "damaged.json"  # where earlier versions listed shards that `store verify` found damaged
SET_ASIDE = "damaged-"  # how the name of such a shard begins now
SHARD_NAME = re.compile(r"states-(\d{9,})-(\d{9,})-([0-9a-f]{16})\.safetensors")
SHARD_BYTES = 256 << 20
SHARD_TOKENS = 1 << 17  # [CLS] states are small: a shard ends here too, so that a kill costs little
ALIGN = 64
DIGITS = 16  # of a SHA-256, in hexadecimal
HEADER_GUESS, HEADER_MOST = 1 << 16, 100_000_000
READABLE = ("window settings", "layers", "parts", "dtype", "precision", "format")
# Follows from the others where one of them differs; on its own it means that texts are cut or tokenized otherwise now.
DERIVED = "token ids"
FACT_BYTES = 72  # of a window besides its states, about: where it lies, its target, its id
PARTS: tuple[Part, ...] = ("tokens", "cls", "mean")
Data = bytes  # what is in a file; `bytes` is also how many a store takes


@dataclass(frozen=True)
class Contents:
    """What is kept of each window, and how."""

    parts: tuple[Part, ...]
    layers: tuple[int, ...]
    hidden: int
    pooled: bool
    dtype: str

    @classmethod
    def of(cls, shape: StateShape, layers: Sequence[int], parts: Sequence[Part], dtype: str) -> "Contents":
        assert shape.layers == len(layers)
        return cls(tuple(part for part in PARTS if part in parts), tuple(layers), shape.hidden, shape.pooled, dtype)

    def rows(self, part: Part) -> int:
        """States of one token, [CLS] or mean: one a layer, and the pooled output beside [CLS]."""
        return len(self.layers) + int(self.pooled and part == "cls")

    def record_bytes(self, part: Part) -> int:
        """Bytes of one token, [CLS] or mean, all layers together."""
        return self.rows(part) * stored_width(self.hidden, self.dtype) * item_bytes(self.dtype)

    def shape(self, part: Part, windows: int, tokens: int) -> tuple[int, int, int]:
        return (tokens if part == "tokens" else windows, self.rows(part), stored_width(self.hidden, self.dtype))

    def bytes_of(self, windows: int, tokens: int) -> int:
        """Bytes of the states of so many windows."""
        return sum((tokens if part == "tokens" else windows) * self.record_bytes(part) for part in self.parts)

    def store_bytes(self, windows: int, tokens: int) -> int:
        """About what a store of so many windows takes."""
        return self.bytes_of(windows, tokens) + windows * FACT_BYTES


@dataclass(frozen=True)
class Shard:
    """One file: the windows of examples `first` to `stop` - 1."""

    first: int
    stop: int
    windows: int
    tokens: int
    bytes: int
    at: dict[str, int]
    """Byte of the file at which each part's states begin."""
    sha256: str = ""
    """The first 16 digits of the file's SHA-256, which its name carries too."""

    @property
    def stem(self) -> str:
        return f"states-{self.first:09d}-{self.stop:09d}-"

    @property
    def file(self) -> str:
        return f"{self.stem}{self.sha256}.safetensors"

    @property
    def examples(self) -> str:
        return f"examples {self.first:,} to {self.stop - 1:,}"


@dataclass(frozen=True)
class Manifest:
    """All about a store; once it is there, the store is whole."""

    identity: dict[str, Any]
    contents: Contents
    shards: list[Shard]
    about: dict[str, Any]
    """What made it, for people."""

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.identity)

    @property
    def examples(self) -> int:
        return self.shards[-1].stop if self.shards else 0

    @property
    def windows(self) -> int:
        return sum(shard.windows for shard in self.shards)

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shard in self.shards)

    def dump(self) -> Data:
        """The file's bytes: JSON that ends with the checksum of all before it."""
        shards = [{**asdict(shard), "file": shard.file} for shard in self.shards]
        return seal(
            {
                "format": FORMAT,
                "fingerprint": self.fingerprint,
                "identity": self.identity,
                "contents": asdict(self.contents),
                "about": self.about,
                "shards": shards,
            }
        )

    @classmethod
    def parse(cls, data: Data, where: str) -> "Manifest":
        value = unseal(data, where)
        if value.get("format") != FORMAT:
            raise UserError(
                f"{where} is of store format {value.get('format')}; this version of BERTVision reads format {FORMAT}. "
                "Remove the store and encode again."
            )
        shards = [Shard(**{key: item for key, item in row.items() if key != "file"}) for row in value["shards"]]
        contents = value["contents"]
        contents |= {key: tuple(contents[key]) for key in ("parts", "layers")}
        return cls(value["identity"], Contents(**contents), shards, value["about"])


# ---------------------------------------------------------------------- identity


def build_identity(
    contents: Contents,
    weights: str,
    tokenizer: str,
    data: str,
    windows: dict[str, Any],
    token_ids: str,
    precision: str,
) -> dict[str, Any]:
    """`weights`, `tokenizer`, `data` and `token_ids` are hashes."""
    return {
        "encoder weights": weights,
        "tokenizer": tokenizer,
        "data": data,
        "window settings": windows,
        DERIVED: token_ids,
        "layers": list(contents.layers),
        "parts": list(contents.parts),
        "dtype": contents.dtype,
        "precision": precision,
        "format": FORMAT,
    }


def find_differences(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """In what two identities differ, in words."""
    differing = [key for key in {**wanted, **found} if found.get(key) != wanted.get(key)]
    if len(differing) > 1 and DERIVED in differing:
        differing.remove(DERIVED)
    return [
        f"{key} ({_show(found.get(key))} there, {_show(wanted.get(key))} wanted)" if key in READABLE else key
        for key in differing
    ]


def _show(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return str(value)


# ---------------------------------------------------------------------- files with a checksum of themselves


class DamagedError(UserError):
    """A file of the store is not what was written."""


def bad_shard(location: Location, shard: Shard, why: str) -> UserError:
    return UserError(
        f"the store '{location}' can't be used: {shard.file} ({shard.examples}) {why}. `bertvision store verify` "
        "reports everything that is wrong, and `bertvision encode` writes it again."
    )


def seal(value: dict[str, Any]) -> bytes:
    """JSON of the value and, as its last entry, the checksum of that JSON without it."""
    return _render({**value, "sha256": digest([_render(value)])})


def unseal(data: bytes, where: str) -> dict[str, Any]:
    """The sealed value; any other byte than the sealed ones is found."""
    try:
        value = json.loads(data)
        kept = {key: item for key, item in value.items() if key != "sha256"}
        if seal(kept) != data:
            raise ValueError("its checksum is wrong")
    except (ValueError, AttributeError) as error:
        raise DamagedError(f"{where} is damaged ({error}): `bertvision encode` puts the store right.") from None
    return kept


def _render(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def digest(pieces: Sequence[bytes | Buffer]) -> str:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()[:DIGITS]


# ---------------------------------------------------------------------- shards


def plan_shards(
    features: Features,
    contents: Contents,
    most_bytes: int = SHARD_BYTES,
    most_tokens: int = SHARD_TOKENS,
    first: int = 0,
    stop: int | None = None,
) -> list[tuple[int, int]]:
    """Ranges of the examples from `first` to `stop` - 1 (absent: all), each up to so many bytes and tokens (one example
    at least)."""
    stop = int(features.example.max(initial=-1)) + 1 if stop is None else stop
    if stop <= first:
        return []
    tokens = np.bincount(features.example, weights=features.lengths).astype(np.int64)  # (example)
    windows = np.bincount(features.example)  # (example)
    bytes_ = np.array([contents.bytes_of(int(w), int(t)) for w, t in zip(windows, tokens, strict=True)])  # (example)
    ranges, used_bytes, used_tokens = [], 0, 0
    for example in range(first, stop):
        full = used_bytes + bytes_[example] > most_bytes or used_tokens + tokens[example] > most_tokens
        if example > first and full:
            ranges.append((first, example))
            first, used_bytes, used_tokens = example, 0, 0
        used_bytes += int(bytes_[example])
        used_tokens += int(tokens[example])
    return [*ranges, (first, stop)]


def windows_of(features: Features, first: int, stop: int) -> range:
    """The windows of a range of examples."""
    low, high = np.searchsorted(features.example, [first, stop])
    return range(int(low), int(high))


def outline_shard(
    features: Features, ids: Sequence[str], contents: Contents, fingerprint: str, first: int, stop: int
) -> tuple[Shard, Data]:
    """A shard before its states are there: where they will lie, how large it will be, and all that comes before them in
    the file: its header, and what is known of its windows."""
    windows = windows_of(features, first, stop)
    some = slice(windows.start, windows.stop)
    offsets = np.zeros(len(windows) + 1, dtype="<i8")  # (window + 1)
    np.cumsum(features.lengths[some], out=offsets[1:])
    facts = {"offsets": offsets}
    facts |= {name: getattr(features, name)[some].astype("<i8") for name in ("example", "start", "end")}  # (window)
    facts["target"] = features.target[some].astype("<f4")  # (window)
    tokens = int(offsets[-1])
    tensors: dict[str, tuple[str, Sequence[int], int]] = {
        name: ("F32" if name == "target" else "I64", value.shape, value.nbytes) for name, value in facts.items()
    }
    for part in contents.parts:
        rows = contents.shape(part, len(windows), tokens)
        tensors[part] = (SAFETENSORS[contents.dtype], rows, contents.record_bytes(part) * rows[0])
    metadata = {"store": fingerprint, "first": str(first), "ids": json.dumps(list(ids[first:stop]))}
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGN)
    begin = 8 + len(text)
    at: dict[str, int] = {part: begin + header[part]["data_offsets"][0] for part in contents.parts}
    head = b"".join([len(text).to_bytes(8, "little"), text, *(value.tobytes() for value in facts.values())])
    return Shard(first, stop, len(windows), tokens, begin + end, at), head


def read_header(location: Location, name: str) -> tuple[dict[str, Any], int]:
    """The safetensors header of a shard, and the byte at which its arrays begin."""
    data = location.read(name, 0, HEADER_GUESS)  # most headers are in it: one question is enough
    needed = 8 + int.from_bytes(data[:8], "little")
    if len(data) < needed < HEADER_MOST:
        data = location.read(name, 0, needed)
    return parse_header(data)


def parse_header(data: Data) -> tuple[dict[str, Any], int]:
    """The same from a shard's first bytes."""
    size = int.from_bytes(data[:8], "little")
    if not 0 < size < HEADER_MOST:
        raise ValueError("it has no safetensors header")
    return json.loads(data[8 : 8 + size]), 8 + size
