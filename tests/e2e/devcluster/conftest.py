"""One cluster with a kubelet node for this folder, and an image whose only file is the probe."""

import io
import json
import os
import secrets
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.kube.client import eventually
from support.kube.cluster import Cluster, running_cluster
from support.kube.machine_leftovers import inventory, tool

PROBE = "pagoda-probe:1"
# Else a resolver that is not answered for 5 s asks again, and whether one was answered at once would be the machine's affair.
PATIENT = {"options": [{"name": "timeout", "value": "30"}]}


def tar_of(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def image_parts(binary: bytes) -> tuple[bytes, bytes]:
    """A layer and the configuration of an image that has it."""
    layer = tar_of({"probe": binary}, 0o755)
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": {"Entrypoint": ["/probe"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(layer).hexdigest()}"]},
    }
    return layer, json.dumps(config).encode()


def docker_archive(binary: bytes, name: str) -> bytes:
    layer, config = image_parts(binary)
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    return tar_of({"layer.tar": layer, "config.json": config, "manifest.json": manifest})


def oci_archive(binary: bytes, annotations: dict[str, str]) -> bytes:
    blobs: dict[str, bytes] = {}

    def blob(kind: str, content: bytes) -> dict[str, object]:
        digest = sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    layer, config = image_parts(binary)
    manifest = {"schemaVersion": 2, "config": blob("config.v1+json", config), "layers": [blob("layer.v1.tar", layer)]}
    top = blob("manifest.v1+json", json.dumps(manifest).encode()) | {"annotations": annotations}
    index = json.dumps({"schemaVersion": 2, "manifests": [top]}).encode()
    return tar_of({"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": index} | blobs)


@dataclass(frozen=True)
class Archives:
    """Writes the probe as an image archive, in either format and under any name."""

    binary: bytes
    folder: Path

    def docker(self, name: str) -> Path:
        return self._file(docker_archive(self.binary, name))

    def oci(self, **annotations: str) -> Path:
        return self._file(oci_archive(self.binary, {key.replace("_", "."): value for key, value in annotations.items()}))

    def _file(self, content: bytes) -> Path:
        file = self.folder / f"{secrets.token_hex(4)}.tar"
        file.write_bytes(content)
        return file


@pytest.fixture
def archives(probe_binary: bytes, tmp_path: Path) -> Archives:
    return Archives(probe_binary, tmp_path)


