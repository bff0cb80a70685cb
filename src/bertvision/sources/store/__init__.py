"""States on disk: a store in a folder or at an address (s3://…), with its writer, its reader and its maintenance."""

from bertvision.disk import DamagedError
from bertvision.sources.store.dtypes import DTYPES
from bertvision.sources.store.format import Contents, Manifest, Shard, build_identity, find_differences
from bertvision.sources.store.location import Location, open_location
from bertvision.sources.store.reader import Store, StoredSource
from bertvision.sources.store.writer import StoreWriter

__all__ = [
    "DTYPES", "Contents", "DamagedError", "Location", "Manifest", "Shard", "Store", "StoreWriter", "StoredSource",
    "build_identity", "find_differences", "open_location",
]  # fmt: skip
