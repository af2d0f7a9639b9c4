"""The interpreter where there is no GPU."""

import pytest
import torch
from pagoda_kernels.interpreter.honest import HonestInterpreter


@pytest.fixture(scope="module")
def honest():
    """Numbers round, and accesses are checked, as on a device."""
    if torch.cuda.is_available():
        yield
        return
    with HonestInterpreter():
        yield
