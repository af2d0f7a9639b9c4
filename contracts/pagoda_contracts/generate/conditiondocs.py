"""docs/conditions.md: every condition and reason, from `conditions`. Pure; `generate` writes it."""

from __future__ import annotations

from itertools import groupby
from typing import Final

from pagoda_contracts.conditions.table import reasons
from pagoda_contracts.conditions.types import NO_DEADLINE, TYPES, ConditionType, Reason
from pagoda_contracts.resources.service import INFERENCE_SERVICE

PATH: Final = "docs/conditions.md"
_HEAD: Final = f"""# Conditions and reasons

GENERATED from contracts/pagoda_contracts/conditions/ by `make generate`. Do not edit.

The operator says in `status.conditions` where an object stands and why. `pagoda explain REASON` prints an entry of this page (not of the
Events that no condition has), and `pagoda why NAME` prints all that the operator says of one service.

```sh
kubectl get {INFERENCE_SERVICE.resource} llama -o wide                             # the reason of Ready, and its message
kubectl wait {INFERENCE_SERVICE.resource}/llama --for=condition=Serving --timeout=10m   # clients get answers
kubectl wait {INFERENCE_SERVICE.resource}/llama --for=condition=Ready --timeout=10m     # the newest spec is rolled out
kubectl wait {INFERENCE_SERVICE.resource}/llama --for=condition=Stalled --timeout=0s    # looks once; exit code 0: a person must act
```

## Condition types

Ready, Reconciling and Stalled follow kstatus, which Argo CD and Flux read. Each carries the generation that it speaks of.
A message about a wait says since when it lasts, in UTC. It then says what happens at the deadline, or "{NO_DEADLINE}".
Use Serving for clients, and Ready for deployments. For alerts, use the metric `pagoda_operator_services_down`, as the
chart's alert PagodaServiceDown does: Serving is False for a service that is asleep, too.

| type | meaning |
|---|---|
"""
_COLUMNS: Final = "| reason | meaning | what to do | only a person can fix it |\n|---|---|---|---|\n"
_EVENTS: Final = """
## Events

The operator writes an Event when the reason of Ready changes and when Degraded changes. If an Event is repeated within 6 min, the count of
the first one rises. It is a Warning if the service is Stalled or Degraded, and also for: {warnings}.
At most six Events are written per service and minute. Kubernetes keeps Events for one hour, unless it is configured otherwise. Each Event,
also one past the limit, is a line `reported` in the operator's log.

Four reasons of Events do not occur in conditions:

- `EditUndone`: another client had changed a child object or added to it, and the operator restored what it had rendered. The note names the
  object, the fields and the field manager. Change the InferenceService or its ServingProfile instead.
- `WriteContested`: another client undid the same write of the operator twice or more. The operator repeats the write after growing delays
  of up to 60 s. Stop the other client. If the note says "another Pagoda operator", two installs act on the same services.
- `ReplicaEvicted`: a replica is evicted or preempted. The note has the node and the words of Kubernetes.
- `LeaderElected`: another process of the operator leads now, and why. It is about the Lease, in the operator's namespace.
"""


def text() -> str:
    """The whole page."""
    types = "".join(f"| {kind.name} | {kind.meaning} |\n" for kind in TYPES)
    groups = groupby(reasons(), lambda reason: (reason.kind, reason.condition))
    tables = "".join(_group(kind, condition, tuple(found)) for (kind, condition), found in groups)
    warnings = ", ".join(f"`{reason.name}`" for reason in reasons() if reason.warning)
    return _HEAD + types + tables + _EVENTS.format(warnings=warnings)


def _group(kind: str, condition: ConditionType, found: tuple[Reason, ...]) -> str:
    return f"\n## {kind}: {condition.name}\n\n{_COLUMNS}" + "".join(map(_row, found))


def _row(reason: Reason) -> str:
    cells = (f"`{reason.name}`", reason.meaning, reason.action, "yes" if reason.person_only else "no")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
