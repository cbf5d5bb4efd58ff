import re
from collections.abc import Callable
from dataclasses import fields as dataclass_fields
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from echo_queue.config import Config
from echo_queue.evaluation.results import EvaluationResult
from echo_queue.queue import Audit
from echo_queue.reporting import html, plots
from echo_queue.reporting.components import ComponentFigures
from echo_queue.reporting.metrics import UpdateMetrics, began_s, summarise
from echo_queue.reporting.plots import picture
from tests.evaluation.answered import given_up_at, result_at
from tests.synthetic import START_S, update

PICTURES = 20
"""Of them four are drawn only if there is something to show."""


def config(directory: Path) -> Config:
    return configured(directory)


def configured(directory: Path, **tables: object) -> Config:
    return Config.model_validate({"run": {"name": "t", "dir": str(directory)}} | tables)


def audited(*, submitted: int = 1_600, **fields: int) -> Audit:
    """Returns the audit of a run in which all 1,600 prompts were trained."""
    numbers = dict.fromkeys((field.name for field in dataclass_fields(Audit)), 0)
    return Audit(**numbers | {"submitted": submitted, "trained": 1_600} | fields)


class Page(HTMLParser):
    """Collects ids, references and whatever would be loaded from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name.endswith("href") and value and value.startswith("#"):
                self.references.append(value[1:])
            if name in ("src", "data") or (name.endswith("href") and value and not value.startswith("#")):
                self.loaded.append(f"{tag} {name}={value}")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a run of 40 updates whose identity was broken; to draw it takes a while."""
    directory = tmp_path_factory.mktemp("run")
    updates = [update(version, kl_reference=0.1) for version in range(1, 41)]
    (directory / "held_out.json").write_text(
        '{"figures": [{"model": "a/base", "score": 0.16}, {"model": "a/model", "score": 0.95}]}'
    )
    return html.write(config(directory), updates, audit=audited(submitted=1_601)).read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_report_needs_nothing_else_and_its_pictures_do_not_mix(report: str) -> None:
    page = Page(report)
    assert page.loaded == []
    assert len(page.ids) == len(set(page.ids))
    assert set(page.references) <= set(page.ids)
    assert report.count("<svg") == PICTURES


@pytest.mark.slow
def test_every_colour_of_a_picture_is_the_pages(report: str) -> None:
    pictures = "".join(re.findall(r"<svg.*?</svg>", report, flags=re.DOTALL))
    assert set(re.findall(r"#[0-9a-fA-F]{6}\b", pictures)) == set()


def test_a_report_shows_the_figures_of_the_run(report: str) -> None:
    for figure in ("0.16 → 0.95", "10,240", "12%", "0.75", "broken", "largest 1, bound 4"):
        assert f"{figure}" in report


def test_a_report_can_be_read_on_a_narrow_screen(report: str) -> None:
    (subtitle,) = re.findall(r"</h1><p>(.*?)</p>", report)
    assert "\u00a0· " in subtitle and " · " not in subtitle, "a line would begin with the dot"
    widths = [float(width) for width in re.findall(r'<svg [^>]*viewBox="0 0 ([\d.]+) ', report)]
    assert len(widths) == PICTURES
    shown, text = 390 - 2 * (12 + 10 + 1), picture.STYLE["font.size"]
    assert all(text * shown / width > 9.5 for width in widths), "CSS pixels of the text"


def test_a_report_names_the_model_and_shows_workers_answers_gradients_and_the_policy(report: str) -> None:
    assert "</h1><p>model init\u00a0· " in report
    workers = ("Workers", "Time of weights", "Weights read")
    policy = ("Entropy", "KL to the base model", "Off-policy")
    answers = ("Reward spread", "Answer length", "Answers cut off", "Equal rewards")
    for title in (*workers, *answers, "Loss", "Learning rate", "Gradient norm", *policy):
        assert f"<h2>{title}</h2>" in report


@pytest.mark.parametrize("updates", [[], [update(1)]], ids=["nothing trained", "one update"])
def test_a_tile_says_how_many_prompts_died_where_any_did(tmp_path: Path, updates: list[UpdateMetrics]) -> None:
    tile = html.Tile("1,200", "prompts died and are not in the model", "bad")
    shown = [
        list(html.tiles(config(tmp_path), summarise(updates), identity=True, dead=dead, scores={}))
        for dead in (1_200, 0, None)
    ]
    assert tile in shown[0]
    assert [found for found in shown[0] if found != tile] == shown[1] == shown[2]


