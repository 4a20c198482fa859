"""The metric's arithmetic, with every number computed by hand."""

import hashlib
import json

from utils.benchmarks.lampqa.aspects import question_score
from utils.benchmarks.lampqa.task import CATEGORIES, COMMUNITIES, METRICS, TASK
from utils.data.scores import score_file as task_score_file

ARTS, LIFESTYLE, SOCIETY = CATEGORIES


def question(question_id, category, *aspect_scores):
    return {
        "id": question_id,
        "group": COMMUNITIES[category],
        "answered": True,
        "score": question_score(aspect_scores) if aspect_scores else None,
        "details": [{"aspect": f"aspect {i}", "score": score} for i, score in enumerate(aspect_scores)],
    }


def test_communities_belong_to_the_papers_three_categories():
    assert CATEGORIES == ("Arts & Entertainment", "Lifestyle & Personal Development", "Society & Culture")
    assert [list(COMMUNITIES.values()).count(category) for category in CATEGORIES] == [10, 18, 19]
    # Those that one would look for elsewhere, as the hub's files have them.
    assert COMMUNITIES["writers"] == LIFESTYLE
    assert {COMMUNITIES[slug] for slug in ("interpersonal", "money", "vegetarianism")} == {SOCIETY}
    assert not {"hsm", "moderators", "opensource"} & COMMUNITIES.keys()  # they don't occur


def record(question_id, num_aspects, **fields):
    aspects = [{"aspect": f"{question_id} {i}", "evidence": "e", "reason": "why wanted"} for i in range(num_aspects)]
    question, narrative = f"Question {question_id}?", f"Narrative of {question_id}."
    return {"id": question_id, "question": question, "narrative": narrative, "category": "law", **fields} | {
        "rubric_aspects": aspects
    }


def verdict(value, **fields):
    return {"value": value, "raw": f'{{"match_score": {value}}}', "parsed": "strict", "attempts": 1, **fields}


def verdicts_of(question_id, *values):
    return {(question_id, i): verdict(value) for i, value in enumerate(values)}


def score_file(records, verdicts, judged_ids):
    return task_score_file(TASK, "aspect", records, judged_ids, verdicts)


def question_entry(record, verdicts):
    """Return the record's entry in a score file."""
    its_own = {key: verdicts[key] for key in METRICS["aspect"].keys(record)}
    [entry] = score_file([record], its_own, {record["id"]})["per_question_scores"]
    return entry


def test_an_entry_has_each_verdict_and_its_origin():
    verdicts = {
        ("a", 1): {"value": None, "reason": "no match_score in the text"},
        ("a", 0): verdict(2, prompt_tokens=90, constrained=False, temperature=0.0),
        ("b", 0): verdict(1),  # of another question
    }
    aspects = [["a 0", "e", "why wanted"], ["a 1", "e", "why wanted"]]
    shown = json.dumps(["Question a?", "Narrative of a.", aspects])
    assert question_entry(record("a", 2), verdicts) == {
        "id": "a",
        "group": SOCIETY,
        "subgroup": "law",
        "question_sha256": hashlib.sha256(shown.encode()).hexdigest(),
        "answered": True,
        "score": None,
        "details": [
            {"aspect": "a 0", "score": 2, "raw": '{"match_score": 2}', "parsed": "strict", "attempts": 1},
            {"aspect": "a 1", "score": None, "reason": "no match_score in the text"},
        ],
    }


def test_what_an_earlier_run_judged_is_in_and_of_questions_without_aspects_only_what_was_asked():
    records = [record("a", 1), record("b", 0), record("c", 1), record("d", 0)]
    verdicts = {**verdicts_of("a", 2), **verdicts_of("c", 1)}
    scores = score_file(records, verdicts, {"c", "d"})
    assert [entry["id"] for entry in scores["per_question_scores"]] == ["a", "c", "d"]
    assert scores["questions_without_aspects"] == ["d"]
    assert scores["partial"] == {"questions_in_dataset": 4, "questions_judged": 3}
