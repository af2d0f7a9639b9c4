"""One observation reads the service, its profile and its children; of a service that is gone it reads nothing else."""

import pytest
from pagoda_operator.api.state import CHILD_RESOURCES, PODS, PROFILES, SERVICES, Key
from pagoda_operator.watch.observe import observe

KEY = Key("ns", "chat")
META = {"name": "chat", "namespace": "ns", "uid": "u", "resourceVersion": "1", "generation": 1}


class Asked:
    """A reader that notes what it is asked for, and knows the service alone."""

    def __init__(self, body):
        self.body, self.kinds = body, []

    async def get(self, resource, *_):
        self.kinds.append(resource)
        return self.body if resource == SERVICES else None

    async def list(self, resource, *_):
        self.kinds.append(resource)
        return []


async def test_a_service_is_read_with_its_profile_and_all_of_its_children():
    reader = Asked({"metadata": META, "spec": {}})
    found = await observe(reader, KEY)
    assert found.meta.uid == "u"
    assert sorted(kind.kind for kind in reader.kinds) == sorted(kind.kind for kind in (SERVICES, PROFILES, PODS, *CHILD_RESOURCES))


@pytest.mark.parametrize("body", [None, {"metadata": META | {"deletionTimestamp": "2026-11-22T00:00:00Z"}}])
async def test_for_a_deleted_or_terminating_service_nothing_else_is_read(body):
    reader = Asked(body)
    assert await observe(reader, KEY) is None
    assert reader.kinds == [SERVICES]
