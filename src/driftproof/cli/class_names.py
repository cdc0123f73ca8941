"""Read `--classes`: the number of classes of a built-in network, or a file of class names."""

import json
from pathlib import Path

from driftproof.errors import ConfigurationError, InputError
from driftproof.files import read_text

__all__ = ["ClassNames", "parse_classes", "read_class_names"]

ClassNames = tuple[str, ...]


def parse_classes(text: str | None) -> tuple[int | None, ClassNames]:
    """Return the number of classes and their names; a number comes without names.

    Examples:
        >>> parse_classes("10")
        (10, ())
    """
    if text is None:
        return None, ()
    if not text.lstrip("+-").isdigit():
        names = read_class_names(Path(text))
        return len(names), names
    if int(text) < 1:
        raise ConfigurationError(f"Expected `--classes` to be at least 1, but got {text}.")
    return int(text), ()


def read_class_names(path: Path) -> ClassNames:
    """Read class names from a file: one per line, or JSON.

    JSON is a list of names, or an object from index to name, also under `id2label` as in Hugging Face's config.json.
    In place of a name there may be a list that ends with it, as in ImageNet's class index.
    """
    text = read_text(path)
    try:
        names = _parse_json(json.loads(text)) if text.lstrip()[:1] in ("[", "{") else text.rstrip().splitlines()
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"Expected {path} to hold class names as a JSON list, or as an object from 0, 1, … to names, but got "
            f"something else ({type(error).__name__}: {error})."
        ) from error
    names = [name.strip() for name in names]
    if not names or not all(names):
        raise InputError(f"Expected {path} to hold one class name per line, but a name is missing.")
    return tuple(names)


def _parse_json(content: object) -> list[str]:
    if isinstance(content, dict):
        content = content.get("id2label", content)
    if isinstance(content, dict):
        content = [content[str(index)] for index in range(len(content))]
    if not isinstance(content, list):
        raise TypeError("neither a list nor an object")
    return [str(name[-1] if isinstance(name, list) else name) for name in content]
