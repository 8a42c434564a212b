"""The command line against the small server."""

import base64
import json
import signal
import subprocess
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import av
import numpy as np
import pytest
import worldstream
from PIL import Image
from typer.testing import CliRunner
from worldstream import film
from worldstream.cli import app
from worldstream.testing import error_message

RUNNER = CliRunner()
METRICS = b"""# HELP worldstream_frames_total Frames sent.
worldstream_frames_total{model="denoise"} 21
nv_inference_count{model="denoise"} 3
worldstream_active_sessions{model="denoise"} 1
worldstream_session_bytes{model="denoise"} 1572864
worldstream_queued_requests{model="denoise"} 2
"""


@pytest.fixture
def picture(tmp_path):
    Image.new("RGB", (416, 240), (9, 9, 9)).save(tmp_path / "start.png")
    return tmp_path / "start.png"


@pytest.fixture
def metrics_url():
    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(METRICS)

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as page:
        thread = threading.Thread(target=page.serve_forever)
        thread.start()
        yield f"127.0.0.1:{page.server_port}/metrics"
        page.shutdown()
        thread.join()


def generate(server, picture, *arguments):
    output = picture.parent / "out" / "film.mp4"
    return RUNNER.invoke(app, ["generate", str(picture), "-o", str(output), "--url", server.url, *arguments]), output


def start_of(server):
    """The first request for frames."""
    return next(seen for seen in server.seen if seen.model == "denoise")


def count_frames(path):
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


def test_generate_writes_a_film_and_a_closing_line(server, picture):
    result, output = generate(server, picture, "--chunks", "3", "--seed", "7", "--prompt", "dusk")

    assert result.exit_code == 0, result.output
    assert count_frames(output) == 9 + 12 + 12
    assert result.stdout.startswith(f"{output}: 33 frames, ")
    assert "frames/s, first frame after " in result.stdout
    assert result.stderr == ""
    assert start_of(server).inputs["seed"] == [7]
    assert start_of(server).inputs["prompt"] == [b"dusk"]
    assert server.sessions == {}


def test_each_request_asks_for_a_few_chunks_of_the_path(server, picture):
    generate(server, picture, "--path", "walk", "--chunks", "5", "--chunks-per-request", "2")

    decoded, *asked = server.seen
    assert decoded.model == "preprocess"
    assert [seen.model for seen in asked] == ["denoise", "denoise", "denoise"]
    assert [seen.shapes["cam_to_world"] for seen in asked] == [[6, 4, 4], [6, 4, 4], [3, 4, 4]]
    assert [seen.parameters["sequence_end"] for seen in asked] == [False, False, True]


def test_the_chunk_length_comes_from_the_server(server, picture):
    server.chunk_latent_frames = 2
    result, output = generate(server, picture, "--path", "pan", "--chunks", "2")

    assert result.exit_code == 0, result.output
    assert start_of(server).shapes["cam_to_world"] == [4, 4, 4]
    assert count_frames(output) == 5 + 8


def test_actions_fill_whole_chunks(server, picture):
    generate(server, picture, "--actions", "ww[wl].")

    assert start_of(server).inputs["actions"] == [b"w", b"w", b"wl", b"", b"", b""]


def test_a_file_of_poses_and_intrinsics_steers(server, picture):
    np.save(picture.parent / "poses.npy", np.tile(np.eye(4), (29, 1, 1)))
    np.save(picture.parent / "intrinsics.npy", np.tile([500.0, 500.0, 416.0, 240.0], (29, 1)))

    result, _ = generate(
        server,
        picture,
        *("--path", str(picture.parent / "poses.npy"), "--pose-rate", "frame"),
        *("--intrinsics", str(picture.parent / "intrinsics.npy"), "--intrinsics-size", "832x480"),
    )

    assert result.exit_code == 0, result.output
    assert start_of(server).shapes["cam_to_world"] == [6, 4, 4]  # 29 frames are 8 latent frames: 2 whole chunks
    assert start_of(server).shapes["intrinsics"] == [6, 4]
    assert start_of(server).inputs["intrinsics"][:4] == [250, 250, 208, 120]  # the picture is 416x240


