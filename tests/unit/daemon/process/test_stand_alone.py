"""The flags of `pagoda-daemon serve`: what a person types becomes a DaemonConfig or a clear refusal."""

from __future__ import annotations

import hashlib
import json
import re
import stat
import sys
import tempfile
from pathlib import Path

import pytest
from pagoda_contracts.launch import AdapterModule, AdaptersConfig, DaemonConfig
from pagoda_daemon.core.errors import ConfigRejected, NotStarted
from pagoda_daemon.process import settings, stand_alone


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path, monkeypatch):
    """What is left behind is seen."""
    runs = tmp_path / "runs"
    runs.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(runs))
    return runs


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "llama"
    folder.mkdir()
    return folder


def config(*argv, environ=None):
    return settings.resolve(["serve", *map(str, argv)], environ or {}).config


def test_without_flags_it_listens_on_this_machine_only(model):
    made = config(model)
    assert (made.model.path, made.model.served_names) == (str(model), ("llama",))
    assert (made.listen.host, made.listen.http, made.auth) == ("127.0.0.1", 8000, None)


@pytest.mark.parametrize(("flags", "tokens"), [((), 2048), (("--max-num-batched-tokens", "512"), 512)])
def test_the_engine_learns_whether_the_tokens_of_a_step_were_set(model, flags, tokens):
    path = settings.resolve(["serve", str(model), *flags], {}).config_path
    assert DaemonConfig.model_validate_json(path.read_text()).engine.at(cuda=True).token_budget == tokens


def test_vllms_flags_reach_their_fields(model, tmp_path):
    given = (
        "--served-model-name a b --max-model-len 4k --max-num-seqs 8 --max-num-batched-tokens 256 --block-size 32 --dtype float32 "
        "--device auto --kv-cache-memory-bytes 2Gi --quantization int8 --kv-cache-dtype auto "
        "--gpu-memory-utilization 0.75 --tool-call-parser hermes --enable-auto-tool-choice "
        "--no-enable-prefix-caching --threads 2 --drain-timeout 5s --host ::1 --port 0"
    )
    made = config(model, *given.split(), "--chat-template", tmp_path / "t.jinja")
    assert made.model.served_names == ("a", "b")
    assert made.model.chat_template == str(tmp_path / "t.jinja")
    found = made.engine.model_dump(exclude_none=True)
    assert found == {
        "max_model_len": 4096,
        "max_concurrency": 8,
        "token_budget": 256,
        "dtype": "float32",
        "block_size": 32,
        "kv_bytes": 2 * 2**30,
        "kv_memory_fraction": 0.75,
        "threads": 2,
        "quantization": "int8",
        "prefix_caching": False,
        "tool_parser": "hermes",
    }
    assert (made.listen.host, made.listen.http, made.drain_timeout) == ("::1", 0, "5s")


def test_flags_for_browsers_proxies_and_tls_reach_their_fields(model):
    given = "--ssl-certfile c.pem --ssl-keyfile k.pem --cors-origin https://a --cors-origin https://b --root-path /llm --seed 7"
    made = config(model, *given.split())
    assert made.listen.tls.model_dump() == {"cert_file": "c.pem", "key_file": "k.pem"}
    assert (made.listen.cors_origins, made.listen.root_path, made.engine.seed) == (("https://a", "https://b"), "/llm", 7)


def test_without_keys_only_names_of_this_daemon_are_answered(model, tmp_path):
    assert config(model).listen.allowed_hosts == ("127.0.0.1",)
    assert config(model, "--host", "laptop", "--allowed-host", "llm.lan").listen.allowed_hosts == ("llm.lan", "laptop")
    assert config(model, "--api-key", "k").listen.allowed_hosts is None
    assert config(model, "--api-key", "k", "--allowed-host", "a").listen.allowed_hosts == ("a",)
    assert config(model, "--set", f"auth.keysFile={tmp_path}").listen.allowed_hosts is None


def test_every_field_can_be_set_by_its_name(model):
    made = config(
        model, "--set", "health.progressTimeout=7s", "--set", "engine.deterministic=true", "--set", "kvEvents={}", "--max-num-seqs", 3
    )
    assert (made.health.progress_timeout, made.engine.deterministic, made.kv_events.buffer_batches) == ("7s", True, 10_000)
    assert made.engine.max_concurrency == 3


def test_a_file_of_flags_is_overruled_by_the_command_line(model, tmp_path):
    file = tmp_path / "flags.yaml"
    file.write_text(f"model: {model}\nmax-model-len: 2k\nserved-model-name: [a, b]\nenable-auto-tool-choice: true\nset: [slo.ttft=2s]\n")
    made = config("--config", file, "--max-model-len", "512")
    assert (made.model.served_names, made.engine.max_model_len, made.slo.ttft) == (("a", "b"), 512, "2s")


