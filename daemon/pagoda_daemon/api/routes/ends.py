"""How an answer ended, as the engine reports it: the reason of one that is complete, or the error that the client gets. Pure.

Asked by `generation` and by `api/grpc/generate.py` for every output that they hear.
"""

from __future__ import annotations

from typing import Final

from pagoda_daemon.api.openai.schemas import INVALID
from pagoda_daemon.core.errors import BadRequest, DaemonError, DeadlineExceeded, Draining, Overloaded, RequestFailed, TooMany
from pagoda_daemon.core.messages import Grammar, Refusal, RowOutput

_FINISHED: Final = frozenset(("stop", "length"))
_CROWDED: Final = frozenset(("queue_full", "load_shed"))


def checked_reason(row: RowOutput, grammar: Grammar | None = None) -> str | None:
    """Why the answer ended, None while it goes on; raises what ended it badly. `grammar` is the request's."""
    if row.finish_reason is None or row.finish_reason in _FINISHED:
        return row.finish_reason
    if row.refusal is not None:
        raise _refused(row.refusal, grammar)
    why = row.error or f"the engine ended this request: {row.finish_reason}"
    raise RequestFailed(f"{why} (request {row.request_id})")


def _refused(refusal: Refusal, grammar: Grammar | None) -> DaemonError:
    """Not now, which another replica may mend; or never, by what the request itself says."""
    param = grammar.param if grammar else ""
    match refusal.reason:
        case "draining":
            return Draining(refusal.message)
        case "expired":
            return DeadlineExceeded(refusal.message)
        case "never_fits":
            return BadRequest(refusal.message)
        case "grammar":
            return BadRequest(refusal.message, param or None, INVALID)
        case "conflict":
            return _contradiction([param or name if name == "grammar" else name for name in refusal.fields], param)
    kind = TooMany if refusal.reason in _CROWDED else Overloaded
    return kind(f"{refusal.reason}: {refusal.message}", refusal.retry_after_s)


def _contradiction(names: list[str], grammar: str) -> BadRequest:
    if len(names) == 1:
        code = INVALID if names[0] == grammar else None
        return BadRequest(f"{names[0]} leaves no token of this model to choose; change it", names[0], code)
    said = f"{', '.join(names[:-1])} and {names[-1]} together leave no token to choose; change one of them"
    return BadRequest(said, names[0])
