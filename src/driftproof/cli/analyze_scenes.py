"""`driftproof analyze scenes`: images of what adaptation does to driving scenes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftproof.cli.completion import CORRUPTIONS, SCENES
from driftproof.cli.device import Device, move_model, resolve_device
from driftproof.cli.model import Classes, ModelName, Weights, load_model
from driftproof.cli.options import MethodName, MethodOptions, parse_method_options
from driftproof.cli.preprocessing import Mean, Std, resolve_preprocessing
from driftproof.cli.progress import progress_bar
from driftproof.cli.scenes import load_scenes, load_source_scenes
from driftproof.errors import ConfigurationError, ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.progress import Progress

    from driftproof.adapter import Adapter
    from driftproof.analyses.scenes import Corruption, FrameResult
    from driftproof.bench.spec import Option
    from driftproof.components import SourceBatches
    from driftproof.corruptions import FrostPhotos
    from driftproof.data.scenes import SceneClass

__all__ = ["scenes_command"]

_PAPER_DEFAULTS: "dict[str, Option]" = {"margin": -0.2, "lr": 1e-6, "prototypes": False}
"""The paper's options for segmentation; the defaults for classification are far too large for it."""

_METHOD_DEFAULTS: "dict[str, dict[str, Option]]" = {"cotta": {"lr": 7.5e-6}, "swr+crowd": {"mean_entropy": 0.2}}
"""The paper's options for single methods."""


