"""The results page, claims and cited numbers against the rows they are made of."""

import re
import statistics
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from driftproof.bench import Results
from driftproof.bench.archive import write_archive
from driftproof.bench.store import Store
from driftproof.errors import ConfigurationError, InputError
from driftproof.files import read_text
from driftproof.paper import suite
from driftproof.paper.claims import evaluate_claims
from driftproof.paper.printed import paper_table
from driftproof.paper.summary import Citations, load_archives, render_placeholders, render_results_page
from rows_on_disk import run_command, visits_of, write_rows

ROOT = Path(__file__).parents[1]
STATELESS = {"source": "Source()", "bn_adapt": "Batch()"}


def write_run(folder, spec, rounds, value, bf16_from=None, **more):
    """Write a run whose error is a function of the round, with noise per domain; return the means by round."""
    random, protocol = Random(spec.name), {"scope": "all"}
    if spec.method in STATELESS:
        protocol = {"scope": "nothing()", "statistics": STATELESS[spec.method]}
    rows = [
        {"round": round, "domain": domain, "error": value(round) + random.uniform(-0.4, 0.4), **more}
        for round, domain in visits_of(spec, rounds)
    ]
    where = {"seconds": 1.0, "hardware": "a card", "device": "cuda", "torch": "2.11", "engine": "graph"}
    late = [row["round"] >= (bf16_from or rounds + 1) for row in rows]
    conditions = [where | {"precision": "bf16" if is_late else "tf32"} for is_late in late]
    write_rows(folder, spec, rows, conditions, protocol)
    by_round = [[row["error"] for row in rows if row["round"] == number] for number in range(1, rounds + 1)]
    return [statistics.fmean(each) for each in by_round]


def error_of(spec):
    """Roughly as in the paper: methods without selection collapse among unknown images."""
    if spec.method in STATELESS or "+crowd" in spec.method:
        return lambda round: 15.0 + (9.0 if spec.method == "swr+crowd" and spec.unknown else 0.0)
    return lambda round: 14.0 + (1.5 if spec.unknown else 0.1) * round


