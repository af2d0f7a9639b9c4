"""The cluster's certificates: which ones (pure), and their making by openssl (about 20 ms each, elliptic curve).

A real authority, because without one the kubelet's port on the node would have to be open to every pod.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from pagoda_devcluster.cluster.errors import StartError
from pagoda_devcluster.cluster.spec import ClusterSpec

DAYS = "3650"
NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc", "-days", DAYS]
# A configuration of our own: the system's would add CA:TRUE to every leaf.
OPENSSL_CONFIG = "[req]\ndistinguished_name = subject\n[subject]\n"


@dataclass(frozen=True)
class Certificate:
    """One leaf: file name, subject, and the names it serves under (none: a client's)."""

    name: str
    common_name: str
    organization: str = ""
    alternatives: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        return (f"/O={self.organization}" if self.organization else "") + f"/CN={self.common_name}"


ADMIN = Certificate("admin", "kubernetes-admin", "system:masters")
# What plays GPUs and fake nodes; a name of its own keeps its writes apart in the audit log.
PLAYER = Certificate("player", "pagoda-devcluster-player", "system:masters")


def certificates(spec: ClusterSpec) -> list[Certificate]:
    """Control plane first; the node's only where there is one."""
    leaves = [
        Certificate("apiserver", "kube-apiserver", alternatives=api_names(spec)),
        Certificate("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
        Certificate("etcd", "etcd", alternatives=(f"IP:{spec.net.loopback}",)),
        Certificate("etcd-client", "kube-apiserver-etcd-client"),
        Certificate("front-proxy-client", "front-proxy-client"),
        Certificate("kube-controller-manager", "system:kube-controller-manager"),
        Certificate("kube-scheduler", "system:kube-scheduler"),
        ADMIN,
    ]
    return leaves + ([PLAYER] if spec.layout else []) + (node_certificates(spec) if spec.has_node else [])


def api_names(spec: ClusterSpec) -> tuple[str, ...]:
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"]
    addresses = [spec.api_address, spec.net.api_service, spec.net.loopback]
    return tuple(f"DNS:{name}" for name in names) + tuple(dict.fromkeys(f"IP:{address}" for address in addresses))


def node_certificates(spec: ClusterSpec) -> list[Certificate]:
    return [
        Certificate("kubelet", f"system:node:{spec.node_name}", "system:nodes"),
        Certificate("kubelet-server", spec.node_name, alternatives=(f"DNS:{spec.node_name}", f"IP:{spec.net.node}")),
        Certificate("kube-proxy", "system:kube-proxy"),
        Certificate("coredns", "system:coredns"),
    ]


def authority_argv(folder: Path) -> list[str]:
    extensions = ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,digitalSignature", "subjectKeyIdentifier=hash"]
    return [*_request(folder, "ca", "/CN=pagoda-devcluster"), *_add(extensions)]


def leaf_argv(folder: Path, leaf: Certificate) -> list[str]:
    usage = "serverAuth,clientAuth" if leaf.alternatives else "clientAuth"
    extensions = ["basicConstraints=critical,CA:FALSE", f"extendedKeyUsage={usage}"]
    if leaf.alternatives:
        extensions.append("subjectAltName=" + ",".join(leaf.alternatives))
    signer = ["-CA", str(folder / "ca.crt"), "-CAkey", str(folder / "ca.key")]
    return [*_request(folder, leaf.name, leaf.subject), *signer, *_add(extensions)]


def _request(folder: Path, name: str, subject: str) -> list[str]:
    files = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.crt")]
    return ["openssl", "req", "-x509", "-config", str(folder / "openssl.cnf"), *NEW_KEY, "-subj", subject, *files]


def _add(extensions: list[str]) -> list[str]:
    return [part for extension in extensions for part in ("-addext", extension)]


def service_account_key_argv(folder: Path) -> list[str]:
    return ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(folder / "sa.key")]


def create(spec: ClusterSpec) -> None:
    folder = spec.paths.pki
    folder.mkdir(mode=0o700, parents=True)
    (folder / "openssl.cnf").write_text(OPENSSL_CONFIG)
    _run(authority_argv(folder))
    for leaf in certificates(spec):
        _run(leaf_argv(folder, leaf))
    _run(service_account_key_argv(folder))


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StartError(f"openssl (3.0 or newer is needed) failed: {done.stderr.strip().splitlines()[-1:]}")
