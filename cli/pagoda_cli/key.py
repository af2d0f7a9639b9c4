"""`pagoda key create|list|rotate|revoke`: API keys of the gateway's clients. They live in labelled Secrets beside the gateway, as digests.

A key's text is printed once, when it is made, and kept nowhere. Gateways watch the Secrets, so a key works and ends within a second.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, NamedTuple

import typer
from pagoda_contracts.names import LABEL_API_KEYS, LABEL_TENANT
from pagoda_contracts.resources.apikeys import RANDOM_BYTES, SECRET_PREFIX, NewKey, StoredKey, new_key, stored_key
from pagoda_contracts.units import parse_duration

from pagoda_cli.errors import CliError
from pagoda_cli.kubectl import GATEWAY_NAMESPACE, Access, apply, get, remove, replace

# A Secret's name, and a label's value.
_TENANT: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,50}[a-z0-9])?")

Namespace = Annotated[str, typer.Option("--namespace", "-n", help="The gateway's namespace.")]
Context = Annotated[str, typer.Option("--context", help="A context of the kubeconfig.")]
Kubeconfig = Annotated[str, typer.Option("--kubeconfig", help="A kubeconfig file.")]
Output = Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="For people or for scripts.")]
Secret = Annotated[str, typer.Option("--secret", help="The key's Secret, if several hold a key with this id.")]
KeyId = Annotated[str, typer.Argument(help="The key's id, as `pagoda key list` shows it.", metavar="ID")]


class Found(NamedTuple):
    """A key that exists. `fault` says why a gateway does not use it; `value` is its entry as the Secret has it."""

    secret: str
    tenant: str
    id: str
    key: StoredKey | None
    fault: str = ""
    value: str = ""


def commands() -> typer.Typer:
    """The group."""
    group = typer.Typer(add_completion=False, no_args_is_help=True, help="API keys of the gateway's clients.")
    for command in (create, list_keys, rotate, revoke):
        group.command(command.__name__.removesuffix("_keys"))(command)
    return group


def create(
    tenant: Annotated[str, typer.Option("--tenant", help="The tenant that pays for the key's requests.")],
    expires_in: Annotated[str, typer.Option("--expires-in", help="Such as 720h, which is 30 days. Default: the key never expires.")] = "",
    namespace: Namespace = GATEWAY_NAMESPACE,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Make a key and print it. This is the only time that it is shown."""
    now = _now()
    made = new_key(secrets.token_bytes(RANDOM_BYTES), now, later(now, expires_in) if expires_in else None)
    apply(Access(namespace, context, kubeconfig), manager(made.id), document(checked_tenant(tenant), made.id, made.stored))
    _show(made)


def list_keys(
    namespace: Namespace = GATEWAY_NAMESPACE, context: Context = "", kubeconfig: Kubeconfig = "", output: Output = "text"
) -> None:
    """List the keys: ids, tenants and times, never a key."""
    keys = found_keys(Access(namespace, context, kubeconfig))
    print(json.dumps([_row(key) for key in keys], indent=2) if output == "json" else table(keys, _now()))


