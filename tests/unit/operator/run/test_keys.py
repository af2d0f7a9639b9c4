"""The token keys in every namespace with services: made before a replica, followed as they rotate, owned by services, silent at rest."""

import asyncio
import json

import pytest
from pagoda_contracts.launch import DaemonConfig
from pagoda_contracts.names import (
    DAEMON_CONFIG_KEY,
    JWKS_CONFIG_MAP,
    JWKS_DIR,
    JWKS_KEY,
    LABEL_COMPONENT,
    LABEL_NAME,
    ROLE_GATEWAY,
    ROLE_OPERATOR,
    subjects_key,
)
from pagoda_operator.api.callers import Callers
from pagoda_operator.api.errors import Denied, SettingsError, Unavailable
from pagoda_operator.api.state import CONFIG_MAPS, DEPLOYMENTS, PROFILES, SERVICES, Key
from pagoda_operator.client.daemons import OwnToken
from pagoda_operator.decide.render.children import Owner
from pagoda_operator.run.keys import TokenKeys, text_of
from pagoda_operator.run.reconcile import Reconciler
from pagoda_operator.run.settings import CALLERS_FILE, TOKEN_FILE, Settings, load
from support.harness.harness import now
from support.harness.stubs import dependencies_with
from support.kube.fake_api import FakeApi, profile_body, service_body
from support.kube.issuer import SUBJECTS, Issuer, SigningKey

CALLERS = Callers(gateway="pagoda/pagoda-gateway", operator="pagoda/pagoda-operator", metrics=("monitoring/prometheus",))
KEY = {"kty": "RSA", "kid": "one", "n": "x", "e": "AQAB"}


class Api(FakeApi):
    """With the API server's own page of keys."""

    keys = (KEY,)
    fault: Exception | None = None
    asked = 0

    async def token_keys(self):
        self.asked += 1
        if self.fault:
            raise self.fault
        return {"keys": list(self.keys)}


@pytest.fixture
def api():
    return Api()


def owner(api, name="tiny", namespace="ns"):
    body = api.put(SERVICES, service_body(name, namespace))
    return Owner(namespace, name, body["metadata"]["uid"])


def copy_in(api, namespace="ns", name=JWKS_CONFIG_MAP):
    return api.objects.get(("ConfigMap", namespace, name))


def kids(copy):
    return [key["kid"] for key in json.loads(copy["data"][JWKS_KEY])["keys"]]


def test_the_first_service_of_a_namespace_gets_the_keys_once(api):
    keys, one = TokenKeys(api), owner(api)
    for _ in range(3):
        asyncio.run(keys.ensure(one))
        asyncio.run(keys.refresh())
    assert kids(copy_in(api)) == ["one"]
    assert api.journal == [("create", "ConfigMap", JWKS_CONFIG_MAP)]


def test_a_new_process_writes_no_keys_again(api):
    one = owner(api)
    asyncio.run(TokenKeys(api).ensure(one))
    before = api.journal.copy()
    for _ in range(20):
        again = TokenKeys(api)
        asyncio.run(again.ensure(one))
        asyncio.run(again.refresh())
    assert api.journal == before


def test_keys_in_another_order_are_no_change(api):
    keys = TokenKeys(api)
    api.keys = (KEY, KEY | {"kid": "two"})
    asyncio.run(keys.ensure(owner(api)))
    api.keys = (KEY | {"kid": "two"}, dict(reversed(KEY.items())))
    asyncio.run(keys.refresh())
    assert len(api.journal) == 1


def test_services_of_a_namespace_share_one_copy_until_the_last_is_deleted(api):
    keys, services = TokenKeys(api), [owner(api, name) for name in ("a", "b", "c")]

    async def together():
        await asyncio.gather(*(keys.ensure(service) for service in services))

    asyncio.run(together())
    assert {found["uid"] for found in copy_in(api)["metadata"]["ownerReferences"]} == {service.uid for service in services}
    for service in services:
        api.collect_garbage()
        assert copy_in(api) is not None
        del api.objects["InferenceService", "ns", service.name]
    api.collect_garbage()
    assert copy_in(api) is None


