"""Service and Replica: what discovery (cluster.py, static_file.py) knows of an InferenceService and of one of its replicas."""

from __future__ import annotations

from typing import Literal, NamedTuple

Policy = Literal["PrefixAware", "LeastLoad"]


class Hold(NamedTuple):
    """A service's `routing.hold`: the longest wait, and how many requests may wait in this gateway. None: the gateway's own limit."""

    timeout_s: float | None = None
    requests: int | None = None


class Overflow(NamedTuple):
    """A service's `routing.overflow`: the target's name and model, after which time a held request goes there, and how many requests per
    replica may be held before others go there at once."""

    target: str
    model: str
    after_s: float
    queue_depth: int


class Service(NamedTuple):
    """An InferenceService as routing sees it. `key` is "namespace/name", `created` its creationTimestamp, `owned` the names that it has by
    its status. `weights` (revision, percent) is not empty while the operator splits requests between revisions. `stalled`: the reason and
    message of its Stalled condition, if only a person can make it serve; else "". `policy`: how replicas are picked. `ready_at_ms`: when a
    replica that starts should be ready, in ms since 1970, 0 if that is not known. `adapters`: the names of its LoraAdapters.
    `served`: whether a replica has ever taken requests. `faulty`: the replicas whose device the operator reports as faulty."""

    key: str
    uid: str
    created: str
    served_names: tuple[str, ...]
    weights: tuple[tuple[str, int], ...] = ()
    owned: tuple[str, ...] = ()
    stalled: str = ""
    policy: Policy = "PrefixAware"
    hold: Hold = Hold()
    overflow: Overflow | None = None
    ready_at_ms: int = 0
    adapters: tuple[str, ...] = ()
    served: bool = True
    faulty: frozenset[str] = frozenset()


class Replica(NamedTuple):
    """A replica that has addresses. `service_uid` is "" if unknown; `draining`: it is being deleted, or a file says that it drains."""

    name: str
    service: str
    service_uid: str
    http: str
    grpc: str
    draining: bool
