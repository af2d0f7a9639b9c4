"""The cluster as the user's own kubectl sees it: its contexts, its ways to log in. The only module that runs a program. Called by commands.

It reads, and `pagoda key` writes Secrets. A Kubernetes client of our own would have to know every login plugin that kubectl knows.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pagoda_cli.errors import CliError

GATEWAY_NAMESPACE: Final = "pagoda-system"
_TIMEOUT: Final = 60
_LOGS_TIMEOUT: Final = 300
_MOST_LINES: Final = 1000
_LOG_LINE: Final = re.compile(r"[IWEF]\d{4} ")  # what kubectl's own libraries log before its last words
_NO_CLUSTER: Final = ("was refused", "Unable to connect to the server", "no such host", "no configuration has been provided", "i/o timeout")
Json = dict[str, Any]


class Access(NamedTuple):
    """Which cluster and namespace; kubectl's own defaults where empty."""

    namespace: str = ""
    context: str = ""
    kubeconfig: str = ""

    @property
    def options(self) -> list[str]:
        """As kubectl's command line has them."""
        given = {"--namespace": self.namespace, "--context": self.context, "--kubeconfig": self.kubeconfig}
        return [f"{name}={value}" for name, value in given.items() if value]


def get(access: Access, *what: str) -> Json:
    """`kubectl get … -o json`; CliError with kubectl's words if it refuses."""
    found: Json = json.loads(_run(access, ["get", *what], ["--output=json"]))
    return found


def apply(access: Access, manager: str, document: Json) -> None:
    """Applies a document on the server: other fields of the object stay as they are."""
    how = ["--server-side", "--force-conflicts", f"--field-manager={manager}", "--filename=-"]
    _run(access, ["apply"], how, given=json.dumps(document))


def remove(access: Access, target: str, *path: str) -> None:
    """Removes one field of an object; CliError if it is not there."""
    pointer = "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in path)
    _run(access, ["patch", target], ["--type=json", f"--patch={json.dumps([{'op': 'remove', 'path': pointer}])}"])


def replace(access: Access, target: str, path: Sequence[str], values: tuple[str, str], manager: str) -> None:
    """Changes one text of an object from the first value to the second; CliError if it is another one by now, and nothing is written."""
    pointer = "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in path)
    steps = [{"op": op, "path": pointer, "value": value} for op, value in zip(("test", "replace"), values, strict=True)]
    _run(access, ["patch", target], ["--type=json", f"--field-manager={manager}", f"--patch={json.dumps(steps)}"])


def log_lines(access: Access, holding: str, *what: str) -> list[str]:
    """The last lines of `kubectl logs …` that hold a text. Logs may be large, so they are read line by line."""
    command, found = [_program(), "logs", *what, *access.options], deque[str](maxlen=_MOST_LINES)
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, errors="replace") as running,
    ):
        limit = threading.Timer(_LOGS_TIMEOUT, running.kill)
        limit.start()
        try:
            found.extend(line for line in running.stdout or () if holding in line)
            code = running.wait()
        finally:
            limit.cancel()
        said.seek(0)
        why = f"no end within {_LOGS_TIMEOUT} s; ask for less" if code < 0 else refusal(said.read()) or f"exit code {code}"
    if code != 0:
        raise CliError(f"kubectl logs: {why}")
    return list(found)


def _program() -> str:
    program = shutil.which("kubectl")
    if program is None:
        raise CliError("kubectl is not on the PATH; the cluster is read through it")
    return program


def _run(access: Access, words: Sequence[str], options: Sequence[str], given: str | None = None) -> str:
    """What kubectl prints. A refusal names the words and not the options."""
    said = f"kubectl {' '.join(words)}"
    try:
        done = subprocess.run(
            [_program(), *words, *options, *access.options], input=given, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise CliError(f"{said}: no answer within {_TIMEOUT} s") from None
    if done.returncode != 0:
        raise CliError(f"{said}: {refusal(done.stderr) or f'exit code {done.returncode}'}")
    return done.stdout


def refusal(stderr: str) -> str:
    """Returns kubectl's own words without its log; without a cluster, what to do comes first."""
    said = "\n".join(line for line in stderr.strip().splitlines() if not _LOG_LINE.match(line))
    if any(words in said for words in _NO_CLUSTER):
        return f"no cluster answers. Check KUBECONFIG, --kubeconfig and the context. kubectl says: {said}"
    return said


def listed(access: Access, *what: str) -> list[Json] | None:
    """The objects of a list; None where kubectl may not read them or the cluster does not have the kind."""
    try:
        items: list[Json] = get(access, *what)["items"]
    except CliError:
        return None
    return items
