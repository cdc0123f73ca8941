"""Stand-ins for models of packages that the tests do not install; `examples/interop` has the real ones."""

import copy
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import driftproof as dp
from cases import batches
from networks import CLASSES, build

EXAMPLES = Path(__file__).parents[1] / "examples" / "interop"


class ModelOutput(OrderedDict):
    """As in transformers: a dictionary whose entries are attributes too, and which leaves out what is None."""

    def __init__(self, **entries):
        super().__init__((name, value) for name, value in entries.items() if value is not None)
        self.__dict__.update(entries)


class ImageClassifier(nn.Module):
    """As a classifier of transformers: takes `pixel_values` and labels, returns an output with loss and logits."""

    def __init__(self):
        super().__init__()
        self.config = {"id2label": {0: "cat", 1: "dog"}}
        self.backbone = build("wide_resnet")

    def forward(self, pixel_values=None, labels=None, output_hidden_states=None, return_dict=True):
        logits = self.backbone(pixel_values)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return ModelOutput(loss=loss, logits=logits, hidden_states=None)


class LightningLike(nn.Module):
    """As a LightningModule after `fit`: refers to its trainer, which refers back and cannot be copied."""

    def __init__(self):
        super().__init__()
        self.network = build("wide_resnet")
        self._trainer = None
        self.register_load_state_dict_post_hook(lambda module, keys: None)

    @property
    def trainer(self):
        if self._trainer is None:
            raise RuntimeError("LightningLike is not attached to a `Trainer`.")
        return self._trainer

    def __getstate__(self):
        return dict(self.__dict__) | {"_trainer": None}

    def forward(self, images):
        return self.network(images)

    def training_step(self, batch, index):
        return F.cross_entropy(self(batch[0]), batch[1])


class Trainer:
    def __init__(self, module):
        self.module = module

    def __deepcopy__(self, memo):
        raise TypeError("a trainer holds locks and cannot be copied")


class EncoderDecoder(nn.Module):
    """As in segmentation_models_pytorch: features of several sizes, a head, and a label per image if asked for."""

    def __init__(self, with_labels=False):
        super().__init__()
        self.encoder = nn.ModuleList(
            nn.Sequential(nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True))
            for before, after in ((3, 8), (8, 16))
        )
        self.decoder = nn.Sequential(nn.Conv2d(24, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.segmentation_head = nn.Sequential(nn.Conv2d(8, CLASSES, 1), nn.Identity())
        pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3))
        self.classification_head = nn.Sequential(*pooled) if with_labels else None

    def forward(self, x):
        if x.shape[-1] % 4 or x.shape[-2] % 4:
            raise RuntimeError(f"Wrong input shape height={x.shape[-2]}, width={x.shape[-1]}.")
        features = [x]
        for stage in self.encoder:
            features.append(stage(features[-1]))
        upsampled = F.interpolate(features[2], scale_factor=2, mode="nearest")
        decoded = self.decoder(torch.cat([features[1], upsampled], dim=1))
        masks = F.interpolate(self.segmentation_head(decoded), scale_factor=2, mode="bilinear")
        return masks if self.classification_head is None else (masks, self.classification_head(features[2]))


class Segmentor(nn.Module):
    """As in MMSegmentation: `mode` decides what is returned, and normalization is synchronized."""

    def __init__(self):
        super().__init__()
        self.net = nn.SyncBatchNorm.convert_sync_batchnorm(EncoderDecoder())

    def forward(self, inputs, data_samples=None, mode="tensor"):
        if mode != "tensor":
            raise RuntimeError(f'Invalid mode "{mode}".')
        return self.net(inputs)


def fitted_lightning_module():
    module = LightningLike()
    module._trainer = Trainer(module)
    return module


MODELS = {
    "transformers": (ImageClassifier, {"logits": "logits"}, (4, CLASSES)),
    "transformers, by attribute": (ImageClassifier, {"logits": lambda output: output.logits}, (4, CLASSES)),
    "lightning": (fitted_lightning_module, {}, (4, CLASSES)),
    "smp": (EncoderDecoder, {}, (4, CLASSES, 8, 8)),
    "smp with labels": (lambda: EncoderDecoder(with_labels=True), {"logits": 0}, (4, CLASSES, 8, 8)),
    "mmsegmentation": (Segmentor, {}, (4, CLASSES, 8, 8)),
}


@pytest.mark.parametrize("make", [dp.adapt, dp.tent], ids=["adapt", "tent"])
@pytest.mark.parametrize("name", MODELS)
def test_stand_in_adapts_unwraps_and_resets(name, make):
    torch.manual_seed(0)
    construct, options, shape = MODELS[name]
    model = construct()
    before = copy.deepcopy(model.state_dict())
    stream = batches(3, size=4)
    adapter = make(model, **options)
    first = [adapter(images) for images in stream]
    assert all(logits.shape == shape and logits.isfinite().all() for logits in first)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for plain in (adapter.unwrap(), adapter.unwrap(statistics="stream")):
        assert type(plain) is type(model)
        assert type(plain.eval()(stream[0])) is type(model.eval()(stream[0]))
        assert plain.state_dict().keys() == model.state_dict().keys()
    adapter.reset()
    assert all(torch.equal(one, adapter(images)) for one, images in zip(first, stream, strict=True))


def test_classifier_of_transformers_without_a_key_says_what_to_pass():
    with pytest.raises(dp.errors.DriftproofError, match="logits"):
        dp.tent(ImageClassifier())(batches(1)[0])


def test_failing_forward_of_a_segmentation_network_is_named():
    adapter = dp.tent(EncoderDecoder())
    with pytest.raises(dp.errors.ForwardError, match="Wrong input shape height=9"):
        adapter(torch.rand(2, 3, 9, 9))


# --- the real ones ----------------------------------------------------------------------------------------------------

SCRIPTS = {
    "timm_model": "timm",
    "torchvision_model": "torchvision",
    "transformers_model": "transformers",
    "lightning_module": "lightning",
    "smp_network": "segmentation_models_pytorch",
}


def labels_of(output):
    """What each line of a report is about."""
    return [line[:14].strip() for line in output.splitlines()]


def test_every_example_has_its_recorded_output():
    scripts = {path.stem for path in EXAMPLES.glob("*.py")} - {"common"}
    assert scripts == set(SCRIPTS) == {path.stem for path in EXAMPLES.glob("*.txt")}
    for name in scripts:
        labels = labels_of((EXAMPLES / f"{name}.txt").read_text(encoding="utf-8"))
        assert {"model", "source", "dp.adapt", "tent+crowd", "unwrapped"} <= set(labels)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCRIPTS)
def test_examples_run_as_recorded(name, monkeypatch, capsys, torchvision):
    """The numbers differ between machines; what is reported does not."""
    pytest.importorskip(SCRIPTS[name])
    monkeypatch.syspath_prepend(EXAMPLES)
    __import__(name).main()
    assert labels_of(capsys.readouterr().out) == labels_of((EXAMPLES / f"{name}.txt").read_text(encoding="utf-8"))
