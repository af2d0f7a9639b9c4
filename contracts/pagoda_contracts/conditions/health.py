"""Reasons of an InferenceService's Degraded. Nouns only; listed by `table`."""

from __future__ import annotations

from typing import Final

from pagoda_contracts.conditions.types import DEGRADED, Reason

DEVICE_FAULT: Final = Reason(
    "DeviceFault",
    DEGRADED,
    "The device of a replica is reported as faulty, by the replica itself, by the node or by an annotation of the pod. "
    "The operator starts a successor.",
    "Reset or repair the device, or cordon the node. A successor on the same node may be unhealthy too.",
)
DEEP_CHECK_FAILED: Final = Reason(
    "DeepCheckFailed",
    DEGRADED,
    "A replica gives a wrong or late answer to its deep check. The operator starts a successor.",
    "If it comes back on the same device, check that device.",
)
SILENT: Final = Reason(
    "Silent",
    DEGRADED,
    "A replica is Ready to Kubernetes, and neither a gateway nor the operator hears from it. The operator starts a successor.",
    "If all replicas are silent, check the network between gateways and replicas.",
)
STUCK: Final = Reason(
    "Stuck",
    DEGRADED,
    "A replica answers and makes no progress: its engine or its device hangs. The operator starts a successor.",
    "If it comes back on the same device, check that device.",
)
REPLACEMENT_DELAYED: Final = Reason(
    "ReplacementDelayed",
    DEGRADED,
    "Replicas are unhealthy, and the operator does not replace them now. The message says why: "
    "a quota, a missing node, or a successor that is unhealthy too.",
    "If the message names a wait, wait. Else check what it names: the model, the devices, the quota or the nodes. "
    "If a successor is unhealthy, delete its pod for another attempt. If there is no room, delete the unhealthy pod.",
)
WELL: Final = Reason("Well", DEGRADED, "Degraded is False: all replicas that were unhealthy are healthy again or replaced.", "Nothing.")
