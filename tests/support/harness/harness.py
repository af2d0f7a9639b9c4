"""The operator's runs on a fake API server, for unit tests: a service, its profile, and the cluster that changes in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pagoda_operator.api.state import PODS, PROFILES, SERVICES, Key, Observed, Resource
from pagoda_operator.decide.plan import Plan, plan
from pagoda_operator.run.dependencies import Dependencies, Quotas
from pagoda_operator.run.queue import Outcome
from pagoda_operator.run.reconcile import Reconciler
from pagoda_operator.run.settings import Settings
from pagoda_operator.watch.kept import key_of
from pagoda_operator.watch.observe import Ages, observe
from pagoda_operator.watch.triggers import NameOwners
from pagoda_placement.fit import Size
from pagoda_placement.inventory import Inventory
from support.harness.stubs import NoDaemons, NoQuotas, Silence, dependencies_with
from support.kube.fake_api import FakeApi, copied, finish, profile_body, running, service_body

KEY = Key("ns", "tiny")
# What API servers held after the first steps of a test, by harness and by those steps.
_WORLDS: dict[tuple[type, str], bytes] = {}


def now() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC)


class Harness:
    """A fake API server and the operator's own runs on it. A subclass with more in it says what the operator observes (`dependencies`).
    `settings`: of the next process."""

    settings = Settings()

    def __init__(self, **spec: Any) -> None:
        self.api = FakeApi()
        self.api.put(PROFILES, profile_body())
        self.api.put(SERVICES, service_body(**spec))
        self.later = timedelta()
        self.inventory = Inventory()
        self.sizes: tuple[Size, ...] = ()
        self.daemons: Any = NoDaemons()
        self.signals: Any = Silence()
        self.quota: Quotas = NoQuotas()
        self.restart()

    def tick(self) -> None:
        """Time passes."""
        self.later += timedelta(minutes=1)

    def steady(self) -> float:
        return self.later.total_seconds()

    def restart(self) -> None:
        """A new process: nothing is remembered."""
        self.name_owners, self.named = NameOwners(), set[Key]()
        dependencies = replace(self.dependencies(), name_owners=self.name_owners, ages=Ages(self.steady))
        self.operator = Reconciler(self.api, self.settings, lambda: now() + self.later, dependencies)

    def dependencies(self) -> Dependencies:
        return dependencies_with(
            self.api,
            daemons=self.daemons,
            signals=self.signals,
            quota=self.quota,
            inventory=lambda: self.inventory,
            sizes=lambda: self.sizes,
        )

    def observed(self) -> Observed:
        found = finish(observe(self.api, KEY))
        assert found is not None
        return replace(found, inventory=self.inventory, sizes=self.sizes, now=(now() + self.later).timestamp())

    def plan(self) -> Plan:
        return plan(self.observed())

    def run(self, key: Key = KEY) -> Outcome:
        self.report_names()
        return finish(self._reconciled(key))

    async def _reconciled(self, key: Key) -> Outcome:
        outcome = await self.operator.reconcile(key)
        await self.operator._dependencies.events.write_pending()
        return outcome

    def report_names(self) -> None:
        """The watch of services has told who wants and holds which names."""
        services = {key_of(body): body for body in self.api.of(SERVICES)}
        for body in services.values():
            self.name_owners.put(copied(body))
        for key in self.named - services.keys():
            self.name_owners.drop(key)
        self.named = {*services}

    def settle(self) -> None:
        """Runs and the Deployment controller in turn, until both are quiet."""
        for _ in range(20):
            before = len(self.api.journal), self.api.versions()
            again = self.run().again
            self.api.control()
            if again != 0 and before == (len(self.api.journal), self.api.versions()):
                return
        pytest.fail(f"not settled: {self.api.journal[-12:]}")

    def begin(self, what: str, steps: Callable[[], object]) -> None:
        """A world that `steps` make of this new one. Made once: whoever begins with the same finds it as it was, and an operator that has
        seen it once."""
        if (kept := _WORLDS.get((type(self), what))) is None:
            steps()
            _WORLDS[type(self), what] = self.api.kept()
        else:
            self.api.become(kept)
            self.run()

    def make_ready(self) -> None:
        for pod in self.api.of(PODS):
            self.api.report(pod, running(ready=True))
        self.settle()

    def edit(self, **spec: Any) -> None:
        self.api.edit(SERVICES, "ns", "tiny", lambda body: body["spec"].update(spec))

    def names(self, resource: Resource) -> list[str]:
        return sorted(body["metadata"]["name"] for body in self.api.of(resource))

    def reason(self) -> str:
        return str(self.conditions()["Ready"]["reason"])

    def conditions(self) -> dict[str, Any]:
        return {condition["type"]: condition for condition in self.api.of(SERVICES)[0]["status"]["conditions"]}
