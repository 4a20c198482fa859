"""make_figures.py on hand-written score files; drawn values are read back from the figure."""

import itertools
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import matplotlib
import pytest
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import to_rgb
from matplotlib.transforms import Bbox
from test_make_table import score_file, scored  # noqa: F401

from utils import make_figures
from utils.base.errors import UserError
from utils.benchmarks.lampqa.task import TASK
from utils.make_figures import main, training_figure
from utils.show.figure_style import DARK, HATCHES, KINDS, LIGHT, MARKERS, shades
from utils.show.paper_figures import Evaluator, best_of_n_figure, trade_off_figure
from utils.tables.best_of_n import Curve
from utils.tables.columns import columns_of
from utils.tables.score_table import Row

ROOT = Path(__file__).resolve().parents[2]
GROUPS = columns_of(TASK)
ARTS, LIFESTYLE, SOCIETY, MACRO = GROUPS


@pytest.fixture(autouse=True)
def no_warnings():
    """Make warnings errors, such as a layout that does not fit or a missing glyph."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Run the script without writing figure.png and figure.pdf, and return the figure."""

    def run(*arguments):
        figures = []

        def render(figure, kind):
            figures.append(figure)
            return b""

        with monkeypatch.context() as patch:
            patch.setattr(make_figures, "render_figure", render)
            assert main([*map(str, arguments), "--output_addr", str(tmp_path / "figure")]) == 0
        return figures[0]

    return run


def evaluator(name, accuracy, mean_score, interval=None, strategy="aspect"):
    return Evaluator(name, strategy, accuracy, interval, mean_score)


def row(name, *means):
    return Row(name, dict(zip(GROUPS, means, strict=True)), {})


PAPER = [evaluator("0.5B", 0.48, 0.94), evaluator("3B", 0.6, 0.7), evaluator("7B", 0.66, 0.5)]
PAPER += [evaluator("32B", 0.73, 0.44, (0.64, 0.81))]


def panels_of(figure):
    return {panel.get_title().replace("\n", " "): panel for panel in figure.axes if panel.get_visible()}


def line_of(panel):
    [line] = [line for line in panel.get_lines() if line.get_marker() == "o"]
    return dict(zip(*map(list, line.get_data()), strict=True))


def intervals_of(panel):
    """Return both ends of each vertical bar, by position."""
    segments = itertools.chain(*(collection.get_segments() for collection in panel.collections))
    return {float(x): (pytest.approx(low), pytest.approx(high)) for (x, low), (_, high) in segments}


@pytest.mark.parametrize("number", ["2", "16"])
def test_the_score_by_the_number_of_posts(number, drawn, score_file):
    # One file per category, pooled; the systems are not in the order of k.
    ten = [score_file("10a.json", *scored("rpg", 0.0, 1.0)),
           score_file("10b.json", *scored("diy", 0.75, 0.75), *scored("law", 1.0, 1.0))]  # fmt: skip
    zero = score_file("0.json", *scored("rpg", 0.25, 0.25), *scored("diy", 0.5, 0.75), *scored("law", 0.5, 0.5))
    figure = drawn("--figure", number, "--system", 10, *ten, "--system", " 0\n", zero)
    panels = panels_of(figure)
    assert list(panels) == list(GROUPS)
    assert list(line_of(panels[ARTS]).items()) == [(0, 0.25), (10, 0.5)]  # in this order
    assert line_of(panels[LIFESTYLE]) == {0: 0.625, 10: 0.75}
    assert line_of(panels[SOCIETY]) == {0: 0.5, 10: 1.0}
    # (0.25 + 0.625 + 0.5) / 3 = 1.375 / 3 and (0.5 + 0.75 + 1) / 3
    assert line_of(panels[MACRO]) == {0: pytest.approx(1.375 / 3), 10: pytest.approx(0.75)}
    # Two questions with 0 and 1: a quarter of the resamples are 0, a quarter 1. Equal scores have no width.
    assert intervals_of(panels[ARTS]) == {0: (0.25, 0.25), 10: (0, 1)}
    # The average resamples within each category: (0 + 0.75 + 1) / 3 to (1 + 0.75 + 1) / 3, and with 0.5 and 0.75
    # in one category (0.25 + 0.5 + 0.5) / 3 to (0.25 + 0.75 + 0.5) / 3.
    assert intervals_of(panels[MACRO]) == {0: (1.25 / 3, 0.5), 10: (1.75 / 3, 2.75 / 3)}


