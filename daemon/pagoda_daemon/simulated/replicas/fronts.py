"""`pagoda-daemon simulate-fronts --control SOCKET`: plays the replicas of a cluster whose nodes run no containers, all in one process.

The process that plays the nodes starts and ends replicas over HTTP on a Unix socket; each gets an address of its own, and there speaks
every wire of a real one: OpenAI API and metrics, state over gRPC, probes. The ports are its DaemonConfig's. Nothing here knows Kubernetes.

    GET /replicas                      every replica: address, phase, whether /readyz says yes and why, requests in flight
    PUT /replicas/ID                   {"address", "config", "load_s"}: runs it, or confirms that it does; 422: its configuration is
                                       impossible; 409: the address is another one's still
    DELETE /replicas/ID[?kill=true]    drains it as SIGTERM does, or ends it as SIGKILL does; gone from the list when it has ended
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import signal
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import structlog
import uvicorn
import uvloop
from pagoda_contracts.launch import DaemonConfig
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pagoda_daemon.api.front.front import UnsignalledServer
from pagoda_daemon.core.errors import ConfigRejected, PermanentError
from pagoda_daemon.process.settings import SIMULATE_FRONTS
from pagoda_daemon.simulated.replicas.replica import SimulatedReplica, Wanted
from pagoda_daemon.simulated.replicas.text import tiny_model_dir
from pagoda_daemon.text.tokens import ModelText

log = structlog.get_logger()


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a PUT."""

    address: str
    config: dict[str, Any]
    load_s: float = 0.0


class Fronts:
    """All replicas of this process."""

    def __init__(self, text: ModelText) -> None:
        self._text = text
        self._replicas: dict[str, SimulatedReplica] = {}

    def application(self) -> Starlette:
        routes = [
            Route("/replicas", self._list, methods=["GET"]),
            Route("/replicas/{name}", self._put, methods=["PUT"]),
            Route("/replicas/{name}", self._delete, methods=["DELETE"]),
        ]
        return Starlette(routes=routes)

    async def close(self) -> None:
        for replica in self._replicas.values():
            replica.kill()
        await asyncio.gather(*(replica.wait() for replica in self._replicas.values()))

    def _living(self) -> dict[str, SimulatedReplica]:
        """One that failed stays, so that its failure can be read; one that was told to end and did is forgotten."""
        self._replicas = {name: one for name, one in self._replicas.items() if one.failure or not one.ended}
        return self._replicas

    async def _list(self, _request: Request) -> Response:
        return _json({name: _view(replica) for name, replica in self._living().items()})

    async def _put(self, request: Request) -> Response:
        name: str = request.path_params["name"]
        try:
            wanted = parse(await request.body())
            found = self._living().get(name)
            if found is None:
                if taken(wanted.address, self._replicas.values()):
                    return _json({"reason": "AddressTaken", "message": f"another replica is on {wanted.address} still"}, 409)
                found = self._replicas[name] = SimulatedReplica(wanted, self._text)
                log.info("replica_started", name=name, address=wanted.address, load_s=round(wanted.load_s, 3))
            elif found.wanted.address != wanted.address:
                raise ConfigRejected(f"{name} is on {found.wanted.address} already")
        except PermanentError as error:
            return _json({"reason": error.reason, "message": str(error)}, 422)
        return _json(_view(found))

    async def _delete(self, request: Request) -> Response:
        name: str = request.path_params["name"]
        found = self._living().get(name)
        if found is None:
            return _json({"reason": "NotFound", "message": f"no replica {name}"}, 404)
        if found.failure:
            del self._replicas[name]
        elif request.query_params.get("kill") == "true":
            found.kill()
        else:
            found.stop()
        return _json(_view(found), 202)


def parse(body: bytes) -> Wanted:
    """ConfigRejected names the field that is wrong."""
    try:
        order = msgspec.json.decode(body, type=Order)
        return Wanted(order.address, DaemonConfig.model_validate(order.config), order.load_s)
    except msgspec.DecodeError as error:
        raise ConfigRejected(f"the order: {error}") from error
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigRejected(f"config.{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def taken(address: str, others: Iterable[SimulatedReplica]) -> bool:
    return any(other.wanted.address == address and not other.ended for other in others)


def _view(replica: SimulatedReplica) -> dict[str, object]:
    ready, why = replica.ready
    return {"address": replica.wanted.address, "phase": replica.phase, "ready": ready, "why": why, "failure": replica.failure}


def _json(payload: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(payload), status, media_type="application/json")


def run(argv: Sequence[str]) -> None:
    """Until SIGTERM."""
    parser = argparse.ArgumentParser(
        prog=f"pagoda-daemon {SIMULATE_FRONTS}", description="Plays many replicas, each on an address of its own."
    )
    parser.add_argument("--control", type=Path, required=True, metavar="SOCKET", help="where replicas are ordered and ended, over HTTP")
    arguments = parser.parse_args(argv)
    arguments.control.unlink(missing_ok=True)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a replica has about ten files; 1024 would end at a hundred of them
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, tempfile.TemporaryDirectory(prefix="pagoda-") as folder:
        runner.run(_serve(arguments.control, ModelText(tiny_model_dir(Path(folder)))))
    arguments.control.unlink(missing_ok=True)


async def _serve(control: Path, text: ModelText) -> None:
    fronts = Fronts(text)
    config = uvicorn.Config(fronts.application(), uds=str(control), lifespan="off", log_config=None, access_log=False, ws="none")
    server = UnsignalledServer(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, lambda: setattr(server, "should_exit", True))
    await server.serve()
    await fronts.close()
