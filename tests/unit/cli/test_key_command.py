"""`pagoda key` as an admin types it, over Secrets in memory: what is printed, what is stored, and what the gateway's ring makes of it."""

import base64
import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from pagoda_cli import key
from pagoda_cli.commands import run
from pagoda_cli.errors import CliError
from pagoda_contracts.names import LABEL_API_KEYS, LABEL_TENANT
from pagoda_gateway.access.keys import KeyRing, Refused
from pagoda_gateway.watch.key_secrets import read_secret

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


class Secrets:
    """What kubectl would do to them: server-side apply merges entries, a patch removes one."""

    def __init__(self):
        self.stored = {}
        self.managers = []

    def get(self, _access, kind, selector):
        assert (kind, selector) == ("secrets", f"--selector={LABEL_API_KEYS}=true")
        return {"items": list(self.stored.values())}

    def apply(self, _access, manager, document):
        name = document["metadata"]["name"]
        known = self.stored.setdefault(name, document | {"data": {}})
        known["metadata"] = document["metadata"] | {"namespace": "pagoda-system", "resourceVersion": "1"}
        known["data"] |= document["data"]
        self.managers.append(manager)

    def remove(self, _access, target, field, key_id):
        assert field == "data"
        del self.stored[target.removeprefix("secret/")]["data"][key_id]

    def replace(self, _access, target, path, values, manager):
        entries = self.stored[target.removeprefix("secret/")][path[0]]
        if entries.get(path[1]) != values[0]:
            raise CliError("kubectl patch: the test failed")
        entries[path[1]] = values[1]
        self.managers.append(manager)

    def tenant(self, text, now=NOW):
        """Whose a gateway takes the key to be; None if it refuses it."""
        ring = KeyRing()
        for name, secret in self.stored.items():
            found = read_secret(msgspec.Raw(json.dumps(secret).encode())).value
            ring.put(name, found.tenant, found.keys)
        try:
            return ring.owner(text, now).tenant
        except Refused:
            return None


@pytest.fixture
def secrets(monkeypatch):
    made = Secrets()
    for name in ("get", "apply", "remove", "replace"):
        monkeypatch.setattr(key, name, getattr(made, name))
    monkeypatch.setattr(key, "_now", lambda: NOW)
    return made


def said(capsys, *words) -> str:
    assert run(["key", *words]) == 0
    return capsys.readouterr().out.strip()


def test_a_key_is_printed_alone_and_stored_as_a_digest(secrets, capsys):
    text = said(capsys, "create", "--tenant", "team-a")
    assert secrets.tenant(text) == "team-a"
    assert text not in json.dumps(secrets.stored)
    assert list(secrets.stored) == ["pagoda-keys-team-a"]
    assert secrets.stored["pagoda-keys-team-a"]["metadata"]["labels"] == {LABEL_API_KEYS: "true", LABEL_TENANT: "team-a"}


def test_keys_of_one_tenant_share_a_secret_and_no_two_are_alike(secrets, capsys):
    texts = {said(capsys, "create", "--tenant", "team-a") for _ in range(3)}
    assert len(texts) == len(set(secrets.managers)) == 3
    assert {secrets.tenant(text) for text in texts} == {"team-a"}


def test_a_key_expires_when_it_was_said(secrets, capsys):
    text = said(capsys, "create", "--tenant", "a", "--expires-in", "720h")
    assert secrets.tenant(text, NOW + timedelta(days=30, seconds=-1)) == "a"
    assert secrets.tenant(text, NOW + timedelta(days=30)) is None
    assert "2026-12-24T12:00:00Z  valid" in said(capsys, "list")


def test_the_list_says_of_each_key_what_a_gateway_makes_of_it(secrets, capsys):
    text = said(capsys, "create", "--tenant", "a")
    secrets.stored["pagoda-keys-a"]["data"]["broken"] = base64.b64encode(b"{}").decode()
    lines = said(capsys, "list").splitlines()
    assert lines[0].split() == ["ID", "TENANT", "CREATED", "EXPIRES", "STATE"]
    assert sum("not used" in line for line in lines) == 1
    assert sum(" valid" in line for line in lines) == 1
    rows = json.loads(said(capsys, "list", "-o", "json"))
    assert {row["id"]: "fault" in row for row in rows} == {"broken": True, next(iter(secrets.stored["pagoda-keys-a"]["data"])): False}
    assert text not in str(rows)


