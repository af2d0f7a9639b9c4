"""One service through its life, an operator behind the fault proxy that is started again whenever it dies, and the judgement at the end."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import httpx
from pagoda_operator.api.state import CHILD_RESOURCES, PODS, QUOTAS, SERVICES
from support.harness.capped_services import SLICES, YOUNGER, Tenant
from support.judges.invariants import fallen, overdrawn, rivals, violations
from support.judges.pacing import flips, hot, slow
from support.judges.status_truth import is_ready
from support.kube.client import Asked, Body, eventually
from support.kube.fault_plan import Plan, Stale
from support.kube.fault_proxy import Entry, FaultProxy
from support.kube.namespace import NAME, Real
from support.kube.operator_process import NAMESPACE, OPERATOR, OperatorProcess
from support.kube.recorded import Event, Recorder

# One for all: a revision's hash counts its name.
PROFILE: dict[str, Any] = {"profileRef": {"name": "faults"}}
# One resync of the operator's: what has not come right by an event is looked for again this often.
RESYNC_S = 1
# Nothing may be written for so many seconds once all is well: by default three resyncs.
HOLD_S = 3.0 * RESYNC_S
# Requests of a life before the first write that it owes: 48 to 73 were seen, which is every kind listed, twice, and the service looked at.
MOST_REQUESTS = 200


class Life:
    """Operators one after another on the same account: the next starts at once when one dies."""

    def __init__(
        self,
        account: Path,
        program: tuple[str, ...] = (OPERATOR,),
        identity: str = "faults",
        *,
        lease: bool = True,
        resync: str = f"{RESYNC_S}s",
        **environment: str,
    ) -> None:
        """`lease`: it strives for one, as an installed operator does; else it is the only one, and nothing ends it that keeps it from
        renewing one."""
        # One identity, as a pod's containers have: a restarted one goes on with its Lease.
        terms = ("--namespace", NAMESPACE) if lease else ()
        argv = (account, "--resync", resync, "--identity", identity, *terms)
        self.names = {0: identity} if lease else {}
        self._start = partial(OperatorProcess, *argv, program=program, **environment)
        self.all: list[OperatorProcess] = []
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> Self:
        self.all.append(self._start())
        self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.now.process.kill()
        self._keeper.join(300)
        for operator in self.all:
            operator.stop(signal.SIGKILL)

    @property
    def now(self) -> OperatorProcess:
        return self.all[-1]

    @property
    def deaths(self) -> int:
        return len(self.all) - 1

    def kill(self) -> bool:
        """Whether there was one to kill."""
        alive = self.now.process.poll() is None
        self.now.process.kill()
        return alive

    def probe(self, path: str) -> int | None:
        """What a kubelet would be answered; None where nobody listens."""
        ports = self.now.events("serving")
        if not ports:
            return None
        try:
            return httpx.get(f"http://127.0.0.1:{ports[0]['probes']}{path}", trust_env=False, timeout=300).status_code
        except httpx.TransportError:
            return None

    def _keep(self) -> None:
        while self.now.process.wait() is not None and not self._over.is_set():
            self.all.append(self._start())


class Rivals(Life):
    """Two of them, through a listener each; the first one leads until it cannot. What is said of one is said of the first."""

    def __init__(self, accounts: tuple[Path, Path], names: tuple[str, str]) -> None:
        first, self.second = accounts[0], Life(accounts[1], identity=names[1], lease=True)
        super().__init__(first, identity=names[0], lease=True)
        self.names = dict(enumerate(names))

    def __enter__(self) -> Self:
        super().__enter__()
        eventually(lambda: self.now.events("leading"), "the first one leads")
        self.second.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self.second.__exit__(*failure)
        super().__exit__(*failure)


@dataclass
class Outcome:
    """How a run ended: what was broken, in words; the children at each rest, without what differs between two services of one spec."""

    broken: list[str] = field(default_factory=list)
    rests: list[dict[str, Any]] = field(default_factory=list)
    # Seconds that each rest was waited for, from the user's change on or the end of what struck it: for people, the machine's too.
    took: list[float] = field(default_factory=list)
    deaths: int = 0
    requests: int = 0


@dataclass
class Harness:
    """A namespace, the proxy, the operators."""

    real: Real
    proxy: FaultProxy
    life: Life
    outcome: Outcome = field(default_factory=Outcome)
    # What a test does in the middle of a scenario.
    during: Callable[[], None] = lambda: None
    hold_s: float = HOLD_S

    def rest(self, replicas: int, *, hold: bool = False) -> None:
        """All is as the spec wants it, and, with `hold`, stays so: nothing is written for a while."""
        since = time.monotonic()
        self._settle(replicas)
        self.outcome.took.append(time.monotonic() - since)
        if hold:
            eventually(lambda: self.quiet_for(self.hold_s), "quiet")
            assert self.settled(replicas), "what had settled did not stay so"
        self.outcome.rests.append(self.shape())

    def _settle(self, replicas: int) -> None:
        """The patience is that of one operator: at a load of 20, each start took a minute, and some lives have five of them."""
        deaths = self.life.deaths
        try:
            eventually(lambda: self.settled(replicas), f"{replicas} replicas ready and settled")
        except AssertionError:
            if self.life.deaths == deaths:
                raise
            self._settle(replicas)

    def settled(self, replicas: int) -> bool:
        service = self.real.service()
        status: Body = service.get("status", {})
        reported = {condition["type"]: condition["status"] for condition in status.get("conditions", [])}
        pods = [pod for pod in self.real.pods() if "deletionTimestamp" not in pod["metadata"]]
        fresh = status.get("observedGeneration") == service["metadata"]["generation"]
        serves = "True" if replicas else "False"
        right = reported == {"Ready": "True", "Reconciling": "False", "Stalled": "False", "Serving": serves}
        return fresh and right and len(pods) == replicas == sum(map(is_ready, pods)) == status.get("readyReplicas", 0)

    def quiet_for(self, seconds: float) -> bool:
        writes = self.proxy.writes()
        return not writes or time.monotonic() - writes[-1].at > seconds

    def shape(self) -> dict[str, Any]:
        """The children, as two deployments of one spec have them alike."""
        kinds = [(resource, self.real.kube.list(resource, self.real.namespace)) for resource in CHILD_RESOURCES]
        mine = {f"{r.kind} {body['metadata']['name']}": _common(body) for r, found in kinds for body in found if _ours(body)}
        shape: dict[str, Any] = json.loads(json.dumps(mine).replace(self.real.namespace, "NAMESPACE"))
        return shape


Scenario = Callable[[Harness], None]


def whole_life(harness: Harness) -> None:
    """Made, scaled up, changed to another revision, scaled to nothing, deleted."""
    real = harness.real
    real.apply(replicas=1, **PROFILE)
    harness.rest(1)
    real.edit(replicas=2)
    harness.rest(2)
    real.edit(replicas=1, engine={"maxModelLen": 128})
    harness.rest(1, hold=True)
    real.edit(replicas=0)
    harness.rest(0)
    leave(harness)


def leave(harness: Harness) -> None:
    """Deleted; until it is gone it holds its served name."""
    real = harness.real
    real.kube.delete(SERVICES, real.namespace, NAME)
    eventually(lambda: not real.children() and not real.pods(), "nothing left")


def grown(harness: Harness) -> None:
    """Made, and scaled up."""
    harness.real.apply(replicas=1, **PROFILE)
    harness.rest(1)
    harness.during()
    harness.real.edit(replicas=2)
    harness.rest(2, hold=True)
    leave(harness)


def restart_as_of(harness: Harness, plan: Stale, version: str) -> None:
    """The operator's next life sees the cluster first as it was at that version."""
    plan.version = version
    harness.life.kill()
    eventually(lambda: harness.life.deaths, "the next life")
    eventually(lambda: harness.proxy.listed(SERVICES.plural), "a list by the new process")
    plan.version = ""


