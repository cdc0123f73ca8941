"""Banks of images, running statistics, and the methods that rest on them, against loops written out by hand."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import driftproof as dp
from cases import batches
from driftproof.distributed import Distributed
from driftproof.memories import CSTU, HUS, RBM
from driftproof.norms import batch_norms
from networks import build


@pytest.fixture
def model():
    return build("wide_resnet").double()


def to_double(stream):
    return [images.double() for images in stream]


def entropy(logits):
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


def shaded(images, generator):
    """A view that needs no random numbers."""
    return images.flip(-1) * 0.8


# --- banks, image by image --------------------------------------------------------------------------------------------


class SlowCSTU:
    """Lists of (number, age, entropy) per class."""

    def __init__(self, capacity, classes):
        self.capacity, self.classes = capacity, classes
        self.lists = [[] for _ in range(classes)]

    def score(self, age, u):
        return 1 / (1 + math.exp(-age / self.capacity)) + u / math.log(self.classes)

    def add(self, number, label, u):
        sizes = [len(one) for one in self.lists]
        if sizes[label] >= self.capacity / self.classes:
            rivals = [label]
        elif sum(sizes) < self.capacity:
            rivals = []
        else:
            rivals = [one for one, size in enumerate(sizes) if size == max(sizes)]
        entries = [(self.score(age, other), one, which) for one in rivals for which, age, other in self.lists[one]]
        if entries and max(entries)[0] > self.score(0, u):
            _, one, which = max(entries)
            self.lists[one] = [entry for entry in self.lists[one] if entry[0] != which]
            entries = []
        if not entries:
            self.lists[label].append((number, 0, u))
        self.lists = [[(which, age + 1, other) for which, age, other in one] for one in self.lists]

    @property
    def contents(self):
        return {which: (label, age) for label, one in enumerate(self.lists) for which, age, _ in one}


class StepOf:
    """What a bank reads of a step."""

    def __init__(self, images, logits, seed=0):
        self.images, self.output, self.logits = images, logits, logits
        self.distributed, self.classes = Distributed(), logits.shape[1]
        self.generator = torch.Generator().manual_seed(seed)


def slow_hus(held, batch, capacity, draws):
    """Return the bank, a list of (number, label), after a batch of (number, label, whether admitted)."""
    places = {number: place for place, (number, _) in enumerate(held)}
    places |= {number: capacity + place for place, (number, *_) in enumerate(batch)}
    for row, (number, label, admitted) in zip(draws, batch, strict=True):
        if not admitted:
            continue
        if len(held) == capacity:
            labels = [one for _, one in held]
            most = max(map(labels.count, labels))
            largest = {one for one in labels if labels.count(one) == most}
            rivals = [entry for entry in held if entry[1] in ({label} if label in largest else largest)]
            held.remove(max(rivals, key=lambda entry: row[places[entry[0]]]))
        held.append((number, label))
    return held


def slow_rbm(held, counts, batch, capacity, draws):
    """As `slow_hus`; the oldest image leaves of the class with the largest running count, the draw breaks ties."""
    for row, (number, label, admitted) in zip(draws, batch, strict=True):
        if not admitted:
            continue
        if len(held) == capacity:
            leaving = max({one for _, one in held}, key=lambda one: (counts[one], row[one]))
            held.remove(next(entry for entry in held if entry[1] == leaving))
        held.append((number, label))
    labels = [label for _, label in held]
    return held, [0.9 * count + 0.1 * labels.count(label) for label, count in enumerate(counts)]


def numbered(start, count):
    """Images that carry their number."""
    return torch.arange(start, start + count).double().view(-1, 1, 1, 1).expand(-1, 3, 2, 2)


def random_stream(classes):
    """Logits of 1,000 images in batches of several sizes; the first classes come often early, and rarely late."""
    logits = 3 * torch.randn(1000, classes, generator=torch.Generator().manual_seed(classes), dtype=torch.float64)
    logits[:, :3] += torch.linspace(3, -3, 1000).unsqueeze(1)
    start = 0
    for size in (1, 7, 200, 92, 200, 300, 200):
        yield start, logits[start : start + size]
        start += size


def contents(memory):
    """The numbers and labels of the images in a bank, oldest first."""
    numbers = memory.bank[memory.held][:, 0, 0, 0].long().tolist()
    return list(zip(numbers, memory.classes[memory.held].tolist(), strict=True))


@pytest.mark.parametrize(("classes", "capacity"), [(5, 16), (5, 64), (40, 16)])
def test_cstu_holds_what_a_slow_one_does_after_1000_images(classes, capacity):
    memory, slow = CSTU(capacity).double(), SlowCSTU(capacity, classes)
    for start, logits in random_stream(classes):
        memory.update(StepOf(numbered(start, len(logits)), logits))
        for number, (label, u) in enumerate(zip(logits.argmax(1).tolist(), entropy(logits).tolist(), strict=True)):
            slow.add(start + number, label, u)
        assert memory.bank.shape[0] == capacity
        ages = (memory.num_images - memory.arrived)[memory.held].tolist()
        found = {number: (label, age) for (number, label), age in zip(contents(memory), ages, strict=True)}
        assert found == slow.contents
    assert len(slow.contents) > capacity // 2


@pytest.mark.parametrize(("classes", "capacity"), [(5, 16), (40, 16)])
def test_hus_holds_what_a_slow_one_does_after_1000_images(classes, capacity):
    memory, slow = HUS(capacity, confidence=0.6), []
    for start, logits in random_stream(classes):
        step = StepOf(numbered(start, len(logits)), logits, seed=start)
        memory.update(step)
        draws = torch.rand(len(logits), capacity + len(logits), generator=torch.Generator().manual_seed(start)).tolist()
        top, labels = logits.softmax(1).max(1)
        batch = zip(range(start, start + len(logits)), labels.tolist(), (top >= 0.6).tolist(), strict=True)
        slow = slow_hus(slow, list(batch), capacity, draws)
        assert contents(memory) == slow
    assert len(slow) == capacity
    assert memory.bank.shape[0] == capacity


@pytest.mark.parametrize(("classes", "capacity"), [(5, 16), (40, 16)])
def test_rbm_holds_what_a_slow_one_does_after_1000_images(classes, capacity):
    memory, slow, counts = RBM(capacity, entropy_share=0.5), [], [0.0] * classes
    for start, logits in random_stream(classes):
        step = StepOf(numbered(start, len(logits)), logits, seed=start)
        step.source_logits = logits.roll(1, dims=1) * (torch.arange(len(logits)) % 4 == 0).unsqueeze(1) + logits
        memory.update(step)
        draws = torch.rand(len(logits), classes, generator=torch.Generator().manual_seed(start)).tolist()
        labels = logits.argmax(1)
        admitted = (entropy(logits) < 0.5 * math.log(classes)) & (labels == step.source_logits.argmax(1))
        batch = zip(range(start, start + len(logits)), labels.tolist(), admitted.tolist(), strict=True)
        slow, counts = slow_rbm(slow, counts, list(batch), capacity, draws)
        assert contents(memory) == slow
        torch.testing.assert_close(memory.running_counts, torch.tensor(counts))
    assert len(slow) == capacity
    assert memory.bank.shape[0] == capacity


@pytest.mark.parametrize(("classes", "threshold"), [(10, 0.99), (100, 0.66), (1000, 0.33)])
def test_hus_threshold_follows_the_number_of_classes(classes, threshold):
    logits = torch.zeros(2, classes, dtype=torch.float64)
    logits[:, 0] = torch.tensor([threshold - 1e-6, threshold + 1e-6]).double().logit() + math.log(classes - 1)
    assert HUS().admit(StepOf(numbered(0, 2), logits)).tolist() == [False, True]


@settings(max_examples=25, deadline=None)
@given(
    capacity=st.integers(1, 12),
    classes=st.integers(2, 9),
    sizes=st.lists(st.integers(1, 15), min_size=1, max_size=4),
    seed=st.integers(0, 2**20),
)
def test_banks_of_any_size_hold_what_slow_ones_do(capacity, classes, sizes, seed):
    """Also where a class has no room for one image, and where a batch is larger than the bank."""
    cstu, slow_cstu = CSTU(capacity).double(), SlowCSTU(capacity, classes)
    hus, held = HUS(capacity, confidence=0.4), []
    rbm, kept, counts = RBM(capacity, entropy_share=0.8, consistent=False), [], [0.0] * classes
    generator, start = torch.Generator().manual_seed(seed), 0
    for size in sizes:
        logits = 2 * torch.randn(size, classes, generator=generator, dtype=torch.float64)
        step, (top, labels) = StepOf(numbered(start, size), logits, seed=start), logits.softmax(1).max(1)
        numbers = range(start, start + size)
        cstu.update(step)
        for number, label, u in zip(numbers, labels.tolist(), entropy(logits).tolist(), strict=True):
            slow_cstu.add(number, label, u)
        assert {number for number, _ in contents(cstu)} == set(slow_cstu.contents)

        hus.update(StepOf(step.images, logits, seed=start))
        draws = torch.rand(size, capacity + size, generator=torch.Generator().manual_seed(start)).tolist()
        held = slow_hus(held, list(zip(numbers, labels.tolist(), (top >= 0.4).tolist(), strict=True)), capacity, draws)
        assert contents(hus) == held

        rbm.update(StepOf(step.images, logits, seed=start))
        draws = torch.rand(size, classes, generator=torch.Generator().manual_seed(start)).tolist()
        certain = (entropy(logits) < 0.8 * math.log(classes)).tolist()
        kept, counts = slow_rbm(
            kept, counts, list(zip(numbers, labels.tolist(), certain, strict=True)), capacity, draws
        )
        assert contents(rbm) == kept
        start += size


class CountOperations(TorchDispatchMode):
    """Counts the operations that a device would run; views are none."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += not function.is_view
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("memory", [CSTU(), HUS(), RBM(consistent=False)], ids=lambda memory: type(memory).__name__)
def test_inserting_an_image_takes_at_most_six_operations(memory):
    counts = []
    for size in (10, 30):
        step = StepOf(numbered(0, size), torch.randn(size, 10))
        with CountOperations() as operations:
            memory.update(step)
        counts.append(operations.count)
    assert counts[1] - counts[0] <= 6 * 20


