"""Reads one service and all that belongs to it. Called by `reconcile`; decides nothing.

Reads the caches, which may be a moment late: what makes or removes an object is verified before it is done.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pagoda_contracts.names import DEFAULT_PROFILE, LABEL_SERVICE, LABEL_SERVICE_UID
from pagoda_contracts.resources.meta import ObjectMeta
from pagoda_contracts.resources.profile import ServingProfileSpec
from pagoda_contracts.resources.service import InferenceServiceSpec
from pydantic import ValidationError

from pagoda_operator.api.pods import parse_pod
from pagoda_operator.api.quota import holdings
from pagoda_operator.api.state import CHILD_RESOURCES, DEPLOYMENTS, PODS, PROFILES, SERVICES, Child, Json, Key, Observed, Reader, explain
from pagoda_operator.decide.plan import Plan
from pagoda_operator.decide.render.children import inspector_uid
from pagoda_operator.decide.render.writes import Create


async def observe(reader: Reader, key: Key) -> Observed | None:
    """The service as it is now; None if it is gone or being deleted (garbage collection does the rest)."""
    body = await reader.get(SERVICES, key.namespace, key.name)
    if body is None or "deletionTimestamp" in body["metadata"]:
        return None
    profile = await reader.get(PROFILES, "", profile_name(body))
    selector = f"{LABEL_SERVICE}={key.name}"
    pods, *lists = [await reader.list(resource, key.namespace, selector) for resource in (PODS, *CHILD_RESOURCES)]
    uid = body["metadata"]["uid"]
    inspectors = [Child(PODS, pod) for pod in pods if _uid_label(pod) == inspector_uid(uid)]
    labelled = [Child(resource, item) for resource, items in zip(CHILD_RESOURCES, lists, strict=True) for item in items]
    return Observed(
        meta=ObjectMeta.model_validate(body["metadata"]),
        raw_status=body.get("status") or {},
        **_spec(body),
        **_profile(profile),
        children=tuple(child for child in (*labelled, *inspectors) if child.belongs_to(uid)),
        strangers=tuple(child for child in labelled if not child.belongs_to(uid)),
        holdings=holdings(lists[CHILD_RESOURCES.index(DEPLOYMENTS)], pods),
        pods=tuple(sorted((parse_pod(pod) for pod in pods if _uid_label(pod) == uid), key=lambda pod: pod.name)),
    )


async def strangers(reader: Reader, key: Key, draft: Plan) -> tuple[Child, ...]:
    """Objects without our label that have a name which the plan would create."""
    wanted = [(step.resource, step.name) for step in draft.writes if isinstance(step, Create)]
    found = await asyncio.gather(*(reader.get(resource, key.namespace, name) for resource, name in wanted))
    return tuple(Child(resource, body) for (resource, _), body in zip(wanted, found, strict=True) if body is not None)


def profile_name(body: Json) -> str:
    """The profile that a service names, readable even where the rest of its spec is not."""
    reference: Any = (body.get("spec") or {}).get("profileRef") or {}
    return str(reference.get("name") or DEFAULT_PROFILE)


async def profile_used(reader: Reader, key: Key) -> str:
    """The profile that a service names, as far as it is known."""
    body = await reader.get(SERVICES, key.namespace, key.name)
    return profile_name(body) if body is not None else DEFAULT_PROFILE


def unanswered(service: Json) -> bool:
    """Whether the spec is newer than the status: it was edited, and no run has reported on it yet."""
    return bool((service.get("status") or {}).get("observedGeneration") != service["metadata"].get("generation"))


def _uid_label(pod: Json) -> str:
    return str(pod["metadata"]["labels"].get(LABEL_SERVICE_UID, ""))


def _spec(body: Json) -> dict[str, Any]:
    try:
        return {"spec": InferenceServiceSpec.model_validate(body.get("spec"), extra="ignore")}
    except ValidationError as error:
        return {"invalid": explain(error)}


def _profile(body: Json | None) -> dict[str, Any]:
    if body is None:
        return {}
    try:
        return {"profile": ServingProfileSpec.model_validate(body.get("spec"), extra="ignore")}
    except ValidationError as error:
        return {"invalid_profile": explain(error)}
