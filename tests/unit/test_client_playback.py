"""What a terminal shows of frames, and when."""

import re

import numpy as np
import pytest
from worldstream.play.half_blocks import draw, fitted_size, to_cells
from worldstream.play.playback import Playback, Shot


def shot(number):
    return Shot(np.full((2, 2, 3), number, np.uint8), None)


def number_of(shown):
    return None if shown is None else int(shown.pixels[0, 0, 0])


def test_frames_of_a_burst_are_shown_one_after_another():
    playback = Playback(fps=10)
    for number in range(3):
        playback.add(shot(number), 5.0)

    assert [number_of(playback.take(5.0 + 0.05 * step)) for step in range(6)] == [0, None, 1, None, 2, None]
    assert playback.ends_s == pytest.approx(5.3)
    assert playback.num_skipped == 0


def test_a_chunk_follows_the_one_that_is_still_shown():
    playback = Playback(fps=10)
    playback.add(shot(0), 5.0)
    playback.take(5.0)
    playback.add(shot(1), 5.02)

    assert playback.next_due_s == pytest.approx(5.1)


def test_late_frames_are_skipped_and_the_newest_is_shown():
    playback = Playback(fps=10)
    for number in range(5):
        playback.add(shot(number), 5.0)

    assert number_of(playback.take(5.25)) == 2
    assert playback.num_skipped == 2


def test_frames_that_wait_are_bounded():
    playback = Playback(fps=10, most_waiting=4)
    for number in range(10):
        playback.add(shot(number), 5.0)

    assert number_of(playback.take(5.6)) == 6
    assert playback.num_skipped == 6


@pytest.mark.parametrize(
    ("picture", "terminal", "cells"),
    [
        ((96, 160), (24, 80), (24, 80)),
        ((96, 160), (50, 80), (24, 80)),
        ((96, 160), (10, 80), (10, 33)),
        ((480, 832), (1, 1), (1, 1)),
    ],
)
def test_a_picture_is_shown_whole_and_as_large_as_can_be(picture, terminal, cells):
    assert fitted_size(*picture, *terminal) == cells


def test_a_cell_shows_two_pixels_one_above_the_other():
    pixels = np.array([[[1, 2, 3]], [[4, 5, 6]]], np.uint8)

    assert to_cells(pixels, 1, 1).tolist() == [[[1, 2, 3, 4, 5, 6]]]
    assert to_cells(pixels, 2, 2)[:, 0].tolist() == [[1, 2, 3, 1, 2, 3], [4, 5, 6, 4, 5, 6]]


def test_a_smaller_picture_is_the_mean_of_what_it_covers():
    pixels = np.array([[[0], [100]], [[50], [50]], [[20], [40]], [[0], [0]]], np.uint8).repeat(3, axis=2)

    assert to_cells(pixels, 1, 1).tolist() == [[[50, 50, 50, 15, 15, 15]]]


def test_a_colour_is_said_once_for_a_run_of_cells():
    cells = np.tile(np.array([1, 2, 3, 4, 5, 6], np.uint8), (1, 2, 1))

    assert draw(cells, None, top=3, left=5) == "\x1b[3;5H\x1b[38;2;1;2;3;48;2;4;5;6m▀▀\x1b[0m".encode()


def test_only_what_has_changed_is_drawn():
    before = np.zeros((2, 3, 6), np.uint8)
    cells = before.copy()
    cells[1, 2] = 9

    assert draw(before, before) == b""
    assert draw(cells, before) == "\x1b[2;3H\x1b[38;2;9;9;9;48;2;9;9;9m▀\x1b[0m".encode()


def test_a_full_screen_is_drawn_cell_by_cell():
    cells = np.random.default_rng(0).integers(0, 256, (20, 30, 6), dtype=np.uint8)

    drawn = draw(cells, None).decode()

    colours = re.findall(r"\x1b\[38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m▀", drawn)
    assert np.array(colours, dtype=int).reshape(cells.shape).tolist() == cells.tolist()
    assert re.findall(r"\x1b\[(\d+);1H", drawn) == [str(row) for row in range(1, 21)]