def scenes_command(
    out: Annotated[Path, typer.Option(help="Output folder for the page and the images.")],
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of unlabeled frames, sorted by name; or use `--images`.")
    ] = None,
    model: ModelName = None,
    weights: Weights = None,
    classes: Classes = None,
    mean: Mean = None,
    std: Std = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--images",
            help="Data set, such as camvid; with a folder of frames, only its classes and colors are used.",
            autocompletion=lambda: list(SCENES),
        ),
    ] = None,
    data: Annotated[Path, typer.Option(help="Folder that holds the data sets.")] = Path("data"),
    split: Annotated[
        str | None, typer.Option(help="Split of the data set; by default its validation or test split.")
    ] = None,
    unknown: Annotated[
        str | None, typer.Option(help="Classes of CamVid the model was not trained on, separated by commas.")
    ] = None,
    method: MethodName = "tent+crowd",
    option: MethodOptions = None,
    frames: Annotated[int, typer.Option(min=1, help="Number of frames to draw.")] = 12,
    every: Annotated[int, typer.Option(min=1, help="Draw every n-th frame; the model adapts to all.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Number of frames per step.")] = 2,
    height: Annotated[int | None, typer.Option(min=1, help="Resize frames to this height.")] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Then crop or pad them to this width.")] = None,
    corruption: Annotated[
        str | None, typer.Option(help="Corruption of every frame.", autocompletion=lambda: list(CORRUPTIONS))
    ] = None,
    severity: Annotated[int, typer.Option(help="Severity of the corruption, from 1 to 5.")] = 5,
    frost: Annotated[Path | None, typer.Option(help="Folder of frost photos, for frost.")] = None,
    procedural: Annotated[bool, typer.Option("--procedural-frost", help="Use procedural frost instead.")] = False,
    alarm: Annotated[float, typer.Option(help="Novelty threshold of the alarm.")] = 0.2,
    min_area: Annotated[int, typer.Option(min=1, help="Pixels of the smallest region that raises an alarm.")] = 100,
    source_frames: Annotated[
        int, typer.Option(min=1, help="Number of training frames for methods that are prepared on source data.")
    ] = 32,
    device: Device = "cpu",
) -> None:
    """Adapt to driving scenes and draw input, prediction, rejected pixels, alarms and ground truth.

    Writes a page, a strip of images per frame, a contact sheet and an animation. Defaults follow the paper's
    segmentation: lr 1e-6 (cotta: 7.5e-6), margin −0.2 for the selection, swr without prototypes, and a mean entropy of
    0.2 for swr+crowd. Statistics are those of the batch; the paper uses `online ttn`.
    """
    import torch

    from driftproof import __version__
    from driftproof.alarm import Alarm
    from driftproof.analyses.scenes import Corruption, adapt_to_frames
    from driftproof.cli.scene_page import default_palette, write_scenes
    from driftproof.methods.by_name import build_method

    target, options = resolve_device(device), _paper_defaults(method, parse_method_options(option))
    change = None
    if corruption is not None:
        change = Corruption(corruption, severity, _load_frost_photos(corruption, frost, procedural))
    names = None if unknown is None else [name.strip() for name in unknown.split(",") if name.strip()]
    scenes = load_scenes(folder, dataset, data, split, names, height, width)
    network = load_model(model, weights, classes, resolve_preprocessing(mean=mean, std=std))
    # The threshold of the alarm is a share of certainty, which an energy is not.
    adapter = build_method(method, move_model(network, target), {"novelty": "msp", **options})
    outputs = _count_outputs(adapter, scenes.extent)
    palette = scenes.palette or default_palette(outputs)
    _check_class_count(outputs, palette, scenes.name)
    with progress_bar() as progress:
        if not adapter.prepared:
            _prepare(adapter, load_source_scenes(dataset, data, names, scenes.extent, source_frames), progress)
        results = adapt_to_frames(
            adapter,
            scenes,
            alarm=Alarm(alarm, min_area=min_area),
            count=frames,
            every=every,
            batch_size=batch_size,
            corruption=change,
        )
        drawn_note = f", the first of every {every} drawn" if every > 1 else ""
        facts = {
            "Frames": f"{scenes.name}, {scenes.extent[0]}×{scenes.extent[1]} pixels{drawn_note}",
            "Appearance": "as stored" if change is None else _describe_corruption(change),
            "Model": " ".join(str(part) for part in (model, weights) if part is not None),
            "Method": ", ".join([method, *(f"{name} {value}" for name, value in options.items())]),
            "Step": f"{batch_size} frames; predictions are those from before it",
            "Alarm": f"regions of at least {min_area} pixels with a novelty above {alarm}",
            "Software": f"driftproof {__version__}, torch {torch.__version__}",
        }
        title = f"{scenes.name}{f' under {corruption}' if corruption else ''}, seen by {method}".replace("_", " ")
        drawn_count = min(frames, (len(scenes) - 1) // every + 1)
        page = write_scenes(_with_progress(results, progress, drawn_count), palette, out, title=title, facts=facts)
    typer.echo(page)


def _load_frost_photos(corruption: str, folder: Path | None, procedural: bool) -> "FrostPhotos | None":
    from driftproof.corruptions import find_frost_photos, procedural_frost

    if corruption != "frost":
        return None
    return procedural_frost() if procedural else find_frost_photos(folder)


def _describe_corruption(corruption: "Corruption") -> str:
    photos = corruption.frost_photos
    origin_note = ", made up" if photos is not None and photos.origin == "procedural" else ""
    return f"{corruption.name}, severity {corruption.severity}{origin_note}"


def _paper_defaults(method: str, given: "dict[str, Option]") -> "dict[str, Option]":
    from driftproof.methods.by_name import accepted_options

    accepted, base = accepted_options(method), method.partition("+")[0]
    papers = {**_PAPER_DEFAULTS, **_METHOD_DEFAULTS.get(base, {}), **_METHOD_DEFAULTS.get(method, {})}
    return {**{name: value for name, value in papers.items() if name in accepted}, **given}


def _count_outputs(adapter: "Adapter", extent: tuple[int, int]) -> int:
    import torch

    with torch.no_grad():
        blank = torch.zeros(1, 3, *extent, device=adapter.device)
        logits = adapter.network.with_source_statistics()(blank)
    if logits.ndim != 4:
        raise ModelError(
            f"Expected a segmentation network with logits of shape (N, C, H, W), but got logits of shape "
            f"{tuple(logits.shape)} for frames of shape {tuple(blank.shape)}."
        )
    return int(logits.shape[1])


def _check_class_count(outputs: int, palette: "Sequence[SceneClass]", name: str) -> None:
    if outputs != len(palette):
        raise ConfigurationError(
            f"Expected a model for the {len(palette)} classes of {name} ({', '.join(each.name for each in palette)}), "
            f"but it has {outputs}. For CamVid, pass the classes it was not trained on as `--unknown`."
        )


def _prepare(adapter: "Adapter", source: "SourceBatches", progress: "Progress") -> None:
    task = progress.add_task("preparing", total=None)
    adapter.prepare(source, progress=lambda stage, done: progress.update(task, description=stage, completed=done))
    progress.remove_task(task)


def _with_progress(results: "Iterator[FrameResult]", progress: "Progress", total: int) -> "Iterator[FrameResult]":
    task = progress.add_task("frames", total=total)
    for result in results:
        yield result
        progress.advance(task)
