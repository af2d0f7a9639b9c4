"""Reproducers of advisories about what a model directory may bring along: code, pickles, lengths that lie, paths, templates."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import jinja2
import msgspec
import pytest
from pagoda_daemon.core.errors import ModelRejected
from pagoda_daemon.core.messages import Abort, ToEngine
from pagoda_daemon.engine.wire import Wire
from pagoda_daemon.model import loader
from pagoda_daemon.model.config import read_spec
from pagoda_daemon.model.files import read_header
from pagoda_daemon.text.template_worker import environment
from pagoda_daemon.text.tokens import ModelText
from support.engine.toy_model import tiny_model_dir

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 32,
    "max_position_embeddings": 64,
}


class Bomb:
    """Unpickled, it leaves a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return (Path.touch, (self.canary,))


def with_code(folder: Path) -> Path:
    """Python files that leave a file when anything runs them; where."""
    canary = folder / "canary"
    for name in ("modeling_evil.py", "tokenization_evil.py", "processing_evil.py", "configuration_evil.py", "__init__.py"):
        (folder / name).write_text(f"import pathlib\npathlib.Path({str(canary)!r}).touch()\n")
    return canary


async def test_code_that_config_json_names_is_refused_unrun(tmp_path: Path) -> None:
    canary = with_code(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"auto_map": {"AutoModelForCausalLM": "modeling_evil.Evil"}}))
    with pytest.raises(ModelRejected, match="auto_map"):
        read_spec(tmp_path)
    assert not canary.exists()
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert read_spec(tmp_path) is not None


async def test_an_architecture_that_is_not_ours_is_refused_whoever_implements_it(tmp_path: Path) -> None:
    canary = with_code(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"architectures": ["modeling_evil.Evil"], "trust_remote_code": True}))
    with pytest.raises(ModelRejected, match="not supported"):
        read_spec(tmp_path)
    assert not canary.exists()


async def test_code_that_the_tokenizer_or_a_processor_names_never_runs(tmp_path: Path) -> None:
    canary = with_code(tiny_model_dir(tmp_path))
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    evil = {"auto_map": {"AutoTokenizer": ["tokenization_evil.Evil", None]}, "tokenizer_class": "Evil", "trust_remote_code": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | evil))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"auto_map": {"AutoProcessor": "processing_evil.Evil"}}))
    assert ModelText(tmp_path).encode("hi", 16) == (104, 105)
    assert not canary.exists()


async def test_pickled_weights_are_refused_unread(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    for name in ("pytorch_model.bin", "model.pt", "consolidated.pth"):
        (tmp_path / name).write_bytes(pickle.dumps(Bomb(canary)))
    with pytest.raises(ModelRejected, match="only safetensors"):
        loader.weight_files(tmp_path)
    assert not canary.exists()


async def test_an_index_leads_nowhere_else(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside.safetensors").write_bytes(b"x" * 16)
    for name in ("../outside.safetensors", str(tmp_path / "outside.safetensors"), "a/../../outside.safetensors"):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(ModelRejected, match="not a file in"):
            loader.weight_files(folder)


def stored(folder: Path, header: bytes, length: int | None = None) -> Path:
    file = folder / "model.safetensors"
    file.write_bytes((len(header) if length is None else length).to_bytes(8, "little") + header + b"\0" * 64)
    return file


async def test_a_header_is_as_long_as_its_file_bears_out(tmp_path: Path) -> None:
    for length in (0, 101 * 2**20, 2**40, 2**63, 2**64 - 1):
        with pytest.raises(ModelRejected, match="header"):
            read_header(stored(tmp_path, b"{}", length))


async def test_a_tensor_lies_within_its_file(tmp_path: Path) -> None:
    for begin, end, shape in ((0, 2**20, [2**18]), (2**62, 2**62 + 4, [1]), (60, 4000, [985])):
        entry = {"a": {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}}
        with pytest.raises(ModelRejected):
            read_header(stored(tmp_path, json.dumps(entry).encode()))


async def test_a_tensor_has_as_many_bytes_as_its_shape_says(tmp_path: Path) -> None:
    for shape, end in (([2**31, 2**33], 4), ([-1], 4), ([4], 4), ([True], 4), ([1.0], 4), ([0], 4)):
        entry = {"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}
        with pytest.raises(ModelRejected):
            read_header(stored(tmp_path, json.dumps(entry).encode()))


ESCAPES = (
    "{{ ''.__class__.__mro__ }}",
    "{{ ('{0.__class__.__init__.__globals__}' | attr('format'))(messages) }}",
    "{% set f = '{0.__class__}'.format %}{{ f(messages) }}",
    "{{ [messages] | map('attr', '__class__') | list }}",
    "{{ messages.append({'role': 'system', 'content': 'x'}) }}",
    "{{ raise_exception.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
)


async def test_a_template_stays_in_its_sandbox() -> None:
    messages = [{"role": "user", "content": "hi"}]
    for escape in ESCAPES:
        try:
            said = environment().from_string(escape).render(messages=messages)
        except (jinja2.TemplateError, TypeError):  # the process that renders answers either with a refusal: test_templates.py
            continue
        assert not any(word in said for word in ("class", "globals", "module", "root:", "uid=")), (escape, said)
    assert messages == [{"role": "user", "content": "hi"}]


async def test_a_pickle_on_the_engines_wire_is_never_loaded(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    wire = Wire(f"ipc://{tmp_path}/to", f"ipc://{tmp_path}/from")
    try:
        decode = wire._decoder.decode
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises(msgspec.DecodeError):
                decode(pickle.dumps(Bomb(canary), protocol))
        assert not canary.exists()
        message: ToEngine = decode(b"\x82\xa4type\xa5abort\xaarequest_id\xa1x")
        assert message == Abort("x")
    finally:
        wire.close()
