"""A GPU layout: node classes with GPUs, MIG partitions, driver and CUDA versions, parsed from YAML into frozen types. Refuses loudly.

Called by `up --gpu-layout FILE`. Knows no cluster; `devices.py`, `labels.py` and `dra.py` make objects of it.
"""

import re
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pagoda_devcluster.cluster.errors import UsageError

# Never a whitelist: sizes differ per product (1g.10gb, 1g.18gb, 1g.23gb), and attributes follow a + or, in resource names, a dot.
PROFILE = re.compile(r"(?P<slices>[1-9])g\.(?P<gb>\d+)gb(?P<attribute>[+.](me|gfx|me\.all))?")
# What one GPU of every MIG-capable generation is divided into.
COMPUTE_SLICES, MEMORY_SLICES = 7, 8
LABEL_VALUE = r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
VERSION = r"^\d+\.\d+(\.\d+)?$"
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,29}[a-z0-9])?$")]
LabelValue = Annotated[str, Field(pattern=LABEL_VALUE)]
Strategy = Literal["none", "single", "mixed"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Engines(_Frozen):
    """Of a whole GPU or of a slice."""

    copy_: int = Field(0, ge=0, alias="copy")
    decoder: int = Field(0, ge=0)
    encoder: int = Field(0, ge=0)
    jpeg: int = Field(0, ge=0)
    ofa: int = Field(0, ge=0)


class Profile(_Frozen):
    """One kind of MIG slice of a product, as `nvidia-smi mig -lgip` lists it."""

    memory_mib: int = Field(gt=0)
    multiprocessors: int = Field(gt=0)
    memory_slices: int = Field(ge=1, le=MEMORY_SLICES)
    engines: Engines = Engines()


class Product(_Frozen):
    """The one GPU model of a node class."""

    product: LabelValue
    family: LabelValue
    memory_mib: int = Field(gt=0)
    multiprocessors: int = Field(gt=0)
    compute: Annotated[str, Field(pattern=r"^\d+\.\d+$")]
    driver: Annotated[str, Field(pattern=VERSION)]
    cuda: Annotated[str, Field(pattern=r"^\d+\.\d+$")]
    brand: LabelValue = "Nvidia"
    engines: Engines = Engines()
    mig_profiles: dict[str, Profile] = {}


class Group(_Frozen):
    """GPUs that are alike. `mig` absent: whole; `mig: {}`: MIG is on and nothing is partitioned, which strands the GPU as in life."""

    count: int = Field(ge=1, le=16)
    mig: dict[str, int] | None = None

    @property
    def partitions(self) -> dict[str, int]:
        return self.mig or {}


class Taint(_Frozen):
    """As in a node's spec."""

    key: str
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class NodeClass(_Frozen):
    """Nodes that are alike. `weight` 0: a pool without nodes. `discovery`: GPU Feature Discovery and mig-manager label them.
    `device_plugin`: their devices are extended resources too, not in ResourceSlices only. `resources`: devices of other vendors, which
    have a count and nothing else."""

    name: Name
    weight: int = Field(1, ge=0)
    cpu: int = Field(32, ge=1)
    memory_gib: int = Field(128, ge=1)
    pods: int = Field(110, ge=1, le=250)
    machine: LabelValue = "pagoda-devcluster"
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    discovery: bool = True
    device_plugin: bool = True
    resources: dict[str, int] = {}
    gpu: Product | None = None
    gpus: tuple[Group, ...] = ()
    mig_strategy: Strategy = "none"
    mig_config: LabelValue = "all-disabled"
    mig_state: Literal["pending", "rebooting", "success", "failed"] = "success"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.gpus) != (self.gpu is not None):
            raise ValueError("`gpu` and `gpus` go together: the model, and how many of it; a node without GPUs has neither")
        for group in self.gpus:
            if complaint := refuse_group(self, group):
                raise ValueError(complaint)
        if self.mig_strategy == "single" and len({tuple(group.partitions) for group in self.gpus}) != 1:
            raise ValueError("mig_strategy single needs the same one profile on all GPUs; use mixed")
        return self


