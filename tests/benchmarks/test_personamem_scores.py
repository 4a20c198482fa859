"""PersonaMem's scores by type and distance, in table and report; result tables are exported and read back."""

import csv
import io
import json
import math
from types import SimpleNamespace

import pytest
from browser import browser, needs_chromium, open_page  # noqa: F401 (fixtures)
from scipy.stats import binomtest, t
from test_clusters import by_matrices, limits_of_the_logit
from test_personamem import LINES, ROWS, download, save
from test_report import NASTY, content

import evaluate_responses
from utils import export_predictions, make_table, report, select_model, show_answers
from utils.base.errors import UserError
from utils.base.manifest import file_hash, publish
from utils.benchmarks import tasks
from utils.benchmarks.personamem.contexts import open_profile
from utils.benchmarks.personamem.results import DISTANCES, NOT_GIVEN, distance_of, evidence_position
from utils.benchmarks.personamem.task import TYPES
from utils.data.responses import read_responses
from utils.show.report_page import MOST_CHARACTERS, show_history
from utils.tables.significance import share_interval

TABLE = "PersonaMem_32k_results.csv"
COLUMNS = [
    *("score", "persona_id", "question_id", "user_question_or_message", "question_type", "topic"),
    *("context_length_in_tokens", "context_length_in_letters"),
    *("distance_to_ref_in_blocks", "distance_to_ref_in_tokens"),
    *("num_irrelevant_tokens", "distance_to_ref_proportion_in_context", "model_response", "len_of_model_response"),
    *("predicted_answer", "correct_answer"),
]
RIGHT = {key: row["correct_answer"][1] for key, row in ROWS.items()}
PERSONAS = {key: str(math.isqrt(number)) for number, key in enumerate(ROWS)}  # five, with 1, 3, 5, 7, 8 questions
WRONG = {key: "abcd"["dabc".index(letter)] for key, letter in RIGHT.items()}