@pytest.mark.parametrize("method", [dp.rotta, dp.sotta, dp.stamp])
def test_bank_refuses_images_of_another_size(model, method):
    adapter = method(model, capacity=8)
    adapter(to_double(batches(1))[0])
    with pytest.raises(dp.errors.InputError, match=r"shape \(3, 8, 8\), as in the memory, but got \(3, 12, 12\)"):
        adapter(to_double(batches(1, shape=(3, 12, 12)))[0])


# --- methods by hand --------------------------------------------------------------------------------------------------


class RobustNorm(nn.Module):
    """RoTTA's batch norm: running statistics, and in training mode with gradients through the batch's part."""

    def __init__(self, layer, momentum):
        super().__init__()
        self.weight, self.bias, self.eps, self.momentum = layer.weight, layer.bias, layer.eps, momentum
        self.mean, self.variance = layer.running_mean.clone(), layer.running_var.clone()

    def forward(self, x):
        mean, variance = self.mean, self.variance
        if self.training:
            variance, mean = torch.var_mean(x, dim=(0, 2, 3), correction=0)
            mean = (1 - self.momentum) * self.mean + self.momentum * mean
            variance = (1 - self.momentum) * self.variance + self.momentum * variance
            self.mean, self.variance = mean.detach(), variance.detach()
        shape = (1, -1, 1, 1)
        x = (x - mean.view(shape)) / (variance.view(shape) + self.eps).sqrt()
        return x * self.weight.view(shape) + self.bias.view(shape)


