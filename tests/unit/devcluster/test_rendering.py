"""The command lines and files of every process, and what must be true of them together."""

import json
import re
from ipaddress import ip_network
from pathlib import Path

import pytest
import yaml
from pagoda_devcluster.client import pki
from pagoda_devcluster.cluster import manifests
from pagoda_devcluster.cluster.spec import ClusterSpec, Nodes
from pagoda_devcluster.machine import network
from pagoda_devcluster.providers.status import all_processes
from pagoda_devcluster.render import control_plane, node_config

NODE = ClusterSpec("dev", 0, Nodes.KUBELET, Path("/home/a b/clusters/dev"), Path("/home/a b/bin"))
ALONE = ClusterSpec("dev", 7, Nodes.CONTROL_PLANE, Path("/c/dev"), Path("/b"))


def option(spec: ClusterSpec, process: str, name: str) -> str | None:
    argv = next(one.argv for one in all_processes(spec) if one.name == process)
    return next((value.partition("=")[2] for value in argv if value.startswith(f"--{name}=")), None)


def test_without_a_node_only_the_control_plane_runs_and_nothing_runs_inside():
    assert [process.name for process in all_processes(ALONE)] == ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]
    assert not any(process.inside for process in all_processes(ALONE))


def test_the_store_is_on_loopback_and_asks_for_certificates():
    assert option(NODE, "etcd", "listen-client-urls") == "https://127.64.0.1:2379"
    assert option(NODE, "etcd", "client-cert-auth") == "true"
    assert option(NODE, "kube-apiserver", "etcd-servers") == "https://127.64.0.1:2379"


def test_the_api_server_listens_where_pods_reach_it():
    assert option(NODE, "kube-apiserver", "bind-address") == str(NODE.net.host)
    assert option(NODE, "kube-apiserver", "authorization-mode") == "Node,RBAC"
    assert option(NODE, "kube-apiserver", "endpoint-reconciler-type") is None
    assert option(ALONE, "kube-apiserver", "endpoint-reconciler-type") == "none"


@pytest.mark.parametrize("spec", [NODE, ALONE])
def test_every_file_a_process_names_is_rendered_or_made(spec):
    made = {f"{leaf.name}.{end}" for leaf in pki.certificates(spec) for end in ("crt", "key")} | {"ca.crt", "ca.key", "sa.key"}
    rendered = {str(path) for path in control_plane.control_plane_files(spec) | (node_config.node_files(spec) if spec.has_node else {})}
    clients = {leaf.name for leaf in pki.certificates(spec) if not leaf.alternatives}
    for value in (
        value for process in all_processes(spec) for argument in process.argv for value in [argument.partition("=")[2] or argument]
    ):
        if value.startswith(str(spec.paths.pki)):
            assert Path(value).name in made
        elif value.endswith(".kubeconfig"):
            assert Path(value).stem in clients
        elif value.startswith(str(spec.paths.config)):
            assert value in rendered


def test_the_api_servers_certificate_is_valid_for_every_way_to_it():
    names = pki.api_names(NODE)
    assert {"IP:10.192.0.1", "IP:10.96.0.1", "DNS:kubernetes.default.svc"} <= set(names)
    assert len(names) == len(set(names))


def test_a_node_gets_the_identity_the_node_authorizer_expects():
    kubelet = next(leaf for leaf in pki.certificates(NODE) if leaf.name == "kubelet")
    assert kubelet.subject == "/O=system:nodes/CN=system:node:pagoda-dev-node"
    assert option(NODE, "kubelet", "hostname-override") == "pagoda-dev-node"


def test_client_certificates_do_not_serve():
    argv = pki.leaf_argv(Path("/p"), pki.ADMIN)
    assert "extendedKeyUsage=clientAuth" in argv
    assert "basicConstraints=critical,CA:FALSE" in argv


def test_the_node_runs_in_namespaces_that_end_with_their_first_process():
    argv = node_config.init_process(NODE).argv
    assert argv[0] == "unshare"
    assert {"--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"} <= set(argv)
    assert argv[argv.index("--propagation") + 1] == "slave"


