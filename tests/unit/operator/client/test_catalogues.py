"""Catalogues over a real gRPC port of a daemon's front: what the operator makes of each answer."""

from unittest.mock import patch

import pytest
from pagoda_contracts.launch import AdaptersConfig
from pagoda_contracts.names import GRPC_SET_ADAPTERS
from pagoda_daemon.api.access.caller import ROLE_ANYBODY
from pagoda_daemon.api.access.roles import METHODS
from pagoda_operator.api.adapters import CatalogueOrder, Entry, Phase
from pagoda_operator.api.errors import Superseded
from pagoda_operator.client.catalogues import Catalogues
from support.engine.adapter_files import write_adapter
from support.servers.adapter_sidecar import adapter_sidecar
from support.servers.local_front import local_config, local_front


def order(generation=1, uid="p"):
    entries = (Entry("a", "pvc://loras/one", "", "", False), Entry("b", "pvc://loras/none", "", "", False))
    return CatalogueOrder("pod", uid, "127.0.0.1", generation, entries)


async def until(catalogues, *phases):
    while True:
        (found,) = (await catalogues.give([order()])).values()
        if tuple(one.phase for one in found.values()) == phases:
            return found


async def test_progress_refusal_silence_and_a_later_leader_are_told_apart(tmp_path):
    write_adapter(tmp_path / "claims" / "loras" / "one", b"one")
    epoch = 3
    with patch.dict(METHODS, {GRPC_SET_ADAPTERS: frozenset((ROLE_ANYBODY,))}):
        async with adapter_sidecar(tmp_path / "claims", tmp_path / "store") as sidecar:
            config = local_config(tmp_path, adapters=AdaptersConfig(fetch_port=sidecar))
            async with local_front(config) as front:
                catalogues = Catalogues(lambda: epoch, port=front.ports.grpc)
                found = await until(catalogues, Phase.LOADED, Phase.FAILED)
                assert found["a"].digest.startswith("sha256:")
                assert "no such folder" in found["b"].reason
                assert await catalogues.give([order(generation=0)]) == {"p": None}  # an old one: sent again with a new generation
                epoch = 2
                with pytest.raises(Superseded, match="epoch 2 is over"):
                    await catalogues.give([order()])
                front.front._orders._fetch = None
                (refused,) = (await catalogues.give([order()])).values()
                assert refused["a"].phase is Phase.FAILED
                assert "takes no catalogue" in refused["a"].reason
    assert await catalogues.give([order()]) == {"p": None}
