"""What keeps replicas off GPU nodes: labels, drivers, taints, MIG, and GPUs that no device plugin offers. Pure; called by `doctor`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from pagoda_placement.nodes import Node
from pagoda_placement.offers import Offer, refusal
from pagoda_placement.terms import Terms, blocked
from pagoda_sizing.platforms import identify

OK, WRONG, UNKNOWN = "ok", "wrong", "unknown"
_GPU_LABELS: Final = ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present")
_SHOWN: Final = 3
_NOT_OFFERED: Final = (
    "the labels say that there are GPUs, and the node offers none. Install NVIDIA's device plugin (GPU Operator), or see why its pod fails"
)


class Finding(NamedTuple):
    """What was looked at, and what was found: `ok`, `wrong`, or `unknown` if nothing says it."""

    verdict: str
    subject: str
    words: str


def node_findings(nodes: Iterable[Node], terms: Terms) -> list[Finding]:
    """One for all nodes of which the same is true. Nodes without devices have none."""
    same: dict[Finding, list[str]] = defaultdict(list)
    for node in nodes:
        for finding in _judged(node, terms):
            same[finding].append(node.name)
    found = [one._replace(subject=f"{one.subject} on {_names(sorted(names))}") for one, names in sorted(same.items())]
    return found or [Finding(UNKNOWN, "devices", "no node has a GPU, and none of its labels says so. Services run on CPU only")]


def _judged(node: Node, terms: Terms) -> Iterator[Finding]:
    kinds = sorted({offer.product or offer.resource for offer in node.offers} | {one.driver for one in node.published})
    if not kinds:
        if _has_gpus(node):
            block = blocked(node, terms)
            yield Finding(WRONG, "GPUs", _NOT_OFFERED + (f"; {block.why}" if block else ""))
        return
    for kind in kinds:
        yield _verdict(node, terms, kind)


def _verdict(node: Node, terms: Terms, kind: str) -> Finding:
    wrong = next(_wrong(node, terms, [offer for offer in node.offers if kind in (offer.product, offer.resource)]), "")
    if wrong:
        return Finding(WRONG, kind, wrong)
    if node.cuda is None:
        late = f"The daemon needs CUDA {terms.cuda}, and says so when it starts if the driver is too old"
        return Finding(UNKNOWN, kind, f"no label says the driver. {late}")
    return Finding(OK, kind, f"driver {node.driver} supports CUDA {node.cuda[0]}.{node.cuda[1]}, and the daemon needs {terms.cuda}")


def _wrong(node: Node, terms: Terms, offers: list[Offer]) -> Iterator[str]:
    """What keeps replicas off these devices, the worst first."""
    yield from filter(None, (refusal(offer.resource) for offer in offers))
    if node.fault:
        yield f"reported as faulty: {node.fault}"
    if (block := blocked(node, terms)) is not None:
        yield block.why
    if sick := sum(offer.capacity - offer.allocatable for offer in offers):
        yield f"{sick} of {sum(offer.capacity for offer in offers)} devices are not allocatable: the device plugin calls them unhealthy"
    if any(offer.memory is None and offer.profile is None for offer in offers):
        yield "no label says which GPU it is: install GPU Feature Discovery, or set `devices` of the ServingProfile"


def _has_gpus(node: Node) -> bool:
    return bool(node.gpus) or identify(node.labels) is not None or any(node.labels.get(label) == "true" for label in _GPU_LABELS)


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
