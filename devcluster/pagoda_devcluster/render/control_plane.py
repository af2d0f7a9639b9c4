"""Renders etcd, API server, controller-manager and scheduler: their command lines and files. Pure."""

import base64
import json
from pathlib import Path
from typing import Any

import yaml

from pagoda_devcluster.cluster.process import Process
from pagoda_devcluster.cluster.spec import API_PORT, ETCD_PORT, ClusterSpec

ISSUER = "https://kubernetes.default.svc.cluster.local"
# Of the audit log's volume nine tenths would be the control plane reading its own caches: those reads are left out, every write is in.
READERS = ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy", "system:coredns"]


def control_plane_processes(spec: ClusterSpec) -> list[Process]:
    return [etcd(spec), apiserver(spec), controller_manager(spec), scheduler(spec)]


def etcd(spec: ClusterSpec) -> Process:
    """On loopback with client certificates: pods and other users of the machine must not write behind the API server's back."""
    pki, client = spec.paths.pki, f"https://{spec.net.loopback}:{ETCD_PORT}"
    peer = f"http://{spec.net.loopback}:{ETCD_PORT + 1}"
    options = {
        "name": "dev",
        "data-dir": spec.paths.etcd,
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"dev={peer}",
        "cert-file": pki / "etcd.crt",
        "key-file": pki / "etcd.key",
        "trusted-ca-file": pki / "ca.crt",
        "client-cert-auth": "true",
        # The data lives as long as the processes, and an fsync costs 5-30 ms on a shared disk.
        "unsafe-no-fsync": "true",
        "log-level": "warn",
    }
    return Process("etcd", [str(spec.bin / "etcd"), *flags(options)])


def apiserver(spec: ClusterSpec) -> Process:
    options = api_identity(spec) | api_store(spec) | api_access(spec) | api_audit(spec)
    return Process("kube-apiserver", [str(spec.bin / "kube-apiserver"), *flags(options)])


def api_identity(spec: ClusterSpec) -> dict[str, object]:
    pki = spec.paths.pki
    # An endpoint of the Service `kubernetes` may not be a loopback address; without a node nothing uses it.
    reconciler = {} if spec.has_node else {"endpoint-reconciler-type": "none"}
    return {
        "bind-address": spec.api_address,
        "advertise-address": spec.api_address,
        "secure-port": API_PORT,
        "service-cluster-ip-range": spec.net.service_cidr,
        "tls-cert-file": pki / "apiserver.crt",
        "tls-private-key-file": pki / "apiserver.key",
        "service-account-issuer": ISSUER,
        "service-account-key-file": pki / "sa.key",
        "service-account-signing-key-file": pki / "sa.key",
    } | reconciler


def api_store(spec: ClusterSpec) -> dict[str, object]:
    pki = spec.paths.pki
    return {
        "etcd-servers": f"https://{spec.net.loopback}:{ETCD_PORT}",
        "etcd-cafile": pki / "ca.crt",
        "etcd-certfile": pki / "etcd-client.crt",
        "etcd-keyfile": pki / "etcd-client.key",
    }


def api_access(spec: ClusterSpec) -> dict[str, object]:
    pki = spec.paths.pki
    return {
        "client-ca-file": pki / "ca.crt",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "allow-privileged": "true",
        "kubelet-preferred-address-types": "InternalIP",
        "kubelet-certificate-authority": pki / "ca.crt",
        "kubelet-client-certificate": pki / "apiserver-kubelet-client.crt",
        "kubelet-client-key": pki / "apiserver-kubelet-client.key",
        "requestheader-client-ca-file": pki / "ca.crt",
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "proxy-client-cert-file": pki / "front-proxy-client.crt",
        "proxy-client-key-file": pki / "front-proxy-client.key",
        "enable-aggregator-routing": "true",
        "profiling": "false",
    }


def api_audit(spec: ClusterSpec) -> dict[str, object]:
    """Blocking mode: an event is in the file before the client has its answer, so a test may count right after a call."""
    return {
        "audit-log-path": spec.paths.audit_log,
        "audit-policy-file": spec.paths.config / "audit-policy.yaml",
        "audit-log-mode": "blocking",
        # Never rotated within a test: an event that moved to another file would not be counted.
        "audit-log-maxsize": 4096,
        "audit-log-maxbackup": 1,
    }


