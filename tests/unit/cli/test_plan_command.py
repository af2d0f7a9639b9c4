"""`pagoda plan` and `pagoda cost` as a user types them: what they print, and what they refuse in one line with exit code 2."""

import json
import subprocess
import sys
from importlib.metadata import version

import pytest
from pagoda_cli.commands import run
from pagoda_sizing.devices import catalogue
from pagoda_sizing.published import published_model
from support.engine.quantised_files import FORMATS


@pytest.fixture
def llama8b(tmp_path):
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(published_model("meta-llama/Llama-3.1-8B").config))
    return str(folder)


@pytest.fixture
def ask(capsys):
    """Runs a command line; gives exit code, stdout and stderr."""

    def call(*arguments):
        code = run(arguments)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def rows(out):
    """The rows of the table, split into cells."""
    lines = out.splitlines()
    return [line.split() for line in lines[2 : next(n for n, line in enumerate(lines) if line.startswith("$/h:"))]]


def test_each_device_that_fits_has_one_row_cheapest_first(ask):
    code, out, err = ask("plan", "hf://meta-llama/Llama-3.1-8B")
    assert (code, err) == (0, "")
    assert "8,030,261,248 parameters" in out
    found = [cells[0].partition(":")[0] for cells in rows(out)]
    refused = out.partition("do not fit:")[2]
    assert sorted(found) == sorted({device.whole for device in catalogue()} - {"t4"})
    assert "only several of them together: t4: a replica computes on one device" in refused
    prices = [float("inf") if cells[2] == "-" else float(cells[2]) for cells in rows(out)]
    assert prices == sorted(prices)
    # A slice is a device's cheapest form, and a price is a share of the whole device's.
    assert ["h100:1g.20gb", "1", "1.00"] in [cells[:3] for cells in rows(out)]
    assert "Prices: on demand, read 2026-05-07 to 2026-11-09; committed, read 2026-11-21 (rtx4090); list" in out


def test_devices_that_do_not_fit_are_a_line_for_each_reason(ask):
    _, out, _ = ask("plan", "hf://meta-llama/Llama-3.1-70B", "--tp", "2", "--context", "8192", "--concurrency", "16", "--ttft", "1s")
    reasons = out.partition("do not fit:\n")[2].splitlines()
    assert [line.strip().partition(":")[0] for line in reasons] == [
        "too little memory",
        "room for fewer requests",
        "too slow",
        "only several of them together",
    ]
    assert "t4, a10, a10g, a30, a40, a6000, rtx3090, l4, l40, l40s" in reasons[0]
    assert reasons[0].endswith("(a40: weights and reserve, 72.9 GB, exceed 48.0 GB on each of 2)")
    assert reasons[1].endswith("(rtxpro6000: KV cache for 16 needs 21.5 GB, 18.5 GB is free: at most 13 on each of 2)")
    assert reasons[2].startswith("  too slow: h200, cpu (h200: ttft ")
    assert reasons[3].startswith("  only several of them together: b200, b300, mi300x (b300: a replica computes on one device, because ")


def test_a_device_that_is_named_shows_each_of_its_forms(ask):
    _, out, _ = ask("plan", "hf://meta-llama/Llama-3.1-8B", "--device", "h100")
    assert [cells[0] for cells in rows(out)] == ["h100:1g.20gb", "h100:2g.20gb", "h100:3g.40gb", "h100:4g.40gb", "h100", "h100:7g.80gb"]
    assert "1 of 7 do not fit:\n  too little memory: h100:1g.10gb: weights and reserve, 18.5 GB, exceed 10.0 GB\n" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("hf://google/gemma-2-9b",), "No daemon serves this model: model_type 'gemma2' is not served; it must be llama"),
        (("hf://Qwen/Qwen3-0.6B", "--quantization", "nvfp4"), "No daemon serves this model: no daemon runs nvfp4 weights on these devices"),
        (("hf://Qwen/Qwen3-0.6B", "--quantization", "fp8", "--device", "a10"), "Daemons run fp8 weights on l4 only."),
        (("hf://Qwen/Qwen3-0.6B",), "Prices: "),
    ],
)
def test_a_model_that_no_daemon_serves_is_said_below_the_table(ask, arguments, says):
    last = ask("plan", *arguments, "--device", "l4")[1].splitlines()[-1]
    assert last.startswith(says)


