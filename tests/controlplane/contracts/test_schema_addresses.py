"""Schemas as `pagoda-devcluster schemas` asks for them: from addresses that change whenever a CRD is made."""

import pytest
from pagoda_devcluster.client.api import Api
from pagoda_devcluster.cluster.settings import from_environment
from pagoda_devcluster.providers.status import require_running

pytestmark = pytest.mark.cluster


def test_a_schema_that_changed_since_the_index_was_read_is_still_found(cluster):
    with Api(require_running(from_environment(), cluster.name)) as api:
        now = api.get("/openapi/v3")["paths"]["apis/apps/v1"]["serverRelativeURL"]
        before = f"{now.partition('?')[0]}?hash={'0' * 128}"
        assert api.get(before) == api.get(now)