@pytest.mark.parametrize("convention", ["opengl", "nerf", "blender"])
def test_poses_of_another_convention_are_converted(server, picture, convention):
    poses = np.tile(np.eye(4), (3, 1, 1))
    poses[:, :3, 3] = [(9, 0, -2), (9, 0, -3), (9, 0, -4)]  # looks and goes along its -z
    np.save(picture.with_name("poses.npy"), poses)

    result, _ = generate(
        server, picture, "--path", str(picture.with_name("poses.npy")), "--pose-convention", convention
    )

    assert (result.exit_code, result.stderr) == (0, "")
    sent = np.reshape(start_of(server).inputs["cam_to_world"], (3, 4, 4))
    assert sent[:, :3, 3].tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2]]
    assert (sent[:, :3, :3] == np.eye(3)).all()


def test_colmaps_own_file_steers(server, picture):
    lines = [f"{i} 1 0 0 0 5 0 {-i} 1 frame_{i}.png\n\n" for i in range(3)]
    picture.with_name("images.txt").write_text("# IMAGE_ID, QW, ...\n" + "".join(lines))

    path = ("--path", str(picture.with_name("images.txt")))
    result, _ = generate(server, picture, *path, "--pose-convention", "colmap")
    without, _ = generate(server, picture, *path)

    assert (result.exit_code, result.stderr) == (0, "")
    sent = np.reshape(start_of(server).inputs["cam_to_world"], (3, 4, 4))
    assert sent[:, :3, 3].tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2]]
    assert without.exit_code == 1
    assert without.stderr == "error: --pose-convention: wanted colmap, whose file images.txt is, got opencv\n"


def test_a_path_that_goes_backwards_is_made_but_doubted(server, picture):
    poses = np.tile(np.eye(4), (6, 1, 1))
    poses[:, 2, 3] = -np.arange(6)
    np.save(picture.with_name("poses.npy"), poses)

    result, _ = generate(server, picture, "--path", str(picture.with_name("poses.npy")))

    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("note: poses.npy: the camera goes backwards nearly all the way; if it should not, ")
    assert result.stderr.endswith("(--pose-convention)\n")


def test_a_file_with_a_bad_pose_is_refused_before_anything_is_sent(server, picture):
    poses = np.tile(np.eye(4), (3, 1, 1))
    poses[1, 0, 0] = -1
    np.save(picture.with_name("poses.npy"), poses)

    result, _ = generate(server, picture, "--path", str(picture.with_name("poses.npy")))

    assert result.exit_code == 1
    assert result.stderr.startswith("error: poses.npy: pose 1: wanted a rotation ")
    assert server.seen == []


def test_a_file_with_too_few_poses_is_said_and_the_film_ends_there(server, picture):
    np.save(picture.parent / "poses.npy", np.tile(np.eye(4), (7, 1, 1)))

    result, output = generate(server, picture, "--path", str(picture.parent / "poses.npy"), "--chunks", "4")

    assert result.exit_code == 0
    assert result.stderr == "note: poses.npy holds 7 poses, 4 chunks need 12; the film ends after 2 chunks\n"
    assert count_frames(output) == 21


def test_a_contact_sheet_is_written_beside_the_film(server, picture):
    sheet = picture.parent / "sheets" / "sheet.png"

    result, _ = generate(server, picture, "--chunks", "1", "--contact-sheet", str(sheet))

    assert result.exit_code == 0, result.output
    # The picture and 9 frames of 8x6 in rows of 4, 4 pixels apart; the small server makes each picture white.
    with Image.open(sheet) as image:
        assert image.size == (4 * 12 - 4, 3 * 10 - 4)
        firsts = [image.getpixel((12 * column, 10 * row)) for row, column in ((0, 0), (0, 1), (0, 2), (2, 1))]
    assert firsts == [(255, 255, 255), (0, 0, 0), (1, 1, 1), (8, 8, 8)]


def test_a_contact_sheet_begins_with_the_picture_as_the_server_reads_it(server, picture):
    generate(server, picture, "--chunks", "4", "--contact-sheet", str(picture.with_name("sheet.png")))

    asked = server.seen[-1]
    assert (asked.model, asked.inputs) == ("preprocess", {"image": [picture.read_bytes()], "size": [6, 8]})
    with Image.open(picture.with_name("sheet.png")) as image:
        assert image.size == (4 * 12 - 4, 3 * 10 - 4)  # the picture and 11 of 45 frames
        assert image.getpixel((36, 20)) == (44, 44, 44)  # the film's last