def with_robust_norms(model, momentum):
    model = copy.deepcopy(model)
    for name, layer in list(batch_norms(model)):
        path, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(path), leaf, RobustNorm(layer, momentum))
    return model


def test_rotta_by_hand(model):
    capacity, every, share = 8, 12, 0.2
    options = {"capacity": capacity, "update_every": every, "statistics_momentum": share, "augment": shaded}
    adapter = dp.rotta(model, lr=1e-2, momentum=0.9, **options)
    student = with_robust_norms(model, share)
    teacher = copy.deepcopy(student)
    affine = [p for m in student.modules() if isinstance(m, RobustNorm) for p in (m.weight, m.bias)]
    optimizer = torch.optim.Adam(affine, lr=1e-2)
    bank, seen, count, updates = SlowCSTU(capacity, 5), [], 0, 0

    for images in to_double(batches(20)):
        teacher.eval()
        with torch.no_grad():
            answer = teacher(images)
        torch.testing.assert_close(adapter(images), answer, rtol=0, atol=1e-9)
        for image, logits in zip(images, answer, strict=True):
            bank.add(len(seen), int(logits.argmax()), float(entropy(logits.unsqueeze(0))))
            seen.append(image)
            count += 1
        assert len(bank.contents) <= capacity
        if count < every:
            assert not adapter.last.stepped
            continue
        count, updates = 0, updates + 1
        remembered = torch.stack([seen[number] for number in sorted(bank.contents)])
        ages = torch.tensor([bank.contents[number][1] for number in sorted(bank.contents)]).double() / capacity
        student.train(), teacher.train()
        target = teacher(remembered).detach().softmax(1)
        losses = -(target * student(shaded(remembered, None)).log_softmax(1)).sum(1)
        optimizer.zero_grad()
        (losses * torch.exp(-ages) / (1 + torch.exp(-ages))).mean().backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.copy_(0.9 * slow + 0.1 * fast)
    assert updates == 10
    assert not torch.allclose(answer, model.eval()(images), atol=1e-2), "otherwise nothing was tested"


