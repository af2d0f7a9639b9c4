"""Which provider makes a cluster, and the route of `up` and `down` that both share.

Route of `up`: look → prerequisites → binaries → clear leftovers → begin → look again. `down` is the clearing of leftovers.
Choosing is pure: whether an engine answers is an argument.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rich.console import Console

from pagoda_devcluster.cluster.errors import MissingPrerequisiteError, StartError, StoppedError, UsageError
from pagoda_devcluster.cluster.locks import exclusive
from pagoda_devcluster.cluster.settings import Settings
from pagoda_devcluster.cluster.spec import KIND, NATIVE, ClusterSpec, Nodes
from pagoda_devcluster.gpus.layout import digest
from pagoda_devcluster.kind import run as kind
from pagoda_devcluster.machine import processes
from pagoda_devcluster.providers import native
from pagoda_devcluster.providers.status import Status, load_spec, settled, trouble
from pagoda_devcluster.render.request import Request


class Asked(StrEnum):
    """`--provider`."""

    AUTO = "auto"
    NATIVE = NATIVE
    KIND = KIND


@dataclass(frozen=True)
class Machine:
    """What the choice depends on: the version of the engine that answers (empty: none does), and whether this is Linux."""

    engine: str
    linux: bool


def choose(asked: Asked, nodes: Nodes, existing: str, machine: Machine) -> str:
    """`existing`: the provider of a cluster that has this name already; auto stays with it."""
    automatic = existing or (KIND if machine.engine and nodes is not Nodes.FAKE else NATIVE)
    chosen = automatic if asked is Asked.AUTO else asked.value
    if chosen == KIND and nodes is Nodes.FAKE:
        raise UsageError("--provider kind plays no fake nodes: use --provider native, which needs no root for them")
    if chosen == KIND and not machine.engine:
        raise MissingPrerequisiteError("no Docker engine answers: start one, or use --provider native")
    if chosen == NATIVE and not machine.linux:
        raise MissingPrerequisiteError("the native provider needs Linux: start a Docker engine, then --provider kind (unproven) will do")
    return chosen


def chosen(asked: Asked, settings: Settings, request: Request) -> str:
    """The engine is asked only where its answer matters."""
    spec = load_spec(settings.cluster(request.name))
    existing = spec.provider if spec else ""
    matters = asked is Asked.KIND or (asked is Asked.AUTO and existing != NATIVE)
    machine = Machine(kind.engine() if matters else "", sys.platform == "linux")
    return choose(asked, request.nodes, existing, machine)


@dataclass(frozen=True)
class Steps:
    """What differs between providers."""

    prepare: Callable[[Settings, Request, Console], None]
    binaries: Callable[[Settings, Console], Path]
    begin: Callable[[Settings, Request, Path, Console], None]


STEPS = {
    NATIVE: Steps(native.prepare, native.binaries, native.begin),
    KIND: Steps(kind.prepare, kind.binaries, kind.begin),
}


def up(provider: str, settings: Settings, request: Request, console: Console) -> Status:
    try:
        return _up(provider, settings, request, console)
    except KeyboardInterrupt as stopped:
        raise StoppedError(f"stopped before anything of {request.name} was started: run the same command to go on") from stopped


def _up(provider: str, settings: Settings, request: Request, console: Console) -> Status:
    steps, name = STEPS[provider], request.name
    with _locked(settings, name, console):
        found = settled(settings, name)
        if found.up:
            refuse_another(found, request, provider)
            console.print(f"{name} is already up")
            return found
        if found.spec:
            console.print(f"{name} is there but {trouble(found)}: starting it anew")
        steps.prepare(settings, request, console)
        folder = steps.binaries(settings, console)
        native.clear(settings, name)
        try:
            steps.begin(settings, request, folder, console)
            return confirmed(settled(settings, name))
        except KeyboardInterrupt as stopped:
            raise remove_begun(settings, name, console) from stopped


def remove_begun(settings: Settings, name: str, console: Console) -> StoppedError:
    """After Ctrl-C; under the lock, whose file goes too. A failed `up` is left as it is: its logs say why."""
    console.print(f"removing what had begun of {name} …")
    try:
        native.clear(settings, name)
    except KeyboardInterrupt:
        return half_removed(name)
    settings.lock(name).unlink(missing_ok=True)
    return StoppedError(f"stopped, and what had begun of {name} is removed: run `pagoda-devcluster up --name {name}` to start again")


def down(settings: Settings, name: str, console: Console) -> list[str]:
    """What was removed."""
    try:
        with _locked(settings, name, console, remove=True):
            return native.clear(settings, name)
    except KeyboardInterrupt as stopped:
        raise half_removed(name) from stopped


def half_removed(name: str) -> StoppedError:
    return StoppedError(f"stopped before all of {name} was removed: run `pagoda-devcluster down --name {name}`")


def down_if_dead(settings: Settings, name: str, console: Console) -> list[str]:
    """For `prune`: looks again under the lock, because it may have been started since."""
    with _locked(settings, name, console, remove=True):
        alive = processes.of_cluster(settings.cluster(name)) or lives_elsewhere(load_spec(settings.cluster(name)))
        return [] if alive else native.clear(settings, name)


def lives_elsewhere(spec: ClusterSpec | None) -> bool:
    """A kind cluster has no process that carries a mark. While no engine answers, its state is unknown, and it is left alone."""
    if spec is None or spec.provider != KIND:
        return False
    return not kind.engine() or None not in kind.look(spec).pids.values()


def refuse_another(found: Status, request: Request, provider: str) -> None:
    """A cluster that runs may be in use: another one of that name does not replace it."""
    if found.spec is None:
        return
    runs = ""
    if (found.spec.nodes, found.spec.fakes, found.spec.serve) != (request.nodes, request.fakes, request.serve):
        runs = f"{found.name} runs with --nodes {found.spec.nodes_text}"
    elif request.layout and found.spec.layout != digest(request.layout):
        runs = f"{found.name} runs with another GPU layout"
    elif found.spec.provider != provider:
        runs = f"{found.name} runs with --provider {found.spec.provider}"
    if runs:
        raise UsageError(f"{runs}: `pagoda-devcluster down --name {found.name}` first, or choose another --name")


def confirmed(found: Status) -> Status:
    if not found.up:
        raise StartError(f"{found.name} came up and is not healthy: {trouble(found)}")
    return found


def _locked(settings: Settings, name: str, console: Console, remove: bool = False) -> AbstractContextManager[None]:
    return exclusive(settings.lock(name), lambda: console.print(f"another command works on {name}: waiting for it"), remove)
