"""What holds for all tests that need no server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def _no_authorities() -> Iterator[None]:
    """Nobody here trusts those of the system, and reading them would take every client 30 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", "/dev/null")
        yield
