"""Streams of scenes: label maps compared with a pixel loop, order, rounds, lazy reading, corruptions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from driftproof.data import Corrupted
from driftproof.data.scenes import UNKNOWN, VOID, FitHeight, Scene, SceneImages, Scenes, SourceScenes, camvid, frames
from driftproof.data.scenes.driving import camvid_scenes
from driftproof.errors import InputError
from driftproof.streams import Continual, Prefetcher, SceneDomain, make_scene_domain

KNOWN = ["sky", "building", "pole", "road", "pavement", "tree", "fence", "car"]
STORED = ["sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist"]


def write_camvid(root, splits=("test",), count=5, height=12, width=16, seed=0):
    """Write random scenes in CamVid's layout and return the label images as arrays."""
    random, maps = np.random.default_rng(seed), {}
    for split in splits:
        (root / split).mkdir(parents=True)
        (root / f"{split}annot").mkdir()
        maps[split] = random.integers(0, 12, (count, height, width), dtype=np.uint8)
        for index, labels in enumerate(maps[split]):
            Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(
                root / split / f"{index}.png"
            )
            Image.fromarray(labels).save(root / f"{split}annot" / f"{index}.png")
    return maps


@pytest.fixture
def scenes(tmp_path):
    write_camvid(tmp_path)
    return camvid(tmp_path, split="test")


def test_label_maps_and_masks_equal_a_pixel_loop(tmp_path):
    maps = write_camvid(tmp_path)["test"]
    stream = Continual([make_scene_domain("clean", camvid(tmp_path))], batch_size=2)
    labels = torch.cat([batch.labels for batch in stream])
    known = torch.cat([batch.known for batch in stream])
    labeled = torch.cat([batch.labeled for batch in stream])
    for index, row, column in np.ndindex(maps.shape):
        number = int(maps[index, row, column])
        name = STORED[number] if number < 11 else None
        expected = VOID if name is None else KNOWN.index(name) if name in KNOWN else -1
        assert labels[index, row, column] == expected
        assert known[index, row, column] == (name in KNOWN)
        assert labeled[index, row, column] == (name is not None)


def test_source_scenes_are_deterministic_and_hide_unknown_pixels(tmp_path):
    write_camvid(tmp_path / "CamVid", ("train",), count=3)
    taught = camvid_scenes(tmp_path, split="train")
    source = SourceScenes(taught, batch_size=2, limit=3)
    first, again = list(source), list(source)
    assert [len(images) for images, _ in first] == [2, 1]
    for (images, maps), (same, same_maps) in zip(first, again, strict=True):
        assert torch.equal(images, same)
        assert torch.equal(maps, same_maps)
        assert ((maps < 8) | (maps == VOID)).all()
    assert sum(len(images) for images, _ in SourceScenes(taught, limit=2)) == 2
    unlabeled = replace(taught, scenes=tuple(replace(scene, labels=None) for scene in taught.scenes))
    with pytest.raises(InputError, match="source scenes with labels"):
        next(iter(SourceScenes(unlabeled)))


def test_domains_repeat_in_order_with_a_smaller_last_batch(scenes):
    stream = Continual([make_scene_domain("dawn", scenes), make_scene_domain("dusk", scenes)], rounds=2, batch_size=2)
    seen = [(batch.round, batch.domain, len(batch.images)) for batch in stream]
    assert seen == [(round, name, size) for round in (1, 2) for name in ("dawn", "dusk") for size in (2, 2, 1)]
    images = torch.cat([batch.images for batch in stream if (batch.round, batch.domain) == (2, "dusk")])
    expected = torch.stack([scenes.read(index)[0] for index in range(5)]).float() / 255
    assert torch.equal(images, expected), "not in the stored order"
    later = next(iter(stream.start_from(2, 1, 1)))
    assert torch.equal(later.images, expected[2:4])


