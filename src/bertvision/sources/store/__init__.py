"""States at rest: a store on a disk or at an fsspec address, its writer, its reader, and what keeps it in order."""

from bertvision.sources.store.dtypes import DTYPES
from bertvision.sources.store.identity import build_identity, find_differences
from bertvision.sources.store.layout import Contents, DamagedError, Manifest, Shard
from bertvision.sources.store.places import Place, open_place
from bertvision.sources.store.reader import Store, StoredSource
from bertvision.sources.store.writer import StoreWriter

__all__ = [
    "DTYPES", "Contents", "DamagedError", "Manifest", "Place", "Shard", "Store", "StoreWriter", "StoredSource",
    "build_identity", "find_differences", "open_place",
]  # fmt: skip
