"""`pagoda explain [REASON]`: what a condition's reason means and what to do. Reads pagoda_contracts.conditions; needs no cluster."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from pagoda_contracts.conditions.table import named, reasons, similar
from pagoda_contracts.conditions.types import Reason

from pagoda_cli.errors import CliError


def command(
    reason: Annotated[str, typer.Argument(help="A reason such as NoAccelerator. Without one, all are listed.", metavar="[REASON]")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Say what a reason in status.conditions means and what to do about it. `pagoda why NAME` shows the reasons of a service."""
    found = found_by(reason) if reason else reasons()
    if as_json:
        print(json.dumps([_plain(one) for one in found], indent=2))
    else:
        print("\n\n".join(map(page, found)) if reason else "\n".join(map(line, found)))


def found_by(name: str) -> tuple[Reason, ...]:
    """The reasons of that name; CliError with the closest names and the list if there is none."""
    if found := named(name):
        return found
    close = similar(name)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    known = ", ".join(sorted({reason.name for reason in reasons()}))
    raise CliError(f"{name!r} is not a reason of Pagoda.{hint} If it is a service: `pagoda why {name}`. Reasons: {known}")


def page(reason: Reason) -> str:
    """One reason, for people."""
    fixed = "yes" if reason.person_only else "no"
    return (
        f"{reason.name} ({reason.condition.name} of {reason.kind})\n"
        f"  {reason.meaning}\n"
        f"  What to do: {reason.action}\n"
        f"  Only a person can fix it: {fixed}"
    )


def line(reason: Reason) -> str:
    """One reason in a list: its name, where it stands, and the first sentence of its meaning."""
    return f"{reason.name:<22} {reason.condition.name:<12} {reason.kind:<17} {reason.meaning.split('. ')[0].rstrip('.')}."


def _plain(reason: Reason) -> dict[str, Any]:
    fields = asdict(reason) | {"condition": reason.condition.name}
    return {"personOnly" if name == "person_only" else name: value for name, value in fields.items()}
