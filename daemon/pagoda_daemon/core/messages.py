"""What crosses between the front process and the engine process, over zmq as msgpack. Owned by both, changed by neither alone.

The front knows texts, templates and stop strings; the engine sees token ids only. Both start from one image: no version is needed.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from pagoda_daemon.core.sampling import Sampling


class Prefix(msgspec.Struct, frozen=True, array_like=True):
    """A beginning of the prompt's text by its hash (contracts, `prefix.py`, kind "text"), and how many of the prompt's tokens it takes."""

    hash: bytes
    tokens: int


class Grammar(msgspec.Struct, frozen=True):
    """What the answer's text must be. `text`: JSON schema, regular expression, grammar (Lark or GBNF), or JSON list of choices; `eos`: the
    model's own end tokens, allowed where the grammar may end. Bounded by the front (`structured.limits`). `param`: its field."""

    kind: Literal["json_schema", "regex", "choice", "grammar"]
    text: str
    eos: tuple[int, ...] = ()
    param: str = ""

    @property
    def digest(self) -> str:
        """What its verdict is remembered by."""
        return hashlib.sha256(f"{self.kind}\0{self.text}".encode(errors="surrogatepass")).hexdigest()


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """A request enters. `prompt` holds at least one id, each in [0, vocab); prompt + max_tokens fit the context.

    `n` answers, told apart by `RowOutput.index`, share the prompt's blocks. What follows is the gateway's word, never a client's: `tenant`
    pays and has `weight` against others, `tier` and `priority` (larger first, within the tier) are its class. `deadline_ms` is on the
    machine's monotonic clock: a request that is late never reaches the device. `cache_salt` and `adapter` (the content's digest, empty
    without one) name whose beginnings may be shared. `prefixes`, shortest first, are to be tied to the blocks that they end in.
    `resumed` are the answer's first tokens, which another replica gave: they count as this one's and are not given again.
    """

    request_id: str
    prompt: tuple[int, ...]
    sampling: Sampling
    n: int = 1
    tenant: str = ""
    weight: float = 1.0
    tier: Literal["interactive", "batch"] = "interactive"
    priority: int = 0
    deadline_ms: int | None = None
    cache_salt: str = ""
    adapter: str = ""
    prefixes: tuple[Prefix, ...] = ()
    grammar: Grammar | None = None
    resumed: tuple[int, ...] = ()


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """The client is gone, or has enough of answer `index`: the request, or that answer alone, ends at once. Unknown ids are no error."""

    request_id: str
    index: int | None = None


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Finish the step under way and exit 0."""


class DeepCheckPrompt(msgspec.Struct, frozen=True, tag="deep_check"):
    """Compute the greedy token after `prompt` (at most a block of ids) beside whatever else there is: it has a row and a block of its own,
    waits in no queue and is counted nowhere. `margin` asks how far the token is ahead of the next best."""

    check_id: int
    prompt: tuple[int, ...]
    margin: bool = False


class LoadAdapter(msgspec.Struct, frozen=True, tag="load_adapter"):
    """Read the LoRA adapter in the directory `path`, whose files must lie below `root`, and hold it once more."""

    call: int
    path: str
    root: str


class ReleaseAdapter(msgspec.Struct, frozen=True, tag="release_adapter"):
    """Hold it once less. It goes with its last hold and its last request."""

    digest: str


ToEngine = Submit | Abort | Shutdown | DeepCheckPrompt | LoadAdapter | ReleaseAdapter


class Stats(msgspec.Struct, frozen=True):
    """Counts after a step. `running` hold a row, `waiting` do not; `compiling` wait for the verdict on their grammar, and no step helps
    them. `waiting_tokens` are those still to be computed for the last two. Blocks that are only remembered (`blocks_cached`) count as free.
    Of `prompt_tokens` begun, `reused_tokens` were known already. `prefill_tokens` are those that rows compute before their next token."""

    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    blocks_used: int = 0
    blocks_free: int = 0
    blocks_total: int = 0
    preemptions: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    blocks_cached: int = 0
    compiling: int = 0
    prefill_tokens: int = 0


class Residence(msgspec.Struct, frozen=True, array_like=True):
    """What became of sampled KV blocks: counts by the buckets of the contracts' metrics of these names, and seconds in all."""

    lifetime: tuple[int, ...] = ()
    lifetime_sum: float = 0.0
    idle: tuple[int, ...] = ()
    idle_sum: float = 0.0
    gap: tuple[int, ...] = ()
    gap_sum: float = 0.0


class Computed(msgspec.Struct, frozen=True, array_like=True):
    """What all steps computed: tokens fed, tokens sampled, tokens of KV that rows looked back at, and pairs of query and key."""

    tokens: int = 0
    sampled: int = 0
    read: int = 0
    pairs: int = 0


