"""The process `fake-kubelet`: started by `up --nodes fake:N`, plays all fake nodes of one cluster until it is killed."""

import asyncio
import sys
from pathlib import Path

from pagoda_devcluster.client.watching import AsyncApi, insist
from pagoda_devcluster.cluster.spec import ClusterSpec, from_json
from pagoda_devcluster.fake.fronts import Fronts
from pagoda_devcluster.fake.kubelet import FakeKubelets
from pagoda_devcluster.fake.nodes import fake_nodes
from pagoda_devcluster.gpus import layout


async def play(spec: ClusterSpec) -> None:
    api = AsyncApi(spec)
    played = layout.stored(spec.paths.layout)
    version = (await insist(lambda: api.get("/version")) or {})["gitVersion"]
    fronts = Fronts(spec.paths.fronts, api) if spec.serve else None
    await FakeKubelets(api, fake_nodes(spec, played), played, version, fronts).run()


if __name__ == "__main__":
    asyncio.run(play(from_json((Path(sys.argv[1]) / "cluster.json").read_text())))
