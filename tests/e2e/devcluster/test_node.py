"""What a pod of a dev cluster can rely on, asked from inside pods that run as nobody under Pod Security `restricted`."""

import time
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.cluster


def test_a_service_is_reached_by_name_by_address_and_from_the_host(namespace):
    address = namespace.server("web")
    hello = "200 hello from web"
    assert hello in namespace.ask("get", "http://web")
    assert hello in namespace.ask("get", f"http://web.{namespace.name}.svc")
    assert hello in namespace.ask("get", f"http://web.{namespace.name}.svc.cluster.local")
    assert httpx.get(f"http://{address}", trust_env=False, timeout=300).text.startswith("hello from web")
    pod = namespace.kubectl("get", "pod", "web", "-o", "jsonpath={.status.podIP}")
    assert httpx.get(f"http://{pod}:8000", trust_env=False, timeout=300).text.startswith("hello from web")


def test_a_pod_reaches_itself_through_its_service(namespace):
    """The reply would bypass the node without hairpin mode and bridged connection tracking. (`web` alone is the pod's own host name.)"""
    namespace.server("web")
    own = f"http://web.{namespace.name}.svc"
    assert "200 hello from web" in namespace.kubectl("exec", "web", "--", "/probe", "get", own)


def test_names_outside_the_cluster_do_not_exist_and_are_refused_at_once(namespace):
    answer = namespace.ask("lookup", "no-such-host.example.com")
    assert "no such host" in answer
    assert "quick=true" in answer


def test_a_service_account_reaches_the_api_server_by_its_cluster_address(namespace):
    answer = namespace.ask("get", "https://kubernetes.default.svc/apis")
    assert answer.startswith("200")


def test_the_kubelet_answers_no_pod_without_credentials(cluster, namespace):
    node = cluster.status["node"]["address"]
    assert namespace.ask("get-anonymous", f"https://{node}:10250/pods").startswith("401")


def test_the_store_is_not_reachable_from_a_pod(namespace, cluster):
    host = cluster.status["server"].removeprefix("https://").partition(":")[0]
    assert "refused" in namespace.ask("get-anonymous", f"https://{host}:2379/health")


def test_a_privileged_pod_is_refused_where_the_namespace_says_so(namespace):
    with pytest.raises(RuntimeError, match="violates PodSecurity"):
        namespace.kubectl("run", "root", "--image=pagoda-probe:1", "--privileged")


