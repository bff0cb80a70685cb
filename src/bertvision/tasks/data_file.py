"""Where a data file is: a path on this machine, or an address in an object store (s3://bucket/train.csv).

An `Address` has the parts of a `Path` that readers use, so that they read both.
"""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from bertvision.errors import UserError
from bertvision.network import find_address_mistake, is_address, may_download

BLOCK = 4 << 20
"""Bytes per request."""
WHAT = "a data file"


@dataclass(frozen=True)
class Address:
    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def name(self) -> str:
        return PurePosixPath(self.text.partition("://")[2]).name

    @property
    def stem(self) -> str:
        return PurePosixPath(self.name).stem

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    def open(self) -> IO[bytes]:
        """Open for reading, also at any position. Blocks are fetched as they are read."""
        if not may_download():
            raise UserError(
                f"'{self}' is not read: this command does not download what is only named in a file. Copy the data to "
                "this machine, and make the run with the copy."
            )
        return cast(IO[bytes], io.BufferedReader(_Fetched(self), BLOCK))


DataFile = Path | Address


def find_data_file(text: str | DataFile) -> DataFile:
    """The path or the address that a user gave. Raise UserError for an address with an unknown scheme."""
    if isinstance(text, Address) or not is_address(str(text)):
        return text if isinstance(text, Address) else Path(os.path.expanduser(text))
    if mistake := find_address_mistake(str(text), WHAT):
        raise UserError(mistake)
    return Path(str(text).removeprefix("file://")) if str(text).startswith("file://") else Address(str(text))


def is_there(path: DataFile) -> bool:
    """Whether there is such a file. An address is not asked: reading it says what is wrong."""
    return isinstance(path, Address) or os.path.isfile(path)


class _Fetched(io.RawIOBase):
    """A file at an address. Whatever the network does becomes a UserError."""

    def __init__(self, address: Address) -> None:
        import fsspec

        self._address = address
        with self._clear_errors():
            files, root = fsspec.core.url_to_fs(str(address))
            files.invalidate_cache()  # the file may have been replaced
            self._file = files.open(root, "rb", block_size=BLOCK, cache_type="readahead")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed and hasattr(self, "_file"):
            self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        with self._clear_errors():
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise UserError(f"there is no file {self._address}.") from None
        except ImportError as error:
            extra = " (pip install 'bertvision[s3]')" if str(self._address).startswith("s3:") else ""
            raise UserError(f"'{self._address}' needs another package{extra}: {error}.") from None
        except Exception as error:  # each filesystem has its own exceptions
            why = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise UserError(
                f"'{self._address}' can't be read ({type(error).__name__}: {why}): check the address, the network and "
                "the credentials."
            ) from error
