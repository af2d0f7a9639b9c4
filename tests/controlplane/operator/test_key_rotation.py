"""The cluster's signing key changes while requests run: a real API server and real tokens; operator, gateway and daemons as processes. The
test is the kubelet: it renews tokens and mounted keys."""

import json
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import grpc
import httpx
import jwt
import pytest
from pagoda_contracts.bearer import subject
from pagoda_contracts.launch import AuthConfig, TokensConfig
from pagoda_contracts.names import GRPC_SET_STATE, JWKS_CONFIG_MAP, JWKS_KEY, ROLE_GATEWAY, ROLE_OPERATOR, TOKEN_AUDIENCE
from pagoda_contracts.pb.daemon_pb2 import TARGET_DRAINING, SetStateRequest, SetStateResponse
from pagoda_operator.api.state import CONFIG_MAPS
from support.kube.client import Kube, eventually
from support.kube.cluster import running_cluster
from support.kube.control_plane import API_SERVER, Part, away
from support.kube.daemon_processes import DaemonProcesses, endpoints
from support.kube.namespace import NAME, Real
from support.kube.operator_process import ACCOUNT, NAMESPACE, NodeWithoutKubelet, OperatorProcess, install_role
from support.kube.operator_under_test import under_test
from support.servers.gateway_process import start_gateway
from support.servers.gateway_under_test import under_test as gateway_under_test

# A cluster of its own, two restarts of its API server and half a minute of waiting: 3 min on two cores that others use too.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
GATEWAY = "pagoda-gateway"
ACCOUNTS = {ROLE_GATEWAY: f"{NAMESPACE}/{GATEWAY}", ROLE_OPERATOR: f"{NAMESPACE}/{ACCOUNT}"}
# Half of it is what mounted keys may lag; the rest is for operator, API server and slow machines, two of whose pauses 10 s had room for.
SETTLE_S = 40.0
# A mounted ConfigMap is renewed within 90 s where a token shown by a new key waits 180 s (contracts/bearer.py): the same share of both.
MOUNT_LAG_S = SETTLE_S / 2
SIGNING, PUBLISHED = "service-account-signing-key-file", "service-account-key-file"


class ApiServer:
    """The one process of a cluster's control plane that signs. An administrator rotates its keys: it starts with other key files."""

    def __init__(self, cluster, kube):
        self.kube, self._part = kube, Part(cluster, API_SERVER)
        self.old_key = Path(self._part.option(SIGNING))

    def new_key(self, name):
        key = self.old_key.with_name(f"{name}.key")
        make = ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(key)]
        subprocess.run(make, check=True, capture_output=True)
        return key

    def restart(self, *published):
        """Signs with the first of the keys and publishes all of them."""
        kept = [word for word in self._part.argv if not word.startswith((f"--{SIGNING}=", f"--{PUBLISHED}="))]
        with away(self._part, self.kube):
            self._part.argv = [*kept, f"--{SIGNING}={published[0]}", *(f"--{PUBLISHED}={key}" for key in published)]


class Kubelet:
    """Files as a kubelet keeps them: tokens at once, keys some time after the ConfigMap."""

    def __init__(self, kube, namespace, folder):
        self.kube, self.namespace, self.folder = kube, namespace, folder
        self._over, self._waiting = threading.Event(), {}
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self):
        self.renew()
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def token(self, account):
        return self.folder / f"{account}.token"

    @property
    def keys(self):
        return self.folder / "keys.json"

    def renew(self):
        for account in (ACCOUNT, GATEWAY):
            path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
            made = self.kube.post(path, {"spec": {"expirationSeconds": 3600, "audiences": [TOKEN_AUDIENCE]}})["status"]["token"]
            put(self.token(account), made)

    def publish(self):
        """What a pod finds at its start."""
        put(self.keys, json.dumps(self.kube.read("/openid/v1/jwks")))

    def _follow(self):
        while not self._over.wait(0.2):
            try:
                found = self.kube.get(CONFIG_MAPS, self.namespace, JWKS_CONFIG_MAP)
            except (httpx.TransportError, AssertionError):  # it is killed, in the middle of an answer even; it has just begun and refuses
                continue
            text = found["data"][JWKS_KEY] if found else None
            if text and self._waiting.setdefault(text, time.monotonic()) <= time.monotonic() - MOUNT_LAG_S:
                self._waiting = {text: 0.0}
                put(self.keys, text)


def put(file, text):
    """Swapped whole."""
    fresh = file.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(file)


class Load:
    """Clients that ask without a pause and never ask twice; `ended` counts what went well, `refused` keeps what did not."""

    def __init__(self, url, clients=3):
        self.url, self.ended, self.refused = url, 0, []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self):
        body = {"model": NAME, "prompt": "x", "max_tokens": 20, "stream": True, "ignore_eos": True}
        with httpx.Client(base_url=self.url, timeout=300, trust_env=False) as client:
            while not self._over.is_set():
                answer = client.post("/v1/completions", json=body)
                if answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n") and '"error"' not in answer.text:
                    self.ended += 1
                else:
                    self.refused.append((answer.status_code, answer.text[-300:]))

    def goes_on(self, more=20):
        before = self.ended
        eventually(lambda: self.refused or self.ended >= before + more, "requests go on")