def reborn(harness: Harness) -> None:
    """Deleted and made again under the same name, at once."""
    real = harness.real
    real.apply(replicas=1, **PROFILE)
    harness.rest(1)
    real.kube.delete(SERVICES, real.namespace, NAME)
    real.apply(replicas=1, **PROFILE)
    harness.rest(1, hold=True)
    leave(harness)


def capped(harness: Harness) -> None:
    """Two services that share two slices: the older one leaves, the cap is lowered and raised, the older one comes back."""
    tenant = Tenant(harness.real)
    tenant.capped(2)
    tenant.asks(NAME, 1)
    tenant.have(1, 0)
    tenant.asks(YOUNGER, 2)
    tenant.have(1, 1)
    harness.during()
    tenant.asks(NAME, 0)
    tenant.have(0, 2)
    tenant.capped(1)
    tenant.have(0, 1)
    tenant.asks(YOUNGER, 1)  # else both would want the next slice, and either may get it
    tenant.asks(NAME, 2)
    tenant.capped(2)
    tenant.have(1, 1)
    harness.outcome.rests.append(harness.shape())
    tenant.leave()


SCENARIOS: dict[str, Scenario] = {"whole_life": whole_life, "grown": grown, "reborn": reborn, "capped": capped}


@contextmanager
def harness_of(real: Real, proxy: FaultProxy, account: Path, **how: Any) -> Iterator[Harness]:
    """An operator behind the proxy; the proxy's kills are its. `how`: a program in its place, its Lease, its environment."""
    with living(real, proxy, Life(account, **how)) as harness:
        yield harness


