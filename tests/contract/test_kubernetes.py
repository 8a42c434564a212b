"""docker/kubernetes: rendered, checked against Kubernetes' own schemas, and in agreement with itself and the code."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from launcher.options import parse_arguments
from launcher.ports import USUAL_PORTS, choose_ports
from launcher.server import STOP_GRACE_S
from worldstream.sizing.plan import parse_bytes, shm_bytes
from worldstream.sizing.worlds import WORLDS

from tests.server.proxies import NGINX

DOCKER = Path(__file__).parents[2] / "docker"
KUBERNETES = DOCKER / "kubernetes"
VERSION = "1.34"  # of Kubernetes; what is used here is older
# Not Kubernetes' own: no schema comes with the package.
FOREIGN = ("ScaledObject", "InferenceService")
SERVERS = {"app.kubernetes.io/name": "worldstream", "app.kubernetes.io/component": "server"}

Manifest = dict[str, Any]


def render(folder: str) -> list[Manifest]:
    """What `kubectl apply -k` would send."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here")
    command = ["kubectl", "kustomize", str(KUBERNETES / folder)]
    rendered = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert rendered.returncode == 0, rendered.stderr
    return list(yaml.safe_load_all(rendered.stdout))


def load(path: str) -> list[Manifest]:
    return list(yaml.safe_load_all((KUBERNETES / path).read_text(encoding="utf-8")))


