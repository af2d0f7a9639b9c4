"""When the API server told of an edit, by a watch of a process that does nothing else: `edit_watch(...)` for bench/operator.py.

What it tells late it tells the operator late, too; that is no part of our share.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

from pagoda_operator.api.state import SERVICES
from support.kube.client import Kube

_LONG_S = 3600


@contextmanager
def edit_watch(kubeconfig: Path, namespace: str, nice: int) -> Iterator[dict[str, list[float]]]:
    """By service the Unix times at which each new generation was told; filled in at the end."""
    reported: dict[str, list[float]] = defaultdict(list)
    argv = ["setsid", "nice", "-n", str(nice), sys.executable, "-P", __file__, str(kubeconfig), namespace]
    with Popen(argv, stdout=PIPE, text=True, env={"PYTHONPATH": str(Path(__file__).parents[2] / "tests")}) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"the watch of edits ended with {process.wait()}")
        try:
            yield reported
        finally:
            process.terminate()
        for line in process.stdout:
            name, at = line.split()
            reported[name].append(float(at))


def _watch(api: Kube, namespace: str) -> None:
    items, version = api.listed(SERVICES, namespace)
    known = {item["metadata"]["name"]: item["metadata"]["generation"] for item in items}
    reported = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        for line in api.watch(SERVICES, namespace, version, seconds=_LONG_S):
            at, meta = time.time(), json.loads(line)["object"]["metadata"]
            if meta.get("name") in known and known[meta["name"]] != meta["generation"]:
                known[meta["name"]] = meta["generation"]
                reported.append(f"{meta['name']} {at}\n")
    finally:
        sys.stdout.writelines(reported)


if __name__ == "__main__":
    _watch(Kube(Path(sys.argv[1])), sys.argv[2])
