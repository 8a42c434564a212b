import pytest
import torch
from worldmodel.kv_cache import KVCache, place


def small_cache(window, sink, tokens_per_frame=1):
    return KVCache(1, 1, 2, tokens_per_frame, window, sink, torch.device("cpu"), torch.float32)


def append(cache, first_frame, values):
    """Write one number per frame as that frame's key, as a chunk does, and commit."""
    placement = cache.stage(first_frame, len(values))
    keys, _ = cache.visible(0, placement)
    keys[0, 0, cache.token_index(placement), 0] = torch.tensor(values, dtype=torch.float32)
    cache.commit(placement)
    return placement


def held(cache):
    """The keys that the cache holds, oldest frame first."""
    slots = sorted((frame, slot) for slot, frame in enumerate(cache.frames) if frame is not None)
    return [int(cache.keys[0][0, 0, slot, 0]) for _, slot in slots]


def test_the_roll_keeps_the_sink_and_drops_the_oldest_behind_it():
    cache = small_cache(window=6, sink=2)
    append(cache, 0, [1, 1, 2, 3, 3, 3])
    append(cache, 6, [4, 4, 4])
    assert held(cache) == [1, 1, 3, 4, 4, 4]


def test_a_window_that_is_no_multiple_of_the_chunk_evicts_only_what_it_must():
    cache = small_cache(window=10, sink=2)
    for chunk in range(4):
        append(cache, 3 * chunk, [3 * chunk, 3 * chunk + 1, 3 * chunk + 2])
    assert held(cache) == [0, 1, 4, 5, 6, 7, 8, 9, 10, 11]


def test_the_visible_slots_grow_with_the_session_until_the_window_is_full():
    cache = small_cache(window=10, sink=2)
    assert [append(cache, 3 * c, [c] * 3).num_visible_slots for c in range(6)] == [3, 6, 9, 10, 10, 10]


def test_a_sink_longer_than_a_chunk_is_never_evicted():
    cache = small_cache(window=9, sink=5)
    for chunk in range(5):
        append(cache, 3 * chunk, [3 * chunk, 3 * chunk + 1, 3 * chunk + 2])
    assert held(cache) == [0, 1, 2, 3, 4, 11, 12, 13, 14]


def test_the_same_chunk_staged_twice_goes_to_the_same_slots():
    cache = small_cache(window=6, sink=2)
    append(cache, 0, [1, 1, 2, 3, 3, 3])
    assert cache.stage(6, 3) == cache.stage(6, 3)


def test_an_abandoned_chunk_leaves_what_later_chunks_see():
    cache = small_cache(window=6, sink=2)
    append(cache, 0, [1, 1, 2, 3, 3, 3])
    placement = cache.stage(6, 3)
    cache.visible(0, placement)[0][0, 0, cache.token_index(placement), 0] = 99.0
    append(cache, 6, [4, 4, 4])
    assert held(cache) == [1, 1, 3, 4, 4, 4]


def test_each_token_of_a_frame_has_its_own_place():
    cache = small_cache(window=6, sink=2, tokens_per_frame=4)
    placement = place((None,) * 6, range(0, 2), 2)
    assert cache.token_index(placement).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    later = place((0, 1, 2, 3, 4, 5), range(6, 8), 2)
    assert later.slots == (2, 3)
    assert cache.token_index(later).tolist() == [8, 9, 10, 11, 12, 13, 14, 15]


def test_frames_that_cannot_fit_beside_the_sink_are_an_error():
    with pytest.raises(ValueError, match="3 frames do not fit 4 slots with a sink of 2"):
        place((0, 1, 2, 3), range(4, 7), 2)
