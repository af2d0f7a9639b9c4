"""A checkpoint in FP8 with blocks of 128 x 128 has the matrices that transformers reads in it.

That equal matrices give equal answers is what test_model_parity.py is for. Of the other formats transformers reads none without a library
that is not in the lock: their judge is support/engine/quantised_files.py.
"""

from pathlib import Path

import pytest
import torch
from pagoda_daemon.model.config import read_spec
from pagoda_daemon.model.loader import Reading, load_tensors
from pagoda_daemon.model.weights import allocate, destinations
from support.engine.quantised_files import FORMATS, plain_tensors, quantised_tensors, write_model
from transformers import AutoModelForCausalLM, FineGrainedFP8Config

pytestmark = pytest.mark.parity


def test_fp8_in_blocks_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    tensors, _ = quantised_tensors(FORMATS["fp8-blocks"], plain_tensors())
    write_model(tmp_path, tensors, FORMATS["fp8-blocks"])
    read = FineGrainedFP8Config(dequantize=True, weight_block_size=(128, 128))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=read, dtype=torch.bfloat16).state_dict()
    spec = read_spec(tmp_path)
    ours = destinations(spec, allocate(spec, torch.bfloat16))
    load_tensors(tmp_path, ours, lambda _: None, Reading(stored=spec.stored))
    assert ours.keys() == theirs.keys()
    assert [name for name, place in ours.items() if not torch.equal(place, theirs[name])] == []
