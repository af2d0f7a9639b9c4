"""Envoy for bench/gateway.py: one listener, one cluster with one address, one thread, no filter but the router, no access log."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

_HTTP = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def config(port: int, host: str, upstream: int) -> dict[str, Any]:
    """Returns its bootstrap."""
    route = {"match": {"prefix": "/"}, "route": {"cluster": "replica", "timeout": "0s"}}
    manager = {
        "@type": _HTTP,
        "stat_prefix": "bench",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": _ROUTER}}],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    endpoint = {"lb_endpoints": [{"endpoint": {"address": _address(host, upstream)}}]}
    cluster = {"name": "replica", "type": "STATIC", "load_assignment": {"cluster_name": "replica", "endpoints": [endpoint]}}
    listener = {"name": "bench", "address": _address("127.0.0.1", port), "filter_chains": [chain]}
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


@asynccontextmanager
async def running_envoy(binary: str, folder: Path, host: str, upstream: int) -> AsyncIterator[tuple[int, int]]:
    """Yields its port and its process id when it listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    file = folder / "envoy.json"
    file.write_text(json.dumps(config(port, host, upstream)))
    argv = ["-c", str(file), "--concurrency", "1", "--disable-hot-restart", "-l", "error"]
    process = await asyncio.create_subprocess_exec(binary, *argv)
    try:
        while True:
            try:
                (await asyncio.open_connection("127.0.0.1", port))[1].close()
                break
            except ConnectionError:
                if process.returncode is not None:
                    raise RuntimeError(f"envoy ended with {process.returncode}") from None
                await asyncio.sleep(0.05)
        yield port, process.pid
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