def test_plan_takes_a_file_too_and_brings_a_devices_slices_along(ask, llama8b):
    code, out, _ = ask("plan", "--model", f"{llama8b}/config.json", "--device", "h100", "--device", "l4", "--json")
    found = json.loads(out)
    assert code == 0
    names = [row["device"] for row in found["devices"]]
    assert names == ["h100", *(f"h100:{p}" for p in ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")), "l4"]
    assert found["model"] == {
        "kind": "llama",
        "parameters": 8_030_261_248,
        "weight_bytes": 16_060_522_496,
        "kv_bytes_per_token": 131_072,
        "quantisation": "bf16",
        "context": 4096,
    }


def test_json_says_the_verdict_its_reason_and_the_predictions(ask, llama8b):
    _, out, _ = ask("plan", "--model", llama8b, "--device", "h100:1g.10gb", "--device", "h100:3g.40gb", "--concurrency", "4", "--json")
    small, large = json.loads(out)["devices"]
    assert (small["verdict"], small["tokens_per_s"]) == ("no", None)
    assert small["why"] == "weights and reserve, 17.8 GB, exceed 10.0 GB"
    assert (large["verdict"], large["why"], large["concurrency"]) == ("fits", "", 4)
    assert all(large[key] > 0 for key in ("ttft_ms", "tpot_ms", "tokens_per_s", "dollars_per_million", "max_concurrency"))
    assert large["tokens_per_s"] == pytest.approx(4 / (large["tpot_ms"] / 1000))
    assert (large["dollars_per_hour"], large["price_kind"], large["price_read"]) == (3.99 / 2, "on demand", "2026-11-09")


def test_objectives_turn_fits_into_slow(ask, llama8b):
    _, out, _ = ask("plan", "--model", llama8b, "--device", "l4", "--tp", "1", "--concurrency", "1", "--tpot", "20ms", "--json")
    (row,) = json.loads(out)["devices"]
    assert row["verdict"] == "slow"
    assert "is above 20 ms" in row["why"]


def test_a_price_changes_the_dollars(ask, llama8b):
    def dollars(price):
        _, out, _ = ask("plan", "--model", llama8b, "--device", "l4", "--tp", "1", "--price", f"l4={price}", "--json")
        return json.loads(out)["devices"][0]["dollars_per_million"]

    assert dollars("2") == pytest.approx(4 * dollars("0.5"))


def test_the_checkpoints_own_format_is_planned_for(ask, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(published_model("deepseek-ai/DeepSeek-V3").config))
    _, out, _ = ask("plan", "--model", str(tmp_path), "--device", "h200", "--json")
    assert json.loads(out)["model"]["quantisation"] == "fp8"


def test_a_quantised_checkpoint_is_planned_with_what_each_device_holds(ask, tmp_path):
    stored = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    model = published_model("Qwen/Qwen3-8B").config | {"quantization_config": stored}
    (tmp_path / "config.json").write_text(json.dumps(model))
    _, out, _ = ask("plan", "--model", str(tmp_path), "--device", "l4", "--device", "a10", "--device", "cpu", "--json")
    found = json.loads(out)
    held = {row["device"]: round(row["weight_bytes"] / 10**9, 1) for row in found["devices"]}
    assert (found["unserved"], held) == ("", {"l4": 9.4, "a10": 16.4, "cpu": 16.4})
    _, text, _ = ask("plan", "--model", str(tmp_path), "--device", "l4", "--device", "a10")
    assert "Weights are held in bf16 on a10, which has no kernels for fp8." in text


def test_the_service_of_a_quantised_checkpoint_asks_for_no_format(ask, tmp_path):
    stored = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
    (tmp_path / "config.json").write_text(json.dumps(published_model("Qwen/Qwen3-8B").config | {"quantization_config": stored}))
    _, out, _ = ask("plan", "--model", str(tmp_path), "--device", "l4", "--yaml")
    assert "quantization" not in out
    assert "gpu:" in out
    _, _, told = ask("plan", "--model", str(tmp_path), "--device", "h100", "--quantization", "int8", "--yaml")
    assert "quantization int8 contradicts the checkpoint, whose weights are stored in int4" in told


def test_on_a_cpu_the_service_asks_for_the_8_bits_that_it_was_planned_with(ask, tmp_path):
    """A daemon holds bf16 there, whatever is stored, if no format is asked for."""
    stored = FORMATS["compressed-int8"].config
    (tmp_path / "config.json").write_text(json.dumps(published_model("Qwen/Qwen3-8B").config | {"quantization_config": stored}))
    _, out, _ = ask("plan", "--model", str(tmp_path), "--device", "cpu", "--yaml")
    assert "quantization: int8" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--device", "h99"), "device must be one of t4"),
        (("--device", "h100:9g.90gb"), "h100 has no MIG profile '9g.90gb'; it has 1g.10gb"),
        (("--context", "0"), "context must be a finite number above 0, got 0"),
        (("--context", "131073"), "accepts at most 131072 tokens"),
        (("--concurrency", "-1"), "concurrency must be a finite number above 0, got -1"),
        (("--context", "100", "--prompt", "200"), "prompt 200 is longer than the context of 100"),
        (("--ttft", "1"), "--ttft: '1' is not a duration"),
        (("--tpot", "0s"), "tpot must be a finite number above 0, got 0.0"),
        (("--quantization", "int3"), "quantisation must be one of bf16"),
        (("--kv-dtype", "fp4"), "KV cache dtype must be one of bf16"),
        (("--tp", "5"), "tensor-parallel degree 5: 32 heads cannot be split so; it must be one of 1, 2, 4, 8"),
        (("--price", "l4"), "--price must be DEVICE=DOLLARS"),
        (("--device", "l4", "--price", "h100=1"), "a price must be for a device of this plan (l4), got 'h100'"),
        (("--context", "many"), "'many' is not a valid int"),
        (("--nonsense",), "No such option: --nonsense"),
        (("hf://meta-llama/Llama-3.1-8B",), "give exactly one MODEL"),
        (("--json", "--yaml"), "give at most one of --json and --yaml"),
    ],
)
def test_impossible_or_contradictory_input_is_one_line_and_exit_2(ask, llama8b, arguments, says):
    code, out, err = ask("plan", "--model", llama8b, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("pagoda: ")
    assert says in err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file or directory"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"[1]", "must be an object, got list"),
        (b"model: x", "config.json is not JSON: Expecting value: line 1 column 1 (char 0); MODEL must be a model's folder"),
        (b'{"model_type": "mamba"}', "model_type 'mamba' is not supported; supported are bert"),
        (b'{"model_type": "llama"}', "hidden_size is missing"),
        (b" " * (1 << 21), "at most 1 MiB"),
    ],
)
def test_an_unusable_model_is_one_line_and_exit_2(ask, tmp_path, content, says):
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    code, out, err = ask("plan", "--model", str(tmp_path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_cost_counts_the_break_even_with_people(ask):
    code, out, _ = ask("cost", "--monthly", "8640", "--ops-hours", "20", "--ops-rate", "100", "--api-request-price", "0.0085", "--json")
    assert code == 0
    assert json.loads(out) == {"dollars_per_month": 10_640, "breakeven_requests_per_month": 1_251_765}


def test_cost_per_million_tokens_and_break_even_in_tokens(ask):
    _, out, _ = ask("cost", "--price", "10", "--throughput", "3400", "--api-price", "10")
    assert "hardware per million tokens: $0.817" in out
    assert "break-even: 720,000,000 tokens a month" in out


@pytest.mark.parametrize(("used", "deployments"), [("0.9", 1), ("0.95", 2)])
def test_ten_variants_as_adapters_need_a_deployment_as_long_as_one_has_the_room(ask, used, deployments):
    people = ("--ops-hours", "20", "--ops-rate", "100")
    _, out, _ = ask("cost", "--price", "10", "--throughput", "3400", "--utilisation", used, "--lora", "10", *people, "--json")
    found = json.loads(out)
    assert (found["adapters_deployments"], found["own_deployments"]) == (deployments, 10)
    assert (found["adapters_dollars_per_month"], found["own_dollars_per_month"]) == (deployments * 7200 + 2000, 74_000)
    ratio = found["own_dollars_per_million_tokens"] / found["adapters_dollars_per_million_tokens"]
    assert ratio == pytest.approx(74_000 / (deployments * 7200 + 2000))


def test_cost_counts_only_what_met_its_objective_and_what_was_used(ask):
    _, out, _ = ask("cost", "--price", "10", "--throughput", "3400", "--within-slo", "0.5", "--utilisation", "0.5", "--json")
    assert json.loads(out)["dollars_per_million_tokens"] == pytest.approx(4 * 10 / 3400 / 3600 * 1e6)


def test_the_price_with_ops_pays_for_people_too(ask):
    """$7,200 of hardware and $7,200 of people a month: $20 an hour."""
    _, out, _ = ask("cost", "--price", "10", "--ops-hours", "72", "--ops-rate", "100", "--throughput", "1000", "--json")
    found = json.loads(out)
    assert found["dollars_per_million_tokens"] == pytest.approx(10 / 3.6)
    assert found["dollars_per_million_tokens_with_ops"] == pytest.approx(20 / 3.6)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give exactly one of --price (dollars an hour) and --monthly"),
        (("--price", "1", "--monthly", "1", "--api-price", "1"), "give exactly one of"),
        (("--price", "1"), "nothing to compare with"),
        (("--price", "1", "--ops-hours", "3", "--api-price", "1"), "give both or neither"),
        (("--price", "-1", "--api-price", "1"), "hardware per month must be 0 or more, got -720.0"),
        (("--price", "1", "--api-price", "0"), "API price per million tokens must be a finite number above 0, got 0.0"),
        (("--price", "1", "--throughput", "0"), "tokens per second must be a finite number above 0, got 0.0"),
        (("--price", "1", "--throughput", "1", "--utilisation", "2"), "utilisation must be above 0 and at most 1, got 2.0"),
        (("--price", "1", "--throughput", "1", "--within-slo", "2"), "share within objective must be from 0 to 1, got 2.0"),
        (("--price", "1", "--lora", "0"), "variants must be a finite number above 0, got 0"),
        (("--price", "1", "--lora", "3", "--lora-share", "2"), "share with adapters must be above 0 and at most 1, got 2.0"),
    ],
)
def test_contradictory_costs_are_one_line_and_exit_2(ask, arguments, says):
    code, out, err = ask("cost", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_a_file_that_is_no_config_is_called_by_its_own_name(ask, tmp_path):
    (tmp_path / "service.yaml").write_text("kind: InferenceService")
    code, _, err = ask("plan", "--model", str(tmp_path / "service.yaml"))
    assert (code, err.startswith(f"pagoda: {tmp_path / 'service.yaml'} is not JSON: ")) == (2, True)


def test_the_version_is_that_of_the_package(ask):
    assert ask("--version") == (0, f"pagoda {version('pagoda')}\n", "")


def test_no_command_prints_the_commands(ask):
    code, out, _ = ask()
    assert code == 0
    assert "plan" in out
    assert "cost" in out


def test_the_command_names_the_extra_if_a_package_is_missing():
    hide = "import sys; sys.modules['typer'] = None; sys.argv = ['pagoda', 'plan']; from pagoda_cli.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-P", "-c", hide], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "pagoda: typer is not installed; in a checkout: pip install '.[cli]'\n"
