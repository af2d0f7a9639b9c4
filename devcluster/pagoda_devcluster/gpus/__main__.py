"""The process `gpu-plugin`, started inside the node by `up --gpu-layout`: device plugin, DRA driver and publisher in one loop."""

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from pagoda_devcluster.client.watching import AsyncApi
from pagoda_devcluster.cluster.spec import ClusterSpec, from_json
from pagoda_devcluster.gpus import devices, layout, wire
from pagoda_devcluster.gpus.claims import KUBELET_FOLDER, Driver
from pagoda_devcluster.gpus.plugin import offer
from pagoda_devcluster.gpus.publish import Publisher


async def play(spec: ClusterSpec) -> None:
    played = layout.stored(spec.paths.layout).kubelet_class
    resources = devices.resources_of(played, spec.node_name)
    api = AsyncApi(spec)
    publisher = Publisher(api, played, spec.node_name)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        await Driver(api, KUBELET_FOLDER, wire.dra(), wire.registration()).start(stack)
        group.create_task(offer(resources, KUBELET_FOLDER / "device-plugins"))
        group.create_task(publisher.keep_labels())
        group.create_task(publisher.keep_slice())


if __name__ == "__main__":
    asyncio.run(play(from_json((Path(sys.argv[1]) / "cluster.json").read_text())))