def test_a_rotated_key_stays_valid_for_the_grace_and_its_successor_lives_as_long(secrets, capsys):
    old = said(capsys, "create", "--tenant", "a", "--expires-in", "720h")
    key_id = next(iter(secrets.stored["pagoda-keys-a"]["data"]))
    new = said(capsys, "rotate", key_id, "--grace", "1h").splitlines()[0]
    assert [secrets.tenant(text, NOW + timedelta(minutes=59)) for text in (old, new)] == ["a", "a"]
    assert [secrets.tenant(text, NOW + timedelta(hours=1)) for text in (old, new)] == [None, "a"]
    assert secrets.tenant(new, NOW + timedelta(days=30)) is None


def test_a_grace_never_prolongs_a_key(secrets, capsys):
    old = said(capsys, "create", "--tenant", "a", "--expires-in", "30m")
    said(capsys, "rotate", next(iter(secrets.stored["pagoda-keys-a"]["data"])))
    assert secrets.tenant(old, NOW + timedelta(minutes=30)) is None


def test_the_successor_of_a_key_that_helm_made_is_in_a_secret_that_helm_does_not_remove(secrets, capsys):
    first = key.new_key(b"f" * 32, NOW)
    secrets.apply(None, "helm", key.document("default", "first", first.stored, "pagoda-first-key"))
    new = said(capsys, "rotate", "first").splitlines()[0]
    said(capsys, "revoke", "first")
    del secrets.stored["pagoda-first-key"]  # an upgrade without its entry
    assert (secrets.tenant(first.text), secrets.tenant(new)) == (None, "default")


@pytest.mark.parametrize("grace", ["1d", "0s", "90000000h"])
def test_a_grace_that_is_refused_makes_no_key(secrets, capsys, grace):
    old = said(capsys, "create", "--tenant", "a")
    before = json.dumps(secrets.stored)
    assert run(["key", "rotate", next(iter(secrets.stored["pagoda-keys-a"]["data"])), "--grace", grace]) == 2
    assert json.dumps(secrets.stored) == before
    assert secrets.tenant(old) == "a"


def test_a_revoked_key_is_gone_and_its_neighbour_stays(secrets, capsys):
    texts = [said(capsys, "create", "--tenant", "a") for _ in range(2)]
    first = next(iter(secrets.stored["pagoda-keys-a"]["data"]))
    said(capsys, "revoke", first)
    assert [secrets.tenant(text) for text in texts] == [None, "a"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["create", "--tenant", "Team A"], "--tenant must be"),
        (["create", "--tenant", "a", "--expires-in", "30d"], "1h30m; 30 days are 720h"),
        (["create", "--tenant", "a", "--expires-in", "0s"], "above 0"),
        (["create", "--tenant", "a", "--expires-in", "90000000h"], "before the year 10000"),
        (["revoke", "nobody"], "no Secret holds a key with the id 'nobody'; keys: none"),
        (["rotate", "nobody"], "no Secret holds"),
        (["create"], "--tenant"),
    ],
)
def test_what_cannot_be_done_is_one_line(secrets, capsys, words, message):
    assert run(["key", *words]) == 2
    assert message in capsys.readouterr().err
    assert secrets.stored == {}


def test_of_two_secrets_that_hold_one_id_the_named_one_is_meant(secrets, capsys):
    """A GitOps tool may have made the second."""
    texts = {tenant: said(capsys, "create", "--tenant", tenant) for tenant in ("a", "b")}
    for name in ("pagoda-keys-a", "pagoda-keys-b"):
        secrets.stored[name]["data"] = {"id": next(iter(secrets.stored[name]["data"].values()))}
    assert run(["key", "revoke", "id"]) == 2
    refusal = capsys.readouterr().err
    assert all(said in refusal for said in ("--secret", "pagoda-keys-a (tenant a)", "pagoda-keys-b (tenant b)"))
    assert run(["key", "revoke", "id", "--secret", "other"]) == 2
    said(capsys, "rotate", "id", "--secret", "pagoda-keys-a")
    said(capsys, "revoke", "id", "--secret", "pagoda-keys-b")
    assert {tenant: secrets.tenant(text) for tenant, text in texts.items()} == {"a": "a", "b": None}
    assert secrets.tenant(texts["a"], NOW + timedelta(hours=24)) is None


def test_a_key_that_is_revoked_while_it_is_rotated_stays_revoked(secrets, capsys, monkeypatch):
    old = said(capsys, "create", "--tenant", "a")
    key_id = next(iter(secrets.stored["pagoda-keys-a"]["data"]))

    def apply(*argv):
        secrets.apply(*argv)
        secrets.remove(None, "secret/pagoda-keys-a", "data", key_id)

    monkeypatch.setattr(key, "apply", apply)
    assert run(["key", "rotate", key_id]) == 2
    shown = capsys.readouterr()
    assert "was changed or revoked meanwhile" in shown.err
    assert (secrets.tenant(old), secrets.tenant(shown.out.strip())) == (None, "a")