def test_a_contact_sheet_shows_the_truth_row_by_row_below(server, picture):
    truth, sheet = picture.with_name("truth.npy"), picture.with_name("sheet.png")
    np.save(truth, np.full((12, 6, 8, 3), 200, np.uint8) + np.arange(12, dtype=np.uint8)[:, None, None, None])

    result, _ = generate(server, picture, "--chunks", "1", "--contact-sheet", str(sheet), "--truth", str(truth))

    assert result.exit_code == 0, result.output
    with Image.open(sheet) as image:
        assert image.size == (4 * 12 - 4, 6 * 10 - 4)
        pairs = [[image.getpixel((12 * column, 10 * row))[0] for row in (0, 1)] for column in range(4)]
        last = [image.getpixel((12, 10 * row))[0] for row in (4, 5)]
    assert pairs == [[255, 200], [0, 200], [1, 201], [2, 202]]
    assert last == [8, 208]


def test_a_truth_of_several_arrays_is_refused(server, picture):
    truth = picture.with_name("truth.npy")
    with truth.open("wb") as file:
        np.savez(file, frames=np.zeros((9, 6, 8, 3), np.uint8))
    sheet = str(picture.with_name("sheet.png"))
    result, _ = generate(server, picture, "--chunks", "1", "--contact-sheet", sheet, "--truth", str(truth))
    assert result.stderr.splitlines()[-1].endswith("cannot be read as an .npy file")


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (np.zeros((8, 6, 8, 3), np.uint8), "--truth: wanted uint8 [9 or more, H, W, 3], got uint8 [8, 6, 8, 3]"),
        (np.zeros((9, 6, 8, 3)), "--truth: wanted uint8 [9 or more, H, W, 3], got float64 [9, 6, 8, 3]"),
        (None, "cannot be read as an .npy file"),
    ],
)
def test_a_truth_that_does_not_fit_is_refused_before_anything_is_asked(server, picture, frames, message):
    truth = picture.with_name("truth.npy")
    if frames is not None:
        np.save(truth, frames)
    sheet = str(picture.with_name("sheet.png"))
    result, output = generate(server, picture, "--chunks", "1", "--contact-sheet", sheet, "--truth", str(truth))
    assert result.exit_code != 0
    assert message in result.stderr
    assert not output.exists()


@pytest.mark.parametrize("contents", [b"[[[1, 2, 3]]]", base64.b64encode(b"any picture")], ids=["JSON", "base64"])
def test_every_form_that_the_server_takes_can_be_sent(server, picture, contents):
    picture.write_bytes(contents)

    result, output = generate(server, picture, "--chunks", "1", "--contact-sheet", str(picture.with_name("sheet.png")))

    assert result.exit_code == 0, result.output
    assert count_frames(output) == 9
    assert server.seen[0].inputs["image"] == [contents]


def test_intrinsics_of_the_sent_picture_need_no_size(server, picture):
    picture.write_bytes(b"[[[1, 2, 3]]]")
    np.save(picture.with_name("intrinsics.npy"), np.array([500.0, 500.0, 416.0, 240.0]))

    result, _ = generate(server, picture, "--chunks", "1", "--intrinsics", str(picture.with_name("intrinsics.npy")))

    assert result.exit_code == 0, result.output
    assert start_of(server).inputs["intrinsics"] == [500, 500, 416, 240]


def png_of_size(width_px, height_px):
    """The header of a PNG, without its pixels."""
    header = b"IHDR" + width_px.to_bytes(4, "big") + height_px.to_bytes(4, "big") + b"\10\2\0\0\0"
    length, check = (13).to_bytes(4, "big"), zlib.crc32(header).to_bytes(4, "big")
    return b"\x89PNG\r\n\x1a\n" + length + header + check + b"\0\0\0\0IDAT\x35\xaf\x06\x1e"


