"""Keeps the service's NetworkPolicies, before its pods: no pod runs a moment without. Pure; called by `plan`.

Not pinned with a revision: what a profile opens or closes reaches the replicas that run, and rolls none.
"""

from __future__ import annotations

from collections.abc import Iterator

from pagoda_contracts.names import CONTAINER_FETCH
from pagoda_contracts.resources.profile import Egress

from pagoda_operator.api.state import DEPLOYMENTS, NETWORK_POLICIES, PODS, Observed
from pagoda_operator.decide.children.converge import converge
from pagoda_operator.decide.render.children import Owner
from pagoda_operator.decide.render.fetch import CLAIM, model_of
from pagoda_operator.decide.render.network import inspection_name, inspection_policy, network_policy
from pagoda_operator.decide.render.writes import Delete, Write


def isolate(observed: Observed, owner: Owner, *, inspecting: bool = False) -> Iterator[Write]:
    """Nothing where the installation says nothing, or while the profile cannot be read; what was made goes where it says no.
    `inspecting`: a pod that inspects the model, or tries a revision, is about to be made; its policy stays until that pod is gone."""
    callers = observed.callers
    if callers is None:
        return
    if not callers.network_policy:
        yield from (Delete(NETWORK_POLICIES, child) for child in observed.of(NETWORK_POLICIES) if not child.deleting)
    elif observed.profile is not None:
        yield from converge(observed, [(NETWORK_POLICIES, network_policy(owner, callers, _egress(observed)))])
        yield from _inspection(observed, owner, inspecting=inspecting)


def _inspection(observed: Observed, owner: Owner, *, inspecting: bool) -> Iterator[Write]:
    if inspecting or observed.of(PODS):
        yield from converge(observed, [(NETWORK_POLICIES, inspection_policy(owner, _way_to_the_model(observed)))])
    elif (left := observed.find(NETWORK_POLICIES, inspection_name(owner.name))) is not None and not left.deleting:
        yield Delete(NETWORK_POLICIES, left)


def _way_to_the_model(observed: Observed) -> tuple[Egress, ...]:
    """An inspection reads the model that the spec names, and no older revision's."""
    near = observed.spec is None or observed.spec.model.uri.startswith(CLAIM)
    return () if near or observed.profile is None else observed.profile.egress


def _egress(observed: Observed) -> tuple[Egress, ...]:
    """A replica whose model comes from a claim calls nobody. While an older revision fetches from elsewhere it may: a replica of it that
    is made anew, or a rollout that is turned back, needs its model."""
    wanted = [observed.spec.model.uri] if observed.spec is not None else []
    far = any(not uri.startswith(CLAIM) for uri in (*wanted, *_fetched(observed)))
    return observed.profile.egress if far and observed.profile is not None else ()


def _fetched(observed: Observed) -> Iterator[str]:
    """The addresses that live revisions fetch from."""
    for deployment in observed.of(DEPLOYMENTS):
        for container in deployment.body["spec"]["template"]["spec"].get("initContainers") or ():
            if container["name"] == CONTAINER_FETCH:
                yield model_of(container.get("args") or ())