async def turns(count=50):
    """Whoever can go on does."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_copies_of_different_namespaces_are_written_concurrently(api):
    keys, owners = TokenKeys(api), [owner(api, "tiny", f"ns-{number}") for number in range(32)]
    get, gate, held = api.get, asyncio.Event(), []

    async def slow(resource, namespace, name):
        held.append(namespace)
        await gate.wait()
        return await get(resource, namespace, name)

    api.get = slow
    ensuring = asyncio.gather(*(keys.ensure(one) for one in owners))
    await turns()
    assert sorted(held) == sorted(one.namespace for one in owners)
    gate.set()
    await ensuring
    assert api.asked == 1
    assert [kids(copy_in(api, one.namespace)) for one in owners] == [["one"]] * 32


async def rotated_during(api, keys, owner, verb):
    """The cluster's keys change while the copy for this owner is being written."""
    write, gate, begun = getattr(api, verb), asyncio.Event(), asyncio.Event()

    async def slow(*asked):
        begun.set()
        await gate.wait()
        return await write(*asked)

    setattr(api, verb, slow)
    ensuring = asyncio.create_task(keys.ensure(owner))
    await begun.wait()
    api.keys = (KEY, KEY | {"kid": "two"})
    refreshing = asyncio.create_task(keys.refresh())
    await turns()
    gate.set()
    await asyncio.gather(ensuring, refreshing)


async def test_a_copy_created_during_a_rotation_gets_the_new_keys(api):
    keys, first, second = TokenKeys(api), owner(api, "a", "n1"), owner(api, "b", "n2")
    await keys.ensure(first)
    await rotated_during(api, keys, second, "create")
    assert [kids(copy_in(api, one.namespace)) for one in (first, second)] == [["one", "two"]] * 2


async def test_an_owner_added_during_a_rotation_is_kept(api):
    keys, first, second = TokenKeys(api), owner(api, "a"), owner(api, "b")
    await keys.ensure(first)
    await rotated_during(api, keys, second, "apply")
    assert kids(copy_in(api)) == ["one", "two"]
    assert {found["uid"] for found in copy_in(api)["metadata"]["ownerReferences"]} == {first.uid, second.uid}


def test_every_copy_follows_a_rotation_and_keeps_its_owners(api):
    keys = TokenKeys(api)
    owners = [owner(api, "a", f"ns-{number}") for number in range(3)]
    for one in owners:
        asyncio.run(keys.ensure(one))
    api.keys = (KEY, KEY | {"kid": "two"})
    asyncio.run(keys.refresh())
    for one in owners:
        assert kids(copy_in(api, one.namespace)) == ["one", "two"]
        assert [found["uid"] for found in copy_in(api, one.namespace)["metadata"]["ownerReferences"]] == [one.uid]
    assert len(api.journal) == 6


def test_of_the_charts_copy_only_the_data_is_written_and_nothing_of_another_program_s(api):
    labels = {LABEL_NAME: "pagoda", LABEL_COMPONENT: "jwks", "app": "helm"}
    api.put(CONFIG_MAPS, {"metadata": {"name": "pagoda-gateway-jwks", "namespace": "pagoda", "labels": labels}})
    theirs = {"name": "their-keys", "namespace": "ns", "labels": labels | {LABEL_NAME: "other"}}
    api.put(CONFIG_MAPS, {"metadata": theirs})
    keys = TokenKeys(api)
    for _ in range(2):
        asyncio.run(keys.refresh())
    found = copy_in(api, "pagoda", "pagoda-gateway-jwks")
    assert kids(found) == ["one"]
    assert found["metadata"]["labels"]["app"] == "helm"
    assert len(api.journal) == 1


def test_the_accounts_of_the_next_installation_take_the_place_of_the_earlier_ones(api):
    one, later = owner(api), CALLERS.model_copy(update={"gateway": "elsewhere/models-gateway"})
    asyncio.run(TokenKeys(api, accounts=CALLERS.file()).ensure(one))
    assert json.loads(copy_in(api)["data"][subjects_key()]) == {subject: role for role, subject in SUBJECTS.items()}
    keys = TokenKeys(api, accounts=later.file())
    for _ in range(2):
        asyncio.run(keys.refresh())
    assert json.loads(copy_in(api)["data"][subjects_key()])["system:serviceaccount:elsewhere:models-gateway"] == ROLE_GATEWAY
    assert (kids(copy_in(api)), len(api.journal)) == (["one"], 2)


