"""Fetch's errors, one tree; `__main__` maps them to exit codes, `service` to the last message of a stream.

FetchError
├── Permanent            no retry cures it: exit code 78
│   ├── ConfigRejected   an option, a credential's files, a folder
│   ├── Unsupported      an address or a form of artifact that is not built
│   ├── NotFound         404
│   ├── Forbidden        401, 403
│   ├── Refused          what is there may not be taken: names, sizes, no weights
│   └── Mismatch         bytes that are not those that were promised
└── Transient            trying again may help: exit code 1, and what was fetched stays for the next try
    ├── Unreachable      no answer, a cut, 429, 5xx
    ├── Stalled          bytes come, but too few
    ├── Changed          the source was edited meanwhile
    ├── NoRoom           the disk is full; what was fetched is removed
    └── LockLost         another pod took over the download

No message holds a credential or the query of an address (signed links carry their right there).
"""

from __future__ import annotations


class FetchError(Exception):
    """Base of all errors raised on purpose."""

    @property
    def reason(self) -> str:
        """One CamelCase word, as in a condition."""
        return type(self).__name__


class Permanent(FetchError):
    """No retry cures it."""


class ConfigRejected(Permanent):
    """An option, variable or credential that cannot work; names the value and what is accepted."""


class Unsupported(Permanent):
    """Not built; names what is."""


class NotFound(Permanent):
    """The source has no such repository, revision, bucket or file."""


class Forbidden(Permanent):
    """The source does not let us, with the credential that was named or without one."""


class Refused(Permanent):
    """The source holds something that is not taken."""


class Mismatch(Permanent):
    """Content with another digest than promised; it has been removed."""


class Transient(FetchError):
    """Trying again may help."""


class Unreachable(Transient):
    """No answer, a connection cut, or a server that asks for patience."""


class Stalled(Transient):
    """No progress worth the name for a whole window."""


class Changed(Transient):
    """An object is not the one that was listed any more."""


class NoRoom(Transient):
    """The volume is too small; names what is needed and what is free."""


class LockLost(Transient):
    """Another process fetches the same into the same cache now."""
