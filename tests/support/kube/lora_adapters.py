"""LoraAdapters as the API server shows them."""

from __future__ import annotations

from typing import Any

from pagoda_contracts.names import API_VERSION
from pagoda_operator.api.adapters import Adapter, parse_adapter


def adapter_body(name: str, folder: str = "one", age: int = 0, generation: int = 1, **more: Any) -> dict[str, Any]:
    """Of service `tiny`, on claim `models`. A greater `age` is younger. `status` and fields of the spec are `more`."""
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "generation": generation, "resourceVersion": "1"}
    status = more.pop("status", {})
    spec = {"serviceRef": {"name": "tiny"}, "source": {"uri": f"pvc://models/{folder}"}, "placement": {"mode": "Eager"}} | more
    stamp = {"creationTimestamp": f"2026-01-01T00:00:{age:02}Z"}
    return {"apiVersion": API_VERSION, "kind": "LoraAdapter", "metadata": meta | stamp, "spec": spec, "status": status}


def adapter(name: str, folder: str = "one", age: int = 0, generation: int = 1, **more: Any) -> Adapter:
    """As the caches keep it."""
    found = parse_adapter(adapter_body(name, folder, age, generation, **more))
    assert found is not None
    return found
