"""BESPOKE: the published tables, its two metrics, and a judge against the people who scored responses."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from api_server import CRITERIA, Reply, default_reply, serve, text_of
from batch_server import serve_batches
from scipy import stats
from sklearn.metrics import accuracy_score

import baselines
import evaluate_responses
from retrieval import rank_dataset
from utils import batch, compare_evaluators, download_datasets, make_table, report, show_answers
from utils.base.errors import UserError
from utils.benchmarks.bespoke import claims, criteria
from utils.data.datasets import read_dataset
from utils.generation import batches
from utils.people import graded
from utils.people.graded import OVERALL, agreement_of, graded_agreement

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests/data/mini_bespoke"
QUERIES = "queries/query_table.jsonl"
SHOTS, META = "evaluation_shot/evaluation_shot.jsonl", "meta_test/meta_test_set.jsonl"
RUBRICS, CLAIMS = "personalized_rubric/personalized_rubric.jsonl", "gold_information/gold_information.jsonl"


def rows_of(folder, table):
    return [json.loads(line) for line in (folder / table).read_text().splitlines()]


def download(source, folder, *more):
    words = ["--dataset", "BESPOKE", "--source_dir", source, "--output_dir", folder, *more]
    assert download_datasets.main(list(map(str, words))) == 0


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bespoke")
    download(SAMPLE, folder)
    return folder


# The published tables


def test_parquet_gives_the_same_records_as_json_lines(data, tmp_path):
    for table in SAMPLE.glob("*/*.jsonl"):
        folder = tmp_path / "published" / table.parent.name
        folder.mkdir(parents=True)
        pa.parquet.write_table(pa.Table.from_pylist(rows_of(SAMPLE, table)), folder / f"{table.stem}.parquet")
    download(tmp_path / "published", tmp_path)
    for name in ("all", "meta_test", "meta_test_responses"):
        assert (tmp_path / f"BESPOKE_{name}.json").read_bytes() == (data / f"BESPOKE_{name}.json").read_bytes()


def test_a_question_has_its_persons_sessions_and_what_judges_see(data):
    records = {record["id"]: record for record in read_dataset(data / "BESPOKE_all.json", needs=["profile"])}
    assert list(records) == ["user1-1", "user1-2", "user2-1", "user2-2", "user3-1", "user3-2"]
    assert records["user2-1"]["profile"] == records["user2-2"]["profile"]
    assert [item["kind"] for item in records["user3-1"]["profile"]] == ["chat"] * 3 + ["search"]
    queries = {row["query"]: row["gold_information_need"] for row in rows_of(SAMPLE, QUERIES)}
    assert all(record["need"] == queries[record["question"]] for record in records.values())
    assert records["user1-2"]["claims"][0] == "A young starter raises dough slowly."
    assert records["user3-1"]["shots"][1]["scores"] == dict(zip(CRITERIA, (2, 5, 2, 1), strict=True))
    assert records["user3-2"]["shots"] == []


def test_a_history_of_one_kind(tmp_path):
    download(SAMPLE, tmp_path, "--setting", "search")
    records = read_dataset(tmp_path / "BESPOKE_search_all.json", needs=["profile"])
    assert {item["kind"] for record in records for item in record["profile"]} == {"search"}
    assert [path.name for path in tmp_path.glob("*meta*")] == []


def test_scored_responses_are_a_dataset_of_their_own(data, capsys, tmp_path):
    responses = json.loads((data / "BESPOKE_meta_test_responses.json").read_text())
    ratings = json.loads((data / "BESPOKE_meta_test_ratings.json").read_text())["verdicts"]
    [row] = [row for row in rows_of(SAMPLE, META) if (row["user"], row["query-id"]) == ("user3", "01")]
    published = json.loads(row["meta_test_set_value"])["response_list"]
    for number, response in enumerate(published, 1):
        assert responses[f"user3-1-{number}"][0]["output"] == response["contents"]
        assert ratings[f"user3-1-{number}"] == {name: response[name]["score"] for name in CRITERIA}
    assert responses.keys() - ratings.keys() == {"user2-2-2"}  # whose tone has no score
    download(SAMPLE, tmp_path)
    assert "18 questions; 1 responses without all four scores, which have no rating" in capsys.readouterr().out


def change(table, where, **values):
    """Return a function that changes the row of this number in a table, or with no values adds it a second time."""

    def do(folder):
        rows = rows_of(folder, table)
        if values:
            rows[where] |= values
        else:
            rows.append(rows[where])
        (folder / table).write_text("".join(json.dumps(row) + "\n" for row in rows))

    return do


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: shutil.rmtree(folder / "chat_history"), "has no folder chat_history with a file"),
        (change(CLAIMS, 2, gold_information_value="[1"), "column 'gold_information_value' is not JSON: '[1'"),
        (change(CLAIMS, 2, gold_information_value="[1]"), "field 'gold_information_value': Expected `object`"),
        (change(META, 1, meta_test_set_value='{"response_list": [{"contents": 1}]}'), "'meta_test_set_value.response"),
        (change(QUERIES, 1, **{"query-id": "first"}), "column 'query-id' is 'first'; it must have a number"),
        (change(QUERIES, 1, query=""), "field 'query'"),
        (change(QUERIES, 1, gold_information_need=None), "field 'gold_information_need'"),
        (change(QUERIES, 1, user=None), "field 'user' is"),
        (change(QUERIES, 0), "user1 has two rows with query 1"),
        (change(RUBRICS, 0, **{"query-id": "9"}), "personalized_rubric has no rubric for user1, query 1"),
        (change(SHOTS, 0, **{"query-id": "9"}), "queries has no query 9 of user1; use tables of one release"),
    ],
)  # fmt: skip
def test_damaged_tables_are_named(tmp_path, damage, message):
    source = shutil.copytree(SAMPLE, tmp_path / "source")
    damage(source)
    with pytest.raises(UserError) as error:
        download(source, tmp_path)
    assert message in str(error.value)
    assert "copy it again" in str(error.value) or "\n" in str(error.value) or "no folder" in message
    assert not (tmp_path / "BESPOKE_all.json").exists() or "meta_test" in message


def test_what_may_lack_is_counted(tmp_path, capsys):
    """Claims, shots, scores, the text of a session or response; a response among the shots is none to judge."""
    source = shutil.copytree(SAMPLE, tmp_path / "source")
    change("search_history/search_history.jsonl", 0, history=" ")(source)
    (source / CLAIMS).write_text("".join(json.dumps(row) + "\n" for row in rows_of(SAMPLE, CLAIMS)[1:]))
    shots = json.loads(rows_of(SAMPLE, SHOTS)[0]["evaluation_shot_value"])
    shots["response_list"][0]["tone"]["score"], shots["response_list"][1]["contents"] = 4.5, ""
    change(SHOTS, 0, evaluation_shot_value=json.dumps(shots))(source)
    change(META, 0, meta_test_set_value=json.dumps({"response_list": [shots["response_list"][0]]}))(source)
    chats = rows_of(SAMPLE, "chat_history/chat_history.jsonl")
    for number in (number for number, row in enumerate(chats) if row["user"] == "user2"):
        change("chat_history/chat_history.jsonl", number, user="USER2")(source)
    download(source, tmp_path)
    records = {record["id"]: record for record in read_dataset(tmp_path / "BESPOKE_all.json", needs=["profile"])}
    assert records["user1-1"]["claims"] == [] and len(records["user1-1"]["profile"]) == 4
    assert [shot["scores"]["tone"] for shot in records["user1-1"]["shots"]] == [None]
    printed = capsys.readouterr().out
    for note in (
        "1 sessions without text, left out",
        "2 sessions of people without a question",
        "1 scored responses without text, left out",
        "1 scores that are not from 1 to 5, taken as missing",
        "1 responses left out, because they are among the shots",
    ):
        assert f"; {note}" in printed


# Reading and scoring


def written(need=4, depth=3, tone=5, style=2, **more):
    return json.dumps({"reasoning": "Fits.", **dict(zip(CRITERIA, (need, depth, tone, style), strict=True)), **more})


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        (written(), (4, 3, 5, 2)),
        (f"```json\n{written(5.0)}\n```", (5, 3, 5, 2)),
        (f"```json\n{written()}\n```\nSo it suits this person.", (4, 3, 5, 2)),
        (f"Draft: {written(1)}\n{written(2)}", (2, 3, 5, 2)),  # the last object
        (written(6), None), (written(0), None), (written(3.5), None), (written("4"), None),
        (written().replace('"tone": 5, ', ""), None), ("", None), ("I like it.", None), ("4", None), ("{4}", None),
        ("need_alignment: 4\ncontent_depth: 3\ntone: 5\nexplanation_style: 2\n", None),  # as in the prompt's examples
        ('{"need_alignment": 4, "content_depth": 3, "tone": 5}\n{"explanation_style": 2}', None),
    ],
)  # fmt: skip
def test_four_scores_are_read_or_none(text, scores):
    value = criteria.parse_scores(text).value
    assert value == (scores and dict(zip(CRITERIA, scores, strict=True)))


@pytest.mark.parametrize(
    ("text", "is_read"), [(written(), True), (f"{written()}\nBut as to", False), (written()[:-1], False)]
)
def test_a_text_that_was_cut_counts_if_it_ends_with_its_scores(text, is_read):
    assert (criteria.parse_scores(text, cut=True).value is not None) == is_read


@pytest.mark.parametrize(
    ("text", "value"),
    [('{"contained": true}', 1), ('```json\n{"contained": false}\n```', 0), ("contained: True\n", 1),
     ('{"contained": "maybe"}', None), ('{"contained": 1}', None), ("yes", None), ("", None)],
)  # fmt: skip
def test_a_claims_verdict_is_read(text, value):
    assert claims.parse_claim(text).value == value


def details_of(*scores):
    return [{"criterion": name, "score": score} for name, score in zip(CRITERIA, scores, strict=True)]


@pytest.mark.parametrize(
    ("scores", "score"), [((1, 1, 1, 1), 0), ((5, 5, 5, 5), 1), ((4, 3, 5, 2), 0.625), ((4, None, 5, 2), None)]
)
def test_a_questions_score_by_hand(scores, score):
    assert criteria.score_of(details_of(*scores)) == score
    assert criteria.score_of(details_of(*scores), True) == (score or 0)


@pytest.mark.parametrize(
    "details", [details_of(0, 1, 1, 1), details_of(1.5, 1, 1, 1), details_of(1, 1, 1, 1)[:3], [{}]]
)
def test_other_details_are_refused(details):
    with pytest.raises(ValueError, match=r"is not a score|must have one score"):
        criteria.score_of(details)


def test_recall_is_the_share_of_claims():
    made = lambda *values: [{"claim": "c", "score": value} for value in values]  # noqa: E731
    assert [claims.score_of(made(*values)) for values in ((1, 0, 1), (0,), (), (1, None))] == [2 / 3, 0, None, None]
    assert claims.score_of(made(1, None), True) == 0.5
    with pytest.raises(ValueError, match="2 is not a verdict on a claim"):
        claims.score_of(made(2))


# The whole way, over an API


class Road:
    """Commands on the sample, whose models are a loopback server."""

    def __init__(self, data, folder, server):
        self.data, self.folder, self.server = data, folder, server
        (folder / "key.txt").write_text("any")

    def run(self, command, *words, code=0):
        api = ["--openai", "--base_url", self.server.url, "--api_key_addr", self.folder / "key.txt"]
        api = api if command in (baselines, evaluate_responses) else []
        assert command.main(list(map(str, [*words, *api]))) == code

    def answer(self, name, *more):
        self.run(baselines, "--model_addr", "m", "--output_addr", self.folder / f"{name}.json", *more)

    def judge(self, name, *more, dataset="BESPOKE_all.json", responses=None):
        addrs = ["--inputs_addr", self.data / dataset, "--response_addr", responses or self.folder / f"{name}.json"]
        scores = self.folder / f"{name}_scores.json"
        self.run(evaluate_responses, *addrs, "--score_addr", scores, "--evaluator_llm", "j", *more)
        return json.loads(scores.read_text())


@pytest.fixture
def road(data, tmp_path):
    with serve() as server:
        yield Road(data, tmp_path, server)


def prompts_of(server):
    return ["\n".join(text_of(message) for message in request["messages"]) for request in server.requests]


@pytest.fixture
def ranked(road):
    path = road.folder / "ranked.json"
    words = ["--ranker", "bm25-okapi", "--input_dataset_addr", road.data / "BESPOKE_all.json"]
    road.run(rank_dataset, *words, "--output_dataset_addr", path)
    return path


@pytest.mark.parametrize("how", ["none", "--rag", "memory", "search_then_answer"])
def test_no_generator_sees_what_only_judges_may_see(road, ranked, how):
    more = {"none": [], "--rag": ["--rag", "--num_contexts", 3]}.get(how, ["--method", how])
    road.answer("a", "--inputs_addr", ranked, *more)
    asked = prompts_of(road.server)
    assert asked
    secret = [value for row in rows_of(SAMPLE, QUERIES) for value in [row["gold_information_need"]]]
    secret += [row["personalized_rubric_value"] for row in rows_of(SAMPLE, RUBRICS)]
    secret += [
        claim
        for row in rows_of(SAMPLE, CLAIMS)
        for claim in json.loads(row["gold_information_value"])["gold_information"]
    ]
    for table, column in ((SHOTS, "evaluation_shot_value"), (META, "meta_test_set_value")):
        secret += [
            each["contents"] for row in rows_of(SAMPLE, table) for each in json.loads(row[column])["response_list"]
        ]
    assert len(secret) > 40 and not [text for text in secret for prompt in asked if text in prompt]
    sessions = [row["history"] for row in rows_of(SAMPLE, "chat_history/chat_history.jsonl")]
    assert any(text in prompt for text in sessions for prompt in asked) == (how != "none")


def test_from_answers_to_tables(road, ranked, capsys):
    road.answer("none", "--inputs_addr", road.data / "BESPOKE_all.json")
    road.answer("rag", "--inputs_addr", ranked, "--rag", "--num_contexts", 3)
    for strategy in ("personal", "recall"):
        for name in ("none", "rag"):
            scores = road.judge(name, "--strategy", strategy)
            assert (scores["strategy"], scores["num_questions"], scores["num_unscored"]) == (strategy, 6, 0)
            values = [[detail["score"] for detail in entry["details"]] for entry in scores["per_question_scores"]]
            if strategy == "personal":
                assert scores["score"] == pytest.approx((np.mean(values) - 1) / 4)
                assert scores["num_without_shots"] == 1
                assert scores["means"] == pytest.approx(dict(zip(CRITERIA, np.mean(values, axis=0), strict=True)))
            else:
                assert scores["score"] == pytest.approx(np.mean(list(map(np.mean, values))))
            (road.folder / f"{name}_scores.json").rename(road.folder / f"{name}_{strategy}.json")
            (road.folder / f"{name}_scores.json.manifest.json").rename(
                road.folder / f"{name}_{strategy}.json.manifest.json"
            )
        systems = [
            word for name in ("none", "rag") for word in ("--system", name, road.folder / f"{name}_{strategy}.json")
        ]
        capsys.readouterr()
        road.run(make_table, *systems, "--baseline", "none")
        assert "cluster-robust by author" in capsys.readouterr().out
    systems = ["--system", "rag", road.folder / "rag.json", road.folder / "rag_personal.json"]
    road.run(report, "--inputs_addr", ranked, *systems, "--output_addr", road.folder / "report.html")
    words = ["--inputs_addr", ranked, "--response_addr", road.folder / "rag.json"]
    road.run(show_answers, *words, "--score_addr", road.folder / "rag_personal.json")
    assert "need_alignment" in capsys.readouterr().out


def test_a_lost_score_is_unscored_and_a_lost_answer_the_lowest(road):
    road.server.reply = lambda request: Reply("")
    road.run(baselines, "--model_addr", "m", "--output_addr", road.folder / "a.json", "--max_retries", 0,
             "--inputs_addr", road.data / "BESPOKE_all.json", code=1)  # fmt: skip
    scores = road.judge("a")
    assert (scores["score"], scores["num_unanswered"], scores["num_unscored"]) == (0, 6, 0)
    assert [detail["score"] for detail in scores["per_question_scores"][0]["details"]] == [1, 1, 1, 1]
    road.server.reply = default_reply
    road.answer("b", "--inputs_addr", road.data / "BESPOKE_all.json")
    drop = lambda request: Reply(written().replace('"tone": 5, ', "")) if "yeast" in str(request) else Reply(written())  # noqa: E731
    road.server.reply = drop
    scores = road.judge("b", "--max_retries", 1, "--constrained_decoding", "never")
    assert (scores["num_unscored"], scores["num_scored_questions"], scores["score"]) == (1, 5, 0.625)
    assert scores["per_question_scores"][0]["score"] is None


@pytest.mark.parametrize(("number", "shown"), [(0, (False, False)), (1, (True, False)), (5, (True, True))])
def test_the_judge_sees_so_many_scored_responses(road, number, shown):
    road.answer("a", "--inputs_addr", road.data / "BESPOKE_all.json")
    road.judge("a", "--shots", number)
    prompt = next(text for text in prompts_of(road.server) if "question:\nHow do I store fresh yeast?" in text)
    assert ("A first answer that people" in prompt, "A long lecture that people" in prompt) == shown
    assert ("Too stiff." in prompt, "tone: 2 (Too stiff.)" in prompt) == (shown[1], shown[1])
    with pytest.raises(UserError, match="shots"):
        road.judge("a", "--shots", 2)


def test_scores_with_other_shots_share_no_table(road, capsys):
    road.answer("a", "--inputs_addr", road.data / "BESPOKE_all.json")
    shutil.copy(road.folder / "a.json", road.folder / "b.json")
    for name, number in (("a", 5), ("b", 1)):
        road.judge(name, "--shots", number)
    with pytest.raises(UserError, match="judged differently"):
        road.run(
            make_table,
            *("--system", "a", road.folder / "a_scores.json", "--system", "b", road.folder / "b_scores.json"),
        )
    with pytest.raises(UserError, match="--shots: the judge of BESPOKE's recall sees no scored responses"):
        road.judge("a", "--strategy", "recall", "--shots", 2)


# A judge against people


def test_agreement_equals_scipys_and_scikit_learns(road, data, capsys):
    """On the sample's ratings and a server's verdicts; and on draws with repeated persons."""
    responses, ratings = data / "BESPOKE_meta_test_responses.json", data / "BESPOKE_meta_test_ratings.json"
    scores = road.judge("people", dataset="BESPOKE_meta_test.json", responses=responses)
    output = road.folder / "agreement.json"
    capsys.readouterr()
    road.run(
        compare_evaluators, "--corrected", "Judge", road.folder / "people_scores.json", ratings, "--output_addr", output
    )
    printed, [figures] = capsys.readouterr().out, json.loads(output.read_text())["systems"]
    people = json.loads(ratings.read_text())["verdicts"]
    entries = [entry for entry in scores["per_question_scores"] if entry["id"] in people]
    judged = np.array([[detail["score"] for detail in entry["details"]] for entry in entries])
    rated = np.array([list(people[entry["id"]].values()) for entry in entries])
    assert len(entries) == figures["num_rated"] == 17
    for place, name in enumerate([*CRITERIA, OVERALL]):
        pair = (judged.mean(1), rated.mean(1)) if name == OVERALL else (judged[:, place], rated[:, place])
        found = figures["agreement"]["criteria"][name]
        assert found["spearman"] == pytest.approx(stats.spearmanr(*pair).statistic)
        assert found["pearson"] == pytest.approx(stats.pearsonr(*pair).statistic)
        assert found["judge_minus_people"] == pytest.approx((pair[0] - pair[1]).mean())
        assert found["within_one"] == pytest.approx((abs(pair[0] - pair[1]) <= 1).mean())
        if name != OVERALL:
            assert found["exact"] == pytest.approx(accuracy_score(*pair))
        low, high = found["judge_minus_people_interval"]
        assert low <= found["judge_minus_people"] <= high
        assert f"| Judge | {name} | 17 |" in printed
    persons = np.array([entry["cluster"] for entry in entries])
    gaps = (judged - rated).mean(1)
    assert figures["agreement"]["persons"] == pytest.approx({one: gaps[persons == one].mean() for one in set(persons)})
    of_all = (rated.mean(1) - 1) / 4 - np.array([entry["score"] for entry in entries])
    assert figures["corrected"] == pytest.approx(scores["score"] + of_all.mean())


def test_a_draw_counts_its_responses_as_often_as_it_has_them():
    dice = np.random.default_rng(0)
    judge, people = dice.integers(1, 6, 60).astype(float), dice.integers(1, 6, 60).astype(float)
    times = dice.integers(0, 4, (20, 60))
    drawn = agreement_of(judge, people, times)
    for place, counts in enumerate(times):
        first, second = np.repeat(judge, counts), np.repeat(people, counts)
        assert drawn["spearman"][place] == pytest.approx(stats.spearmanr(first, second).statistic)
        assert drawn["pearson"][place] == pytest.approx(stats.pearsonr(first, second).statistic)
        assert drawn["exact"][place] == pytest.approx((first == second).mean())


def test_intervals_by_person_hold_the_truth(monkeypatch):
    """A judge that is half a point too kind, with an error per person: of 120 studies, about 94% hold the bias."""
    monkeypatch.setattr(graded, "DRAWS", 399)
    dice, persons, held = np.random.default_rng(1), np.repeat(np.arange(30), 5), 0
    for _ in range(120):
        people = np.clip(np.round(3 + dice.normal(size=(150, 1))), 1, 5)
        judge = people + 0.5 + 0.4 * dice.normal(size=30)[persons][:, None] + 0.5 * dice.normal(size=(150, 1))
        found = graded_agreement(judge, people, [f"u{one:02}" for one in persons], ["tone"])["criteria"][OVERALL]
        low, high = found["judge_minus_people_interval"]
        held += low <= 0.5 <= high
    assert 0.86 <= held / 120 <= 0.99


@pytest.mark.parametrize(
    ("verdicts", "message"),
    [({"user1-1-1": dict.fromkeys(CRITERIA, 6)}, "must have one verdict of 1, 2, 3, 4, 5 on each criterion, 4 in all"),
     ({"user1-1-1": {"tone": 4}}, "must have one verdict of"), ({}, "fewer than two of its questions")],
)  # fmt: skip
def test_other_ratings_are_refused(road, data, verdicts, message):
    responses = data / "BESPOKE_meta_test_responses.json"
    road.judge("people", dataset="BESPOKE_meta_test.json", responses=responses)
    ratings = json.loads((data / "BESPOKE_meta_test_ratings.json").read_text())
    (road.folder / "ratings.json").write_text(json.dumps(ratings | {"verdicts": verdicts}))
    with pytest.raises(UserError, match=message):
        road.run(
            compare_evaluators, "--corrected", "J", road.folder / "people_scores.json", road.folder / "ratings.json"
        )


# What every benchmark's runs promise


def test_a_killed_judge_goes_on(road, tmp_path):
    """What it had read is not paid for again, and the scores are those of a run that was not killed."""
    road.answer("a", "--inputs_addr", road.data / "BESPOKE_all.json")
    whole = road.judge("a", "--completions", tmp_path / "other")
    paid = len(road.server.requests)
    under_way = threading.Event()

    def slow(request):
        under_way.set()
        time.sleep(0.05)
        return default_reply(request)

    road.server.reply, before = slow, len(road.server.requests)
    scores = tmp_path / "killed.json"
    words = ["--inputs_addr", road.data / "BESPOKE_all.json", "--response_addr", road.folder / "a.json"]
    words += ["--score_addr", scores, "--evaluator_llm", "j", "--openai", "--base_url", road.server.url]
    words += ["--api_key_addr", road.folder / "key.txt", "--max_concurrency", 1]
    command = list(map(str, [sys.executable, ROOT / "evaluate_responses.py", *words]))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert under_way.wait(300)
    while len(road.server.requests) < before + 3:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait(300) == -signal.SIGKILL and not scores.exists()
    assert subprocess.run(command, capture_output=True, timeout=300, check=False).returncode == 0
    assert json.loads(scores.read_text())["per_question_scores"] == whole["per_question_scores"]
    assert len(road.server.requests) - before <= paid - 6 + 1  # the answers, and the request under way


def test_verdicts_by_batches_are_those_of_single_requests(road, tmp_path, monkeypatch):
    road.answer("a", "--inputs_addr", road.data / "BESPOKE_all.json")
    whole = road.judge("a", "--strategy", "recall")
    monkeypatch.setattr(batches, "POLLS", (0.01, 0.02))
    with serve_batches() as server:
        words = ["evaluate_responses.py", "--strategy", "recall", "--inputs_addr", road.data / "BESPOKE_all.json"]
        words += ["--response_addr", road.folder / "a.json", "--score_addr", tmp_path / "batched.json"]
        words += ["--evaluator_llm", "j", "--openai", "--base_url", server.url]
        assert batch.main(list(map(str, [*words, "--api_key_addr", road.folder / "key.txt"]))) == 0
        assert server.batches
    scores = json.loads((tmp_path / "batched.json").read_text())
    assert scores["per_question_scores"] == whole["per_question_scores"]
