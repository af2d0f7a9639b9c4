"""Command line and environment."""

import pytest
from pagoda_operator.api.errors import SettingsError
from pagoda_operator.run.settings import load
from pagoda_operator.serve.watches import EndlessJitter


def test_the_gateway_url_is_the_configured_one_or_the_charts():
    assert load([], {"PAGODA_GATEWAY_URL": "http://gw:8080/v1"}).url == "http://gw:8080/v1"
    assert load([], {"PAGODA_NAMESPACE": "pagoda-system"}).url == "http://pagoda-gateway.pagoda-system.svc:8080/v1"
    assert load([], {}).url is None


def test_services_are_served_everywhere_or_in_the_namespaces_that_are_named():
    assert load([], {}).namespaces == ()
    assert load([], {"PAGODA_NAMESPACES": "b, a,b"}).namespaces == ("b", "a")
    assert load(["--namespaces", "c"], {"PAGODA_NAMESPACES": "a"}).namespaces == ("c",)


def test_the_default_profile_is_read_from_its_file(tmp_path):
    file = tmp_path / "profile.json"
    file.write_text('{"images": {"daemon": "img:1"}, "allow": ["metadata.labels"]}')
    profile = load([], {"PAGODA_DEFAULT_PROFILE": str(file)}).default_profile
    assert profile is not None
    assert (profile.images.daemon, profile.allow) == ("img:1", ("metadata.labels",))


def test_gateways_come_from_the_option_or_the_variable():
    assert load([], {"PAGODA_GATEWAYS": "peers.ns.svc:9100"}).gateways == ("peers.ns.svc:9100",)
    assert load(["--gateways", "a:1, [::1]:2"], {"PAGODA_GATEWAYS": "c:3"}).gateways == ("a:1", "[::1]:2")
    assert load([], {}).gateways == ()


@pytest.mark.parametrize(
    ("arguments", "environment", "named"),
    [
        (["--resync", "often"], {}, "often"),
        (["--resync", "10ms"], {}, "10ms"),
        ([], {"PAGODA_GATEWAY_URL": "gw:8080"}, "gw:8080"),
        ([], {"PAGODA_DEFAULT_PROFILE": "/no/such/file"}, "/no/such/file"),
        (["--gateways", "gw:9100,gw"], {}, "'gw'"),
        ([], {"PAGODA_GATEWAYS": "gw:99999"}, "gw:99999"),
        (["--namespaces", "team-a,Team"], {}, "'Team'"),
        ([], {"PAGODA_SERVICE_CLASS": "Blue"}, "'Blue' is not a class"),
        ([], {"PAGODA_RESERVED_NAMES": "gpt-4o"}, "PAGODA_RESERVED_NAMES: 'gpt-4o' does not reserve names"),
    ],
)
def test_an_invalid_setting_is_refused_by_name(arguments, environment, named):
    with pytest.raises(SettingsError, match=named):
        load(arguments, environment)


def test_an_invalid_default_profile_is_refused_by_name(tmp_path):
    file = tmp_path / "profile.json"
    file.write_text('{"image": "x"}')
    with pytest.raises(SettingsError, match="images"):
        load([], {"PAGODA_DEFAULT_PROFILE": str(file)})


def test_watch_delays_never_end_and_start_again_each_time():
    jitter = EndlessJitter()
    for _ in range(2):
        delays = [delay for delay, _ in zip(jitter, range(100), strict=False)]
        assert len(delays) == 100
        assert 0.4 <= delays[0] <= 0.6
        assert all(12 <= delay <= 18 for delay in delays[5:])


@pytest.mark.parametrize(
    ("arguments", "environment", "namespace"),
    [
        ([], {}, None),
        ([], {"POD_NAMESPACE": "pagoda-system"}, "pagoda-system"),
        (["--namespace", "other"], {"POD_NAMESPACE": "pagoda-system"}, "other"),
        (["--no-lease"], {"POD_NAMESPACE": "pagoda-system"}, None),
    ],
)
def test_a_lease_is_used_if_its_namespace_is_known_unless_disabled(arguments, environment, namespace):
    assert load(arguments, environment).lease_namespace == namespace


def test_the_identity_is_the_pod_name_or_a_unique_one():
    assert load([], {"POD_NAME": "operator-1"}).identity == "operator-1"
    assert load(["--identity", "me"], {"POD_NAME": "operator-1"}).identity == "me"
    assert load([], {}).identity != load([], {}).identity
