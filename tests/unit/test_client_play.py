"""`worldstream play` against the small server, in a real terminal's stead a pty."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

import av
import pytest
from PIL import Image
from typer.testing import CliRunner
from worldstream.cli import app

RUNNER = CliRunner()
ALTERNATE_SCREEN, USUAL_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"
QUESTION = b"\x1b[6n"


@pytest.fixture
def picture(tmp_path):
    Image.new("RGB", (8, 6), (9, 9, 9)).save(tmp_path / "start.png")
    return tmp_path / "start.png"


class Terminal:
    """A pty with a program in it."""

    def __init__(self, command, answers=True):
        self.output = b""
        self._answers = answers
        self._main, self._other = pty.openpty()
        fcntl.ioctl(self._other, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        self.before = self.mode()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "worldstream", *command],
            stdin=self._other,
            stdout=self._other,
            stderr=self._other,
            start_new_session=True,
        )

    def mode(self):
        return termios.tcgetattr(self._other)

    def press(self, keys):
        os.write(self._main, keys)

    def read(self, until, timeout_s=20.0):
        """Read, and answer as terminals do, until the condition holds or the program has ended."""
        deadline = time.monotonic() + timeout_s
        while not until():
            assert time.monotonic() < deadline, self.output[-2000:]
            if select.select([self._main], [], [], 0.02)[0]:
                data = os.read(self._main, 65536)
                self.output += data
                for _ in range(data.count(QUESTION) if self._answers else 0):
                    self.press(b"\x1b[24;80R")

    def read_until_ended(self):
        self.read(lambda: self.process.poll() is not None)
        with contextlib.suppress(OSError):
            self.read(lambda: not select.select([self._main], [], [], 0.1)[0])

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._main)
        os.close(self._other)


@pytest.fixture
def open_terminal(server, picture):
    opened = []

    def open_it(*arguments, **options):
        command = ["play", str(picture), "--url", server.url, *arguments]
        opened.append(Terminal(command, **options))
        return opened[-1]

    yield open_it
    for terminal in opened:
        terminal.close()


def actions_of(server):
    return [seen.inputs["actions"] for seen in server.seen if "actions" in seen.inputs]


def play(server, picture, *arguments, **options):
    return RUNNER.invoke(app, ["play", str(picture), "--url", server.url, *arguments], **options)


def count_frames(path):
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


def test_a_script_of_keys_becomes_a_film_one_chunk_a_request(server, picture):
    (picture.parent / "keys.txt").write_text("ww[wl]\npdusk\n.j.\nw")
    output = picture.parent / "out" / "walk.mp4"

    result = play(server, picture, "--keys", str(picture.parent / "keys.txt"), "-o", str(output), "--seed", "7")

    assert result.exit_code == 0, result.output
    assert actions_of(server) == [[b"w", b"w", b"wl"], [b"", b"j", b""], [b"w", b"", b""]]
    asked = [seen for seen in server.seen if "actions" in seen.inputs]
    assert [seen.inputs.get("prompt") for seen in asked] == [None, [b"dusk"], None]
    assert [seen.inputs["event_id"] for seen in asked] == [[0], [1], [2]]
    assert asked[0].inputs["seed"] == [7]
    assert count_frames(output) == 9 + 12 + 12
    assert result.stdout == "33 frames in 3 chunks\n"
    assert server.sessions == {}


def test_keys_may_come_from_stdin_and_chunks_end_the_walk(server, picture):
    output = picture.with_name("walk.mp4")

    result = play(server, picture, "--keys", "-", "-o", str(output), "--chunks", "2", input="w" * 100)

    assert result.exit_code == 0, result.output
    assert count_frames(output) == 21


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "error: --output: wanted a file to write, for no terminal shows the frames\n"),
        (["-o", "walk.mp4"], "error: --keys: wanted a file, or - for stdin, which is no terminal\n"),
        (["--show", "--keys", "-"], "error: --show: stdout is no terminal\n"),
        (["-o", "walk.avi", "--keys", "-"], "error: --output: wanted a name that ends in .mp4, got walk.avi\n"),
        (["-o", "walk.mp4", "--keys", "no.txt"], "error: --keys: cannot read no.txt: No such file or directory\n"),
    ],
)
def test_what_cannot_be_played_is_said_in_one_line(server, picture, arguments, complaint):
    result = play(server, picture, *arguments)

    assert (result.exit_code, result.stderr) == (1, complaint)
    assert actions_of(server) == []


def test_a_key_that_does_not_exist_ends_the_walk_and_the_session(server, picture):
    result = play(server, picture, "--keys", "-", "-o", str(picture.with_name("walk.mp4")), input="wwwx")

    assert result.exit_code == 1
    assert result.stderr.startswith("error: actions: frame 3: 'x' is no key;")
    assert server.sessions == {}


def test_keys_steer_in_a_terminal_that_is_then_as_it_was(server, open_terminal):
    terminal = open_terminal("--fps", "30")
    terminal.read(lambda: b"fps" in terminal.output)
    assert not terminal.mode()[3] & (termios.ICANON | termios.ECHO)
    terminal.press(b"w")
    terminal.read(lambda: any(b"w" in keys for keys in actions_of(server)))
    terminal.read(lambda: re.search(rb"key to frame \d+ ms", terminal.output))
    terminal.press(b"q")
    terminal.read_until_ended()

    assert terminal.process.returncode == 0
    assert terminal.mode() == terminal.before
    assert terminal.output.startswith(ALTERNATE_SCREEN)
    assert b"\x1b[?25h" + USUAL_SCREEN in terminal.output
    # After that the terminal shows the walk's last line alone, and no answer of its own.
    assert re.fullmatch(rb"\d+ frames in \d+ chunks, key to frame \d+ ms .*\r\n", after(terminal))
    assert b"w" not in b"".join(actions_of(server)[0])
    assert server.sessions == {}


def after(terminal):
    return terminal.output.rpartition(USUAL_SCREEN)[2]


def test_frames_fill_the_terminal_with_half_blocks(server, open_terminal):
    terminal = open_terminal("--chunks", "1")
    terminal.read_until_ended()

    # 8x6 pixels are as large as can be in 80x23 cells: 61x23, in the middle of the line.
    assert b"\x1b[1;10H\x1b[38;2;0;0;0;48;2;0;0;0m" + "▀".encode() * 61 in terminal.output
    assert b"\x1b[38;2;8;8;8;48;2;8;8;8m" in terminal.output
    assert after(terminal).startswith(b"9 frames in 1 chunks")


def test_a_new_prompt_is_typed_in_the_last_line(server, open_terminal):
    terminal = open_terminal()
    terminal.read(lambda: b"fps" in terminal.output)
    terminal.press(b"pdusk")
    terminal.read(lambda: b"prompt> dusk_" in terminal.output)
    terminal.press(b"\r")
    terminal.read(lambda: any(seen.inputs.get("prompt") == [b"dusk"] for seen in server.seen))
    terminal.press(b"q")
    terminal.read_until_ended()

    assert all(keys == [b"", b"", b""] for keys in actions_of(server))


def test_q_ends_a_walk_in_the_middle_of_a_long_chunk(server, open_terminal):
    is_over = threading.Event()
    answers = [iter(is_over.wait, True)]  # nothing, until it is over
    server.script = lambda seen: answers.pop() if answers else None
    terminal = open_terminal()
    terminal.read(lambda: actions_of(server))
    terminal.press(b"q")
    terminal.read_until_ended()
    is_over.set()

    assert terminal.process.returncode == 0
    assert server.cancelled.is_set()
    assert [seen.parameters["sequence_end"] for seen in server.seen[1:]] == [False, True]


@pytest.fixture
def hangup():
    """What a hangup means to what is started; whoever runs these tests may have used nohup."""
    before = signal.getsignal(signal.SIGHUP)
    yield lambda meaning: signal.signal(signal.SIGHUP, meaning)
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_terminal_as_it_was_and_ends_the_session(server, open_terminal, hangup, signum):
    hangup(signal.SIG_DFL)
    terminal = open_terminal()
    terminal.read(lambda: b"fps" in terminal.output)
    terminal.process.send_signal(signum)
    terminal.read_until_ended()

    assert terminal.process.returncode == 128 + signum
    assert terminal.mode() == terminal.before
    assert after(terminal) == b"stopped\r\n"
    assert server.sessions == {}


def test_under_nohup_a_walk_goes_on_after_a_hangup(server, open_terminal, hangup):
    hangup(signal.SIG_IGN)
    terminal = open_terminal()
    terminal.read(lambda: b"fps" in terminal.output)
    terminal.process.send_signal(signal.SIGHUP)
    terminal.press(b"q")
    terminal.read_until_ended()

    assert terminal.process.returncode == 0


def test_an_error_leaves_the_terminal_as_it_was(server, open_terminal):
    terminal = open_terminal("--timeout", "5")
    terminal.read(lambda: b"fps" in terminal.output)
    server.sessions.clear()
    terminal.read_until_ended()

    assert terminal.process.returncode == 1
    assert terminal.mode() == terminal.before
    assert after(terminal) == b"error: SESSION_NOT_FOUND: sequence_id: no such session\r\n"


def test_a_terminal_that_shows_nothing_for_a_while_is_sent_a_few_frames_only(server, open_terminal):
    terminal = open_terminal("--fps", "50")
    terminal.read(lambda: b"\x1b[38;2;" in terminal.output)
    terminal._answers = False  # it still takes bytes, as a slow line's buffers do
    terminal.read(lambda: len(actions_of(server)) >= 6)
    num_frames = terminal.output.count(b"\x1b[?2026h")
    terminal.read(lambda: len(actions_of(server)) >= 10)

    assert terminal.output.count(b"\x1b[?2026h") <= num_frames + 3
    terminal.press(b"q")
    terminal.read_until_ended()
    assert re.search(rb"[1-9]\d* frames not shown", after(terminal))


def test_a_terminal_that_reads_nothing_does_not_hold_the_walk_up(server, open_terminal):
    terminal = open_terminal("--fps", "50", answers=False)
    terminal.read(lambda: b"\x1b[38;2;" in terminal.output)
    num_asked = len(actions_of(server))
    deadline = time.monotonic() + 10
    while len(actions_of(server)) < num_asked + 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(actions_of(server)) >= num_asked + 5

    terminal.process.send_signal(signal.SIGTERM)
    terminal.process.wait(timeout=8)
    terminal.read_until_ended()

    assert server.sessions == {}
    assert terminal.mode() == terminal.before
    assert USUAL_SCREEN in terminal.output


def test_frames_are_shown_and_written_both(server, picture, open_terminal):
    output = picture.with_name("walk.mp4")
    terminal = open_terminal("-o", str(output), "--chunks", "2", "--fps", "30")
    terminal.read_until_ended()

    assert b"\x1b[38;2;20;20;20" in terminal.output  # the last frame has been seen
    assert count_frames(output) == 21


def test_a_walk_goes_on_after_a_lost_connection(server, open_terminal):
    server.chunk_s = 0.2
    terminal = open_terminal()
    terminal.read(lambda: len(actions_of(server)) >= 2)
    server.stop()
    num_asked = len(actions_of(server))
    server.start()
    terminal.read(lambda: len(actions_of(server)) >= num_asked + 2)
    terminal.press(b"q")
    terminal.read_until_ended()

    assert terminal.process.returncode == 0
    assert b"frames in" in after(terminal)
