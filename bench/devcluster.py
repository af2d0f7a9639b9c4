"""Times a warm dev cluster: `up` with control plane only and with a kubelet node, and `down`, in turn; prints one JSON object.

Needs root and compiled binaries (`pagoda-devcluster build`). Goals: control plane 10 s, kubelet node 25 s.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 3
NAME = "bench"
TOOL = str(Path(sys.executable).parent / "pagoda-devcluster")


def seconds(*argv: str) -> float:
    """Wall clock of one command, as a person waits for it."""
    start = time.monotonic()
    subprocess.run([TOOL, *argv, "--name", NAME], check=True, capture_output=True)
    return time.monotonic() - start


def main() -> None:
    """Runs the rounds; a cluster left by an interrupted run is removed first."""
    subprocess.run([TOOL, "build"], check=True, capture_output=True)
    seconds("down")
    times: dict[str, list[float]] = {"up_control_plane_s": [], "up_kubelet_s": [], "down_s": []}
    for _ in range(ROUNDS):
        for nodes, key in (("control-plane", "up_control_plane_s"), ("kubelet", "up_kubelet_s")):
            times[key].append(seconds("up", "--nodes", nodes))
            times["down_s"].append(seconds("down"))
    medians = {key: round(statistics.median(values), 2) for key, values in times.items()}
    print(json.dumps({"bench": "devcluster", "cores": os.cpu_count(), "rounds": ROUNDS, **medians, "all": times}))


if __name__ == "__main__":
    main()