class Layout(_Frozen):
    """A whole file."""

    classes: tuple[NodeClass, ...] = Field(min_length=1)
    kubelet: str = ""
    seed: int = 1
    ready_seconds: tuple[float, float] = (0.5, 2.0)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [one.name for one in self.classes]
        if len(set(names)) != len(names):
            raise ValueError(f"class names repeat: {', '.join(names)}")
        if self.kubelet and self.kubelet not in names:
            raise ValueError(f"kubelet must be one of the classes {', '.join(names)}, got {self.kubelet!r}")
        if not any(one.weight for one in self.classes):
            raise ValueError("at least one class needs a weight above 0")
        low, high = self.ready_seconds
        if not 0 <= low <= high:
            raise ValueError(f"ready_seconds must be [least, most], got [{low}, {high}]")
        return self

    @property
    def kubelet_class(self) -> NodeClass:
        """What the node that runs pods plays: the class named, else the first."""
        return next((one for one in self.classes if one.name == self.kubelet), self.classes[0])

    def class_of(self, number: int) -> NodeClass:
        """Of the fake node `number`: classes in turn, each `weight` times."""
        turn = [one for one in self.classes for _ in range(one.weight)]
        return turn[number % len(turn)]


def without_gpus(fakes: bool) -> Layout | None:
    """What fake nodes play when no file says it; a kubelet node plays nothing then."""
    return Layout(classes=(NodeClass(name="cpu"),)) if fakes else None


def stored(file: Path) -> Layout:
    """What `up` wrote into the cluster's folder."""
    return Layout.model_validate_json(file.read_text())


def as_stored(layout: Layout) -> str:
    return layout.model_dump_json(by_alias=True)


def digest(layout: Layout) -> str:
    return sha256(as_stored(layout).encode()).hexdigest()[:16]


def refuse_group(node: NodeClass, group: Group) -> str | None:
    """Why these GPUs cannot be partitioned so; None: they can."""
    if group.mig is None:
        return "mig_strategy single needs `mig` on every group; use mixed" if node.mig_strategy == "single" else None
    if node.mig_strategy == "none":
        return "mig_strategy none and `mig` contradict each other: mig_strategy must be single or mixed"
    if node.mig_strategy == "single" and len(group.mig) != 1:
        return "mig_strategy single needs exactly one profile on every group; use mixed"
    return refuse_partitions(node.gpu.mig_profiles if node.gpu else {}, group.mig)


def refuse_partitions(known: dict[str, Profile], wanted: dict[str, int]) -> str | None:
    for name, count in wanted.items():
        if not PROFILE.fullmatch(name):
            return f"MIG profile {name!r}: write it as 3g.40gb or 1g.10gb+me"
        if name not in known:
            return f"MIG profile {name!r} is not among mig_profiles: {', '.join(known) or 'the list is empty'}"
        if count < 1:
            return f"MIG profile {name!r}: {count} of it; at least 1"
    compute = sum(slices_of(name) * count for name, count in wanted.items())
    memory = sum(known[name].memory_slices * count for name, count in wanted.items())
    if compute > COMPUTE_SLICES or memory > MEMORY_SLICES:
        return f"{wanted} needs {compute} of {COMPUTE_SLICES} compute and {memory} of {MEMORY_SLICES} memory slices of one GPU"
    return None


def slices_of(profile: str) -> int:
    return int(profile.partition("g")[0])


def parse(text: str, origin: str) -> Layout:
    try:
        raw: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{origin} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict):
        raise UsageError(f"{origin} is not a GPU layout: it needs `classes`, see devcluster/layouts/")
    try:
        return Layout.model_validate(raw)
    except ValidationError as error:
        raise UsageError(f"{origin}: {complaint_of(error)}") from error


def complaint_of(error: ValidationError) -> str:
    """The first complaint with its path; more are counted."""
    first, more = error.errors()[0], error.error_count() - 1
    path = ".".join(str(part) for part in first["loc"]) or "the file"
    value = "" if isinstance(first["input"], dict | list | tuple | BaseModel) else f" ({first['input']!r})"
    return f"{path}{value}: {first['msg'].removeprefix('Value error, ')}" + (f" (and {more} more)" if more else "")


def read(file: Path) -> Layout:
    try:
        return parse(file.read_text(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--gpu-layout {file} cannot be read: {error}") from error
