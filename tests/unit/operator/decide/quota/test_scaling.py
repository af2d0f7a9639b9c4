"""Quota and scaling on devices: what a replica needs depends on how many there will be, and what may be had is asked for that."""

from __future__ import annotations

from pagoda_operator.api.caps import Quota
from pagoda_operator.quota.keeper import Quotas
from pagoda_operator.run.dependencies import Dependencies
from support.harness.inventories import H100, TINY, cut, inventory, mig, node
from support.harness.scaled import ScaledHarness
from support.harness.stubs import dependencies_with

# The smallest slices have room for one replica, the next ones for three.
SLICES = {"p1g_10gb": 1, "p2g_20gb": 3}
MOST = Quota("team", frozenset({"ns"}), {"mig-2g.20gb": 2})


class CappedHarness(ScaledHarness):
    """`Auto` at once wants three; spec.replicas says one."""

    def dependencies(self) -> Dependencies:
        quotas = Quotas(self.api, lambda: [MOST], lambda _: None, lambda: 0.0)
        return dependencies_with(self.api, signals=self.gateways, scaling=self.scaler, inventory=lambda: self.inventory, quota=quotas)


def test_quota_is_asked_for_the_devices_that_scaling_leads_to() -> None:
    engine = {"maxModelLen": 4096, "maxConcurrency": 8}
    scaling = {"mode": "Auto", "min": 3, "max": 8}
    here = CappedHarness(scaling=scaling, replicas=1, engine=engine, accelerators=[mig(least="1Gi")], model={"uri": TINY})
    here.inventory = inventory(node("a", H100, cut(1, **SLICES)))
    here.settle()
    assert here.observed().status.placement.device.startswith("mig-2g.20gb")
    assert here.wanted() == 2
    assert "the quota allows 2" in here.reported()["reason"]


def test_a_forecast_is_not_stored() -> None:
    here = ScaledHarness(scaling={"mode": "Auto", "min": 1, "max": 8}, replicas=1, engine={"maxConcurrency": 16})
    here.settle()
    here.serve()
    here.gateways.rate = 6.0
    here.flow(60)
    kept = dict(here.scaler._kept)
    foreseen = [here.scaler.foresee(key, here.observed()) for key in kept for _ in range(3)]
    assert {seen.scaling.replicas for seen in foreseen} == {here.wanted()}
    assert here.scaler._kept == kept
