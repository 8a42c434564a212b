"""Inputs from either side of the bus; a "device" here is the host, reached through DLPack as a GPU would be."""

import numpy as np
import pytest
import torch
from torch.utils.dlpack import to_dlpack
from worldmodel.errors import InvalidInputError, TooLargeError
from worldmodel.inputs import own_copy, read_inputs
from worldmodel.pixels import picture_digest, to_device
from worldmodel.request import Envelope, parse_request
from worldmodel.serving import ServingConfig

from tests.unit.worlds import TINY, picture, tiny_world


class OnHost:
    def __init__(self, name, values):
        self._name, self._values = name, values

    def name(self):
        return self._name

    def is_cpu(self):
        return True

    def as_numpy(self):
        return self._values


class OnDevice(OnHost):
    """As pb_utils.Tensor in GPU memory: NumPy is refused, and so are texts."""

    def is_cpu(self):
        return False

    def as_numpy(self):
        raise RuntimeError("Tensor is stored in GPU and cannot be converted to NumPy.")

    def to_dlpack(self):
        if self._values.dtype == object:
            raise RuntimeError("DLPack does not have support for string tensors.")
        return to_dlpack(torch.from_numpy(self._values))


class OfABackendWithoutGpus:
    def name(self):
        return "seed"

    def as_numpy(self):
        return np.array([7])


def test_a_host_input_is_a_view_of_tritons_memory():
    values = np.arange(3)
    assert read_inputs([OnHost("seed", values)])["seed"] is values


def test_a_small_input_on_a_device_is_read_to_the_host():
    poses = np.tile(np.eye(4, dtype=np.float32), (3, 1, 1))
    read = read_inputs([OnDevice("cam_to_world", poses)])["cam_to_world"]
    assert isinstance(read, np.ndarray)
    assert read.dtype == np.float32
    assert np.array_equal(read, poses)


def test_a_picture_on_a_device_stays_there_without_a_copy():
    pixels = picture()[None]
    read = read_inputs([OnDevice("pixels", pixels)])["pixels"]
    assert isinstance(read, torch.Tensor)
    assert read.data_ptr() == pixels.ctypes.data


def test_a_text_on_a_device_is_refused_by_name():
    with pytest.raises(InvalidInputError, match=r"^prompt: wanted it in host memory, it came on a GPU"):
        read_inputs([OnDevice("prompt", np.array([b"day"], object))])


def test_a_backend_without_gpus_is_never_asked_where_a_tensor_is():
    assert read_inputs([OfABackendWithoutGpus()])["seed"].tolist() == [7]


@pytest.mark.parametrize("side", [OnHost, OnDevice])
def test_a_picture_is_copied_once_so_that_triton_may_take_its_memory_back(side):
    pixels = picture()[None]
    request = parse_request(read_inputs([side("pixels", pixels)]), Envelope(), TINY, ServingConfig())
    kept = request.picture
    pixels[:] = 0  # the memory is another request's now
    assert np.array_equal(np.asarray(kept), picture())
    assert request.waiting_bytes == picture().nbytes
    # From here on no further copy on the same side.
    assert to_device(kept, torch.device("cpu")).data_ptr() == torch.as_tensor(kept).data_ptr()


def test_own_copies_are_made_on_the_side_of_the_picture():
    assert isinstance(own_copy(picture()), np.ndarray)
    assert isinstance(own_copy(torch.from_numpy(picture())), torch.Tensor)


def test_a_picture_on_a_device_is_checked_as_any_other():
    for shape, error in (((2, 4, 4, 3), InvalidInputError), ((1, 5, 5, 3), TooLargeError)):
        tensors = {"pixels": torch.zeros(shape, dtype=torch.uint8)}
        with pytest.raises(error, match="pixels"):
            parse_request(tensors, Envelope(), TINY, ServingConfig(max_picture_pixels=20))
    with pytest.raises(InvalidInputError, match="wanted the picture that starts the session"):
        parse_request({"pixels": torch.zeros(0, 0, 0, 3, dtype=torch.uint8)}, Envelope(), TINY, ServingConfig())


def test_one_picture_is_one_session_start_whichever_side_it_came_on():
    world = tiny_world()
    from_host = world.start(picture())
    from_device = world.start(torch.from_numpy(picture()))
    assert (world.counters.pictures_encoded, world.counters.picture_cache_hits) == (1, 1)
    assert torch.equal(from_host.condition, from_device.condition)
    assert from_device.picture_px == (32, 48)


def test_the_digest_covers_shape_pixels_and_name():
    digest = picture_digest(picture(), "crop")
    changed = picture()
    changed[5, 5, 1] ^= 1
    others = [
        picture_digest(changed, "crop"),
        picture_digest(picture(), "stretch"),
        picture_digest(picture().reshape(48, 32, 3), "crop"),
    ]
    assert len({digest, *others}) == 4
    assert picture_digest(np.asfortranarray(picture()), "crop") == digest