def spans(monkeypatch: pytest.MonkeyPatch, draw: Callable[[], str]) -> tuple[float, float]:
    """Returns from where to where the y-axis of a picture goes."""
    found = list[tuple[float, float]]()
    svg = picture._svg

    def noted(figure: Figure) -> str:
        found.append(figure.axes[0].get_ylim())
        return svg(figure)

    monkeypatch.setattr(picture, "_svg", noted)
    draw()
    return found[0]


@pytest.mark.parametrize("by", ["time", "samples"])
def test_rewards_between_0_and_1_are_shown_on_the_whole_of_that_axis(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    updates = [update(version, reward_mean=0.01 * version) for version in (1, 2, 3)]
    assert spans(monkeypatch, lambda: plots.reward(updates, by=by)) == (0, 1)


@pytest.mark.parametrize("rewards", [(-0.09, -0.08, -0.07), (200.0, 230.0, 260.0), (-3.0, 0.5, 1.0)])
def test_an_axis_of_other_rewards_ends_where_they_do(
    monkeypatch: pytest.MonkeyPatch, rewards: tuple[float, ...]
) -> None:
    updates = [update(version, reward_mean=reward) for version, reward in enumerate(rewards, start=1)]
    low, high = spans(monkeypatch, lambda: plots.reward(updates, by="time"))
    room = 0.1 * (max(rewards) - min(rewards))
    assert min(rewards) - room <= low < min(rewards) and max(rewards) < high <= max(rewards) + room


@pytest.mark.parametrize(("parts", "end"), [([0.0, 0.0], 1.0), ([0.01, 0.02], 0.022)])
def test_a_share_that_was_always_0_does_not_look_like_one_that_grew(
    monkeypatch: pytest.MonkeyPatch, parts: list[float], end: float
) -> None:
    updates = [update(1), update(2)]
    assert spans(monkeypatch, lambda: plots.share(updates, parts)) == (0, pytest.approx(end))


def test_the_spread_of_rewards_is_that_of_each_updates_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = [update(1, reward_std=0.2), update(2, reward_std=40.0)]
    low, high = spans(monkeypatch, lambda: plots.reward_spread(updates))
    assert low == 0 and high == pytest.approx(1.1 * 40.0)


def test_the_labels_of_both_axes_at_the_origin_do_not_touch() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    boxes = list[Any]()

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1])
        axes.set(xlim=(0, 0.9), ylim=(0, 1))
        figure = axes.get_figure()
        assert isinstance(figure, Figure)
        FigureCanvasAgg(figure).draw()
        boxes.extend(one.get_ticklabels()[0].get_window_extent() for one in (axes.xaxis, axes.yaxis))

    picture.plot(draw)()
    assert not boxes[0].overlaps(boxes[1])


def test_the_last_place_of_every_group_is_that_after_the_last_commit() -> None:
    kept = {"backlog": 0, "tasks": 4, "retry": 0, "ready": 6, "replay": 16, "trained": 80, "dead": 0}
    updates = [update(5, depths=kept | {"tasks": 14, "replay": 6}), update(6, depths=kept)]
    assert {name: found.tolist() for name, found in plots.places(updates, None).items()} == {
        "trained": [80, 80], "in hand": [0, 10], "ready": [6, 6], "tasks": [14, 4],
    }  # fmt: skip
    last = {name: found[-1] for name, found in plots.places(updates, audited(trained=100)).items() if found[-1]}
    assert last == {"trained": 100}
    under_way = audited(trained=80, tasks=3, replay=17, ready=5)
    last = {name: found[-1] for name, found in plots.places(updates, under_way).items()}
    assert last == {"trained": 80, "in hand": 12, "ready": 5, "tasks": 3}
    assert plots.depths(updates, None).count("<svg") == plots.depths(updates, under_way).count("<svg") == 1


def test_a_flat_line_of_retry_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    still = [update(version) for version in (1, 2, 3)]
    assert len(lines_of(monkeypatch, lambda: plots.in_flight(still))) == 2
    again = update(4, depths=still[0].depths | {"retry": 3})
    assert len(lines_of(monkeypatch, lambda: plots.in_flight([*still, again]))) == 3


