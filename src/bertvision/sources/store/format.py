"""The files of a store: shards, named by their range of examples, and the manifest, which is written last and holds the
identity (everything that affects the states).

docs/store_format.md specifies every byte written here, for other programs.
"""

import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np
from msgspec import Meta

from bertvision import disk
from bertvision.data.windows import Features
from bertvision.disk import DamagedError, fingerprint
from bertvision.disk.forms import Count, Layer, Width
from bertvision.disk.reading import Form
from bertvision.encoder.states import POOLED, Part, StateShape
from bertvision.errors import UserError
from bertvision.sources.store.dtypes import SAFETENSORS, item_bytes, stored_width
from bertvision.sources.store.location import Buffer, Location

FORMAT = 1
MANIFEST, WRITING = "manifest.json", "writing.json"
LISTED = "damaged.json"  # list of damaged shards, written by earlier versions of `store verify`
SET_ASIDE = "damaged-"  # prefix that `store verify` adds to the name of a damaged shard
SHARD_NAME = re.compile(r"states-(\d{9,})-(\d{9,})-([0-9a-f]{16})\.safetensors")
SHARD_BYTES = 256 << 20
SHARD_TOKENS = 1 << 17  # [CLS] states are small: this limit also ends a shard, so that little is lost on a kill
COUNTED = 1 << 16  # examples whose windows are counted at once
ALIGN = 64
DIGITS = 16  # hexadecimal digits of a SHA-256
HEADER_GUESS, HEADER_MOST = 1 << 16, 100_000_000
READABLE = ("window settings", "layers", "parts", "dtype", "precision", "format")
# Usually differs because another field differs. On its own, it means that texts are now cut or tokenized differently.
DERIVED = "token ids"
FACT_BYTES = 80  # approximate bytes per window in addition to its states: offset, target, checksum, id
PARTS: tuple[Part, ...] = ("tokens", *POOLED)
CHECKSUM, HEAD_CHECKSUM = "{part}_crc32", "head_crc32"
Checksums = dict[Part, np.ndarray]  # each (window) CRC-32 of the window's states
FACTS: dict[str, Any] = {"I64": np.dtype("<i8"), "F32": np.dtype("<f4")}  # dtypes of the arrays before the states
Data = bytes  # the contents of a file; in the classes below, `bytes` is a size


@dataclass(frozen=True)
class Contents:
    """Which states of each window are stored, and in which dtype."""

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
        """States per token, [CLS] or mean: one per layer, and for [CLS] also the pooled output."""
        return len(self.layers) + int(self.pooled and part == "cls")

    def record_bytes(self, part: Part) -> int:
        """Bytes per token, [CLS] or mean, over all layers."""
        return self.rows(part) * stored_width(self.hidden, self.dtype) * item_bytes(self.dtype)

    def window_bytes(self, part: Part, lengths: np.ndarray) -> np.ndarray:
        """(window) bytes of the states of windows with these lengths."""
        record = self.record_bytes(part)
        return lengths * record if part == "tokens" else np.full_like(lengths, record)

    def shape(self, part: Part, windows: int, tokens: int) -> tuple[int, int, int]:
        return (tokens if part == "tokens" else windows, self.rows(part), stored_width(self.hidden, self.dtype))

    def bytes_of(self, windows: int, tokens: int) -> int:
        """Bytes of the states of the given number of windows and tokens."""
        return sum((tokens if part == "tokens" else windows) * self.record_bytes(part) for part in self.parts)

    def store_bytes(self, windows: int, tokens: int) -> int:
        """Approximate bytes of a store with the given number of windows and tokens."""
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
    """Byte offset in the file at which the states of each part begin."""
    sha256: str = ""
    """First 16 digits of the file's SHA-256, which are also part of its name."""

    @property
    def stem(self) -> str:
        return f"states-{self.first:09d}-{self.stop:09d}-"

    @property
    def file(self) -> str:
        return f"{self.stem}{self.sha256}.safetensors"

    @property
    def examples(self) -> str:
        return f"examples {self.first:,} to {self.stop - 1:,}"


class ContentsFile(TypedDict):
    parts: Annotated[tuple[Part, ...], Meta(min_length=1)]
    layers: Annotated[tuple[Layer, ...], Meta(min_length=1, max_length=1001)]
    hidden: Width
    pooled: bool
    dtype: Literal["float32", "float16", "bfloat16", "int8"]


class ShardFile(TypedDict):
    first: Count
    stop: Count
    windows: Annotated[int, Meta(ge=0, le=10**9)]
    tokens: Annotated[int, Meta(ge=0, le=10**12)]
    bytes: Count
    at: dict[str, Count]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$")]


class IdentityFile(TypedDict):
    """What is read of an identity; it is compared as a whole."""

    parts: NotRequired[list[str]]
    layers: NotRequired[list[int]]
    dtype: NotRequired[str]