@pytest.mark.parametrize(
    ("contents", "complaint"),
    [
        (png_of_size(60_000, 60_000), "error: picture: its header names more pixels than can be\n"),
        (b"[[[1, 2, 3]]]", "error: picture: wanted PNG, JPEG or WebP, whose size can be read\n"),
        (b"\x89PNG\r\n\x1a\n", "error: picture: wanted PNG, JPEG or WebP, whose size can be read\n"),
        (b"GIF89a\1\0\1\0\0\0\0;", "error: picture: wanted PNG, JPEG or WebP, whose size can be read\n"),
        (b"", "error: picture: wanted PNG, JPEG or WebP, whose size can be read\n"),
    ],
    ids=["bomb", "JSON", "cut", "GIF", "empty"],
)
def test_a_picture_whose_size_cannot_be_read_is_one_line(server, picture, contents, complaint):
    picture.write_bytes(contents)
    np.save(picture.with_name("intrinsics.npy"), np.array([500.0, 500.0, 416.0, 240.0]))

    result, _ = generate(
        server,
        picture,
        *("--intrinsics", str(picture.with_name("intrinsics.npy")), "--intrinsics-size", "832x480"),
    )

    assert result.exit_code == 1
    assert result.stderr == complaint
    assert server.seen == []


def test_a_large_picture_tells_its_size_without_a_warning(server, picture):
    Image.new("1", (12_000, 8_000)).save(picture)
    np.save(picture.with_name("intrinsics.npy"), np.array([500.0, 500.0, 416.0, 240.0]))

    result, _ = generate(
        server,
        picture,
        *("--intrinsics", str(picture.with_name("intrinsics.npy")), "--intrinsics-size", "6000x4000"),
        *("--chunks", "1"),
    )

    assert (result.exit_code, result.stderr) == (0, "")
    assert start_of(server).inputs["intrinsics"] == [1000, 1000, 832, 480]


def test_other_settings_reach_the_server(server, picture):
    generate(
        server,
        picture,
        "--chunks",
        "1",
        "--steps",
        "2",
        "--translation-scale",
        "0.5",
        "--fit",
        "stretch",
        "--size",
        "160x96",
    )

    assert start_of(server).inputs["num_steps"] == [2]
    assert start_of(server).inputs["translation_scale"] == [0.5]
    assert start_of(server).parameters["fit"] == "stretch"
    assert (start_of(server).parameters["height"], start_of(server).parameters["width"]) == (96, 160)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--actions", "wq"], "error: actions: frame 1: 'q' is no key; w a s d move, i j k l look, . stands still\n"),
        (["--actions", "w", "--path", "walk"], "error: --path, --actions: one of them steers, both came\n"),
        (["--path", "nowhere.npy"], "error: nowhere.npy: cannot read it: No such file or directory\n"),
        (["--path", "fly"], "error: --path: wanted walk, pan, orbit, stand or a .npy file, got fly\n"),
        (["-o", "film.txt"], "error: --output: wanted a name that ends in .mp4, got film.txt\n"),
        (["--chunks", "0"], "error: --chunks: wanted 1 or more, got 0\n"),
        (
            ["--pose-convention", "blender"],
            "error: --pose-convention: is for a file of poses, and --path names none\n",
        ),
        (
            ["--pose-convention", "unreal", "--actions", "w"],
            "error: --pose-convention: is for a file of poses, and --path names none\n",
        ),
        (
            ["--intrinsics-size", "832x480"],
            "error: --intrinsics-size: is for --intrinsics, which names none\n",
        ),
        (["--truth", "truth.npy"], "error: --truth: is for --contact-sheet, which names none\n"),
        (["--timeout", "0"], "error: timeout_s: wanted more than 0, at most 1e+09, got 0.0\n"),
        # gRPC once took it for a time that was over.
        (["--timeout", "inf"], "error: timeout_s: wanted more than 0, at most 1e+09, got inf\n"),
        (["--url", " "], "error: url: wanted HOST:PORT of the server's gRPC endpoint, got nothing\n"),
    ],
)
def test_an_error_is_one_line_and_exit_code_one(server, picture, arguments, complaint):
    result, output = generate(server, picture, *arguments)

    assert result.exit_code == 1
    assert result.stderr == complaint
    assert not output.exists()


def test_a_servers_error_is_one_line_too(server, picture):
    server.script = lambda seen: iter([error_message("in ensemble 'world', BUSY: 8 requests\nwait")])

    result, _ = generate(server, picture)

    assert result.exit_code == 1
    assert result.stderr == "error: BUSY: 8 requests wait\n"


