"""What does not fit is refused at load, with numbers that say what would."""

import pytest
import torch
from worldmodel.config import EMBEDDED, LINGBOT_WORLD_FAST
from worldmodel.loading import Instance, load_world
from worldmodel.room import check_free, check_sessions, free_bytes, need_of
from worldmodel.serving import ParameterError, ServingConfig
from worldmodel.world import Controls

from tests.unit.worlds import TINY, tiny_world

CPU, GIB = torch.device("cpu"), 2**30


def test_what_is_foretold_is_what_a_world_takes():
    need, world = need_of(TINY, ServingConfig(), torch.float32), tiny_world()
    modules = (world.transformer, world.codec)
    assert need.weights == sum(value.nbytes for module in modules for value in module.parameters())
    assert need.session == world.session_bytes()
    session = world.start(torch.zeros(32, 48, 3, dtype=torch.uint8).numpy())
    session.commit(world.next_chunk(session, Controls(), lambda: None).staged)
    assert need.conditioner == world.counters.conditioner_peak_bytes


def test_the_published_model_takes_what_its_numbers_say():
    need = need_of(LINGBOT_WORLD_FAST, ServingConfig(conditioner_budget_bytes=4 << 30), torch.bfloat16)
    # 18.5 billion parameters, two bytes each; keys and values of 18 latent frames of 1560 tokens and of 512 words, in
    # 40 layers of 5120.
    assert need.weights == pytest.approx(2 * 18.5e9, rel=0.02)
    assert need.session == pytest.approx(2 * 2 * 40 * 5120 * (18 * 1560 + 512), rel=0.01)
    assert need.conditioner == 2 * 2 * 40 * 5120 * 3 * 1560
    assert need_of(LINGBOT_WORLD_FAST, ServingConfig(conditioner_reuse=False), torch.bfloat16).conditioner == 0


def test_of_several_sizes_the_largest_counts():
    large = TINY.replace(further_sizes=((64, 96), (16, 32)))
    assert need_of(large, ServingConfig(), torch.float32).session_px == (64, 96)


def test_a_budget_that_no_session_fits_is_refused_with_the_least_that_would(tmp_path):
    least = tiny_world().session_bytes()
    with pytest.raises(ParameterError, match=rf"session_budget_bytes: wanted at least {least}, .* got {least - 1}"):
        load_world(TINY, ServingConfig(session_budget_bytes=least - 1), tmp_path, Instance("CPU", 0))
    load_world(TINY, ServingConfig(session_budget_bytes=least), tmp_path, Instance("CPU", 0))


def test_a_world_too_large_for_its_device_is_refused_with_what_it_takes():
    need = need_of(LINGBOT_WORLD_FAST, ServingConfig(), torch.bfloat16)
    with pytest.raises(ParameterError, match=r"device cuda:0: 24\.00 GiB are free, .*weights 34\.9\d GiB, one session"):
        check_free(need, 24 * GIB, torch.device("cuda:0"))
    check_free(need, need.total, CPU)
    check_free(need, None, CPU)


def test_a_budget_beyond_what_is_left_is_refused_with_the_most_that_would_do():
    with pytest.raises(ParameterError, match=rf"session_budget_bytes: wanted at most {GIB}, .* got {2 * GIB}"):
        check_sessions(ServingConfig(session_budget_bytes=2 * GIB), GIB, CPU)
    check_sessions(ServingConfig(session_budget_bytes=GIB), GIB, CPU)


def test_the_host_says_what_it_has_free():
    free = free_bytes(CPU)
    assert free is not None
    assert need_of(EMBEDDED, ServingConfig(), torch.float32).total < free < 2**50
