"""Revisions that operator 0.1 named: it took `health` and `slo` and did not count them, so today's name of the same words is another one.

Such a service keeps its pods through the upgrade: what 0.1 made of the very spec that is there now stands for what would be made of it
today, and an annotation on its Deployment says so from then on. Pure; called by `plan` and `question`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pagoda_contracts.conditions.types import STALLED
from pagoda_contracts.names import ANNOTATION_STANDS_FOR
from pagoda_contracts.resources.service import Accelerator, InferenceServiceSpec

from pagoda_operator.manifests.revision import Revision, identify, identify_as_before
from pagoda_operator.state import DEPLOYMENTS, Observed


def named(
    observed: Observed, spec: InferenceServiceSpec, entry: Accelerator, resolved: Mapping[str, str] = MappingProxyType({})
) -> tuple[Revision, str]:
    """The revision that the spec asks for on this entry, by the name that it runs under; where that is 0.1's, today's name for it."""
    now = identify(observed.meta.name, spec, entry, resolved)
    before = identify_as_before(observed.meta.name, spec, entry)
    if now == before or resolved or not _stands(observed, before, now):
        return now, ""
    return before, now.name


def _stands(observed: Observed, before: Revision, now: Revision) -> bool:
    deployment = observed.find(DEPLOYMENTS, before.name)
    if deployment is None or deployment.deleting:
        return False
    noted = deployment.meta.get("annotations", {}).get(ANNOTATION_STANDS_FOR)
    return bool(noted == now.name) or _last_told_by_it(observed)


def _last_told_by_it(observed: Observed) -> bool:
    """Whether 0.1 was the last to look, at this very spec: every later operator writes `scaling` where it can read the spec. Where the
    spec cannot be read a service is stalled, and what runs may be of an older one."""
    stalled = any(line.type == STALLED.name and line.status == "True" for line in observed.status.conditions)
    return observed.status.scaling is None and observed.status.observed_generation == observed.meta.generation and not stalled
