"""Keys become actions: from a terminal's bytes, and from a script."""

import io
import time

import pytest
from worldstream import InvalidInputError
from worldstream.play.keys import HeldKeys, KeyEvent, KeyParser, Kind
from worldstream.play.script import KeyScript

PRESS_W = KeyEvent(Kind.PRESS, "w")


def test_letters_arrows_space_and_q_are_keys_and_others_are_none():
    events = KeyParser().feed(b"wL \x1b[A\x1bOD?xq\x04")

    assert events == [
        *(PRESS_W, KeyEvent(Kind.PRESS, "l"), KeyEvent(Kind.STAND)),
        *(KeyEvent(Kind.PRESS, "i"), KeyEvent(Kind.PRESS, "j")),
        *(KeyEvent(Kind.QUIT), KeyEvent(Kind.QUIT)),
    ]


def test_an_escape_sequence_may_come_in_pieces_and_its_letters_are_no_keys():
    parser = KeyParser()

    assert parser.feed(b"\x1b") == []
    assert parser.feed(b"[1;5") == []
    assert parser.feed(b"Dw") == [KeyEvent(Kind.PRESS, "j"), PRESS_W]
    assert parser.feed(b"\x1b[5~\x1b[200d") == []


def test_a_cursor_report_is_an_answer_and_no_key():
    assert KeyParser().feed(b"w\x1b[24;80Rw") == [PRESS_W, KeyEvent(Kind.SEEN), PRESS_W]


def test_a_prompt_is_typed_and_its_letters_are_no_keys():
    parser = KeyParser()

    assert parser.feed("pwa q\x7f\x7f\u00e9".encode()[:-1]) == []
    assert parser.line == "wa"
    assert parser.feed("\u00e9".encode()[-1:] + b"\x1b[24;80R") == [KeyEvent(Kind.SEEN)]
    assert parser.line == "wa\u00e9"
    assert parser.feed(b"\rw") == [KeyEvent(Kind.PROMPT, "wa\u00e9"), PRESS_W]
    assert parser.line is None


@pytest.mark.parametrize("given_up", [b"\r", b"dusk\x1b", b" \n"])
def test_a_prompt_that_is_empty_or_given_up_is_none(given_up):
    parser = KeyParser()

    assert parser.feed(b"p" + given_up) + parser.feed(b"") + parser.feed(b"w") == [PRESS_W]
    assert parser.line is None


def test_a_key_is_held_in_the_latent_frame_of_its_press_and_shortly_after():
    held = HeldKeys()
    held.press("w", 10.05)
    held.press("l", 10.3)

    assert held.actions(10.0, 10.75, 3) == ["w", "wl", "l"]  # parts of a quarter of a second; a press counts for 0.3 s


def test_a_repeat_closes_the_pause_before_it_and_is_no_new_press():
    held = HeldKeys()

    assert held.press("w", 10.0)
    assert not held.press("w", 10.5)
    assert not held.press("w", 10.53)
    assert held.press("w", 11.5)
    assert held.actions(10.0, 11.5, 6) == ["w", "w", "w", "w", "", ""]


def test_standing_still_lets_all_keys_go():
    held = HeldKeys()
    held.press("w", 10.0)
    held.release_all(10.1)

    assert held.actions(10.1, 10.4, 3) == ["", "", ""]
    assert held.press("w", 10.4)


def test_a_key_held_over_the_end_of_a_chunk_is_held_in_the_next():
    held = HeldKeys()
    held.press("d", 10.65)

    assert held.actions(10.0, 10.75, 3) == ["", "", "d"]
    assert held.actions(10.75, 11.5, 3) == ["d", "", ""]
    assert held.actions(11.5, 12.25, 3) == ["", "", ""]


def samples(text, num=3):
    script = KeyScript(io.StringIO(text))
    return [(sample.actions, sample.prompt) for sample in iter(lambda: script.sample(num, 0.0), None)]


def test_a_script_gives_a_chunk_at_a_time_and_fills_the_last_by_standing_still():
    assert samples("ww[wl]\n. j\nw") == [(["w", "w", "wl"], None), (["", "", "j"], None), (["w", "", ""], None)]
    assert samples("") == samples("\n") == []


def test_a_scripts_prompt_goes_with_the_chunk_it_stands_in_and_q_ends_it():
    assert samples("wpa rainy street\nw\n.wwqwww") == [
        (["w", "w", ""], "a rainy street"),
        (["w", "w", ""], None),
    ]


@pytest.mark.parametrize("text", ["wwwx", "www[wx]", "www[w"])
def test_a_script_with_a_key_that_does_not_exist_is_refused_with_its_place(text):
    with pytest.raises(InvalidInputError, match=r"actions: frame 3: '(x' is no key|\[' has no '\]')"):
        samples(text)


@pytest.mark.parametrize("before", [b"w", b"p"])
def test_a_script_that_is_no_text_is_refused(before):
    far = io.TextIOWrapper(io.BytesIO(before + 100_000 * b"w" + b"\xff"), encoding="utf-8")
    script = KeyScript(far)
    with pytest.raises(InvalidInputError, match=r"^keys: wanted text in UTF-8$"):
        script.sample(200_000, 0.0)


def test_a_script_reads_no_more_than_a_chunk_and_waits_until_it_is_due():
    text = io.StringIO("wwwl")
    due_s = time.monotonic() + 0.1

    KeyScript(text).sample(3, due_s)

    assert time.monotonic() >= due_s
    assert text.read() == "l"
