"""Which nodes say that their devices are not to be trusted, in the words of those who watch devices. Pure; read with
the node by the cache's parser (nodes.py).

Nobody's words are required: NVSentinel, the EKS agent and node problem detectors write node conditions, anything else may write our own
annotation. Replicas that hold devices there are sick (health.py). Where a new one goes is the scheduler's: keeping it off such a node is
up to a taint or a cordon, which all of these set, since a pinned pod template cannot learn of it.
"""

from __future__ import annotations

import re
from typing import Final

from pagoda_contracts.names import ANNOTATION_DEVICE_FAULT

from pagoda_operator.inventory.types import Json

# Conditions that are True where something is broken: NVSentinel's (Gpu…Watch, SysLogs…), and those of node problem detectors.
_BAD: Final = re.compile(
    r"Gpu\w+Watch|SysLogsS?XIDError|SysLogsGPUFallenOff|(?:GPU|Gpu|Nvidia|NVIDIA)?X[Ii][Dd]\w*Errors?|XIDErrors|GPUMissing|NVLinkStatusInactive"
)
# Conditions that are False where something is broken: EKS'.
_GOOD: Final = frozenset({"AcceleratedHardwareReady"})
_MAX: Final = 200


def device_fault(node: Json) -> str:
    """What is wrong with the node's devices; empty while nobody says anything. The same words as long as nothing changes."""
    marked = str((node["metadata"].get("annotations") or {}).get(ANNOTATION_DEVICE_FAULT, ""))
    conditions = (node.get("status") or {}).get("conditions") or ()
    told = sorted(f"{found['type']}: {found.get('reason', '')}" for found in conditions if _broken(found))
    return "; ".join([marked] * bool(marked) + told)[:_MAX]


def _broken(condition: Json) -> bool:
    kind, status = str(condition.get("type", "")), condition.get("status")
    return (status == "True" and _BAD.fullmatch(kind) is not None) or (status == "False" and kind in _GOOD)
