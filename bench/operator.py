"""What the operator costs at rest, after a restart and under changes, against a real API server with fake nodes; prints one JSON object.

Needs root and compiled binaries. Goals: 0 writes at rest and over restarts; 500 services: cold resync 30 s, 300 MB, 1 % of a core.
`--scale --scale-nodes 50 --scale-services 500 --rate 5 --changing 40`: 5 changes/s at equal rights to the cores, all written by p99 5 s.
`--scale` alone is the largest fleet, which has no goal: 1,000 nodes, 2,000 services, 5,000 pods, 20 changes/s.

Of a change it is told when the last write of its Deployment and of its status was done (`all_writes_s`: with the Deployment's controller,
the scheduler and the fake kubelet, whose pod the status speaks of last); our share of that: until its first run that wrote ended, and
later as long as a run was wanted or at work, but for when the API server was at work on that service's requests, by its own audit log
(support/judges/answered.py), or had not yet told our own watch of the edit (`told_s`); and until its news was in our queue. CPU is the
operator's, all of it, over the changes.

`--nice -15` lets the operator have the CPU before all others, as a core of its own would: on few cores our share counts else also the
time for which API server, etcd, controllers and this bench held them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parent / "common")]
from edit_watch import edit_watch
from fake_daemons import obeying
from pagoda_contracts.metrics import OPERATOR_EVENTS_WAITING, OPERATOR_QUEUE, OPERATOR_RECONCILES
from pagoda_devcluster.cluster.settings import from_environment
from pagoda_devcluster.providers.status import require_running
from pagoda_operator.api.state import DEPLOYMENTS, PODS, SERVICES
from support.judges.answered import answers, changes
from support.judges.operator_log import announced, edits, known, stamp
from support.kube.client import Kube, eventually
from support.kube.cluster import Cluster, running_cluster
from support.kube.fake_api import service_body
from support.kube.namespace import Real
from support.kube.operator_process import OPERATOR, USER, NodeWithoutKubelet, OperatorProcess, install_role, kubeconfig

NAMESPACE = "bench"
RUNS = f"{OPERATOR_RECONCILES.name}_total"
WRITERS = 8


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Bench:
    """A cluster with services, and one operator at a time."""

    def __init__(self, cluster: Cluster, kube: Kube, account: Path, nice: int) -> None:
        self.cluster, self.kube, self.account = cluster, kube, account
        self.nice = nice
        self.count = 0
        self.running: OperatorProcess | None = None

    def prepare(self) -> None:
        """A namespace with a bound claim, and a profile whose pods are Ready at once."""
        ready = {"podTemplate": {"metadata": {"annotations": {"devcluster.pagoda.dev/ready-after": "0"}}}}
        Real(self.cluster, self.kube, NodeWithoutKubelet(self.kube), NAMESPACE).prepare(**ready)

    @contextmanager
    def operator(self) -> Iterator[OperatorProcess]:
        """With the Lease, as in production."""
        program = ("setsid", "nice", "-n", str(self.nice), OPERATOR)
        terms = ("--namespace", "pagoda-system", "--identity", "bench", "--debug")
        process = self.running = OperatorProcess(self.account, *terms, program=program)
        # Where the kernel shares by sessions, a nice value counts within a session alone, and this is the session's own.
        if self.nice and (group := Path(f"/proc/{process.process.pid}/autogroup")).exists():
            eventually(lambda: os.getsid(process.process.pid) == process.process.pid, "a session of its own")
            group.write_text(str(self.nice))
        try:
            yield process
        finally:
            process.stop()

    def grow(self, count: int, replicas: tuple[int, ...] = (1,)) -> float:
        """So many services in all, Ready; how long that took."""
        start = time.monotonic()
        cpu = [{"cpu": {"cores": "10m", "memory": "1Gi"}}]
        sizes = itertools.cycle(replicas)
        bodies = [
            service_body(f"s{number}", NAMESPACE, replicas=next(sizes), accelerators=cpu, profileRef={"name": NAMESPACE})
            for number in range(self.count, count)
        ]
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(lambda body: self.kube.create(SERVICES, NAMESPACE, body), bodies))
        self.count = count
        eventually(self.ready, f"{count} services ready", seconds=3600)
        return round(time.monotonic() - start, 1)

    def ready(self) -> bool:
        time.sleep(3)
        self.alive()
        states = [
            next((c["status"] for c in item.get("status", {}).get("conditions", []) if c["type"] == "Ready"), "")
            for item in self.kube.list(SERVICES, NAMESPACE)
        ]
        print(f"{states.count('True')} of {len(states)} ready", file=sys.stderr)
        return states.count("True") == self.count

    def alive(self) -> None:
        """A process that ended (a Lease that a starved machine could not renew) is said at once: here no kubelet starts it again."""
        if self.running is not None and (code := self.running.process.poll()) is not None:
            raise RuntimeError(f"the operator ended with {code}: {self.running.lines[-5:]}")

    def settle(self, operator: OperatorProcess, since: float) -> float:
        """Until every service had a run and nothing is due; seconds since then."""

        def done() -> bool:
            self.alive()
            return operator.counted(RUNS) >= self.count and operator.counted(OPERATOR_QUEUE.name) == 0

        eventually(done, "all services looked at", seconds=900)
        return time.monotonic() - since

    def writes(self, since: float) -> list[dict[str, Any]]:
        """What the operator wrote, its Lease apart."""
        return [event for event in self.cluster.audit(user=USER, since=since) if event.get("objectRef", {}).get("resource") != "leases"]

    def rest(self, operator: OperatorProcess, seconds: float) -> dict[str, float]:
        """Writes and cost of doing nothing."""
        since, before = time.time(), cpu_seconds(operator.process.pid)
        time.sleep(seconds)
        spent = (cpu_seconds(operator.process.pid) - before) / seconds
        return {"writes": len(self.writes(since)), "cores": round(spent, 4), "rss_mib": operator.resident_mib()}

    def restarts(self, count: int) -> dict[str, Any]:
        """Writes of restarts at rest, and how long each took until it had looked at everything."""
        since, times, sizes = time.time(), [], []
        for _ in range(count):
            start = time.monotonic()
            with self.operator() as operator:
                times.append(self.settle(operator, start))
                sizes.append(operator.resident_mib())
        return {"restarts": count, "writes": len(self.writes(since)), "cold_resync_s": spread(times), "rss_mib": max(sizes)}

    def load(self, seconds: float) -> dict[str, float]:
        """Pods that report something every few seconds which changes no verdict."""
        since, until = time.time(), time.monotonic() + seconds
        pods = self.kube.list(PODS, NAMESPACE)
        for number in itertools.count():
            if time.monotonic() >= until:
                break
            pod = pods[number % len(pods)]["metadata"]["name"]
            self.kube.merge(PODS, NAMESPACE, pod, {"metadata": {"annotations": {"bench": str(number)}}})
        reported = [event for event in self.writes(since) if event["objectRef"]["resource"] == SERVICES.plural]
        return {
            "pod_changes_per_s": round(number / seconds, 1),
            "status_writes_per_object_and_minute": len(reported) / self.count / seconds * 60,
        }

    def changes(self, operator: OperatorProcess, rate: float, seconds: float) -> dict[str, Any]:
        """`replicas` of one service after another goes up by one, or of every second one that has several down, and back on the next round;
        each service's writes are timed by the audit log."""
        sizes = {item["metadata"]["name"]: item["spec"]["replicas"] for item in self.kube.list(SERVICES, NAMESPACE)}
        steps = {name: -1 if place % 2 and sizes[name] > 1 else 1 for place, name in enumerate(sorted(sizes))}
        names, since, before = itertools.cycle(sorted(sizes)), time.time(), cpu_seconds(operator.process.pid)
        started = time.monotonic()
        with edit_watch(self.cluster.kubeconfig, NAMESPACE, self.nice) as reported_at, ThreadPoolExecutor(WRITERS) as pool:
            asked = []
            for number in range(int(rate * seconds)):
                time.sleep(max(0.0, started + number / rate - time.monotonic()))
                name, away = next(names), number // len(sizes) % 2 == 0
                replicas = sizes[name] + (steps[name] if away else 0)
                asked.append(pool.submit(self.kube.merge, SERVICES, NAMESPACE, name, {"spec": {"replicas": replicas}}))
            for change in asked:
                change.result()  # one that was refused is no change
            took = time.monotonic() - started
            time.sleep(10)  # the last ones' writes
        spent = cpu_seconds(operator.process.pid) - before
        reported = self.latencies(since, operator.events("run"), reported_at)
        reported["events"] = {"waiting": operator.counted(OPERATOR_EVENTS_WAITING.name), "lost": len(operator.events("event_lost"))}
        cost = {"operator_cores": round(spent / (took + 10), 3), "cpu_ms_per_change": round(1000 * spent / reported["changes"], 1)}
        return {"rate": round(rate * seconds / took, 1), **cost, **reported}

    def latencies(self, since: float, runs: list[dict[str, Any]], reported_at: Mapping[str, Sequence[float]]) -> dict[str, Any]:
        """Per change: until the last write of the Deployment and of the status; of that, our share."""
        end, log = time.time(), self.cluster.audit(since=since, verbs="all")
        asked = edits(log)
        recent = [run for run in runs if stamp(run["timestamp"]) >= since]
        seen, quiet = known({name for name, _ in asked}, log, recent), announced(asked, reported_at)
        for name, span in quiet:
            seen[name].served.append(span)
        found = answers(changes(asked, end), seen, (DEPLOYMENTS.plural, SERVICES.plural), end)
        ours = [event for event in log if event["user"]["username"] == USER and event.get("objectRef", {}).get("resource") != "leases"]
        return {
            "changes": len(asked),
            "unanswered": found.unanswered,
            "requests_per_change": per_change(ours, len(asked)),
            "all_writes_s": spread(found.whole),
            "our_share_s": spread(found.ours),
            "told_s": spread([span.end - span.begin for _, span in quiet]),
            "news_s": spread(found.news),
            "runs": {name: spread([run[name] for run in recent]) for name in ("queued_s", "took_s", "waited_s")},
        }