@pytest.fixture(scope="session")
def probe_binary(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    target = tmp_path_factory.mktemp("probe") / "probe"
    argv = ["go", "build", "-trimpath", "-ldflags=-s -w", "-o", str(target), "main.go"]
    subprocess.run(argv, cwd=Path(__file__).parent / "probe", check=True, env=os.environ | {"CGO_ENABLED": "0"})
    return target.read_bytes()


@pytest.fixture(scope="session")
def write_probe(probe_binary: bytes) -> Callable[[Path], Path]:
    """The probe's image as an archive in a folder."""

    def write(folder: Path) -> Path:
        (folder / "probe.tar").write_bytes(docker_archive(probe_binary, PROBE))
        return folder / "probe.tar"

    return write


@pytest.fixture(scope="session")
def cluster(probe_binary: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    archive = tmp_path_factory.mktemp("image") / "probe.tar"
    archive.write_bytes(docker_archive(probe_binary, PROBE))
    with running_cluster("kubelet") as running:
        running.tool("load-image", str(archive))
        yield running


def answers(url: str) -> bool:
    """Of short patience: a connection that began before the way was there never finds it."""
    try:
        return httpx.get(url, trust_env=False, timeout=10).is_success
    except httpx.TransportError:
        return False


@dataclass(frozen=True)
class Namespace:
    """A namespace of a test's own under Pod Security `restricted`."""

    cluster: Cluster
    name: str

    def kubectl(self, *args: str, input: str | None = None) -> str:  # noqa: A002 - as in Cluster
        return self.cluster.kubectl("--namespace", self.name, *args, input=input)

    def pod(self, name: str, *arguments: str, **extra: Any) -> None:
        """Start the probe as nobody; `extra` adds to the pod's spec; `mounts`, `limits` and `image` are its container's."""
        mounts = extra.pop("mounts", [])
        limits = extra.pop("limits", {})
        container = {
            "name": "probe",
            "image": extra.pop("image", PROBE),
            "resources": {"limits": limits, "requests": limits},
            "args": list(arguments),
            "volumeMounts": mounts,
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        security = {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}}
        spec = {"containers": [container], "securityContext": security, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
        spec["dnsConfig"] = PATIENT
        labels = {"app": name}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec | extra}
        self.kubectl("apply", "-f", "-", input=json.dumps(body))

    def wait_for_pods(self, label: str, condition: str) -> None:
        """Those with a label, once there are any: kubectl itself fails where a controller has not made them yet."""
        eventually(lambda: self.kubectl("get", "pods", "-l", label, "-o", "name"), f"pods with {label}")
        self.kubectl("wait", "pods", "-l", label, f"--for={condition}", "--timeout=300s")

    def ask(self, *arguments: str, **extra: Any) -> str:
        """Run the probe to its end and return what it printed, or the word `failed` and that."""
        name = f"ask-{secrets.token_hex(3)}"
        self.pod(name, *arguments, **extra)
        self.kubectl("wait", f"pod/{name}", "--for=jsonpath={.status.containerStatuses[0].state.terminated}", "--timeout=300s")
        code = self.kubectl("get", "pod", name, "-o", "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}")
        return ("" if code == "0" else "failed: ") + self.kubectl("logs", name)

    def server(self, name: str) -> str:
        """A pod `name` that answers `hello from name`, behind a Service of that name. Returns the ClusterIP."""
        self.pod(name, "serve", ":8000", f"hello from {name}")
        self.kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=300s")
        return self.expose(name)

    def expose(self, name: str) -> str:
        """A Service in front of a pod that serves. Returns its ClusterIP, once the name is known and the way is there: a proxy and a name
        server hear of it some time after the API server."""
        self.kubectl("expose", f"pod/{name}", "--port=80", "--target-port=8000")
        address = self.kubectl("get", "service", name, "-o", "jsonpath={.spec.clusterIP}")
        asked = ("exec", name, "--", "/probe", "lookup", f"{name}.{self.name}.svc")
        eventually(lambda: address in self.kubectl(*asked), f"the name {name} is known")
        eventually(lambda: answers(f"http://{address}"), f"the way to {name}")
        return address


@pytest.fixture(scope="session")
def new_namespace() -> Callable[[Cluster], Namespace]:
    def create(cluster: Cluster) -> Namespace:
        name = f"probe-{secrets.token_hex(3)}"
        cluster.create_namespace(name)
        cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
        return Namespace(cluster, name)

    return create


@pytest.fixture
def namespace(cluster: Cluster, new_namespace: Callable[[Cluster], Namespace]) -> Iterator[Namespace]:
    created = new_namespace(cluster)
    yield created
    cluster.kubectl("delete", "namespace", created.name, "--wait=false")


@pytest.fixture(scope="session")
def scheduling() -> Callable[[Namespace, str], str]:
    """What the scheduler says of a pod that it cannot place."""

    def message(namespace: Namespace, pod: str) -> str:
        found = json.loads(namespace.kubectl("get", "pod", pod, "-o", "json"))
        assert "nodeName" not in found["spec"]
        return next(str(one["message"]) for one in found["status"]["conditions"] if one["type"] == "PodScheduled")

    return message


@pytest.fixture
def name() -> Iterator[str]:
    """A free name; what is there before the test must be there after it, and nothing else."""
    name = f"k{secrets.token_hex(3)}"
    before = inventory(name)
    assert before["processes"] == []
    yield name
    done = tool("down", "--name", name)
    assert done.returncode == 0, done.stderr
    assert inventory(name) == before