@pytest.mark.slow
def test_every_picture_over_time_marks_where_another_learner_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lineage 2 made no update that survived."""
    updates = [update(version, lineage=1 if version < 5 else 3 if version < 8 else 4) for version in range(1, 11)]
    assert plots.restarts_s(updates) == [began_s(updates[4]), began_s(updates[7])]
    drawn: list[Callable[[list[UpdateMetrics]], str]] = [
        partial(plots.reward, by="time"), plots.learner_time, partial(plots.depths, audit=None), plots.in_flight,
        plots.speed, plots.workers, plots.weights_s, plots.weights_read,
    ]  # fmt: skip
    for draw in drawn:
        assert sum(line == [0, 1] for line in lines_of(monkeypatch, partial(draw, updates))) == 2, draw
    assert plots.restarts_s(updates[:4]) == []


def test_what_an_ended_worker_read_was_read() -> None:
    assert plots.ever_read([5, 30, 10, 15]).tolist() == [5, 30, 30, 35]


def header(directory: Path, *updates: UpdateMetrics, **prompts: str) -> str:
    """Returns the line under the page's title, of a configuration with two workers."""
    rollout = {"rollout": {"workers": 2}, "prompts": prompts}
    return html.subtitle(configured(directory, **rollout), updates).replace("\u00a0", " ")


def test_the_header_names_the_workers_and_the_sets_that_took_part(tmp_path: Path) -> None:
    sets = [{"mine": 16}, {"mine": 1, "extra": 15}, {"extra": 1, "late": 15}]
    came = [update(version, workers=version, sets=found) for version, found in enumerate(sets, start=1)]
    shown = header(tmp_path, *came, set="mine", source="mine.jsonl")
    assert "mine.jsonl, set extra, set late · 1 to 3 rollout workers · " in shown
    assert "· set other · 3 rollout workers · " in header(tmp_path, update(1, workers=3, sets={"other": 16}))
    many = {f"s{place}": 2 for place in range(8)}
    assert "· set s0, set s1, set s2 and 5 more sets · " in header(tmp_path, update(1, workers=1, sets=many))


def test_the_header_of_an_older_log_names_the_sets_of_its_tasks_and_the_configured_workers(tmp_path: Path) -> None:
    assert "· prompts · 2 rollout workers configured · " in header(tmp_path, update(1, workers=None))
    shown = header(tmp_path, update(1, workers=None, trained_ids=("mine/0/1", "a/b/0/2")))
    assert "· set mine, set a/b · 2 rollout workers configured · " in shown


def test_a_run_without_an_update_has_a_report(tmp_path: Path) -> None:
    assert "No update was trained" in html.write(config(tmp_path), []).read_text(encoding="utf-8")


def test_the_time_of_a_learner_that_was_down_is_nobodys(tmp_path: Path) -> None:
    from echo_queue.reporting.plots import busy_shares  # here: matplotlib takes a second, in every process of a session

    before = update(1, time_s=START_S + 10, wait_s=2.0, train_s=6.0, save_s=2.0)
    after = update(2, time_s=START_S + 30, wait_s=0.0, train_s=10.0, save_s=0.0)
    edges, shares = busy_shares([before, after], most=3)
    assert np.allclose(edges - START_S, [0, 10, 20, 30])
    assert np.allclose(shares["waiting"], [0.2, 0, 0])
    assert np.allclose(shares["training"], [0.6, 0, 1])
    assert np.allclose(shares["saving"], [0.2, 0, 0])


@pytest.mark.slow
def test_one_update_is_enough_for_every_picture(tmp_path: Path) -> None:
    page = html.build(config(tmp_path), [update(1, workers=None, t_bcast_s=0.0, store_bytes=0)], scores={})
    assert page.count("<svg") == PICTURES - 4
    assert not re.findall(r"<h2>(Workers|Time of weights|Weights read|KL to the base model)</h2>", page)


def test_held_out_scores_are_shown_where_they_were_measured(report: str) -> None:
    assert "0.16 → 0.95" in report


@pytest.mark.slow
def test_a_picture_of_a_long_run_is_no_larger_than_one_of_a_short_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "MOST_POINTS", 20)
    updates = [update(version) for version in range(1, 401)]
    short, long = (len(plots.reward(some, by="samples")) for some in (updates[:20], updates))
    assert long < 1.2 * short
    drawn = [
        plots.depths(updates, audited()),
        plots.in_flight(updates),
        plots.speed(updates),
        plots.off_policy(updates),
        plots.loss(updates),
    ]
    assert all("<svg" in one for one in drawn)