class Tally(msgspec.Struct, frozen=True, array_like=True):
    """What the engine counted since it began, by the buckets of the contracts' metrics of these names; empty: nothing yet. `deferred` is
    of now: answers that wait for the prompt which another one of their request computes."""

    step_tokens: tuple[int, ...] = ()
    step_tokens_sum: int = 0
    step_seconds: tuple[int, ...] = ()
    step_seconds_sum: float = 0.0
    corrupted: int = 0
    deferred: int = 0
    residence: Residence = Residence()
    computed: Computed = Computed()
    compiled: int = 0


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """Weights are being read; `progress` 0..1 grows, or the load is stuck."""

    progress: float


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Loaded and warm: what the front validates against. `adapters`: digests of those that the configuration names, in its order."""

    max_model_len: int
    vocab_size: int
    block_size: int
    blocks_total: int
    max_concurrency: int
    computed_by: str = ""  # device and instruction set, for people
    model: str = ""  # names weights and numerics
    adapters: tuple[str, ...] = ()
    device: str = ""  # uuid of the GPU or the MIG slice, without a prefix


Reason = Literal["queue_full", "memory_pressure", "load_shed", "deadline", "draining", "expired", "never_fits", "grammar", "conflict"]
"""The first five: not now, nothing was begun. The others: never, by the request's own doing: its deadline has passed, it is too large for
this replica, its grammar cannot be used (any further), or its `fields` together leave no token to choose."""


class Refusal(msgspec.Struct, frozen=True):
    """Why a request was not begun, or could not go on. `retry_after_s` is computed, at most 120 (a client ignores more). Of `fields`,
    "grammar" stands for the one that said the request's grammar."""

    reason: Reason
    retry_after_s: float
    message: str
    fields: tuple[str, ...] = ()


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """The model's log-probability of one token, its rank (1 is the best), and the best tokens with theirs, best first."""

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class Life(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one answer went through. `queued_ms` from the engine's hearing of it to its first row, `prefill_ms` from there to its first
    token (to its end where none came). Of the prompt `cached_tokens` were known; `computed_tokens` were fed in `chunks` steps, what was
    computed again after `preemptions` included."""

    queued_ms: float = 0.0
    prefill_ms: float = 0.0
    cached_tokens: int = 0
    computed_tokens: int = 0
    chunks: int = 0
    preemptions: int = 0


class RowOutput(msgspec.Struct, frozen=True, gc=False):
    """New tokens of answer `index` of a request. `finish_reason` "stop" (the last token is a stop id; without a token a
    grammar is complete), "length", "abort", "error", or "refused" with `refusal`, which ends every answer of it.

    `logprobs` are of `token_ids`; `prompt_logprobs` of the next prompt tokens in order, from the second on, as they are computed: they
    come once for all answers, with the first.

    `embedding`, little-endian fp32 of length 1, comes with the end of a prompt that is pooled.

    `life` comes with the first token, with the first one after each preemption, and with the end of every request that had a row:
    whenever the front ends an answer itself (a stop string), what it heard last is true.
    """

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: str | None = None
    error: str | None = None
    index: int = 0
    refusal: Refusal | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    life: Life | None = None
    embedding: bytes = b""


class StepOutput(msgspec.Struct, frozen=True, tag="step"):
    """One step's new tokens; requests without any are absent."""

    outputs: tuple[RowOutput, ...]
    stats: Stats


class DeepCheckAnswer(msgspec.Struct, frozen=True, tag="deep_check_answer"):
    """The token after a deep check's prompt, with its lead in log-probability if asked for; or why there is none."""

    check_id: int
    token_id: int | None
    margin: float | None = None
    error: str | None = None


class AdapterLoaded(msgspec.Struct, frozen=True, tag="adapter_loaded"):
    """The adapter of a `LoadAdapter` is held under `digest`; or `error` says why not: there is none (`missing`), or a `fault` of ours."""

    call: int
    digest: str = ""
    rank: int = 0
    error: str = ""
    missing: bool = False
    fault: bool = False


class AdapterUse(msgspec.Struct, frozen=True, array_like=True):
    """How many answers of an adapter have a row, and how many wait."""

    digest: str
    running: int
    waiting: int


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """Sent by the engine's loop every 100 ms, every 250 ms when idle. `cost_us` is what a step takes, each token in it and each token that
    its rows look back at. Times: CLOCK_MONOTONIC in ms, of the whole machine, so the front may subtract. `step_started_ms` 0 when idle."""

    sent_at_ms: int
    step_started_ms: int
    predicted_step_ms: int
    stats: Stats
    tally: Tally = Tally()
    cost_us: tuple[float, float, float] = (0.0, 0.0, 0.0)
    adapters: tuple[AdapterUse, ...] = ()


class Prefixes(msgspec.Struct, frozen=True, tag="prefixes"):
    """Names of texts (`Submit.prefixes`) whose blocks became known, and those whose blocks were taken, since the last such message."""

    resident: tuple[bytes, ...]
    evicted: tuple[bytes, ...]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine cannot go on. `permanent`: no restart cures it (bad model, impossible config)."""

    reason: str
    message: str
    permanent: bool


FromEngine = Loading | Ready | StepOutput | DeepCheckAnswer | AdapterLoaded | Heartbeat | Prefixes | Failed