class DescribedFile(TypedDict):
    """The parts of both files that are kept as they are."""

    identity: IdentityFile


class ManifestFile(TypedDict):
    """manifest.json."""

    identity: dict[str, Any]
    contents: ContentsFile
    about: dict[str, Any]
    shards: list[ShardFile]


class WritingFile(TypedDict):
    """writing.json: what a writer has begun."""

    identity: dict[str, Any]
    about: NotRequired[dict[str, Any]]
    shards: list[tuple[Count, Count]]


def _check_shards(shards: list[Shard], contents: Contents) -> None:
    """Raise ValueError if shards do not follow each other, or can't hold what they say: readers make room for it."""
    if not shards:
        raise ValueError("shards: expected one or more")
    before = 0
    for shard in shards:
        if not before <= shard.first < shard.stop:
            raise ValueError(f"shards: expected examples from {before:,} on, found {shard.examples}")
        before = shard.stop
        if set(shard.at) != set(contents.parts) or not shard.windows <= shard.tokens <= shard.bytes:
            raise ValueError(f"shards: {shard.examples} can't be as described")
        if contents.bytes_of(shard.windows, shard.tokens) > shard.bytes or max(shard.at.values()) > shard.bytes:
            raise ValueError(f"shards: {shard.examples} are larger than their file")


@dataclass(frozen=True)
class Manifest:
    """The description of a store. A store with a manifest is complete."""

    identity: dict[str, Any]
    contents: Contents
    shards: list[Shard]
    about: dict[str, Any]
    """Where the store came from, for people to read."""

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
        """Return the bytes of the file: JSON that ends with a checksum of everything before it."""
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
                f"{where} has store format {str(value.get('format'))[:20]}; this version of BERTVision reads format "
                f"{FORMAT}. Remove the store and encode again."
            )
        file = fit_file(value, ManifestFile, where)
        shards = [Shard(**row) for row in file["shards"]]
        contents = Contents(**file["contents"])
        try:
            _check_shards(shards, contents)
        except ValueError as error:
            raise damaged_file(where, error) from None
        return cls(file["identity"], contents, shards, file["about"])


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
    """Describe the fields in which two identities differ."""
    differing = [key for key in {**wanted, **found} if found.get(key) != wanted.get(key)]
    if len(differing) > 1 and DERIVED in differing:
        differing.remove(DERIVED)
    return [
        f"{key} ({_show(found.get(key))} found, {_show(wanted.get(key))} wanted)" if key in READABLE else key
        for key in differing
    ]


