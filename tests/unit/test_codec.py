import torch
from worldmodel.codec import StreamingCodec
from worldmodel.layers import seed_parameters

from tests.unit.worlds import TINY


def codec():
    made = StreamingCodec(TINY.codec).eval()
    seed_parameters(made, 5)
    made.latent_mean.normal_(generator=torch.Generator().manual_seed(1))
    made.latent_std.fill_(1.5)
    return made.requires_grad_(False)


def latents(seed, frames=7, batch=1):
    return torch.randn(batch, frames, 16, 4, 6, generator=torch.Generator().manual_seed(seed))


def test_the_first_latent_is_one_frame_and_each_later_one_is_four():
    frames, _ = codec().decode(latents(0, frames=3))
    assert frames.shape == (1, 9, 3, 32, 48)


def test_decoding_chunk_by_chunk_equals_decoding_the_whole_clip():
    made, clip = codec(), latents(0)
    whole, _ = made.decode(clip)
    parts, memory = [], None
    for chunk in clip.split([3, 1, 3], dim=1):
        frames, memory = made.decode(chunk, memory)
        parts.append(frames)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=0)


def test_two_interleaved_sessions_do_not_touch_each_other():
    made, one, two = codec(), latents(1), latents(2)
    alone, _ = made.decode(one)
    parts, memory, other = [], None, None
    for first, second in zip(one.split([3, 4], dim=1), two.split([3, 4], dim=1), strict=True):
        frames, memory = made.decode(first, memory)
        _, other = made.decode(second, other)
        parts.append(frames)
    torch.testing.assert_close(torch.cat(parts, dim=1), alone, atol=1e-5, rtol=0)


def test_a_decode_that_is_dropped_changes_nothing():
    made, clip = codec(), latents(0)
    _, memory = made.decode(clip[:, :3])
    once, _ = made.decode(clip[:, 3:], memory)
    twice, _ = made.decode(clip[:, 3:], memory)
    assert torch.equal(once, twice)


def test_memory_reaches_from_one_chunk_into_the_next():
    made, clip = codec(), latents(0)
    _, memory = made.decode(clip[:, :3])
    _, other = made.decode(clip[:, :3] + 0.5)
    assert not torch.allclose(made.decode(clip[:, 3:], memory)[0], made.decode(clip[:, 3:], other)[0], atol=1e-3)


def test_encoding_piece_by_piece_equals_encoding_the_whole_clip():
    made = codec()
    clip = torch.rand(1, 13, 3, 32, 48, generator=torch.Generator().manual_seed(3)) * 2 - 1
    whole, _ = made.encode(clip)
    assert whole.shape == (1, 4, 16, 4, 6)
    first, memory = made.encode(clip[:, :5])
    rest, _ = made.encode(clip[:, 5:], memory)
    torch.testing.assert_close(torch.cat([first, rest], dim=1), whole, atol=1e-5, rtol=0)


def test_a_latent_sees_no_later_frame():
    made = codec()
    clip = torch.rand(1, 9, 3, 32, 48, generator=torch.Generator().manual_seed(3)) * 2 - 1
    changed = clip.clone()
    changed[:, 5:] = 0
    torch.testing.assert_close(made.encode(clip)[0][:, :2], made.encode(changed)[0][:, :2], atol=1e-6, rtol=0)


def test_clips_of_a_batch_are_independent():
    made, both = codec(), latents(4, batch=2)
    frames, _ = made.decode(both)
    torch.testing.assert_close(frames[1:], made.decode(both[1:])[0], atol=1e-5, rtol=0)


def test_the_memory_weighs_what_is_announced():
    made = codec()
    _, memory = made.decode(latents(0, frames=3))
    assert sum(part.untyped_storage().nbytes() for part in memory) == made.decoder_memory_bytes(32, 48)
