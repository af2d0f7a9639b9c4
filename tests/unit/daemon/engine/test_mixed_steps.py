"""All kinds of rows in one engine at once, while steps raise and deep checks go along: each answer is what it is alone."""

import json

import jsonschema
import numpy as np
import pytest
from pagoda_daemon.core.messages import DeepCheckAnswer, DeepCheckPrompt, Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.simulated.device.worker import SimulatedWorker, expected_tokens
from support.engine.constrained import LIMITS, drawn_schema, local_engine, schema_grammar
from support.engine.toy_model import EOS, VOCAB

PLAIN = [Submit(f"p{at}", (at + 1, 7, 9), Sampling(300, logprobs=2 if at == 1 else None)) for at in range(4)]
DRAWN = [Submit(f"c{at}", (at, 3), Sampling(1500, stop_token_ids=(EOS,)), grammar=schema_grammar(drawn_schema(at))) for at in range(4)]
TWINS = Submit("t", tuple(range(40)), Sampling(100, temperature=1.0, seed=5), n=3)


class Stumbling(SimulatedWorker):
    """Raises at every so many-th step, once each; the step that is tried again succeeds."""

    def __init__(self, every):
        super().__init__(LIMITS)
        self._every = every
        self._steps = 0
        self.stumbled = 0

    def execute(self, plan):
        self._steps += 1
        if self._every and self._steps % self._every == 0 and np.unique(plan.rows).size > 1:
            self.stumbled += 1
            raise RuntimeError("this step only")
        return super().execute(plan)


def answers(folder, every):
    worker = Stumbling(every)
    with local_engine(folder, lambda: worker) as engine:
        engine.send(*PLAIN[:2], *DRAWN, TWINS, *PLAIN[2:])
        for number in range(20):
            engine.send(DeepCheckPrompt(number, (65, 66), margin=number % 2 == 0))
        ends = {job.request_id: engine.end_of(job.request_id).finish_reason for job in (*PLAIN, *DRAWN)}
        ends |= {f"t{index}": engine.end_of("t", index).finish_reason for index in range(3)}
        said = {name: engine.tokens(name) for name in ends if not name.startswith("t")}
        said |= {f"t{index}": engine.tokens("t", index) for index in range(3)}
        texts = {job.request_id: engine.said(job.request_id) for job in DRAWN}
        checks = []
        engine.send(DeepCheckPrompt(99, (65, 66)))
        while not checks or checks[-1].check_id != 99:
            message = engine.heard.get(timeout=60)
            if isinstance(message, DeepCheckAnswer):
                checks.append(message)
        assert checks[-1].token_id == expected_tokens((65, 66), 1, VOCAB)[0]
    return ends, said, texts, worker.stumbled


@pytest.mark.deep
def test_rows_of_every_kind_keep_their_answers_when_steps_raise_beneath_them(tmp_path):
    ends, said, texts, stumbled = answers(tmp_path / "disturbed", 7)
    assert stumbled > 5
    assert set(ends.values()) <= {"stop", "length"}, ends
    for job in PLAIN:
        assert tuple(said[job.request_id]) == expected_tokens(job.prompt, 300, VOCAB)
    for at, job in enumerate(DRAWN):
        jsonschema.validate(json.loads(texts[job.request_id]), drawn_schema(at))
    assert (ends, said, texts) == answers(tmp_path / "calm", 0)[:3]
