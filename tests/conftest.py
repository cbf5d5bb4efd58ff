"""Fixtures that start real servers."""

pytest_plugins = ["tests.servers.redis", "tests.servers.s3"]