def controller_manager(spec: ClusterSpec) -> Process:
    pki = spec.paths.pki
    kubeconfig = spec.paths.config / "kube-controller-manager.kubeconfig"
    options: dict[str, object] = own_server(spec, kubeconfig) | {
        "use-service-account-credentials": "true",
        "service-account-private-key-file": pki / "sa.key",
        "root-ca-file": pki / "ca.crt",
        "cluster-signing-cert-file": pki / "ca.crt",
        "cluster-signing-key-file": pki / "ca.key",
        # Created if it is missing; the default would be /usr/libexec of the host.
        "flex-volume-plugin-dir": spec.root / "volume-plugins",
        # A volume whose claim was deleted and made again conflicts with the binder's cache, which then waits for the next round: 35 s at
        # the default of 15 s, 2 s at this. A round reads only the cache.
        "pvclaimbinder-sync-period": "1s",
        # The defaults (20/30) make a test that creates 50 objects wait for the client's own rate limit.
        "kube-api-qps": 200,
        "kube-api-burst": 400,
    }
    return Process("kube-controller-manager", [str(spec.bin / "kube-controller-manager"), *flags(options | grace_periods(spec))])


def grace_periods(spec: ClusterSpec) -> dict[str, object]:
    """Fake nodes send no heartbeats (100 would be 10 writes a second), so their absence must not count."""
    return {"node-monitor-grace-period": "24h", "node-startup-grace-period": "24h"} if spec.fakes else {}


def fake_kubelet(spec: ClusterSpec) -> Process:
    return Process("fake-kubelet", [spec.python, "-P", "-m", "pagoda_devcluster.fake", str(spec.root)])


def fronts(spec: ClusterSpec) -> Process:
    """A command of the product: the dev cluster imports nothing of it."""
    argv = [spec.python, "-P", "-m", "pagoda_daemon", "simulate-fronts", "--control", str(spec.paths.fronts)]
    return Process("fronts", argv)


def scheduler(spec: ClusterSpec) -> Process:
    options = own_server(spec, spec.paths.config / "kube-scheduler.kubeconfig")
    return Process("kube-scheduler", [str(spec.bin / "kube-scheduler"), *flags(options)])


def own_server(spec: ClusterSpec, kubeconfig: Path) -> dict[str, object]:
    """What controller-manager and scheduler share. One copy of each: no leader election, and no Lease written every 2 s."""
    return {
        "kubeconfig": kubeconfig,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "bind-address": spec.net.loopback,
        # Empty would mean a self-signed pair in /var/run/kubernetes.
        "tls-cert-file": spec.paths.pki / "apiserver.crt",
        "tls-private-key-file": spec.paths.pki / "apiserver.key",
        "leader-elect": "false",
        "profiling": "false",
    }


def flags(options: dict[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items()]


def control_plane_files(spec: ClusterSpec) -> dict[Path, str]:
    """Files below the config folder that need no certificate."""
    return {spec.paths.config / "audit-policy.yaml": yaml.safe_dump(audit_policy())}


def audit_policy() -> dict[str, Any]:
    reads = ["get", "list", "watch"]
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "nonResourceURLs": ["/readyz*", "/livez*", "/healthz*", "/metrics", "/openapi/*"]},
            {"level": "None", "verbs": reads, "users": READERS},
            {"level": "None", "verbs": reads, "userGroups": ["system:nodes"]},
            {"level": "None", "verbs": reads, "userGroups": ["system:serviceaccounts:kube-system"]},
            {"level": "Metadata"},
        ],
    }


def kubeconfig(spec: ClusterSpec, user: str, authority: bytes, certificate: bytes, key: bytes) -> str:
    """Self-contained, so that it can be copied; JSON is YAML, and every client reads it."""
    credentials = {"client-certificate-data": _b64(certificate), "client-key-data": _b64(key)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": spec.context, "cluster": {"server": spec.server, "certificate-authority-data": _b64(authority)}}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": spec.context, "context": {"cluster": spec.context, "user": user}}],
        "current-context": spec.context,
    }
    return json.dumps(document, indent=2) + "\n"


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
