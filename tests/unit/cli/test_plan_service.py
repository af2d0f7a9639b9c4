"""`pagoda plan --yaml`: the API server takes what it writes, and placement finds that it fits; and where models come from."""

import io
import json

import pytest
from pagoda_cli.commands import run
from pagoda_cli.documents import documents
from pagoda_cli.errors import CliError
from pagoda_cli.plan_model import cached, find_model, hub_cache
from pagoda_cli.plan_service import service_name
from pagoda_contracts.crds.validation import judge
from pagoda_contracts.resources.service import InferenceService
from pagoda_sizing.devices import find
from pagoda_sizing.families import parse_model
from pagoda_sizing.platforms import products, slices
from pagoda_sizing.published import published, published_model
from pagoda_sizing.replica import Requirement, on_cpu, on_device
from pagoda_sizing.served import unserved

CONFIG = published_model("Qwen/Qwen3-0.6B").config
ENTRIES = {entry.name: entry for entry in published()}


@pytest.fixture
def plan(capsys):
    """Runs `pagoda plan`; gives exit code, stdout and stderr."""

    def call(*arguments):
        code = run(["plan", *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def written(text):
    """The service of the text, as the API server and as our own types read it."""
    (document,) = documents("plan.yaml", text)
    assert judge(document.value) == ()
    return InferenceService.model_validate(document.value)


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if not unserved(entry.config)])
def test_what_is_written_for_a_published_model_is_valid_and_is_placed(plan, name):
    """Or is refused, because no single device holds the model. With a promised latency, placement demands room for maxConcurrency."""
    code, out, err = plan(f"hf://{name}", "--yaml", "--ttft", "60s")
    model = parse_model(ENTRIES[name].config)
    if model.weight_bytes("bf16") > find("b300").memory_bytes:
        assert (code, out) == (2, "")
        assert "tensor parallelism is not built" in err
        return
    service = written(out)
    assert (code, service.spec.model.uri, service.spec.engine.max_model_len) == (0, f"hf://{name}", min(4096, model.max_context))
    (entry,) = service.spec.accelerators
    memory = products()[f"NVIDIA-{entry.gpu.product}"] if entry.gpu else slices()[entry.mig.profile]
    assert on_device(Requirement.of(model, service.spec), memory).why == ""


@pytest.mark.parametrize(("kept", "written_as"), [("fp8", "float8"), ("int8", "int8")])
def test_keys_and_values_of_8_bits_are_written_into_the_service(plan, kept, written_as):
    _, out, _ = plan("hf://Qwen/Qwen3-0.6B", "--device", "l4", "--kv-dtype", kept, "--yaml")
    assert written(out).spec.engine.kv_cache.dtype == written_as


def test_the_reasons_stand_above_their_fields(plan, tmp_path):
    _, out, _ = plan("hf://meta-llama/Llama-3.1-8B", "--yaml", "--device", "l4", "--device", "h100", "--ttft", "2s", "--tpot", "80ms")
    assert out.splitlines() == [
        "# Written by pagoda plan: the cheapest device that fits the model and that Pagoda serves.",
        "# Predicted: 848 ms to the first token, then 79.1 ms per token, 38 tokens/s at 3 requests.",
        "# Predictions rank devices. They replace no measurement.",
        "# These fit, too: h100:1g.20gb ($1.00 an hour), h100:2g.20gb ($1.00 an hour), h100:3g.40gb ($2.00 an hour).",
        "apiVersion: serving.pagoda.dev/v1alpha1",
        "kind: InferenceService",
        "metadata:",
        "  name: llama-3-1-8b",
        "spec:",
        "  model:",
        "    # Each pod fetches the model to its scratch disk, 16.06 GB in bf16. model.cache.pvc names a claim that keeps it.",
        "    # A gated model needs credentials and model.credential.",
        '    uri: "hf://meta-llama/Llama-3.1-8B"',
        "  # l4: 16.06 GB of weights, 3.53 GB of reserve and 3 x 0.54 GB of KV cache fit into 24.00 GB.",
        "  # $0.80 an hour (on demand, read 2026-05-07).",
        "  accelerators:",
        "  - gpu:",
        "      product: L4",
        "  engine:",
        "    # Tokens of one request, prompt and answer. The model can have 131,072.",
        "    maxModelLen: 4096",
        "    # Memory holds 8 requests of full length. The time per token allows fewer.",
        "    maxConcurrency: 3",
        "  slo:",
        '    ttft: "2000ms"',
        '    itl: "80ms"',
    ]
    (tmp_path / "plan.yaml").write_text(out)
    assert run(["validate", str(tmp_path / "plan.yaml")]) == 0


def test_a_model_of_this_machine_comes_from_a_claim(plan, tmp_path):
    folder = tmp_path / "My Model_7B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    _, out, _ = plan(str(folder), "--yaml", "--device", "h100:1g.10gb", "--concurrency", "8")
    service = written(out)
    assert (service.metadata.name, service.spec.model.uri) == ("my-model-7b", "pvc://my-model-7b")
    assert (service.spec.accelerators[0].mig.profile, service.spec.engine.max_concurrency) == ("1g.10gb", 8)
    assert "As many requests at the same time as were asked for." in out


