"""An engine in this process with real grammar workers, and schemas drawn by seed whose answers are short."""

from __future__ import annotations

import contextlib
import json
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pagoda_contracts.launch import EngineConfig
from pagoda_daemon.core.batch import WorkerLimits
from pagoda_daemon.core.messages import FromEngine, Grammar, Ready, RowOutput, Shutdown, StepOutput, ToEngine
from pagoda_daemon.engine.grammars import MakePool, pool_maker
from pagoda_daemon.engine.loop import Engine
from pagoda_daemon.runner.worker import Worker
from pagoda_daemon.simulated.device.worker import SimulatedWorker
from pagoda_daemon.simulated.replicas.engine import LocalWire
from support.engine.toy_model import EOS, VOCAB, tiny_model_dir

PATIENCE_S = 300.0
LIMITS = WorkerLimits(4096, 16, VOCAB, 2048)
# Grammars that are small to send and large to compile, as the engine's messages spell them; the first kind takes all the CPU that it may.
SLOW_BOMBS = (("json_schema", '{"type": "integer", "multipleOf": 1048573}'),)
BOMBS = (
    *(
        ("json_schema", json.dumps(schema))
        for schema in (
            {"allOf": [{"anyOf": [{"properties": {f"a{i}{j}": {"type": "integer"}}} for j in range(8)]} for i in range(12)]},
            {"$ref": "#/$defs/n", "$defs": {"n": {"allOf": [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/n"}]}}},
            {"$ref": "#"},
            {"enum": [f"v{number:05d}" for number in range(6000)]},
            {"type": "object", "properties": {f"k{number}": {"type": "integer"} for number in range(1500)}},
        )
    ),
    ("regex", "(" * 60 + "a" + ")*" * 60),
    ("regex", "((a{0,1000}){0,1000}){0,1000}"),
    ("regex", r"(\w{1,500}\d{1,500}){1,20}"),
    ("grammar", "start: A0 A1" + "".join(f"\nA{n}: A{n + 1} A{n + 1}" for n in range(40)) + '\nA40: "x"'),
    ("grammar", 'start: e\ne: e e e | e e | "a" | ""'),
)


def drawing_worker() -> SimulatedWorker:
    """No time, and text under a grammar that wanders through it."""
    return SimulatedWorker(LIMITS)


@dataclass
class Local:
    """`outputs` are all rows heard, in order; `text_of` those of one answer."""

    wire: LocalWire
    heard: queue.SimpleQueue[FromEngine]
    engine: Engine
    outputs: list[RowOutput] = field(default_factory=list)

    def send(self, *messages: ToEngine) -> None:
        for message in messages:
            self.wire.put(message)

    def until(self, holds: Callable[[], bool]) -> None:
        """Hear until it holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            message = self.heard.get(timeout=max(0.01, deadline - time.monotonic()))
            if isinstance(message, StepOutput):
                self.outputs += message.outputs

    def end_of(self, name: str, index: int = 0) -> RowOutput:
        self.until(lambda: self._end(name, index) is not None)
        end = self._end(name, index)
        assert end is not None
        return end

    def tokens(self, name: str, index: int = 0) -> list[int]:
        return [token for row in self.outputs if (row.request_id, row.index) == (name, index) for token in row.token_ids]

    def said(self, name: str, index: int = 0) -> str:
        """The toy tokenizer's ids below 256 are bytes."""
        return said(self.tokens(name, index))

    @property
    def pids(self) -> list[int]:
        """Of the grammar workers, the one for trials first."""
        pool = self.engine._grammars._pool
        return [] if pool is None else pool.pids

    def _end(self, name: str, index: int) -> RowOutput | None:
        return next((row for row in self.outputs if (row.request_id, row.index) == (name, index) and row.finish_reason), None)


def said(tokens: list[int]) -> str:
    """Words above the bytes are spelled as in the vocabulary; the end token shows nothing."""
    return b"".join(bytes([token]) if token < 256 else f" w{token}".encode() for token in tokens if token != EOS).decode()


@contextlib.contextmanager
def local_engine(
    folder: Path, build: Callable[[], Worker] = drawing_worker, tokenizer: Path | None = None, pools: MakePool | None = None
) -> Iterator[Local]:
    """Running and ready, with 16 rows; ended with the block."""
    heard: queue.SimpleQueue[FromEngine] = queue.SimpleQueue()
    wire = LocalWire(heard.put)
    pools = pools or pool_maker(tokenizer or tiny_model_dir(folder / "toy") / "tokenizer.json", 2)
    engine = Engine(wire, EngineConfig(max_concurrency=16), lambda _: build(), lambda: time.monotonic() * 1000, pools)
    thread = threading.Thread(target=engine.run, args=(lambda: False,))
    thread.start()
    try:
        while not isinstance(heard.get(timeout=PATIENCE_S), Ready):
            pass
        yield Local(wire, heard, engine)
    finally:
        wire.put(Shutdown())
        thread.join()
        wire.close()


def schema_grammar(schema: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(schema), (EOS,))


def drawn_schema(seed: int) -> dict[str, Any]:
    """Distinct for each seed, and every text that it allows is short, blanks apart."""
    luck = random.Random(seed)
    schema = _object(luck, 3)
    schema["properties"][f"seed{seed}"] = {"const": seed}
    schema["required"].append(f"seed{seed}")
    if luck.random() < 0.5:
        schema["$defs"] = {"leaf": _leaf(luck)}
        schema["properties"]["ref"] = {"$ref": "#/$defs/leaf"}
        schema["required"].append("ref")
    return schema


def _object(luck: random.Random, depth: int) -> dict[str, Any]:
    names = [f"p{place}" for place in range(luck.randint(1, 4))]
    return {
        "type": "object",
        "properties": {name: _value(luck, depth - 1) for name in names},
        "required": [name for name in names if luck.random() < 0.7],
        "additionalProperties": False,
    }


def _value(luck: random.Random, depth: int) -> dict[str, Any]:
    kind = luck.random()
    if depth > 0 and kind < 0.2:
        return _object(luck, depth)
    if depth > 0 and kind < 0.4:
        return {"type": "array", "items": _value(luck, depth - 1), "minItems": luck.randint(0, 1), "maxItems": luck.randint(1, 3)}
    if depth > 0 and kind < 0.5:
        return {"anyOf": [_leaf(luck), _leaf(luck), {"type": "null"}]}
    return _leaf(luck)


def _leaf(luck: random.Random) -> dict[str, Any]:
    low = luck.randint(-1000, 1000)
    return luck.choice(
        [
            {"type": "integer", "minimum": low, "maximum": low + luck.randint(0, 500)},
            {"type": "integer", "exclusiveMinimum": low, "multipleOf": luck.choice([2, 3, 5]), "maximum": low + 100},
            {"type": "number", "minimum": low / 8, "maximum": low / 8 + 3, "multipleOf": 0.25},
            {"enum": ["red", "green", luck.randint(0, 9), None, True]},
            {"const": f"c{luck.randint(0, 99)}"},
            {"type": "string", "pattern": luck.choice(["^[a-f]{2,5}$", "^(ab|cd)+-[0-9]{1,3}$", r"^\d{4}-\d{2}$"]), "maxLength": 12},
            {"type": "string", "minLength": luck.randint(0, 2), "maxLength": luck.randint(3, 8)},
            {"type": "boolean"},
            {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
            {"type": "string", "format": luck.choice(["date", "uuid", "ipv4"])},
        ]
    )
