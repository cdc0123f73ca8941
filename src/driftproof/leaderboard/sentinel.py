"""Suites of `sentinel`: how its defaults were chosen, and what they reach; `sentinel.json` lists them."""

import json
from collections.abc import Callable
from functools import cache, partial
from importlib.resources import files
from typing import Any

from driftproof.bench.tables import Suite, Table
from driftproof.corruptions import CORRUPTIONS, HELD_OUT
from driftproof.leaderboard.suites import make_table

__all__ = ["SENTINEL_SUITES"]

_DEFINITIONS: dict[str, Any] = json.loads((files(__package__) / "sentinel.json").read_text(encoding="utf-8"))
_DOMAINS = {"held out": HELD_OUT, "all": CORRUPTIONS}


@cache
def _suite(name: str) -> Suite:
    (made,) = (each for each in _DEFINITIONS["suites"] if each["name"] == name)
    tables = tuple(_make_table(**table) for table in made["tables"])
    return Suite(name, made["title"], tables, made["rounds"], made["note"])


SENTINEL_SUITES: dict[str, Callable[[], Suite]] = {
    each["name"]: partial(_suite, each["name"]) for each in _DEFINITIONS["suites"]
}
"""How to make each suite, by name."""


def _make_table(
    name: str,
    title: str,
    images: str,
    rows: str,
    columns: str,
    *,
    domains: str = "all",
    round: int = 1,
    unknown: str = "svhn-c",
    model: str = "wrn40_2",
) -> Table:
    chosen = {row: (made[0], made[1]) for row, made in _DEFINITIONS["rows"][rows].items()}
    fields = {"domains": _DOMAINS[domains], "unknown": unknown, "model": model}
    return make_table(name, title, images, chosen, _DEFINITIONS["columns"][columns], round=round, **fields)
