"""aiperf measures a real replica: its counts of tokens, from the usage in each chunk and from our metrics, are the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.engine.tiny_model import tiny_model
from support.servers.replica import Replica
from support.suite.environments import run_in

pytestmark = [pytest.mark.clients, pytest.mark.full]

REQUESTS, PROMPT, OUTPUT = 8, 24, 8


def profile(replica: Replica, folder: Path, kind: str) -> dict[str, Any]:
    """What aiperf writes of a run at a concurrency of 4; `server` is what it read at /metrics."""
    run_in(
        "aiperf",
        *("-m", "aiperf", "profile", "--ui-type", "none", "--no-gpu-telemetry"),
        *("--url", f"http://{replica.http}", "--model", "tiny", "--endpoint-type", kind, "--streaming"),
        *("--tokenizer", str(tiny_model()), "--random-seed", "1", "--workers-max", "2", "--record-processor-service-count", "1"),
        *("--request-count", str(REQUESTS), "--concurrency", "4", "--use-server-token-count"),
        *(("--per-chunk-usage",) if kind == "chat" else ()),
        *("--prompt-input-tokens-mean", str(PROMPT), "--prompt-output-tokens-mean", str(OUTPUT), "--extra-inputs", "ignore_eos:true"),
        *("--output-artifact-dir", str(folder)),
        env={"HF_HUB_OFFLINE": ""},  # it looks for a folder in the hub's cache otherwise
    )
    found = json.loads((folder / "profile_export_aiperf.json").read_text())
    return found | {"server": json.loads((folder / "server_metrics_export.json").read_text())["metrics"]}


def total(server: dict[str, Any], name: str) -> float:
    """What a counter grew by while aiperf measured."""
    return sum(series["stats"]["total"] for series in server[name]["series"])


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_aiperf_measures_a_replica_without_an_error(kind: str, trained: Replica, tmp_path: Path) -> None:
    found = profile(trained, tmp_path, kind)
    server = found["server"]
    assert (found["request_count"]["avg"], found["error_summary"]) == (REQUESTS, [])
    assert found["output_sequence_length"]["min"] == found["output_sequence_length"]["max"] == OUTPUT
    assert found["total_usage_completion_tokens"]["avg"] == total(server, "vllm:generation_tokens") == REQUESTS * OUTPUT
    assert found["total_usage_prompt_tokens"]["avg"] == total(server, "vllm:prompt_tokens")
    assert found["time_to_first_token"]["min"] > 0
    assert total(server, "vllm:estimated_flops_per_gpu") > 0
