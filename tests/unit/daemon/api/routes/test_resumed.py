"""Answers that another replica began: whose they are, and what they count."""

from __future__ import annotations

import pytest
from msgspec import structs
from pagoda_daemon.api.openai.replies import Head
from pagoda_daemon.api.routes.continuing import Answered, Said, begun_by, resumed
from pagoda_daemon.api.routes.generation import Submission
from pagoda_daemon.core.errors import CannotContinue
from pagoda_daemon.core.messages import Ready, Submit
from pagoda_daemon.core.sampling import Sampling

LIMITS = Ready(64, 100, 4, 16, 2, computed_by="cpu", model="weights")
HEAD = Head("r", 1, "m", include_usage=False)


def job(adapter: str) -> Submission:
    return Submission(structs.replace(Submit("r", (1, 2), Sampling(max_tokens=8)), adapter=adapter))


def begun(adapter: str) -> Answered:
    return Answered(begun_by(job(adapter), HEAD, LIMITS), (Said((7, 8)),))


@pytest.mark.parametrize("adapter", ["", "sha256:a"])
def test_an_answer_goes_on_with_the_adapter_that_began_it(adapter: str) -> None:
    assert resumed(job(adapter), begun(adapter), LIMITS).message.resumed == (7, 8)


@pytest.mark.parametrize(("before", "here"), [("sha256:a", "sha256:b"), ("", "sha256:b"), ("sha256:a", "")])
def test_no_answer_mixes_two_adapters(before: str, here: str) -> None:
    """The same name may stand for another content at another replica."""
    with pytest.raises(CannotContinue, match="adapter"):
        resumed(job(here), begun(before), LIMITS)
