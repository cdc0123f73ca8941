"""Gradients of single samples against one backward pass for each, and their cosine against all pairs."""

import itertools
import math
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftproof.analyses import GradientCosine, SampleGradients
from driftproof.bench import Spec, Store
from driftproof.bench.jobs import Job, run_locally
from driftproof.errors import ModelError
from networks import CLASSES, build
from small_bench import AT_ONCE, SmallBench, ignore

NETWORK = build("wide_resnet").double()
IMAGES = torch.rand(7, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
LAYERS = [name for name, layer in NETWORK.named_modules() if isinstance(layer, torch.nn.BatchNorm2d)]


def one_by_one(layer):
    """Torch's own batch norm, in training, and a backward pass for every sample."""
    network = build("wide_resnet").double().train()
    weight = network.get_submodule(layer).weight
    logits = network(IMAGES)
    log_p = logits.log_softmax(dim=1)
    entropies = -(log_p.exp() * log_p).sum(dim=1)
    gradients = [torch.autograd.grad(entropy, weight, retain_graph=True)[0] for entropy in entropies]
    return torch.stack(gradients), logits, torch.autograd.grad(entropies.sum(), weight)[0]


@pytest.mark.parametrize("layer", [LAYERS[0], LAYERS[-2], LAYERS[-1]])
def test_per_sample_gradient_is_that_of_its_entropy(layer):
    gradients, logits = SampleGradients(NETWORK, layer)(IMAGES)
    each, answers, together = one_by_one(layer)
    torch.testing.assert_close(gradients, each)
    torch.testing.assert_close(logits, answers.detach())
    torch.testing.assert_close(gradients.sum(dim=0), together)


def test_batched_gradients_are_exact_for_the_last_batch_norm():
    exact, _ = SampleGradients(NETWORK, LAYERS[-1])(IMAGES)
    cheap, logits = SampleGradients(NETWORK, LAYERS[-1], mixing=False)(IMAGES)
    torch.testing.assert_close(cheap, exact)
    assert not logits.requires_grad
    mixed, _ = SampleGradients(NETWORK, LAYERS[-2], mixing=False)(IMAGES)
    assert not torch.allclose(mixed, one_by_one(LAYERS[-2])[0]), "before it, what one sample does reaches the others"


def test_layer_that_is_no_batch_norm_is_rejected():
    with pytest.raises(ModelError, match="batch norm with a weight, but got 'fc'"):
        SampleGradients(NETWORK, "fc")


def pairs(gradients, labels, predictions, classes):
    """Every pair, one after the other."""
    units = [g / g.norm() if g.any() else None for g in gradients.double()]
    found = torch.full((classes, classes), math.nan, dtype=torch.float64)
    groups = {
        (j, i): [k for k in range(len(units)) if (labels[k], predictions[k]) == (j, i) and units[k] is not None]
        for j, i in itertools.product(range(classes), repeat=2)
    }
    for (j, i), members in groups.items():
        cosines = [float(units[k] @ units[m]) for k in members for m in groups[i, i] if k != m]
        if cosines:
            found[j, i] = sum(cosines) / len(cosines)
    return found, torch.tensor([[len(groups[j, i]) for i in range(classes)] for j in range(classes)])


@settings(max_examples=40)
@given(st.integers(0, 50), st.integers(1, 4), st.integers(0, 2**20), st.integers(1, 5))
def test_gradient_cosine_equals_all_pairs(count, classes, seed, parts):
    generator = torch.Generator().manual_seed(seed)
    gradients = torch.randn(count, 3, generator=generator) * torch.randint(0, 3, (count, 1), generator=generator)
    labels, predictions = (torch.randint(0, classes, (count,), generator=generator) for _ in range(2))
    cosine = GradientCosine(classes)
    for some in torch.arange(count).tensor_split(parts):
        cosine.update(gradients[some], labels[some], predictions[some])
    expected, sizes = pairs(gradients, labels.tolist(), predictions.tolist(), classes)
    torch.testing.assert_close(cosine.compute(), expected, equal_nan=True)
    assert torch.equal(cosine.sizes, sizes)


def test_gradient_run_has_rows_for_each_domain_and_all(tmp_path):
    spec = Spec("bn_adapt", "random", "tiny", domains=("fog", "snow"), batch_size=6, measures=(), task="gradients")
    spec = spec.with_options(layer=LAYERS[-2], mixing=True)
    started = time.perf_counter()
    for _ in range(2):  # the second time there is nothing left to do
        run_locally([Job(spec, 1)], tmp_path, SmallBench(), AT_ONCE, ignore)
    taken = sum(row["seconds"] for row in Store(tmp_path).run(spec).conditions)
    assert 0 < taken <= time.perf_counter() - started + 0.01, "rows that were measured together share the time"
    rows = {row["domain"]: row for row in Store(tmp_path).run(spec).rows}
    assert set(rows) == {"fog", "snow", "all"}
    bench, expected = SmallBench(), GradientCosine(CLASSES)
    gradients_of = SampleGradients(bench.model(spec), LAYERS[-2])
    for batch in bench.stream(spec, 1, None):
        gradients, logits = gradients_of(batch.images)
        expected.update(gradients, batch.labels, logits.argmax(dim=1))
    shown = [[math.nan if value is None else value for value in row] for row in rows["all"]["cosines"]]
    cosines = torch.tensor(shown).double()
    torch.testing.assert_close(cosines, expected.compute(), equal_nan=True, atol=1e-5, rtol=1e-4)
    assert rows["all"]["sizes"] == expected.sizes.tolist()
    each = [torch.tensor(rows[domain]["sizes"]) for domain in spec.domains]
    assert torch.equal(sum(each), expected.sizes)
    finite = [value for value in cosines.diagonal().tolist() if not math.isnan(value)]
    assert rows["all"]["right"] == (pytest.approx(sum(finite) / len(finite)) if finite else None)
