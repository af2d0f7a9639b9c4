"""The operator's runs on a fake API server and caches of it, for unit tests: `show` is the watches, as late as a test wants them."""

from __future__ import annotations

import pytest
from pagoda_contracts.names import LABEL_SERVICE
from pagoda_operator.api.state import PODS, PROFILES, SERVICES, Key, Resource
from pagoda_operator.run.dependencies import Dependencies
from pagoda_operator.watch.caches import Caches
from pagoda_operator.watch.kept import OWN
from support.harness.harness import Harness
from support.harness.stubs import dependencies_with
from support.kube.fake_api import Body, copied, running


class Cached(Harness):
    """The fake API server and an operator that plans from its caches; `show` is the watches."""

    def restart(self) -> None:
        self.woken: list[tuple[Resource, Key]] = []
        self.caches = Caches(lambda resource, key, *_: self.woken.append((resource, key)))
        self.api.wrote = self.caches.wrote
        super().restart()

    def dependencies(self) -> Dependencies:
        return dependencies_with(self.api, caches=self.caches)

    def live(self, resource: Resource) -> list[Body]:
        bodies = [copied(body) for body in self.api.of(resource)]
        return [body for body in bodies if resource in (SERVICES, PROFILES) or LABEL_SERVICE in body["metadata"].get("labels", {})]

    def show(self, *resources: Resource) -> None:
        """The watches of these kinds (all, if none is named) catch up."""
        for resource in resources or OWN:
            live = self.live(resource)
            for body in live:
                self.caches.event(resource, body, gone=False)
            here = {Key(b["metadata"].get("namespace", ""), b["metadata"]["name"]) for b in live}
            for key in self.caches.of(resource).values().keys() - here:
                # A DELETED event bears a version of its own, newer than any before it.
                self.caches.of(resource).drop(key, str(next(self.api._numbers)))

    def make_ready(self) -> None:
        for pod in self.api.of(PODS):
            get_ready(self, pod)
        self.settle()

    def settle(self) -> None:
        for _ in range(30):
            before = len(self.api.journal), self.api.versions()
            self.show()
            again = self.run().again
            self.api.control()
            if again != 0 and before == (len(self.api.journal), self.api.versions()):
                return
        pytest.fail(f"not settled: {self.api.journal[-12:]}")


def get_ready(harness: Harness, pod: Body) -> None:
    pod["status"] = running(ready=True)
    harness.api._touch(pod)
