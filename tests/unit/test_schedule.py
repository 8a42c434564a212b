import itertools

import pytest
import torch
from worldmodel.config import EMBEDDED, LINGBOT_WORLD_FAST
from worldmodel.errors import InvalidInputError
from worldmodel.schedule import add_noise, chunk_sigmas, clean_estimate, has_fresh_noise, shifted_sigmas


@pytest.mark.parametrize(
    ("shift", "timesteps", "wanted"),
    [
        (10, [1000, 821, 642, 321], [1000, 978.66, 947.18, 825.41]),
        (5, [1000, 750, 500, 250], [1000, 937.5, 833.33, 625]),
        (10, [1000, 750, 500, 250], [1000, 967.74, 909.09, 769.23]),
        (1, [1000, 500], [1000, 500]),
    ],
)
def test_shifted_timesteps_are_the_published_ones(shift, timesteps, wanted):
    assert [1000 * sigma for sigma in shifted_sigmas(timesteps, shift)] == pytest.approx(wanted, abs=0.01)


def test_the_configured_list_is_served_without_a_step_count():
    assert [1000 * s for s in chunk_sigmas(LINGBOT_WORLD_FAST, None)] == pytest.approx(
        [1000, 978.66, 947.18, 825.41], abs=0.01
    )


def test_two_even_steps_are_worked_by_hand():
    assert chunk_sigmas(EMBEDDED, 2) == pytest.approx((1.0, 2.5 / 3))


@pytest.mark.parametrize("num_steps", range(1, 51))
def test_every_count_falls_strictly_from_pure_noise(num_steps):
    sigmas = chunk_sigmas(EMBEDDED, num_steps)
    assert len(sigmas) == num_steps
    assert sigmas[0] == 1
    assert all(a > b > 0 for a, b in itertools.pairwise(sigmas))


@pytest.mark.parametrize("num_steps", [0, -1, 51])
def test_a_count_out_of_range_is_refused(num_steps):
    with pytest.raises(InvalidInputError, match=f"num_steps: wanted 1 to 50, got {num_steps}"):
        chunk_sigmas(EMBEDDED, num_steps)


def test_a_distilled_world_serves_its_own_count_only():
    assert len(chunk_sigmas(LINGBOT_WORLD_FAST, 4)) == 4
    with pytest.raises(InvalidInputError, match="distilled for 4 steps"):
        chunk_sigmas(LINGBOT_WORLD_FAST, 8)


def test_the_true_velocity_leads_back_to_the_clean_latent():
    clean, noise = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0])
    torch.testing.assert_close(clean_estimate(add_noise(clean, noise, 0.25), noise - clean, 0.25), clean)


@pytest.mark.parametrize(
    ("config", "num_steps", "wanted"),
    [
        (EMBEDDED, 4, True),
        (EMBEDDED, 7, True),
        (EMBEDDED, 8, False),
        (EMBEDDED, 50, False),
        (LINGBOT_WORLD_FAST.replace(flow_from_steps=1), 4, True),
    ],
)
def test_many_steps_follow_the_flow_and_a_distilled_list_never_does(config, num_steps, wanted):
    assert has_fresh_noise(config, num_steps) is wanted
