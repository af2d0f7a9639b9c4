"""A quantised checkpoint is served on a CPU as the one that has its numbers in bf16: the same logits and the same greedy tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pagoda_contracts.launch import EngineConfig
from pagoda_daemon.core.batch import SamplingRows, StepPlan
from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.runner.host import Host
from pagoda_daemon.runner.load import Loaded, load_forward
from pagoda_kernels.cpu.choice import missing
from support.engine.quantised_files import FORMATS, plain_tensors, quantised_tensors, write_model
from torch import Tensor

native = pytest.mark.skipif(missing() is not None, reason=f"native ops: {missing()}")
PROMPT = np.random.default_rng(1).integers(3, 200, 20).tolist()
COUNT = 12


def load(folder: Path, **engine: Any) -> Loaded:
    settings = {"threads": 1, "max_model_len": 128, "max_concurrency": 2, **engine}
    return load_forward(folder, EngineConfig.model_validate(settings), Host(), lambda _: None)


def both(folder: Path, name: str) -> tuple[Path, Path]:
    """A quantised checkpoint, and one of the numbers that it stands for."""
    tensors, exact = quantised_tensors(FORMATS[name], plain_tensors())
    plain = {one: tensor.float().bfloat16() for one, tensor in exact.items()}
    return write_model(folder / "quantised", tensors, FORMATS[name]), write_model(folder / "plain", plain, None)


def logits(loaded: Loaded, ids: list[int]) -> Tensor:
    """Of every token of one prompt."""
    plan = StepPlan(
        step=0,
        rows=np.zeros(1, np.int32),
        starts=np.array([0, len(ids)], np.int32),
        token_ids=np.array(ids, np.int32),
        positions=np.arange(len(ids), dtype=np.int32),
        block_tables=np.arange(-(-len(ids) // 16), dtype=np.int32)[None],
        sample=np.ones(1, np.bool_),
        sampling=SamplingRows(),
    )
    return torch.as_tensor(loaded.forward.logits(plan, np.arange(len(ids))))


def greedy(loaded: Loaded) -> list[int]:
    ids = list(PROMPT)
    for _ in range(COUNT):
        ids.append(int(logits(loaded, ids)[-1].argmax()))
    return ids[len(PROMPT) :]


@native
@pytest.mark.parametrize("name", FORMATS)
def test_native_ops_answer_as_of_the_dequantised_checkpoint(name: str, tmp_path: Path) -> None:
    ours, theirs = (load(folder) for folder in both(tmp_path, name))
    assert (ours.by, ours.weight_bytes) == ("native ops", theirs.weight_bytes)
    assert torch.equal(logits(ours, PROMPT), logits(theirs, PROMPT))
    assert greedy(ours) == greedy(theirs)


@pytest.mark.parametrize("name", ["fp8-blocks", "awq", "gptq-asymmetric", "compressed-int4"])
def test_torch_answers_as_of_the_dequantised_checkpoint(name: str, tmp_path: Path) -> None:
    ours, theirs = (load(folder, block_size=32) for folder in both(tmp_path, name))
    assert ours.by.startswith("torch: ")
    assert torch.equal(logits(ours, PROMPT), logits(theirs, PROMPT))
    assert greedy(ours) == greedy(theirs)


@native
def test_int8_of_a_quantised_checkpoint_is_that_of_its_numbers(tmp_path: Path) -> None:
    ours, theirs = (load(folder, quantization="int8") for folder in both(tmp_path, "awq"))
    assert torch.equal(logits(ours, PROMPT), logits(theirs, PROMPT))


def test_another_format_is_refused_on_a_cpu_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigRejected, match="quantization fp8 is not built for CPU; available there is int8"):
        load(both(tmp_path, "fp8")[0], quantization="fp8")


def test_block_names_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    """Keys and values of one format are not those of another."""
    folders = [both(tmp_path / name, name) for name in ("awq", "gptq")]
    assert len({load(folder, block_size=32).limits.model for pair in folders for folder in pair}) == 4
