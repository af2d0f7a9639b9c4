"""What a role grants and what the audit log says was used, in the same words, and what was refused. Pure, but for the question whether
anything was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from support.kube.cluster import Cluster

Body = dict[str, Any]
FORBIDDEN = 403
# The chart's accounts, as `make demo` and the tests install them.
OPERATOR = "system:serviceaccount:pagoda-system:pagoda-operator"
GATEWAY = "system:serviceaccount:pagoda-system:pagoda-gateway"


class Right(NamedTuple):
    """One verb on one kind (or subresource), or on a path that is no object's (then in the place of the kind, without a group)."""

    group: str
    resource: str
    verb: str


def granted(roles: Iterable[Body]) -> set[Right]:
    """All that roles allow; names of objects aside."""
    rules = [rule for role in roles for rule in role["rules"]]
    return {
        Right(group, resource, verb)
        for rule in rules
        for group in rule.get("apiGroups", [""])
        for resource in (*rule.get("resources", []), *rule.get("nonResourceURLs", []))
        for verb in rule["verbs"]
    }


def used(events: Iterable[Body], *, everybodys: bool = False) -> set[Right]:
    """All that was asked and allowed. A server-side apply that created took the right to create too: the API server asks for both. What
    every account may read as well (discovery, the token keys) is counted on demand: where a role of ours grants the same, the API server
    names whichever of the two it came upon first."""
    rights = set()
    for event in events:
        if forbidden(event) or (about := _about(event, everybodys=everybodys)) is None:
            continue
        right = Right(about.get("apiGroup", ""), "/".join(filter(None, [about["resource"], about.get("subresource", "")])), event["verb"])
        rights |= {right, right._replace(verb="create")} if event["responseStatus"]["code"] == 201 else {right}
    return rights


def _about(event: Body, *, everybodys: bool) -> Body | None:
    """An object, or a path that is none's; None where every account may read it and that is not asked for."""
    if "objectRef" in event:
        found: Body = event["objectRef"]
        return found
    everybody = 'of ClusterRole "system:' in event.get("annotations", {}).get("authorization.k8s.io/reason", "")
    return None if everybody and not everybodys else {"resource": event["requestURI"].partition("?")[0]}


def forbidden(event: Body) -> bool:
    """Whether it was RBAC that said no (a 403 may be a quota's or an admission's)."""
    return bool(event.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid")


def refused(events: Sequence[Body]) -> list[str]:
    """What was answered 403, by whomever: none of it may be ours. But two: that a namespace began to go between our look at it and a
    write there is nobody's fault, and RBAC had allowed it; and an API server that has just begun refuses whatever it has not read the
    roles of yet. Who lacks a right is refused it always: what the account was allowed on the same kind and namespace is no such lack."""
    allowed = {_what(event) for event in events if not forbidden(event) and _answer(event)["code"]}
    found = [event for event in events if _answer(event)["code"] == FORBIDDEN and not _went(event)]
    return [f"{event['verb']} {event['requestURI']}" for event in found if not (forbidden(event) and _what(event) in allowed)]


def _what(event: Body) -> tuple[str, ...]:
    about = event.get("objectRef") or {"resource": event["requestURI"].partition("?")[0]}
    return (event["verb"], *(about.get(part, "") for part in ("apiGroup", "resource", "subresource", "namespace")))


def _answer(event: Body) -> Body:
    found: Body = event.get("responseStatus") or {"code": 0}  # a watch that was cut off has none
    return found


def _went(event: Body) -> bool:
    causes = _answer(event).get("details", {}).get("causes", [])
    return not forbidden(event) and [cause["reason"] for cause in causes] == ["NamespaceTerminating"]


def nothing_refused(cluster: Cluster, accounts: Iterable[str], since: float) -> None:
    """None of our accounts has asked since then for what it may not have. Each must have asked for something once, else the name is wrong:
    who only watches asks nothing for minutes."""
    for account in accounts:
        events = cluster.audit(user=account, since=since, verbs="all")
        assert events or cluster.audit(user=account, verbs="all"), f"{account} was never seen"
        found = refused(events)
        assert found == [], f"{account} was refused {found}"