def test_two_installations_with_classes_write_side_by_side(api):
    one, blue = owner(api), CALLERS.model_copy(update={"gateway": "blue/blue-gateway", "service_class": "blue"})
    both = [TokenKeys(api, accounts=callers.file()) for callers in (CALLERS, blue)]
    asyncio.run(both[0].ensure(one))
    for keys in (*both, *both):
        asyncio.run(keys.refresh())
    assert len(api.journal) == 2, "neither undoes the other's"
    files = copy_in(api)["data"]
    assert ["blue-gateway" in files[subjects_key(name)] for name in ("", "blue")] == [False, True]
    assert blue.auth().tokens.subjects_file == f"{JWKS_DIR}/subjects.blue.json"


def test_a_deleted_or_edited_copy_is_restored(api):
    keys, one = TokenKeys(api), owner(api)
    asyncio.run(keys.ensure(one))
    copy_in(api)["data"] = {JWKS_KEY: "{}"}
    asyncio.run(keys.refresh())
    assert kids(copy_in(api)) == ["one"]
    del api.objects["ConfigMap", "ns", JWKS_CONFIG_MAP]
    asyncio.run(keys.refresh())
    asyncio.run(keys.ensure(one))
    assert kids(copy_in(api)) == ["one"]


def test_one_copy_that_is_refused_holds_up_no_other(api):
    keys, owners = TokenKeys(api), [owner(api, "tiny", f"ns-{number}") for number in range(3)]
    for one in owners:
        asyncio.run(keys.ensure(one))
    write = api.apply

    async def refusing(resource, manifest, manager):
        if manifest["metadata"]["namespace"] == "ns-0":
            raise Denied("403: a policy of ns-0")
        await write(resource, manifest, manager)

    api.keys, api.apply = (KEY, KEY | {"kid": "two"}), refusing
    with pytest.raises(Denied, match="a policy of ns-0"):
        asyncio.run(keys.refresh())
    assert [kids(copy_in(api, one.namespace)) for one in owners] == [["one"], ["one", "two"], ["one", "two"]]
    api.apply = write
    asyncio.run(keys.refresh())
    assert kids(copy_in(api, "ns-0")) == ["one", "two"]


def test_copies_are_stale_if_an_unknown_key_signs(api):
    newest = "one"
    keys = TokenKeys(api, lambda: newest)
    asyncio.run(keys.ensure(owner(api)))
    assert not keys.stale
    newest = "two"
    assert keys.stale
    api.keys = (KEY, KEY | {"kid": "two"})
    asyncio.run(keys.refresh())
    assert not keys.stale


@pytest.mark.parametrize("jwks", [{}, {"keys": []}, {"keys": [{"kty": "RSA"}]}])
def test_an_empty_key_set_is_denied(jwks):
    with pytest.raises(Denied, match="publishes no keys"):
        text_of(jwks)


def harness(api, **settings):
    api.put(PROFILES, profile_body())
    api.put(SERVICES, service_body())
    keys = TokenKeys(api)
    return Reconciler(api, Settings(callers=CALLERS, **settings), now, dependencies_with(api, keys=keys))


def run(operator, times=8):
    for _ in range(times):
        asyncio.run(operator.reconcile(Key("ns", "tiny")))


def test_a_replicas_config_names_its_callers_and_the_key_file(api):
    run(harness(api))
    (deployment,) = api.of(DEPLOYMENTS)
    config_map = api.objects["ConfigMap", "ns", deployment["metadata"]["name"]]
    auth = DaemonConfig.model_validate_json(config_map["data"][DAEMON_CONFIG_KEY]).auth
    assert auth.tokens.jwks_file == f"{JWKS_DIR}/{JWKS_KEY}"
    assert auth.tokens.subjects == {subject: role for role, subject in SUBJECTS.items()}
    assert (auth.tokens.subjects_file, auth.tokens.issuer) == (f"{JWKS_DIR}/{subjects_key()}", None)
    pod = deployment["spec"]["template"]["spec"]
    assert {"name": "jwks", "configMap": {"name": JWKS_CONFIG_MAP}} in pod["volumes"]
    assert {"name": "jwks", "mountPath": JWKS_DIR, "readOnly": True} in pod["containers"][0]["volumeMounts"]
    assert pod["automountServiceAccountToken"] is False  # a replica calls nobody
    kinds = [kind for verb, kind, name in api.journal if verb == "create" and (kind == "Deployment" or name == JWKS_CONFIG_MAP)]
    assert kinds == ["ConfigMap", "Deployment"]