@contextmanager
def living(real: Real, proxy: FaultProxy, life: Life) -> Iterator[Harness]:
    """Whoever works here; the proxy's kills are his."""
    with life:
        proxy.kill = life.kill
        yield Harness(real, proxy, life)
        assert [line for operator in life.all for line in operator.events("reconcile_bug")] == []


def run(name: str, harness: Harness, plan: Plan, during: Callable[[], None] = lambda: None) -> Outcome:
    """One scenario under one plan of faults, judged over all that happened."""
    harness.proxy.begin(plan)
    harness.during = during
    kinds = (SERVICES, PODS, QUOTAS, *CHILD_RESOURCES)
    with Recorder(harness.real.kube, harness.real.namespace, kinds) as recorder:
        SCENARIOS[name](harness)
    outcome, journal = harness.outcome, harness.proxy.journal.copy()
    events = recorder.ordered()
    outcome.broken += judged(events, journal, harness.real.kube.asked) + list(overdrawn(events, harness.real.namespace, SLICES))
    if harness.life.names:
        outcome.broken += [*rivals(journal, harness.life.names), *fallen(journal)]
    outcome.deaths, outcome.requests = harness.life.deaths, harness.proxy.requests
    print(f"{name}: at rest after {', '.join(f'{seconds:.1f}' for seconds in outcome.took)} s")
    return outcome


def judged(events: Sequence[Event], journal: Sequence[Entry], asked: Sequence[Asked] = ()) -> list[str]:
    """All that no fault excuses, in words. `asked`: what users asked for, and were told is done."""
    return [*violations(events, journal, asked), *flips(events), *hot(events, journal), *slow(journal, MOST_REQUESTS)]


def _ours(body: Body) -> bool:
    return "ownerReferences" in body["metadata"]


def _common(body: Body) -> Any:
    """Without uids, versions, times and hashes over them, which are each object's own."""
    meta = body["metadata"]
    own = meta["ownerReferences"][0]["uid"]
    kept = {key: value for key, value in body.items() if key not in ("metadata", "status")}
    kept["metadata"] = {name: meta.get(name) for name in ("name", "labels", "finalizers")}
    for name in ("clusterIP", "clusterIPs"):
        kept.get("spec", {}).pop(name, None)
    return json.loads(json.dumps(kept).replace(own, "UID"))
