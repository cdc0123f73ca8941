"""What every method promises, kept on the paper's segmentation network, made small."""

import pytest
import torch

from driftproof.models import DeepLabV3Plus
from networks import CLASSES, randomize
from test_contracts import (
    assert_no_growth,
    make,
    test_1_replay_after_reset_is_bit_equal,
    test_2_the_callers_modes_change_nothing,
    test_3_the_users_model_is_untouched_and_shares_no_storage,
    test_4_unwrap_after_reset_equals_the_source_model,
    test_5_a_batch_of_one_is_defined,
    test_5_bad_input_is_named_and_leaves_the_state_intact,
    test_5_everything_rejected,
    test_6_predictions_and_records_have_the_models_shape,
    test_7_moves_with_to,
    test_8_save_and_load_mid_stream_continues_bit_identically,
    test_10_works_under_inference_mode,
    test_the_frozen_network_never_changes_and_holds_no_graph,
)

__all__ = [
    "make",
    "test_1_replay_after_reset_is_bit_equal",
    "test_2_the_callers_modes_change_nothing",
    "test_3_the_users_model_is_untouched_and_shares_no_storage",
    "test_4_unwrap_after_reset_equals_the_source_model",
    "test_5_a_batch_of_one_is_defined",
    "test_5_bad_input_is_named_and_leaves_the_state_intact",
    "test_5_everything_rejected",
    "test_6_predictions_and_records_have_the_models_shape",
    "test_7_moves_with_to",
    "test_8_save_and_load_mid_stream_continues_bit_identically",
    "test_10_works_under_inference_mode",
    "test_the_frozen_network_never_changes_and_holds_no_graph",
]


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("bn_adapt", "ttn", "tent", "swr", "cotta")]


@pytest.fixture(params=["tent+crowd", "swr+crowd", *OTHERS])
def case(request):
    return request.param


@pytest.fixture
def segmentation():
    return True


@pytest.fixture
def model():
    torch.manual_seed(1)
    return randomize(DeepLabV3Plus(CLASSES, depth=18, width=4))


def test_12_memory_does_not_grow(make):
    assert_no_growth(make(), torch.rand(2, 3, 16, 16), steps=30)
