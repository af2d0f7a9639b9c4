"""sources: which tensors of a checkpoint make each place, judged by their headers: names, shapes and types. Called by `model.loader`.

A matrix is quantised if the file has its parts (`<module>.qweight` and so on), and plain if it has `<module>.weight` in 16 or 32 bits. So
the exceptions that a config.json lists need not be read: some are patterns, and each method has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch
from pagoda_sizing.stored import StoredAs
from torch import Tensor

from pagoda_daemon.core.errors import ModelRejected
from pagoda_daemon.model.files import DTYPES, LEVELS, Stored
from pagoda_daemon.model.stored import Stored4, Stored8, StoredMatrix

Shape = tuple[int, ...]
Read = Callable[[Stored], Tensor]

# Buffers that old exports carry and a copy of the embedding that tied models may carry.
_SUPERFLUOUS: Final = (".rotary_emb.inv_freq", "lm_head.weight")
# Scales of what is not stored: of rows, which are quantised by what is in them, and of keys and values, which are kept as kvDtype says.
_UNUSED: Final = (
    *(".input_scale", ".input_zero_point", ".activation_scale"),
    *(".k_scale", ".v_scale", ".q_scale", ".kv_scale", ".output_scale", ".prob_output_scale"),
)
_SCALES: Final = (".weight_scale", ".weight_scale_inv")
_FLOATS: Final = tuple(DTYPES)
_WORDS: Final = ("I32",)
_INTEGERS: Final = ("I64", "I32")
_MARKS: Final = {"levels": _SCALES, "awq": (".qweight",), "gptq": (".qweight",), "packed": (".weight_packed",)}
"""Layout → a matrix that has one of these is stored so."""
_WORD: Final = 8
_EIGHTS: Final = -0x77777778  # int32 of eight levels of 8


@dataclass(frozen=True, slots=True)
class Source:
    """Of which tensors a place is made, by their suffixes. `stored` None: it is copied from the one that there is."""

    shape: Shape
    parts: Mapping[str, Stored]
    stored: StoredAs | None = None

    @property
    def first(self) -> Stored:
        return next(iter(self.parts.values()))

    @property
    def group(self) -> int:
        """Inputs of one scale of 4 bits."""
        return (self.stored.group if self.stored else None) or self.shape[1]

    def matrix(self, read: Read) -> StoredMatrix:
        """The matrix as it is stored; ModelRejected if a part says other than config.json does. TypeError for what is copied."""
        if self.stored is None:
            raise TypeError(f"{self.first.name} is not quantised")
        found = {suffix: read(part) for suffix, part in self.parts.items()}
        self._check(found)
        if self.stored.layout == "levels":
            scales = next(found[suffix] for suffix in _SCALES if suffix in found).float()
            scales = scales if self.stored.block else scales.reshape(-1, 1).expand(self.shape[0], 1)
            return Stored8(found[".weight"], scales, self.stored.block)
        if self.stored.layout != "packed":
            words = found[".qweight"], found[".qzeros"], found[".scales"]
            return Stored4(*words, self.group, self.stored.layout == "awq", self.stored.one_less)
        scales = found[".weight_scale"].T
        zeros = found[".weight_zero_point"].T if self.stored.zeros else None
        if zeros is None:
            zeros = torch.full((len(scales), -(-self.shape[0] // _WORD)), _EIGHTS, dtype=torch.int32)
        return Stored4(found[".weight_packed"].T, zeros, scales, self.group, awq=False, one_less=False)

    def _check(self, found: Mapping[str, Tensor]) -> None:
        """Of what only the numbers say."""
        where = f"{self.first.file.name}: {self.first.name.rpartition('.')[0]}"
        for suffix, part in found.items():
            if suffix in (*_SCALES, ".scales") and not bool(part.isfinite().all()):
                raise ModelRejected(f"{where}{suffix} has values that are not finite")
        order = found.get(".g_idx")
        if order is not None and not torch.equal(order.long(), torch.arange(self.shape[1]) // self.group):
            raise ModelRejected(
                f"{where}.g_idx must count up in groups of {self.group}: weights in another order (desc_act) are not served"
            )
        shape = found.get(".weight_shape")
        if shape is not None and tuple(shape.tolist()) != self.shape:
            raise ModelRejected(f"{where}.weight_shape is {shape.tolist()}, config.json calls for {list(self.shape)}")
        bias = found.get(".bias")
        if bias is not None and bool(bias.count_nonzero()):
            raise ModelRejected(f"{where}.bias is not 0, and config.json calls for no bias")


def sources_of(directory: Path, present: Mapping[str, Stored], shapes: Mapping[str, Shape], stored: StoredAs | None) -> dict[str, Source]:
    """Name of a place → what makes it; ModelRejected names the tensor that is missing, unknown, or of a wrong shape or type."""
    found = {name: _source(name, shape, present, stored, shapes.keys()) for name, shape in shapes.items()}
    used = {part.name for source in found.values() if source is not None for part in source.parts.values()}
    _refuse_missing(directory, [name for name, source in found.items() if source is None])
    passed_over = _SUPERFLUOUS if stored is None else _SUPERFLUOUS + _UNUSED
    unknown = sorted(name for name in present.keys() - used if not name.endswith(passed_over))
    if unknown:
        raise ModelRejected(f"{directory} has {len(unknown)} tensors that config.json does not call for, such as {', '.join(unknown[:3])}")
    return {name: source for name, source in found.items() if source is not None}


def _refuse_missing(directory: Path, names: list[str]) -> None:
    if names:
        raise ModelRejected(f"{directory} lacks {len(names)} tensors, such as {', '.join(sorted(names)[:3])}")


def _source(name: str, shape: Shape, present: Mapping[str, Stored], stored: StoredAs | None, places: AbstractSet[str]) -> Source | None:
    module = name.removesuffix(".weight")
    if stored is not None and len(shape) == 2 and any(module + mark in present for mark in _MARKS[stored.layout]):
        return _quantised(module, shape, present, stored, places)
    if name not in present:
        return None
    part = present[name]
    if stored is not None and part.dtype in LEVELS:
        raise ModelRejected(f"{part.file.name}: {name} is stored as {part.dtype}, but {module}{_SCALES[0]} is missing")
    _check(part, (shape,), _FLOATS)
    return Source(shape, {name.removeprefix(module): part})


def _quantised(module: str, shape: Shape, present: Mapping[str, Stored], stored: StoredAs, places: AbstractSet[str]) -> Source:
    packed = shape[0 if stored.layout == "awq" else 1]
    if stored.layout != "levels" and packed % _WORD:
        raise ModelRejected(f"{module} is stored as {stored.method}, {_WORD} numbers in a word; {packed} is not a multiple of {_WORD}")
    expected = _LAYOUTS[stored.layout](shape, stored)
    if stored.layout == "levels":
        scales = [suffix for suffix in _SCALES if module + suffix in present]
        if len(scales) > 1:
            raise ModelRejected(f"{module} has both {' and '.join(scales)}; it must have one of them")
        expected = {suffix: entry for suffix, entry in expected.items() if suffix not in _SCALES or suffix in scales}
    if f"{module}.bias" not in places:
        # Old exporters wrote a bias of zeros for every matrix, whether the model has one or not.
        expected[".bias"] = _Part((shape[:1],), _FLOATS, optional=True)
    missing = [module + suffix for suffix, part in expected.items() if not part.optional and module + suffix not in present]
    if missing:
        raise ModelRejected(f"{module} is stored as {stored.method}, but {missing[0]} is missing")
    parts = {suffix: present[module + suffix] for suffix in expected if module + suffix in present}
    for suffix, part in parts.items():
        _check(part, expected[suffix].shapes, expected[suffix].dtypes)
    return Source(shape, parts, stored)


@dataclass(frozen=True, slots=True)
class _Part:
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    optional: bool = False


def _levels(shape: Shape, stored: StoredAs) -> dict[str, _Part]:
    outputs, inputs = shape
    kind = "F8_E4M3" if stored.form == "fp8" else "I8"
    scales: tuple[Shape, ...] = ((), (1,), (outputs,), (outputs, 1))
    if stored.block is not None:
        scales = ((-(-outputs // stored.block[0]), -(-inputs // stored.block[1])),)
    return {".weight": _Part((shape,), (kind,)), **dict.fromkeys(_SCALES, _Part(scales, _FLOATS))}


def _in_words(shape: Shape, stored: StoredAs, *, awq: bool) -> dict[str, _Part]:
    outputs, inputs = shape
    groups, words = -(-inputs // (stored.group or inputs)), -(-outputs // _WORD)
    packed = (inputs, words) if awq else (-(-inputs // _WORD), outputs)
    found = {
        ".qweight": _Part((packed,), _WORDS),
        ".qzeros": _Part(((groups, words),), _WORDS),
        ".scales": _Part(((groups, outputs),), _FLOATS),
    }
    return found if awq else found | {".g_idx": _Part(((inputs,),), _INTEGERS, optional=True)}


def _packed(shape: Shape, stored: StoredAs) -> dict[str, _Part]:
    outputs, inputs = shape
    groups = -(-inputs // (stored.group or inputs))
    found = {
        ".weight_packed": _Part(((outputs, -(-inputs // _WORD)),), _WORDS),
        ".weight_scale": _Part(((outputs, groups),), _FLOATS),
        ".weight_shape": _Part(((2,),), _INTEGERS, optional=True),
    }
    return found | ({".weight_zero_point": _Part(((-(-outputs // _WORD), groups),), _WORDS)} if stored.zeros else {})


_LAYOUTS: Final[Mapping[str, Callable[[Shape, StoredAs], dict[str, _Part]]]] = {
    "levels": _levels,
    "awq": partial(_in_words, awq=True),
    "gptq": partial(_in_words, awq=False),
    "packed": _packed,
}


def _check(part: Stored, shapes: tuple[Shape, ...], dtypes: tuple[str, ...]) -> None:
    where = f"{part.file.name}: {part.name}"
    if part.shape not in shapes:
        raise ModelRejected(f"{where} has shape {list(part.shape)}, config.json calls for {' or '.join(str(list(one)) for one in shapes)}")
    if part.dtype not in dtypes:
        raise ModelRejected(f"{where} is stored as {part.dtype}; it must be one of {', '.join(dtypes)}")