def test_without_tokens_a_replica_has_no_auth_config(api):
    api.put(PROFILES, profile_body())
    api.put(SERVICES, service_body())
    run(Reconciler(api, Settings(callers=CALLERS.model_copy(update={"tokens": False})), now, dependencies_with(api, keys=TokenKeys(api))))
    (deployment,) = api.of(DEPLOYMENTS)
    assert "auth" not in json.loads(api.objects["ConfigMap", "ns", deployment["metadata"]["name"]]["data"][DAEMON_CONFIG_KEY])
    assert (copy_in(api), api.asked) == (None, 0)


def test_enabling_tokens_rolls_no_replica(api):
    api.put(PROFILES, profile_body())
    api.put(SERVICES, service_body())
    run(Reconciler(api, Settings(), now, dependencies_with(api)))
    api.control()
    before = api.of(DEPLOYMENTS)[0]["spec"]["template"]
    run(
        Reconciler(
            api, Settings(callers=CALLERS.model_copy(update={"network_policy": False})), now, dependencies_with(api, keys=TokenKeys(api))
        )
    )
    assert [deployment["spec"]["template"] for deployment in api.of(DEPLOYMENTS)] == [before]


@pytest.mark.parametrize("fault", [Unavailable("503"), Denied("403: cannot get path /openid/v1/jwks")])
def test_without_keys_no_replica_is_created_but_running_ones_are_scaled(api, fault):
    operator = harness(api)
    api.fault = fault
    for _ in range(2):
        with pytest.raises(type(fault)):
            run(operator)
    assert api.of(DEPLOYMENTS) == []
    api.fault = None
    run(operator)
    api.fault = fault
    operator = Reconciler(api, Settings(callers=CALLERS), now, dependencies_with(api, keys=TokenKeys(api)))
    api.edit(SERVICES, "ns", "tiny", lambda body: body["spec"].update(replicas=3))
    run(operator)
    assert [deployment["spec"]["replicas"] for deployment in api.of(DEPLOYMENTS)] == [3]


def test_missing_keys_are_retried_and_reported_in_the_status(api):
    operator = harness(api)
    api.keys = ()
    for _ in range(2):
        with pytest.raises(Denied):  # the queue tries again, later and later
            run(operator)
    lines = {line["type"]: line for line in api.of(SERVICES)[0]["status"]["conditions"]}
    assert (lines["Stalled"]["status"], lines["Reconciling"]["status"]) == ("False", "True")
    assert "publishes no keys for ServiceAccount tokens" in lines["Reconciling"]["message"]
    api.keys = (KEY,)
    run(operator)
    assert len(api.of(DEPLOYMENTS)) == 1


def test_an_invalid_callers_file_is_refused_by_its_variable(tmp_path):
    file = tmp_path / "callers.json"
    file.write_text(CALLERS.model_dump_json(by_alias=True))
    assert load([], {CALLERS_FILE: str(file), TOKEN_FILE: "/t"})[3] == CALLERS
    for broken in ('{"gateway": "a"}', '{"gateway": "a/b", "operator": "a/c", "metricsFrom": ["10.0.0.1/8"]}', "{}", '{"gatway": "a/b"}'):
        file.write_text(broken)
        with pytest.raises(SettingsError, match=CALLERS_FILE):
            load([], {CALLERS_FILE: str(file)})


def test_own_token_is_read_anew_and_its_signing_key_is_known(tmp_path):
    issuer, clock, file = Issuer(tmp_path), [1000.0], tmp_path / "token"
    with pytest.raises(SettingsError, match="token"):
        OwnToken(file)
    old = issuer.token(ROLE_OPERATOR, exp=4600)
    file.write_text(old)
    own = OwnToken(file, lambda: clock[0])
    assert own.metadata() == (("authorization", f"Bearer {old}"),)
    issuer.keys = [SigningKey("two")]
    new = issuer.token(ROLE_OPERATOR, exp=8000)
    file.write_text(new + "\n")
    assert (own.newest_key(), own.metadata()[0][1]) == ("two", f"Bearer {old}")  # until replicas can know the key
    clock[0] += 180
    assert own.metadata()[0][1] == f"Bearer {new}"
    file.write_text("")
    assert own.metadata()[0][1] == f"Bearer {new}"
    assert CALLERS.auth().tokens.subjects[SUBJECTS[ROLE_GATEWAY]] == ROLE_GATEWAY