def test_the_newest_answers_are_shown_as_text_and_equal_ones_once(tmp_path: Path) -> None:
    samples = [(1.0, "<b>4</b>"), (1.0, "<b>4</b>"), (-0.5, "5")]
    answers = html.Answers("p/0/7: trained, in the update that made 1.3", "2 + 2 = <x>", samples)
    page = html.build(config(tmp_path), [], scores={}, answers=answers)
    assert "<h2>Newest answers</h2><p>p/0/7: trained" in page and "<pre>2 + 2 = &lt;x&gt;</pre>" in page
    assert re.findall(r"<tr><td>([-+][\d.]+)</td><td>(.*?)</td><td><pre>(.*?)</pre>", page) == [
        ("+1", "2 ×", "&lt;b&gt;4&lt;/b&gt;"),
        ("-0.5", "", "5"),
    ]
    assert "Newest answers" not in html.build(config(tmp_path), [], scores={})


def test_the_configuration_is_written_as_in_its_file(tmp_path: Path) -> None:
    page = html.build(config(tmp_path), [], scores={})
    assert "<td>pace</td><td>true</td>" in page and "<td>ca_file</td><td>–</td>" in page
    assert "None" not in page and "True" not in page


def lines_of(monkeypatch: pytest.MonkeyPatch, draw: Callable[[], str]) -> list[list[float]]:
    """Returns the heights of each line of a picture."""
    found = list[list[float]]()
    svg = picture._svg

    def noted(figure: Figure) -> str:
        found.extend(np.asarray(line.get_ydata(), dtype=float).tolist() for line in figure.axes[0].lines)
        return svg(figure)

    with monkeypatch.context() as patched:
        patched.setattr(picture, "_svg", noted)
        draw()
    return found


PAUSED = [update(version, time_s=START_S + version + 500 * (version > 5)) for version in range(1, 11)]
"""No learner ran for 500 s after the fifth update."""


@pytest.mark.parametrize(
    "draw", [plots.in_flight, plots.speed, plots.workers, plots.weights_s, partial(plots.reward, by="time")]
)
def test_no_line_crosses_a_time_without_a_learner(
    monkeypatch: pytest.MonkeyPatch, draw: Callable[[list[UpdateMetrics]], str]
) -> None:
    lines = [line for line in lines_of(monkeypatch, lambda: draw(PAUSED)) if len(line) > len(PAUSED)]
    assert lines and all(np.flatnonzero(np.isnan(line)).tolist() == [5] for line in lines)
    assert not any(np.isnan(line).any() for line in lines_of(monkeypatch, lambda: draw(PAUSED[:5])))


def test_a_running_mean_begins_and_ends_near_the_first_and_last_values() -> None:
    """The mean of the first 40 updates would hide that 800 updates rise within these."""
    values = np.concatenate([np.linspace(0.2, 1.0, 40), np.ones(760)])
    means = picture.running_mean(values, 40)
    assert means[0] == pytest.approx(values[:11].mean()) and means[-1] == 1.0
    assert means[100] == pytest.approx(values[60:141].mean())


def test_an_update_that_took_no_time_makes_no_speed_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = [update(version, train_s=0.0 if version == 30 else 1.0) for version in range(1, 61)]
    whole = sum(one.tokens for one in updates) / sum(one.train_s for one in updates)
    assert max(lines_of(monkeypatch, lambda: plots.speed(updates))[0]) < 2 * whole


@pytest.mark.slow
def test_evaluations_are_on_the_page_with_their_intervals(tmp_path: Path) -> None:
    evaluated = [result_at(0), result_at(20), given_up_at(30, "no worker"), result_at(40), result_at(0, name="<other>")]
    updates = [update(version) for version in range(1, 41)]
    page = html.write(config(tmp_path), updates, evaluations=evaluated).read_text(encoding="utf-8")
    assert "Evaluation held-out" in page and "Mean reward of 200 prompts" in page and "Cross: given up." in page
    assert "0.20 → 0.60" in page and "held-out, first and last of 3; best 0.60" in page
    assert "&lt;other&gt;, evaluated once" in page and "<other>" not in page
    only = html.write(config(tmp_path), [], evaluations=evaluated[:1]).read_text(encoding="utf-8")
    assert "Evaluation held-out" in only and "No update" not in only


def test_an_abandoned_result_is_in_no_curve(tmp_path: Path) -> None:
    evaluated = [result_at(0), result_at(40), result_at(30, lineage=2)]
    page = html.build(config(tmp_path), [update(1)], scores={}, evaluations=evaluated)
    assert "0.20 → 0.50" in page and "first and last of 2" in page


def drawn(curve: list[EvaluationResult]) -> Axes:
    axes = Figure().subplots()
    plots.held_out.__wrapped__(axes, curve)  # type: ignore[attr-defined]
    return axes


