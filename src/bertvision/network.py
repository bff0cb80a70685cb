"""What may be fetched over the network: only what the user named.

The address of a store or of a data file must have one of a few schemes. Commands that read a finished run, a fitted
model or a kit don't download what its files name, since somebody else may have written them: an encoder must be on this
machine already.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

SCHEMES = ["file", "s3", "gs", "az", "abfs", "hf"]
"""Of addresses. The tests add memory."""
_may_download: ContextVar[bool] = ContextVar("may_download", default=True)


def is_address(path: str) -> bool:
    """Whether a store or a data file is at an address, not in a folder of this machine."""
    return "://" in path


def find_address_mistake(path: str, what: str = "a store") -> str:
    """What is wrong with the address of a store or of a data file, as a sentence; '' if nothing is."""
    if not is_address(path):
        return ""
    scheme, _, rest = path.partition("://")
    if scheme in SCHEMES and "::" not in rest:
        return ""
    shown = path if len(path) <= 60 else path[:60] + "…"
    local = "a folder" if what == "a store" else "a file"
    return f"'{shown}' is not the address of {what}: give {local}, or an address that begins with {_listed()}."


def _listed() -> str:
    *some, last = (f"{scheme}://" for scheme in SCHEMES if scheme != "memory")
    return f"{', '.join(some)} or {last}"


@contextmanager
def no_downloads() -> Iterator[None]:
    """Inside this context, encoders and datasets are only taken from folders and from the cache of the hub."""
    before = _may_download.set(False)
    try:
        yield
    finally:
        _may_download.reset(before)


def may_download() -> bool:
    return _may_download.get()


def not_downloaded(what: str, command: str) -> str:
    """The message about something that is not on this machine."""
    return (
        f"{what} is not on this machine, and BERTVision does not download what is only named in a file. If you trust "
        f"it, run `{command}` first."
    )