def test_keys_are_written_as_digests_for_this_user_alone(model):
    for made in (config(model, "--api-key", "s3cret", "--api-key", "two"), config(model, environ={"PAGODA_API_KEY": "s3cret two"})):
        path = Path(made.auth.keys_file)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        digests = [line.split()[0] for line in path.read_text().splitlines()]
        assert digests == [hashlib.sha256(key).hexdigest() for key in (b"s3cret", b"two")]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--set", "engine"], "must be FIELD=VALUE"),
        (["--set", "engine.fast=1"], "engine.fast: not built yet, or no field"),
        (["--set", "engine.tokenBudget=1"], "engine.tokenBudget: "),
        (["--set", "engine.tensorParallel=2"], "engine.tensorParallel: not built yet"),
        (["--tool-call-parser", "x" * 1000], "engine.toolParser: "),
        (["--config", "none.yaml"], "none.yaml: No such file"),
        (["--set", "engine.blockSize=8"], "engine.blockSize: must be 16, 32 or 64, got 8"),
        (["--lora-modules", "a=b"], "need --enable-lora"),
        (["--enable-lora", "--lora-modules", "a"], "--lora-modules must be NAME=PATH, or JSON with name and path, got 'a'"),
        (["--enable-lora", "--max-loras", "0"], "adapters.maxLoaded: "),
        (["--enable-lora", "--admin-api-key", "k"], "--admin-api-key needs --api-key"),
        (["--set", "slo.ttft=2"], "slo.ttft: must be a duration such as 2s"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(model, own_temporary_folder, argv, said):
    with pytest.raises(ConfigRejected) as caught:
        config(model, *argv)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 500
    assert list(own_temporary_folder.iterdir()) == []


@pytest.mark.parametrize("flag", ["--tensor-parallel-size 2", "--tensor-parallel-size=2", "--trust-remote-code"])
def test_vllms_flags_that_have_no_effect_here_are_refused_by_name(model, capsys, flag):
    with pytest.raises(SystemExit):
        config(model, *flag.split())
    why = "is never done: code that comes with a model is not run" if "trust" in flag else "is not built yet"
    assert f"{flag.split()[0].partition('=')[0]} {why}; leave it out" in capsys.readouterr().err


def test_flags_of_adapters_have_vllms_names(model, tmp_path):
    assert config(model).adapters is None
    made = config(model, *f"--enable-lora --lora-modules sql={tmp_path} --max-loras 3 --max-lora-rank 16 --lora-dir {tmp_path}".split())
    assert made.adapters == AdaptersConfig(
        modules=(AdapterModule(name="sql", path=str(tmp_path)),), max_loaded=3, max_rank=16, directory=str(tmp_path)
    )
    given = json.dumps({"name": "sql", "path": str(tmp_path), "base_model_name": "m"})
    assert config(model, "--enable-lora", "--lora-modules", given).adapters.modules == made.adapters.modules


def test_the_key_of_an_administrator_has_that_role_alone(model):
    made = config(model, "--api-key", "s3cret", "--enable-lora", "--admin-api-key", "root")
    assert Path(made.auth.keys_file).read_text().splitlines()[1] == f"{hashlib.sha256(b'root').hexdigest()} admin role=admin"


def test_every_name_is_served(model, tmp_path):
    assert config(model, "--name", "a", "--name", "b").model.served_names == ("a", "b")
    assert config(model, "--served-model-name", "a", "b", "--name", "b", "--name", "c").model.served_names == ("a", "b", "c")
    file = tmp_path / "flags.yaml"
    file.write_text("name: [a, b]\n")
    assert config(model, "--config", file).model.served_names == ("a", "b")


def test_a_size_of_blocks_that_no_op_has_is_refused(model, capsys):
    with pytest.raises(SystemExit):
        config(model, "--block-size", "8")
    assert "--block-size: must be 16, 32 or 64, got '8'" in capsys.readouterr().err


def test_help_lists_what_a_person_runs(capsys):
    with pytest.raises(SystemExit):
        settings.resolve(["--help"], {})
    said = capsys.readouterr().out
    assert [name for name in ("serve", "bench", "simulate", "simulate-fronts") if f"\n    {name} " in said] == [
        "serve",
        "bench",
        "simulate",
    ]
    assert "simulate-fronts" not in said
    with pytest.raises(SystemExit):
        settings.resolve(["--config", "x", "bench", "serve"], {})


def test_a_name_of_a_hub_is_fetched_by_pagoda_fetch(tmp_path, monkeypatch):
    """The command that runs is the real one's; what it prints is the folder."""
    folder = tmp_path / "sha256-1"
    folder.mkdir()
    argv_file = tmp_path / "argv"
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\necho "$@" > {argv_file}\necho {folder}\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    made = config("org/tiny", "--revision", "v1", "--download-dir", tmp_path / "store")
    assert (made.model.path, made.model.served_names) == (str(folder), ("org/tiny",))
    assert argv_file.read_text().split() == [
        "-P",
        "-m",
        "pagoda_fetch",
        "fetch",
        "hf://org/tiny",
        "--to",
        str(tmp_path / "store"),
        "--revision",
        "v1",
    ]
    program.write_text("#!/bin/sh\nexit 78\n")
    with pytest.raises(NotStarted, match=r"hf://org/tiny was not fetched; pagoda-fetch ended with 78. There is no directory org/tiny here"):
        config("org/tiny", environ={"XDG_CACHE_HOME": str(tmp_path)})
    for path in ("no/such/folder", "./nothere", "../nothere", ".hidden/x"):
        with pytest.raises(ConfigRejected, match=f"{re.escape(path)} is not a directory"):
            config(path)


def test_the_name_is_what_was_asked_for(model):
    assert stand_alone.name_of(str(model)) == "llama"
    assert stand_alone.name_of("oci://registry/repo") == "registry/repo"
