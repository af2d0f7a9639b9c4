"""The commands that look at what is there and tidy it up: `audit`, `logs`, `prune`. Called by `__main__`, which registers them."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pagoda_devcluster.binaries import build, recipe
from pagoda_devcluster.client import audit, schemas
from pagoda_devcluster.client.api import Api
from pagoda_devcluster.cluster.errors import MissingPrerequisiteError, NotRunningError, UsageError
from pagoda_devcluster.cluster.settings import Settings, from_environment
from pagoda_devcluster.cluster.spec import KIND, ClusterSpec
from pagoda_devcluster.machine.processes import last_lines
from pagoda_devcluster.providers import prune
from pagoda_devcluster.providers.status import all_processes, load_spec, require_running

Name = Annotated[str, typer.Option("--name", help="Which cluster; two names run side by side.")]


def register(app: typer.Typer) -> None:
    app.command("audit")(show_audit)
    app.command("logs")(show_logs)
    app.command("prune")(run_prune)
    app.command("schemas")(write_schemas)


def show_audit(
    name: Name = "dev",
    since: Annotated[str | None, typer.Option(help="90s, 5m or 2h ago, epoch seconds, or an RFC 3339 time.")] = None,
    user: Annotated[str | None, typer.Option(help="As the API server names it, e.g. system:serviceaccount:NAMESPACE:NAME.")] = None,
    verbs: Annotated[str, typer.Option(help="write (refused ones too, no dry runs), read, all, or verbs with commas between.")] = "write",
    count: Annotated[bool, typer.Option("--count", help="Print the number only.")] = False,
    as_document: Annotated[bool, typer.Option("--json", help="One event a line, as in the log.")] = False,
) -> None:
    """Print what the API server was asked to do, and how often: the number stands on stderr, with --count on stdout."""
    chosen_verbs, start = audit.parse_verbs(verbs), audit.parse_since(since, datetime.now(UTC)) if since else None
    log = spec_of(from_environment(), name).paths.audit_log
    if not log.exists():
        raise NotRunningError(f"{name} has no audit log yet: run `pagoda-devcluster up --name {name}`")
    with log.open() as lines:
        events = audit.select(lines, user, start, chosen_verbs)
    if count:
        print(len(events))
        return
    for event in events:
        print(json.dumps(event) if as_document else audit.line_of(event))
    stderr().print(f"{len(events)} events")


def show_logs(
    process: Annotated[str | None, typer.Argument(help="Which process; without it, a line for each.")] = None,
    name: Name = "dev",
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many of the last lines.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
) -> None:
    """Print a process's log, also of a cluster that died. Without a process: each one's last complaint."""
    spec = spec_of(from_environment(), name)
    if spec.provider == KIND:
        raise UsageError(f"a kind cluster keeps its logs in its container: `kind export logs --name {spec.context}` fetches them")
    if process is None:
        show_all_logs(spec)
        return
    names = [one.name for one in all_processes(spec)]
    if process not in names:
        raise UsageError(f"{name} has no process {process!r}. Its processes are {', '.join(names)}")
    file = spec.paths.log(process)
    if not file.exists():
        raise NotRunningError(f"{process} of {name} has not been started: there is no {file}")
    if follow:
        os.execvp("tail", ["tail", "-n", str(lines), "-F", str(file)])  # noqa: S606 - no shell is meant
    print("\n".join(file.read_text(errors="replace").splitlines()[-lines:]))


def show_all_logs(spec: ClusterSpec) -> None:
    for process in all_processes(spec):
        file = spec.paths.log(process.name)
        text = file.read_text(errors="replace") if file.exists() else ""
        print(f"{process.name}: {len(text.splitlines())} lines, {file}")
        if last := last_lines(text):
            print(f"  {last[:300]}")


def run_prune(dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False) -> None:
    """Remove clusters of which nothing runs any more, and binaries that neither this checkout nor any cluster uses."""
    settings = from_environment()
    prunable = prune.decide(prune.look(settings), current_binaries(settings))
    word = "would remove" if dry_run else "removed"
    sizes = {folder: prune.size_of(folder) for folder in prunable.binaries}
    if not dry_run:
        prunable = prune.remove(settings, prunable, stderr())
    for name in prunable.clusters:
        print(f"{word} cluster {name}")
    for folder in prunable.binaries:
        print(f"{word} {folder} ({sizes[folder] >> 20} MiB)")
    if not (prunable.clusters or prunable.binaries):
        print("nothing to prune")


def write_schemas(folder: Annotated[Path, typer.Argument(metavar="DIR", help="Made if missing.")], name: Name = "dev") -> None:
    """Write a JSON schema of every kind the cluster serves, installed CRDs too. Prints the options that kubeconform needs."""
    spec = require_running(from_environment(), name)
    if spec.provider == KIND:
        raise UsageError("schemas are read with a key that kind keeps to itself: use --provider native")
    with Api(spec) as api:
        count = schemas.write(api, folder)
    stderr().print(f"{count} schemas")
    print(f"{folder.resolve()}/{schemas.TEMPLATE}")


def current_binaries(settings: Settings) -> Path | None:
    try:
        return build.folder_of(recipe.of_checkout(), settings.binaries)
    except MissingPrerequisiteError:
        return None


def spec_of(settings: Settings, name: str) -> ClusterSpec:
    """Of a cluster up or down, as long as its folder is there."""
    found = load_spec(settings.cluster(name))
    if found is None:
        raise NotRunningError(f"no cluster {name!r} is there: run `pagoda-devcluster up --name {name}`")
    return found


def stderr() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
