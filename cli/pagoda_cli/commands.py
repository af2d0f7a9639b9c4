"""All commands under one name. A new command is a module with a typer function and one line here. Called by `__main__`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer
from pagoda_sizing.errors import SizingError

from pagoda_cli import cost, doctor, explain, key, plan, validate, why
from pagoda_cli.errors import CliError

REFUSED = 2
INTERRUPTED = 130
# typer carries a click of its own or uses the installed one, by version: the class is taken from what typer exports.
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]


def application() -> typer.Typer:
    """The commands."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help="Pagoda on the command line.")
    app.callback()(_group)
    app.command("plan")(plan.command)
    app.command("cost")(cost.command)
    app.command("validate")(validate.command)
    app.command("why")(why.command)
    app.command("doctor")(doctor.command)
    app.command("explain")(explain.command)
    app.add_typer(key.commands(), name="key")
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"pagoda {version('pagoda')}")
        raise typer.Exit


def _group(
    _version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")] = False,
) -> None:
    """Pagoda on the command line."""


def run(arguments: Sequence[str]) -> int:
    """The exit code: 0 done, 2 refused with one line on stderr."""
    try:
        code = typer.main.get_command(application()).main(list(arguments) or ["--help"], prog_name="pagoda", standalone_mode=False)
    except (SizingError, CliError) as refused:
        return _refuse(str(refused))
    except typer.Abort:
        return INTERRUPTED
    except USAGE_ERROR as wrong:
        return _refuse(f"{_message(wrong)} See `pagoda --help`.")
    return code if isinstance(code, int) else 0


def _message(wrong: Exception) -> str:
    described = getattr(wrong, "format_message", None)
    return str(described()) if described else str(wrong)


def _refuse(message: str) -> int:
    print(f"pagoda: {' '.join(message.split())}", file=sys.stderr)
    return REFUSED
