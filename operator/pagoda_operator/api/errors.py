"""The operator's errors, one tree; `reconcile` is the one place that maps them to a condition and a retry.

OperatorError
├── SpecProblem               only a change of objects cures it: Stalled with `reason`, no retry of its own
├── ClusterError
│   ├── Unconverged           what was written does not stay: somebody else writes it too
│   ├── Unavailable           no answer, 429 or 5xx: a read is asked again at once, the run with growing delays
│   ├── Conflict              409: somebody was faster; observe anew
│   ├── Refused               400, 422: the API server does not take the object
│   └── Denied                401, 403: RBAC, quota or admission says no; retried, and said
├── Superseded                another leader gives orders: the process ends
├── SettingsError             the command line or the environment; the process ends
├── TraceRefused              a line of a trace to replay
└── PageRefused               what scaling once wrote down cannot be read
"""

from __future__ import annotations

from pagoda_contracts.conditions.types import Reason


class OperatorError(Exception):
    """Base of all errors raised on purpose."""


class SpecProblem(OperatorError):
    """Only a change of the service, its profile or a neighbour cures it. `reason` is the Stalled condition's."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class ClusterError(OperatorError):
    """The API server did not do what was asked."""


class Unconverged(ClusterError):
    """The same write again and again: an admission rule or a person undoes it. Events do not shorten the wait."""


class Unavailable(ClusterError):
    """No answer, too many requests, or a fault of the server. `soon`: in how many seconds a read may be asked again (again.py), None where
    that would not help."""

    def __init__(self, message: str, soon: float | None = None) -> None:
        super().__init__(message)
        self.soon = soon


class Conflict(ClusterError):
    """A precondition failed or the object exists: the view was stale."""


class Refused(ClusterError):
    """The object is invalid in the server's eyes."""


class Denied(ClusterError):
    """Not allowed, by RBAC, quota or an admission rule."""


class Superseded(OperatorError):
    """A replica has obeyed a later leader. Whatever this process believes is over; it ends, and nothing retries it."""


class SettingsError(OperatorError):
    """An option or variable that cannot work; names the value and what is accepted."""


class TraceRefused(OperatorError):
    """A trace that cannot be replayed; names the line and what is accepted."""


class PageRefused(OperatorError):
    """A page of what scaling learned that cannot be read; names what is wrong."""
