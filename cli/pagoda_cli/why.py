"""`pagoda why NAME`: everything that the operator says of a service, in one page: conditions, placement, scaling, revisions, quota.

Reads the objects' status and prints it; decides nothing and asks only the API server (by `kubectl`). Rendering is in `why_text`.
`pagoda why request/ID` is in `why_request`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import typer
from pagoda_contracts.names import GROUP, LABEL_SERVICE
from pagoda_contracts.resources.service import INFERENCE_SERVICE
from pagoda_contracts.resources.tenant import TENANT_QUOTA

from pagoda_cli.errors import CliError
from pagoda_cli.kubectl import Access, get, listed
from pagoda_cli.why_request import PREFIX, request_lines, request_text
from pagoda_cli.why_text import text

_NAMES: Final = (INFERENCE_SERVICE.kind.lower(), INFERENCE_SERVICE.plural)
_KINDS: Final = ("service", *_NAMES, *(f"{name}.{GROUP}" for name in _NAMES), *INFERENCE_SERVICE.short_names)
Json = Mapping[str, Any]


def command(
    target: Annotated[str, typer.Argument(help="The service, also as service/NAME; or request/ID.", metavar="NAME")],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="The service's; default: kubectl's own. Or the gateways'; default: pagoda-system.")
    ] = "",
    context: Annotated[str, typer.Option("--context", help="A context of the kubeconfig.")] = "",
    kubeconfig: Annotated[str, typer.Option("--kubeconfig", help="A kubeconfig file.")] = "",
    output: Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="For people or for scripts.")] = "text",
    since: Annotated[str, typer.Option("--since", help="How far back a request is searched for.")] = "1h",
) -> None:
    """Say why a service is where it is: placed, waiting, scaled, or refused. Or why a request went where it went."""
    access = Access(namespace, context, kubeconfig)
    if target.startswith(PREFIX):
        told = request_lines(access, target.removeprefix(PREFIX), since)
        print(json.dumps(told, indent=2) if output == "json" else request_text(told))
        return
    service = get(access, INFERENCE_SERVICE.resource, named(target))
    inside = access._replace(namespace=service["metadata"]["namespace"])
    pods = listed(inside, "pods", f"--selector={LABEL_SERVICE}={service['metadata']['name']}")
    quotas = listed(access, TENANT_QUOTA.resource)
    found = answer(service, pods or [], quotas)
    print(json.dumps(found, indent=2) if output == "json" else text(found))


def named(target: str) -> str:
    """The name in NAME or service/NAME, and in what `kubectl -o name` prints."""
    kind, slash, name = target.rpartition("/")
    if (slash and kind not in _KINDS) or not name or name.startswith("-"):
        raise CliError(f"the target must be NAME, service/NAME or request/ID, got {target!r}")
    return name


def answer(service: Json, pods: list[Any], quotas: list[Any] | None) -> dict[str, Any]:
    """What is shown of a service, out of the objects; `quotas` None: they may not be read."""
    meta, status = service["metadata"], service.get("status") or {}
    namespace = meta["namespace"]
    return {
        "service": f"{namespace}/{meta['name']}",
        "generation": meta.get("generation", 0),
        "observedGeneration": status.get("observedGeneration"),
        "replicas": {"ready": status.get("readyReplicas", 0), "existing": status.get("replicas", 0)},
        "conditions": status.get("conditions", []),
        "placement": status.get("placement", {}),
        "scaling": status.get("scaling", {}),
        "revisions": status.get("revisions", []),
        "outdated": status.get("outdated"),
        "lastStart": status.get("lastStart"),
        "pods": [_pod(pod) for pod in pods],
        "quotas": None if quotas is None else [_quota(quota) for quota in quotas if _counts(quota, namespace)],
    }


def _pod(pod: Json) -> dict[str, Any]:
    status = pod.get("status") or {}
    conditions = {one["type"]: one for one in status.get("conditions", [])}
    unscheduled = conditions.get("PodScheduled", {})
    waits = [one["state"]["waiting"] for one in status.get("containerStatuses", []) if "waiting" in one.get("state", {})]
    why = unscheduled.get("message", "") if unscheduled.get("status") == "False" else ""
    why = why or "; ".join(filter(None, (f"{one.get('reason', '')}: {one.get('message', '')}".strip(": ") for one in waits)))
    return {
        "name": pod["metadata"]["name"],
        "node": (pod.get("spec") or {}).get("nodeName"),
        "phase": "Terminating" if "deletionTimestamp" in pod["metadata"] else status.get("phase", "Pending"),
        "ready": conditions.get("Ready", {}).get("status") == "True",
        "why": why,
    }


def _counts(quota: Json, namespace: str) -> bool:
    subjects = (quota.get("spec") or {}).get("subjects") or {}
    return namespace in (subjects.get("namespaces") or ())


def _quota(quota: Json) -> dict[str, Any]:
    status = quota.get("status") or {}
    return {"name": quota["metadata"]["name"], "usage": status.get("usage", {}), "conditions": status.get("conditions", [])}
