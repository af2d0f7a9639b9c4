"""What the audit log's judge takes for a refusal of ours."""

import pytest
from support.judges.rights import Right, refused, used

GOING = {"details": {"causes": [{"reason": "NamespaceTerminating"}]}}


def event(code, decision="allow", **answer):
    said = {"authorization.k8s.io/decision": decision}
    return {"verb": "create", "requestURI": "/x", "responseStatus": {"code": code, **answer}, "annotations": said}


@pytest.mark.parametrize(
    ("events", "count"),
    [
        ([event(200), event(404), event(409)], 0),
        ([event(403, "forbid")], 1),
        # Admission's, a quota's for one; only a namespace that began to go is excused, and only where RBAC had allowed it.
        ([event(403, message="exceeded quota")], 1),
        ([event(403, **GOING)], 0),
        ([event(403, "forbid", **GOING)], 1),
        # A server that has just begun has not read all roles yet: what was allowed at another time is no right that is missing.
        ([event(403, "forbid"), event(200)], 0),
        ([event(403, "forbid") | {"verb": "delete"}, event(200)], 1),
        ([event(403, "forbid"), event(403, "forbid")], 1 + 1),
        # A watch whose server was killed has no answer.
        ([{"verb": "watch", "requestURI": "/x", "annotations": {}}], 0),
    ],
)
def test_whatever_was_answered_403_is_a_refusal_but_in_a_namespace_that_goes(events, count):
    assert len(refused(events)) == count


@pytest.mark.parametrize("role", ["system:service-account-issuer-discovery", "pagoda-operator"])
def test_a_right_of_ours_that_every_account_has_as_well_is_used_whichever_of_the_two_the_log_names(role):
    said = {"authorization.k8s.io/reason": f'RBAC: allowed by ClusterRoleBinding "x" of ClusterRole "{role}" to Group "y"'}
    read = {"verb": "get", "requestURI": "/openid/v1/jwks?x=1", "responseStatus": {"code": 200}, "annotations": said}
    assert used([read], everybodys=True) == {Right("", "/openid/v1/jwks", "get")}
    assert bool(used([read])) == (role == "pagoda-operator")
