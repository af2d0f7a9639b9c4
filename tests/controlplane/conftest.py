"""Operators of these tests are forks of one process, which ends with them."""

from collections.abc import Iterator

import pytest
from support.kube.forked_operator import stop_server


@pytest.fixture(scope="session", autouse=True)
def operators_server() -> Iterator[None]:
    yield
    stop_server()