def bars_of(figure):
    """Return heights and labels of the bars, by legend entry."""
    [panel] = figure.axes
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    heights = [[bar.get_height() for bar in bars] for bars in panel.containers]
    texts = [text.get_text() for text in panel.texts]
    size = len(heights[0])
    return {name: (heights[i], texts[size * i : size * (i + 1)]) for i, name in enumerate(names)}


def labels_of(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_gold_plans(drawn, score_file):
    trained = score_file("trained.json", *scored("rpg", 0.25, 0.5), *scored("diy", 0.5), *scored("law", 0.75))
    gold = score_file("gold.json", *scored("rpg", 0.75, 0.75), *scored("diy", 1.0), *scored("law", 0.75))
    figure = drawn("--figure", "3", "--system", "PlanPers", trained, "--system", "PlanPers, gold plans", gold)
    # Averages (0.375 + 0.5 + 0.75) / 3 = 1.625 / 3 and (0.75 + 1 + 0.75) / 3 = 2.5 / 3, which is 154% of it.
    assert bars_of(figure) == {
        "PlanPers": ([0.375, 0.5, 0.75, pytest.approx(1.625 / 3)], [".375", ".500", ".750", ".542"]),
        "PlanPers, gold plans": ([0.75, 1.0, 0.75, pytest.approx(2.5 / 3)], [".750", "1.000", ".750", ".833"]),
    }
    sees = {"prompt": {}, "saw": {"when": "test", "fields": ["rubric_aspects"]}}
    gold = score_file("gold.json", *scored("rpg", 0.75, 0.75), answers=sees)
    bound = drawn("--figure", "3", "--system", "PlanPers", trained, "--system", "Gold", gold, "--allow_partial")
    assert list(bars_of(bound)) == ["PlanPers", "Gold (upper bound, sees\nrubric_aspects)"]
    labels = [label.replace("\n", " ") for label in labels_of(figure.axes[0].xaxis)]
    assert labels == [f"200% {ARTS}", f"200% {LIFESTYLE}", f"100% {SOCIETY}", f"154% {MACRO}"]
    assert figure._supxlabel.get_text() == "%: PlanPers, gold plans, relative to PlanPers"
    assert figure.axes[0].get_ylabel() == "score (0 to 1)"
    assert figure.axes[0].get_ylim() == (0, pytest.approx(1.15))


def test_the_trade_off_of_the_papers_end_points():
    figure = trade_off_figure(PAPER)
    [panel] = figure.axes
    accuracy, score = (list(line.get_ydata()) for line in panel.get_lines()[:2])
    assert (accuracy, score) == ([0.48, 0.6, 0.66, 0.73], [0.94, 0.7, 0.5, 0.44])
    assert labels_of(panel.xaxis) == ["0.5B", "3B", "7B", "32B"]
    assert [text.get_text() for text in panel.texts] == ["48%", "60%", "66%", "73%", ".94", ".70", ".50", ".44"]
    assert intervals_of(panel) == {2.96: (0.64, 0.81)}
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["agreement with humans", "mean score"]
    assert figure.get_supxlabel() == "bars: 95% intervals"
    assert panel.get_ylim() == (0, 1)
    assert panel.get_ylabel() == "agreement, score (0 to 1)"


def test_an_unfinished_training_is_drawn(tmp_path):
    """With an incomplete last line, and values that no axis can show."""
    entries = [{"step": 2, "loss": 2.5}, {"step": 1, "loss": 3.0}, {"step": 3, "loss": float("nan")}]
    entries += [{"step": 2, "eval_loss": 2.75, "eval_aspect_recall": 0.25}, {"step": 4, "loss": 1e300}]
    (tmp_path / "training_log.jsonl").write_text("\n".join(map(json.dumps, entries)) + '\n{"step": 5, "lo')
    figure = training_figure(str(tmp_path))
    drawn = [[line.get_xydata().tolist() for line in panel.lines] for panel in figure.axes]
    assert drawn == [[[[1, 3.0], [2, 2.5]], [[2, 2.75]]], [[[2, 0.25]]]]


PANELS = {  # by objective, the axis of its loss and those of other figures
    "distill": {"loss": "KL divergence per sampled token (nats)"},
    "dpo": {"loss": "DPO loss per pair (nats)", "rewards/margins": "reward margin, best over worst"},
    "grpo": {"loss": "GRPO loss of a step (sum / mean tokens per step)"},
}


@pytest.mark.parametrize("objective", PANELS)
def test_each_training_has_its_own_loss_and_rewards(objective, tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps({"settings": {"objective": objective}}))
    (tmp_path / "training_log.jsonl").write_text(json.dumps({"step": 1, **dict.fromkeys(PANELS[objective], 0.5)}))
    panels = training_figure(str(tmp_path)).axes
    assert [panel.get_ylabel().replace("\n", " ") for panel in panels] == list(PANELS[objective].values())
    assert all([line.get_ydata().tolist() for line in panel.lines] == [[0.5]] for panel in panels)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_single_step_has_a_marker(steps, tmp_path):
    """A line through one point would show nothing."""
    fields = ["loss", "eval_loss", "rewards/margins", "rewards/accuracies"]
    entries = [{"step": step, **dict.fromkeys(fields, 0.5)} for step in range(1, steps + 1)]
    (tmp_path / "training_log.jsonl").write_text("\n".join(map(json.dumps, entries)))
    panels = training_figure(str(tmp_path)).axes
    lines = [line for panel in panels for line in panel.lines]
    assert all(tick == int(tick) for tick in panels[-1].get_xticks())
    assert [line.get_marker() != "None" for line in lines] == [steps == 1, True, steps == 1, steps == 1]


def test_a_damaged_line_of_a_training_is_named(tmp_path):
    (tmp_path / "training_log.jsonl").write_text('{"step": 1, "loss": ' + "[" * 100_000 + '\n{"step": 2, "loss": 1}\n')
    with pytest.raises(UserError, match="line 1 is damaged; delete that line"):
        training_figure(str(tmp_path))


def test_the_files_are_the_same_on_every_account(score_file, tmp_path, capsys):
    files = [score_file(name, *scored("rpg", 0.25), *scored("diy", 0.5)) for name in ("trained.json", "gold.json")]
    words = ["--figure", "3", "--system", "PlanPers", files[0], "--system", "$gold_plans$", files[1], "--output_addr"]
    out = tmp_path / "new" / "figure.v3"
    assert main([*words, str(out)]) == 0
    assert capsys.readouterr().out == f"figure 3: {out}.png, {out}.pdf\n"
    main([*words, f"{out}.svg"])
    files = [Path(f"{out}.{kind}").read_bytes() for kind in KINDS]
    png, pdf, svg = files
    assert (png[:8], pdf[:5], pdf.rstrip()[-5:]) == (b"\x89PNG\r\n\x1a\n", b"%PDF-", b"%%EOF")
    assert (int.from_bytes(png[16:20]), b"pHYs" + (11811).to_bytes(4) * 2 in png) == (909, True)  # 7.7 cm at 300 dpi
    assert float(re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", pdf)[1]) == pytest.approx(7.7 / 2.54 * 72)
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf  # a TrueType font: the text can be searched
    assert b">$gold_plans$</text>" in svg and b"font-size: 7px; font-family: 'DejaVu Sans', 'Verdana'" in svg
    assert b"Date" not in pdf and b"<dc:date>" not in svg
    own = {"font.size": 30, "text.usetex": True, "savefig.bbox": "tight", "pdf.fonttype": 3, "svg.fonttype": "path"}
    with matplotlib.rc_context(own):  # of a matplotlibrc
        for kind in KINDS:
            main([*words, f"{tmp_path}/other.{kind}"])
    assert [(tmp_path / f"other.{kind}").read_bytes() for kind in KINDS] == files
    for backend in ("module://matplotlib_inline.backend_inline", "TkAgg", "nonsense"):  # of a notebook, say
        command = [sys.executable, "utils/make_figures.py", *words, f"{tmp_path}/own"]
        subprocess.run(command, cwd=ROOT, env={**os.environ, "MPLBACKEND": backend}, check=True)
        assert [(tmp_path / f"own.{kind}").read_bytes() for kind in ("png", "pdf")] == [png, pdf]


def test_the_name_says_which_file_is_written(score_file, tmp_path):
    files = [score_file(name, *scored("rpg", 0.25), *scored("diy", 0.5)) for name in ("trained.json", "gold.json")]
    words = ["--figure", "3", "--system", "PlanPers", files[0], "--system", "Gold", files[1], "--output_addr"]
    for name, kinds in (("a.PDF", ["PDF"]), ("b.svg", ["svg"]), ("c.png", ["png"]), ("d.v3", ["v3.pdf", "v3.png"])):
        main([*words, str(tmp_path / "drawn" / name)])
        made = {path.name for path in (tmp_path / "drawn").glob(f"{name[0]}.*") if path.suffix != ".json"}
        assert made == {f"{name[0]}.{kind}" for kind in kinds}


LONG = [f"A method with a long name, its planner distilled from a larger model, {i}" for i in range(7)]
LONG += ["a_name_without_any_space_in_it_that_is_longer_than_a_line_of_the_legend"]
TWO, PAPERS = ["PlanPers", "RAG"], ["rpg", "diy", "law"]  # a community of each category
OWN = ["Photography & film", "Gardening", "Relationships and family", "Home improvement", "Sports", "Astronomy"]


@pytest.fixture
def lines_of(monkeypatch):
    """Draw a figure and return its lines of text, each with its size in points and its box in pixels from the top."""
    drawn = []

    def draw(renderer, context, x, y, text, font, angle, *given, **more):
        width, height, descent = renderer.get_text_width_height_descent(text, font, False)
        box = (x, y - height + descent, x + width, y + descent)
        box = (x - height + descent, y - width, x + descent, y) if angle == 90 else box
        drawn.append((text, font.get_size_in_points(), Bbox.from_extents(*box)))

    def lines(figure):
        drawn.clear()
        with monkeypatch.context() as patch:
            patch.setattr(RendererAgg, "draw_text", draw)
            figure.canvas.draw()
        return list(drawn)

    return lines


def figures_with(names, groups, score_file, drawn, tmp_path):
    """Return each figure of this many systems."""
    files = []
    for i in range(len(names)):
        entries = [scored(group, (0.25, 0.5, 0.75)[(i + j) % 3]) for j, group in enumerate(groups)]
        files.append(score_file(f"{i}.json", *itertools.chain(*entries)))
    systems = [word for name, file in zip(names, files, strict=True) for word in ("--system", name, file)]
    by_number = [word for i, file in enumerate(files) for word in ("--system", 2 * i, file)]
    yield from (drawn("--figure", kind, *systems) for kind in ("3", "groups"))
    yield drawn("--figure", "2", *by_number)
    yield trade_off_figure([evaluator(name, 0.1 + i / 20, 0.9 - i / 40, (0.0, 0.6)) for i, name in enumerate(names)])
    curve = Curve([1, 2, 4], [0.3, 0.4, 0.5], [(0.2, 0.4), (0.3, 0.5), (0.4, 0.6)], 0)
    yield best_of_n_figure(dict.fromkeys(names, curve), "score (0 to 1)")
    datasets = sorted((ROOT / "tests/data/mini_lampqa").glob("*.json"))
    yield from (drawn("--figure", "5", "--inputs_addr", *paths) for paths in (datasets, datasets[:1]))
    for fields in (["eval_loss", "eval_aspect_recall"], ["rewards/margins", "rewards/accuracies"]):
        (tmp_path / "training_log.jsonl").write_text(json.dumps({"step": 1, **dict.fromkeys(["loss", *fields], 0.5)}))
        yield training_figure(str(tmp_path))


@pytest.mark.parametrize(("names", "groups"), [(TWO, PAPERS), (LONG, PAPERS), (TWO, PAPERS[:1]), (LONG, OWN)])
def test_each_figure_fits_a_paper(names, groups, score_file, drawn, lines_of, tmp_path):
    """It is one or two columns wide, its text is 7 to 9 points, and no line of text is cut off or on another one."""
    for figure in figures_with(names, groups, score_file, drawn, tmp_path):
        assert round(figure.get_figwidth() * 2.54, 6) in (7.7, 16)
        lines = lines_of(figure)
        assert {size for _, size, _ in lines} <= {7, 8}
        page = figure.bbox.padded(1)
        assert [text for text, _, box in lines if not (page.contains(*box.min) and page.contains(*box.max))] == []
        for (one, _, box), (other, _, its_box) in itertools.combinations(lines, 2):
            assert not box.padded(-1).overlaps(its_box.padded(-1)), f"{one!r} is on {other!r}"


def lightness(color):
    """Return CIE L* of a color, which is what a grey print keeps of it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    luminance = sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return 116 * luminance ** (1 / 3) - 16


def test_systems_differ_in_grey_and_without_color():
    assert lightness(LIGHT) - lightness(DARK) > 30
    for number in range(2, len(MARKERS) + 1):
        levels = list(map(lightness, shades(number)))
        assert min(later - earlier for earlier, later in itertools.pairwise(levels)) > 50 / (number - 1)
    assert len({*MARKERS}) == len({*HATCHES}) == len(MARKERS) == len(HATCHES)
    curve = Curve([1, 2], [0.3, 0.4], [(0.2, 0.4), (0.3, 0.5)], 0)
    lines = best_of_n_figure(dict.fromkeys(LONG, curve), "").axes[0].get_lines()
    assert len({line.get_marker() for line in lines}) == len(LONG)
    assert all(one.get_linestyle() != other.get_linestyle() for one, other in itertools.pairwise(lines))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("3 TWO --by topic", "--by: has no effect except with --figure groups"),
        ("3 --system A a.json", "--system: given 1 time; figure 3 takes 2 to 8 systems"),
        ("2 --agreement_addr e.json TWO", "--agreement_addr: has no effect except with --figure 4"),
        ("4 --agreement_addr e.json --unscored_as_zero", "--unscored_as_zero: has no effect except with --figure 2, "),
        ("16 --system 4 a.json", "--system: given 1 time; figure 16 takes 2 to 9999 systems"),
        ("2 --system 10000 a.json --system 1 b.json", "--system '10000': not a number of posts"),
        ("3 --system A a.json --system B fewer.json", "--system 'B' (fewer.json) lacks 1 of"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(words, message, score_file, tmp_path, monkeypatch, capsys):
    score_file("a.json", *scored("rpg", 0.25), *scored("law", 0.5))
    score_file("b.json", *scored("rpg", 0.5), *scored("law", 0.75))
    score_file("fewer.json", *scored("rpg", 0.5))
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    words = words.replace("TWO", "--system PlanPers a.json --system Gold b.json").split()
    with pytest.raises((UserError, SystemExit)) as error:
        main(["--output_addr", "out/figure", "--figure", *words])
    said = capsys.readouterr().err.removeprefix("error: ") or str(error.value)
    assert said.startswith(message) and sorted(tmp_path.iterdir()) == before
