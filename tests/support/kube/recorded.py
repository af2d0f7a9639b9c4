"""Everything that happened to a namespace's objects, in order, as an admin's watches saw it. Judged by invariants.py."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import httpx
from pagoda_operator.api.state import QUOTAS, Resource
from support.kube.client import Body, Kube

PATIENCE_S = 300.0


@dataclass(frozen=True)
class Event:
    """`kind` of the object, `change` ADDED, MODIFIED or DELETED."""

    at: float
    kind: str
    change: str
    body: Body

    @property
    def version(self) -> int:
        return int(self.body["metadata"]["resourceVersion"])


class Recorder:
    """One watch per kind, from before the first object until closed."""

    def __init__(self, kube: Kube, namespace: str, resources: tuple[Resource, ...]) -> None:
        self.events: list[Event] = []
        self.failures: list[Exception] = []
        self._kube, self._namespace = kube, namespace
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, args=(resource,), name=resource.plural, daemon=True) for resource in resources
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self.failures += [TimeoutError(f"{thread.name} goes on") for thread in self._threads if thread.is_alive()]
        if self.failures:
            raise ExceptionGroup("the recorder's own", self.failures)

    def ordered(self) -> list[Event]:
        """By the order in which the API server stored them; what a broken watch told twice, once."""
        once = {(event.kind, event.change, event.version, event.body["metadata"]["uid"]): event for event in self.events.copy()}
        return sorted(once.values(), key=lambda event: event.version)

    def _follow(self, resource: Resource) -> None:
        """From list to list, which at the end says what there is whatever a watch did not come to tell."""
        follower, last = Follower(self._kube, resource, "" if resource == QUOTAS else self._namespace, self.events.append), False
        refused = 0.0  # since when: one that has just begun, or whose store has, answers 4xx and 5xx for a while
        while not last:
            last = self._closing.is_set()  # then once more: what happened before the end is sent before that watch ends
            try:
                follower.step()
                if last:
                    follower.look()
                refused = 0.0
            except (httpx.TransportError, ValueError):
                last = False  # the server is away, in the middle of a line even: that is what some tests are about
                time.sleep(0.2)
            except AssertionError as error:
                last, refused = False, refused or time.monotonic()
                if time.monotonic() > refused + PATIENCE_S / 2:
                    self.failures.append(error)
                    return
                time.sleep(0.2)
            except Exception as error:  # noqa: BLE001 - said at the end, where a test hears it
                self.failures.append(error)
                return


class Follower:
    """One kind: what is there, from watches; and from a list where the server has forgotten the version that a watch would go on from."""

    def __init__(self, kube: Kube, resource: Resource, namespace: str, report: Callable[[Event], None]) -> None:
        self._kube, self._resource, self._namespace, self._report = kube, resource, namespace, report
        self._there: dict[str, Body] = {}
        self._version = ""

    def step(self) -> None:
        """One watch, a few seconds long."""
        if not self._version:
            self.look()
        for line in self._kube.watch(self._resource, self._namespace, self._version, seconds=2):
            event: dict[str, Any] = json.loads(line)
            if event.get("type", "ERROR") == "ERROR":
                self._version = ""
                return
            self._version = event["object"]["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                self._note(event["type"], event["object"])

    def look(self) -> None:
        """What exists and was not reported, or is gone and was not reported."""
        items, version = self._kube.listed(self._resource, self._namespace)
        here = {body["metadata"]["uid"]: body for body in items}
        for uid, body in here.items():
            known = self._there.get(uid)
            if known is None or known["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
                self._note("ADDED" if known is None else "MODIFIED", body)
        for body in [body for uid, body in self._there.items() if uid not in here]:
            self._note("DELETED", body | {"metadata": body["metadata"] | {"resourceVersion": version}})
        self._version = version

    def _note(self, change: str, body: Body) -> None:
        if change == "DELETED":
            self._there.pop(body["metadata"]["uid"], None)
        else:
            self._there[body["metadata"]["uid"]] = body
        self._report(Event(time.monotonic(), self._resource.kind, change, body))
