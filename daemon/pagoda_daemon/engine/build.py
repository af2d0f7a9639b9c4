"""build_worker: the configuration decides which worker. Called by the engine on the device thread; imports torch only if needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog
from pagoda_contracts.launch import DaemonConfig

from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.runner.faulty import FaultyWorker
from pagoda_daemon.runner.worker import Worker
from pagoda_daemon.simulated.device.worker import SimulatedWorker

Progress = Callable[[float], None]
"""Called with 0..1 while the weights are read."""

_log = structlog.get_logger(__name__)


def build_worker(config: DaemonConfig, progress: Progress) -> Worker:
    """A loaded, warm worker; PermanentError where no restart would help."""
    worker = _healthy(config, progress)
    return FaultyWorker(worker, config.testing.faults) if config.testing is not None and config.testing.faults else worker


def _healthy(config: DaemonConfig, progress: Progress) -> Worker:
    if config.testing is not None and config.testing.simulated is not None:
        device = config.testing.simulated.device
        return SimulatedWorker.of(config) if device is None else _stand_in(config, device)
    from pagoda_daemon.runner.model_worker import ModelWorker
    from pagoda_daemon.runner.place import place_of

    if place_of(config.engine.device).type == "cuda":
        from pagoda_daemon.gpu.load import load_worker, not_for_fused_ops
        from pagoda_daemon.runner.kv_size import EIGHT_BITS

        why = not_for_fused_ops(config)
        if why is None:
            return load_worker(config, progress)
        if config.engine.quantization is not None:
            raise ConfigRejected(f"quantization {config.engine.quantization} needs the GPU's fused ops: {why}")
        if config.engine.kv_dtype in EIGHT_BITS:
            raise ConfigRejected(f"kvDtype {config.engine.kv_dtype} needs the GPU's fused ops: {why}")
        _log.warning("eager torch on a GPU is slow", why=why)
    return ModelWorker.load(config, progress)


def _stand_in(config: DaemonConfig, device: str) -> Worker:
    """As fast as the device would be, in real time, and with as many blocks."""
    from pagoda_daemon.simulated.device.pace import Pace
    from pagoda_daemon.simulated.device.virtual import VirtualWorker

    pace = Pace.read(Path(config.model.path) / "config.json", device)
    return VirtualWorker(pace.limits(config.engine.block_size, config.engine.max_model_len), pace.milliseconds)