@pytest.fixture(scope="module")
def rotating():
    """A cluster of its own: tokens that other tests hold would be good no more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PAGODA_TEST_CLUSTER", raising=False)
        with running_cluster(nodes="control-plane") as running:
            install_role(running)
            yield running


@pytest.fixture
def server(rotating):
    kube = Kube(rotating.kubeconfig)
    yield ApiServer(rotating, kube)
    kube.close()


@pytest.fixture
def harness(rotating, server):
    node_without_kubelet = NodeWithoutKubelet(server.kube)
    node_without_kubelet.register()
    real = Real(rotating, server.kube, node_without_kubelet, "rotation")
    real.prepare()
    yield real
    node_without_kubelet.leave()


@pytest.fixture
def kubelet(harness, tmp_path):
    with Kubelet(harness.kube, harness.namespace, tmp_path) as running:
        running.publish()
        yield running


@pytest.fixture
def gateway(rotating, kubelet):
    known = ("--token", str(kubelet.token(GATEWAY)), "--token-keys", str(kubelet.keys), "--operator", ACCOUNTS[ROLE_OPERATOR])
    with start_gateway("--kubeconfig", str(rotating.kubeconfig), *known, program=gateway_under_test(key_settle_s=SETTLE_S)) as running:
        yield running


@pytest.fixture
def operator(rotating, kubelet, gateway, tmp_path):
    callers = tmp_path / "callers.json"
    callers.write_text(json.dumps(ACCOUNTS))
    environment = {"PAGODA_TOKEN": str(kubelet.token(ACCOUNT)), "PAGODA_CALLERS": str(callers)}
    options = ("--resync", "1s", "--gateways", f"127.0.0.1:{gateway.demand}")
    program = under_test(key_settle_s=SETTLE_S, key_look_s=0.5)
    running = OperatorProcess(rotating.kubeconfig, *options, program=program, **environment)
    yield running
    running.stop()


@pytest.fixture
def daemons(harness, kubelet, gateway, operator, tmp_path):
    """Two replicas that serve, and tell callers apart."""
    subjects = {subject(account): role for role, account in ACCOUNTS.items()}
    with ExitStack() as stack:
        daemons = DaemonProcesses(harness, tmp_path, stack, AuthConfig(tokens=TokensConfig(jwks_file=str(kubelet.keys), subjects=subjects)))
        harness.apply(replicas=2, drain={"timeout": "5m"})
        daemons.admit(2)
        harness.reported(Ready="Available")
        eventually(lambda: endpoints(gateway, "ready") == 2, "both are heard")
        yield daemons


def drain(channel, token):
    method = channel.unary_unary(
        GRPC_SET_STATE, request_serializer=SetStateRequest.SerializeToString, response_deserializer=SetStateResponse.FromString
    )
    return method(SetStateRequest(target=TARGET_DRAINING, epoch=10**6), metadata=(("authorization", f"Bearer {token}"),), timeout=300)


def code_of(address, token):
    """What a daemon says to who would have it drain."""
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as refused:
        drain(channel, token)
    return refused.value.code()


def key_of(token):
    return jwt.get_unverified_header(token)["kid"]


def test_no_call_is_refused_while_the_cluster_s_key_changes_and_the_old_one_is_dropped(
    server, kubelet, harness, daemons, gateway, operator
):
    before = kubelet.token(GATEWAY).read_text()
    address = next(iter(daemons.daemons.values())).grpc
    assert code_of(address, before) == grpc.StatusCode.PERMISSION_DENIED, "a gateway's token cannot drain"
    with Load(gateway.url) as load:
        load.goes_on()
        fresh = server.new_key("rotated")
        server.restart(fresh, server.old_key)
        kubelet.renew()
        assert key_of(kubelet.token(GATEWAY).read_text()) != key_of(before)
        eventually(lambda: key_of(kubelet.token(ACCOUNT).read_text()) in kubelet.keys.read_text(), "the new key reaches the daemons")
        load.goes_on()
        held_back = time.monotonic() + SETTLE_S
        eventually(lambda: time.monotonic() > held_back, "the new tokens are shown")
        load.goes_on()
        server.restart(fresh)
        eventually(lambda: key_of(before) not in kubelet.keys.read_text(), "the old key is dropped everywhere")
        eventually(lambda: code_of(address, before) == grpc.StatusCode.UNAUTHENTICATED, "what it signed is good no more")
        load.goes_on()
        eventually(lambda: endpoints(gateway, "ready") == 2, "the gateway is let in by its new token")
        harness.edit(replicas=1)
        eventually(lambda: endpoints(gateway, "ready") == 1, "the operator's order to drain is obeyed")
        eventually(lambda: harness.end_pods() or len(daemons.names()) == 1, "one replica is left")
        load.goes_on()
    assert load.refused == []
    assert [event["event"] for name in ("order_refused", "reconcile_bug") for event in operator.events(name)] == []