def pick(name, **fields):
    return [s for s in suite(name).specs() if all(getattr(s, field) == value for field, value in fields.items())]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with an archive of table 1 on CIFAR-10-C after 50 rounds, and the means of its runs by round."""
    root, means = tmp_path_factory.mktemp("results"), {}
    names = [f"{name}/{kind}/" for name in ("msp", "max_logit", "energy") for kind in ("including", "excluding")]
    scores = {f"{name}auroc": 60.0 for name in names} | {f"{name}fpr": 40.0 for name in names}
    names = [f"confidence_difference/{kind}/" for kind in ("including", "excluding")]
    scores |= {f"{name}auroc": 80.0 for name in names} | {f"{name}fpr": 50.0 for name in names}
    for spec in pick("table1", images="cifar10-c"):
        more = scores if "scores" in spec.measures and spec.unknown else {}
        means[spec] = write_run(root / "store", spec, 2 if spec.method in STATELESS else 50, error_of(spec), **more)
    Store(root / "store").update_metadata({"limit": None, "replaced": {}, "prepared on test images": ["cifar10-c"]})
    write_archive([root / "store"], root / "results" / "cifar")
    return root / "results", means


def claims_of(folder):
    return {claim.text.split(":")[0].split(",")[0]: claim for claim in evaluate_claims([Results(folder)])}


def test_page_shows_our_numbers_the_papers_and_the_difference(finished):
    folder, means = finished
    archives = load_archives(folder)
    text = render_results_page(folder, folder / "RESULTS.md", archives, Citations(archives, folder))
    names = {"tent": "TENT", "tent+crowd": "TENT + Ours", "source": "Source", "bn_adapt": "BN Adapt"}
    places = (("Error after 50 rounds", "T1_rounds50", 50), ("Error after one round", "T2_round1", 1))
    for heading, paper, round in places:
        section = text.split(f"### {heading}\n")[1].split("\n#")[0]
        lines = {cells[1].strip(): cells for line in section.splitlines() if (cells := line.split("|"))[1:]}
        for spec, by_round in means.items():
            if spec.method in names:
                ours = by_round[min(round, len(by_round)) - 1]
                theirs = paper_table(paper).rows[names[spec.method]][f"CIFAR-10-C/{spec.setting.title()}"]
                cells = lines[spec.method][5:8] if spec.unknown else lines[spec.method][2:5]
                shown = [float(cell.strip().strip("*").replace("−", "-")) for cell in cells]
                assert shown == pytest.approx([ours, theirs, ours - theirs], abs=0.0051)
        assert "\n\nMethods that prepare on source images of cifar10-c used its clean test images." in section
        assert "Settings without numbers here: CIFAR-100-C/Closed, " in section
    assert "`table1`: Table 1, error %, lower is better, round 50." in text
    assert "a card (cuda)" in text
    assert "[The paper's claims](#the-papers-claims)" in text


def test_archives_are_ordered_and_subsets_add_only_new_tables(tmp_path):
    for name, specs in {
        "choices": [spec for spec in suite("open_choices").specs() if spec.method == "bn_adapt"],
        "few": [replace(spec, limit=40) for spec in pick("s3", model="wrn40_2", task="stream")],
        "whole": pick("table1", images="cifar10-c", unknown=None) + pick("table1", images="cifar100-c", unknown=None),
    }.items():
        for spec in specs:
            write_run(tmp_path / name, spec, 1, lambda round: 15.0)
        Store(tmp_path / name).update_metadata({"limit": specs[0].limit, "replaced": {}})
        write_archive([tmp_path / name], tmp_path / "results" / name)
    (tmp_path / "results" / "notes").mkdir()
    quoted = "".join(f"<!-- results:{n} --><!-- /results -->" for n in ("table2/tent/CIFAR-10-C/Closed", "speed/gpu"))
    for path, content in {"notes/a.md": f"## A\n\n{quoted}", "speed/gpu.md": "| a card |", "figures/x.svg": ""}.items():
        (tmp_path / "results" / path).parent.mkdir(exist_ok=True)
        (tmp_path / "results" / path).write_text(content)
    (tmp_path / "results" / "figures" / "x.json").write_text('{"title": "Here", "caption": "A curve."}')
    assert run_command("bench", "summarize", tmp_path / "results", "--out", tmp_path / "R.md") == 0
    text = (tmp_path / "R.md").read_text()
    sections = re.split(r"^## ", text, flags=re.MULTILINE)
    assert [section.split("\n")[0] for section in sections[1:4]] == ["whole", "few", "choices"]
    shown = [re.findall(r"^`(\w+)`: ", section, flags=re.MULTILINE) for section in sections[1:4]]
    assert {"table1", "table2"} <= set(shown[0])
    assert shown[1] == ["s3a"], "CoTTA was measured on a few images alone"
    assert all(name.startswith("choice_") for name in shown[2])
    assert "![x](results/figures/x.svg)\n\nHere. A curve." in text
    assert re.search(r"## A\n\n<!-- results:[^>]*-->1\d\.\d<!-- /results -->.*\n\n\| a card \|", text)
    (tmp_path / "results" / "figures" / "x.json").write_text("[1]")
    archives = load_archives(tmp_path / "results")
    with pytest.raises(InputError, match=r"x\.json to be a JSON object"):
        render_results_page(tmp_path / "results", tmp_path / "R.md", archives, {"claims": ""})
    with pytest.raises(InputError, match="archives in subfolders"):
        load_archives(tmp_path / "results" / "notes")


def test_cited_numbers_name_their_round_and_images(finished, tmp_path):
    folder, means = finished
    citations = Citations(load_archives(folder), folder)
    (tent,) = (by_round for spec, by_round in means.items() if (spec.method, spec.unknown) == ("tent", "svhn-c"))
    assert citations["table1/tent/CIFAR-10-C/Open"] == f"{tent[49]:.1f}"
    assert citations["table1/tent/CIFAR-10-C/Open@7"] == f"{tent[6]:.1f}"
    assert citations["table5a/energy/CIFAR-10/SVHN-C FPR@TPR95"] == "40.0"
    with pytest.raises(ConfigurationError, match="table1/tent/CIFAR-10-C/Open"):
        render_placeholders("<!-- results:table1/tent/CIFAR-10-C/Open@51 --><!-- /results -->", citations)
    with pytest.raises(InputError, match="`<!-- /results -->` after `<!-- results:claims -->`"):
        render_placeholders("<!-- results:claims --> <!-- results:verdicts --><!-- /results -->", citations)
    (spec,) = pick("table1", images="cifar10-c", method="tent", unknown=None)
    write_run(tmp_path, replace(spec, limit=40), 2, lambda round: 15.0)
    Store(tmp_path).update_metadata({"limit": 40, "replaced": {}})
    few = Citations([Results(tmp_path)], tmp_path)
    assert re.fullmatch(r"1[45]\.\d \(round 2, first 40 images\)", few["table1/tent/CIFAR-10-C/Closed"])
    assert few["table2"].endswith("Only the first 40 images of each domain.\n\n")


def test_pages_are_up_to_date():
    archives, home = load_archives(ROOT / "results"), ROOT / "results" / "RESULTS.md"
    citations = Citations(archives, ROOT / "results")
    assert read_text(home) == render_results_page(ROOT / "results", home, archives, citations), "`make results`"
    for page in ("results/RESULTS.md", "README.md", "docs/reproducing.md", "docs/speed.md", "docs/driving.md"):
        text = read_text(ROOT / page)
        assert "<!-- results:" in text
        assert text == render_placeholders(text, citations), f"`make results` fills in {page} anew"


def test_claims_compare_the_last_common_round_and_seeds(tmp_path):
    specs = {spec.method: spec for spec in pick("table1", images="cifar10-c", unknown=None)}
    for spec, rounds, error in (
        (specs["tent"], 60, 10), (replace(specs["tent"], seed=1), 60, 30), (specs["tent+crowd"], 60, 12),
        (specs["swr"], 1, 20), (specs["swr+crowd"], 3, 18),
    ):  # fmt: skip
        write_run(tmp_path, spec, rounds, lambda round, error=error: error)
    claim = claims_of(tmp_path)["Selection improves long-term adaptation"]
    assert claim.verdict == "so far, holds in 1 of 2 cases (rounds 1 to 50 of 50)"
    assert re.fullmatch(r"CIFAR-10-C: tent\+crowd 1[12]\.\d, tent (9|10)\.\d \(\+\d\.\d\) ✗", claim.cases[0].text)
    assert claim.cases[1].text.endswith(" (round 1 of 50)")
    assert claims_of(tmp_path)["Selection by softmax beats selection by logits"].verdict == "not measured"


def test_compare_prints_a_suite_next_to_the_paper(finished, capsys):
    folder = finished[0] / "cifar"
    for words, has_others in (((), True), (("table2",), False)):
        assert run_command("bench", "compare", folder, *words) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "Error after one round" in text
        assert ("50 rounds" in text) == has_others
        assert "in brackets the paper's number" in text
        assert "(27.80," in text, "TENT's after one open round"
