"""Makes what every unit test pays for cheap: authorities to trust, and the garbage collector's look at what was imported."""

import gc
import os
from pathlib import Path

import pytest

# A client reads the authorities that it trusts when it is made: 150 of them take 25 ms of CPU, this one takes less than 1 ms. No unit test
# leaves the machine, so none needs more.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parents[1] / "data/nobody-ca.pem")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """A million objects live from here to the end (PyTorch, 6,000 tests): a full collection looks at them no more."""
    gc.collect()
    gc.freeze()
