"""The daemon's errors, one tree; `api/openai/errors.py` maps it to HTTP, `__main__` to an exit code.

DaemonError
├── PermanentError            no restart cures it: exit 78, one line in the termination message
│   ├── ModelRejected         unknown architecture, missing tensor, wrong shape, unreadable file
│   └── ConfigRejected        impossible or contradictory configuration
├── NotStarted                this machine would not let it start now (a full disk): a restart may
├── EngineDied                the engine process is gone or silent
├── AdapterRejected           a LoRA adapter cannot be served, or not beside the others
│   ├── AdapterMissing        there is none
│   └── AdapterTaken          its name stands for another one
└── RequestError              ends one request, never the engine
    ├── BadRequest            invalid input; names the parameter
    │   └── NotRead           its answer was not read for too long
    ├── Unauthenticated       no key or token, or none that is good
    ├── Forbidden             known, and not allowed to do this
    ├── ModelNotFound         `model` is none of the served names
    ├── RequestNotFound       no request of that id, or another tenant's
    ├── ResponseNotFound      responses are not kept
    ├── CannotContinue        its answer was begun by another model
    ├── DeadlineExceeded      its own deadline passed: no client waits for the answer any more
    ├── Draining              accepted no more: try another replica
    ├── NotReady              still loading
    ├── StaleOrder            an order of control that no longer holds
    ├── WrongReplica          an order for the pod that had this address before
    ├── NotBuilt              a method that this version knows and does not serve
    │   └── EndpointNotBuilt  a path of OpenAI's API
    ├── OverReservation       needs more tokens than its gateway has reserved for it
    ├── Overloaded            holds as many as it may: try another replica
    │   └── TooMany           too much waits already
    └── RequestFailed         the engine ended this request; others go on
"""

from __future__ import annotations

import re
from typing import Final

from pagoda_contracts.names import (
    ERROR_CANNOT_CONTINUE,
    ERROR_DEADLINE,
    ERROR_DRAINING,
    ERROR_FORBIDDEN,
    ERROR_MODEL_NOT_FOUND,
    ERROR_NOT_READY,
    ERROR_OVER_RESERVATION,
    ERROR_OVERLOADED,
    ERROR_UNAUTHENTICATED,
    ERROR_UNSUPPORTED,
    ERROR_UNSUPPORTED_ENDPOINT,
)

MAX_SHOWN: Final = 200
_QUOTED: Final = re.compile(rf"(['`])(.{{{MAX_SHOWN}}}).+\1", re.DOTALL)


def shown(value: object) -> str:
    """What a caller sent, as a refusal shows it: a text in quotes, a number of thousands of digits too, of all at most MAX_SHOWN
    characters."""
    if isinstance(value, str):
        return f"{value[:MAX_SHOWN]!r}…" if len(value) > MAX_SHOWN else repr(value)
    text = str(value)
    return f"{text[:MAX_SHOWN]}…" if len(text) > MAX_SHOWN else text


def clipped(sentence: str) -> str:
    """A library's sentence; the values that it quotes are cut as `shown` cuts them."""
    return _QUOTED.sub(lambda found: f"{found[1]}{found[2]}…{found[1]}", sentence)


class DaemonError(Exception):
    """Base of all errors raised on purpose."""


class PermanentError(DaemonError):
    """No restart cures it. `reason` is a CamelCase word for the operator's condition."""

    reason = "Permanent"


class ModelRejected(PermanentError):
    """The model's files cannot be served; the message names the file, key or tensor."""

    reason = "ModelRejected"


class ConfigRejected(PermanentError):
    """The configuration cannot work; the message names the value and what is accepted."""

    reason = "ConfigRejected"


class NotStarted(DaemonError):
    """The machine would not let it start; the message names what was refused."""


class EngineDied(DaemonError):
    """The engine process is gone or silent."""


class AdapterRejected(DaemonError):
    """A LoRA adapter cannot be served; the message names the file, key or tensor."""


class AdapterMissing(AdapterRejected):
    """There is no adapter in that directory."""


class AdapterTaken(AdapterRejected):
    """The name stands for an adapter already. The sentence is vLLM's, which clients look for."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True."
        )


class RequestError(DaemonError):
    """Ends one request. `code` is OpenAI's string code."""

    code = "invalid_request"


class BadRequest(RequestError):
    """Invalid input; `param` names it."""

    code = "invalid_value"

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code


class NotRead(BadRequest):
    """Who asked does not take the answer."""

    code = "request_timeout"


def context_exceeded(context: int, however: str, param: str) -> BadRequest:
    """Begins as OpenAI's does: by these words litellm and others know that a model with a longer context would do."""
    return BadRequest(f"This model's maximum context length is {context} tokens. However, {however}", param, "context_length_exceeded")


class Unauthenticated(RequestError):
    """No key or token, or none that is good. The message never tells which of the checks failed beyond what the bearer knows."""

    code = ERROR_UNAUTHENTICATED


class Forbidden(RequestError):
    """Known, and not allowed to do this."""

    code = ERROR_FORBIDDEN


class ModelNotFound(RequestError):
    """`model` is none of the served names."""

    code = ERROR_MODEL_NOT_FOUND


class RequestNotFound(RequestError):
    """None of that id is remembered, or it is another tenant's: which of the two is not said."""

    code = "request_not_found"


class ResponseNotFound(RequestError):
    """Responses are not kept."""

    code = "response_not_found"


class CannotContinue(RequestError):
    """The answer was begun elsewhere, by another model or adapter: its tokens mean nothing here."""

    code = ERROR_CANNOT_CONTINUE


class DeadlineExceeded(RequestError):
    """The request's own deadline passed, before its first token or after some."""

    code = ERROR_DEADLINE


class Draining(RequestError):
    """Accepted no more; another replica will take it."""

    code = ERROR_DRAINING


class NotReady(RequestError):
    """Still loading."""

    code = ERROR_NOT_READY


class StaleOrder(RequestError):
    """An order of control that no longer holds: of an older epoch, or against SIGTERM."""

    code = "failed_precondition"


class StaleCatalogue(RequestError):
    """A catalogue of adapters that a later one has replaced."""

    code = "aborted"


class WrongReplica(RequestError):
    """An order of control for the pod that had this address before."""

    code = "not_found"


class NotBuilt(RequestError):
    """A method that this version knows and does not serve."""

    code = ERROR_UNSUPPORTED


class EndpointNotBuilt(NotBuilt):
    """A path of OpenAI's API that is not served."""

    code = ERROR_UNSUPPORTED_ENDPOINT


class OverReservation(RequestError):
    """Needs `needed` tokens, more than its gateway has reserved. The gateway reserves them and asks again, or refuses its client."""

    code = ERROR_OVER_RESERVATION

    def __init__(self, needed: int, reserved: int) -> None:
        super().__init__(f"the request needs {needed} tokens, and {reserved} are reserved for it")
        self.needed = needed


class Overloaded(RequestError):
    """As much as one replica holds, or promises to finish in time; another one, or this one after `retry_after_s`, will take it."""

    code = ERROR_OVERLOADED

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooMany(Overloaded):
    """Too much waits for the engine already."""


class RequestFailed(RequestError):
    """The engine ended this one request; the others go on."""

    code = "internal_error"
