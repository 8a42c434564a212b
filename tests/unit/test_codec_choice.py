"""Which codec a checkpoint's folder and the parameters give a world."""

import pytest
import torch
from safetensors.torch import save_file
from worldmodel.checkpoint_files import CheckpointError
from worldmodel.codec import StreamingCodec
from worldmodel.codec_choice import empty_codec, fill_codec, seeded_codec
from worldmodel.config import EMBEDDED
from worldmodel.loading import Instance, load_world
from worldmodel.published import find_codec
from worldmodel.serving import ParameterError, ServingConfig

from tests.unit.snapshots import go
from tests.unit.worlds import TINY, picture, tiny_world

CPU = Instance("CPU", 0)


@pytest.mark.parametrize(
    ("there", "choice", "wanted"),
    [
        (["codec.safetensors", "vae", "taew2_1.pth"], "auto", ("own", "codec.safetensors")),
        (["vae", "taew2_1.pth"], "auto", ("wan", "vae")),
        (["Wan2.1_VAE.pth", "taew2_1.pth"], "auto", ("wan", "Wan2.1_VAE.pth")),
        (["taew2_1.pth"], "auto", ("taehv", "taew2_1.pth")),
        (["vae", "taew2_1.safetensors", "taew2_1.pth"], "taehv", ("taehv", "taew2_1.safetensors")),
        (["codec.safetensors", "vae"], "wan", ("wan", "vae")),
    ],
)
def test_the_parameter_chooses_and_auto_takes_the_first_that_is_there(tmp_path, there, choice, wanted):
    for name in there:
        (tmp_path / name).touch()
    kind, place = find_codec(tmp_path, choice)
    assert (kind, place.name) == wanted


def test_a_codec_that_is_not_there_is_asked_for_by_its_places(tmp_path):
    (tmp_path / "codec.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"codec taehv: wanted taew2_1\.safetensors or taew2_1\.pth in the"):
        find_codec(tmp_path, "taehv")


def test_seeded_weights_are_those_of_our_own_codec_only():
    with pytest.raises(ParameterError, match="parameter codec: wan has weights in a checkpoint only"):
        seeded_codec(TINY, ServingConfig(codec="wan"))


def test_wans_published_file_of_another_width_is_refused_by_its_first_key(tmp_path):
    torch.save({"encoder.conv1.weight": torch.zeros(8, 3, 3, 3, 3)}, tmp_path / "Wan2.1_VAE.pth")
    pytest.importorskip("diffusers")
    file = tmp_path / "Wan2.1_VAE.pth"
    codec = empty_codec(EMBEDDED, ServingConfig(), tmp_path)
    wanted = (
        r"^Wan2\.1_VAE\.pth: encoder\.conv_in\.weight: wanted shape \[96, 3, 3, 3, 3\], the file has \[8, 3, 3, 3, 3\]"
    )
    with pytest.raises(CheckpointError, match=wanted):
        fill_codec(codec, file, torch.device("cpu"))


@pytest.mark.parametrize(("deviation", "wanted"), [(0.0, "wanted numbers more than 0"), (float("nan"), "finite")])
def test_a_deviation_that_cannot_be_divided_by_is_refused(tmp_path, deviation, wanted):
    codec = tiny_world().codec
    codec.latent_std[3] = deviation
    file = tmp_path / "codec.safetensors"
    save_file({key: value.contiguous() for key, value in codec.state_dict().items()}, file)
    with pytest.raises(CheckpointError, match=rf"^codec\.safetensors: latent_std: .*{wanted}"):
        fill_codec(empty_codec(TINY, ServingConfig(), tmp_path), file, torch.device("cpu"))


def test_our_own_codec_can_be_loaded_in_bfloat16(tmp_path):
    trained = tiny_world(seed=9)
    for name, module in (("transformer", trained.transformer), ("codec", trained.codec)):
        tensors = {key: value.contiguous() for key, value in module.state_dict().items()}
        save_file(tensors, tmp_path / f"{name}.safetensors")
    world = load_world(TINY, ServingConfig(checkpoint=str(tmp_path), codec_dtype="bfloat16"), tmp_path, CPU)
    assert isinstance(world.codec, StreamingCodec)
    assert (world.codec.dtype, world.codec.latent_mean.dtype) == (torch.bfloat16, torch.float32)
    frames = [go(each, each.start(picture())) for each in (world, trained)]
    # Bfloat16 has eight bits, as a pixel has; some ten layers of it.
    assert abs(frames[0].astype(int) - frames[1].astype(int)).mean() < 4


def test_a_load_looks_for_the_codec_once(tmp_path, monkeypatch):
    # It looked again to fill it: what lay there could be another codec by then.
    made = tiny_world()
    for name, module in (("transformer", made.transformer), ("codec", made.codec)):
        save_file(
            {key: value.contiguous() for key, value in module.state_dict().items()}, tmp_path / f"{name}.safetensors"
        )
    looked = []

    def look(folder, choice):
        looked.append(choice)
        return find_codec(folder, choice)

    for module in ("loading", "codec_choice"):
        monkeypatch.setattr(f"worldmodel.{module}.find_codec", look)
    load_world(TINY, ServingConfig(checkpoint=str(tmp_path)), tmp_path, CPU)
    assert looked == ["auto"]


def test_a_seeded_codec_too():
    codec = seeded_codec(TINY, ServingConfig(codec_dtype="bfloat16"))
    _, memory = codec.decode(torch.zeros(1, 1, 16, 4, 6))
    assert {part.dtype for part in memory} == {torch.bfloat16}
    assert codec.decoder_memory_bytes(32, 48) == sum(part.nbytes for part in memory)
