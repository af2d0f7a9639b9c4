"""How far a replica is on its way, in a reason and a sentence; and foreign texts as one line. Pure; called by `status`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from pagoda_contracts.conditions.service import (
    CONTAINER,
    CRASH_LOOPING,
    FETCHING_MODEL,
    IMAGE_PULL,
    LOADING_MODEL,
    PULLING_IMAGE,
    SCHEDULING,
)
from pagoda_contracts.conditions.types import Reason

from pagoda_operator.api.pods import Pod, fetch_message

_MAX_MESSAGE: Final = 1000
_BACK_OFF: Final = re.compile(r'^(Back-off pulling image "[^"]*": )?(\w*ImagePull\w*: )?')
_IMAGE_REASONS: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})


def clean(text: str) -> str:
    """A foreign text as one printable line."""
    printable = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(printable.split())[:_MAX_MESSAGE]


def _crashing(pod: Pod) -> tuple[Reason, str] | None:
    if pod.exit_code is None or (pod.running and pod.restarts == 0):
        return None
    why = clean(pod.exit_message) or pod.exit_reason or "no reason given"
    return CRASH_LOOPING, f"{pod.name} ended with exit code {pod.exit_code}: {why}"


def _unscheduled(pod: Pod) -> tuple[Reason, str] | None:
    return (SCHEDULING, f"{pod.name}: {pod.unscheduled}") if pod.unscheduled else None


def _image(pod: Pod) -> tuple[Reason, str] | None:
    if pod.waiting not in _IMAGE_REASONS:
        return None
    # ErrImagePull and ImagePullBackOff alternate with each try: the common part of their messages stays the same.
    return IMAGE_PULL, f"{pod.name}: {_BACK_OFF.sub('', pod.waiting_message) or pod.waiting}"


def _container(pod: Pod) -> tuple[Reason, str] | None:
    if not pod.waiting or pod.waiting in ("ContainerCreating", "PodInitializing", "CrashLoopBackOff"):
        return None
    return CONTAINER, f"{pod.name}: {pod.waiting}: {pod.waiting_message}"


def _starting(pod: Pod) -> tuple[Reason, str] | None:
    if pod.running or pod.fetching.busy:
        return None
    if not pod.scheduled:
        return SCHEDULING, f"{pod.name} has no node yet"
    return PULLING_IMAGE, f"{pod.name} pulls its image and mounts its volumes"


def _fetching(pod: Pod) -> tuple[Reason, str] | None:
    return (FETCHING_MODEL, fetch_message(pod.name, pod.fetching)) if pod.fetching.busy else None


def _loading(pod: Pod) -> tuple[Reason, str] | None:
    return LOADING_MODEL, f"{pod.name} loads the model"


# Bad news first, then the least advanced.
STAGES: Final[tuple[Callable[[Pod], tuple[Reason, str] | None], ...]] = (
    _crashing,
    _unscheduled,
    _image,
    _container,
    _starting,
    _fetching,
    _loading,
)
