"""Racing admissions of four gateways that count in one Redis and are killed meanwhile: tokens over the limit, lost reservations. JSON.

`python -P bench/quota.py [--tries 100000] [--kills 20]`. It needs Redis or Valkey. Gateways admit, count and settle as real ones do,
without HTTP, and share the cores with the store. `overshoot` is what was really used beyond the limit. `charged_tokens` is more than
`real_tokens` by what killed gateways had claimed and not used.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

from support.harness.quota_race import Race
from support.servers.redis_server import redis_server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=20)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pagoda-bench-") as folder, redis_server(Path(folder)) as server:
        print(json.dumps(Race(server.url, Path(folder), chosen.tries, chosen.tries * 50, chosen.kills).run()))


if __name__ == "__main__":
    main()