def model_volume(claim: str) -> dict[str, object]:
    volume = {"name": "model", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    return {"volumes": [volume], "mounts": [{"name": "model", "mountPath": "/model", "readOnly": True}]}


def folder_with(path: Path, text: str, mode: int = 0o644) -> Path:
    path.mkdir(mode=0o755)
    (path / "config.json").write_text(text)
    (path / "config.json").chmod(mode)
    return path


def test_a_model_folder_is_readable_and_not_writable_for_nobody(namespace, tmp_path):
    folder = folder_with(tmp_path / "model", "weights")
    said = namespace.cluster.tool("load-model", str(folder), "--claim", f"{namespace.name}/model")
    assert str(folder) in said
    assert namespace.ask("read", "/model/config.json", **model_volume("model")) == "65534 weights"
    assert "read-only file system" in namespace.ask("write", "/model/new", **model_volume("model"))


def test_loading_a_model_again_changes_nothing_and_another_folder_is_refused(namespace, tmp_path):
    folder, other = folder_with(tmp_path / "model", "a"), folder_with(tmp_path / "other", "b")
    claim = f"{namespace.name}/model"
    namespace.cluster.tool("load-model", str(folder), "--claim", claim)
    begin = time.time()
    namespace.cluster.tool("load-model", str(folder), "--claim", claim)
    # Somebody else may use the cluster: only this tool sends patches to volumes and claims of this name.
    writes = namespace.cluster.audit(user="kubernetes-admin", since=begin)
    assert [event for event in writes if event["objectRef"].get("namespace") == namespace.name] == []
    with pytest.raises(RuntimeError, match=f"shows {folder}, not {other}: delete it first"):
        namespace.cluster.tool("load-model", str(other), "--claim", claim)


def test_a_claim_that_was_deleted_can_be_loaded_again(namespace, tmp_path):
    folder = folder_with(tmp_path / "model", "weights")
    namespace.cluster.tool("load-model", str(folder), "--claim", f"{namespace.name}/model")
    namespace.kubectl("delete", "pvc", "model")
    namespace.cluster.tool("load-model", str(folder), "--claim", f"{namespace.name}/model")
    assert namespace.ask("read", "/model/config.json", **model_volume("model")) == "65534 weights"


def test_a_folder_that_nobody_could_read_is_refused(namespace, tmp_path):
    folder = folder_with(tmp_path / "model", "secret", mode=0o600)
    with pytest.raises(RuntimeError, match=r"config\.json.*chmod -R a\+rX"):
        namespace.cluster.tool("load-model", str(folder), "--claim", f"{namespace.name}/model")


def test_what_the_api_server_refuses_is_reported_in_its_own_words(namespace, tmp_path):
    folder = folder_with(tmp_path / "model", "weights")
    with pytest.raises(RuntimeError, match=r"→ 7\npagoda-devcluster: the API server refused .*quantities must match"):
        namespace.cluster.tool("load-model", str(folder), "--claim", f"{namespace.name}/model", "--capacity", "lots")


def test_a_claim_in_a_namespace_that_is_missing_makes_it(cluster, tmp_path):
    folder = folder_with(tmp_path / "model", "weights")
    name = f"fresh-{time.time_ns()}"
    cluster.tool("load-model", str(folder), "--claim", f"{name}/model")
    assert cluster.get("pvc", "model", "-n", name)["status"]["phase"] == "Bound"
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.mark.parametrize(
    ("archived", "asked"),
    [
        ("bare-name", "docker.io/library/bare-name:latest"),
        ("team/probe:2", "docker.io/team/probe:2"),
        ("localhost/team/probe:3", "localhost/team/probe:3"),
    ],
)
@pytest.mark.parametrize("kind", ["docker", "oci"])
def test_an_image_is_found_under_the_name_a_pod_would_write(cluster, namespace, archives, kind, archived, asked):
    if kind == "oci" and ":" not in archived:
        archived += ":latest"
    file = archives.docker(archived) if kind == "docker" else archives.oci(org_opencontainers_image_ref_name=archived)
    assert cluster.tool("load-image", str(file)).split() == [asked]
    namespace.pod("named", "serve", ":8000", "x", containers=[container(asked)])
    namespace.kubectl("wait", "pod/named", "--for=condition=Ready", "--timeout=300s")


def container(image: str) -> dict[str, object]:
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    pull = {"image": image, "imagePullPolicy": "Never"}
    return pull | {"name": "probe", "args": ["serve", ":8000", "x"], "securityContext": security}


def test_an_archive_without_a_name_is_refused(cluster, archives):
    with pytest.raises(RuntimeError, match="names no image"):
        cluster.tool("load-image", str(archives.oci(org_opencontainers_image_ref_name="latest")))


def test_every_write_is_in_the_audit_log_when_the_call_returns(cluster, namespace):
    begin = time.time()
    namespace.kubectl("create", "configmap", "counted")
    namespace.kubectl("get", "configmap", "counted")
    ours = [event for event in cluster.audit(user="kubernetes-admin", since=begin) if event["objectRef"].get("name") == "counted"]
    assert [event["verb"] for event in ours] == ["create"]
    reads = cluster.audit(user="kubernetes-admin", since=begin, verbs="read")
    assert [event["verb"] for event in reads if event["objectRef"].get("name") == "counted"] == ["get"]


def test_the_audit_command_counts_the_writes_of_one_user_since_a_moment(cluster, namespace):
    """As later promises are stated."""
    namespace.kubectl("create", "configmap", "before")
    since = ["--since", str(time.time())]
    namespace.kubectl("create", "configmap", "counted")
    namespace.kubectl("label", "configmap", "counted", "a=b")
    namespace.kubectl("get", "configmaps")
    namespace.kubectl("create", "configmap", "dry", "--dry-run=server")
    admin = [*since, "--user", "kubernetes-admin", "--verbs", "write"]
    lines = [line for line in cluster.tool("audit", *admin).splitlines() if f" {namespace.name}/" in line]
    assert [line.split()[2:5] for line in lines] == [[verb, "configmaps", f"{namespace.name}/counted"] for verb in ("create", "patch")]
    assert int(cluster.tool("audit", *admin, "--count")) >= 2
    namespace.ask("get", f"https://kubernetes.default.svc/api/v1/namespaces/{namespace.name}/pods")
    account = [*since, "--user", f"system:serviceaccount:{namespace.name}:default"]
    assert cluster.tool("audit", *account, "--verbs", "write", "--count") == "0\n"
    assert cluster.tool("audit", *account, "--verbs", "read", "--count") == "1\n"


def test_the_node_leaves_the_machines_settings_alone(cluster):
    """The kubelet believes that it set vm.overcommit_memory to 1: the value it sees is a file of the node's own."""
    seen = cluster.tool("status")
    assert "ready" in seen
    masked = {"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}
    init = next(process["pid"] for process in cluster.status["processes"] if process["name"] == "node-init")
    child = Path(f"/proc/{init}/task/{init}/children").read_text().split()[0]
    inside = {name: Path(f"/proc/{child}/root/proc/sys/{name}").read_text().strip() for name in masked}
    assert inside == masked
    assert Path("/proc/sys/kernel/panic").read_text() != "10\n"
