"""Puts a walk together: keyboard or script, terminal or file, or both."""

import contextlib
import sys
import time
from pathlib import Path

from worldstream.errors import InvalidInputError
from worldstream.play.hands import Hands
from worldstream.play.keyboard import Keyboard
from worldstream.play.playback import Shot
from worldstream.play.player import Player
from worldstream.play.screen import Screen
from worldstream.play.script import KeyScript
from worldstream.session import Session
from worldstream.video import Mp4Writer

_STDIN = "-"


def choose_show(is_wanted: bool | None, has_output: bool, has_keys: bool) -> bool:
    """Whether stdout shows the frames; where nobody says so it does if it is a terminal.

    Raises:
        InvalidInputError: if frames would go nowhere, or keys come from nowhere.
    """
    is_shown = sys.stdout.isatty() if is_wanted is None else is_wanted
    if is_shown and not sys.stdout.isatty():
        raise InvalidInputError("--show: stdout is no terminal")
    if not (is_shown or has_output):
        raise InvalidInputError("--output: wanted a file to write, for no terminal shows the frames")
    if not (has_keys or sys.stdin.isatty()):
        raise InvalidInputError("--keys: wanted a file, or - for stdin, which is no terminal")
    return is_shown


def play(
    session: Session,
    chunk_latent_frames: int,
    fps: int,
    keys: Path | None,
    output: Path | None,
    is_shown: bool,
    most_chunks: int | None,
) -> str:
    """Walk through a session's world until its end; the session itself is not ended here.

    Args:
        session: where to walk.
        chunk_latent_frames: of the served model.
        fps: frames a second, of the terminal and the file.
        keys: a file to read them from; "-" is stdin; None the keyboard.
        output: an MP4 to write.
        is_shown: whether stdout, a terminal, shows the frames.
        most_chunks: the longest walk.

    Returns:
        The line that ends it.
    """
    with contextlib.ExitStack() as stack:
        keyboard = Keyboard(sys.stdin.fileno(), on_quit=session.cancel) if keys is None else None
        hands: Hands = keyboard or _script(stack, str(keys))
        is_paced = is_shown or keyboard is not None
        player = Player(hands, chunk_latent_frames, fps if is_paced else None, most_chunks)
        screen = _screen(player, keyboard, fps) if is_shown else None
        writer = None if output is None else stack.enter_context(_writer(output, fps))
        # The screen goes before the keyboard, which hears the terminal's answers to it.
        for part in (keyboard, screen):
            if part is not None:
                stack.enter_context(part)

        def show(shots: list[Shot]) -> None:
            if screen is not None:
                screen.show(shots)
            for shot in shots:
                if screen is None:
                    player.shown(shot, time.monotonic())
                if writer is not None:
                    writer.write(shot.pixels)

        player.play(session, show)
    return player.closing_line(0 if screen is None else screen.playback.num_skipped)


def _writer(output: Path, fps: int) -> Mp4Writer:
    output.parent.mkdir(parents=True, exist_ok=True)
    return Mp4Writer(output, fps)


def _script(stack: contextlib.ExitStack, name: str) -> KeyScript:
    if name == _STDIN:
        return KeyScript(sys.stdin)
    try:
        return KeyScript(stack.enter_context(Path(name).open(encoding="utf-8")))
    except OSError as error:
        raise InvalidInputError(f"--keys: cannot read {Path(name).name}: {error.strerror}") from error


def _screen(player: Player, keyboard: Keyboard | None, fps: int) -> Screen:
    def status() -> str:
        line = None if keyboard is None else keyboard.line
        return player.status(screen.playback.num_skipped) if line is None else f"prompt> {line}_"

    screen = Screen(sys.stdout.fileno(), fps, status, player.shown)
    if keyboard is not None:
        keyboard.on_seen = screen.seen
    return screen
