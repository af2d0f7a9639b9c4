"""The cluster's ServiceAccount signing key, rotated as an administrator does it: the API server started again with other key files."""

from __future__ import annotations

import subprocess
from pathlib import Path

from cluster import Cluster
from control_plane import API_SERVER, Part, away
from kube import Kube

SIGNING, PUBLISHED = "service-account-signing-key-file", "service-account-key-file"


class ApiServer:
    """The one process of a cluster's control plane that signs."""

    def __init__(self, cluster: Cluster, kube: Kube) -> None:
        self.kube, self._part = kube, Part(cluster, API_SERVER)
        self.old_key = Path(self._part.option(SIGNING))

    def new_key(self, name: str) -> Path:
        key = self.old_key.with_name(f"{name}.key")
        make = ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(key)]
        subprocess.run(make, check=True, capture_output=True)
        return key

    def restart(self, *published: Path) -> None:
        """Signs with the first of the keys and publishes all of them."""
        kept = [word for word in self._part.argv if not word.startswith((f"--{SIGNING}=", f"--{PUBLISHED}="))]
        with away(self._part, self.kube):
            self._part.argv = [*kept, f"--{SIGNING}={published[0]}", *(f"--{PUBLISHED}={key}" for key in published)]
