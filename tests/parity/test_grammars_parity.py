"""A model of random weights made to write JSON: jsonschema judges a hundred answers, and plain rows beside them say what they say alone."""

import json
from pathlib import Path

import jsonschema
import pytest
from pagoda_contracts.launch import DaemonConfig, EngineConfig, ModelConfig
from pagoda_daemon.core.messages import Grammar, Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.runner.host import Host
from pagoda_daemon.runner.model_worker import ModelWorker
from support.engine.constrained import drawn_schema, local_engine, schema_grammar
from support.engine.tiny_families import make_model
from support.engine.toy_model import EOS, VOCAB, tiny_model_dir

pytestmark = pytest.mark.parity

SCHEMAS = 104
PLAIN = [
    Submit(f"plain{at}", (at + 1, 2, 3), Sampling(200, temperature=at % 2 * 1.0, seed=at, frequency_penalty=at % 3 * 0.5))
    for at in range(8)
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Every token is about as likely, so that answers wander through their grammars."""
    folder = tiny_model_dir(tmp_path_factory.mktemp("random"))
    make_model(folder, vocab_size=VOCAB, initializer_range=0.02, max_position_embeddings=4096)
    return folder


def worker(model):
    config = DaemonConfig(
        model=ModelConfig(path=str(model), served_names=("m",)), engine=EngineConfig(max_concurrency=16, kv_bytes=64 * 2**20, threads=1)
    )
    return ModelWorker.load(config, lambda _: None, Host())


def constrained(seed):
    """Half of them greedy, half drawn."""
    sampling = Sampling(3000, temperature=seed % 2 * 1.0, top_p=1.0, seed=seed, stop_token_ids=(EOS,), logprobs=seed % 3 or None)
    return Submit(f"c{seed}", (seed % 200, 7), sampling, grammar=schema_grammar(drawn_schema(seed)))


def test_every_answer_is_valid_and_plain_rows_are_undisturbed(model: Path, tmp_path: Path):
    with local_engine(tmp_path, lambda: worker(model), model / "tokenizer.json") as engine:
        engine.send(*PLAIN)
        alone = {job.request_id: engine.tokens(job.request_id) for job in PLAIN if engine.end_of(job.request_id)}
    with local_engine(tmp_path, lambda: worker(model), model / "tokenizer.json") as engine:
        engine.send(*(constrained(seed) for seed in range(8)), *PLAIN, *(constrained(seed) for seed in range(8, SCHEMAS)))
        ends = {seed: engine.end_of(f"c{seed}").finish_reason for seed in range(SCHEMAS)}
        assert {job.request_id: engine.tokens(job.request_id) for job in PLAIN} == alone
        wrong = {seed: (reason, engine.said(f"c{seed}")[-80:]) for seed, reason in ends.items() if reason != "stop"}
        assert wrong == {}
        for seed in range(SCHEMAS):
            jsonschema.validate(json.loads(engine.said(f"c{seed}")), drawn_schema(seed), format_checker=jsonschema.FormatChecker())


def test_a_seed_gives_the_same_answer_in_any_company(model: Path, tmp_path: Path):
    with local_engine(tmp_path, lambda: worker(model), model / "tokenizer.json") as engine:
        engine.send(constrained(1))
        engine.end_of("c1")
        alone = engine.tokens("c1")
    with local_engine(tmp_path, lambda: worker(model), model / "tokenizer.json") as engine:
        engine.send(
            *PLAIN[:3], constrained(1), constrained(3), Submit("re", (5,), Sampling(9, temperature=1.0), grammar=Grammar("regex", "a{9}"))
        )
        assert engine.end_of("c1").finish_reason == "stop"
        assert engine.tokens("c1") == alone
