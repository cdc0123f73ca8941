"""Fill in the numbers that pages cite."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from driftproof.bench.results import FilledTable, Results, Value
from driftproof.bench.tables import TableEntry
from driftproof.errors import InputError
from driftproof.paper.claims import evaluate_claims
from driftproof.paper.comparison import fill_tables, format_markdown, render_table
from driftproof.report.text import format_number
from driftproof.validation import check_choice

__all__ = ["Citations", "read_page", "render_placeholders"]

_PLACEHOLDER = re.compile(r"<!-- results:(?P<name>.+?) -->(?P<content>(?s:(?!<!-- results:).)*?<!-- /results -->)?")
"""A placeholder of a page with its content; the content is None if it is not closed before the next one."""


def read_page(path: Path) -> str:
    """Read a page as UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"Expected {path} to be text in UTF-8, but decoding failed: {error}.") from error


class Citations:
    """What pages can cite, by name.

    Names are `claims`, `verdicts`, a table such as `table1`, a number such as `table1/tent+crowd/CIFAR-10-C/Open`, with
    `@5` that of round 5, and a page that a benchmark script wrote next to the archives, such as `speed/gpu`. Numbers
    measured on only some of the images say so.

    Args:
        archives: The archives. The first that has a number provides it; archives on all images come first.
        folder: Where the benchmark scripts' pages are.
    """

    def __init__(self, archives: Sequence[Results], folder: Path) -> None:
        archives = sorted(archives, key=lambda results: results.is_subset)
        self._texts: dict[str, Callable[[], str]] = {
            "claims": partial(_render_claims, archives, ["claim", "verdict", "numbers"]),
            "verdicts": partial(_render_claims, archives, ["claim", "in our runs"]),
        }
        self._entries: dict[str, tuple[Results, TableEntry, int]] = {}
        for page in sorted(set(folder.glob("*/*.md")) - set(folder.glob("notes/*.md"))):
            self._texts[f"{page.parent.name}/{page.stem}"] = partial("\n\n{}\n\n".format, read_page(page).strip())
        for results in archives:
            for filled in fill_tables(results):
                self._add_table(filled, results)

    def _add_table(self, filled: FilledTable, results: Results) -> None:
        entries = {(entry.row, entry.column): entry for entry in filled.table.entries}
        self._texts.setdefault(filled.table.name, partial(_render_table, filled, results))
        for place, value in filled.values.items():
            name = "/".join((filled.table.name, *place))
            if value.ours is not None and name not in self._texts:
                self._texts[name] = partial(_format_value, value, results)
                if place in entries:
                    self._entries[name] = (results, entries[place], value.round or 0)

    def __getitem__(self, name: str) -> str:
        """Return what a placeholder is filled with."""
        number, _, round = name.rpartition("@")
        if name not in self._texts and number in self._entries and round.isdecimal():
            results, entry, last = self._entries[number]
            if 1 <= int(round) <= last:
                return _format_value(results.value(replace(entry, round=int(round))), results)
        return self._texts[check_choice("result", name, self._texts)]()


def _render_claims(archives: Sequence[Results], head: Sequence[str]) -> str:
    claims = evaluate_claims(archives)
    rows = ([claim.text, claim.verdict, "<br>".join(case.text for case in claim.cases)] for claim in claims)
    return f"\n\n{format_markdown(head, [row[: len(head)] for row in rows], rule='---')}\n\n"


def _render_table(filled: FilledTable, results: Results) -> str:
    note = f"\n\nOnly the first {results.metadata['limit']} images of each domain." if results.is_subset else ""
    return f"\n\n{render_table(filled)}{note}\n\n"


def _format_value(value: Value, results: Results) -> str:
    early = [] if value.complete else [f"round {value.round}"]
    limits = [*early, *([f"first {results.metadata['limit']} images"] if results.is_subset else [])]
    return format_number(value.ours or 0.0) + (f" ({', '.join(limits)})" if limits else "")


def render_placeholders(text: str, citations: "Citations | Mapping[str, str]") -> str:
    """Fill the placeholders of a page, from `<!-- results:claims -->` to `<!-- /results -->`, whatever they hold.

    Examples:
        >>> render_placeholders("error <!-- results:x --><!-- /results --> %", {"x": "12.3"})
        'error <!-- results:x -->12.3<!-- /results --> %'
    """

    def fill(match: re.Match[str]) -> str:
        opening = f"<!-- results:{match['name']} -->"
        if match["content"] is None:
            raise InputError(f"Expected `<!-- /results -->` after `{opening}`, but it is missing.")
        return f"{opening}{citations[match['name']]}<!-- /results -->"

    return _PLACEHOLDER.sub(fill, text)
