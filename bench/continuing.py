"""Streams that survive kill -9: replicas die under load at drawn tokens, and every answer is compared with an undisturbed one. Prints JSON.

`python -P bench/continuing.py [--kills 200] [--streams 200] [--replicas 6] [--step-ms 150]`: simulated engines, each front with its engine
in a process that is forked, killed by SIGKILL and forked again at the same address. `--real` instead: a tiny real model in bf16, front and
engine as two processes, both killed; a successor takes the place of each. So many streams are under way at all times; a kill strikes when
a drawn stream has read a drawn number of events, if all replicas are up again. Goals: no error, no wrong and no repeated token.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

import aiohttp
from pagoda_contracts.launch import DaemonConfig
from pagoda_contracts.names import PATH_READY, ROLE_GATEWAY
from pagoda_daemon.simulated.replicas.replica import SimulatedReplica, Wanted
from pagoda_daemon.text.tokens import ModelText
from support.kube.issuer import Issuer
from support.servers.gateway_process import GatewayProcess, start_gateway, write_fleet
from support.servers.loopback import own_net
from support.servers.replica import NAME, Replica, replica_config, start_daemon

QUESTIONS: Final = 8
PORTS: Final = {"http": 8000, "grpc": 9000, "probes": 8081}


class Service(Protocol):
    """Replicas; `kill` returns when the one that died has a successor that is ready."""

    def entries(self) -> list[dict[str, str]]: ...
    async def kill(self, luck: random.Random) -> None: ...


@dataclass
class Forked:
    """Simulated replicas, each a fork of this process as it was before it had a loop or a thread."""

    config: DaemonConfig
    text: ModelText
    addresses: list[str]
    pids: dict[str, int] = field(default_factory=dict)

    def start(self, address: str) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 1)
                asyncio.run(self._serve(address))
            finally:
                os._exit(1)
        self.pids[address] = pid

    async def _serve(self, address: str) -> None:
        await SimulatedReplica(Wanted(address, self.config, 0.0), self.text).wait()

    def entries(self) -> list[dict[str, str]]:
        return [{"http": f"{one}:{PORTS['http']}", "grpc": f"{one}:{PORTS['grpc']}"} for one in self.addresses]


def serve_forks(forked: Forked, orders: int, answers: int) -> None:
    """In a process of its own, which never has a thread: forks, kills and forks again what it is told to."""
    for address in forked.addresses:
        forked.start(address)
    with os.fdopen(orders) as lines:
        for line in lines:
            address = line.strip()
            os.kill(forked.pids[address], signal.SIGKILL)
            os.waitpid(forked.pids[address], 0)
            os.write(answers, b"x")
            forked.start(address)
    for pid in forked.pids.values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


class Simulated:
    """The replicas of a process that forks."""

    def __init__(self, forked: Forked) -> None:
        self._forked = forked
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        gc.freeze()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._orders)
            try:
                serve_forks(forked, orders, answers)
            finally:
                os._exit(0)

    def entries(self) -> list[dict[str, str]]:
        return self._forked.entries()

    async def kill(self, luck: random.Random) -> None:
        address = luck.choice(self._forked.addresses)
        os.write(self._orders, f"{address}\n".encode())
        await asyncio.to_thread(os.read, self._answers, 1)
        await ready(address)

    def close(self) -> None:
        os.close(self._orders)
        os.waitpid(self.pid, 0)


async def ready(address: str) -> None:
    """Returns when the replica's probe says so."""
    async with aiohttp.ClientSession() as client:
        while True:
            with suppress(aiohttp.ClientError):
                async with client.get(f"http://{address}:{PORTS['probes']}{PATH_READY}") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.02)


@dataclass
class Real:
    """Replicas with a real model, of two processes each."""

    config: DaemonConfig
    file: Path
    stack: ExitStack
    replicas: list[Replica] = field(default_factory=list)

    def add(self) -> None:
        replica = start_daemon(self.config)
        self.stack.callback(replica.close)
        replica.wait_listening()
        replica.wait_ready()
        self.replicas.append(replica)

    def entries(self) -> list[dict[str, str]]:
        return [{"http": replica.http, "grpc": replica.grpc} for replica in self.replicas]

    async def kill(self, luck: random.Random) -> None:
        victim = self.replicas.pop(luck.randrange(len(self.replicas)))
        engine = victim.engine_pid()
        victim.process.kill()
        with suppress(ProcessLookupError):
            os.kill(engine, signal.SIGKILL)
        await asyncio.to_thread(self.add)
        publish(self, self.file)


def publish(service: Service, file: Path) -> None:
    write_fleet(file, [{"name": "ns/s", "served_names": [NAME], "endpoints": service.entries()}])


@dataclass
class Count:
    """What came of it."""

    streams: int = 0
    tokens: int = 0
    kills: int = 0
    errors: list[str] = field(default_factory=list)
    wrong: int = 0
    longest_gap_s: float = 0.0


def request(number: int, tokens: int) -> dict[str, Any]:
    """Half are greedy, half are drawn by a seed."""
    chance = {"temperature": 0} if number % 2 else {"temperature": 1.0, "seed": number}
    prompt = f"question number {number % QUESTIONS} " + "x" * (number % QUESTIONS)
    return {"model": NAME, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True, **chance}


