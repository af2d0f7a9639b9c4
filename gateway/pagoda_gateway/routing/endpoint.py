"""Endpoint: a replica as the gateway sees it, with the last frame of state that the replica pushed. Only watch/cache.py writes one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple

READY: Final = "ready"


class Frame(NamedTuple):
    """One frame of a replica's pushed state. `phase` is a Verdict's word or "ready"; `step_age_ms` is 0 without a step under way.

    `max_concurrency` is how many requests run at the same time, 0 if it is not known. The fields from `phase_number` to `ttft_p95_ms` are
    for demand/, which sums them per service. `prefill_tokens` are those that running requests still wait for, and the `step_…` fields are
    the replica's own model of a step's time (routing/predict.py). `adapters` are the names that stand for a LoRA there, `loaded` those
    of them that are in its memory, and `coming` those that will stand for one.
    """

    sequence: int
    phase: str
    running: int
    waiting: int
    engine_age_ms: int
    served_names: frozenset[str] = frozenset()
    step_age_ms: int = 0
    predicted_step_ms: int = 0
    deep_check_failed: bool = False
    device_fault: str = ""
    revision: str = ""
    phase_number: int = 0
    in_flight: int = 0
    waiting_tokens: int = 0
    blocks_used: int = 0
    blocks_total: int = 0
    warm_ms: int = 0
    ttft_p95_ms: int = 0
    prefill_tokens: int = 0
    max_concurrency: int = 0
    block_size: int = 0
    step_base_us: float = 0.0
    step_token_us: float = 0.0
    step_row_us: float = 0.0
    adapters: frozenset[str] = frozenset()
    loaded: frozenset[str] = frozenset()
    coming: frozenset[str] = frozenset()


class PrefixChange(NamedTuple):
    """Which names of prompts' beginnings a replica's cache gained and lost since its last frame; `reset`: it has only the gained ones."""

    reset: bool
    gained: Collection[bytes]
    lost: Collection[bytes]


class Failures(NamedTuple):
    """How its requests fail (routing/outliers.py). `row`: failures since the last answer; `times`: how often it was left out, `until_ms`:
    until when it is or was."""

    row: int = 0
    times: int = 0
    until_ms: float = 0.0


NO_FAILURES: Final = Failures()
NO_CHANGE: Final = PrefixChange(False, (), ())


@dataclass(slots=True)
class Endpoint:
    """A replica's address and its state. Times are in ms by the gateway's clock."""

    name: str
    service: str
    address: str
    service_uid: str = ""
    draining: bool = False  # discovery says that the replica drains or is deleted
    faulty: bool = False  # its service's status says that its device is faulty
    frame: Frame | None = None
    frame_made_ms: float = 0.0
    connected: bool = False  # the state stream is open
    refused: bool = False  # it has refused a request since its last frame
    no_place: bool = False  # it had no place for another adapter since its last frame
    in_flight: int = 0  # requests of this gateway that are under way there
    in_flight_at_frame: int = 0
    sent_tokens: int = 0  # of prompts that this gateway has sent there since the last frame
    picks: float = 0.0  # how often this gateway chose it of late, beside its siblings (routing/share.py)
    resident: set[bytes] = field(default_factory=set)  # names of prompts' beginnings in its cache
    took_ms: float = 0.0  # how long requests take there, a mean of the last ones; 0 if not known
    failures: Failures = NO_FAILURES
    last_pick: int = 0  # the number of the pick that chose it last

    @property
    def revision(self) -> str:
        """The revision that it runs; empty until it has said so."""
        return self.frame.revision if self.frame else ""

    def adapter(self, model: str) -> str:
        """Returns the name if it stands for a LoRA here, else ""."""
        return model if self.frame is not None and model in self.frame.adapters else ""

    def has_loaded(self, adapter: str) -> bool:
        """Whether the adapter is in its memory."""
        return self.frame is not None and adapter in self.frame.loaded

    def must_load(self, model: str) -> bool:
        """Whether it has to load an adapter for such a request."""
        return bool(self.adapter(model)) and not self.has_loaded(model)

    def will_have(self, model: str) -> bool:
        """Whether the name stands for a LoRA here, or will."""
        return self.frame is not None and (model in self.frame.adapters or model in self.frame.coming)


def load(endpoint: Endpoint) -> int:
    """Returns how many requests it has: the pushed count, corrected by this gateway's requests that began or ended since."""
    frame = endpoint.frame
    pushed = frame.running + frame.waiting if frame else 0
    return max(endpoint.in_flight, pushed + endpoint.in_flight - endpoint.in_flight_at_frame)