def test_the_furnishing_script_quotes_folders_and_masks_what_the_kubelet_would_set():
    script = node_config.furnish_script(NODE)
    assert "mount --bind '/home/a b/clusters/dev/node/kubelet' /var/lib/kubelet" in script
    for name, value in node_config.MASKED_SYSCTLS.items():
        assert re.search(rf"echo {value} > (\S+)\nmount --bind \1 /proc/sys/{name}", script)


def test_the_kubelet_starts_on_old_control_groups_and_trusts_nobody_unknown():
    config = yaml.safe_load(node_config.node_files(NODE)[NODE.paths.config / "kubelet.yaml"])
    assert config["failCgroupV1"] is False
    assert config["cgroupRoot"] == "/pagoda-dev"
    assert config["clusterDNS"] == ["10.96.0.10"]
    assert config["authentication"]["anonymous"] == {"enabled": False}
    assert config["imageGCHighThresholdPercent"] == 100


def test_isolation_of_local_storage_is_off_where_the_kubelet_cannot_see_its_filesystem():
    assert node_config.kubelet_config(NODE)["localStorageCapacityIsolation"] is True
    copied = ClusterSpec("dev", 0, Nodes.KUBELET, Path("/c"), Path("/b"), snapshotter="native")
    assert node_config.kubelet_config(copied)["localStorageCapacityIsolation"] is False
    assert 'snapshotter = "native"' in node_config.containerd_config(copied)


def test_sandboxes_may_keep_their_score_and_need_no_registry():
    config = node_config.containerd_config(NODE)
    assert "restrict_oom_score_adj = true" in config
    assert 'sandbox_image = "localhost/pagoda/pause:1"' in config


def test_pods_get_addresses_the_host_has_a_route_to():
    subnet = node_config.cni_config(NODE)["plugins"][0]["ipam"]["ranges"][0][0]["subnet"]
    assert ip_network(subnet) == NODE.net.pod_cidr
    assert network.route_commands(NODE) == [
        "route add 10.144.0.0/16 via 10.192.0.2 dev pgd-dev",
        "route add 10.96.0.0/16 via 10.192.0.2 dev pgd-dev",
    ]


def test_the_proxy_leaves_the_machines_connection_table_alone():
    config = node_config.kube_proxy_config(NODE)
    assert config["mode"] == "nftables"
    assert config["conntrack"] == {"maxPerCore": 0, "min": 0}


def test_dns_answers_for_the_cluster_and_denies_the_rest():
    text = node_config.corefile(NODE)
    assert "bind 10.192.0.2" in text
    assert "rcode NXDOMAIN" in text
    placed = dict(manifests.dns_objects(NODE))
    service = placed["/api/v1/namespaces/kube-system/services/kube-dns"]
    assert service["spec"]["clusterIP"] == "10.96.0.10"
    assert "selector" not in service["spec"]
    slice_ = placed["/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices/kube-dns"]
    assert slice_["endpoints"][0]["addresses"] == ["10.192.0.2"]
    # The API refuses a slice whose ports its Service would not lead to.
    assert [port["name"] for port in slice_["ports"]] == [port["name"] for port in service["spec"]["ports"]]


def test_the_audit_log_drops_only_reads():
    dropped = [rule for rule in control_plane.audit_policy()["rules"] if rule["level"] == "None"]
    assert all(set(rule["verbs"]) == {"get", "list", "watch"} for rule in dropped if "nonResourceURLs" not in rule)
    assert control_plane.audit_policy()["rules"][-1] == {"level": "Metadata"}


def test_a_kubeconfig_names_its_cluster_and_carries_its_credentials():
    document = json.loads(control_plane.kubeconfig(NODE, "admin", b"ca", b"crt", b"key"))
    assert document["current-context"] == "pagoda-dev"
    assert document["clusters"][0]["cluster"] == {"server": "https://10.192.0.1:6443", "certificate-authority-data": "Y2E="}
    assert document["users"][0]["user"] == {"client-certificate-data": "Y3J0", "client-key-data": "a2V5"}