def rotate(
    key_id: KeyId,
    grace: Annotated[str, typer.Option("--grace", help="How long the old key stays valid.")] = "24h",
    secret: Secret = "",
    namespace: Namespace = GATEWAY_NAMESPACE,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Make a key with the tenant and lifetime of another one, which expires after the grace."""
    access, now = Access(namespace, context, kubeconfig), _now()
    old = one_key(found_keys(access), key_id, secret)
    if old.key is None:
        raise CliError(f"key {old.id} cannot be rotated: {old.fault}")
    ends = min(filter(None, (old.key.expires, later(now, grace))))  # before anything is written: the grace may be refused
    made = new_key(secrets.token_bytes(RANDOM_BYTES), now, now + (old.key.expires - old.key.created) if old.key.expires else None)
    apply(access, manager(made.id), document(old.tenant, made.id, made.stored, successor_secret(old)))
    _show(made)
    _expire(access, old, old.key.model_copy(update={"expires": ends}))
    print(f"Key {old.id} expires at {_time(ends)}.")


def revoke(
    key_id: KeyId, secret: Secret = "", namespace: Namespace = GATEWAY_NAMESPACE, context: Context = "", kubeconfig: Kubeconfig = ""
) -> None:
    """Remove a key. Requests that show it are refused within a second."""
    access = Access(namespace, context, kubeconfig)
    key = one_key(found_keys(access), key_id, secret)
    remove(access, f"secret/{key.secret}", "data", key.id)
    print(f"Key {key.id} of tenant {key.tenant} is revoked.")


def _expire(access: Access, old: Found, key: StoredKey) -> None:
    """Writes the old key's end, unless somebody has changed or revoked it meanwhile: that must not be undone."""
    try:
        replace(access, f"secret/{old.secret}", ("data", old.id), (old.value, _encoded(key)), manager(old.id))
    except CliError as error:
        said = f"key {old.id} was changed or revoked meanwhile, and stays as it is now; its successor is valid"
        raise CliError(f"{said} (pagoda key list shows both): {error}") from None


def checked_tenant(name: str) -> str:
    """The name; CliError if no Secret can be called after it."""
    if not _TENANT.fullmatch(name):
        raise CliError(f"--tenant must be up to 52 lower-case letters, digits, `-` and `.`, got {name!r}")
    return name


def later(now: datetime, text: str) -> datetime:
    """This duration after now; CliError for what is not a duration above 0, or goes beyond the calendar."""
    try:
        found = now + timedelta(seconds=parse_duration(text))
    except OverflowError:
        raise CliError(f"a lifetime must end before the year 10000, got {text!r}") from None
    except ValueError as error:
        raise CliError(f"{error}; 30 days are 720h") from None
    if found <= now:
        raise CliError(f"a lifetime must be above 0, got {text!r}")
    return found


def successor_secret(old: Found) -> str:
    """Returns the Secret for a rotated key's successor: "" is the tenant's own. Helm, or a GitOps tool, may remove the Secret that it made
    for the old key. A tenant whose name no Secret can have keeps its Secret."""
    return "" if _TENANT.fullmatch(old.tenant) else old.secret


def manager(key_id: str) -> str:
    """Each key's entry has a field manager of its own: to write one never touches another."""
    return f"pagoda-key-{key_id}"


def document(tenant: str, key_id: str, key: StoredKey, secret: str = "") -> dict[str, Any]:
    """The tenant's Secret, as far as this key is concerned."""
    labels = {LABEL_API_KEYS: "true", LABEL_TENANT: tenant}
    data = {key_id: _encoded(key)}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret or SECRET_PREFIX + tenant, "labels": labels}, "data": data}


def _encoded(key: StoredKey) -> str:
    return base64.b64encode(key.document().encode()).decode()


def found_keys(access: Access) -> list[Found]:
    """All keys of the namespace, by tenant and age."""
    secret_list = get(access, "secrets", f"--selector={LABEL_API_KEYS}=true")["items"]
    found = [_found(secret["metadata"], *entry) for secret in secret_list for entry in (secret.get("data") or {}).items()]
    return sorted(found, key=lambda key: (key.tenant, key.key.created.isoformat() if key.key else "", key.id))


def _found(meta: dict[str, Any], key_id: str, value: str) -> Found:
    tenant = (meta.get("labels") or {}).get(LABEL_TENANT, "")
    try:
        key, fault = stored_key(key_id, base64.b64decode(value)), "" if tenant else "its Secret names no tenant"
    except ValueError as error:
        key, fault = None, str(error)
    return Found(meta["name"], tenant, key_id, key, fault, value)


def one_key(keys: list[Found], key_id: str, secret: str = "") -> Found:
    """The key with this id, in this Secret if one is named; CliError if there is none or more than one."""
    found = [key for key in keys if key.id == key_id and secret in ("", key.secret)]
    if len(found) > 1:
        names = ", ".join(f"{key.secret} (tenant {key.tenant})" for key in found)
        raise CliError(f"{len(found)} Secrets hold a key with the id {key_id!r}; name one by --secret: {names}")
    if not found:
        known = ", ".join(key.id for key in keys) or "none"
        holder = f"the Secret {secret!r} does not hold" if secret else "no Secret holds"
        raise CliError(f"{holder} a key with the id {key_id!r}; keys: {known}")
    return found[0]


def table(keys: list[Found], now: datetime) -> str:
    """For people."""
    rows = [("ID", "TENANT", "CREATED", "EXPIRES", "STATE"), *(_cells(key, now) for key in keys)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def _cells(key: Found, now: datetime) -> tuple[str, str, str, str, str]:
    if key.key is None or key.fault:
        return key.id, key.tenant, "", "", f"not used: {key.fault}"
    expires = _time(key.key.expires) if key.key.expires else "never"
    return key.id, key.tenant, _time(key.key.created), expires, "expired" if key.key.expired(now) else "valid"


def _row(key: Found) -> dict[str, Any]:
    stored = key.key.model_dump(mode="json", include={"created", "expires"}) if key.key else {}
    return {"id": key.id, "tenant": key.tenant, "secret": key.secret, **stored, **({"fault": key.fault} if key.fault else {})}


def _show(made: NewKey) -> None:
    """The key alone on stdout, so that a script can take it; what a person should know goes to stderr."""
    until = f" It expires at {_time(made.stored.expires)}." if made.stored.expires else ""
    typer.echo(f"Key {made.id}. Store it now: it is not shown again.{until}", err=True)
    print(made.text)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
