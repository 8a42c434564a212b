"""docker/ against the code that it starts: paths, packages, flags, ports and sizes. Nothing is built here."""

from __future__ import annotations

import fnmatch
import re
import shlex
import shutil
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import tomllib
import yaml
from google.protobuf import text_format
from launcher.access import read_access
from launcher.options import parse_arguments
from launcher.ports import USUAL_PORTS
from launcher.processes import GROUP_END_S
from launcher.repository import parse_overrides
from launcher.server_process import SHM_BYTES, STACK_BYTES
from tritonclient.grpc import model_config_pb2

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
COMPOSE_FILES = ("compose.yaml", "compose.secure.yaml", "compose.front-tls.yaml")
# Of the Compose specification, what these files use.
SERVICE_KEYS = {
    *("build", "command", "depends_on", "deploy", "environment", "image", "networks", "ports", "profiles", "secrets"),
    *("cap_drop", "logging", "read_only", "restart", "security_opt", "shm_size", "stop_grace_period", "tmpfs"),
    *("ulimits", "user", "volumes"),
}
VARIABLE = re.compile(r"\$\{(\w+):-([^{}]*)\}")
MIB = 1 << 20
# A region grows in steps and keeps gaps: one request of 200 MB left 295 MB.
GROWTH = 1.5


def instructions(name: str) -> list[tuple[str, str]]:
    """A Dockerfile's instructions and their arguments, continued lines joined, without comments."""
    text = (DOCKER / name).read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", " ").splitlines()
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def arguments_of(name: str, instruction: str) -> list[str]:
    return [argument for found, argument in instructions(name) if found == instruction]


def compose(name: str = "compose.yaml") -> dict[str, Any]:
    """A compose file with every variable at its default."""
    text = (DOCKER / name).read_text(encoding="utf-8")
    return yaml.safe_load(VARIABLE.sub(lambda found: found[2], text))


def config_of(model: str) -> Any:
    text = (ROOT / "model_repository" / model / "config.pbtxt").read_text(encoding="utf-8")
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def constraint(package: str) -> str:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"{package}=="))