def test_a_missing_picture_and_a_missing_server_are_one_line_each(server, picture):
    missing, _ = generate(server, picture.with_name("nothing.png"))
    unreachable = RUNNER.invoke(app, ["info", "--url", "127.0.0.1:1"])

    assert missing.stderr == "error: picture: cannot read nothing.png: No such file or directory\n"
    assert unreachable.exit_code == 1
    assert unreachable.stderr == (
        "error: UNAVAILABLE: no server at 127.0.0.1:1; start one with `make serve`; "
        "wanted HOST:PORT of its gRPC endpoint, without http://\n"
    )


def test_info_prints_json_with_our_metrics_only(server, metrics_url):
    result = RUNNER.invoke(app, ["info", "--url", server.url, "--metrics-url", metrics_url, "--json"])

    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {
        "is_live": True,
        "is_ready": True,
        "name": "fake",
        "version": "0.0",
        "models": {"preprocess": True, "denoise": True, "world": True},
        "metrics": {
            "worldstream_frames_total": 21,
            "worldstream_active_sessions": 1,
            "worldstream_session_bytes": 1572864,
            "worldstream_queued_requests": 2,
        },
    }


def test_info_for_people_names_each_model_and_sums_the_metrics_up(server, metrics_url):
    result = RUNNER.invoke(app, ["info", "--url", server.url, "--metrics-url", metrics_url])

    assert result.exit_code == 0, result.output
    assert "fake 0.0: live, ready" in result.stdout
    assert "preprocess" in result.stdout
    summary = "\nsessions: 1, holding 1.5 MiB; requests queued: 2\nworldstream_frames_total 21\n"
    assert result.stdout.endswith(summary)
    assert "{" not in result.stdout


def test_info_without_a_metrics_page_says_nothing_of_it(server):
    result = RUNNER.invoke(app, ["info", "--url", server.url])

    assert result.exit_code == 0, result.output
    assert "metrics" not in result.stdout
    assert "sessions" not in result.stdout


def test_the_package_runs_as_a_module(server):
    command = [sys.executable, "-m", "worldstream", "info", "--url", server.url, "--json"]

    result = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["name"] == "fake"


def test_a_metrics_page_that_is_not_there_is_said(server):
    result = RUNNER.invoke(app, ["info", "--url", server.url, "--metrics-url", "127.0.0.1:1"])

    assert result.exit_code == 1
    wanted = "error: UNAVAILABLE: metrics: cannot read http://127.0.0.1:1/metrics: [Errno 111] Connection refused\n"
    assert result.stderr == wanted


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_session_and_closes_the_file(server, picture, signum):
    server.chunk_s = 0.1
    output = picture.with_name("film.mp4")
    command = [sys.executable, "-m", "worldstream", "generate", str(picture), "-o", str(output), "--url", server.url]
    with subprocess.Popen(
        [*command, "--chunks", "500", "--chunks-per-request", "500"], stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 30
        while not output.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signum)
        _, stderr = process.communicate(timeout=30)

    assert (process.returncode, stderr) == (128 + signum, "stopped\n")
    assert server.sessions == {}
    assert count_frames(output) >= 5


def test_without_a_terminal_a_line_tells_the_frames_so_far(server, picture, monkeypatch):
    monkeypatch.setattr(film, "_SAY_EVERY_S", 0.0)

    result, _ = generate(server, picture, "--chunks", "1")

    assert result.stderr == "film.mp4: 5 of 9 frames\nfilm.mp4: 9 of 9 frames\n"


def test_the_help_shows_how_actions_are_written():
    result = RUNNER.invoke(app, ["generate", "--help"], env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"})

    assert "'www[wl]l.'" in result.stdout


def test_the_version_is_that_of_the_package():
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")

    result = RUNNER.invoke(app, ["--version"])

    assert (result.exit_code, result.stdout) == (0, f"{worldstream.__version__}\n")
    assert f'\nversion = "{worldstream.__version__}"\n' in pyproject


def test_no_part_of_the_client_needs_torch():
    parts = ["worldstream.cli", "worldstream.aio", "worldstream.play.run", "worldstream.video", "worldstream.testing"]
    program = f"import sys; sys.modules['torch'] = None; import {', '.join(parts)}"

    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
