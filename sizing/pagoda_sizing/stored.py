"""What a checkpoint's `quantization_config` says: how its matrices are stored, or why no daemon reads them.

Called by `served`, `config` and `families`, and by the daemon, which reads the tensors (`model/sources.py`). Which matrices are stored so,
and which are exceptions, is told by the names of the tensors alone: no pattern of a config.json is evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pagoda_sizing.errors import UnknownQuantisation

METHODS: Final = ("fp8", "awq", "gptq", "compressed-tensors")
GROUP: Final = 128
"""Inputs of one scale in the 4 bits of a GPU."""
_LARGEST: Final = 2**21  # a group or a block that is longer than any matrix

Layout = Literal["levels", "awq", "gptq", "packed"]


@dataclass(frozen=True, slots=True)
class StoredAs:
    """`method`: quant_method. `form`: the format of `quant.WEIGHTS` that a GPU holds such matrices in, bf16 if it has none for them.

    `block`: outputs and inputs of one scale of 8 bits; None: scales are per output or per matrix. `group`: inputs of one scale of 4 bits;
    None: all. `zeros`: there is a zero point per group; `one_less`: it is stored minus 1.
    """

    method: str
    layout: Layout
    form: str
    block: tuple[int, int] | None = None
    group: int | None = None
    zeros: bool = False
    one_less: bool = False


def stored_as(config: Mapping[str, Any]) -> StoredAs | None:
    """Returns None if config.json has no quantization_config; UnknownQuantisation says which key is not accepted."""
    section = config.get("quantization_config")
    if section is None:
        return None
    method = section.get("quant_method") if isinstance(section, Mapping) else section
    if not isinstance(section, Mapping) or not isinstance(method, str) or method not in METHODS:
        raise UnknownQuantisation(
            f"quantization_config: weights stored as {method!r:.100} are not served; quant_method must be {', '.join(METHODS)}, or the "
            "weights float32, float16 or bfloat16"
        )
    if _has_experts(config):
        raise UnknownQuantisation(
            f"quantization_config: weights stored as {method!r} are not served for models with experts; they must be float32, float16 or "
            "bfloat16"
        )
    return _PARSERS[method](section)


def form_of(config: Mapping[str, Any]) -> str:
    """Returns what a GPU holds the matrices in if no format is asked for: bf16 also where the stored one is not known."""
    try:
        stored = stored_as(config)
    except UnknownQuantisation:
        return "bf16"
    return "bf16" if stored is None else stored.form


def conflict(form: str, quantization: str) -> str:
    """Returns why a GPU does not make `quantization` of matrices that are stored in `form`; empty if it may."""
    if form in ("bf16", quantization):
        return ""
    return f"quantization {quantization} contradicts the checkpoint, whose weights are stored in {form}; it must be {form} or absent"


def _has_experts(config: Mapping[str, Any]) -> bool:
    return config.get("num_local_experts") is not None or config.get("num_experts") is not None


def _fp8(section: Mapping[str, Any]) -> StoredAs:
    _one_of(section, "fmt", "e4m3", "float8_e4m3fn", None)
    _one_of(section, "activation_scheme", "dynamic", "static", None)
    return StoredAs("fp8", "levels", "fp8", block=_block(section, "weight_block_size"))


def _awq(section: Mapping[str, Any]) -> StoredAs:
    _one_of(section, "bits", 4)
    _one_of(section, "version", "gemm", "GEMM", None)
    _one_of(section, "zero_point", True, None)
    group = _group(section, GROUP)
    return StoredAs("awq", "awq", _form(group), group=group, zeros=True)


def _gptq(section: Mapping[str, Any]) -> StoredAs:
    _one_of(section, "bits", 4)
    _one_of(section, "desc_act", False, None)
    _one_of(section, "is_marlin_format", False, None)
    _one_of(section, "sym", True, False, None)
    names = [key for key in ("checkpoint_format", "format") if section.get(key) is not None]  # GPTQModel writes both
    for key in names:
        _one_of(section, key, "gptq", "gptq_v2")
    versions = {section[key] for key in names}
    if len(versions) > 1:
        raise _refused("format", section["format"], f"what checkpoint_format is, {section['checkpoint_format']!r}")
    group = _group(section, GROUP)
    zeros, one_less = section.get("sym") is not True, versions != {"gptq_v2"}
    return StoredAs("gptq", "gptq", _form(group), group=group, zeros=zeros, one_less=one_less)


def _compressed(section: Mapping[str, Any]) -> StoredAs:
    groups = section.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise _refused("config_groups", groups, "an object with one group")
    (group,) = groups.values()
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise _refused("config_groups", groups, "an object with one group that has weights")
    for key in ("transform_config", "sparsity_config"):
        found = section.get(key)
        if found and not (isinstance(found, Mapping) and found.get("format") == "dense"):
            raise _refused(key, found, "absent")
    form = section.get("format") or group.get("format")
    if form == "pack-quantized":
        return _packed(weights)
    if form in ("float-quantized", "int-quantized"):
        return _levels(weights, "float" if form == "float-quantized" else "int")
    raise _refused("format", form, "float-quantized, int-quantized or pack-quantized")


def _levels(weights: Mapping[str, Any], kind: str) -> StoredAs:
    _one_of(weights, "num_bits", 8)
    _one_of(weights, "type", kind)
    _one_of(weights, "symmetric", True)
    _one_of(weights, "strategy", "tensor", "channel", *(("block",) if kind == "float" else ()))
    block = _block(weights, "block_structure") if weights.get("strategy") == "block" else None
    if block is None and weights.get("strategy") == "block":
        raise _refused("block_structure", None, "a list of two whole numbers")
    return StoredAs("compressed-tensors", "levels", "fp8" if kind == "float" else "int8", block=block)


def _packed(weights: Mapping[str, Any]) -> StoredAs:
    _one_of(weights, "num_bits", 4)
    _one_of(weights, "type", "int")
    _one_of(weights, "symmetric", True, False)
    _one_of(weights, "strategy", "group", "channel")
    # With "static" or "weight", the order served the quantisation alone, and the inputs are stored as they come.
    _one_of(weights, "actorder", None, False, "static", "weight")
    group = None if weights.get("strategy") == "channel" else _group(weights, None)
    return StoredAs("compressed-tensors", "packed", _form(group), group=group, zeros=weights.get("symmetric") is False)


_PARSERS: Final = {"fp8": _fp8, "awq": _awq, "gptq": _gptq, "compressed-tensors": _compressed}


def _form(group: int | None) -> str:
    """A GPU's 4 bits have a scale for each 128 inputs; a longer group is several of them."""
    return "int4" if group is None or group % GROUP == 0 else "bf16"


def _one_of(section: Mapping[str, Any], key: str, *accepted: object) -> None:
    found = section.get(key)
    if not any(type(found) is type(one) and found == one for one in accepted):
        raise _refused(key, found, " or ".join("absent" if one is None else repr(one) for one in accepted))


def _group(section: Mapping[str, Any], absent: int | None) -> int | None:
    """Inputs of one scale; None: all of them, which is written as -1."""
    found = section.get("group_size", absent)
    if type(found) is int and found == -1:
        return None
    if type(found) is not int or not 0 < found <= _LARGEST or found % 8:
        raise _refused("group_size", found, f"-1, or a multiple of 8 up to {_LARGEST}")
    return found


def _block(section: Mapping[str, Any], key: str) -> tuple[int, int] | None:
    found = section.get(key)
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != 2 or not all(type(one) is int and 1 <= one <= _LARGEST for one in found):
        raise _refused(key, found, "a list of two whole numbers")
    return found[0], found[1]


def _refused(key: str, found: object, accepted: str) -> UnknownQuantisation:
    return UnknownQuantisation(f"quantization_config: {key} {found!r:.100} is not served; it must be {accepted}")
