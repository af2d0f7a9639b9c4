"""How processes that play nodes speak with the API server: at a start until it answers."""

import httpx
import pytest
from pagoda_devcluster.client import watching
from pagoda_devcluster.cluster.errors import ApiError


@pytest.mark.parametrize("failure", [httpx.ReadTimeout(""), httpx.ConnectError("refused"), ApiError("not yet", 403), ApiError("busy", 429)])
async def test_a_server_that_is_too_busy_at_the_start_is_asked_until_it_answers(monkeypatch, failure):
    monkeypatch.setattr(watching, "RETRY_SECONDS", 0)
    asked = []

    async def answer():
        asked.append(1)
        if len(asked) < 3:
            raise failure
        return "v1"

    assert await watching.insist(answer) == "v1"
    assert len(asked) == 3