async def ask(client: aiohttp.ClientSession, url: str, fields: dict[str, Any], heard: Callable[[], None]) -> tuple[str, float]:
    """The text, and the longest time between two chunks after the first."""
    stream, last, gap = b"", 0.0, 0.0
    async with client.post(f"{url}/v1/completions", json=fields) as answer:
        async for chunk in answer.content.iter_any():
            now = time.monotonic()
            gap, last = max(gap, now - last if last else 0.0), now
            stream += chunk
            for _ in range(chunk.count(b"\n\n")):
                heard()
    if answer.status != 200 or not stream.endswith(b"data: [DONE]\n\n"):
        raise ValueError(f"status {answer.status}: {stream[-200:]!r}")
    events = [json.loads(part[6:]) for part in stream.split(b"\n\n") if part.startswith(b"data: {")]
    if broken := [event for event in events if "error" in event]:
        raise ValueError(str(broken[0]))
    return "".join(choice["text"] for event in events for choice in event["choices"]), gap


async def load(gateway: GatewayProcess, service: Service, options: argparse.Namespace) -> Count:
    luck, count = random.Random(options.seed), Count()
    over, strike = asyncio.Event(), asyncio.Event()
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as client:
        kinds = [request(number, options.tokens) for number in range(2 * QUESTIONS)]
        undisturbed = [(await ask(client, gateway.url, kind, lambda: None))[0] for kind in kinds]

        async def one(place: int) -> None:
            while not over.is_set():
                number = luck.randrange(len(kinds))
                left = luck.randrange(1, options.tokens)

                def heard() -> None:
                    nonlocal left
                    left -= 1
                    count.tokens += 1
                    if not left and place == target:
                        strike.set()

                try:
                    text, gap = await ask(client, gateway.url, kinds[number], heard)
                    count.wrong += text != undisturbed[number]
                    count.longest_gap_s = max(count.longest_gap_s, gap)
                except (ValueError, aiohttp.ClientError, TimeoutError) as error:
                    count.errors.append(f"{type(error).__name__}: {error}"[:300])
                count.streams += 1

        target = -1
        streams = [asyncio.ensure_future(one(place)) for place in range(options.streams)]
        while count.kills < options.kills:
            target = luck.randrange(options.streams)
            await strike.wait()
            strike.clear()
            await service.kill(luck)
            count.kills += 1
            if count.kills % 10 == 0:
                print(f"{count.kills} kills, {count.streams} streams over, {len(count.errors)} errors", file=sys.stderr)
        over.set()
        await asyncio.gather(*streams)
    return count


def continued(gateway: GatewayProcess) -> int:
    found = re.findall(r'continued_streams_total{[^}]*numbers="same"[^}]*} ([0-9.e+]+)', gateway.scrape())
    return int(sum(map(float, found)))


def config_of(options: argparse.Namespace, folder: Path, issuer: Issuer) -> DaemonConfig:
    auth = {"auth": issuer.config()}
    if options.real:
        from support.servers.real_replica import real_config  # torch, which no fork should hold

        config = real_config(folder)
        engine = {"dtype": "bfloat16", "max_concurrency": 64, "kv_bytes": 256 * 2**20}
        return config.model_copy(update=auth | {"engine": config.engine.model_copy(update=engine)})
    config = replica_config(folder, step_ms=options.step_ms, engine={"max_concurrency": 256, "kv_bytes": 256 * 2**20})
    return config.model_copy(update=auth | {"listen": config.listen.model_copy(update=PORTS)})


def main() -> None:
    parser = argparse.ArgumentParser(description="Kills replicas under streams.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--replicas", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--step-ms", type=float, default=150.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--real", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pagoda-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        issuer = Issuer(folder)
        (folder / "token").write_text(issuer.token(ROLE_GATEWAY))
        config, file, service = config_of(options, folder, issuer), folder / "fleet.json", None
        if options.real:
            service = Real(config, file, stack)
            for _ in range(options.replicas):
                service.add()
        else:
            net = own_net()
            service = Simulated(Forked(config, ModelText(Path(config.model.path)), [f"{net}.{one + 1}" for one in range(options.replicas)]))
            stack.callback(service.close)
        publish(service, file)
        began = time.monotonic()
        with start_gateway("--fleet", str(file), "--token", str(folder / "token"), "--hold-timeout", "120s") as gateway:
            count = asyncio.run(load(gateway, service, options))
            went_on = continued(gateway)
        report = {"kills": count.kills, "streams": count.streams, "at_once": options.streams, "tokens": count.tokens}
        report |= {"went_on": went_on, "errors": len(count.errors), "wrong_texts": count.wrong, "first_errors": count.errors[:5]}
        report |= {"longest_gap_s": round(count.longest_gap_s, 2), "seconds": round(time.monotonic() - began)}
        print(json.dumps(report | {"engine": "real, bf16" if options.real else "simulated"}, indent=1))


if __name__ == "__main__":
    main()
