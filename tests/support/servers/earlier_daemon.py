"""The daemon of the version before, as kept in tests/data, for the pods of a PaperKubelet: a process with its own packages and its own
contracts, configured by the pod's ConfigMap as it stands. It uses today's installed libraries and nothing else of today's project."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from pagoda_contracts.names import DAEMON_CONFIG_KEY, ENV_POD_UID, JWKS_CONFIG_MAP, JWKS_KEY, PATH_READY
from pagoda_operator.state import CONFIG_MAPS
from support.engine.toy_model import VOCAB, tiny_model_dir
from support.kube.client import Body
from support.kube.earlier_operator import unpack
from support.kube.namespace import Real
from support.servers.replica import Replica, launch

ARCHIVE = Path(__file__).parents[2] / "data/v0.1/daemon.tgz"
STEP_MS = 20.0


def environment(folder: Path) -> dict[str, str]:
    """Unpacked there; what a process needs to be of that version, whatever it starts included."""
    unpack(folder)
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    own = {"PYTHONPATH": f"{folder / 'daemon'}:{folder / 'contracts'}"}
    look = "import pagoda_contracts as c, pagoda_daemon as d, pagoda_daemon.engine as e; print(c.__file__, d.__file__, e.__file__)"
    found = subprocess.run([sys.executable, "-P", "-c", look], env=own, capture_output=True, text=True, check=True).stdout.split()
    assert all(file.startswith(str(folder)) for file in found), found
    return own


@dataclass
class Process:
    """One pod's."""

    replica: Replica

    async def ready(self) -> bool:
        return (await asyncio.to_thread(self.replica.probe, PATH_READY))[0] == 200

    def stop(self) -> None:
        self.replica.terminate()

    def ended(self) -> bool:
        return self.replica.process.poll() is not None

    async def close(self) -> None:
        await asyncio.to_thread(self.replica.close)


@dataclass
class EarlierDaemons:
    """`start` is what the kubelet calls; `replicas` are by their pods' uids, those that ended too."""

    real: Real
    folder: Path
    replicas: dict[str, Replica] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._environment = environment(self.folder / "earlier")

    async def start(self, pod: Body, ip: str, folder: Path) -> Process:
        """As a kubelet does: a pod whose mounts are not there yet waits for them."""
        config = json.loads(await self._mounted(_config_map(pod), DAEMON_CONFIG_KEY))
        tokens = (config.get("auth") or {}).get("tokens")
        if tokens:
            keys = folder / JWKS_KEY
            keys.write_text(await self._mounted(JWKS_CONFIG_MAP, JWKS_KEY))
            tokens["jwksFile"] = str(keys)
        self._place(config, ip, folder)
        uid = pod["metadata"]["uid"]
        env = self._environment | {ENV_POD_UID: uid}
        replica = await asyncio.to_thread(launch, json.dumps(config), Path(config["listen"]["runDir"]), env)
        await asyncio.to_thread(replica.wait_listening)
        self.replicas[uid] = replica
        return Process(replica)

    def _place(self, config: Body, ip: str, folder: Path) -> None:
        """What differs on this machine: the pod's address, its folders, and a worker without a model."""
        run_dir = tempfile.mkdtemp(prefix="pagoda-test-")
        config["listen"] = config.get("listen", {}) | {"host": ip, "runDir": run_dir}
        config["model"]["path"] = str(tiny_model_dir(folder / "model"))
        config["testing"] = {"simulated": {"stepMs": STEP_MS, "vocabSize": VOCAB}}

    async def _mounted(self, name: str, key: str) -> str:
        async with asyncio.timeout(300):
            while not (found := await asyncio.to_thread(self.real.kube.get, CONFIG_MAPS, self.real.namespace, name)):
                await asyncio.sleep(0.1)
        text: str = found["data"][key]
        return text

    def orders(self, uid: str) -> list[tuple[bool, int]]:
        """What it obeyed, by its own log: whether it drains from then on, and the epoch."""
        return [(line["draining"], line["epoch"]) for line in self.replicas[uid].lines.copy() if line["event"] == "ordered"]


def _config_map(pod: Body) -> str:
    (name,) = (volume["configMap"]["name"] for volume in pod["spec"]["volumes"] if volume["name"] == "config")
    return str(name)
