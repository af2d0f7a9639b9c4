"""Inventories for tests of placement: nodes as GPU Feature Discovery, mig-manager and device plugins would show them, and the pods on them.

Labels and resources come from the dev cluster's layouts, which imitate those; parsed by the operator's own parsers.
"""

from __future__ import annotations

from typing import Any

from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_devcluster.gpus import dra
from pagoda_devcluster.gpus.devices import allocatable
from pagoda_devcluster.gpus.labels import labels_of
from pagoda_devcluster.gpus.layout import Group, NodeClass, Product, Profile
from pagoda_placement.inventory import Inventory, parse_occupant
from pagoda_placement.model import Inspection, of_config
from pagoda_placement.nodes import parse_node
from pagoda_placement.question import Question
from pagoda_placement.slices import parse_claim, parse_slice
from pagoda_placement.terms import Terms
from pagoda_sizing.replica import config_of

Body = dict[str, Any]
LLAMA8, LLAMA70, TINY = "hf://meta-llama/Llama-3.1-8B", "hf://meta-llama/Llama-3.1-70B", "hf://meta-llama/Llama-3.2-1B-Instruct"
CPU = {"cpu": {"cores": "8", "memory": "32Gi"}}


def _product(name: str, memory_mib: int, compute: str, **profiles: tuple[int, int]) -> Product:
    parts = {
        key.replace("_", ".").removeprefix("p"): Profile(memory_mib=mib, multiprocessors=16, memory_slices=eighths)
        for key, (mib, eighths) in profiles.items()
    }
    return Product(
        product=name,
        family="any",
        memory_mib=memory_mib,
        multiprocessors=132,
        compute=compute,
        driver="580.95.05",
        cuda="13.0",
        mig_profiles={name.replace("me", "+me"): part for name, part in parts.items()},
    )


# Memory of slices: `nvidia-smi mig -lgip`.
A100_40 = _product(
    "NVIDIA-A100-SXM4-40GB",
    40960,
    "8.0",
    p1g_5gb=(4864, 1),
    p1g_5gbme=(4864, 1),
    p2g_10gb=(9856, 2),
    p3g_20gb=(19968, 4),
    p7g_40gb=(40192, 8),
)
A100_80 = _product("NVIDIA-A100-SXM4-80GB", 81920, "8.0", p1g_10gb=(9728, 1), p1g_20gb=(19968, 2), p2g_20gb=(19968, 2), p3g_40gb=(40192, 4))
H100 = _product("NVIDIA-H100-80GB-HBM3", 81559, "9.0", p1g_10gb=(9984, 1), p1g_20gb=(20096, 2), p2g_20gb=(20096, 2), p3g_40gb=(40448, 4))
H200 = _product("NVIDIA-H200", 143771, "9.0", p1g_18gb=(16384, 1), p1g_35gb=(33280, 2), p3g_71gb=(71424, 4), p7g_141gb=(143360, 8))
B200 = _product("NVIDIA-B200", 183359, "10.0", p1g_23gb=(22016, 1), p1g_45gb=(45312, 2), p3g_90gb=(91648, 4), p7g_180gb=(182272, 8))


def node(name: str, product: Product, *groups: Group, **more: Any) -> Body:
    """`strategy`, `config`, `state` and `since` of MIG; `labels`, `taints`, `cordoned`, `ready`, `driver`, `cuda`, `gone` (by resource)."""
    given = {key: more[key] for key in ("driver", "cuda") if key in more}
    sliced = any(group.mig is not None for group in groups)
    played = NodeClass(
        name="n",
        gpu=product.model_copy(update=given),
        gpus=groups,
        mig_strategy=more.get("strategy", "mixed" if sliced else "none"),
        mig_config=more.get("config", "custom" if sliced else "all-disabled"),
        mig_state=more.get("state", "success"),
    )
    offered = allocatable(played, name)
    gone: dict[str, int] = more.get("gone", {})
    healthy = {resource: str(int(count) - gone.get(resource, 0)) for resource, count in offered.items()}
    labels = labels_of(played) | more.get("labels", {})
    meta: Body = {"name": name, "labels": {key: value for key, value in labels.items() if value is not None}}
    if "since" in more:
        fields = {"f:metadata": {"f:labels": {"f:nvidia.com/mig.config.state": {}}}}
        meta["managedFields"] = [{"manager": "mig-manager", "time": more["since"], "fieldsV1": fields}]
    room = {"cpu": "64", "memory": "512Gi"}
    return {
        "metadata": meta,
        "spec": {"taints": more.get("taints", []), "unschedulable": more.get("cordoned", False)},
        "status": {
            "capacity": room | offered,
            "allocatable": room | healthy,
            "conditions": [{"type": "Ready", "status": "True" if more.get("ready", True) else "False"}],
        },
    }


