"""The status of a ServingProfile by kstatus' rules: what it offers, or which field is wrong, and how many services use it. Pure.

Most of a profile is a pod template without a schema. So a replica of each kind of service is rendered with it, and what the operator would
say of such a service is said of the profile. What only the API server judges, a field that no pod has, shows at a service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from pagoda_contracts.conditions.profile import ACCEPTED, UNUSABLE
from pagoda_contracts.conditions.types import Reason
from pagoda_contracts.names import LABEL_SERVICE, LABEL_SERVICE_UID, RESOURCE_GPU
from pagoda_contracts.resources.meta import ObjectMeta
from pagoda_contracts.resources.profile import ServingProfileSpec, ServingProfileStatus
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_placement.result import Resolved
from pagoda_placement.revision import identify
from pydantic import ValidationError

from pagoda_operator.api.conditions import Conditions
from pagoda_operator.api.errors import SpecProblem
from pagoda_operator.api.state import Json, Key, explain
from pagoda_operator.decide.render.overlay import misshapen
from pagoda_operator.decide.render.pod import Inputs, pod_template

_NAME: Final = "sample"
_DEVICES: Final = {
    "on GPUs": ({"gpu": {"product": "H100"}}, Resolved(RESOURCE_GPU)),
    "on CPU": ({"cpu": {"cores": "4", "memory": "16Gi"}}, Resolved()),
}
_ON_CLAIMS, _FETCHED = "models on claims", "fetched models"
_MODELS: Final = {_ON_CLAIMS: "pvc://models/model", _FETCHED: "hf://org/model"}
_MOST_PATHS: Final = 6
_MAX_MESSAGE: Final = 2048
_KEPT: Final = "Running replicas keep serving, and services that use the profile get no new ones."


@dataclass(frozen=True)
class Profile:
    """One ServingProfile. Metadata and status are not compared, so that our own status write is no change."""

    name: str
    spec: ServingProfileSpec | None = None
    invalid: str = ""
    meta: ObjectMeta = field(default=ObjectMeta(), compare=False)
    status: Json = field(default_factory=dict, compare=False)


def parse_profile(body: Json) -> Profile:
    """The cache's parser."""
    meta, status = ObjectMeta.model_validate(body["metadata"]), body.get("status") or {}
    try:
        spec = ServingProfileSpec.model_validate(body.get("spec"), extra="ignore")
    except ValidationError as error:
        return Profile(meta.name, None, explain(error), meta, status)
    fault = misshapen(spec.pod_template)
    return Profile(meta.name, None if fault else spec, f"podTemplate: {fault}" if fault else "", meta, status)


def profile_status(profile: Profile, services: int, now: str) -> dict[str, Any]:
    """The whole status on the wire. `services`: how many use it."""
    reason, message = _verdict(profile)
    stalled = reason is UNUSABLE
    conditions = Conditions.after(_last(profile).conditions, profile.meta.generation, now)
    said = (reason.name, message[:_MAX_MESSAGE])
    return ServingProfileStatus(
        observed_generation=profile.meta.generation,
        conditions=conditions.three("False" if stalled else "True", said, reconciling=False, stalled=stalled),
        services=services,
    ).wire()


def _verdict(profile: Profile) -> tuple[Reason, str]:
    if profile.spec is None:
        return UNUSABLE, f"{profile.invalid}. {_KEPT}"
    found = _rendered(profile.spec)
    if all(found.values()):
        return UNUSABLE, f"{next(iter(found.values()))}. {_KEPT}"
    return ACCEPTED, " ".join((*_offers(profile.spec), *_refusals(found)))


def _rendered(spec: ServingProfileSpec) -> Mapping[str, str]:
    """Kind of service → why no replica of it can be made with this profile; "" if one can."""
    models = [_ON_CLAIMS] if spec.images.fetch is None else [*_MODELS]
    return {f"services {where} with {model}": _fault(spec, where, model) for where in _DEVICES for model in models}


def _fault(spec: ServingProfileSpec, where: str, model: str) -> str:
    sample, (_, resolved) = _sample(where, model), _DEVICES[where]
    entry, labels = sample.accelerators[0], {LABEL_SERVICE: _NAME, LABEL_SERVICE_UID: _NAME}
    try:
        pod_template(Inputs(Key(_NAME, _NAME), identify(_NAME, sample, entry), sample, entry, spec, labels, resolved=resolved))
    except SpecProblem as problem:
        return problem.message
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # a list where a pod has a map
        return f"podTemplate must be the metadata and spec of a pod, and it cannot be merged with one: {error!r}"
    return ""


@cache
def _sample(where: str, model: str) -> InferenceServiceSpec:
    return InferenceServiceSpec.model_validate({"model": {"uri": _MODELS[model]}, "accelerators": [_DEVICES[where][0]]})


def _offers(spec: ServingProfileSpec) -> Iterator[str]:
    yield f"Replicas run {spec.images.daemon}."
    if spec.images.fetch is None:
        yield "Models are on claims only, because images.fetch is not set."
    elif not spec.egress:
        yield "Models are on claims only, because the profile's egress allows no network."
    else:
        yield "Models are on claims or fetched."
    more = f" and {len(spec.allow) - _MOST_PATHS} more paths" if len(spec.allow) > _MOST_PATHS else ""
    yield f"A service's podTemplate may set {', '.join(spec.allow[:_MOST_PATHS]) or 'nothing'}{more}."


def _refusals(found: Mapping[str, str]) -> Iterator[str]:
    """Each fault once, with the services that it stops."""
    for why in dict.fromkeys(filter(None, found.values())):
        yield f"It cannot be used by {' and '.join(kind for kind, fault in found.items() if fault == why)}: {why}."


def _last(profile: Profile) -> ServingProfileStatus:
    """Empty if an older operator's status cannot be read."""
    try:
        return ServingProfileStatus.model_validate(dict(profile.status), extra="ignore")
    except ValidationError:
        return ServingProfileStatus()