def _show(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return str(value)


# ---------------------------------------------------------------------- files that include their own checksum


def bad_shard(location: Location, shard: Shard, why: str) -> UserError:
    return UserError(
        f"the store '{location}' can't be used: {shard.file} ({shard.examples}) {why}. `bertvision store verify` "
        "finds all damage, and `bertvision encode` repairs it."
    )


def seal(value: dict[str, Any]) -> bytes:
    """Render the value as JSON and append, as the last entry, a checksum of that JSON."""
    return disk.seal(value, _render).encode()


def unseal(data: bytes, where: str) -> dict[str, Any]:
    """Parse sealed JSON. Raise DamagedError if any byte has changed."""
    try:
        value = disk.parse_json(data)
        if not isinstance(value, dict) or disk.SEAL not in value:
            raise ValueError("it has no checksum")
        return dict(disk.unseal(value, data, _render))
    except ValueError as error:
        raise damaged_file(where, error) from None


def fit_file(value: dict[str, Any], form: type[Form], where: str) -> Form:
    """The contents of a store's file, if they have the given form. Else raise DamagedError."""
    try:
        disk.as_form(value, DescribedFile)
        return disk.as_form(value, form)
    except ValueError as error:
        raise damaged_file(where, error) from None


def damaged_file(where: str, why: object) -> DamagedError:
    return DamagedError(f"{where} is damaged ({why}): `bertvision encode` repairs the store.")


def _render(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


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
    """Split the examples from `first` to `stop` - 1 (default: all) into ranges of at most `most_bytes` and
    `most_tokens`. Each range has at least one example."""
    stop = int(features.example.max(initial=-1)) + 1 if stop is None else stop
    if stop <= first:
        return []
    ranges, used_bytes, used_tokens = [], 0, 0
    for example, (windows, tokens) in enumerate(_sizes(features, first, stop), start=first):
        size = contents.bytes_of(windows, tokens)
        if example > first and (used_bytes + size > most_bytes or used_tokens + tokens > most_tokens):
            ranges.append((first, example))
            first, used_bytes, used_tokens = example, 0, 0
        used_bytes += size
        used_tokens += tokens
    return [*ranges, (first, stop)]


def _sizes(features: Features, first: int, stop: int) -> Iterator[tuple[int, int]]:
    """The windows and tokens of each example, counted for a part of them at a time."""
    for low in range(first, stop, COUNTED):
        high = min(low + COUNTED, stop)
        some = windows_of(features, low, high)
        example = features.example[some.start : some.stop] - low  # (window)
        windows = np.bincount(example, minlength=high - low)  # (example)
        tokens = np.bincount(example, features.lengths[some.start : some.stop], minlength=high - low)  # (example)
        yield from zip(windows.tolist(), tokens.astype(np.int64).tolist(), strict=True)


def windows_of(features: Features, first: int, stop: int) -> range:
    """Return the windows of a range of examples."""
    low, high = np.searchsorted(features.example, np.array([first, stop], dtype=features.example.dtype))
    return range(int(low), int(high))


def outline_shard(
    features: Features,
    ids: Sequence[str],
    contents: Contents,
    fingerprint: str,
    first: int,
    stop: int,
    checked: bool = True,
) -> tuple[Shard, Data]:
    """Describe a shard before its states are computed. Return the shard, with offsets and size, and the first bytes of
    the file: the header and the per-window arrays that are known already. The checksums of `add_checksums` follow, and
    then the states. Shards of earlier versions have no checksums: `checked` is False."""
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
    if checked:
        counts = {CHECKSUM.format(part=part): len(windows) for part in contents.parts} | {HEAD_CHECKSUM: 1}
        tensors |= {name: ("I64", [count], 8 * count) for name, count in counts.items()}
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


def add_checksums(head: Data, states: Sequence[Buffer], sizes: Sequence[Sequence[int]]) -> Data:
    """Return everything that comes before the states in a shard: `head`, a CRC-32 of each window's states of each part,
    and one of all bytes before it. `sizes` are the bytes of each window in each part."""
    for part, own in zip(states, sizes, strict=True):
        ends = np.cumsum(own).tolist()
        found = [zlib.crc32(part[first:last]) for first, last in zip([0, *ends], ends, strict=False)]
        head += np.array(found, dtype="<i8").tobytes()
    return head + zlib.crc32(head).to_bytes(8, "little")


@dataclass(frozen=True)
class Head:
    """Everything that comes before the states in a shard."""

    facts: dict[str, np.ndarray]
    """`offsets` (window + 1), `example`, `start`, `end` and `target` (window)."""
    ids: list[str]
    checksums: Checksums
    """Empty for a shard of an earlier version."""


def read_head(location: Location, shard: Shard) -> Head:
    """Read what comes before the states, and check it. Raise UserError if it is damaged."""
    try:
        data = location.read(shard.file, 0, min(shard.at.values()))
        header, begin = parse_header(data)
        metadata = header.pop("__metadata__")
        arrays: dict[str, np.ndarray] = {}
        for name, array in header.items():
            first, last = (begin + offset for offset in array["data_offsets"])
            if name not in shard.at:
                arrays[name] = np.frombuffer(data[first:last], FACTS[array["dtype"]])
            if name == HEAD_CHECKSUM and zlib.crc32(data[:first]) != arrays[name][0]:
                raise ValueError("its header or its per-window arrays are damaged")
        if HEAD_CHECKSUM not in arrays and any("crc32" in name for name in arrays):
            raise ValueError(f"its {HEAD_CHECKSUM} is missing")
        parts: dict[Part, str] = {part: CHECKSUM.format(part=part) for part in PARTS if part in shard.at}
        checksums = {part: arrays[name] for part, name in parts.items() if name in arrays}
        facts = {name: arrays[name] for name in ("offsets", "example", "start", "end", "target")}
        if {len(values) for values in (facts["offsets"][1:], facts["example"], *checksums.values())} != {shard.windows}:
            raise ValueError("it has another number of windows than manifest.json says")
        return Head(facts, [str(one) for one in json.loads(metadata["ids"])], checksums)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise bad_shard(location, shard, f"can't be read ({error})") from error


def read_header(location: Location, name: str) -> tuple[dict[str, Any], int]:
    """Return the safetensors header of a shard, and the byte at which its arrays begin."""
    data = location.read(name, 0, HEADER_GUESS)  # large enough for most headers, so one request suffices
    needed = 8 + int.from_bytes(data[:8], "little")
    if len(data) < needed < HEADER_MOST:
        data = location.read(name, 0, needed)
    return parse_header(data)


def parse_header(data: Data) -> tuple[dict[str, Any], int]:
    """Like `read_header`, from a shard's first bytes."""
    size = int.from_bytes(data[:8], "little")
    if not 0 < size < HEADER_MOST:
        raise ValueError("it has no safetensors header")
    header = disk.parse_json(data[8 : 8 + size])
    if not isinstance(header, dict):
        raise ValueError("its safetensors header is not an object")
    return header, 8 + size