def run(script, *arguments):
    return script.main(list(map(str, arguments)))


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The sample with distances from near to very far (two missing), five unequal personas, and two systems.

    Texts of users and models are hostile.
    """
    folder = tmp_path_factory.mktemp("scores")
    rows = [{**row, "distance_to_ref_in_tokens": str(100 * 2**number)} for number, row in enumerate(ROWS.values())]
    rows[5]["distance_to_ref_in_tokens"], rows[6]["distance_to_ref_in_tokens"] = "", "-3"
    for row in rows:
        row["persona_id"] = PERSONAS[row["question_id"]]
    contexts = [json.loads(line) for line in LINES]
    for messages in (messages for line in contexts for messages in line.values()):
        messages[1]["content"] = f"User: {NASTY}" + "long " * 300
    dataset = download(save(folder / "source", rows, map(json.dumps, contexts)), folder)
    answers = {
        "best": {key: RIGHT[key] if number % 4 else WRONG[key] for number, key in enumerate(ROWS)},
        "worst": {key: None if number % 7 == 0 else WRONG[key] for number, key in enumerate(ROWS)},
    }
    for name, its in answers.items():
        none = {"output": None, "raw": "No idea.", "reason": "none"}
        said = {one: {"output": one, "raw": f"So, {NASTY}: <final_answer>({one})"} for one in "abcd"} | {None: none}
        used = {"num_contexts_used": 3, "num_contexts_dropped": 0} if name == "best" else {}
        content = {key: [said[letter] | used] for key, letter in its.items()}
        publish(folder / f"{name}.json", content, {"settings": {"inputs": file_hash(dataset)}})
        score(dataset, folder / f"{name}.json", folder / f"{name}_scores.json")
    return folder


def score(dataset, responses, scores, *more):
    flags = ["--inputs_addr", dataset, "--response_addr", responses, "--score_addr", scores]
    assert run(evaluate_responses, *flags, *more) == 0
    return json.loads(scores.read_text())


@pytest.fixture
def dataset(folder):
    return folder / "PersonaMem_32k.json"


@pytest.fixture
def systems(folder):
    return [word for name in ("best", "worst") for word in ("--system", name, folder / f"{name}_scores.json")]


def entries_of(folder, name="best"):
    return json.loads((folder / f"{name}_scores.json").read_text())["per_question_scores"]


def interval_of(entries):
    """Return a share's interval by the tests' own formulas; None if it has none."""
    personas = [PERSONAS[entry["id"]] for entry in entries]
    scores = [entry["score"] for entry in entries]
    if len(set(personas)) == len(personas):
        interval = binomtest(sum(scores), len(scores)).proportion_ci(method="wilson")
        return interval.low, interval.high
    if len(set(personas)) < 2 or by_matrices(scores, personas)[1] < 1e-9:
        return None
    return limits_of_the_logit(scores, personas)


def test_a_table_by_type_has_all_questions_last(folder, systems, capsys):
    assert run(make_table, *systems, "--baseline", "worst", "--intervals") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split(" | ")[1:9] == [*TYPES, "All questions"]
    assert lines[2].split(" | ")[8] == "**0.7500**†"  # 18 of 24: the mean over questions, not that of the types' means
    assert lines[3].split(" | ")[8:11] == ["0.0000", "24", "4"]
    low, high = interval_of(entries_of(folder))
    assert f"| best | All questions | 0.7500 | [{low:.4f}, {high:.4f}] | 18 | 24 |" in lines
    dashes = 0
    for name in TYPES:
        entries = [entry for entry in entries_of(folder) if entry["group"] == name]
        right, interval = sum(entry["score"] for entry in entries), interval_of(entries)
        ends = "[{:.4f}, {:.4f}]".format(*interval) if interval else "–"
        assert f"| best | {name} | {right / len(entries):.4f} | {ends} | {right} | {len(entries)} |" in lines
        dashes += interval is None
    assert 0 < dashes < len(TYPES)
    [paired] = [line for line in lines if line.startswith("| best | worst | All questions |")]
    entries = entries_of(folder)  # the other system gets nothing right, so the differences are the scores
    mean, error, degrees = by_matrices([one["score"] for one in entries], [PERSONAS[one["id"]] for one in entries])
    half, p = t.ppf(0.975, degrees) * error, 2 * t.sf(mean / error, degrees)
    assert paired.endswith("| 24 |") and f"| +0.7500 | [+{mean - half:.4f}, +{min(1, mean + half):.4f}] |" in paired
    assert f"| {p:.4f} | 0.1250 |" in paired  # four personas have nonzero sums; 2 of the 16 flips are as extreme
    notes = [line for line in lines if "persona_id" in line]
    assert len(notes) == 4 and "CR2" in notes[-1] and "all differences of the same persona_id together" in notes[-1]


def test_a_table_by_another_division(folder, systems, capsys):
    assert run(make_table, *systems, "--by", "distance", "--format", "csv", "--baseline", "worst") == 0
    [best, worst] = csv.DictReader(io.StringIO(capsys.readouterr().out))
    rows = entries_of(folder)
    found = {entry["distance"] for entry in rows}
    columns = list(best)[1 : 2 + len(found)]
    assert columns == [*(one for one in DISTANCES if one in found), "All questions"] and len(found) > 9
    for name in found:
        its = [entry for entry in rows if entry["distance"] == name]
        assert float(best[name]) == pytest.approx(sum(one["score"] for one in its) / len(its))
        assert float(worst[name]) == 0 and float(best[f"{name}: paired questions against worst"]) == len(its)
        ends = [best[f"{name}: 95% interval, {end}"] for end in ("low", "high")]
        interval = interval_of(its)
        assert ends == ["", ""] if interval is None else list(map(float, ends)) == pytest.approx(interval)
    assert columns[-2] == NOT_GIVEN and sum(entry["distance"] == NOT_GIVEN for entry in rows) == 2
    assert columns[0] == "0-1k tokens" and columns[-3] == "above 1M tokens"


def test_the_mean_over_orders_is_shown_beside_the_accuracy_of_first_answers(dataset, tmp_path, capsys):
    """The first answers to 18 questions are right; so are all others to 6 of these, and one other to 6 more."""
    responses = {}
    for number, (key, right) in enumerate(RIGHT.items()):
        wrong = WRONG[key]
        others = [right] * 3 if number < 6 else [wrong, right, None] if number < 12 else [wrong] * 3
        letters = [right if number < 18 else wrong, *others]
        responses[key] = [{"output": letter, "shown": "dcba"} for letter in letters]
    found = score(dataset, write(tmp_path / "r.json", responses), tmp_path / "s.json")
    assert (found["score"], found["num_orders"]) == (18 / 24, 4)
    assert found["score_over_orders"] == pytest.approx((18 + 6 * 3 + 6) / (24 * 4))
    assert "; 0.4375 as the mean over 4 orders of the options" in capsys.readouterr().out
    one = {key: its[:1] for key, its in responses.items()}
    assert "score_over_orders" not in score(dataset, write(tmp_path / "one.json", one), tmp_path / "one_s.json")


def test_an_exported_table_scores_the_same_as_its_response_file(folder, dataset, tmp_path):
    flags = ["--inputs_addr", dataset, "--output_dir", tmp_path, "--overwrite", "--response_addr"]
    run(export_predictions, *flags, folder / "worst.json")
    for more in ([], ["--reading", "official"]):
        from_table = score(dataset, tmp_path / TABLE, tmp_path / f"table{len(more)}.json", *more)
        assert from_table == score(dataset, folder / "worst.json", tmp_path / f"ours{len(more)}.json", *more)
    raws = ["one\rtwo\r\nthree\nfour", 'a "quoted", <final_answer>(b)', "half, \0", "a text"]
    texts = dict(zip(ROWS, raws * 6, strict=True))
    wild = write(tmp_path / "wild.json", {key: [{"output": "b", "raw": raw}] for key, raw in texts.items()})
    run(export_predictions, *flags, wild)
    rows = list(csv.DictReader((tmp_path / TABLE).open(encoding="utf-8", newline=""), strict=True))
    assert {row["question_id"]: row["model_response"] for row in rows} == texts


def test_the_result_table_has_every_question(folder, dataset, tmp_path, capsys):
    flags = ["--inputs_addr", dataset, "--response_addr", folder / "worst.json", "--output_dir", tmp_path]
    run(export_predictions, *flags)
    assert capsys.readouterr().out == f"{tmp_path / TABLE}: 24 answers, 4 of them empty\n"
    rows = list(csv.DictReader((tmp_path / TABLE).open(encoding="utf-8", newline="")))
    assert list(rows[0]) == COLUMNS and {row["question_id"] for row in rows} == ROWS.keys()
    responses = read_responses(folder / "worst.json")
    for row in rows:
        [response], original = responses[row["question_id"]], ROWS[row["question_id"]]
        same = [name for name in row if name in original and name not in ("distance_to_ref_in_tokens", "persona_id")]
        assert len(same) == 10 and all(row[name] == original[name] for name in same)
        assert row["model_response"] == response["raw"] and int(row["len_of_model_response"]) == len(response["raw"])
        assert row["predicted_answer"] == (f"({response['output']})" if response["output"] else "")
        assert row["score"] == "False"


def results(rows):
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]))
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def test_tables_of_the_public_baselines_are_read_without_the_right_letter(dataset, tmp_path, capsys):
    """There, `answer` is the right letter, and `p` is the system's."""
    rows = [{"question_id": key, "answer": RIGHT[key], "p": WRONG[key], "r": "[3 1]"} for key in ROWS]
    rows[3]["p"], rows[4]["p"], rows[5]["p"] = "", RIGHT[rows[4]["question_id"]].upper(), f"({rows[5]['answer']})"
    found = score(dataset, write(tmp_path / "p.csv", results(rows)), tmp_path / "scores.json")
    assert (found["score"], found["num_unanswered"]) == (2 / 24, 1)
    for row in rows:
        row["answer"] = "b"
    assert score(dataset, write(tmp_path / "q.csv", results(rows)), tmp_path / "q.json")["score"] == 2 / 24
    capsys.readouterr()
    flags = ["--inputs_addr", dataset, "--score_addr", tmp_path / "q.json", "--num_questions", 1]
    assert run(show_answers, *flags, "--response_addr", tmp_path / "q.csv") == 0
    assert "score 0.00" in capsys.readouterr().out


