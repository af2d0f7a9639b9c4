"""The live view of a service: one line for every change of its condition, until it is Ready, Stalled or out of time."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pagoda_devcluster.cluster.errors import StartError
from pagoda_devcluster.demo.install import Cluster


class Line(NamedTuple):
    """What a person sees of one moment: the condition that matters, and whether the story ends with it."""

    reason: str
    message: str
    ready: bool
    stalled: bool


def line_of(service: dict[str, Any]) -> Line:
    """Stalled before Ready before Reconciling: the order in which kstatus reads conditions, the worst news first."""
    status = service.get("status", {})
    current = status.get("observedGeneration") == service["metadata"]["generation"]
    by_type = {condition["type"]: condition for condition in status.get("conditions", [])}
    for kind in ("Stalled", "Ready", "Reconciling"):
        condition = by_type.get(kind)
        if current and condition and condition["status"] == "True":
            return Line(condition["reason"], condition["message"], kind == "Ready", kind == "Stalled")
    return Line("Waiting", "the operator has not seen it yet", ready=False, stalled=False)


def documents(text: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON documents of a stream that `kubectl get --watch -o json` prints one after another, as soon as each is whole."""
    decoder, buffer = json.JSONDecoder(), ""
    for piece in text:
        buffer += piece
        if piece.rstrip("\n") != "}":  # a document ends with a brace at the start of a line
            continue
        found, end = decoder.raw_decode(buffer.lstrip())
        buffer = buffer.lstrip()[end:]
        yield found


def changes(services: Iterable[dict[str, Any]]) -> Iterator[Line]:
    """Lines that differ from the one before; ends after Ready or Stalled."""
    last = None
    for service in services:
        line = line_of(service)
        if line != last:
            yield line
        if line.ready or line.stalled:
            return
        last = line


def watch(cluster: Cluster, namespace: str, name: str, seconds: float) -> Iterator[Line]:
    """The service's changes as they happen; StartError where it is neither Ready nor Stalled in time."""
    argv = ["get", "inferenceservice", name, "-n", namespace, "--watch", "-o", "json"]
    kubectl = [str(cluster.bin / "kubectl"), "--kubeconfig", cluster.kubeconfig, *argv]
    with subprocess.Popen(kubectl, stdout=subprocess.PIPE, text=True) as process:
        alarm = threading.Timer(seconds, process.kill)
        alarm.start()
        ended = False
        try:
            for line in changes(documents(process.stdout or ())):
                ended = line.ready or line.stalled
                yield line
        finally:
            alarm.cancel()
            process.kill()
    if not ended:
        raise StartError(f"{namespace}/{name} was neither Ready nor Stalled after {seconds:.0f} s")