def test_sotta_by_hand(model):
    capacity, every, rho, threshold = 128, 12, 0.3, 0.8
    options = {"capacity": capacity, "update_every": every, "confidence": threshold, "rho": rho}
    adapter = dp.sotta(model, lr=1e-2, **options)
    network = copy.deepcopy(model)
    norms = [layer for _, layer in batch_norms(network)]
    for layer in norms:
        layer.momentum = 0.2
    affine = [parameter for layer in norms for parameter in (layer.weight, layer.bias)]
    optimizer = torch.optim.Adam(affine, lr=1e-2)
    bank, count, sizes = [], 0, []

    def gradient():
        return torch.autograd.grad(entropy(network(torch.stack(bank))).mean(), affine)

    for images in to_double(batches(20)):
        network.eval()
        with torch.no_grad():
            answer = network(images)
        torch.testing.assert_close(adapter(images), answer, rtol=0, atol=1e-9)
        bank += [image for image, top in zip(images, answer.softmax(1).amax(1), strict=True) if top >= threshold]
        count += len(images)
        if count < every:
            continue
        count = 0
        sizes.append(len(bank))
        assert adapter.last.stepped == bool(bank)
        if not bank:
            continue
        network.train()
        first = gradient()
        scale = rho / (torch.stack([one.norm() for one in first]).norm() + 1e-12)
        start = [parameter.detach().clone() for parameter in affine]
        with torch.no_grad():
            for parameter, one in zip(affine, first, strict=True):
                parameter += scale * one
        second = gradient()
        with torch.no_grad():
            for parameter, old, one in zip(affine, start, second, strict=True):
                parameter.copy_(old)
                parameter.grad = one
        optimizer.step()
    assert 0 < sizes[1] < sizes[-1] < 0.9 * 6 * 20, "some images must be left out"
    assert not torch.allclose(answer, model.eval()(images), atol=1e-2), "otherwise nothing was tested"


