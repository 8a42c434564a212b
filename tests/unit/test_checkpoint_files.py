"""Files of a checkpoint that are none, JSON that may be anything, numbers that cannot be meant, and what errors say."""

import os
from pathlib import Path

import pytest
from worldmodel.checkpoint_files import CheckpointError, Range, check_is_file, looking, read_object

FINITE = Range(0.5, 10, is_whole=False)


@pytest.mark.parametrize("value", [0, 1001, -1, 10**400, 3.0, True, "3", None, [3], {"a": 3}, float("nan")])
def test_a_number_that_cannot_be_meant_is_refused(value):
    with pytest.raises(CheckpointError, match=r"^num_layers: wanted a whole number from 1 to 1000, got "):
        Range(1, 1000).check("num_layers", value)


@pytest.mark.parametrize("value", [0.4, 11, float("inf"), float("nan"), True, "3", 10**400])
def test_a_real_number_too(value):
    with pytest.raises(CheckpointError, match=r"^shift: wanted a number from 0\.5 to 10, got "):
        FINITE.check("shift", value)


def test_both_ends_can_be_meant():
    for value in (1, 1000):
        Range(1, 1000).check("num_layers", value)
    for value in (0.5, 3, 10):
        FINITE.check("shift", value)


def test_a_long_value_is_cut():
    with pytest.raises(CheckpointError) as refused:
        Range(3, 3).check("in_channels", "x" * 10**6)
    assert str(refused.value) == "in_channels: wanted 3, got '" + "x" * 55 + " ..."


def test_a_message_can_be_written_anywhere():
    # Names in files went into the log as they were: half a surrogate pair cannot, and an escape colours terminals.
    said = str(CheckpointError("a\ud800b\x1b[31m\n\x00é"))
    assert said == "a\\ud800b\\x1b[31m\\n\\x00é"
    assert len(str(CheckpointError("k" * 10**6))) == 1000


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"", r"cannot be read as JSON \(JSONDecodeError\)"),
        (b"{", r"cannot be read as JSON \(JSONDecodeError\)"),
        (b'{"a": "\xff"}', r"cannot be read as JSON \(UnicodeDecodeError\)"),
        (b"[" * 100_000, r"cannot be read as JSON \(RecursionError\)"),
        (b'{"a": 1' + b"0" * 5000 + b"}", r"cannot be read as JSON \(ValueError\)"),
        (b"[1]", "wanted an object, got list"),
        (b"null", "wanted an object, got NoneType"),
    ],
)
def test_json_that_is_no_object_is_refused(tmp_path, content, wanted):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"^config\.json: {wanted}"):
        read_object(file)


def test_a_file_that_is_far_too_long_is_not_read(tmp_path):
    file = tmp_path / "config.json"
    file.touch()
    os.truncate(file, 1 << 40)  # of holes: it takes no room
    with pytest.raises(
        CheckpointError, match=r"config\.json: wanted JSON of at most 67108864 bytes, got 1099511627776"
    ):
        read_object(file)


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (os.mkfifo, "wanted a file, this is a folder or something else"),  # to read it once took for ever
        (os.mkdir, "wanted a file, this is a folder or something else"),
        (lambda path: path.symlink_to("/dev/zero"), "wanted a file, this is a folder or something else"),
        (lambda path: path.symlink_to("nowhere"), "no such file"),
        (lambda path: path.symlink_to(path), "no such file"),
        (lambda path: None, "no such file"),
    ],
)
def test_what_is_no_file_is_refused_at_once(tmp_path, make, wanted):
    make(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match=rf"^config\.json: {wanted}$"):
        read_object(tmp_path / "config.json")


def test_a_name_that_no_file_can_have_is_an_error_that_tells_no_path(tmp_path):
    for name in ("n" * 300, "\ud800", "a\0b"):
        with pytest.raises(CheckpointError, match=r": (no such file|cannot be read)|nnn \.\.\.") as refused:
            check_is_file(tmp_path / name)
        assert str(tmp_path) not in str(refused.value)


def test_a_folder_that_may_not_be_looked_into_tells_no_path():
    wanted = r"^weights: cannot be looked into \(Permission denied\)$"
    with pytest.raises(CheckpointError, match=wanted), looking(Path("/secret/weights")):
        raise PermissionError(13, "Permission denied", "/secret/weights/vae")
