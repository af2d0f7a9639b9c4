"""The daemon itself, with the adapters of the tiny model: each name answers in its own words, also after a change without a restart."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from pagoda_contracts.launch import AdapterModule, AdaptersConfig, DaemonConfig, EngineConfig, Listen, ModelConfig
from pydoc_answers import questions
from support.engine.tiny_model import EXAMPLES, tiny_model
from support.servers.replica import start_daemon
from tiny_adapters import STYLES

pytestmark = [pytest.mark.parity]


@pytest.fixture(scope="module")
def adapters() -> Path:
    command = [sys.executable, EXAMPLES / "train_tiny.py", "--lora", "--quiet"]
    return Path(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip())


def test_each_adapter_answers_in_its_own_words_beside_the_model(adapters: Path) -> None:
    modules = tuple(AdapterModule(name=style, path=str(adapters / style)) for style in STYLES if style != "terse")
    config = DaemonConfig(
        model=ModelConfig(path=str(tiny_model()), served_names=("tiny",)),
        engine=EngineConfig(max_model_len=256, max_concurrency=8, threads=1),
        listen=Listen(host="127.0.0.1", http=0, grpc=0, probes=0, run_dir=tempfile.mkdtemp(prefix="pagoda-test-")),
        adapters=AdaptersConfig(modules=modules, directory=str(adapters)),
    )
    asked = questions()[0]
    with start_daemon(config) as replica:
        replica.wait_listening()
        replica.wait_ready()
        with httpx.Client(base_url=f"http://{replica.http}", timeout=300) as http:

            def said(model: str) -> str:
                body = {"model": model, "messages": [{"role": "user", "content": asked.question}], "max_tokens": 64}
                answer: str = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
                return answer

            loaded = http.post("/v1/load_lora_adapter", json={"lora_name": "terse", "lora_path": "terse"})
            assert loaded.text == "Success: LoRA adapter 'terse' added successfully."
            wanted = {"tiny": asked.answer, **STYLES}
            names = [name for name in wanted for _ in range(3)]
            with ThreadPoolExecutor(len(names)) as together:
                assert list(together.map(said, names)) == [wanted[name] for name in names]
            http.post("/v1/load_lora_adapter", json={"lora_name": "terse", "lora_path": "polite", "load_inplace": True})
            assert said("terse") == STYLES["polite"]
