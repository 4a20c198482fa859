"""evaluate_plans.py on datasets and plans written by hand; figures are worked out in comments."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from tiny_encoder import save_tiny_encoder

from retrieval import encoder as encoder_module
from retrieval.encoder import embed_texts, load_encoder
from utils.benchmarks.lampqa import TASK
from utils.cli import UserError
from utils.evaluate_plans import main, mean_scores, means_by_group, question_scores
from utils.parsing.plans import same_title

WORDS_HEADER = "| Category | Exact P | Exact R | Exact F1 | Words P | Words R | Words F1 | Questions | Without a plan |"
WORDS_RULES = (
    "Two titles match by these rules: exact: the same words, whatever their case and what stands between them; "
    "words: Dice coefficient of their words at least 0.6."
)
FIGURES = ("precision", "recall", "f1")


def record(question_id, community, *gold):
    aspects = [{"aspect": title, "evidence": "e", "reason": "r"} for title in gold]
    return {"id": question_id, "question": "Which?", "category": community, "rubric_aspects": aspects}


@pytest.fixture
def files(tmp_path):
    """Write both files; returns the arguments that name them, without the embedding rule."""

    def write(records, plans):
        inputs, planned = tmp_path / "test.json", tmp_path / "planpers.json.plans.json"
        inputs.write_text(json.dumps(records), encoding="utf-8")
        planned.write_text(
            json.dumps({question_id: [{"aspects": plan}] for question_id, plan in plans.items()}), encoding="utf-8"
        )
        return ["--inputs_addr", str(inputs), "--plans_addr", str(planned), "--embedding_model", "none"]

    return write


@pytest.fixture
def three(files):
    """A question a category."""
    records = [
        record("a", "law", "Cost of travel", "Safety"),
        record("b", "rpg", "Maps", "Dice", "Rules", "Story"),
        record("c", "diy", "Tools"),
    ]
    return files(records, {"c": None, "a": ["travel costs, cost of travel", "safety!"], "b": ["maps", "x", "y"]})


def refusal(arguments):
    with pytest.raises(UserError) as error:
        main(arguments)
    assert len(str(error.value).splitlines()) <= 3
    return str(error.value)


def replaced(arguments, flag, value):
    arguments = list(arguments)
    arguments[arguments.index(flag) + 1] = str(value)
    return arguments


# Figures by hand


@pytest.mark.parametrize(
    ("gold", "planned", "expected"),
    [
        (["a", "b"], ["a", "b"], (1.0, 1.0, 1.0)),
        (["a", "b", "c", "d"], ["a", "x"], (0.5, 0.25, 1 / 3)),  # 2 * 1/2 * 1/4 / (3/4) = 1/3
        (["a"], ["A", "a.", "x", "y"], (0.5, 1.0, 2 / 3)),  # two planned titles match one gold one
        (["a", "A"], ["a"], (1.0, 1.0, 1.0)),
        (["a"], ["x"], (0.0, 0.0, 0.0)),
        (["a"], [], (0.0, 0.0, 0.0)),
    ],
)
def test_scores_of_one_question(gold, planned, expected):
    scores = question_scores(gold, planned, same_title)
    assert tuple(scores) == FIGURES
    assert tuple(scores.values()) == pytest.approx(expected)


def scored(category, planned, precision, recall, f1):
    scores = {"exact": {"precision": precision, "recall": recall, "f1": f1}}
    return {"category": category, "planned": planned, "scores": scores}


QUESTIONS = [
    scored("Society & Culture", ["a"], 1.0, 0.5, 2 / 3),
    scored("Arts & Entertainment", [], 0.0, 0.0, 0.0),
    scored("Society & Culture", ["a", "b"], 0.5, 0.25, 1 / 3),
    scored("Society & Culture", [], 0.0, 0.0, 0.0),
]


def test_means_are_over_questions_and_count_empty_plans():
    row = mean_scores(QUESTIONS)
    assert (row["questions"], row["without_a_plan"]) == (4, 2)
    # P (1 + 0.5) / 4, R (0.5 + 0.25) / 4, F1 (2/3 + 1/3) / 4: a mean of F1s, not the F1 of the means
    assert row["scores"] == {"exact": pytest.approx({"precision": 0.375, "recall": 0.1875, "f1": 0.25})}


def test_categories_that_occur_stand_in_the_papers_order_before_all():
    means = means_by_group(QUESTIONS, TASK)
    assert list(means) == ["Arts & Entertainment", "Society & Culture", "All"]
    assert means["Arts & Entertainment"]["scores"]["exact"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    society = means["Society & Culture"]
    assert (society["questions"], society["without_a_plan"]) == (3, 1)
    assert society["scores"]["exact"] == pytest.approx({"precision": 0.5, "recall": 0.25, "f1": 1 / 3})
    assert means["All"] == mean_scores(QUESTIONS)


# The table


def test_the_table(three, capsys):
    assert main(three) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        WORDS_RULES,
        "",
        WORDS_HEADER,
        "|:---|---:|---:|---:|---:|---:|---:|---:|---:|",
        # b: P 1/3, R 1/4, F1 2 * 1/12 / (7/12) = 2/7
        "| Arts & Entertainment | 0.3333 | 0.2500 | 0.2857 | 0.3333 | 0.2500 | 0.2857 | 1 | 0 |",
        "| Lifestyle & Personal Development | 0.0000 | 0.0000 | 0.0000 | 0.0000 | 0.0000 | 0.0000 | 1 | 1 |",
        # a: exactly only safety; {travel, costs, cost} and {cost, travel} overlap by 2 * 2 / (3 + 2) = 0.8
        "| Society & Culture | 0.5000 | 0.5000 | 0.5000 | 1.0000 | 1.0000 | 1.0000 | 1 | 0 |",
        # P (1/3 + 0 + 1/2) / 3 = 5/18, R (1/4 + 0 + 1/2) / 3, F1 (2/7 + 0 + 1/2) / 3 = 11/42
        # words: P (1/3 + 0 + 1) / 3 = 4/9, R (1/4 + 0 + 1) / 3, F1 (2/7 + 0 + 1) / 3 = 3/7
        "| All | 0.2778 | 0.2500 | 0.2619 | 0.4444 | 0.4167 | 0.4286 | 3 | 1 |",
    ]
    assert captured.err == ""


def test_the_words_threshold(three, capsys):
    main([*three, "--words_threshold", "0.81"])
    out = capsys.readouterr().out
    assert "at least 0.81." in out
    assert "| Society & Culture | 0.5000 | 0.5000 | 0.5000 | 0.5000 | 0.5000 | 0.5000 | 1 | 0 |" in out


@pytest.mark.parametrize("plan", [None, []])
def test_an_empty_plan_counts_zero(files, plan, capsys):
    main(files([record("a", "law", "Cost"), record("b", "law", "Cost")], {"a": ["cost"], "b": plan}))
    row = "| Society & Culture | 0.5000 | 0.5000 | 0.5000 | 0.5000 | 0.5000 | 0.5000 | 2 | 1 |"
    assert row in capsys.readouterr().out.splitlines()


def test_titles_are_compared_in_one_line(files, capsys):
    main(files([record("a", "law", "Cost\n of travel")], {"a": [" Cost of\ttravel"]}))
    assert "| All | 1.0000 | 1.0000 | 1.0000 |" in capsys.readouterr().out


def test_questions_without_gold_aspects_are_left_out_and_counted(files, capsys):
    # No category is asked of them either.
    main(files([record("a", "law", "Cost"), record("b", None), record("c", "law")], {i: ["cost"] for i in "abc"}))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == [
        "| All | 1.0000 | 1.0000 | 1.0000 | 1.0000 | 1.0000 | 1.0000 | 1 | 0 |",
        "",
        "- Left out, without gold aspects: 2 ('b', 'c').",
    ]


def test_only_the_first_plan_counts_and_that_is_said(files, tmp_path, capsys):
    arguments = files([record("a", "law", "Cost")], {})
    plans = {"a": [{"aspects": ["x"]}, {"aspects": ["Cost"]}]}
    (tmp_path / "planpers.json.plans.json").write_text(json.dumps(plans))
    main(arguments)
    captured = capsys.readouterr()
    assert "| All | 0.0000 | 0.0000 |" in captured.out
    assert captured.err == f"note: {arguments[3]}: only the first plan of each question is evaluated\n"


def test_plans_of_other_datasets_are_ignored(files, capsys):
    main(files([record("a", "law", "Cost")], {"x": ["Time"], "a": ["cost"], "y": None}))
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == "| All | 1.0000 | 1.0000 | 1.0000 | 1.0000 | 1.0000 | 1.0000 | 1 | 0 |"
    assert captured.err == ""


# Ids that do not match


def test_questions_without_a_plan_are_refused_and_the_first_five_named(files):
    arguments = files([record(f"q{i}", "law", "Cost") for i in range(8)], {"q1": ["Cost"], "q7": None})
    assert refusal(arguments) == (
        f"{arguments[3]}: only a part of the questions has a plan; --allow_partial evaluates that part\n"
        "  6 of 8 questions without a plan: 'q0', 'q2', 'q3', 'q4', 'q5', ..."
    )


def test_allow_partial_leaves_them_out_and_says_so(files, capsys):
    main([*files([record(i, "law", "Cost") for i in "abc"], {"b": ["cost"], "x": []}), "--allow_partial"])
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "| All | 1.0000 | 1.0000 | 1.0000 | 1.0000 | 1.0000 | 1.0000 | 1 | 0 |",
        "",
        "- Left out, not in the file of plans: 2 ('a', 'c').",
    ]


@pytest.mark.parametrize("more", [[], ["--allow_partial"]])
def test_plans_of_other_questions_only(files, more):
    arguments = files([record("a", "law", "Cost")], {"x": ["Cost"]})
    assert refusal([*arguments, *more]) == (
        f"{arguments[3]}: holds no plan for any question of {arguments[1]}\n"
        "  give the dataset these plans were made for"
    )


# What is refused before an encoder loads


@pytest.fixture
def no_encoder(monkeypatch):
    def load(*args, **more):
        raise AssertionError("the encoder is loaded")

    monkeypatch.setattr(encoder_module, "load_encoder", load)


@pytest.mark.usefixtures("no_encoder")
class TestRefusals:
    @pytest.fixture
    def arguments(self, three, encoder_folder):
        return replaced(three, "--embedding_model", encoder_folder)

    @pytest.mark.parametrize("flag", ["--inputs_addr", "--plans_addr"])
    def test_a_missing_file(self, arguments, flag, tmp_path):
        assert refusal(replaced(arguments, flag, tmp_path / "gone.json")) == f"{tmp_path / 'gone.json'}: no such file"

    def test_a_dataset_without_aspects(self, arguments, tmp_path):
        (tmp_path / "test.json").write_text('[{"id": "a", "question": "Which?"}]')
        assert "record 0 (id 'a'): field 'rubric_aspects' is missing" in refusal(arguments)

    def test_responses_in_place_of_plans(self, arguments, tmp_path):
        (tmp_path / "planpers.json.plans.json").write_text('{"a": [{"output": "text"}]}')
        assert refusal(arguments) == f"{arguments[3]}: id 'a': plan 0 has no field 'aspects'"

    def test_a_missing_model_folder(self, arguments, tmp_path):
        message = refusal(replaced(arguments, "--embedding_model", tmp_path / "gone"))
        assert message.startswith(f"{tmp_path / 'gone'}: no such folder")

    @pytest.mark.parametrize("community", [None, "astrology", ["law"]])
    def test_a_community_of_no_category(self, files, encoder_folder, community):
        arguments = files([record("a", "law", "Cost"), record("b", community, "Cost")], {"a": None, "b": None})
        assert refusal(replaced(arguments, "--embedding_model", encoder_folder)) == (
            f"{arguments[1]}: id 'b': no category is known for the community {community!r}\n"
            "  add it to the category it belongs to in utils/benchmarks/lampqa_communities.toml"
        )

    def test_nothing_to_compare_with(self, files):
        arguments = files([record("a", "law"), record("b", "law", "Cost")], {"a": ["Cost"]})
        assert refusal([*arguments, "--allow_partial"]) == (
            f"{arguments[1]}: no question with a plan has rubric_aspects to compare it with"
        )

    def test_an_output_that_is_there(self, arguments, tmp_path):
        output = tmp_path / "scores.json"
        output.write_text("kept")
        assert refusal([*arguments, "--output_addr", str(output)]).startswith(f"{output}: exists")
        assert output.read_text() == "kept"

    def test_an_output_that_is_an_input(self, arguments):
        for path in (arguments[1], arguments[3]):
            message = refusal([*arguments, "--output_addr", path, "--overwrite"])
            assert message == f"{path}: is an input too; give the output its own name"

    @pytest.mark.parametrize("flag", ["--words_threshold", "--embedding_threshold"])
    @pytest.mark.parametrize("value", ["0", "1.01", "-0.5", "nan", "high"])
    def test_a_threshold_out_of_range(self, arguments, flag, value, capsys):
        with pytest.raises(SystemExit) as ending:
            main([*arguments, flag, value])
        assert ending.value.code == 2
        assert flag in capsys.readouterr().err


# The file with everything


def test_the_output_holds_every_question(three, tmp_path, capsys):
    output = tmp_path / "new" / "scores.json"
    main([*three, "--output_addr", str(output)])
    found = json.loads(output.read_text(encoding="utf-8"))
    assert found.keys() == {"settings", "means", "left_out", "per_question"}
    assert found["settings"].keys() == {"inputs_sha256", "plans_sha256", "words_threshold"}
    assert [question["id"] for question in found["per_question"]] == ["a", "b", "c"]
    assert found["per_question"][2] == {
        "id": "c",
        "category": "Lifestyle & Personal Development",
        "gold": ["Tools"],
        "planned": [],
        "scores": {rule: {"precision": 0.0, "recall": 0.0, "f1": 0.0} for rule in ("exact", "words")},
    }
    assert found["means"]["All"]["scores"]["exact"] == pytest.approx(
        {"precision": 5 / 18, "recall": 0.25, "f1": 11 / 42}
    )
    assert found["left_out"] == {"without gold aspects": [], "not in the file of plans": []}
    assert "| All | 0.2778 |" in capsys.readouterr().out


def test_the_output_is_replaced_when_asked(three, tmp_path):
    output = tmp_path / "scores.json"
    output.write_text("old")
    main([*three, "--output_addr", str(output), "--overwrite"])
    assert json.loads(output.read_text())["settings"]["words_threshold"] == 0.6


# The embedding rule


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory):
    return save_tiny_encoder(tmp_path_factory.mktemp("encoder"))


GOLD, PLANNED = "history of rome", ["history of the old town", "music", "the cat sat on the mat"]


@pytest.fixture(scope="module")
def cosines(encoder_folder):
    """Cosines of the gold title with each planned one, computed plainly."""
    gold, *planned = embed_texts(load_encoder(str(encoder_folder), device="cpu"), [GOLD, *PLANNED])[0].astype(float)
    return [float(row @ gold / math.sqrt((row @ row) * (gold @ gold))) for row in planned]


def run_embedding(files, capsys, encoder_folder, threshold, planned=PLANNED):
    """P, R and F1 of the row "All" under the embedding rule."""
    arguments = replaced(files([record("a", "law", GOLD)], {"a": planned}), "--embedding_model", encoder_folder)
    main([*arguments, "--embedding_threshold", str(threshold), "--device", "cpu"])
    lines = capsys.readouterr().out.splitlines()
    assert f"embedding: cosine by {encoder_folder} at least {threshold}." in lines[0]
    assert "| Embedding P | Embedding R | Embedding F1 | Questions |" in lines[2]
    return [float(cell) for cell in lines[-1].split(" | ")[7:10]]


def test_titles_match_from_the_threshold_on(files, capsys, encoder_folder, cosines):
    ordered = sorted(max(cosine, 0.01) for cosine in cosines)
    assert all(b - a > 0.01 for a, b in pairwise(ordered))  # or the thresholds below tell nothing
    between = (ordered[1] + ordered[2]) / 2
    # One of three planned titles matches: P 1/3, R 1/1, F1 2 * 1/3 / (4/3) = 1/2
    assert run_embedding(files, capsys, encoder_folder, between) == [0.3333, 1.0, 0.5]
    assert run_embedding(files, capsys, encoder_folder, (1 + ordered[2]) / 2) == [0.0, 0.0, 0.0]


def test_a_title_matches_itself_at_any_threshold(files, capsys, encoder_folder):
    assert run_embedding(files, capsys, encoder_folder, 1.0, [GOLD]) == [1.0, 1.0, 1.0]


def test_each_distinct_title_is_embedded_once(files, encoder_folder, monkeypatch):
    embedded = []

    def embed(encoder, texts, **more):
        embedded.extend(texts)
        return np.ones((len(texts), 4), dtype=np.float32), 0

    monkeypatch.setattr(encoder_module, "embed_texts", embed)
    records = [record("a", "law", "Cost", "Time"), record("b", "law", "Cost"), record("c", "law")]
    arguments = files(records, {"a": ["Time", "Safety"], "b": ["Safety", "Cost"], "c": ["of no use"]})
    main(replaced(arguments, "--embedding_model", encoder_folder))
    assert sorted(embedded) == ["Cost", "Safety", "Time"]


def test_the_output_names_the_encoder(three, encoder_folder, tmp_path):
    output = tmp_path / "scores.json"
    main([*replaced(three, "--embedding_model", encoder_folder), "--output_addr", str(output)])
    found = json.loads(output.read_text())
    assert found["settings"]["embedding_model"].startswith("sha256:")
    assert found["settings"]["embedding_threshold"] == 0.8
    assert list(found["per_question"][0]["scores"]) == ["exact", "words", "embedding"]