def bad(**changed):
    rows = [{"question_id": key, "p": letter} for key, letter in RIGHT.items()]
    rows[2].update(changed)
    return rows


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (bad(p="e"), r"bad\.csv: row 4 \(id '.*'\): column 'p' is 'e', not one of the letters a, b, c, d$"),
        (bad(question_id="nobody"), r"bad\.csv: its ids do not match the dataset.*\n.* 1 question .*\n.*'nobody'"),
        (bad(question_id=next(iter(ROWS))), r"row 4: id '.*' is also in row 2; use one answer per question$"),
        ([{"question_id": key, "answer": "a"} for key in ROWS], r"none of the columns .*, .*\n  column 'answer' is"),
    ],
)
def test_a_bad_table_is_refused(rows, message, dataset, tmp_path):
    path = write(tmp_path / "bad.csv", results(rows))
    with pytest.raises(UserError, match=message):
        score(dataset, path, tmp_path / "scores.json")
    torn = write(tmp_path / "torn.csv", results(bad()[:10]).rstrip()[:-2])
    with pytest.raises(UserError, match="row 11: has 1 cell, but the header has 2; is the file incomplete"):
        score(dataset, torn, tmp_path / "scores.json", "--allow_partial")
    assert not (tmp_path / "scores.json").exists()