@pytest.mark.parametrize("name", ["Dockerfile", "client.Dockerfile"])
def test_what_an_image_copies_is_there_and_travels_to_the_builder(name):
    ignored = {line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"}
    copies = [each for each in arguments_of(name, "COPY") if not each.startswith("--from")]
    sources = [source for each in copies for source in each.split()[:-1]]
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert not {source, source.split("/")[0]} & ignored


def is_ignored(path: str) -> bool:
    """Whether .dockerignore keeps a file from the builder; it has paths from the top, and names anywhere (`**/`)."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    folders = [path, *map(str, PurePosixPath(path).parents)]
    for pattern in (line for line in lines if line and not line.startswith("#")):
        anywhere = pattern.removeprefix("**/")
        for folder in folders:
            name = PurePosixPath(folder).name if pattern.startswith("**/") else folder
            if fnmatch.fnmatchcase(name, anywhere):
                return True
    return False


def test_every_file_that_is_served_travels_to_the_builder_and_no_other_thing_does():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    training = "model_repository/denoise/training/"
    served = [path for path in tracked if path.startswith(("model_repository/", "client/")) and training not in path]
    assert len(served) > 100
    assert [path for path in served if is_ignored(path)] == []
    others = [
        "docker/secrets/api_key",
        "docker/secrets/tls.key",
        ".env",
        ".git/config",
        "checkpoints/a/b",
        "tests/x.py",
    ]
    kept = [path for path in [*others, f"{training}train_world.py", "client/__pycache__/a.pyc"] if not is_ignored(path)]
    assert kept == []


def test_no_secret_travels_to_the_builder():
    ignored = set((ROOT / ".dockerignore").read_text().splitlines())
    assert {".git", "**/secrets", "**/*.key", "**/*.pem", "**/*api_key*", "**/.env"} <= ignored


def test_the_image_has_the_packages_that_the_models_and_the_launcher_need():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    run = next(each for each in arguments_of("Dockerfile", "RUN") if "tritonclient[grpc]" in each)
    installed = re.search(r"&& \$pip +(isal.*?) \$EXTRA_PACKAGES", run)
    assert set(shlex.split(installed[1])) == {*project["optional-dependencies"]["server"], "tritonclient[grpc]"}
    assert "-c /opt/worldstream/constraints.txt" in run


def test_the_build_of_torch_is_the_one_that_is_tested():
    assert f"TORCH_SPEC={constraint('torch')}" in arguments_of("Dockerfile", "ARG")
    assert compose()["services"]["gpu"]["build"]["args"]["TORCH_SPEC"] == constraint("torch")
    assert constraint("torch") in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_servers_image_has_one_tag_everywhere():
    (tag,) = [each for each in arguments_of("Dockerfile", "ARG") if each.startswith("TRITON_TAG=")]
    assert re.fullmatch(r"TRITON_TAG=2\d\.\d\d-py3", tag)
    assert f"TRITON_TAG={compose()['services']['cpu']['build']['args']['TRITON_TAG']}" == tag
    images = {each.split(" AS ")[0] for each in arguments_of("Dockerfile", "FROM")}
    assert images == {"nvcr.io/nvidia/tritonserver:${TRITON_TAG}"}


@pytest.mark.parametrize("name", [*COMPOSE_FILES, "scale/compose.scale.yaml", "scale/compose.scale.gpu.yaml"])
def test_every_variable_of_a_compose_file_has_a_default_and_is_told_on_the_page(name):
    text = (DOCKER / name).read_text(encoding="utf-8")
    page = (DOCKER / "README.md").read_text(encoding="utf-8")
    assert text.count("$") == len(VARIABLE.findall(text))
    assert [variable for variable, _ in VARIABLE.findall(text) if variable not in page] == []


def test_no_image_is_the_newest_of_its_name():
    texts = [path.read_text(encoding="utf-8") for path in DOCKER.glob("**/*.yaml")]
    images = re.findall(r"\bimage: ((?:nginx|prom|grafana)\S*)", "\n".join(texts))
    assert {image.split(":")[0] for image in images} == {"nginx", "prom/prometheus", "grafana/grafana"}
    assert len(set(images)) == 3  # each has one tag, everywhere
    assert all(re.search(r":v?\d+\.\d+", image) for image in images)


@pytest.mark.parametrize("service", ["front", "scale-proxy"])
def test_a_proxy_writes_to_its_temporary_folder_and_stderr_alone(service):
    name = "compose.yaml" if service == "front" else "scale/compose.scale.yaml"
    command = compose(name)["services"][service]["command"]
    # The user 101 may open no log of the image's, which nginx does before it reads its configuration.
    assert command[:5] == ["nginx", "-e", "stderr", "-p", "/tmp"]


def test_grafana_fetches_no_code():
    environment = compose()["services"]["grafana"]["environment"]
    assert environment["GF_PLUGINS_PREINSTALL_DISABLED"] == "true"
    assert {value for key, value in environment.items() if key.startswith("GF_ANALYTICS")} == {"false"}


@pytest.mark.parametrize("name", ["Dockerfile", "client.Dockerfile"])
def test_an_image_runs_as_nobody_special(name):
    assert arguments_of(name, "USER") == ["1000:1000"]
    # What comes after it changes nothing in the image.
    after = [found for found, _ in instructions(name)]
    assert not {"RUN", "COPY", "ADD"} & set(after[after.index("USER") :])


def test_the_health_check_asks_the_models():
    (check,) = arguments_of("Dockerfile", "HEALTHCHECK")
    command = yaml.safe_load(check.partition("CMD ")[2])
    assert command[:2] == ["python3", "/opt/worldstream/serve.py"]
    options = parse_arguments(command[2:])
    assert options.probe
    assert options.canary_timeout_s < int(re.search(r"--timeout=(\d+)s", check)[1])


def test_the_image_tells_the_launcher_where_its_server_is(monkeypatch):
    (declared,) = arguments_of("Dockerfile", "ENV")
    variables = dict(each.split("=", 1) for each in shlex.split(declared))
    for name, value in variables.items():
        if name.startswith("WORLDSTREAM_"):
            monkeypatch.setenv(name, value)
    options = parse_arguments([])
    assert (options.server, options.address) == (Path("/opt/tritonserver"), "0.0.0.0")
    assert variables["HOME"] == arguments_of("Dockerfile", "VOLUME")[0]  # compiled code is kept below it
    assert f"-o 1000 -g 1000 -m 700 {variables['HOME']}" in " ".join(arguments_of("Dockerfile", "RUN"))


def test_the_ports_are_the_launchers():
    assert arguments_of("Dockerfile", "EXPOSE") == [" ".join(map(str, USUAL_PORTS.values()))]


def test_the_entrypoint_becomes_the_launcher():
    (entrypoint,) = arguments_of("Dockerfile", "ENTRYPOINT")
    assert yaml.safe_load(entrypoint) == ["/usr/bin/tini", "--", "/opt/worldstream/entrypoint.sh"]
    assert "tini" in " ".join(arguments_of("Dockerfile", "RUN"))
    script = (DOCKER / "entrypoint.sh").read_text(encoding="utf-8")
    (last,) = re.findall(r'^exec python3 "\$home/serve\.py" (.*) "\$@"$', script, re.MULTILINE)
    options = parse_arguments(shlex.split(last))
    assert options.restart
    assert options.canary_every_s == 30
    assert f"wanted_stack_kib={STACK_BYTES // 1024} " in script
    assert (DOCKER / "entrypoint.sh").stat().st_mode & 0o111 == 0o111


def test_the_entrypoint_is_a_posix_script():
    subprocess.run(["sh", "-n", str(DOCKER / "entrypoint.sh")], check=True)


@pytest.mark.parametrize("name", COMPOSE_FILES)
def test_a_compose_file_is_made_of_what_compose_knows(name):
    document = compose(name)
    known = {"name", "services", "networks", "volumes", "secrets"}
    assert all(key in known or key.startswith("x-") for key in document)
    for service in document["services"].values():
        assert service.keys() <= SERVICE_KEYS
        assert set(service.get("networks", [])) <= set(compose()["networks"])
        assert set(service.get("secrets", [])) <= set(document.get("secrets", {}))
        assert set(service.get("depends_on", [])) <= set(document["services"])
    assert set(document["services"]) <= set(compose()["services"])


def test_each_service_waits_for_its_profile():
    profiles = {name: service["profiles"] for name, service in compose()["services"].items()}
    assert profiles == {
        "cpu": ["cpu"],
        "gpu": ["gpu"],
        "client": ["client"],
        "front": ["front"],
        "prometheus": ["metrics"],
        "grafana": ["metrics"],
    }


@pytest.mark.parametrize("name", ["cpu", "gpu", "client", "front", "prometheus", "grafana"])
def test_each_service_may_do_no_more_than_it_needs(name):
    service = compose()["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert name == "client" or {"cpus", "memory", "pids"} == set(service["deploy"]["resources"]["limits"])
    assert "privileged" not in service


@pytest.mark.parametrize("name", COMPOSE_FILES)
def test_what_is_published_is_on_this_machine_alone(name):
    services = compose(name)["services"]
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in published)
    # The metrics page is for the containers beside it.
    assert not any(port.endswith(":8002") for port in published)


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_the_server_in_compose_is_started_as_the_launcher_takes_it(name):
    service = compose()["services"][name]
    options = parse_arguments(shlex.split(service["command"]))
    assert (
        not options.model_config_name
        or (ROOT / "model_repository" / "denoise" / "configs" / f"{options.model_config_name}.pbtxt").is_file()
    )
    for key in parse_overrides(options.set).get("denoise", {}):
        assert key in config_of("denoise").parameters
    assert [port.rpartition(":")[2] for port in service["ports"]] == ["8000", "8001"]
    assert service["ulimits"]["stack"] == STACK_BYTES
    assert service["restart"] == "unless-stopped"
    # It has to outlast the launcher's own patience, else what it would clean up stays.
    exit_s = int(re.search(r"--exit-timeout-s (\d+)", (DOCKER / "entrypoint.sh").read_text())[1])
    assert int(service["stop_grace_period"].rstrip("s")) > exit_s + 5 + GROUP_END_S


def test_the_gpu_service_asks_for_a_gpu():
    limits = compose()["services"]["gpu"]["deploy"]["resources"]
    assert limits["reservations"]["devices"] == [{"driver": "nvidia", "device_ids": ["0"], "capabilities": ["gpu"]}]
    assert "reservations" not in compose()["services"]["cpu"]["deploy"]["resources"]


def largest_request_bytes() -> int:
    (text,) = re.findall(r"client_max_body_size (\d+)m;", (DOCKER / "nginx" / "limits.conf").read_text())
    return int(text) * MIB


def test_shared_memory_holds_what_the_largest_requests_pass_through_it():
    preprocess, denoise = config_of("preprocess"), config_of("denoise")
    pixels = 3 * int(preprocess.parameters["max_pixels_per_request"].string_value)
    request = largest_request_bytes()
    one = GROWTH * (request + pixels) + SHM_BYTES
    answer = int(denoise.parameters["response_bytes"].string_value)
    needed = preprocess.instance_group[0].count * one + GROWTH * (request + answer) + SHM_BYTES
    for name in ("cpu", "gpu"):
        assert compose()["services"][name]["shm_size"] == "1gb"
    assert needed / MIB < 1024
    assert "WORLDSTREAM_SHM_MIB:-1024" in (DOCKER / "entrypoint.sh").read_text(encoding="utf-8")


def test_no_proxy_takes_a_body_that_triton_would_not():
    """Current releases refuse larger ones by themselves: --http-max-input-size is 64 MiB."""
    limits = re.findall(r"client_max_body_size (\d+)m;", (DOCKER / "scale" / "routes.conf").read_text(encoding="utf-8"))
    assert [largest_request_bytes(), *(int(limit) * MIB for limit in limits)] == [1 << 26] * 2


def test_the_largest_picture_passes_the_front():
    denoise = config_of("denoise")
    assert 3 * int(denoise.parameters["max_picture_pixels"].string_value) < largest_request_bytes()


@pytest.mark.parametrize("name", COMPOSE_FILES)
def test_the_files_that_containers_see_are_there(name):
    for service in compose(name)["services"].values():
        mounts = [each for each in service.get("volumes", []) if isinstance(each, str) and each.startswith("./")]
        for mount in mounts:
            source, target, mode = mount.split(":")
            assert (DOCKER / source).exists()
            assert target.startswith("/etc/")
            assert mode == "ro"


@pytest.mark.parametrize("name", COMPOSE_FILES[1:])
def test_secrets_are_files_outside_of_any_image(name, monkeypatch):
    document = compose(name)
    assert {secret: each["file"] for secret, each in document["secrets"].items()} == {
        "tls_cert": "./secrets/tls.crt",
        "tls_key": "./secrets/tls.key",
        "api_key": "./secrets/api_key",
    }
    for service in document["services"].values():
        for variable, value in service.get("environment", {}).items():
            assert value == "localhost" or value.removeprefix("/run/secrets/") in service["secrets"], variable


@pytest.mark.parametrize("variable", ["TLS_CERT", "TLS_KEY", "API_KEY_FILE"])
def test_the_launcher_takes_its_secrets_from_where_compose_puts_them(variable, monkeypatch):
    environment = compose("compose.secure.yaml")["services"]["gpu"]["environment"]
    monkeypatch.setenv(f"WORLDSTREAM_{variable}", environment[f"WORLDSTREAM_{variable}"])
    option = vars(parse_arguments([]))[variable.lower()]
    assert str(option).startswith("/run/secrets/")


def test_the_page_names_only_variables_that_something_reads():
    names = ("launcher/*.py", "**/*.yaml", "entrypoint.sh", "Dockerfile")
    readers = [path for name in names for path in DOCKER.glob(name)]
    read = "\n".join(path.read_text(encoding="utf-8") for path in readers)
    named = set(re.findall(r"WORLDSTREAM_[A-Z_]+", (DOCKER / "README.md").read_text(encoding="utf-8")))
    assert named
    assert {name for name in named if name not in read} == set()


def test_the_page_tells_how_to_make_secrets_that_the_launcher_takes(tmp_path, monkeypatch):
    page = (DOCKER / "README.md").read_text(encoding="utf-8")
    (snippet,) = [block for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "openssl" in block]
    commands = re.sub(r"^(mkdir|sudo) .*\n", "", snippet, flags=re.MULTILINE)
    subprocess.run(["bash", "-euc", commands], cwd=tmp_path, check=True, capture_output=True)
    files = ["--tls-cert=tls.crt", "--tls-key=tls.key", "--api-key-file=api_key"]
    monkeypatch.chdir(tmp_path)
    assert len(read_access(parse_arguments(files)).api_key) == 64


def test_grafana_finds_its_source_and_dashboard():
    grafana = compose()["services"]["grafana"]
    mounts = dict(each.split(":")[:2][::-1] for each in grafana["volumes"] if each.startswith("./"))
    source = yaml.safe_load((DOCKER / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"][0]
    provider = yaml.safe_load((DOCKER / "grafana/provisioning/dashboards/worldstream.yaml").read_text())["providers"][0]
    assert source["url"] == "http://prometheus:9090"
    assert provider["options"]["path"] in mounts
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (DOCKER / mounts[str(home.parent)] / home.name).is_file()


def test_each_alert_is_tested():
    folder = DOCKER / "prometheus"
    alerts = yaml.safe_load((folder / "alerts.yaml").read_text(encoding="utf-8"))
    tests = yaml.safe_load((folder / "alerts.test.yaml").read_text(encoding="utf-8"))
    tested = {each["alertname"] for test in tests["tests"] for each in test["alert_rule_test"]}
    assert tested == {rule["alert"] for group in alerts["groups"] for rule in group["rules"]}


def test_prometheus_reads_the_servers_page():
    config = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yaml").read_text(encoding="utf-8"))
    assert config["scrape_configs"][0]["static_configs"] == [{"targets": ["worldstream:8002"]}]
    assert all((DOCKER / "prometheus" / name).is_file() for name in config["rule_files"])
    for name in ("cpu", "gpu"):
        assert compose()["services"][name]["networks"]["serving"]["aliases"] == ["worldstream"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here: apt-get install prometheus")
def test_prometheus_itself_takes_its_configuration_and_raises_the_right_alerts():
    subprocess.run(["promtool", "check", "config", "prometheus.yaml"], cwd=DOCKER / "prometheus", check=True)
    subprocess.run(["promtool", "test", "rules", "alerts.test.yaml"], cwd=DOCKER / "prometheus", check=True)
