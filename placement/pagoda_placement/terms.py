"""Which nodes a service's pods may use, and why not the others: `terms_of` and `blocked(node, terms)`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pagoda_contracts.names import DAEMON_CUDA, MIG_INVALID
from pagoda_contracts.resources.profile import DeviceHint, ServingProfileSpec
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_contracts.units import parse_quantity
from pagoda_sizing.platforms import driver_for, platforms, products

from pagoda_placement.nodes import MIG_AT_WORK, MIG_FAILED, PASSING_TAINTS, Node, Taint, tolerated
from pagoda_placement.values import parse_version

_HARD: Final = ("NoSchedule", "NoExecute")


class Hint(NamedTuple):
    """What a profile says of the devices of nodes with these labels. `memory`: in bytes; None for the catalogue's."""

    labels: tuple[tuple[str, str], ...]
    product: str
    memory: int | None = None

    @property
    def label(self) -> str:
        """The labels as `key=value,key=value`."""
        return ",".join(f"{key}={value}" for key, value in self.labels)


class Terms(NamedTuple):
    """A pod's terms for a node: labels, tolerations, its image's CUDA version. Devices that pods of `service_uid` use are free to it.
    `devices`: what the profile says of devices that no label describes."""

    selector: Mapping[str, str] = {}
    tolerations: tuple[Mapping[str, Any], ...] = ()
    cuda: str = DAEMON_CUDA
    service_uid: str = ""
    devices: tuple[Hint, ...] = ()


class Block(NamedTuple):
    """Why pods may not use a node. `passing`: this ends without an edit of the service."""

    why: str
    passing: bool


def terms_of(profile: ServingProfileSpec | None, spec: InferenceServiceSpec, uid: str) -> Terms:
    """Returns what the service's pods require of nodes, and tolerate. Templates are merged as the pod's own is: node selectors by key,
    and of the tolerations the last ones count. `profile`: None if there is none yet."""
    if profile is None:
        return Terms(service_uid=uid)
    fields = profile.model_dump(mode="json", by_alias=True, exclude_none=True, include={"node_selector", "tolerations"})
    layers = [fields, *((template or {}).get("spec") or {} for template in (profile.pod_template, spec.pod_template))]
    chosen = {key: value for layer in layers for key, value in (layer.get("nodeSelector") or {}).items() if value is not None}
    given = [layer["tolerations"] for layer in layers if layer.get("tolerations") is not None]
    return Terms(
        selector=chosen,
        tolerations=(*(given[-1] if given else ()), *vendor_tolerations()),
        cuda=profile.min_cuda or DAEMON_CUDA,
        service_uid=uid,
        devices=tuple(_hint(one) for one in profile.devices),
    )


def vendor_tolerations() -> tuple[dict[str, Any], ...]:
    """Returns those of the taints by which vendors and providers keep pods without devices away."""
    return tuple(one.model_dump(exclude_none=True) for one in platforms().taints)


def _hint(device: DeviceHint) -> Hint:
    memory = int(parse_quantity(device.memory)) if device.memory else products().get(device.product)
    return Hint(tuple(sorted(device.node_labels.items())), device.product, memory)


def blocked(node: Node, terms: Terms) -> Block | None:
    """Returns why the service's pods may not use a node. Reasons that do not pass come first, since a person must remove their cause."""
    lasting = next(iter(_lasting(node, terms)), "")
    why = lasting or next(iter(_passing(node, terms)), "")
    return Block(why, passing=not lasting) if why else None


def _lasting(node: Node, terms: Terms) -> list[str]:
    reasons = []
    missing = [f"{key}={value}" for key, value in terms.selector.items() if node.labels.get(key) != value]
    if missing:
        reasons.append(f"lacks the label {missing[0]}, which the profile or podTemplate requires")
    hard = (taint for taint in node.taints if taint.effect in _HARD and not taint.key.startswith(PASSING_TAINTS))
    reasons += [f"taint {_written(taint)} is not tolerated" for taint in hard if not tolerated(taint, terms.tolerations)]
    needed = parse_version(terms.cuda)
    if node.cuda is not None and needed is not None and node.cuda < needed:
        found = f"driver {node.driver} supports CUDA {node.cuda[0]}.{node.cuda[1]}, but the daemon needs {terms.cuda}"
        newer = driver_for(terms.cuda)
        reasons.append(found + (f", which driver {newer} or a newer one supports" if newer else ""))
    if node.mig.state == MIG_FAILED:
        reasons.append(f"MIG configuration {node.mig.config or MIG_INVALID.lstrip('-')} has failed")
    return reasons


def _passing(node: Node, terms: Terms) -> list[str]:
    if node.gone:
        return ["gone, but its node pool may scale up for pending pods"]
    reasons = []
    if node.unschedulable:
        reasons.append("cordoned")
    if not node.ready:
        reasons.append("not ready")
    # After the two above, which have taints of their own.
    passing = (taint for taint in node.taints if taint.effect in _HARD and taint.key.startswith(PASSING_TAINTS))
    reasons += [f"tainted {taint.key}, which is temporary" for taint in passing if not tolerated(taint, terms.tolerations)]
    if node.mig.state in MIG_AT_WORK:
        reasons.append(f"being reconfigured by mig-manager (mig.config.state is {node.mig.state})")
    return reasons


def _written(taint: Taint) -> str:
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"
