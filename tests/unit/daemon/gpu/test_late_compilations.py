"""No step of a warm worker waits for the compiler, whatever is in it."""

import json
import os
import subprocess
import sys

import pytest
import torch

SHAPES = (
    "norms",
    "windows",
    "blocks by descriptors",
    "experts",
    "fp8",
    "int8",
    "adapters",
    *(f"keys and values in {kind}" for kind in ("int8", "float8")),
)


@pytest.fixture(scope="module")
def asked():
    """By shape of the model: how many kernels a load has the compiler make, and which steps ask for more."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"} | {"PYTHONPATH": "tests"}
    command = [sys.executable, "-P", "-m", "support.engine.compile_keys"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


@pytest.mark.deep
@pytest.mark.parametrize("name", SHAPES)
def test_a_load_compiles_all_that_steps_of_any_shape_need(asked, name):
    assert asked[name]["warm"] > 10
    assert asked[name]["late"] == []


@pytest.mark.deep
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", SHAPES)
def test_on_a_gpu_nothing_is_compiled_after_the_load(name):
    from pagoda_kernels.gpu.launch import on_compile
    from support.engine.compile_keys import plans, worker_of

    worker = worker_of(name, torch.device("cuda"))
    compiled = []
    on_compile(compiled.append)
    for plan in plans(worker.limits.vocab_size, name == "adapters"):
        worker.execute(plan)
    assert compiled == []
