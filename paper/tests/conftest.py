"""The library's test setup: no network, one thread."""

from tests.conftest import no_network

__all__ = ["no_network"]
