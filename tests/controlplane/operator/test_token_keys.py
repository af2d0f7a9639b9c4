"""The cluster's real keys and real tokens: what the operator keeps verifies what the API server issues, with the chart's own role."""

import json
import time

import pytest
from pagoda_contracts.jwks import BadToken, parse, verify
from pagoda_contracts.names import DAEMON_CONFIG_KEY, JWKS_CONFIG_MAP, JWKS_KEY, ROLE_GATEWAY, ROLE_OPERATOR, TOKEN_AUDIENCE
from pagoda_operator.api.state import CONFIG_MAPS, DEPLOYMENTS, SERVICES
from support.kube.client import eventually
from support.kube.namespace import NAME
from support.kube.operator_process import ACCOUNT, NAMESPACE, OperatorProcess

pytestmark = pytest.mark.cluster
GATEWAY = "pagoda-gateway"


@pytest.fixture
def strict(account, tmp_path):
    """An operator that was told who may call."""
    file = tmp_path / "callers.json"
    file.write_text(json.dumps({"gateway": f"{NAMESPACE}/{GATEWAY}", "operator": f"{NAMESPACE}/{ACCOUNT}"}))
    operator = OperatorProcess(account, "--resync", "1s", PAGODA_CALLERS=str(file))
    yield operator
    operator.stop()
    assert operator.events("reconcile_bug") == []


def token(kube, *audiences):
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
    return kube.post(path, {"spec": {"expirationSeconds": 3600, "audiences": list(audiences)}})["status"]["token"]


def test_replicas_can_verify_what_the_cluster_issues_and_nothing_stays_behind(real, strict):
    real.apply(replicas=2)
    real.node.placed(real.namespace, 2)
    kept = real.kube.get(CONFIG_MAPS, real.namespace, JWKS_CONFIG_MAP)
    keys = parse(kept["data"][JWKS_KEY].encode())
    (deployment,) = real.kube.list(DEPLOYMENTS, real.namespace)
    config = real.kube.get(CONFIG_MAPS, real.namespace, deployment["metadata"]["name"])
    roles = json.loads(config["data"][DAEMON_CONFIG_KEY])["auth"]["tokens"]["subjects"]
    ours = verify(token(real.kube, TOKEN_AUDIENCE), keys, None, time.time())
    assert roles[ours.subject] == ROLE_OPERATOR
    with pytest.raises(BadToken, match="audience"):
        verify(token(real.kube), keys, None, time.time())
    # After an uninstall, an admin makes the gateway's account again (docs/operations/install.md).
    made = real.cluster.kubectl("create", "token", GATEWAY, "-n", NAMESPACE, "--audience", TOKEN_AUDIENCE, "--duration", "24h")
    assert roles[verify(made.strip(), keys, None, time.time()).subject] == ROLE_GATEWAY
    version = kept["metadata"]["resourceVersion"]
    real.serve(2)
    real.reported(Ready="Available")
    assert real.kube.get(CONFIG_MAPS, real.namespace, JWKS_CONFIG_MAP)["metadata"]["resourceVersion"] == version
    real.kube.delete(SERVICES, real.namespace, NAME)
    eventually(
        lambda: not real.end_pods() and real.kube.get(CONFIG_MAPS, real.namespace, JWKS_CONFIG_MAP) is None, "the keys go with the service"
    )
