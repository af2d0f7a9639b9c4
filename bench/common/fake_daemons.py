"""Daemons for pods that only pretend, for bench/operator.py: every address of the pod network is this machine's, and one server there obeys
the operator's orders as an idle replica does. Without them what is measured is how soon the machine's network refuses the connection."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
from pagoda_contracts.names import GRPC_SET_STATE, PORT_DAEMON_GRPC
from pagoda_contracts.pb.daemon_pb2 import TARGET_DRAINING, Phase, SetStateRequest, SetStateResponse
from pagoda_devcluster.cluster.spec import ClusterSpec
from pagoda_devcluster.machine import network


def obey(order: SetStateRequest, _context: grpc.ServicerContext) -> SetStateResponse:
    """Nothing is in flight here."""
    phase = Phase.PHASE_DRAINING if order.target == TARGET_DRAINING else Phase.PHASE_READY
    return SetStateResponse(phase=phase, in_flight=0)


@contextmanager
def obeying(spec: ClusterSpec) -> Iterator[None]:
    """While it lasts; RuntimeError where something else has the daemons' port."""
    handler = grpc.unary_unary_rpc_method_handler(
        obey, request_deserializer=SetStateRequest.FromString, response_serializer=SetStateResponse.SerializeToString
    )
    _, service, method = GRPC_SET_STATE.split("/")
    server = grpc.server(ThreadPoolExecutor(4), options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    server.add_insecure_port(f"0.0.0.0:{PORT_DAEMON_GRPC}")
    server.start()
    network.open_pod_range(spec)
    try:
        yield
    finally:
        network.close_pod_range(spec)
        server.stop(None).wait()