def whole(count: int) -> Group:
    return Group(count=count)


def cut(count: int = 1, **profiles: int) -> Group:
    """`cut(2, p1g_10gb=7)`: two GPUs with seven slices each; without profiles MIG is on and nothing is cut."""
    return Group(count=count, mig={key.replace("_", ".").removeprefix("p").replace("me", "+me"): many for key, many in profiles.items()})


def pod(where: str, name: str = "other", uid: str = "", **resources: int) -> Body:
    """A pod that holds devices: `gpu=2`, `mig_1g_10gb=1`; of the service with that uid, else of somebody else."""
    asked = {f"nvidia.com/{key.replace('mig_', 'mig-').replace('_', '.')}": str(count) for key, count in resources.items()}
    labels = {"serving.pagoda.dev/service": "s", "serving.pagoda.dev/service-uid": uid} if uid else {}
    meta = {"name": name, "namespace": "ns", "uid": f"pod-{name}", "labels": labels}
    container = {"name": "c", "resources": {"requests": asked, "limits": asked}}
    return {"metadata": meta, "spec": {"nodeName": where, "containers": [container]}, "status": {"phase": "Running"}}


def plain_node(name: str, cpu: str | None = "64", memory: str | None = "512Gi") -> Body:
    """A node without devices, of that size where it says one."""
    room = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value is not None}
    return {"metadata": {"name": name}, "status": {"allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}}


def resource_slice(name: str, product: Product, *groups: Group) -> Body:
    """What the DRA driver publishes for a node."""
    strategy = "mixed" if any(group.mig is not None for group in groups) else "none"
    placed = dra.resource_slice(NodeClass(name="n", gpu=product, gpus=groups, mig_strategy=strategy), name, "uid")
    assert placed is not None
    return placed[1]


def claim(piece: Body, device: int, name: str = "held") -> Body:
    """A ResourceClaim that holds one of a slice's devices."""
    spec = piece["spec"]
    result = {"driver": spec["driver"], "pool": spec["pool"]["name"], "device": spec["devices"][device]["name"], "request": "r"}
    return {"metadata": {"name": name, "namespace": "ns"}, "status": {"allocation": {"devices": {"results": [result]}}}}


def inventory(*nodes: Body, pods: tuple[Body, ...] = (), slices: tuple[Body, ...] = (), claims: tuple[Body, ...] = ()) -> Inventory:
    found = (parse_node(body) for body in nodes)
    held = (parse_occupant(body) for body in pods)
    taken = (parse_claim(body) for body in claims)
    return Inventory(
        tuple(one for one in found if one),
        tuple(one for one in held if one),
        tuple(parse_slice(body) for body in slices),
        tuple(one for one in taken if one),
    )


def spec(*accelerators: Body, model: str = LLAMA8, requests: int = 8, context: int = 4096, **engine: Any) -> InferenceServiceSpec:
    limits = {"maxModelLen": context, "maxConcurrency": requests, "minConcurrency": requests}
    body = {"model": {"uri": model}, "accelerators": list(accelerators), "engine": limits | engine}
    return InferenceServiceSpec.model_validate(body)


def question(there: Inventory, wanted: InferenceServiceSpec, **more: Any) -> Question:
    """A service `s` of uid `mine`, whose model is known where it is published."""
    config = config_of(wanted.model.uri)
    given = {"terms": Terms(service_uid="mine"), "model": of_config(config) if config else Inspection(), "now": 1000.0}
    return Question("s", wanted, there, **(given | more))


def gpu(product: str | None = None, count: int = 1, **more: Any) -> Body:
    return {"gpu": {"count": count} | ({"product": product} if product else {}), **more}


def mig(profile: str = "", least: str = "", **more: Any) -> Body:
    return {"mig": {"profile": profile} if profile else {"minMemory": least}, **more}


def dra_of(class_name: str, *selectors: str, count: int = 1, **more: Any) -> Body:
    return {"dra": {"deviceClassName": class_name, "selectors": list(selectors), "count": count}, **more}
