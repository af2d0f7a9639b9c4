"""Renders the node: the script that furnishes its namespaces, containerd, CNI, kubelet, kube-proxy and CoreDNS. Pure."""

import json
import shlex
from pathlib import Path
from typing import Any

import yaml

from pagoda_devcluster.cluster.process import Process
from pagoda_devcluster.cluster.spec import ClusterSpec
from pagoda_devcluster.render.control_plane import flags

PAUSE_IMAGE = "localhost/pagoda/pause:1"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CNI_BINARIES = "/usr/lib/cni"
# The kubelet wants these values and writes them for the whole machine. It finds them here instead, in files bound over /proc/sys.
MASKED_SYSCTLS = {"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1"}
# Host folders that the node's own files would land in, and where a model folder therefore cannot be seen from inside.
HIDDEN_FOLDERS = (Path("/run"), Path("/var/run"), Path("/proc"), Path("/sys"), Path("/dev"))


def node_processes(spec: ClusterSpec) -> list[Process]:
    config = spec.paths.config
    kubelet = {"config": config / "kubelet.yaml", "kubeconfig": config / "kubelet.kubeconfig", "root-dir": "/var/lib/kubelet"}
    kubelet |= {"hostname-override": spec.node_name, "node-ip": spec.net.node}
    return [
        containerd(spec),
        *([gpu_plugin(spec)] if spec.layout else []),
        Process("kubelet", [str(spec.bin / "kubelet"), *flags(kubelet)], inside=True),
        Process("kube-proxy", [str(spec.bin / "kube-proxy"), *flags({"config": config / "kube-proxy.yaml"})], inside=True),
        Process("coredns", [str(spec.bin / "coredns"), "-conf", str(config / "Corefile")], inside=True),
    ]


def gpu_plugin(spec: ClusterSpec) -> Process:
    """Inside, because a unix socket's path holds 107 characters: /var/lib/kubelet is short, the cluster's folder need not be."""
    return Process("gpu-plugin", [spec.python, "-P", "-m", "pagoda_devcluster.gpus", str(spec.root)], inside=True)


def containerd(spec: ClusterSpec) -> Process:
    return Process("containerd", ["containerd", "--config", str(spec.paths.config / "containerd.toml")], inside=True)


def init_process(spec: ClusterSpec) -> Process:
    """Process 1 of the node. Its end is the end of every process, mount, link and nft table of the node: the kernel does the cleaning.

    Mounts are slaves of the host's: what the host mounts later is seen inside, nothing of the node is seen outside.
    """
    options = ["--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--propagation", "slave"]
    return Process("node-init", ["unshare", *options, str(spec.bin / "pause")])


def furnish_script(spec: ClusterSpec) -> str:
    """Run once inside. Whatever node software writes to fixed places lands in a tmpfs or in the cluster's folder, not on the host."""
    node = spec.paths.node
    lines = ["set -eu", "mount --make-rshared /", "mount -t tmpfs -o mode=0755 tmpfs /run"]
    lines += overlay_lines("lib") + overlay_lines("log")
    lines += bind_lines(node / "kubelet", "/var/lib/kubelet") + bind_lines(node / "containerd", "/var/lib/containerd")
    lines += bind_lines(node / "pods", "/var/log/pods")
    for name, value in MASKED_SYSCTLS.items():
        lines += mask_lines(name, value)
    return "\n".join([*lines, *network_lines()]) + "\n"


def overlay_lines(folder: str) -> list[str]:
    upper, work = f"/run/pagoda/{folder}/upper", f"/run/pagoda/{folder}/work"
    return [
        f"mkdir -p {upper} {work}",
        f"mount -t overlay overlay -o lowerdir=/var/{folder},upperdir={upper},workdir={work} /var/{folder}",
    ]


def bind_lines(source: Path, target: str) -> list[str]:
    return [f"mkdir -p {target}", f"mount --bind {shlex.quote(str(source))} {target}"]


def mask_lines(name: str, value: str) -> list[str]:
    file = f"/run/pagoda/sysctl-{name.replace('/', '-')}"
    return [f"echo {value} > {file}", f"mount --bind {file} /proc/sys/{name}"]