@pytest.fixture(scope="module")
def page_file(folder):
    files = {name: [folder / f"{name}.json", folder / f"{name}_scores.json"] for name in ("best", "worst")}
    systems = [word for name, its in files.items() for word in ("--system", name, *its)]
    run(report, "--inputs_addr", folder / "PersonaMem_32k.json", *systems, "--output_addr", folder / "report.html")
    return folder / "report.html"


def test_the_page_has_the_right_part_of_each_history(page_file, dataset):
    index, texts = content(page_file)
    records = json.loads((page_file.parent / dataset.name).read_text())
    for record, its in zip(records, texts, strict=True):
        history, end = its["turns"], record["profile"]["end"]
        messages = open_profile(record, page_file.parent / dataset.name).messages
        # The items of this unranked file are its messages, oldest first; the system was given the first three.
        given = [place for place in range(end) if messages[place]["role"] != "system"][:3]
        assert history["total"] == end and set(given) <= {place for place, *_ in history["shown"]} <= {*range(end)}
        for place, role, text, left, systems in history["shown"]:
            whole = messages[place]["content"]
            assert (role, text) == (messages[place]["role"], whole[:MOST_CHARACTERS]) and left == len(whole) - len(text)
            assert systems == ([0] if place in given else [])
    [overall] = [panel for panel in index["panels"] if panel["group"] == "All questions"]
    entries = json.loads((page_file.parent / "best_scores.json").read_text())["per_question_scores"]
    assert overall["points"][0]["interval"] == pytest.approx(interval_of(entries))
    assert all(set(its["unseen"]) == {"target"} for its in texts)


def test_the_cited_place_is_where_its_share_of_the_text_is():
    history = SimpleNamespace(messages=[{"role": "user", "content": "x" * length} for length in (10, 0, 30, 60)])
    shares = (0, 0.09, 0.1, 0.39, 0.4, 0.99, 1)
    assert [show_history(history, share, {})["cited"] for share in shares] == [0, 0, 2, 2, 3, 3, 3]
    columns = {"distance_to_ref_in_tokens": "237", "context_length_in_tokens": "992"}
    assert evidence_position(columns) == pytest.approx(755 / 992)
    assert evidence_position({"distance_to_ref_proportion_in_context": "23.89%"}) == pytest.approx(0.7611)
    assert evidence_position({**columns, "context_length_in_tokens": "200"}) == 0
    assert evidence_position({"context_length_in_tokens": "992"}) is None


@needs_chromium
def test_the_evidence_message_is_expanded_and_texts_are_escaped(page_file, open_page):
    page = open_page(page_file)
    wanted = "questions.findIndex((one, place) => textsOf(place).turns.shown.length < textsOf(place).turns.total)"
    page.go(f"#{page.run(f'questions[{wanted}].id')}")
    cited = page.run("textsOf(shown).turns.cited")
    opened = page.run("[...document.querySelectorAll('.posts details[open]')].map((one) => one.innerText)")
    assert len(opened) == 1 and f"{cited + 1}, " in opened[0] and "about here" in opened[0]
    shown, total = page.run("[textsOf(shown).turns.shown.length, textsOf(shown).turns.total]")
    left = sum(int(line.split()[0]) for line in page.texts(".posts > p") if "not shown: message" in line)
    assert shown + left == total > shown
    page.go("#")  # otherwise the page may already be at the address of one of these
    for question in page.run("questions.map((one) => one.id)")[:3]:
        page.go(f"#{question}")
        page.run("for (const one of document.querySelectorAll('.posts details')) one.open = true")
        assert page.run("document.querySelectorAll('main img, main script, main b').length") == 0
        assert "right to left" in page.run("document.querySelector('.posts').innerText")
    assert page.run("document.title") == "PersonaMem-32k report" and page.complaints() == []


