"""The events of zero_loss.py. Each returns how often it struck, once the service is as it should be."""

from __future__ import annotations

import asyncio

from pagoda_contracts.names import ANNOTATION_DRAIN_DEADLINE, PATH_READY, PORT_DAEMON_HTTP
from pagoda_operator.api.state import PODS
from support.harness.zero_loss import REPLICAS, Place, names, revision
from support.judges.status_truth import is_ready
from support.kube.client import Body
from support.kube.fake_kubelet import Container, InLoop

# So long no old replica may begin to drain.
_WATCHED_S = 10


async def rolling_restarts(place: Place, times: int) -> int:
    """The spec changes, and all replicas are replaced."""
    for _ in range(times):
        old = await place.edit()
        await place.until(lambda old=old: place.settled() and not old & names(place.staying()), "the new revision alone")
    return times


async def reverted(place: Place) -> int:
    """The spec goes back when half of the replicas are new. They are replaced one at a time, and the third one does not get ready."""
    (before,) = {revision(pod) for pod in await asyncio.to_thread(place.staying)}
    admitted: set[str] = set()

    def waits(pod: Body) -> bool:
        if revision(pod) != before and len(admitted) < REPLICAS // 2:
            admitted.add(pod["metadata"]["name"])
        return revision(pod) != before and pod["metadata"]["name"] not in admitted

    place.waits = waits
    await asyncio.to_thread(place.real.edit, rollout={"strategy": "Replace"})
    await place.edit()

    def half() -> bool:
        return sum(is_ready(pod) for pod in place.staying() if revision(pod) != before) == REPLICAS // 2

    await place.until(half, "half of the replicas are new")
    await place.edit(back=1)
    place.waits = lambda _pod: False
    await place.until(lambda: place.settled() and revision(place.staying()[0]) == before, "the old revision alone")
    await asyncio.to_thread(place.real.edit, rollout={"strategy": "Auto"})
    return 1


async def kills_before_the_first_token(place: Place, times: int, least: int) -> int:
    """A replica dies with so many requests that got no token yet. One that stands still takes its place, and dies next."""
    place.stands_still = True
    first = (await asyncio.to_thread(place.staying))[0]["metadata"]["name"]
    await asyncio.to_thread(place.real.kube.delete, PODS, place.real.namespace, first)
    for number in range(times):
        pod, container = await standing_still(place, least)
        place.stands_still = number + 1 < times
        place.mark({f"{container.ip}:{PORT_DAEMON_HTTP}"})
        await die(place, pod, container)
    await place.until(place.settled, "all replicas")
    return times


async def standing_still(place: Place, least: int) -> tuple[Body, Container]:
    """The replica that stands still, once so many requests are there."""

    def look() -> tuple[Body, Container] | None:
        for pod in place.staying():
            container = place.container(pod)
            if container is not None and container.ip in place.engines.still and in_flight(container) >= least:
                return pod, container
        return None

    found: tuple[Body, Container] = await place.until(look, "requests at the replica that stands still")
    return found


def in_flight(container: Container) -> int:
    assert isinstance(container.running, InLoop)
    return container.running.front.front.replica.in_flight


async def die(place: Place, pod: Body, container: Container) -> None:
    """As after SIGKILL and the loss of its node: its connections break, and the pod is gone."""
    assert isinstance(container.running, InLoop)
    container.running.front.front.drop_connections()
    container.running.front.task.cancel()
    place.engines.still.pop(container.ip).set()
    await asyncio.to_thread(place.real.kube.delete, PODS, place.real.namespace, pod["metadata"]["name"], grace=0)
    await container.running.close()


async def gateways_restarted(place: Place, times: int, late: int) -> int:
    """Both gateways are replaced, each by one that is Ready first. So many connections still come to one that leaves."""
    for _ in range(times):
        for old in list(place.gateways):
            await asyncio.to_thread(place.add_gateway)
            place.mark(place.endpoints(await asyncio.to_thread(place.staying)))
            old.terminate()
            await place.until(lambda old=old: old.probe(PATH_READY) == 503, "it is not ready")
            await place.balancer.gives(old.http, late)
            place.balancer.backends.remove(old.http)
            old.terminate()  # its lame duck ends here
            assert await asyncio.to_thread(old.wait) == 0
            place.gateways.remove(old)
    return times * 2


async def unknown_to_a_gateway(place: Place, gateways: set[str]) -> int:
    """New replicas are Ready, and these gateways cannot hear them yet: no old replica drains before they can."""
    place.engines.deaf, place.engines.hear = {f"gateway/{one}" for one in gateways}, asyncio.Event()
    old = await place.edit()
    await place.until(lambda: sum(map(is_ready, place.staying())) == 2 * REPLICAS, "the new replicas are Ready")
    for _ in range(_WATCHED_S):
        await asyncio.sleep(1)
        pods = await asyncio.to_thread(place.staying)
        assert old <= names(pods), "an old replica went before every gateway had admitted the new ones"
        assert not [pod for pod in pods if ANNOTATION_DRAIN_DEADLINE in pod["metadata"].get("annotations", {})], "an old one drains"
    place.engines.hear.set()
    await place.until(lambda: place.settled() and not old & names(place.staying()), "the new revision alone")
    return 1
