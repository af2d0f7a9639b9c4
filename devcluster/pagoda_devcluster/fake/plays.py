"""What a fake node or pod can be made to play, by annotation. Pure; an unknown word is shown where `kubectl` looks for trouble."""

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Object = dict[str, Any]
PREFIX = "devcluster.pagoda.dev"
PLAY = f"{PREFIX}/play"
PLAY_PODS = f"{PREFIX}/play-pods"
READY_AFTER = f"{PREFIX}/ready-after"
COMPLETE_AFTER = f"{PREFIX}/complete-after"
STOP_AFTER = f"{PREFIX}/stop-after"
READY, NOT_READY = "ready", "not-ready"


class PodPlay(StrEnum):
    """On a pod, or on a node (`play-pods`) for all its pods."""

    IMAGE_PULL_BACKOFF = "image-pull-backoff"
    CRASH_LOOP = "crash-loop"
    OOM_KILLED = "oom-killed"
    NEVER_READY = "never-ready"
    STUCK_TERMINATING = "stuck-terminating"


class NodePlay(StrEnum):
    """On a node."""

    NOT_READY = "not-ready"
    NO_DEVICES = "no-devices"


@dataclass(frozen=True)
class PodContext:
    """What one pod is to play, where, and how fast."""

    plays: frozenset[str]
    ready_after: float
    complete_after: float | None
    stop_after: float
    ip: str
    host_ip: str
    node_down: bool = False
    complaint: str = ""
    serves: bool = False
    """A front answers under the pod's address; readiness is then what the front says."""
    front: str | None = None
    """READY or NOT_READY while there is one."""


def annotation(found: Object, name: str) -> str:
    return str(found["metadata"].get("annotations", {}).get(name, ""))


def words(text: str) -> frozenset[str]:
    return frozenset(filter(None, (word.strip() for word in text.split(","))))


def node_plays(node: Object) -> frozenset[str]:
    return words(annotation(node, PLAY))


def pod_plays(pod: Object, node: Object) -> frozenset[str]:
    return words(annotation(pod, PLAY)) | words(annotation(node, PLAY_PODS))


def complaint_of(plays: frozenset[str], accepted: type[StrEnum]) -> str:
    """Empty where every word is known."""
    known = [play.value for play in accepted]
    unknown = sorted(plays - set(known))
    return f"unknown play {', '.join(unknown)}: it must be one of {', '.join(known)}" if unknown else ""


def drawn(seed: int, pod: Object, span: tuple[float, float]) -> float:
    """The same pod name draws the same time in every run."""
    name = f"{seed}/{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    return random.Random(name).uniform(*span)  # noqa: S311 - a play, not a secret


def seconds(pod: Object, name: str, otherwise: float) -> tuple[float, str]:
    """An annotated number of seconds, or what is wrong with it."""
    text = annotation(pod, name)
    if not text:
        return otherwise, ""
    try:
        number = float(text)
    except ValueError:
        number = -1
    return (number, "") if 0 <= number < float("inf") else (otherwise, f"{name} must be a number of seconds, got {text!r}")


def prints_version(pod: Object) -> bool:
    """A program that is only asked for its version ends, whatever it is."""
    return all((container.get("args") or [""])[-1] == "--version" for container in pod["spec"]["containers"])


def pod_context(pod: Object, node: Object, drawn_seconds: float, addresses: tuple[str, str]) -> PodContext:
    plays = pod_plays(pod, node)
    ready, ready_complaint = seconds(pod, READY_AFTER, drawn_seconds)
    complete, complete_complaint = seconds(pod, COMPLETE_AFTER, ready if prints_version(pod) else -1)
    stop, stop_complaint = seconds(pod, STOP_AFTER, 0)
    complaints = [complaint_of(plays, PodPlay), ready_complaint, complete_complaint, stop_complaint]
    return PodContext(
        plays=plays,
        ready_after=ready,
        complete_after=complete if complete >= 0 else None,
        stop_after=stop,
        ip=addresses[0],
        host_ip=addresses[1],
        node_down=NodePlay.NOT_READY.value in node_plays(node),
        complaint="; ".join(filter(None, complaints)),
    )
