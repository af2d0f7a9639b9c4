"""Makes what every unit test pays for cheap: authorities to trust, log lines, and what the garbage collector looks at."""

import gc
import logging
import os
from pathlib import Path

import pytest
import structlog

# A client reads the authorities that it trusts when it is made: 150 of them take 25 ms of CPU, this one takes less than 1 ms. No unit test
# leaves the machine, so none needs more.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parents[1] / "data/nobody-ca.pem")

# The processes write JSON. Here an error's traceback would be drawn in colour, with 20 ms of CPU.
structlog.get_config()["processors"][-1].exception_formatter = structlog.dev.plain_traceback


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """A million objects live from here to the end (PyTorch, 6,000 tests): a full collection looks at them no more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)  # Python's 700 objects are a look every millisecond, and Hypothesis measures each
    # In each phase of a test pytest adds two handlers to the root and to each logger that does not propagate. PyTorch has 45: these
    # take 0.3 ms of CPU per test. If they propagate, the same handlers hear them at the root.
    for name in [*logging.root.manager.loggerDict]:
        if name.partition(".")[0] == "torch":
            logging.getLogger(name).propagate = True