def one(manifests: list[Manifest], kind: str, name: str = "worldstream") -> Manifest:
    (found,) = [each for each in manifests if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def pod_of(manifest: Manifest) -> Manifest:
    return manifest["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def base() -> list[Manifest]:
    """Without kubectl: the files that base's kustomization names."""
    (kustomization,) = load("base/kustomization.yaml")
    return [manifest for path in kustomization["resources"] for manifest in load(f"base/{path}")]


@pytest.mark.parametrize("folder", ["base", "overlays/gpu"])
def test_what_is_rendered_keeps_to_the_schemas(folder: str) -> None:
    manifests = [each for each in render(folder) if each["kind"] not in FOREIGN]

    assert {each["kind"] for each in manifests} >= {"StatefulSet", "Deployment", "Service", "NetworkPolicy"}
    for manifest in manifests:
        kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_the_files_themselves_keep_to_the_schemas(base: list[Manifest]) -> None:
    for manifest in base:
        kubernetes_validate.validate(manifest, VERSION, strict=True)


@pytest.mark.parametrize("folder", ["base", "overlays/gpu"])
def test_everything_rendered_is_in_one_namespace(folder: str) -> None:
    manifests = render(folder)
    (namespace,) = [each["metadata"]["name"] for each in manifests if each["kind"] == "Namespace"]
    others = [each["metadata"].get("namespace") for each in manifests if each["kind"] != "Namespace"]
    assert set(others) == {namespace}


def test_the_gpu_overlay_is_the_base_on_a_gpu_with_checkpoints() -> None:
    manifests = render("overlays/gpu")
    (server,) = pod_of(one(manifests, "StatefulSet"))["containers"]

    assert server["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert server["args"] == ["--model-config-name=gpu"]
    assert parse_arguments(server["args"]).model_config_name == "gpu"
    mounts = {each["mountPath"]: each.get("readOnly", False) for each in server["volumeMounts"]}
    assert mounts == {"/checkpoints": True, "/dev/shm": False, "/tmp": False, "/var/cache/worldstream": False}
    assert one(manifests, "ScaledObject")["spec"]["scaleTargetRef"]["name"] == "worldstream"


@pytest.mark.parametrize("kind", ["StatefulSet", "Deployment", "InferenceService"])
def test_every_pod_has_the_least_rights(base: list[Manifest], kind: str) -> None:
    (manifest,) = [each for each in [*base, *load("kserve/inference-service.yaml")] if each["kind"] == kind]
    pod = manifest["spec"]["predictor"] if kind == "InferenceService" else pod_of(manifest)

    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]


def test_probes_ask_as_the_launcher_understands(base: list[Manifest]) -> None:
    (server,) = pod_of(one(base, "StatefulSet"))["containers"]
    for name in ("startupProbe", "readinessProbe"):
        python, script, *arguments = server[name]["exec"]["command"]
        assert (python, script) == ("python3", "/opt/worldstream/serve.py")
        options = parse_arguments(arguments)
        assert options.probe
        assert options.canary_timeout_s < server[name]["timeoutSeconds"]  # it says why before it is cut off
    # While the launcher starts a dead server again nothing listens: that must not end it.
    assert "livenessProbe" not in server


@pytest.mark.parametrize("path", ["base/servers.yaml", "kserve/inference-service.yaml"])
def test_a_pod_has_the_time_to_load_published_weights(path: str) -> None:
    manifest = load(path)[0]
    pod = manifest["spec"]["predictor"] if manifest["kind"] == "InferenceService" else pod_of(manifest)
    (server,) = pod["containers"]
    probe = server["startupProbe"]
    overlay = (KUBERNETES / "overlays/gpu/servers.yaml").read_text(encoding="utf-8")

    (start_timeout_s,) = re.findall(r"--start-timeout-s=(\d+)", overlay)

    assert probe["failureThreshold"] * probe["periodSeconds"] >= int(start_timeout_s)


@pytest.mark.parametrize("path", ["base/servers.yaml", "kserve/inference-service.yaml"])
def test_a_pod_has_the_time_to_drain(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = load(path)[0]
    pod = manifest["spec"]["predictor"] if manifest["kind"] == "InferenceService" else pod_of(manifest)
    (server,) = pod["containers"]
    hook = server.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
    monkeypatch.setenv(
        "WORLDSTREAM_DRAIN_S", {each["name"]: each["value"] for each in server["env"]}["WORLDSTREAM_DRAIN_S"]
    )

    drain_s = parse_arguments([]).drain_s

    assert drain_s == 300
    exit_s = 20 + 2 * STOP_GRACE_S  # the entry point's --exit-timeout-s, and what the launcher adds
    assert int(hook[1]) + drain_s + exit_s < pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("path", ["base/servers.yaml", "kserve/inference-service.yaml"])
def test_shared_memory_is_as_large_as_the_plan_says(path: str) -> None:
    manifest = load(path)[0]
    pod = manifest["spec"]["predictor"] if manifest["kind"] == "InferenceService" else pod_of(manifest)
    (shm,) = [volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "shm"]

    assert shm["medium"] == "Memory"
    size = parse_bytes("sizeLimit", shm["sizeLimit"])
    assert shm_bytes(WORLDS["embedded"]) <= size
    # The entry point refuses to start with less.
    script = (DOCKER / "entrypoint.sh").read_text(encoding="utf-8")
    assert size == int(re.findall(r"WORLDSTREAM_SHM_MIB:-(\d+)", script)[0]) * 2**20


def test_services_networks_and_budgets_choose_pods_that_are_there(base: list[Manifest]) -> None:
    labels = one(base, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert labels == SERVERS
    assert one(base, "StatefulSet")["spec"]["selector"]["matchLabels"] == SERVERS
    assert one(base, "Service")["spec"]["selector"] == SERVERS
    assert one(base, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == SERVERS
    assert one(base, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == SERVERS

    proxy = one(base, "Deployment", "worldstream-proxy")["spec"]["template"]["metadata"]["labels"]
    assert one(base, "Service", "worldstream-proxy")["spec"]["selector"] == proxy
    assert one(base, "NetworkPolicy")["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"] == proxy
    for name in ("worldstream", "worldstream-proxy"):
        pods = one(base, "StatefulSet" if name == "worldstream" else "Deployment", name)
        ports = {port["name"] for container in pod_of(pods)["containers"] for port in container["ports"]}
        assert {port["targetPort"] for port in one(base, "Service", name)["spec"]["ports"]} <= ports


def test_the_proxy_routes_as_the_tested_one(base: list[Manifest]) -> None:
    for name in ("nginx.conf", "routes.conf"):
        assert (KUBERNETES / "base" / "nginx" / name).read_bytes() == (DOCKER / "scale" / name).read_bytes()


def test_the_proxys_ring_has_a_name_for_every_server_that_may_come(base: list[Manifest]) -> None:
    (kustomization,) = load("base/kustomization.yaml")
    servers, service = one(base, "StatefulSet"), one(base, "Service")
    most = load("components/autoscaling/scaled-object.yaml")[0]["spec"]["maxReplicaCount"]
    domain = f"{service['metadata']['name']}.{kustomization['namespace']}.svc.cluster.local"
    assert servers["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"

    text = (KUBERNETES / "base" / "nginx" / "upstreams.conf").read_text(encoding="utf-8")

    for port in (8000, 8001):
        wanted = [f"{servers['metadata']['name']}-{number}.{domain}:{port}" for number in range(most)]
        assert re.findall(rf"server (\S+:{port}) resolve ", text) == wanted
    assert servers["spec"]["replicas"] <= most


@pytest.mark.skipif(NGINX is None, reason="no nginx here: apt-get install nginx-light")
def test_nginx_takes_the_ring_but_for_what_only_a_newer_one_knows(tmp_path: Path) -> None:
    folder = shutil.copytree(KUBERNETES / "base" / "nginx", tmp_path / "conf")
    ports = choose_ports(dict.fromkeys(USUAL_PORTS), is_free_wanted=True)
    upstreams = (folder / "upstreams.conf").read_text(encoding="utf-8")
    upstreams = re.sub(r"worldstream-(\d)\.[a-z.]+:(\d+) resolve", r"127.0.0.1\1:\2", upstreams)
    assert " resolve" not in upstreams
    (folder / "upstreams.conf").write_text(re.sub(r"resolver \S+", "resolver 127.0.0.1", upstreams), encoding="utf-8")
    routes = (folder / "routes.conf").read_text(encoding="utf-8")
    for port, service in (("8001", "grpc"), ("8000", "http")):
        routes = routes.replace(f"listen {port}", f"listen 127.0.0.1:{ports[service]}")
    (folder / "routes.conf").write_text(routes, encoding="utf-8")

    command = [str(NGINX), "-t", "-e", "stderr", "-p", str(tmp_path), "-c", str(folder / "nginx.conf")]
    tested = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)

    assert tested.returncode == 0, tested.stderr
    assert "[warn]" not in tested.stderr


def test_more_sessions_make_more_servers() -> None:
    """KEDA's documented fields; no schema of it comes with a package."""
    (scaled,) = load("components/autoscaling/scaled-object.yaml")
    assert scaled["apiVersion"] == "keda.sh/v1alpha1"
    assert scaled["spec"]["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "worldstream"}
    assert 1 <= scaled["spec"]["minReplicaCount"] < scaled["spec"]["maxReplicaCount"]
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["type"] == "prometheus"
    assert trigger["metadata"].keys() == {"serverAddress", "query", "threshold"}
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    assert "worldstream_active_sessions" in trigger["metadata"]["query"]
    # What it says of scaling is a HorizontalPodAutoscaler's own.
    behavior = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    target = {**scaled["spec"]["scaleTargetRef"]}
    hpa = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "worldstream"},
        "spec": {"scaleTargetRef": target, "maxReplicas": 4, "behavior": behavior},
    }
    kubernetes_validate.validate(hpa, VERSION, strict=True)


def test_the_kserve_sample_is_a_pod_with_one_predictor() -> None:
    """KServe's documented fields; what is a pod in it is held against a pod's schema."""
    (service,) = load("kserve/inference-service.yaml")
    assert (service["apiVersion"], service["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    predictor = dict(service["spec"]["predictor"])
    assert (predictor.pop("minReplicas"), predictor.pop("maxReplicas")) == (1, 1)
    assert [container["name"] for container in predictor["containers"]] == ["kserve-container"]
    assert predictor["containers"][0]["ports"] == [{"name": "h2c", "containerPort": 8001, "protocol": "TCP"}]

    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "predictor"}, "spec": predictor}
    kubernetes_validate.validate(pod, VERSION, strict=True)
