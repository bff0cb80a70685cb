"""Fixtures of several packages."""

from s3_server import bucket, credentials, endpoint, new_client  # noqa: F401
