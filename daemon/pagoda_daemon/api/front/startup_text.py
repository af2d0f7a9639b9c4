"""What `pagoda-daemon serve` prints for the person who started it, on stderr: how far the load is, and once it is there, what to type.

Made by `front.py` for stand-alone starts alone; in a pod the log, the probes and the state frames say the same to machines.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import Final

from pagoda_contracts.pb.daemon_pb2 import Phase

from pagoda_daemon.core.messages import Ready
from pagoda_daemon.health.replica import Replica

_LINES: Final = 10  # of a whole load


class StartupText:
    """Looks at the replica whenever something changed; says a thing once. `trust`: the file of a certificate that curl is to trust."""

    def __init__(self, replica: Replica, url: str, model: str, write: Callable[[str], object], *, trust: str | None = None) -> None:
        self._replica = replica
        self._url = url
        self._trust = trust
        self._model = model
        self._write = write
        self._shown = -1
        self._phase: int | None = None

    def begin(self) -> None:
        """From now on; the load may have begun, or be over, already."""
        self._replica.listeners.append(self.look)
        self.look()

    def look(self) -> None:
        replica = self._replica
        if replica.accepting and self._phase != Phase.PHASE_READY:
            self._write(welcome(self._url, self._model, replica.limits, self._trust))
        elif replica.leaving and self._phase != Phase.PHASE_DRAINING and replica.phase == Phase.PHASE_DRAINING:
            self._write(leaving(replica.in_flight))
        elif replica.limits is None and not replica.leaving and (done := int(_LINES * replica.load_progress + 1e-9)) > self._shown:
            self._shown = done
            self._write(f"loading {self._model}: {replica.load_progress:.0%}\n")
        self._phase = replica.phase if replica.accepting or replica.leaving else None


def leaving(in_flight: int) -> str:
    """What it still does before it ends."""
    match in_flight:
        case 0:
            return "draining: nothing is in flight\n"
        case 1:
            return "draining: 1 request is finishing; Ctrl-C again ends it\n"
        case _:
            return f"draining: {in_flight} requests are finishing; Ctrl-C again ends them\n"


def welcome(url: str, model: str, limits: Ready | None, trust: str | None = None) -> str:
    """What it can do, as a table, and what to type."""
    asked = {"model": model, "messages": [{"role": "user", "content": "What does lambda mean?"}], "stream": True}
    typed = shlex.quote(json.dumps(asked, ensure_ascii=False))
    rows = [("model", model), *(_abilities(limits) if limits else ()), ("OpenAI API", f"{url}/v1"), ("pages", f"{url}/docs, {url}/metrics")]
    table = "".join(f"  {name:<12} {value}\n" for name, value in rows)
    curl = "curl -N" if trust is None else f"curl -N --cacert {shlex.quote(trust)}"
    return f"ready: Ctrl-C ends it\n{table}  {curl} {url}/v1/chat/completions -H 'content-type: application/json' -d {typed}\n"


def _abilities(limits: Ready) -> list[tuple[str, str]]:
    tokens = limits.blocks_total * limits.block_size
    full = f"{tokens / limits.max_model_len:.1f} requests at the whole context"
    return [
        ("device", limits.computed_by or "simulated"),
        ("context", f"{limits.max_model_len:,} tokens"),
        ("KV cache", f"{tokens:,} tokens"),
        ("concurrency", f"{full}; at most {limits.max_concurrency} requests decode together"),
    ]
