"""`load-model`: a folder of this machine as a bound, read-only claim. Nothing is copied, nothing is chowned.

The objects and the judgement about what exists are pure; `load` reads, applies and waits.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from pagoda_devcluster.client.api import Api
from pagoda_devcluster.cluster import manifests, waiting
from pagoda_devcluster.cluster.errors import UsageError
from pagoda_devcluster.cluster.spec import ClusterSpec
from pagoda_devcluster.render.node_config import HIDDEN_FOLDERS

FOLDER_ANNOTATION = "devcluster.pagoda.dev/folder"
# More than a kubectl line shows, few enough to read.
EXAMPLES = 3
READ_FOLDER = stat.S_IROTH | stat.S_IXOTH
BIND_SECONDS = 180


@dataclass(frozen=True)
class Claim:
    """NS/NAME, taken apart once."""

    namespace: str
    name: str

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims/{self.name}"

    @property
    def volume(self) -> str:
        """Volumes have one namespace for all; the digest keeps `a-b/c` and `a/b-c` apart."""
        digest = sha256(f"{self.namespace}/{self.name}".encode()).hexdigest()[:8]
        return f"{self.namespace}-{self.name}"[:54].rstrip("-.") + f"-{digest}"

    @property
    def volume_path(self) -> str:
        return f"/api/v1/persistentvolumes/{self.volume}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass
class Survey:
    """What other users' eyes find in a folder."""

    files: int = 0
    unreadable: list[Path] = field(default_factory=list)
    outside: list[Path] = field(default_factory=list)


def parse_claim(text: str) -> Claim:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise UsageError(f"--claim {text!r}: write it as NAMESPACE/NAME")
    return Claim(namespace, name)


def survey(folder: Path) -> Survey:
    """By mode bits, because root can read files that a pod of another user cannot."""
    found = Survey()
    for path, mode in walk(folder):
        found.files += 1
        if stat.S_ISLNK(mode):
            found.outside += [path] if not Path(os.path.realpath(path)).is_relative_to(folder) else []
        elif ~mode & (READ_FOLDER if stat.S_ISDIR(mode) else stat.S_IROTH):
            found.unreadable.append(path)
    return found


def walk(folder: Path) -> Iterator[tuple[Path, int]]:
    yield folder, folder.stat().st_mode
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from walk(Path(entry.path))
            else:
                yield Path(entry.path), entry.stat(follow_symlinks=False).st_mode


def check_folder(folder: Path) -> Survey:
    real = Path(os.path.realpath(folder))
    if not real.is_dir():
        raise UsageError(f"{folder} is not a folder")
    if any(real.is_relative_to(hidden) for hidden in HIDDEN_FOLDERS):
        raise UsageError(f"{real} is not visible inside the node: move it to a disk")
    found = survey(real)
    if found.unreadable:
        some = ", ".join(str(path) for path in found.unreadable[:EXAMPLES])
        count = f"{len(found.unreadable)} of {found.files}"
        raise UsageError(f"{count} entries cannot be read by a pod's user ({some}): run `chmod -R a+rX {real}`")
    return found


def volume(spec: ClusterSpec, claim: Claim, folder: Path, capacity: str) -> dict[str, Any]:
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [spec.node_name]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": claim.volume, "annotations": {FOLDER_ANNOTATION: str(folder)}},
        "spec": {
            "capacity": {"storage": capacity},
            "accessModes": ["ReadOnlyMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "volumeMode": "Filesystem",
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace, "name": claim.name},
        },
    }


def volume_claim(claim: Claim, capacity: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": claim.namespace, "name": claim.name},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "",
            "volumeName": claim.volume,
            "resources": {"requests": {"storage": capacity}},
        },
    }


Found = dict[str, Any] | None


def contradiction(claim: Claim, folder: Path, existing_volume: Found, existing_claim: Found) -> str | None:
    """Why this claim cannot become a view of `folder`; None: it can, or it is one."""
    commands = f"kubectl -n {claim.namespace} delete pvc {claim.name}; kubectl delete pv {claim.volume}"
    again = f"delete it first (`{commands}`) or choose another name"
    if existing_volume and (other := existing_volume["spec"].get("local", {}).get("path")) != str(folder):
        return f"claim {claim} shows {other}, not {folder}: {again}"
    if existing_claim and (bound := existing_claim["spec"].get("volumeName")) != claim.volume:
        return f"claim {claim} exists and is bound to {bound or 'nothing'}, not by this tool: {again}"
    return None


def load(spec: ClusterSpec, claim: Claim, folder: Path, capacity: str) -> None:
    with Api(spec) as api:
        existing_volume, existing_claim = api.get(claim.volume_path), api.get(claim.path)
        if refusal := contradiction(claim, folder, existing_volume, existing_claim):
            raise UsageError(refusal)
        if existing_volume and not existing_claim:
            # The old claim's uid would keep a volume Released for ever.
            api.merge(claim.volume_path, {"spec": {"claimRef": {"uid": None, "resourceVersion": None}}})
        if api.get(f"/api/v1/namespaces/{claim.namespace}") is None:
            api.apply(*manifests.namespace(claim.namespace))
        if not existing_volume:
            api.apply(claim.volume_path, volume(spec, claim, folder, capacity))
        if not existing_claim:
            api.apply(claim.path, volume_claim(claim, capacity))
        waiting.require(lambda: is_bound(api, claim), BIND_SECONDS, lambda: f"claim {claim} is not bound: `kubectl describe pvc` shows why")


def is_bound(api: Api, claim: Claim) -> bool:
    found = api.get(claim.path)
    return found is not None and found.get("status", {}).get("phase") == "Bound"