def per_change(requests: list[dict[str, Any]], changes: int) -> dict[str, float]:
    """Requests for each change by verb, what a watch or a list asks for among them."""
    verbs = Counter(event["verb"] for event in requests)
    return {verb: round(count / changes, 2) for verb, count in sorted(verbs.items())}


def spread(values: list[float]) -> dict[str, float]:
    """Median, 99th percentile and the worst."""
    if len(values) < 2:
        return {"all": round(sum(values), 2)}
    p99 = statistics.quantiles(values, n=100)[98] if len(values) >= 100 else max(values)
    return {"p50": round(statistics.median(values), 3), "p99": round(p99, 3), "max": round(max(values), 3)}


@contextmanager
def harness(nodes: int, nice: int) -> Iterator[Bench]:
    """A cluster of fake nodes with the operator's role in it."""
    with running_cluster(f"fake:{nodes}") as cluster, tempfile.TemporaryDirectory() as folder:
        spec = require_running(from_environment(), cluster.name)
        install_role(cluster)
        kube = Kube(cluster.kubeconfig)
        bench = Bench(cluster, kube, kubeconfig(kube, Path(folder)), nice)
        bench.prepare()
        with obeying(spec):
            yield bench
        kube.close()


def at_rest(options: argparse.Namespace) -> dict[str, Any]:
    """200 services over minutes and restarts; 500 services cold. Of none, that part is left out."""
    figures: dict[str, Any] = {}
    with harness(options.nodes, options.nice) as bench:
        if options.services:
            with bench.operator() as operator:
                figures["growth_s"] = bench.grow(options.services)
                figures["rest"] = {"services": options.services, "seconds": options.seconds, **bench.rest(operator, options.seconds)}
            print(json.dumps(figures), file=sys.stderr)
            figures["restarts"] = bench.restarts(options.restarts)
            print(json.dumps(figures), file=sys.stderr)
        if options.cold:
            with bench.operator():
                bench.grow(options.cold)
            start = time.monotonic()
            with bench.operator() as operator:
                cold = bench.settle(operator, start)
                idle = bench.rest(operator, 60)
                figures["cold"] = {"services": options.cold, "cold_resync_s": round(cold, 1), **idle, **bench.load(60)}
                print(json.dumps(figures), file=sys.stderr)
                figures["changes"] = bench.changes(operator, options.rate, options.changing)
    return figures


