"""guidellm measures a real replica, as people compare servers with it: every request is answered, and its counts are the replica's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.engine.tiny_model import tiny_model
from support.servers.replica import Replica
from support.suite.environments import run_in

pytestmark = pytest.mark.clients

REQUESTS, PROMPT, OUTPUT = 8, 24, 8


def counter(replica: Replica, name: str) -> float:
    text = httpx.get(f"http://{replica.http}/metrics", trust_env=False, timeout=60).text
    return sum(float(value) for value in re.findall(rf"^{name}_total{{[^}}]*}} ([0-9.]+)$", text, re.MULTILINE))


def benchmark(replica: Replica, folder: Path, kind: str) -> dict[str, Any]:
    """What guidellm reports of one run, concurrently and with prompts and answers of a fixed size."""
    report = folder / f"{kind.strip('/').replace('/', '-')}.json"
    run_in(
        "guidellm",
        *("-m", "guidellm", "run", "--disable-console"),
        *("--backend", f"kind=openai_http,target=http://{replica.http},model=tiny,request_format={kind}"),
        *("--profile", "kind=concurrent,streams=4", "--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=huggingface_auto,model={tiny_model()}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={OUTPUT}"),
        *("--output", f"kind=json,path={report}"),
    )
    return json.loads(report.read_text())


@pytest.mark.parametrize(
    "kind", [pytest.param("/v1/chat/completions"), pytest.param("/v1/completions", marks=pytest.mark.full)], ids=["chat", "completions"]
)
def test_guidellm_measures_a_replica_without_an_error(kind: str, trained: Replica, tmp_path: Path) -> None:
    """It asks for the usage in every chunk, and takes its counts from there: they must be those of the replica's own metrics.

    Its `metrics` are of a window that ends with the answer that its scheduler hears of last. If an answer before came late from another of
    its processes, what was asked after that is not in it. So counts are judged by the requests themselves."""
    before = counter(trained, "vllm:prompt_tokens")
    (run,) = benchmark(trained, tmp_path, kind)["benchmarks"]
    assert run["scheduler_metrics"]["requests_made"] == {"successful": REQUESTS, "errored": 0, "incomplete": 0, "total": REQUESTS}
    metrics, answered = run["metrics"], run["requests"]["successful"]
    assert [one["output_tokens"] for one in answered] == [OUTPUT] * REQUESTS
    assert sum(one["prompt_tokens"] for one in answered) == counter(trained, "vllm:prompt_tokens") - before
    assert metrics["time_to_first_token_ms"]["successful"]["min"] > 0
    assert metrics["inter_token_latency_ms"]["successful"]["max"] > 0
    assert counter(trained, "vllm:estimated_flops_per_gpu") > 1e6 * REQUESTS * OUTPUT, "of a real model: 2 operations for each parameter"
    assert min(one["info"]["timings"]["token_iterations"] for one in answered) > 1
