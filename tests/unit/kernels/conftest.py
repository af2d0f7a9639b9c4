"""The libraries of the CPU's native ops, of which a processor can run one or two."""

import pytest
from pagoda_kernels.cpu import choice
from pagoda_kernels.cpu.build import VARIANTS


@pytest.fixture(params=VARIANTS, ids=lambda variant: variant.instructions)
def library(request, monkeypatch):
    """Each in turn computes what the test asks for, also the one that this processor would not take by itself."""
    if lacking := choice.lacking(request.param):
        pytest.skip(f"the CPU lacks {', '.join(lacking)}")
    monkeypatch.setattr(choice, "chosen", lambda *_: request.param)