def network_lines() -> list[str]:
    """Bridged replies must pass connection tracking, or a pod that calls its neighbour by ClusterIP gets an answer from a stranger."""
    bridge = "/proc/sys/net/bridge/bridge-nf-call-iptables"
    missing = "the kernel has no br_netfilter: load that module on the host"
    return [
        "ip link set lo up",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        f"[ -e {bridge} ] || {{ echo {shlex.quote(missing)} >&2; exit 1; }}",
        f"echo 1 > {bridge}",
    ]


def node_files(spec: ClusterSpec) -> dict[Path, str]:
    config = spec.paths.config
    return {
        config / "furnish.sh": furnish_script(spec),
        config / "containerd.toml": containerd_config(spec),
        config / "cni" / "10-pagoda.conflist": json.dumps(cni_config(spec), indent=2),
        config / "kubelet.yaml": yaml.safe_dump(kubelet_config(spec)),
        config / "kube-proxy.yaml": yaml.safe_dump(kube_proxy_config(spec)),
        config / "Corefile": corefile(spec),
        # No search domains or servers of the host's reach a pod.
        config / "resolv.conf": f"nameserver {spec.net.node}\n",
    }


def containerd_config(spec: ClusterSpec) -> str:
    """Version 2 of the format: containerd 1.6 to 2.x read it. `restrict_oom_score_adj`: where a negative score may not be set, every
    sandbox dies with "can't get final child's PID from pipe: EOF" without it."""
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  tolerate_missing_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_BINARIES}"
    conf_dir = {json.dumps(str(spec.paths.config / "cni"))}
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{spec.snapshotter}"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


def cni_config(spec: ClusterSpec) -> dict[str, Any]:
    """No masquerading: the host has a route to every pod."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": str(spec.net.pod_cidr)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": "/run/pagoda/cni",
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "pagoda", "plugins": [bridge, portmap]}


def kubelet_config(spec: ClusterSpec) -> dict[str, Any]:
    return (
        kubelet_access(spec)
        | (kubelet_reports() if spec.layout else {})
        | {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{spec.cgroup}",
            "failCgroupV1": False,
            # Off only where the kubelet cannot find the filesystem below it and would not start: on a container's overlay.
            "localStorageCapacityIsolation": spec.snapshotter == "overlayfs",
            "failSwapOn": False,
            # The usual -999 may not be set where this process may not lower its own; asking for it fails once a minute.
            "oomScoreAdj": 0,
            # Its default is a folder of the host, which controller-manager and kubelet would create.
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            "clusterDNS": [str(spec.net.dns_service)],
            "clusterDomain": "cluster.local",
            "resolvConf": str(spec.paths.config / "resolv.conf"),
            "maxPods": 250,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            # No registry could bring an image back that was collected because the disk of a laptop is 86 % full.
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            # Off: it would walk every mounted model and environment (6 GB, 50,000 files) each minute.
            "volumeStatsAggPeriod": "-1s",
        }
    )


def kubelet_reports() -> dict[str, Any]:
    """Devices that come or go are in the node's status after 2 s and not 10; one that did not change is still sent every 5 min only."""
    return {"nodeStatusUpdateFrequency": "2s", "nodeStatusReportFrequency": "5m0s"}


def kubelet_access(spec: ClusterSpec) -> dict[str, Any]:
    pki = spec.paths.pki
    return {
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / "kubelet-server.crt"),
        "tlsPrivateKeyFile": str(pki / "kubelet-server.key"),
    }


def kube_proxy_config(spec: ClusterSpec) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(spec.paths.config / "kube-proxy.kubeconfig")},
        "clusterCIDR": str(spec.net.pod_cidr),
        "hostnameOverride": spec.node_name,
        "oomScoreAdj": 0,
        # nf_conntrack_max belongs to the whole machine.
        "conntrack": {"maxPerCore": 0, "min": 0},
        "nftables": {"minSyncPeriod": "100ms"},
    }


def corefile(spec: ClusterSpec) -> str:
    """Names outside the cluster do not exist here, and are said not to: a refusal would have resolvers retry for 10 s."""
    return f""".:53 {{
    bind {spec.net.node}
    errors
    ready {spec.net.node}:8181
    cache 5
    loadbalance
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {json.dumps(str(spec.paths.config / "coredns.kubeconfig"))}
        pods insecure
        ttl 5
        fallthrough in-addr.arpa
    }}
    template ANY ANY . {{
        rcode NXDOMAIN
    }}
}}
"""