def at_scale(options: argparse.Namespace) -> dict[str, Any]:
    """Changes on a large fleet."""
    with harness(options.scale_nodes, options.nice) as bench:
        with bench.operator():
            bench.grow(options.scale_services, replicas=(2, 3))
        start = time.monotonic()
        with bench.operator() as operator:
            cold = bench.settle(operator, start)
            idle = bench.rest(operator, 30)
            shape = {"nodes": options.scale_nodes, "services": bench.count, "pods": len(bench.kube.list(PODS, NAMESPACE))}
            changes = bench.changes(operator, options.rate, options.changing)
            return {**shape, "cold_resync_s": round(cold, 1), "idle": idle, "under_changes": changes, "rss_mib": operator.resident_mib()}


def main() -> None:
    """Sizes are options, so that a small run can show that the large one works."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", action="store_true", help="only the large fleet")
    sizes = {"services": 200, "cold": 500, "restarts": 20, "nodes": 50, "scale-nodes": 1000, "scale-services": 2000, "nice": 0}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, figure in {"seconds": 180.0, "rate": 20.0, "changing": 60.0}.items():
        parser.add_argument(f"--{name}", type=float, default=figure)
    options = parser.parse_args()
    figures = {"scale": at_scale(options)} if options.scale else at_rest(options)
    print(json.dumps({"bench": "operator", "cores": os.cpu_count(), "load": os.getloadavg()[0], **figures}))


if __name__ == "__main__":
    main()
