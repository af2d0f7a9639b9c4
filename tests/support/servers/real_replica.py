"""A replica with a real, tiny, untrained model, as `start_replica` takes it: logits, sampler and all, and the toy tokenizer."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from pagoda_contracts.launch import DaemonConfig, EngineConfig, Listen, ModelConfig
from support.engine.toy_model import VOCAB, tiny_model_dir
from support.servers.replica import NAME


def real_config(folder: Path) -> DaemonConfig:
    """One layer: a step takes a millisecond."""
    from support.engine.tiny_families import make_model  # the models of transformers: 5 s for whoever only collects a test of this

    model = tiny_model_dir(folder / "real-model")
    texts = {path.name: path.read_bytes() for path in model.iterdir() if path.name != "config.json"}
    ends = json.loads(texts["generation_config.json"])["eos_token_id"]
    make_model(model, vocab_size=VOCAB, num_hidden_layers=1, eos_token_id=ends)
    for name, content in texts.items():  # what transformers has written over
        (model / name).write_bytes(content)
    return DaemonConfig(
        model=ModelConfig(path=str(model), served_names=(NAME,)),
        engine=EngineConfig(max_model_len=512, max_concurrency=16, kv_bytes=16 * 2**20, dtype="float32", threads=1),
        listen=Listen(host="127.0.0.1", http=0, grpc=0, probes=0, run_dir=tempfile.mkdtemp(prefix="pagoda-test-")),
    )
