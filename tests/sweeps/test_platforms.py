"""Clusters as providers make them × first services: the real scheduler gives each replica the nodes that placement meant, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import pytest
from support.harness.first_services import ALL, First
from support.harness.fleets import judge
from support.harness.zero_loss import api_server
from support.kube.namespace import Real

pytestmark = pytest.mark.sweep
BY_CLUSTER = {cluster: list(services) for cluster, services in groupby(sorted(ALL, key=lambda one: one.cluster), lambda one: one.cluster)}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    with api_server(tmp_path_factory.mktemp("cluster")) as (namespace, _):
        yield namespace


@pytest.mark.parametrize("services", BY_CLUSTER.values(), ids=BY_CLUSTER)
def test_the_scheduler_gives_replicas_the_nodes_that_placement_meant(real: Real, services: list[First]) -> None:
    judge(real, services)
