"""Static rules against classes of advisories: what never stands in the sources, the locks or the builds. Each is shown to see its bug."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.judges.source_rules import (
    ROOT,
    Rule,
    breaks,
    broken,
    cluster_writes,
    code_from_data,
    every_interface,
    forms_and_files,
    host_header,
    secrets_compared,
    unsafe_deserialisation,
)

LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
# Where a lock names one of these, it is at least this version: the first with the fix.
FIXED = {
    "h11": (0, 16),
    "jinja2": (3, 1, 6),
    "protobuf": (6, 31, 1),
    "starlette": (0, 49, 1),
    "torch": (2, 6),
}
# Code that runs code on purpose: what is said there is ours, not a client's.
ENTRY_POINTS = ("daemon/pagoda_daemon/text/template_worker.py", "kernels/pagoda_kernels/aot/__main__.py")
# Who writes to the cluster: a plan's deeds, words beside the runs, and the Lease. Of the client itself only the entry point's own.
WRITES = {
    "apply.py": {"create(resource)", "apply(resource)", "delete(resource)", "annotate(write.resource)", "apply_status(resource)"},
    "events.py": {"create(EVENTS)"},
    "leader.py": {"create(LEASES)", "replace(LEASES)"},
}
DECIDES_LISTENING = ("contracts/pagoda_contracts/launch.py",)


def test_no_unsafe_deserialisation() -> None:
    assert broken(unsafe_deserialisation) == []


def test_no_code_from_data() -> None:
    found = [line for line in broken(code_from_data) if "re.compile" not in line and not line.startswith(ENTRY_POINTS)]
    assert found == []


def test_no_forms_and_no_files() -> None:
    assert broken(forms_and_files) == []


def test_no_address_of_every_interface() -> None:
    """Where a pod listens is said by DaemonConfig and by the entry points' own settings, in these places only."""
    holders = sorted({line.partition(":")[0] for line in broken(every_interface)})
    assert [path for path in holders if not path.endswith(("settings.py", "launch.py", "__main__.py"))] == []


def test_keys_are_compared_in_constant_time() -> None:
    assert broken(secrets_compared) == []


def test_nothing_is_decided_by_the_host_header() -> None:
    """One place reads it, to refuse names that are not ours: what is answered does not depend on it."""
    found = broken(host_header, list((ROOT / "daemon").rglob("*.py")))
    assert [line.partition(":")[0] for line in found] == ["daemon/pagoda_daemon/api/http/web.py"]


def test_the_operator_writes_to_the_cluster_from_three_modules_only() -> None:
    """What is written is planned, and written at the version that was seen: by `apply` alone."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "operator").rglob("*.py"):
        if path.name != "cluster.py":
            for line in broken(cluster_writes, [path]):
                found.setdefault(path.name, set()).add(line.partition(" ")[2])
    assert found == WRITES


def versions(lock: Path) -> dict[str, tuple[int, ...]]:
    found = re.findall(r"^([a-z0-9._-]+)==([0-9.]+)", lock.read_text(), re.MULTILINE)
    return {name: tuple(int(part) for part in version.strip(".").split(".")) for name, version in found}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_locks_hold_fixed_versions_each(lock: Path) -> None:
    held = versions(lock)
    assert [name for name, least in FIXED.items() if name in held and held[name] < least] == []


def test_locks_hold_fixed_versions() -> None:
    assert {name for lock in LOCKS for name in versions(lock)} >= FIXED.keys() - {"torch"}


def test_builds_have_one_index_and_hashes() -> None:
    """A second index is how a stranger's package of the same name gets in; a lock without hashes is how another file does."""
    texts = {path: path.read_text() for path in (*LOCKS, *ROOT.rglob("Dockerfile"), ROOT / "Makefile") if ".venv" not in path.parts}
    assert len(texts) > len(LOCKS) + 1
    assert [str(path) for path, text in texts.items() if "extra-index" in text or "--index-url" in text] == []
    for lock in LOCKS:
        pinned = re.findall(r"^[a-z0-9._-]+==", lock.read_text(), re.MULTILINE)
        assert lock.read_text().count("--hash=sha256:") >= len(pinned) > 0, lock.name


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (unsafe_deserialisation, "import pickle"),
        (unsafe_deserialisation, "from dill import loads"),
        (unsafe_deserialisation, "import torch\ntorch.load('x')"),
        (unsafe_deserialisation, "self.socket.recv_pyobj()"),
        (code_from_data, "eval(text)"),
        (code_from_data, "subprocess.run(text, shell=True)"),
        (code_from_data, "AutoModel.from_pretrained(path, trust_remote_code=config.trust)"),
        (forms_and_files, "from starlette.responses import FileResponse"),
        (forms_and_files, "await request.form()"),
        (every_interface, "socket.bind(('0.0.0.0', 80))"),
        (secrets_compared, "if request.api_key == wanted: pass"),
        (host_header, "headers['host']"),
        (host_header, "request.headers.get('Host')"),
        (host_header, "request.base_url"),
        (cluster_writes, "await self._cluster.delete(PODS, meta)"),
        (cluster_writes, "task = create_task(writer.apply_status(SERVICES, body, FIELD_MANAGER))"),
        (cluster_writes, "await store.replace(LEASES, manifest, manager)"),
        (cluster_writes, "await quickly(self._writer.create, EVENTS, line)"),
        (cluster_writes, "await run(write=cluster.annotate(PODS, meta, notes, manager))"),
        (cluster_writes, "await getattr(cluster, 'apply')(PODS, manifest, manager)"),
        (cluster_writes, "await cluster._call('DELETE', path)"),
    ],
)
def test_each_rule_sees_its_bug(rule: Rule, source: str) -> None:
    assert breaks(rule, source)
