"""What a client reads of a request that the engine ended, by the generator alone."""

from contextlib import aclosing

import pytest
from pagoda_daemon.api.generation import Generator, Submission
from pagoda_daemon.engine.client import Stream
from pagoda_daemon.engine.messages import RowOutput, Sampling, Submit
from pagoda_daemon.errors import RequestFailed
from pagoda_daemon.metrics import Counts
from pagoda_daemon.tokens import ModelText
from toy_model import tiny_model_dir


class FailingEngine:
    """Ends each request at once, with `error`."""

    def __init__(self, error):
        self._error = error

    def submit(self, message):
        stream = Stream(message.request_id)
        stream.put(RowOutput(message.request_id, (), "error", self._error))
        return stream

    def close_stream(self, _request_id, *, finished):
        assert not finished


@pytest.mark.parametrize(("error", "said"), [("why", "why (request r1)"), (None, "the engine ended this request: error (request r1)")])
async def test_a_request_that_the_engine_ended_names_its_id(tmp_path, error, said):
    generator = Generator(FailingEngine(error), ModelText(tiny_model_dir(tmp_path)), Counts())
    async with aclosing(generator.deltas(Submission(Submit("r1", (1,), Sampling(1)), ()), 0.0)) as deltas:
        with pytest.raises(RequestFailed) as caught:
            await anext(deltas)
    assert str(caught.value) == said
    assert generator.counts.finished["error"] == 1
