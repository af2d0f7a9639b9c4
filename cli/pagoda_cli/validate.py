"""`pagoda validate FILE…`: the API server's verdict without a cluster, with file, line and path."""

from __future__ import annotations

import json
import sys
from typing import Annotated, NamedTuple

import typer
from pagoda_contracts.crds.validation import Problem, is_ours, judge

from pagoda_cli.documents import Document, documents, read
from pagoda_cli.errors import CliError


class Finding(NamedTuple):
    """One refusal in a file."""

    file: str
    line: int
    object: str
    path: str
    message: str


def command(
    named_files: Annotated[list[str] | None, typer.Argument(help="YAML or JSON files; - is standard input.", metavar="FILE...")] = None,
    more: Annotated[list[str] | None, typer.Option("--filename", "-f", help="The same, as kubectl takes it; may repeat.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Check objects as the API server would, and refuse unknown fields. The exit code is 2 if an object is refused."""
    files = [*(named_files or ()), *(more or ())]
    if not files:
        raise CliError("give at least one FILE")
    judged = [one for file in files for one in _judged(file)]
    findings = [finding for _, found in judged for finding in found]
    if not judged:
        raise CliError(f"no Pagoda object in {', '.join(files)}")
    if as_json:
        print(json.dumps({"objects": len(judged), "refused": [finding._asdict() for finding in findings]}, indent=2))
    else:
        for finding in findings:
            print(f"{finding.file}:{finding.line}: {finding.object}: {finding.path}{': ' if finding.path else ''}{finding.message}")
        for name in (name for name, found in judged if not found):
            print(f"{name}: valid")
    if findings:
        raise CliError(f"{sum(bool(found) for _, found in judged)} of {len(judged)} objects refused")


def _judged(file: str) -> list[tuple[str, list[Finding]]]:
    text = read(file, sys.stdin.read() if file == "-" else None)
    return [(named(one), findings(file, one)) for one in documents(file, text) if is_ours(one.value)]


def findings(file: str, document: Document) -> list[Finding]:
    """Every refusal of one object, in the order of lines."""
    twice = [Problem(path, "occurs twice in this map") for path in document.twice]
    problems = twice or list(judge(document.value))
    found = [Finding(file, document.line(one.path), named(document), one.where, one.message) for one in problems]
    return sorted(found, key=lambda finding: finding.line)


def named(document: Document) -> str:
    """Kind and name."""
    metadata = document.value.get("metadata")
    name = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, dict) else None
    return f"{document.value.get('kind')}/{name or '?'}"
