"""The manifests: valid by Kubernetes' own schemas, within the profile "restricted", true to each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from app.settings import FILE_SUFFIX, SETTINGS, Settings
from tests.support.tools import DEPLOY, output_of, tool

FOLDER: Final = DEPLOY / "kubernetes"
VERSION: Final = "1.31"
"""The API's version that they are checked against."""

_WORKLOADS: Final = ("Deployment", "Job", "CronJob")


def documents() -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted(FOLDER.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text("utf-8")):
            yield path, document


def named(kind: str, name: str = "lineage-trails") -> dict[str, Any]:
    [found] = [d for _, d in documents() if d["kind"] == kind and d["metadata"]["name"] == name]
    return found


def pods() -> list[tuple[str, dict[str, Any]]]:
    """The template of every pod, by the name of what makes it."""
    found = []
    for _, document in documents():
        if document["kind"] in _WORKLOADS:
            spec = document["spec"]
            template = spec["jobTemplate"]["spec"] if document["kind"] == "CronJob" else spec
            found.append((document["metadata"]["name"], template["template"]))
    return found


def test_they_are_valid() -> None:
    checker = tool("kubernetes-validate")
    foreign = {"monitoring.coreos.com", "kustomize.config.k8s.io"}  # no APIs of Kubernetes' own
    files = {path for path, document in documents() if document["apiVersion"].split("/")[0] not in foreign}
    said = output_of(checker, "--strict", "--kubernetes-version", VERSION, *map(str, sorted(files)))
    for path in files:
        assert f"{path} passed" in said


def test_kustomize_puts_them_together() -> None:
    said = output_of(tool("kubectl"), "kustomize", str(FOLDER))
    made = list(yaml.safe_load_all(said))
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text("utf-8"))
    assert len(made) == len(listed["resources"])
    images = set(re.findall(r"image: (\S+)", said))
    assert images == {"registry.example.com/lineage-trails:0.1.0"}
    left_out = {path.name for path, _ in documents()} - set(listed["resources"])
    assert left_out == {
        "kustomization.yaml",
        "migrate.yaml",
        "secret.example.yaml",
        "servicemonitor.example.yaml",
    }


@pytest.mark.parametrize(("name", "pod"), pods())
def test_pods_are_within_the_profile_restricted(name: str, pod: dict[str, Any]) -> None:
    """Pod Security Standards, "Restricted": each rule of it that these fields can break."""
    spec = pod["spec"]
    assert not any(spec.get(shared) for shared in ("hostNetwork", "hostPID", "hostIPC")), name
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"].get("runAsUser") != 0
    assert spec["securityContext"]["seccompProfile"]["type"] in {"RuntimeDefault", "Localhost"}
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
    }
    for volume in spec["volumes"]:
        assert set(volume) - {"name"} <= allowed | {"secret"}
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert not context.get("privileged")
        assert all("hostPort" not in port for port in container.get("ports", []))
        # Not asked by the profile, and kept all the same.
        assert context["readOnlyRootFilesystem"] is True
        assert spec["automountServiceAccountToken"] is False
        assert "memory" in container["resources"]["limits"]


def test_the_namespace_holds_everybody_to_it() -> None:
    labels = named("Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize(("name", "pod"), pods())
def test_secrets_are_mounted_as_the_service_takes_them(name: str, pod: dict[str, Any]) -> None:
    """Not readable by everybody, readable by the group of the pod, and each key there that is named."""
    spec = pod["spec"]
    keys = {
        document["metadata"]["name"]: set(document["stringData"])
        for _, document in documents()
        if document["kind"] == "Secret"
    }
    volumes = {volume["name"]: volume["secret"] for volume in spec["volumes"] if "secret" in volume}
    assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsGroup"]
    assert all(volume["defaultMode"] == 0o440 for volume in volumes.values())
    for container in spec["containers"]:
        mounts = {
            m["mountPath"]: keys[volumes[m["name"]]["secretName"]]
            for m in container["volumeMounts"]
            if m["name"] in volumes
        }
        files = [item["value"] for item in container["env"]]
        files += [argument for argument in container["args"] if argument.startswith("/run/")]
        for file in files:
            folder, _, key = file.rpartition("/")
            assert key in mounts[folder], f"{name}: {file}"
        secret = {setting.name + FILE_SUFFIX for setting in SETTINGS if setting.secret}
        assert {item["name"] for item in container["env"]} <= secret


def test_the_service_never_sees_the_administrators_url() -> None:
    [pod] = [pod for name, pod in pods() if name == "lineage-trails"]
    assert "admin" not in str(pod["spec"]["volumes"])


def test_whoever_verifies_reads_all_tenants_and_is_no_administrator() -> None:
    [pod] = [pod for name, pod in pods() if name == "lineage-trails-verify"]
    [container] = pod["spec"]["containers"]
    assert {
        "name": "TRAILS_DATABASE_URL_FILE",
        "value": "/run/secrets/verifier/verifier_url",
    } in container["env"]
    assert "admin" not in str(pod["spec"]["volumes"])
    told = named("Secret", "lineage-trails-verifier")["stringData"]["verifier_url"]
    assert told.startswith("postgresql://trails_verifier:")


def test_everything_that_selects_pods_selects_the_service() -> None:
    labels = named("Deployment")["spec"]["template"]["metadata"]["labels"].items()
    assert named("Deployment")["spec"]["selector"]["matchLabels"].items() <= labels
    assert named("Service")["spec"]["selector"].items() <= labels
    assert named("PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items() <= labels
    service_labels = named("Service")["metadata"]["labels"].items()
    assert named("ServiceMonitor")["spec"]["selector"]["matchLabels"].items() <= service_labels
    for name, pod in pods():
        if name != "lineage-trails":
            assert not named("Service")["spec"]["selector"].items() <= pod["metadata"]["labels"].items()


def test_ports_and_probes_are_the_services_own() -> None:
    from app.http.health import PROBE_SECS

    told = named("ConfigMap")["data"]
    assert Settings.from_env(told).bind_port == 9200
    [container] = named("Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": 9200}]
    assert {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe")} == {
        "/healthz"
    }
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["readinessProbe"]["timeoutSeconds"] > PROBE_SECS
    [ports] = [rule["ports"] for rule in named("NetworkPolicy")["spec"]["ingress"]]
    assert ports == [{"protocol": "TCP", "port": 9200}]


def test_the_ingress_lets_the_largest_body_through() -> None:
    annotations = named("Ingress")["metadata"]["annotations"]
    size = annotations["nginx.ingress.kubernetes.io/proxy-body-size"]
    assert size == f"{max(Settings().max_body_bytes, Settings().max_otlp_bytes) // 1024**2}m"


def test_connections_of_all_replicas_fit_into_the_database() -> None:
    told = Settings.from_env(named("ConfigMap")["data"])
    replicas = named("HorizontalPodAutoscaler")["spec"]["maxReplicas"] + 1  # one more while a version changes
    limits = re.findall(
        r"^max_connections = (\d+)", (DEPLOY / "postgres/postgresql.conf.example").read_text(), re.MULTILINE
    )
    assert replicas * told.workers * (told.pool_size + 2) <= int(limits[0])
