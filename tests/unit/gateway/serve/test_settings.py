"""Flags and variables: the flag wins, nonsense is refused by name."""

from pathlib import Path

import pytest
from pagoda_gateway.serve.settings import OPTIONS, load

SERVED = {"PAGODA_KEYS_NAMESPACE": "pagoda-system"}


def test_a_gateway_that_would_serve_no_client_is_refused(capsys):
    with pytest.raises(SystemExit):
        load([], {})
    assert "keys-namespace" in capsys.readouterr().err
    assert load(["--anonymous", "true"], {}).anonymous
    assert not load([], SERVED).anonymous


def test_defaults_are_complete_and_typed():
    settings = load([], SERVED)
    assert (settings.http_port, settings.metrics_port, settings.probes_port) == (8080, 9090, 8081)
    assert (settings.hold_timeout, settings.hold_limit, settings.body_limit, settings.drain_timeout) == (300.0, 2000, 16 * 2**20, 600.0)
    assert settings.body_budget == 256 * 2**20
    assert (settings.fleet, settings.kubeconfig) == (None, None)
    assert settings.identity


def test_a_flag_wins_over_its_variable():
    environment = {"PAGODA_HOLD_TIMEOUT": "10s", "PAGODA_LAME_DUCK": "1s"} | SERVED
    settings = load(["--hold-timeout", "20s", "--fleet", "f.json"], environment)
    assert (settings.hold_timeout, settings.lame_duck, settings.fleet) == (20.0, 1.0, Path("f.json"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hold-timeout", "soon"),
        ("http-port", "70000"),
        ("hold-limit", "-1"),
        ("body-limit", "16 MB"),
        ("anonymous", "yes"),
        ("reserved-names", '["gpt-4o"]'),
    ],
)
def test_nonsense_is_refused_by_name_and_value(name, value, capsys):
    with pytest.raises(SystemExit) as caught:
        load([], {f"PAGODA_{name.upper().replace('-', '_')}": value})
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert name in message
    assert repr(value) in message


def test_tls_of_envoys_port_needs_a_certificate(capsys):
    with pytest.raises(SystemExit):
        load(["--ext-proc-tls", "true"], SERVED)
    assert "ext-proc-tls needs tls-cert and tls-key" in capsys.readouterr().err
    assert load(["--ext-proc-tls", "true", "--tls-cert", "c", "--tls-key", "k"], SERVED).ext_proc_tls


def test_an_unknown_flag_is_refused():
    with pytest.raises(SystemExit):
        load(["--no-such-flag"], {})


def test_every_option_is_a_setting():
    assert {option.name for option in OPTIONS} == set(load([], SERVED).__slots__)
