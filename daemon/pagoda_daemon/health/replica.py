"""What the front knows of its replica, the three probe verdicts over it, and the thread that answers the kubelet.

`Replica` is written by the event loop only and read attribute by attribute from the probe thread: no lock, so that neither a
stuck loop nor a stuck engine can keep a probe from being answered. The verdicts are pure. Never runs inference: a probe that
submits work harms what it watches.
"""

from __future__ import annotations

import asyncio
import socketserver
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple, Self

from pagoda_contracts.launch import HealthConfig
from pagoda_contracts.names import PATH_LIVE, PATH_READY, PATH_STARTUP
from pagoda_contracts.pb.daemon_pb2 import Phase
from pagoda_contracts.units import parse_duration

from pagoda_daemon.core.messages import AdapterUse, Ready, Stats, Tally
from pagoda_daemon.health.device import DeviceHealth
from pagoda_daemon.health.drain import Drain
from pagoda_daemon.health.prefixes import PrefixBook


class Limits(NamedTuple):
    """Ages in seconds after which silence is a fault. A step of a busy CPU replica may last seconds: 120 s raised no false alarm
    where 20 s killed healthy pods several times an hour; a load that has not moved for 300 s is stuck. A step is overdue, its device
    hung, after 120 s and 20 times what was predicted for it."""

    heartbeat: float = 120.0
    load_stall: float = 300.0
    step: float = 120.0
    step_factor: float = 20.0

    @classmethod
    def of(cls, config: HealthConfig | None) -> Self:
        """As the configuration says; one number bounds the loops and the steps, and a slow device is given its own measure."""
        config = config or HealthConfig()
        progress = parse_duration(config.progress_timeout)
        return cls(heartbeat=progress, load_stall=parse_duration(config.load_timeout), step=progress)


class Verdict(NamedTuple):
    """Answer of one probe; `why` is one line for a person."""

    ok: bool
    why: str


OUTCOMES: Final = ("right", "wrong", "late", "error")


@dataclass
class DeepCheck:
    """What the deep check (`deep_check.py`) found: when it was last right (0: never), whether it failed last, and counts of OUTCOMES."""

    good_at: float = 0.0
    failed: bool = False
    outcomes: Counter[str] = field(default_factory=Counter)


@dataclass
class Preparations:
    """Pieces of work on threads: those that wait for one, and those that run."""

    waiting: int = 0
    running: int = 0


@dataclass
class Replica:
    """One writer (the event loop), many readers. Times are seconds of the monotonic clock, as are the engine's (one machine)."""

    born: float
    phase: Phase = Phase.PHASE_STARTING
    listening: bool = True
    in_flight: int = 0
    admitted: int = 0  # since the process began
    turned_away: int = 0  # before the engine heard of them: too many requests, or too many bytes of them, were held
    waking: int = 0  # requests that wait until their adapter is loaded
    preparations: Preparations = field(default_factory=Preparations)
    loop_beat: float = 0.0
    engine_beat: float = 0.0
    step_started: float = 0.0
    predicted_step_ms: int = 0
    stepped: float = 0.0
    load_progress: float = 0.0
    load_moved: float = 0.0
    warm_s: float = 0.0  # from the end of the load to READY
    deep: DeepCheck = field(default_factory=DeepCheck)
    device: DeviceHealth = field(default_factory=DeviceHealth)
    limits: Ready | None = None
    stats: Stats = field(default_factory=Stats)
    tally: Tally = field(default_factory=Tally)
    cost_us: tuple[float, float, float] = (0.0, 0.0, 0.0)
    adapters: tuple[AdapterUse, ...] = ()
    prefixes: PrefixBook = field(default_factory=PrefixBook)
    drain: Drain = field(default_factory=Drain)
    announcing: bool = False  # it drains, and not every watcher can know yet: what comes meanwhile is served
    listeners: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loop_beat = self.engine_beat = self.stepped = self.load_moved = self.born

    def changed(self) -> None:
        """Notifies the listeners, which decide for themselves how soon to look."""
        for listener in self.listeners:
            listener()

    def heard(self, stats: Stats, now: float) -> None:
        """What the engine counts. Progress is a finished step, or no request that waits for one."""
        if stats.steps != self.stats.steps or not stats.waiting:
            self.stepped = now
        if stats != self.stats:
            self.stats = stats
            self.changed()

    def enter(self, phase: Phase) -> None:
        """A new phase of life; DRAINING and STOPPED are never left for READY by a late message of the engine."""
        if self.phase not in (Phase.PHASE_STOPPED, phase):
            self.phase = phase
            self.changed()

    @property
    def accepting(self) -> bool:
        return self.phase == Phase.PHASE_READY and self.listening

    @property
    def taking(self) -> bool:
        """Whether a request that comes is served."""
        return self.accepting or (self.announcing and self.phase == Phase.PHASE_DRAINING)

    @property
    def leaving(self) -> bool:
        return self.phase in (Phase.PHASE_DRAINING, Phase.PHASE_STOPPED)


