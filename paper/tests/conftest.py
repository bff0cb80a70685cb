"""The library's own ground for tests: no network, few threads."""

from tests.conftest import no_network, pytest_sessionstart

__all__ = ["no_network", "pytest_sessionstart"]
