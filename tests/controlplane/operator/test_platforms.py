"""Clusters as providers make them, one first service on each: the real scheduler is the judge. sweeps/test_platforms.py has all."""

import pytest
from support.harness.first_services import EACH
from support.harness.fleets import judge

pytestmark = pytest.mark.cluster


def test_the_scheduler_gives_replicas_the_nodes_that_placement_meant(real):
    judge(real, EACH)