def started(replica: Replica, now: float, limits: Limits) -> Verdict:
    """Loaded, or the load is moving."""
    if replica.limits is not None:
        return Verdict(True, "loaded")
    stalled = now - replica.load_moved
    if stalled > limits.load_stall:
        return Verdict(False, f"loading stands at {replica.load_progress:.0%} for {stalled:.0f} s")
    return Verdict(True, f"loading, {replica.load_progress:.0%}")


def live(replica: Replica, now: float, limits: Limits) -> Verdict:
    """The front's loop turns, and the engine's does or its load moves; no step is overdue (the engine beats on beside a hung device, so
    only the step's age shows it), and where requests wait there are steps. A chunk of a long prompt is a step: no token need come out."""
    front = now - replica.loop_beat
    if front > limits.heartbeat:
        return Verdict(False, f"the front's loop has not turned for {front:.1f} s")
    if replica.limits is None:
        return started(replica, now, limits)
    # What the loop has not read since it last turned does not count against the engine: it said so of one whose front was stuck.
    heard = replica.loop_beat
    engine = heard - replica.engine_beat
    if engine > limits.heartbeat:
        return Verdict(False, f"the engine's heartbeat is {engine:.1f} s old")
    step = heard - replica.step_started if replica.step_started else 0.0
    if step > max(limits.step, limits.step_factor * replica.predicted_step_ms / 1000):
        return Verdict(False, f"a step predicted at {replica.predicted_step_ms} ms has run for {step:.1f} s")
    if not replica.step_started and replica.stats.waiting and heard - replica.stepped > limits.heartbeat:
        return Verdict(False, f"{replica.stats.waiting} requests wait, and no step has begun for {heard - replica.stepped:.1f} s")
    return Verdict(True, f"front {front:.1f} s, engine {engine:.1f} s")


def ready(replica: Replica, _now: float, _limits: Limits) -> Verdict:
    """Loaded, accepting, not draining. Never the age of a step: a busy replica is not an unready one."""
    if replica.accepting:
        return Verdict(True, f"ready, {replica.in_flight} in flight")
    if replica.leaving:
        return Verdict(False, f"draining, {replica.in_flight} in flight")
    if not replica.listening:
        return Verdict(False, "not listening yet")
    return Verdict(False, f"{Phase.Name(replica.phase).removeprefix('PHASE_').lower()}, {replica.load_progress:.0%}")


_LOOP_BEAT_S: Final = 0.25
_PROBES: Final = {PATH_STARTUP: started, PATH_LIVE: live, PATH_READY: ready}


async def keep_beating(replica: Replica) -> None:
    """Runs in the front's loop for as long as it turns; the age of its last beat is the front's liveness."""
    while True:
        replica.loop_beat = time.monotonic()
        await asyncio.sleep(_LOOP_BEAT_S)


class ProbeServer:
    """Answers probes on a thread and a socket of its own."""

    def __init__(self, replica: Replica, host: str, port: int, limits: Limits) -> None:
        handler = _handler(replica, limits)
        self._server = _Server((host, port), handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="probes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A prober that did not wait for its answer is not worth a stack on stderr."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        """Without the base class's look-up of this host's name: it took 50 ms here, and as long as a dead DNS server takes elsewhere."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]


def _handler(replica: Replica, limits: Limits) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        wbufsize = 1024  # head and body in one packet
        timeout = 5  # a prober that sends nothing holds a thread no longer than this

        def do_GET(self) -> None:
            probe = _PROBES.get(self.path)
            if probe is None:
                self._answer(404, f"the probes are {', '.join(_PROBES)}")
                return
            verdict = probe(replica, time.monotonic(), limits)
            self._answer(200 if verdict.ok else 503, verdict.why)

        def _answer(self, status: int, why: str) -> None:
            body = (why + "\n").encode()
            self.send_response(status)
            self.send_header("content-type", "text/plain; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            """Probes are not worth a log line."""

    return Handler
