"""Every way this tool can fail, and the exit code of each. A message is one line that says what to do next.

DevClusterError                  1
├── UsageError                   2   asked for something that cannot be
├── NotRunningError              3   the cluster named is not up (also `status` of a stopped one)
├── MissingPrerequisiteError     4   a package, a toolchain or a right is missing
├── StartError                   5   a process died, or something was not ready in time
├── BuildError                   6   a binary did not compile or says another version
├── ApiError                     7   the API server refused an object
└── StoppedError               130   Ctrl-C
"""

EXIT_DOWN = 3
# As shells write the end by SIGINT.
EXIT_STOPPED = 130


class DevClusterError(Exception):
    """Base of the tree; `main` prints its text and exits with what `exit_code` says."""


class UsageError(DevClusterError):
    """The command line or an object in the cluster contradicts the request."""


class NotRunningError(DevClusterError):
    """The command needs a running cluster."""


class MissingPrerequisiteError(DevClusterError):
    """The machine lacks something that this tool does not install unasked."""


class StartError(DevClusterError):
    """Something did not come up; the text ends with the last lines of its log."""


class BuildError(DevClusterError):
    """The Go toolchain refused; the text ends with its last lines."""


class ApiError(DevClusterError):
    """The API server answered with an error status."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class StoppedError(DevClusterError):
    """A person pressed Ctrl-C; the text says what is left."""


def exit_code(error: DevClusterError) -> int:
    """The one mapper from errors to the outside."""
    codes: dict[type[DevClusterError], int] = {
        UsageError: 2,
        NotRunningError: EXIT_DOWN,
        MissingPrerequisiteError: 4,
        StartError: 5,
        BuildError: 6,
        ApiError: 7,
        StoppedError: EXIT_STOPPED,
    }
    return codes.get(type(error), 1)
