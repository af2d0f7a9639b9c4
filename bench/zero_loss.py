"""What is lost when parts of an install are replaced or die under load; prints JSON and the table of docs/what-you-can-break.md.

`python -P bench/zero_loss.py [--streams 200] [--times 20] [--write]`. Needs root and compiled binaries. A real API server, operator and two
gateways behind a balancer that knows nothing of HTTP. Four replicas are daemon fronts with simulated engines. Streams arrive by the clock,
whatever the answers do, and no client retries. A stream is *lost* if its client sees an error, and *wrong* if it differs in a token from
the same question without an event. `hit` streams were under way where the event struck. `--write` puts the table into the page.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests")]
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # else it complains of each child
from support.clients.streams import Load
from support.harness import zero_loss_events as events
from support.harness.zero_loss import Place, Row, api_server, zero_loss
from support.kube.namespace import Real

PAGE: Final = HERE.parent / "docs/what-you-can-break.md"
BEGIN: Final = "<!-- the table of bench/zero_loss.py -->"
END: Final = "<!-- its end -->"
TOKENS: Final = 40
STEP_S: Final = 0.25
Strike = Callable[[Place], Awaitable[int]]


def plays(times: int) -> dict[str, Strike]:
    """Returns the events by what the page says of them."""
    few = max(1, times // 4)
    return {
        f"{times} rollouts: all 4 replicas are replaced": partial(events.rolling_restarts, times=times),
        "spec reverted when half of the replicas are new": events.reverted,
        f"{times} replicas killed, their requests without a token": partial(events.kills_before_the_first_token, times=times, least=8),
        "rollout whose new replicas one gateway does not know": partial(events.unknown_to_a_gateway, gateways={"g1"}),
        "rollout whose new replicas no gateway knows": partial(events.unknown_to_a_gateway, gateways={"g0", "g1"}),
        f"{few} rolling restarts of both gateways": partial(events.gateways_restarted, times=few, late=5),
    }


async def play(real: Real, account: Path, folder: Path, chosen: argparse.Namespace) -> list[Row]:
    """Returns a row for each event."""
    questions = [f"question number {n}" for n in range(16)]
    load = Load(questions, chosen.streams / (TOKENS * STEP_S), chosen.streams, chosen.streams // 2, TOKENS, chosen.streams)
    rows = []
    async with zero_loss(real, account, folder, load, STEP_S) as place:
        for event, strike in plays(chosen.times).items():
            if chosen.only in event:
                rows.append(await place.play(event, partial(strike, place)))
                print(json.dumps(rows[-1]._asdict()), file=sys.stderr, flush=True)
    return rows


def table(rows: Sequence[Row]) -> str:
    """Returns the rows in Markdown."""
    lines = ["| event | load | requests | of these under way there | lost | wrong |", "|---|---|---|---|---|---|"]
    lines += [f"| {row.event} | {row.load} | {row.requests:,} | {row.hit:,} | {row.lost} | {row.wrong} |" for row in rows]
    return "\n".join(lines)


def write(rows: Sequence[Row]) -> None:
    """Puts the table into the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{rest.partition(END)[2]}")


def main() -> None:
    """Plays and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--only", default="", help="a part of an event's name")
    parser.add_argument("--write", action="store_true", help="put the table into docs/what-you-can-break.md")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pagoda-bench-") as folder, api_server(Path(folder)) as (real, account):
        before = os.getloadavg()[0]
        rows = asyncio.run(play(real, account, Path(folder), chosen))
    print(json.dumps({"load_before": before, "load_after": os.getloadavg()[0], "rows": [row._asdict() for row in rows]}, indent=1))
    print(table(rows))
    if chosen.write:
        write(rows)


if __name__ == "__main__":
    main()
