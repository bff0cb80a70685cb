"""Sources of hidden states: streamed from the encoder, stored on disk, or in memory if they are small."""

from bertvision.sources.base import Source, StateBatch, Targets, pack_targets
from bertvision.sources.memory import MemorySource, MemoryStates
from bertvision.sources.store.reader import Store, StoredSource
from bertvision.sources.streamed import StreamedSource
from bertvision.sources.towers import TowersSource, encode_pairs

__all__ = [
    "MemorySource", "MemoryStates", "Source", "StateBatch", "Store", "StoredSource", "StreamedSource", "Targets",
    "TowersSource", "encode_pairs", "pack_targets",
]  # fmt: skip