def test_a_share_of_none_or_all_ends_there_and_a_distance_has_its_bin():
    assert share_interval([0] * 10)[0] == 0 and share_interval([1] * 10)[1] == 1
    assert share_interval([]) is None
    bins = {"1024": "0-1k tokens", "1024.5": "1k-2k tokens", "1048577": "above 1M tokens", "-1": NOT_GIVEN}
    bins |= dict.fromkeys(("", "nan", "far"), NOT_GIVEN)
    assert {text: distance_of({"distance_to_ref_in_tokens": text}) for text in bins} == bins
    assert distance_of({}) == NOT_GIVEN


def test_score_files_with_a_wrong_or_missing_persona_are_refused(folder, systems, tmp_path):
    content = json.loads((folder / "best_scores.json").read_text())
    assert {entry["id"]: entry["cluster"] for entry in content["per_question_scores"]} == PERSONAS
    content["per_question_scores"][3]["cluster"] = "another"
    other = write(tmp_path / "other.json", content)
    with pytest.raises(UserError, match=r"has different questions from .* with the same ids: '[^']*'\n"):
        run(make_table, *systems, "--system", "other", other, "--baseline", "best")
    del content["per_question_scores"][3]["cluster"]
    with pytest.raises(UserError, match=r"has no field 'cluster' with the question's persona_id\n  run eval"):
        run(make_table, "--system", "other", write(other, content))
    with pytest.raises(UserError, match=r"^--by 'persona': not supported for PersonaMem-32k; use to"):
        run(make_table, *systems, "--by", "persona")


def test_an_unknown_question_type_is_in_no_column():
    for name in ("PersonaMem-32k", "PersonaMem-v2-32k"):
        task = tasks()[name]
        groups = [
            task.group_of({"group": group})["group"] for group in (task.groups[1], f"{task.groups[1]}\n", 7, [], None)
        ]
        assert groups == [task.groups[1], None, None, None, None]


def test_questions_of_unknown_types_have_a_place_by_topic_and_none_elsewhere(tmp_path, capsys):
    groups = ["recall_user_shared_facts", None, None, "recall_user_shared_facts"]

    def write(name, rights):
        entries = []
        for i, (right, group) in enumerate(zip(rights, groups, strict=False)):
            entry = {"id": str(i), "score": right, "answered": True, "question_sha256": "0", "group": group}
            entry["details"] = [{"score": right, "reference": "a", "label": "ba"[right]}]
            entries.append({**entry, "cluster": f"p{i}", "topic": f"topic {i % 2}"})
        content = {"score": 0.5, "num_unanswered": 0, "task": "PersonaMem-32k", "strategy": "accuracy"}
        (tmp_path / f"{name}.json").write_text(json.dumps({**content, "per_question_scores": entries}))
        (tmp_path / name).mkdir()
        return tmp_path / f"{name}.json"

    files = [write("one", [1, 0, 1, 1]), write("two", [1, 1, 1, 0]), write("part", [1, 0, 1])]
    words = ["--system", "one", files[0], "--system", "part", files[2], "--by", "topic", "--allow_partial"]
    assert run(make_table, *words) == 0
    printed = capsys.readouterr().out
    assert all(f"| {name} | 1.0000 | 0.0000 | 0.6667 | 3 |" in printed for name in ("one", "part"))
    assert "- Means are over the 3 questions scored for all systems: part lacks 1 of 4." in printed
    models = [tmp_path / "one", tmp_path / "two"]
    assert run(select_model, "--model_addr", *models, "--score_addr", *files[:2], "--link_addr", tmp_path / "best") == 0
    assert f"1.0000  {models[0]}  <- {tmp_path}/best\n0.5000  " in capsys.readouterr().out  # as in a table by type
