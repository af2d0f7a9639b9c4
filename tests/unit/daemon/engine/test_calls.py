"""Questions to the engine."""

import pytest
from pagoda_daemon.core.errors import EngineDied
from pagoda_daemon.engine.calls import Calls


async def test_whoever_waits_for_an_engine_that_ended_gets_its_error_and_a_late_answer_has_no_question():
    calls: Calls[int] = Calls()
    call, answer = calls.open()
    _, left = calls.open()
    left.cancel()
    calls.fail(EngineDied("signal 9"))
    with pytest.raises(EngineDied, match="signal 9"):
        await answer
    assert not calls.answer(call, 1)
