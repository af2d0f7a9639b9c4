"""The only reader of the environment: where clusters and binaries live, and whose machine this is."""

import os
from dataclasses import dataclass
from pathlib import Path

from pagoda_devcluster.cluster.spec import check_name


@dataclass(frozen=True)
class Settings:
    """Resolved once, at the start."""

    home: Path
    is_root: bool

    @property
    def clusters(self) -> Path:
        return self.home / "clusters"

    @property
    def binaries(self) -> Path:
        return self.home / "bin"

    def cluster(self, name: str) -> Path:
        return self.clusters / check_name(name)

    def lock(self, name: str) -> Path:
        return self.clusters / f".{name}.lock"


def from_environment() -> Settings:
    named = os.environ.get("PAGODA_DEVCLUSTER_HOME")
    home = Path(named) if named else Path.home() / ".cache" / "pagoda" / "devcluster"
    return Settings(home=home.absolute(), is_root=os.geteuid() == 0)
