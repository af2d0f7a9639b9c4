"""The tests of GPU ops run on the GPU where there is one, and elsewhere in Triton's interpreter, made honest.

They need torch, numpy, pytest and hypothesis only, so that a machine with a GPU runs them without the project (kernels/README.md).
"""

import os
import sys
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    # Triton's own functions are decorated when it is imported. tests/conftest.py comes before that, where it is used.
    if "triton" in sys.modules:
        raise pytest.UsageError("triton was imported before TRITON_INTERPRET was set: tests/conftest.py has to set it")
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True, scope="session")
def honest_interpreter() -> Iterator[None]:
    """bf16, fp8 and tf32 round as on a device, and an access that a device would not forgive raises KernelFault."""
    if torch.cuda.is_available():
        yield
        return
    from pagoda_kernels.interpreter.honest import HonestInterpreter

    with HonestInterpreter():
        yield
