"""The poisoning benchmark in miniature: a small network on images that look like CIFAR-10's files."""

import json
from pathlib import Path

import pytest
import torch

from test_safety_benchmarks import folder, load, run_script  # noqa: F401  # fixtures

ROOT = Path(__file__).parents[1]
OPTIONS = ("--size", 20, "--batches", 1, "--after", 1, "--shares", 0.1, "--methods", "tent")


@pytest.fixture
def attacker(load):  # noqa: F811
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(32, 10),
    )  # fmt: skip
    labels = torch.arange(60) % 10
    return load("poisoning_attacks").Attacker(model.eval(), torch.rand(60, 3, 8, 8), labels, size=30)


def test_every_attack_makes_images_and_leaves_the_network_alone(load, attacker):  # noqa: F811
    attacks = load("poisoning_attacks")
    before = {name: value.clone() for name, value in attacker.model.state_dict().items()}
    for name, attack in attacks.ATTACKS.items():
        made = attack.craft(attacker, 6, 1)
        assert made.shape == (6, 3, 8, 8), name
        assert 0 <= made.min() <= made.max() <= 1, name
        assert torch.equal(made, attack.craft(attacker, 6, 1)), name
        assert not made.requires_grad, name
    assert all(torch.equal(value, before[name]) for name, value in attacker.model.state_dict().items())
    assert all(parameter.grad is None for parameter in attacker.model.parameters())


def test_attacks_reach_their_goals_on_the_network_they_were_made_for(load, attacker):  # noqa: F811
    attacks = load("poisoning_attacks")
    model, (others, labels) = attacker.surrogate(), attacker.draw(24, 2)
    plain, _ = attacker.draw(6, 1)

    def loss_of_others(made):
        return attacks.goal(model(torch.cat([made, others]))[6:], labels, targeted=False)

    assert loss_of_others(attacks.statistics(attacker, 6, 1)) > loss_of_others(plain)
    victims, _ = attacker.draw(6, 1, attacks.VICTIM)
    sure, honest = (
        model(torch.cat([made, others]))[:6].softmax(dim=1)[:, attacks.TARGET].mean()
        for made in (attacks.sure_and_wrong(attacker, 6, 1, targeted=True), victims)
    )
    assert sure > honest
    unsure, usual = (
        attacks.entropy(model(torch.cat([made, others]))[:6]).mean() for made in (attacks.unsure(attacker, 6, 1), plain)
    )
    assert unsure > usual


def test_gradient_attack_points_a_step_of_tent_at_the_loss_of_others(load, attacker):  # noqa: F811
    attacks = load("poisoning_attacks")
    others, labels = attacker.draw(24, 2)

    def loss_after_a_step(made):
        model = attacker.surrogate()
        affine = [model[1].weight.requires_grad_(), model[1].bias.requires_grad_()]
        slopes = torch.autograd.grad(attacks.entropy(model(torch.cat([made, others]))[:6]).mean(), affine)
        with torch.no_grad():
            for parameter, slope in zip(affine, slopes, strict=True):
                parameter.sub_(0.01 * slope)
            return attacks.goal(model(others), labels, targeted=False)

    assert loss_after_a_step(attacks.gradient(attacker, 6, 1)) > loss_after_a_step(attacker.draw(6, 1)[0])


def test_attackers_rows_are_the_share_asked_for_and_never_judged(load):  # noqa: F811
    attacks, runs = load("poisoning_attacks"), load("poisoning_runs")
    bench = runs.Bench(torch.nn.Identity(), [], size=20, batches=1, after=1)
    for name, share in (("noise", 0.1), ("noise", 0.4), ("noise, whole batches", 0.1)):
        rows = runs.poisoned_rows(attacks.ATTACKS[name], bench, share, batches=20)
        assert rows.float().mean() == pytest.approx(share)
    assert rows.all(dim=1).sum() == 2, "whole batches"


def test_runs_are_kept_and_not_repeated_and_the_page_shows_them(load, monkeypatch, folder, tmp_path, capsys):  # noqa: F811
    script = load("poisoning")
    monkeypatch.setattr(script, "HELD_OUT", ("gaussian_blur",))
    options = (*OPTIONS, "--attacks", "noise", "one class")
    assert run_script(monkeypatch, script, folder, tmp_path, *options) == 0
    kept = (tmp_path / "runs-0.jsonl").read_text()
    lines = [json.loads(line) for line in kept.splitlines()]
    assert {line["arm"] for line in lines} == {"no guards", "guards"}
    assert {line["attack"] for line in lines} == {
        "noise", "one class", "noise, whole batches", "one class, whole batches",
    }  # fmt: skip
    assert all(0 <= line["attacked after"] <= 100 for line in lines)
    page = capsys.readouterr().out
    assert "## 10% of the stream" in page
    assert "| noise, whole batches |" in page
    assert run_script(monkeypatch, script, folder, tmp_path, *options) == 0
    assert (tmp_path / "runs-0.jsonl").read_text() == kept


def test_page_is_filled_from_the_runs(load, monkeypatch, folder, tmp_path, capsys):  # noqa: F811
    script, page = load("poisoning"), tmp_path / "page.md"
    monkeypatch.setattr(script, "HELD_OUT", ("gaussian_blur",))
    run_script(monkeypatch, script, folder, tmp_path, *OPTIONS, "--attacks", "noise")
    page.write_text("before\n<!-- poisoning: start -->\nold\n<!-- poisoning: end -->\nafter\n")
    run_script(monkeypatch, script, folder, tmp_path, "--fill", page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("<!-- poisoning: end -->\nafter\n")
    assert "old" not in text
    assert "`tent` stays within 3 points of the unattacked run after" in text
    filled = text
    run_script(monkeypatch, script, folder, tmp_path, "--fill", page)
    assert page.read_text() == filled


def test_security_page_shows_what_was_measured(load):  # noqa: F811
    results, page = ROOT / "results" / "poisoning", (ROOT / "docs" / "security.md").read_text()
    shown = page.partition("<!-- poisoning: start -->")[2].partition("<!-- poisoning: end -->")[0].strip()
    found = json.loads((results / "poisoning.json").read_text())
    assert shown == load("poisoning_page").format_summary(found["runs"], found["protocol"]).strip()


def test_page_names_the_share_from_which_an_attack_works(load):  # noqa: F811
    page = load("poisoning_page")
    line = {"attack": "noise", "method": "tent", "arm": "guards", "actions": {}, "source after": 40.0}
    kinds = {f"{who} {what}{when}": 50.0 for who in ("attacked", "unattacked") for what in ("", "taken ")
             for when in ("during", "after")}  # fmt: skip
    lines = [line | kinds | {"share": share, "attacked after": 50.0 - 20 * share} for share in (0.05, 0.1, 0.2, 0.4)]
    text = page.format_page(lines, {"images": "some"})
    after, during = text.split("## Smallest share")[1:]
    assert "| noise | 20% |" in after
    assert "| noise | > 40% |" in during
