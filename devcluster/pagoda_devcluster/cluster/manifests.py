"""The objects this tool puts into a cluster, with the paths they live at. Pure."""

from typing import Any

from pagoda_devcluster.cluster.spec import ClusterSpec

Placed = tuple[str, dict[str, Any]]
DNS_LABELS = {"k8s-app": "kube-dns", "kubernetes.io/name": "CoreDNS"}
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def dns_objects(spec: ClusterSpec) -> list[Placed]:
    """CoreDNS is a process on the node: a Service without a selector, its endpoint written by hand."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "system:coredns"},
        "rules": [
            {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        ],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "system:coredns"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:coredns"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:coredns"}],
    }
    return [
        (f"{RBAC}/clusterroles/system:coredns", role),
        (f"{RBAC}/clusterrolebindings/system:coredns", binding),
        ("/api/v1/namespaces/kube-system/services/kube-dns", dns_service(spec)),
        ("/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices/kube-dns", dns_endpoints(spec)),
    ]


def dns_service(spec: ClusterSpec) -> dict[str, Any]:
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": DNS_LABELS},
        "spec": {"clusterIP": str(spec.net.dns_service), "ports": ports},
    }


def dns_endpoints(spec: ClusterSpec) -> dict[str, Any]:
    """`managed-by` keeps the controller that would delete a slice it does not know away."""
    labels = {"kubernetes.io/service-name": "kube-dns", "endpointslice.kubernetes.io/managed-by": "pagoda-devcluster"}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [str(spec.net.node)], "conditions": {"ready": True}}],
        "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}],
    }


def namespace(name: str) -> Placed:
    return f"/api/v1/namespaces/{name}", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
