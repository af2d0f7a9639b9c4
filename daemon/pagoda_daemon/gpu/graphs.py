"""DecodeGraphs: the forward pass of steps that only decode, captured once per number of rows and replayed. Made by `gpu.forward`.

A captured step costs one launch instead of ten per layer. Rows are padded to the next captured number. The largest graph is captured
first, and all share one pool of memory, so that together they hold what the largest needs. Where adapters are served, there is a second
graph for each number, with adapters: a step without pays nothing for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pagoda_daemon.core.batch import StepPlan
from pagoda_daemon.gpu.inputs import Arrays, Shape, decode_arrays, places, work_name
from pagoda_daemon.gpu.staging import Staging, views

Pass = Callable[[Mapping[str, Tensor], int, Tensor], None]
"""Captured: from a step's arrays on the device and its number of rows, the logits [rows, vocab] into the last argument."""


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    where: dict[str, slice]
    logits: Tensor


class DecodeGraphs:
    """`items`: the most pieces of work of a captured attention; `table_words`: the most entries of block tables. A step with more of either
    is computed without a graph."""

    def __init__(self, shape: Shape, items: int, table_words: int, logits: Tensor) -> None:
        self._shape = shape
        self._items = items
        self._table_words = table_words
        self._logits = logits
        self._words = torch.zeros(0, dtype=torch.int32, device=logits.device)
        self._graphs: dict[tuple[int, bool], _Captured] = {}
        self._last: torch.cuda.CUDAGraph | None = None

    def capture(self, rows: tuple[int, ...], compute: Pass, note: Callable[[float], None], *, adapted: bool = False) -> None:
        """Capture `compute` for each number of `rows`, ascending; `note` hears the share done. `adapted`: with adapters, too."""
        first = _empty(self._shape, rows[-1], adapted=adapted)
        self._words = torch.zeros(self._places(first)["tables"].stop, dtype=torch.int32, device=self._logits.device)
        for done, count in enumerate(reversed(rows)):
            for kind in (True, False) if adapted else (False,):
                self._graphs[count, kind] = self._captured(_empty(self._shape, count, adapted=kind), compute)
            note((done + 1) / len(rows))

    def replay(self, plan: StepPlan, rows: int, staging: Staging) -> Tensor | None:
        """Compute `plan` with the graph of `rows`; its logits [plan's rows, vocab]. None: it is too large for it."""
        captured = self._graphs[rows, plan.adapters is not None]
        arrays = decode_arrays(plan, self._shape, rows)
        if arrays["tables"].size > self._table_words or any(arrays[work_name(w)][0] > self._items for w in self._shape.windows):
            return None
        staging.send_to(self._words, arrays, captured.where)
        self._last = captured.graph
        captured.graph.replay()
        return captured.logits[: plan.rows.size]

    def replay_last(self) -> None:
        """The same step once more, for whoever times it."""
        if self._last is None:
            raise RuntimeError("no graph was replayed yet")
        self._last.replay()

    def _captured(self, arrays: Arrays, compute: Pass) -> _Captured:
        rows = arrays["lengths"].size
        where, logits = self._places(arrays), self._logits[:rows]
        Staging(self._words.device).send_to(self._words, arrays, where)
        sent = views(self._words, arrays, where)
        compute(sent, rows, logits)  # compiles, and lets the libraries take their workspaces outside of the graph
        torch.cuda.synchronize()
        graph, others = torch.cuda.CUDAGraph(), list(self._graphs.values())
        with torch.cuda.graph(graph, pool=others[0].graph.pool() if others else None, capture_error_mode="thread_local"):
            compute(sent, rows, logits)
        return _Captured(graph, where, logits)

    def _places(self, arrays: Arrays) -> dict[str, slice]:
        rows = arrays["lengths"].size
        room = {work_name(window): 2 + rows + self._items for window in self._shape.windows} | {"tables": self._table_words}
        return places(arrays, room)


def _empty(shape: Shape, rows: int, *, adapted: bool) -> Arrays:
    """The arrays of a step that is nothing but padding."""
    none = np.zeros(0, np.int32)
    plan = StepPlan(
        0, none, np.zeros(1, np.int32), none, none, np.zeros((0, 1), np.int32), np.zeros(0, np.bool_), adapters=none if adapted else None
    )
    return decode_arrays(plan, shape, rows)
