"""What `up` was asked for, as the providers get it."""

from dataclasses import dataclass

from pagoda_devcluster.cluster.spec import Nodes
from pagoda_devcluster.gpus.layout import Layout


@dataclass(frozen=True)
class Request:
    """Parsed once, by `__main__`."""

    name: str
    nodes: Nodes
    install: bool = False
    fakes: int = 0
    layout: Layout | None = None
    serve: bool = False
