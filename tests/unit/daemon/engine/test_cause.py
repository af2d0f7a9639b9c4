"""Why an engine ended, in the words of the termination message."""

import pytest
from pagoda_contracts.names import EXIT_PERMANENT
from pagoda_daemon.core.errors import EngineDied, ModelRejected, PermanentError
from pagoda_daemon.core.messages import Failed
from pagoda_daemon.engine.cause import cause_of

CUDA = Failed("RuntimeError", "the worker fails its probe", False)
FAULT = "H100 GPU-1: it has fallen off the bus (Xid 79)"


@pytest.mark.parametrize(
    ("code", "failed", "fault", "kind", "said"),
    [
        (-9, None, "", EngineDied, "the engine process ended with signal 9"),
        (1, None, "", EngineDied, "the engine process ended with code 1"),
        (1, CUDA, "", EngineDied, "RuntimeError: the worker fails its probe"),
        (1, CUDA, FAULT, EngineDied, f"the device is faulty: {FAULT}; RuntimeError: the worker fails its probe"),
        (-6, None, FAULT, EngineDied, f"the device is faulty: {FAULT}; the engine process ended with signal 6"),
        (EXIT_PERMANENT, None, FAULT, PermanentError, f"the engine exited {EXIT_PERMANENT} without a reason"),
        (EXIT_PERMANENT, Failed("ModelRejected", "no weights", True), FAULT, ModelRejected, "no weights"),
    ],
)
def test_an_engine_that_dies_on_a_faulty_device_dies_of_that(code, failed, fault, kind, said):
    error = cause_of(code, failed, fault)
    assert (type(error), str(error)) == (kind, said)
