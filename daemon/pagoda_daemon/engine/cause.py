"""cause_of: an engine's exit code and last output → the error that says why it ended. Called by what links a front to its engine; pure."""

from __future__ import annotations

from pagoda_contracts.names import EXIT_PERMANENT

from pagoda_daemon.core.errors import ConfigRejected, DaemonError, EngineDied, ModelRejected, PermanentError
from pagoda_daemon.core.messages import Failed


def cause_of(code: int, failed: Failed | None, device_fault: str = "") -> DaemonError:
    """Why the engine ended, typed. `device_fault`: why its device is faulty; an engine that dies on such a device dies of that."""
    if code == EXIT_PERMANENT or (failed is not None and failed.permanent):
        if failed is None:
            return PermanentError(f"the engine exited {code} without a reason")
        kinds: dict[str, type[PermanentError]] = {kind.reason: kind for kind in (ModelRejected, ConfigRejected)}
        return kinds.get(failed.reason, PermanentError)(failed.message)
    why = f"the engine process ended with {'signal ' + str(-code) if code < 0 else 'code ' + str(code)}"
    if failed is not None:
        why = f"{failed.reason}: {failed.message}"
    # First: a message that is too long is cut at its end.
    return EngineDied(f"the device is faulty: {device_fault}; {why}" if device_fault else why)