def test_on_cpu_the_service_asks_for_the_catalogues_cores_and_memory(plan):
    _, out, _ = plan("hf://Qwen/Qwen3-0.6B", "--yaml", "--device", "cpu", "--quantization", "int8", "--concurrency", "4")
    service = written(out)
    entry = service.spec.accelerators[0].cpu
    assert (entry.cores, entry.memory, service.spec.engine.quantization) == ("32", "128G", "int8")
    assert on_cpu(Requirement.of(parse_model(CONFIG), service.spec), 128 * 10**9).why == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("hf://google/gemma-2-9b",), "--yaml: no daemon serves this model: model_type 'gemma2' is not served"),
        (
            ("hf://meta-llama/Llama-3.1-70B", "--device", "h100"),
            "h100: a replica computes on one device, because tensor parallelism is not built",
        ),
        (("hf://Qwen/Qwen3-0.6B", "--device", "mi300x"), "mi300x: there is no daemon for it"),
        (("hf://Qwen/Qwen3-0.6B", "--quantization", "fp8", "--device", "a10"), "a10: the daemon does not run fp8 weights on it"),
        (("hf://Qwen/Qwen3-0.6B", "--kv-dtype", "fp8", "--device", "a10"), "a10: the daemon does not keep keys and values as fp8 on it"),
        (("hf://Qwen/Qwen3-0.6B", "--kv-dtype", "int8", "--device", "cpu"), "cpu: the daemon does not keep keys and values as int8 on it"),
        (("hf://Qwen/Qwen3-235B-A22B", "--device", "a10"), "--yaml: no device fits; pagoda plan without --yaml says why"),
        (("hf://Qwen/Qwen3-0.6B", "--context", "15"), "--yaml: spec.engine.maxModelLen: "),
    ],
)
def test_what_pagoda_cannot_serve_is_not_recommended(plan, arguments, says):
    code, out, err = plan(*arguments, "--yaml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Llama-3.1-8B", "llama-3-1-8b"),
        ("7b_Chat", "model-7b-chat"),
        ("--", "model"),
        ("\u00e9\u00e8", "model"),
        ("x" * 34 + "-y", "x" * 34),
    ],
)
def test_a_service_is_called_as_its_model(text, name):
    assert service_name(text) == name


@pytest.mark.parametrize("name", ENTRIES)
def test_a_published_model_is_known_by_its_name_on_the_hub(name):
    assert find_model(f"hf://{name}") == (ENTRIES[name].config, name.partition("/")[2], f"hf://{name}")


def test_a_model_that_was_fetched_once_is_read_from_hugging_faces_cache(tmp_path, monkeypatch):
    folder = tmp_path / "models--acme--tiny"
    for path, text in (("refs/main", "abc123\n"), ("snapshots/abc123/config.json", json.dumps(CONFIG))):
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(text)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert find_model("hf://acme/tiny") == (CONFIG, "tiny", "hf://acme/tiny")
    (folder / "refs/main").write_text("../../../elsewhere")
    assert cached(tmp_path, "acme/tiny") is None


@pytest.mark.parametrize(
    ("environment", "folder"),
    [({"HF_HUB_CACHE": "/a"}, "/a"), ({"HF_HOME": "/b"}, "/b/hub"), ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub")],
)
def test_hugging_faces_cache_is_where_its_variables_say(environment, folder):
    assert str(hub_cache(environment)) == folder


@pytest.mark.parametrize("report", [CONFIG, {"config": CONFIG, "files": 3}])
def test_the_report_of_an_inspection_is_read_from_standard_input(monkeypatch, report):
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(report)))
    assert find_model("-").config == CONFIG


@pytest.mark.parametrize(
    ("given", "says"),
    [(b"\xff", "not UTF-8 text"), (b"[" * 100_000, "nested too deeply"), (b" " * (1 << 21), "at most 1 MiB"), (b"", "not JSON")],
)
def test_what_no_model_is_on_standard_input_is_refused(monkeypatch, given, says):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given), encoding="utf-8"))
    with pytest.raises(CliError, match=f"standard input.*{says}"):
        find_model("-")


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("hf://meta-llama/Llama-3.1-8b", "Did you mean hf://meta-llama/Llama-3.1-8B"),
        ("hf://acme/none", "kubectl get configmap SERVICE-model -o jsonpath='{.data.model\\.json}' | pagoda plan -"),
        ("hf://acme", "must be hf://ORG/NAME"),
        ("hf://../../etc/passwd", "must be hf://ORG/NAME"),
        ("s3://bucket/model", "pagoda plan connects to no source"),
    ],
)
def test_a_model_that_is_not_at_hand_is_refused_with_what_is_accepted(tmp_path, monkeypatch, model, says):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CliError, match="hf://") as refused:
        find_model(model)
    assert says in str(refused.value)
