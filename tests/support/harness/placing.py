"""A service on devices in the operator's fake cluster: what it was placed on, and the cluster's answer."""

from __future__ import annotations

import json
from typing import Any

from pagoda_contracts.launch import DaemonConfig
from pagoda_operator.api.state import CONFIG_MAPS, DEPLOYMENTS, PODS, SERVICES
from pagoda_placement.model import source_of
from support.harness.harness import Harness
from support.harness.inventories import H100, cut, inventory, node, whole
from support.kube.fake_api import running

LLAMA_CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "head_dim": 64,
}
# Of a few kilobytes: it fits wherever a daemon starts.
SMALL_CONFIG = LLAMA_CONFIG | {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 512,
    "head_dim": 16,
}
ENGINE = {"maxModelLen": 4096, "maxConcurrency": 8}
MIXED = node("a", H100, whole(2), cut(2, p3g_40gb=1, p2g_20gb=1, p1g_10gb=2))


def harness(*accelerators: Any, there: Any = (), model: str = "pvc://models/tiny", **spec: Any) -> Harness:
    """A service whose model was inspected already: about 1.2 B parameters."""
    made = Harness(accelerators=list(accelerators), engine=ENGINE, model={"uri": model}, **spec)
    made.inventory = inventory(*there) if isinstance(there, tuple) else there
    inspected(made)
    return made


def inspected(made: Harness, config: Any = LLAMA_CONFIG) -> None:
    """As the inspection left it."""
    observed = made.observed()
    assert observed.spec is not None
    labels = {"serving.pagoda.dev/service": "tiny", "serving.pagoda.dev/service-uid": observed.meta.uid}
    data = {"source": source_of(observed.spec), "model.json": json.dumps({"config": config})}
    meta = {"name": "tiny-model", "namespace": "ns", "labels": labels}
    made.api.put(CONFIG_MAPS, {"metadata": meta, "data": data})


def template(made: Harness) -> Any:
    (deployment,) = made.api.of(DEPLOYMENTS)
    return deployment["spec"]["template"]["spec"]


def placement(made: Harness) -> Any:
    return made.api.of(SERVICES)[0]["status"]["placement"]


def config(made: Harness) -> Any:
    maps = [body for body in made.api.of(CONFIG_MAPS) if "daemon.json" in body["data"]]
    return DaemonConfig.model_validate_json(maps[-1]["data"]["daemon.json"])


def bind(made: Harness) -> Any:
    """The scheduler finds nodes, the kubelets start."""
    for body in made.api.of(PODS):
        made.api.report(body, running(ready=True))
    made.settle()
