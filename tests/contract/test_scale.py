"""docker/scale: its compose files agree with compose.yaml, with the proxy's configuration and with the launcher."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from launcher.options import parse_arguments
from launcher.server import STOP_GRACE_S
from worldstream.sizing.plan import parse_bytes, shm_bytes
from worldstream.sizing.worlds import WORLDS

DOCKER = Path(__file__).parents[2] / "docker"
SERVERS = ("worldstream-a", "worldstream-b")


def services(path: str) -> dict[str, Any]:
    return yaml.safe_load((DOCKER / path).read_text(encoding="utf-8"))["services"]


@pytest.fixture(scope="module")
def scaled() -> dict[str, Any]:
    return services("scale/compose.scale.yaml")


def test_a_scaled_server_is_the_single_one_but_for_what_scaling_needs(scaled: dict[str, Any]) -> None:
    single = services("compose.yaml")["cpu"]
    apart = ("profiles", "ports", "networks", "volumes", "environment", "stop_grace_period")
    for name in SERVERS:
        shared = {key: value for key, value in scaled[name].items() if key not in apart}
        assert shared == {key: value for key, value in single.items() if key not in apart}


def test_no_service_takes_a_name_of_compose_yaml(scaled: dict[str, Any]) -> None:
    assert not scaled.keys() & services("compose.yaml").keys()
    assert all(service["profiles"] == ["scale"] for service in scaled.values())


def test_the_proxy_stands_where_the_single_server_would(scaled: dict[str, Any]) -> None:
    single, proxy = services("compose.yaml")["cpu"], scaled["scale-proxy"]
    assert proxy["ports"] == single["ports"]
    assert proxy["networks"] == single["networks"]
    assert all("ports" not in scaled[name] for name in SERVERS)


def test_the_proxy_sends_to_the_services_and_reads_the_shipped_files(scaled: dict[str, Any]) -> None:
    upstreams = (DOCKER / "scale" / "upstreams.conf").read_text(encoding="utf-8")
    assert re.findall(r"^ +server (\S+) ", upstreams, re.MULTILINE) == [
        f"{name}:{port}" for port in (8001, 8000) for name in SERVERS
    ]
    # A container that is started again may get the address that another one had.
    assert all(" resolve " in line for line in upstreams.splitlines() if line.startswith("    server "))
    assert "\nresolver 127.0.0.11 valid=5s" in upstreams
    assert tuple(scaled["scale-proxy"]["depends_on"]) == SERVERS
    assert scaled["scale-proxy"]["volumes"] == ["./scale:/etc/worldstream:ro"]
    assert "/etc/worldstream/nginx.conf" in scaled["scale-proxy"]["command"]


def test_every_container_has_the_least_rights(scaled: dict[str, Any]) -> None:
    for service in scaled.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_a_server_has_the_time_to_drain_before_it_is_killed(
    scaled: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SERVERS:
        monkeypatch.setenv("WORLDSTREAM_DRAIN_S", scaled[name]["environment"]["WORLDSTREAM_DRAIN_S"])
        # The entry point's --exit-timeout-s, and what the launcher adds.
        needed_s = parse_arguments([]).drain_s + 20 + 2 * STOP_GRACE_S
        assert needed_s < int(scaled[name]["stop_grace_period"].removesuffix("s"))


def test_shared_memory_is_as_large_as_the_plan_says(scaled: dict[str, Any]) -> None:
    for name in SERVERS:
        assert shm_bytes(WORLDS["embedded"]) <= parse_bytes("shm_size", scaled[name]["shm_size"].replace("gb", "GiB"))


def test_on_gpus_each_server_has_its_own(scaled: dict[str, Any]) -> None:
    on_gpu = services("scale/compose.scale.gpu.yaml")
    assert tuple(on_gpu) == SERVERS
    devices = [on_gpu[name]["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for name in SERVERS]
    assert devices == [["${WORLDSTREAM_GPU_A:-0}"], ["${WORLDSTREAM_GPU_B:-1}"]]
    assert {on_gpu[name]["command"] for name in SERVERS} == {services("compose.yaml")["gpu"]["command"]}
