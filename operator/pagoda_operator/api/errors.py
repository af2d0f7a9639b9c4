"""The operator's errors, one tree; `reconcile` is the one place that maps them to a condition and a retry.

OperatorError
├── SpecProblem               only an edit of objects helps: Stalled with `reason`, no retry of its own
├── ClusterError
│   ├── Unavailable           no answer, 429 or 5xx: a read is repeated at once, the run with growing delays
│   ├── Conflict              409: another write was faster; observe anew
│   ├── Refused               400, 422: the API server does not accept the object
│   └── Denied                401, 403: RBAC, quota or admission forbids it; retried, and reported
├── Superseded                another leader gives orders: the process ends
└── SettingsError             the command line or the environment; the process ends
"""

from __future__ import annotations

from pagoda_contracts.conditions.types import Reason


class OperatorError(Exception):
    """Base of all errors raised on purpose."""


class SpecProblem(OperatorError):
    """Only an edit of the service, its profile or another service helps. `reason` is the Stalled condition's."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class ClusterError(OperatorError):
    """The API server did not do what was asked."""


class Unavailable(ClusterError):
    """No answer, too many requests, or a fault of the server. `soon`: in how many seconds a read may be repeated, None if never."""

    def __init__(self, message: str, soon: float | None = None) -> None:
        super().__init__(message)
        self.soon = soon


class Conflict(ClusterError):
    """A precondition failed, or the object exists: the view was stale."""


class Refused(ClusterError):
    """The API server calls the object invalid."""


class Denied(ClusterError):
    """Not allowed, by RBAC, quota or an admission rule."""


class Superseded(OperatorError):
    """A replica has obeyed a later leader. The process ends, and nothing is retried."""


class SettingsError(OperatorError):
    """An option or variable that cannot work; names the value and what is accepted."""
