"""Every snippet of the README that calls the server, run as it stands there, on this server's ports."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
SNIPPET = re.compile(r"<!-- test: (\w+) -->\n```(\w+)\n(.*?)```", re.DOTALL)

pytestmark = pytest.mark.server


def snippets():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return {name: (language, code) for name, language, code in SNIPPET.findall(text)}


def run(server, name, folder):
    language, code = snippets()[name]
    for usual, here in (("8000", server.http), ("8001", server.grpc), ("8002", server.metrics)):
        code = code.replace(f"localhost:{usual}", here)
    code = code.replace("answer.bin", f"{folder}/answer.bin").replace("pixels.rgb", f"{folder}/pixels.rgb")
    code = code.replace("/my_picture", f"/{folder.name}")
    code = code.replace(" demo/", f" {folder}/")
    code = code.replace(".venv/bin/", f"{Path(sys.executable).parent}/")
    command = [sys.executable, "-c", code] if language == "python" else ["bash", "-c", code]
    # The command line's default server is at Triton's usual port; this variable says otherwise.
    environment = os.environ | {"WORLDSTREAM_GRPC": server.grpc}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_way_to_call_it_has_a_snippet():
    over_http = {"curl", "curl_frames", "curl_session", "curl_preprocess", "curl_binary"}
    in_python = {"python", "python_async", "triton", "conventions", "shared_memory", "snapshot"}
    assert set(snippets()) == over_http | in_python | {"cli", "play", "bench", "perf_analyzer"}


def test_curl_streams_events(server, tmp_path):
    out = run(server, "curl", tmp_path)
    assert out.startswith("data: {")
    assert '"frame_index":[0,1,2,3,4,5,6,7,8]' in out


def test_curl_writes_frames_as_files(server, tmp_path):
    run(server, "curl_frames", tmp_path)
    frames = sorted(tmp_path.iterdir())
    assert [frame.name for frame in frames] == [f"frame_{number}.png" for number in range(1, 10)]
    for frame in frames:
        with Image.open(frame) as picture:
            picture.load()
            assert (picture.format, picture.size) == ("PNG", (160, 96))


def test_a_picture_in_shared_memory_starts_a_world(server, tmp_path):
    assert run(server, "shared_memory", tmp_path) == "(9, 96, 160, 3)\n"


def test_curl_goes_on_with_a_session_and_ends_it(server, tmp_path):
    out = run(server, "curl_session", tmp_path)
    assert out.count("data: {") == 3
    assert '"chunk":[0,0,1]' in out
    assert '"chunk":[1,0,1]' in out
    assert out.rstrip().endswith("}")
    assert '"frames":[]' in out.rpartition("data: ")[2]


def test_curl_turns_two_cameras_into_pixels(server, tmp_path):
    outputs = {each["name"]: each for each in json.loads(run(server, "curl_preprocess", tmp_path))["outputs"]}
    assert outputs["pixels"]["shape"] == [2, 1, 2, 3]
    assert outputs["pixels"]["data"] == [255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9]
    assert outputs["camera_name"]["data"] == ["wrist", "left"]


def test_curl_sends_and_gets_raw_bytes(server, tmp_path):
    run(server, "curl_binary", tmp_path)
    with Image.open(ROOT / "client" / "pictures" / "start.png") as picture:
        wanted = picture.convert("RGB").tobytes()
    assert (tmp_path / "pixels.rgb").read_bytes() == wanted


def test_a_saved_session_goes_on_byte_for_byte(server, tmp_path):
    num_bytes, is_equal = run(server, "snapshot", tmp_path).strip().split(" ", 1)
    assert int(num_bytes) > 1_000_000
    assert is_equal == "True"


def test_the_python_client_walks_and_then_turns(server, tmp_path):
    lines = run(server, "python", tmp_path).splitlines()
    assert "(9, 96, 160, 3)" in lines[0]
    assert any("(12, 96, 160, 3)" in line for line in lines)
    assert lines[-1].startswith("2 1 ")


def test_the_client_for_asyncio_leaves_a_loop_and_goes_on(server, tmp_path):
    lines = run(server, "python_async", tmp_path).splitlines()
    assert lines[:13] == [f"{number} (96, 160, 3)" for number in range(13)]
    assert lines[13:] == ["12"]


def test_a_script_of_keys_is_played_into_a_film(server, tmp_path):
    assert run(server, "play", tmp_path) == "33 frames in 3 chunks\n"
    assert (tmp_path / "walk.mp4").stat().st_size > 10_000


def test_the_command_line_writes_a_film_and_tells_of_the_server(server, tmp_path):
    out = run(server, "cli", tmp_path)
    assert "33 frames" in out
    assert "worldstream_chunks_total" in out
    assert (tmp_path / "orbit.mp4").stat().st_size > 10_000


def test_the_bench_writes_its_figures(server, tmp_path):
    assert run(server, "bench", tmp_path) == ""
    arms = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))["arms"]
    assert [(name, arm["counts"]["cancels"]) for name, arm in arms.items()] == [("1 session", 1), ("2 sessions", 1)]


def test_poses_of_blender_are_sent(server, tmp_path):
    assert run(server, "conventions", tmp_path).splitlines()[0] == "0 (9, 96, 160, 3)"


def test_a_plain_triton_client_is_enough(server, tmp_path):
    assert run(server, "triton", tmp_path).startswith("(9, 96, 160, 3) [0 1 2 3 4 5 6 7 8]")


def test_perf_analyzer_loads_the_world(server, tmp_path):
    fetch = [sys.executable, str(ROOT / "perf" / "fetch_perf_analyzer.py")]
    fetched = subprocess.run(fetch, capture_output=True, text=True, timeout=240, check=False)
    if fetched.returncode != 0:
        pytest.skip(f"no perf_analyzer can be had here: {fetched.stderr}")
    out = run(server, "perf_analyzer", tmp_path)
    assert "Request count: 4" in out
    assert "Response Throughput: " in out