def test_a_held_out_curve_has_a_band_a_ring_and_crosses() -> None:
    axes = drawn([result_at(0), result_at(20), given_up_at(30, "no worker")])
    band = axes.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((0.14, 0.46))
    ring, crosses = axes.lines[-2:]
    assert [*ring.get_xdata(), *crosses.get_xdata()] == [20, 30]
    assert axes.get_ylim() == (0, 1)
    assert drawn([result_at(0, mean=-1.0, low=-2.0, high=0.0)]).get_ylim()[0] < -2
    assert drawn([result_at(0, low=None, high=None)]).get_ylim() == (0, 1), "one prompt has no interval"
    assert drawn([given_up_at(0, "no worker")]).get_ylim() == (0, 1)


def figures(groups: int, reward: float, **rewards: float) -> ComponentFigures:
    return ComponentFigures(groups, 16 * groups, 160 * groups, reward, 10.0, 0.25, groups // 2, rewards)


MIXED = [
    update(
        version,
        components={"math": figures(12, version / 40)}
        | ({"<words>": figures(4, 0.5, right=0.7, short=-0.2)} if version % 2 else {}),
    )
    for version in range(1, 41)
]


@pytest.mark.slow
def test_the_components_of_a_mixture_have_a_table_and_pictures_and_their_names_are_a_legend(tmp_path: Path) -> None:
    mixture = [{"name": "math", "weight": 6}, {"name": "later", "weight": 2}]
    page = html.build(configured(tmp_path, mixture=mixture), MIXED, scores={})
    table = page[page.index("<h2>Mixture</h2>") : page.index('<div class="plots">')]
    rows = [re.findall("<td>(.*?)</td>", row) for row in re.findall("<tr>(.*?)</tr>", table)]
    assert rows[1:] == [
        ["math", "0.07 → 0.95", "85.7%", "75.0%", "480", "50%", "10.0", "25%"],
        ["&lt;words&gt;", "0.50 → 0.50", "14.3%", "–", "80", "50%", "10.0", "25%"],
    ]
    assert "mixture of math 75%, later 25%" in page
    for title in ("Reward by component", "Share by component", "Answer length by component"):
        card = page[page.index(f"<h2>{title}</h2>") :]
        assert re.findall("</svg>([^<]+)</span>", card[: card.index("</section>")]) == ["math", "&lt;words&gt;"]
    assert page.count("<h2>Reward functions of") == 1 and "<h2>Reward functions of &lt;words&gt;</h2>" in page
    assert "Reward functions</h2>" not in page, "of all components together they mean nothing"
    without = html.build(config(tmp_path), [update(1)], scores={})
    assert "Mixture" not in without and "by component" not in without


def test_a_share_is_that_of_the_updates_around_and_dotted_that_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {"math": 6.0, "later": 2.0}
    math, weighed, words = lines_of(monkeypatch, lambda: plots.component_shares(MIXED, weights))
    assert len(math) == len(words) == 40 and math[20] == pytest.approx(12 * 21 / (12 * 21 + 4 * 11))
    assert weighed == [0.75, 0.75], "a component that the configuration does not have has no share by weights"
    assert [one + other for one, other in zip(math, words, strict=True)] == pytest.approx([1.0] * 40)


def test_lines_of_a_component_have_the_updates_that_trained_some_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for draw in (plots.component_rewards, plots.component_lengths):
        assert list(map(len, lines_of(monkeypatch, partial(draw, MIXED)))) == [40, 20]
    assert list(map(len, lines_of(monkeypatch, lambda: plots.rewards(MIXED, "<words>")))) == [20, 20]
    assert len({plots.key(number) for number in range(16)}) == 16, "each component has a line of its own look"


def test_the_header_names_a_few_components_of_many(tmp_path: Path) -> None:
    many = [{"name": f"c{place}"} for place in range(5)]
    assert "· mixture of c0 20%, c1 20%, c2 20% and 2 more" in html.subtitle(
        configured(tmp_path, mixture=many), [update(1)]
    ).replace("\u00a0", " ")


def test_each_evaluation_has_its_settings_and_none_has_none(tmp_path: Path) -> None:
    several = [{"name": "a", "source": "a.jsonl", "environment": {}}, {"name": "b", "source": "b.jsonl"}]
    page = html.build(configured(tmp_path, evaluation=several), [], scores={})
    assert page.count("<h3>[[evaluation]]</h3>") == 2 and "<h3>[evaluation.environment]</h3>" in page
    page = html.build(config(tmp_path), [], scores={})
    assert "evaluation]" not in page and "<h3>[]</h3>" not in page
