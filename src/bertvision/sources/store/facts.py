"""What a store says of its windows besides their states: for people who have the store and not the data."""

import json
from typing import Any

import numpy as np

from bertvision.sources.store.layout import Manifest, parse_header, unreadable
from bertvision.sources.store.places import Place

NUMPY: dict[str, Any] = {"I64": np.dtype("<i8"), "F32": np.dtype("<f4")}


def read_facts(place: Place, manifest: Manifest) -> tuple[dict[str, np.ndarray], list[str]]:
    """`lengths`, `example`, `start`, `end`, `target` of every window, and the examples' ids."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in ("lengths", "example", "start", "end", "target")}
    ids: list[str] = []
    for shard in manifest.shards:
        try:
            data = place.read(shard.file, 0, min(shard.at.values()))  # all that lies before the states
            header, begin = parse_header(data)
            ids += json.loads(header["__metadata__"]["ids"])
        except (OSError, ValueError, KeyError) as error:
            raise unreadable(place, shard, error) from error
        for name in ("offsets", "example", "start", "end", "target"):
            first, last = header[name]["data_offsets"]
            values = np.frombuffer(data[begin + first : begin + last], NUMPY[header[name]["dtype"]])
            found["lengths" if name == "offsets" else name].append(np.diff(values) if name == "offsets" else values)
    return {name: np.concatenate(parts) for name, parts in found.items()}, ids