def test_domains_may_differ_in_size_but_frames_of_one_domain_may_not(scenes, tmp_path):
    larger = camvid(tmp_path, split="test", size=FitHeight(18))
    stream = Continual([make_scene_domain("small", scenes), make_scene_domain("large", larger)], batch_size=2)
    sizes = {batch.domain: (batch.images.shape[2:], batch.labels.shape[1:]) for batch in stream}
    assert sizes == {"small": ((12, 16), (12, 16)), "large": ((18, 24), (18, 24))}
    Image.new("RGB", (20, 12)).save(tmp_path / "test" / "3.png")
    with pytest.raises(InputError, match="one size"):
        list(Continual([make_scene_domain("small", scenes)], batch_size=2))


def test_unlabeled_frames_are_streamed_as_void(scenes, tmp_path):
    batch = next(iter(Continual([make_scene_domain("plain", frames(tmp_path / "test"))], batch_size=2)))
    assert (batch.labels == VOID).all()
    assert not batch.known.any()
    assert not batch.labeled.any()
    assert batch.num_known == 0


def test_frames_are_read_lazily(scenes, monkeypatch):
    read = []
    original = Scenes.read_frame
    monkeypatch.setattr(Scenes, "read_frame", lambda self, index: read.append(index) or original(self, index))
    stream = iter(Continual([make_scene_domain("clean", scenes)], batch_size=2, rounds=2))
    assert read == []
    next(stream)
    assert sorted(read) == [0, 1]
    next(stream)
    assert sorted(read) == [0, 1, 2, 3]


def test_prefetched_scene_batches_equal_the_stream(scenes):
    stream = Continual([make_scene_domain("clean", scenes)], batch_size=2)
    for plain, prefetched in zip(stream, Prefetcher(stream, device="cpu"), strict=True):
        assert torch.equal(plain.images, prefetched.images)
        assert torch.equal(plain.labels, prefetched.labels)
        assert torch.equal(plain.known, prefetched.known)


def test_corruption_of_a_scene_is_independent_of_the_batch_and_keeps_labels(scenes):
    foggy = make_scene_domain("fog", scenes, Corrupted(SceneImages(scenes), "fog", 3))
    by_two = torch.cat([batch.images for batch in Continual([foggy], batch_size=2)])
    by_three = torch.cat([batch.images for batch in Continual([foggy], batch_size=3)])
    clean = torch.cat([batch.images for batch in Continual([make_scene_domain("clean", scenes)], batch_size=2)])
    assert torch.equal(by_two, by_three)
    assert not torch.equal(by_two, clean)
    single = foggy.slice(torch.tensor([3])).read((12, 16), lambda tensor: tensor)
    assert torch.equal(single[0][0].float() / 255, by_two[3])
    assert torch.equal(single[1][0] == VOID, scenes.read(3)[1] == VOID)
    assert torch.equal(single[1][0] == -1, scenes.read(3)[1] == UNKNOWN)


def test_mismatched_frames_and_label_maps_raise_input_error(scenes, tmp_path):
    fewer = Scenes("fewer", scenes.scenes[:3], scenes.palette, scenes.label_reader)
    with pytest.raises(InputError, match="label map for each of the 5 frames of domain fog, but fewer has 3"):
        SceneDomain("fog", SceneImages(scenes), scenes=fewer)
    halved = Scenes("halved", scenes.scenes, scenes.palette, scenes.label_reader, FitHeight(6))
    domain = SceneDomain("fog", SceneImages(scenes), scenes=halved)
    with pytest.raises(InputError, match="shape"):
        list(Continual([domain], batch_size=2))


def test_scene_images_accept_no_indices_and_reject_invalid_ones(scenes):
    assert SceneImages(scenes).batch([]).shape == (0, 3, 12, 16)
    with pytest.raises(InputError, match=r"indices in 0\.\.4"):
        SceneImages(scenes).batch([5])
    assert scenes.read_labels(0).shape == (12, 16)
    assert Scenes("bare", (Scene(scenes.scenes[0].frame),)).read_labels(0) is None
