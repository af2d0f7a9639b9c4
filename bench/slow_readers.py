"""What 500 clients that read a byte a second cost the streams beside them: others' tokens per engine CPU-second. Prints JSON.

A real replica (two processes) with a device that computes nothing, so that the engine's CPU is its own work alone. Three runs of the same
readers' streams: alone; with as many companions that read as fast as they can; with companions that read a byte a second. Slow companions
hold a row until their answer is whole or they are cut, as fast ones do: `slow_over_fast` is what their slowness costs. Afterwards their
connections linger: `lingering_over_alone`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

from support.servers.replica import NAME, Replica, replica_config, start_replica

READERS, ANSWER, ROUNDS = 32, 400, 3
COMPANION_TOKENS = 300
TICKS = os.sysconf("SC_CLK_TCK")


def engine_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mib(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def raw(prompt: list[int], tokens: int) -> bytes:
    body = json.dumps({"model": NAME, "prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}).encode()
    return b"POST /v1/completions HTTP/1.1\r\nhost: bench\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


async def read_all(replica: Replica, prompt: list[int], tokens: int) -> int:
    """Bytes of one whole stream."""
    host, port = replica.http.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(raw(prompt, tokens))
    answer = await reader.read()
    writer.close()
    assert b"data: [DONE]" in answer[-64:], answer[:300]
    return len(answer)


async def trickle(replica: Replica, prompt: list[int], tokens: int) -> None:
    """Reads a byte a second for as long as it may."""
    host, port = replica.http.split(":")
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, (host, int(port)))
        await loop.sock_sendall(client, raw(prompt, tokens))
        try:
            while await loop.sock_recv(client, 1):  # noqa: ASYNC110 - the slowness itself
                await asyncio.sleep(1)
        except ConnectionResetError:
            return


async def readers(replica: Replica, pid: int) -> float:
    """The readers' tokens per second of the engine's CPU."""
    before = engine_cpu_s(pid)
    for _ in range(ROUNDS):
        await asyncio.gather(*(read_all(replica, [250, n], ANSWER) for n in range(READERS)))
    return READERS * ROUNDS * ANSWER / (engine_cpu_s(pid) - before)


async def beside(replica: Replica, pid: int, count: int, read: Any) -> tuple[float, list[asyncio.Task[Any]]]:
    companions = [asyncio.create_task(read(replica, [n % 250, n // 250], COMPANION_TOKENS)) for n in range(count)]
    await asyncio.sleep(0)
    return await readers(replica, pid), companions


async def measure(replica: Replica, count: int) -> dict[str, Any]:
    pid = replica.engine_pid()
    await readers(replica, pid)  # warm
    alone = await readers(replica, pid)
    rss = rss_mib(replica.process.pid)
    fast, companions = await beside(replica, pid, count, read_all)
    await asyncio.gather(*companions)
    slow, companions = await beside(replica, pid, count, trickle)
    lingering = await readers(replica, pid)
    held = sum(not task.done() for task in companions)
    grown = rss_mib(replica.process.pid) - rss
    for task in companions:
        task.cancel()
    await asyncio.gather(*companions, return_exceptions=True)
    return {
        "slow_readers": count,
        "still_connected": held,
        "tokens_per_engine_cpu_s": {"alone": alone, "beside_fast": fast, "beside_slow": slow, "beside_lingering": lingering},
        "slow_over_fast": slow / fast,
        "lingering_over_alone": lingering / alone,
        "front_rss_growth_mib": grown,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=500)
    arguments = parser.parse_args()
    engine = {"max_model_len": 1024, "max_concurrency": arguments.readers + READERS, "kv_bytes": 64 * 2**20}
    with tempfile.TemporaryDirectory() as folder, start_replica(replica_config(Path(folder), step_ms=1.0, engine=engine)) as replica:
        found = asyncio.run(measure(replica, arguments.readers))
    print(json.dumps({name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}, indent=2))


if __name__ == "__main__":
    main()
