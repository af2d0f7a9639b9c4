"""`pagoda doctor`: what of an install and of a cluster's GPU nodes would keep services from running. Reads by kubectl, writes nothing.

Nodes are judged by the code that places replicas (`pagoda_placement`), by the terms of a ServingProfile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Annotated, Any, Final

import typer
from pagoda_contracts.crds.crdgen import KINDS
from pagoda_contracts.names import DEFAULT_PROFILE, GROUP
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_placement.terms import Terms, terms_of

from pagoda_cli.doctor_nodes import OK, UNKNOWN, WRONG, Finding, node_findings
from pagoda_cli.kubectl import Access, listed
from pagoda_cli.snapshot import Snapshot, live, saved
from pagoda_cli.why_text import clean

EXIT_WRONG: Final = 1
_NAME, _COMPONENT, _VERSION = (f"app.kubernetes.io/{name}" for name in ("name", "component", "version"))
_ANY_SERVICE: Final = {"model": {"uri": "hf://any/model"}, "accelerators": [{"cpu": {"cores": "1", "memory": "1Gi"}}]}
Json = Mapping[str, Any]


def command(
    profile: Annotated[str, typer.Option("--profile", help="The ServingProfile by whose terms nodes are judged.")] = DEFAULT_PROFILE,
    nodes: Annotated[str, typer.Option("--nodes", help="What `kubectl get nodes -o json` printed, in place of a cluster.")] = "",
    context: Annotated[str, typer.Option("--context", help="A context of the kubeconfig.")] = "",
    kubeconfig: Annotated[str, typer.Option("--kubeconfig", help="A kubeconfig file.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Say what of the install and of the GPU nodes would keep services from running. The exit code is 1 if something is wrong."""
    access = Access(context=context, kubeconfig=kubeconfig)
    seen = saved(nodes) if nodes else live(access, ())
    found = ([] if nodes else list(_install(access))) + _on_nodes(seen, profile)
    if as_json:
        print(json.dumps([one._asdict() for one in found], indent=2))
    else:
        for one in found:
            print(clean(f"{one.verdict:<8} {one.subject}: {one.words}"))
    if any(one.verdict == WRONG for one in found):
        raise typer.Exit(EXIT_WRONG)


def _on_nodes(seen: Snapshot, profile: str) -> list[Finding]:
    """Nodes that do not exist now are examples of their pool, and say nothing of today."""
    known = seen.profile(profile)
    note = [] if known else [Finding(UNKNOWN, f"ServingProfile {profile}", "was not read: nodes are judged by Pagoda's defaults")]
    terms = terms_of(known, InferenceServiceSpec.model_validate(_ANY_SERVICE), "") if known else Terms()
    return [*note, *node_findings([node for node in seen.inventory.nodes if not node.gone], terms)]


def _install(access: Access) -> Iterator[Finding]:
    crds = listed(access, "customresourcedefinitions")
    if crds is None:
        yield Finding(UNKNOWN, "kinds", "kubectl may not read CustomResourceDefinitions")
    else:
        yield kinds_finding(crds)
    deployments = listed(access, "deployments.apps", "--all-namespaces", f"--selector={_NAME}=pagoda")
    if deployments is None:
        yield Finding(UNKNOWN, "operator", "kubectl may not read the Deployments of all namespaces")
    else:
        yield from component_findings(deployments, version("pagoda"))


def kinds_finding(crds: list[Any]) -> Finding:
    """Whether the cluster has all kinds of Pagoda, and they are served."""
    served = {one["metadata"]["name"] for one in crds if _true(one, "Established")}
    missing = sorted({kind.resource for kind in KINDS} - served)
    if missing:
        return Finding(WRONG, "kinds", f"the cluster does not serve {', '.join(missing)}. helm installs them only on a first install")
    return Finding(OK, "kinds", f"{len(KINDS)} of {GROUP}")


def component_findings(deployments: list[Any], mine: str) -> Iterator[Finding]:
    """One for each Deployment of an install, and one if no operator is among them. `mine`: this command's version."""
    for one in deployments:
        meta, status = one["metadata"], one.get("status") or {}
        labels, ready, wanted = meta.get("labels") or {}, status.get("readyReplicas", 0), one["spec"].get("replicas", 1)
        theirs = labels.get(_VERSION, "")
        words = f"{ready} of {wanted} pods are ready; version {theirs or 'unknown'}"
        words += f", and this command is of {mine}" if theirs and theirs != mine else ""
        subject = f"{labels.get(_COMPONENT, 'deployment')} {meta['namespace']}/{meta['name']}"
        yield Finding(OK if ready >= wanted > 0 else WRONG, subject, words)
    if not any((one["metadata"].get("labels") or {}).get(_COMPONENT) == "operator" for one in deployments):
        yield Finding(WRONG, "operator", "no Deployment of Pagoda's chart is an operator: services get no pods")


def _true(crd: Json, condition: str) -> bool:
    return any(one.get("type") == condition and one.get("status") == "True" for one in (crd.get("status") or {}).get("conditions") or ())
