"""Which nodes a service's pods may use at all: what they bring along against labels, taints, drivers and sizes of nodes. Pure.

`Ground` keeps the answers, which hold as long as the nodes do; read through `fleet`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from pagoda_contracts.names import DAEMON_CUDA, MIG_INVALID

from pagoda_operator.placement.cores import Amount, holds
from pagoda_operator.placement.nodes import MIG_AT_WORK, MIG_FAILED, PASSING_TAINTS, Node, Taint, parse_version

_HARD: Final = ("NoSchedule", "NoExecute")
_MAX_ANSWERS: Final = 64


class Terms(NamedTuple):
    """What a pod brings along: labels it asks of nodes, taints it bears, the CUDA version of its image."""

    selector: Mapping[str, str] = {}
    tolerations: tuple[Mapping[str, Any], ...] = ()
    cuda: str = DAEMON_CUDA
    # The service's own pods: what they hold is the service's to use.
    service_uid: str = ""
    # Its pod's spec but for what the accelerator decides: other containers need room too.
    pod: Mapping[str, Any] = {}
    # Whether it is devices that are asked for: their drivers and partitions are nothing to who runs on cores.
    devices: bool = True

    @property
    def key(self) -> str:
        """Names the terms as far as nodes are judged by them."""
        tolerations = [sorted(one.items(), key=str) for one in self.tolerations]
        return repr((sorted(self.selector.items()), tolerations, self.cuda if self.devices else None))


class Block(NamedTuple):
    """Why a node is of no use: `passing` where that ends without anybody's edit of the service."""

    why: str
    passing: bool


class Ground:
    """Nodes, with what is worked out of them alone and of what pods bring along. One for all fleets that have the same nodes: pods come
    and go by the second, nodes by the hour."""

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self.nodes = nodes
        self._blocks: dict[str, Mapping[str, Block | None]] = {}
        self._holding: dict[tuple[str, Amount], Holding] = {}

    def blocks(self, terms: Terms) -> Mapping[str, Block | None]:
        """What keeps such pods off each node. Few terms are different: a fleet has a handful of profiles."""
        key = terms.key
        if key not in self._blocks:
            self._blocks[key] = {node.name: blocked(node, terms) for node in self.nodes}
        return self._blocks[key]

    def holding(self, terms: Terms, need: Amount) -> Holding:
        """Which nodes could ever hold such pods."""
        key = terms.key, need
        if key not in self._holding:
            if len(self._holding) >= _MAX_ANSWERS:
                self._holding.clear()
            self._holding[key] = self._found(terms, need)
        return self._holding[key]

    def _found(self, terms: Terms, need: Amount) -> Holding:
        blocks, able = self.blocks(terms), [node for node in self.nodes if holds(node, need)]
        barred = [(node.name, block) for node in able if (block := blocks[node.name])]
        usable = tuple(node for node in able if blocks[node.name] is None)
        return Holding(
            open=usable,
            passing=tuple(sorted((name, block.why) for name, block in barred if block.passing)),
            lasting=tuple(sorted((name, block.why) for name, block in barred if not block.passing)),
            small=tuple(node for node in self.nodes if not holds(node, need)),
            youngest=max((node.joined for node in usable), default=math.inf),
        )


class Holding(NamedTuple):
    """Nodes as they answer to a pod of so many cores and so much memory: those that may take it, those large enough that may not, for now
    or ever, with the reason, and those that are too small; and when the last of the first joined, in Unix seconds."""

    open: tuple[Node, ...]
    passing: tuple[tuple[str, str], ...]
    lasting: tuple[tuple[str, str], ...]
    small: tuple[Node, ...]
    youngest: float


def blocked(node: Node, terms: Terms) -> Block | None:
    """What keeps the service's pods off a node; what does not pass comes first, since it is what somebody must cure."""
    found = [*_lasting(node, terms), *_passing(node, terms)]
    return found[0] if found else None


def _lasting(node: Node, terms: Terms) -> list[Block]:
    told = []
    missing = [f"{key}={value}" for key, value in terms.selector.items() if node.labels.get(key) != value]
    if missing:
        told.append(f"lacks the label {missing[0]} that the profile or podTemplate selects by")
    hard = (taint for taint in node.taints if taint.effect in _HARD and not taint.key.startswith(PASSING_TAINTS))
    told += [f"taint {_written(taint)} is not tolerated" for taint in hard if not tolerated(taint, terms.tolerations)]
    needed = parse_version(terms.cuda) if terms.devices else None
    if node.cuda is not None and needed is not None and node.cuda < needed:
        told.append(f"driver {node.driver} offers CUDA {node.cuda[0]}.{node.cuda[1]}, the daemon needs {terms.cuda}")
    if terms.devices and node.mig.state == MIG_FAILED:
        told.append(f"MIG configuration {node.mig.config or MIG_INVALID.lstrip('-')} has failed")
    return [Block(why, passing=False) for why in told]


def _passing(node: Node, terms: Terms) -> list[Block]:
    if node.gone:
        return [Block("gone, and one like it may come for who waits", passing=True)]
    told = []
    if node.unschedulable:
        told.append("cordoned")
    if not node.ready:
        told.append("not ready")
    # Beside the two above, whose taints they are.
    passing = (taint for taint in node.taints if taint.effect in _HARD and taint.key.startswith(PASSING_TAINTS))
    told += [f"tainted {taint.key}, which passes" for taint in passing if not tolerated(taint, terms.tolerations)]
    if terms.devices and node.mig.state in MIG_AT_WORK:
        told.append(f"in mig-manager's hands (mig.config.state is {node.mig.state})")
    return [Block(why, passing=True) for why in told]


def _written(taint: Taint) -> str:
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"


def tolerated(taint: Taint, tolerations: Iterable[Mapping[str, Any]]) -> bool:
    """Kubernetes' rule: no key with Exists bears all, no effect all effects."""
    return any(_bears(one, taint) for one in tolerations)


def _bears(toleration: Mapping[str, Any], taint: Taint) -> bool:
    key, effect = toleration.get("key"), toleration.get("effect")
    if effect and effect != taint.effect:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return not key or key == taint.key
    return bool(key == taint.key and (toleration.get("value") or "") == taint.value)