def test_stamp_by_hand(model):
    rho, period, share = 0.3, 7, 0.8
    options = {"entropy_share": share, "num_views": 2, "augment": shaded, "rho": rho, "period": period}
    adapter = dp.stamp(model, lr=0.1, capacity=128, **options)
    network, frozen = copy.deepcopy(model).train(), copy.deepcopy(model).train()
    affine = [parameter for _, layer in batch_norms(network) for parameter in (layer.weight, layer.bias)]
    bank, steps = [], 0

    def gradient():
        entropies = entropy(network(torch.stack(bank)))
        return torch.autograd.grad((torch.softmax(-entropies, 0) * entropies).sum(), affine)

    for images in to_double(batches(20)):
        with torch.no_grad():
            own, view, source = network(images), network(shaded(images, None)), frozen(images)
        mean = (own.softmax(1) + 2 * view.softmax(1)) / 3
        torch.testing.assert_close(adapter(images), mean.log(), rtol=0, atol=1e-9)
        certain = -(mean * mean.log()).sum(1) < share * math.log(5)
        torch.testing.assert_close(adapter.last.novelty, -(mean * mean.log()).sum(1), rtol=0, atol=1e-9)
        bank += [images[i] for i in range(len(images)) if certain[i] and own[i].argmax() == source[i].argmax()]
        assert adapter.last.stepped == bool(bank)
        if not bank:
            continue
        start, first = [parameter.detach().clone() for parameter in affine], gradient()
        scale = rho / (torch.stack([one.norm() for one in first]).norm() + 1e-12)
        # An optimizer with a schedule holds its learning rate in single precision.
        rate = float(0.1 * (0.5 + 0.5 * torch.cos(math.pi / period * torch.tensor(steps % period))))
        with torch.no_grad():
            for parameter, one in zip(affine, first, strict=True):
                parameter += scale * one
        second = gradient()
        with torch.no_grad():
            for parameter, old, one in zip(affine, start, second, strict=True):
                parameter.copy_(old - rate * one)
        steps += 1
    assert steps > 2 * period
    assert 20 < len(bank) < 0.9 * 6 * 20, "some images must be left out"


@pytest.mark.parametrize("number", [1, 3, 8])
def test_stamp_loss_of_equal_entropies_is_that_entropy(number):
    step = StepOf(numbered(0, 8), torch.arange(5).double().expand(8, 5) + torch.arange(8).unsqueeze(1))
    step.log_probabilities = step.logits.log_softmax(1)
    step.probabilities = step.log_probabilities.exp()
    step.weights = (torch.arange(8) < number).double()
    mean = (dp.losses.SelfWeightedEntropy().per_sample(step) * step.weights).sum() / number
    torch.testing.assert_close(mean, entropy(step.logits)[0])


@pytest.mark.parametrize(("classes", "lr"), [(10, 0.1), (100, 0.05), (1000, 0.01)])
def test_stamp_learning_rate_follows_the_number_of_classes(classes, lr):
    adapter = dp.stamp(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, classes)))
    assert float(adapter.optimizer.param_groups[0]["lr"]) == pytest.approx(lr)


def test_norm_ema_by_hand(model):
    adapter, network = dp.norm_ema(model, momentum=0.3), with_robust_norms(model, 0.3).train()
    for images in to_double(batches(6)):
        torch.testing.assert_close(adapter(images), network(images).detach(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("method", [dp.rotta, dp.stamp])
def test_views_refuse_normalized_images_and_label_maps(method):
    with pytest.raises(dp.errors.InputError, match="values in \\[0, 1\\]"):
        method(build("wide_resnet"))(batches(1)[0] * 255)
    with pytest.raises(dp.errors.ModelError, match="moves no pixels"):
        method(build("segmentation"))(batches(1)[0])


class HalfFilled(dp.memories.Memory):
    """The batch, of which the second half only fills up."""

    def __init__(self):
        super().__init__()
        self.register_buffer("batch", None)

    def update(self, step):
        self.batch = step.images

    def images(self):
        return self.batch

    def mask(self):
        return torch.arange(len(self.batch)) < len(self.batch) // 2


@pytest.mark.parametrize("select", [None, dp.ConfidenceAbove(0.0)], ids=["all", "selected"])
def test_places_that_a_memory_masks_teach_nothing(model, select):
    (images,) = to_double(batches(1, size=8))
    masked = dp.tent(model, memory=HalfFilled(), select=select, mean_entropy=0.3)
    masked(images)
    alone = dp.tent(model, select=select, mean_entropy=0.3)
    alone(images[:4])
    assert masked.last.loss == pytest.approx(alone.last.loss, rel=1e-12)
