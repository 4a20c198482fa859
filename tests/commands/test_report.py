"""The report: the file, and the page in Chromium."""

import json
import re
from pathlib import Path

import pytest
from browser import CHIPS, browser, needs_chromium, open_page  # noqa: F401 (fixtures)

from utils import download_datasets
from utils.base.errors import UserError
from utils.base.manifest import file_hash
from utils.report import main

ROOT = Path(__file__).resolve().parents[2]
NASTY = (
    "</script><script>document.title = 'run'</script><!-- <img src=x onerror=\"document.title = 'run'\"> -->"
    "<b>&amp;</p></div></body>\u202e right to left \u2067 \u0000 \u2028 ' \" \\ `code` {{texts}} {{index}} "
)


class Files:
    """A folder with a dataset of three questions and the files of systems."""

    def __init__(self, folder):
        self.folder = folder
        self.data = [
            self.question("rpg_1", "rpg", ["prep", "pacing"]),
            self.question("diy_2", "diy", ["cost"]),
            self.question("law_3", "law", ["risk", "cost"]),
        ]
        self.inputs = self.write("data.json", self.data)

    @staticmethod
    def question(question_id, community, aspects):
        return {
            "id": question_id, "question": f"Question {question_id}?", "narrative": f"Narrative of {question_id}.",
            "category": community,
            "rubric_aspects": [{"aspect": a, "evidence": f"evidence {a}", "reason": f"reason {a}"} for a in aspects],
            "profile": [{"id": f"{question_id}_{i}", "text": f"Post {i} of {question_id}."} for i in range(3)],
        }  # fmt: skip

    def write(self, name, value):
        (self.folder / name).write_text(json.dumps(value), encoding="utf-8")
        return str(self.folder / name)

    def responses(self, name, outputs, inputs=None, **more):
        """Write a response file, and its manifest if the hash of its dataset is given."""
        path = self.write(name, {i: [{"output": output, **more}] for i, output in outputs.items()})
        if inputs is not None:
            manifest = {"settings": {"inputs": inputs}, "output_sha256": file_hash(path)}
            self.write(f"{name}.manifest.json", manifest)
        return path

    def scores(self, name, verdicts, **detail):
        """Write a score file from {id: verdicts}; a question's score is their sum over twice their number."""
        entries = []
        for record in self.data:
            if record["id"] in verdicts:
                found = verdicts[record["id"]]
                score = None if None in found else sum(found) / 2 / len(found)
                details = [
                    {"aspect": aspect["aspect"], "score": v, **detail}
                    for aspect, v in zip(record["rubric_aspects"], found, strict=True)
                ]
                entry = {"id": record["id"], "category": record["category"], "question_sha256": record["id"]}
                entries.append({**entry, "answered": True, "score": score, "details": details})
        return self.write(name, {"num_unanswered": 0, "per_question_scores": entries})

    def report(self, *arguments, inputs=None):
        """Run it; return the page, its index and its texts."""
        output = self.folder / "report.html"
        assert main(["--inputs_addr", *(inputs or [self.inputs]), "--output_addr", str(output), *arguments]) == 0
        return output

    def two_systems(self, **more):
        """Write RAG with scores 3/4, 1/2 and 0, and Plan with a failed answer: 1/4, none and unscored."""
        inputs = file_hash(self.inputs)
        rag = self.responses("rag.json", {r["id"]: f"RAG on {r['id']}" for r in self.data}, inputs, num_contexts_used=2)
        rag_scores = self.scores("rag_s.json", {"rpg_1": [2, 1], "diy_2": [1], "law_3": [0, 0]}, raw="Judge says so.")
        plan = self.responses("plan.json", {"rpg_1": "Plan answers", "diy_2": None, "law_3": "Plan on law"}, **more)
        plan_scores = self.scores("plan_s.json", {"rpg_1": [0, 1], "diy_2": [None], "law_3": [2, None]})
        plans = self.write("plans.json", {"rpg_1": [{"aspects": ["first title", "second"], "raw": "first title\n"}]})
        return self.report("--system", "RAG", rag, rag_scores, "--system", "Plan", plans, plan_scores, plan)


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def content(path):
    """Return the index and the texts of a page, as an HTML parser finds them."""
    blocks = re.findall(r'<script type="application/json"[^>]*>(.*?)</script', path.read_text("utf-8"), re.S)
    assert all(map(str.isascii, blocks)) and not set("<>&\0") & set("".join(blocks))  # no markup in them
    index, *texts = map(json.loads, blocks)
    return index, texts


def test_table_and_questions_are_in_it(files):
    index, texts = content(files.two_systems())
    assert index["systems"] == ["RAG", "Plan"]
    # RAG: arts (2 + 1) / 4, lifestyle 1/2, society 0, macro 1.25 / 3; Plan: arts 1/4, no other question is scored
    assert [[cell["text"] for cell in row] for row in index["table"]["rows"]] == [
        ["RAG", "0.7500", "0.5000", "0.0000", "0.4167", "3", "0", "0"],
        ["Plan", "0.2500", "–", "–", "–", "3", "0", "2"],
    ]
    assert [cell["bold"] for cell in index["table"]["rows"][0]] == [False, True, *[False] * 6]
    assert [question["scores"] for question in index["questions"]] == [[0.75, 0.25], [0.5, None], [0.0, None]]
    failures = [question["failures"] for question in index["questions"]]
    assert failures == [[[], []], [[], ["no answer", "unscored"]], [[], ["unscored"]]]
    rag, plan = texts[0]["answers"]
    assert (rag["output"], rag["plan"]) == ("RAG on rpg_1", [])
    assert rag["verdicts"] == [[2, "Judge says so.", None], [1, "Judge says so.", None]]
    assert (plan["output"], plan["plan"]) == ("Plan answers", ["first title", "second"])
    assert texts[0]["posts"] == ["Post 0 of rpg_1.", "Post 1 of rpg_1."]  # the two best of three
    assert (rag["posts"], plan["posts"]) == ([0, 1], [])
    assert texts[0]["aspects"][1] == ["pacing", "evidence pacing", "reason pacing"]
    assert texts[0]["unseen"] == {"narrative": "Narrative of rpg_1."}
    path = files.scores("best_s.json", {"rpg_1": [2, 1]})
    files.write("best_s.json", {**json.loads(Path(path).read_text()), "num_selected": 1})
    index, _ = content(files.report("--system", "Best", files.responses("best.json", {"rpg_1": "A"}), path))
    assert index["systems"] == ["Best (selected by score)"] == [row[0]["text"] for row in index["table"]["rows"]]


def test_a_methods_own_prompts_and_notes_are_shown(files):
    """Not the first posts, whose number is that of its last prompt's items."""
    more = {"num_contexts_used": 1, "posts_shown": [1, 2], "notes": {"mark": 7, "by": "<b>"}}
    path = files.responses("own.json", {"rpg_1": "a"}, file_hash(files.inputs), **more)
    _, texts = content(files.report("--system", "1", path))
    assert texts[0]["posts"] == ["Post 1 of rpg_1.", "Post 2 of rpg_1."]
    assert json.loads(texts[0]["answers"][0]["noted"]) == {"mark": 7, "by": "<b>"}


def test_posts_come_from_the_dataset_that_was_answered(files):
    turned = files.write("turned.json", [{**record, "profile": record["profile"][::-1]} for record in files.data])
    one = files.responses("one.json", {"rpg_1": "a"}, file_hash(files.inputs), num_contexts_used=2)
    two = files.responses("two.json", {"rpg_1": "b"}, file_hash(turned), num_contexts_used=2)
    _, texts = content(files.report("--system", "1", one, "--system", "2", two, inputs=[files.inputs, turned]))
    assert texts[0]["posts"] == ["Post 0 of rpg_1.", "Post 1 of rpg_1.", "Post 2 of rpg_1."]
    assert [answer["posts"] for answer in texts[0]["answers"]] == [[0, 1], [2, 1]]  # each text occurs once
    index, texts = content(files.report("--system", "1", one, "--system", "2", two))
    assert [answer["posts"] for answer in texts[0]["answers"]] == [[0, 1], None]
    assert any(note.startswith("2: the posts used in 1 answer are not shown") for note in index["notes"])


def test_notes_on_an_answer(files):
    outputs = {
        "rpg_1": [{"output": None, "reason": {"code": 3}, "raw": "<b>", "plan": 7}],  # of other kinds, as JSON
        "diy_2": [{"output": "x", "truncated": True, "plan": None, "no_plan": "an empty plan"}, {"output": "y"}],
        "law_3": [{"output": "z", "plan": "one\ntwo", "parsed": "repaired", "num_contexts_dropped": 3}],
    }
    _, texts = content(files.report("--system", "A", files.write("a.json", outputs)))
    answers = [text["answers"][0] for text in texts]
    assert [answer["notes"] for answer in answers] == [
        ['reason: {"code": 3}'],
        ["answered without a plan: an empty plan", "cut off at --max_tokens", "the first of 2 answers"],
        ["read from damaged JSON", "3 posts left out for length"],
    ]
    assert [answer["plan"] for answer in answers] == [["7"], [], ["one", "two"]]


def test_nothing_a_model_wrote_ends_a_script_or_opens_a_comment(files):
    path = files.responses("a.json", {"rpg_1": NASTY, "diy_2": "x" * 100_000, "law_3": "z"})
    scores = files.scores("s.json", {"rpg_1": [2, 2]}, raw=NASTY + "\ud800")
    output = files.report("--system", "<b>A</b>", path, scores)
    page = output.read_bytes()
    assert b"<b>" not in page
    assert page.count(b"<script") == 1 + 1 + 3  # the index, the code, three questions
    assert page.count(b"<!--") == 0 and b"\0" not in page
    index, texts = content(output)
    assert index["systems"] == ["<b>A</b>"]
    assert texts[0]["answers"][0]["output"] == NASTY
    assert texts[0]["answers"][0]["verdicts"][0][1] == NASTY + "\ud800"
    assert texts[1]["answers"][0]["output"] == "x" * 100_000


def test_the_content_policy_blocks_outside_resources(files):
    page = files.two_systems().read_text()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'" and rules["form-action"] == "'none'" and rules["base-uri"] == "'none'"
    assert all(re.fullmatch(r"'sha256-[\w+/]{43}='", rules[name]) for name in ("script-src", "style-src"))
    assert "http:" not in page and "https:" not in page and "innerHTML" not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--system", "A", "scores"], r"--system 'A': needs a name, then its files"),
        (["--system", "A", "answers", "--system", " A ", "others"], r"--system ' A ' appears twice"),
        (["--system", "A", "answers", "data.json"], r"data\.json: has neither responses nor scores nor plans"),
        (["--system", "A", "answers", "answers"], r"answers: also in another file of this system: 'diy_2', 'rpg_1'"),
        (["--system", "A", "others"], r"others: 1 id is not in any --inputs_addr: 'x'"),
        (["--system", "A", "answers", "other aspects"], r"other aspects: question 'diy_2' was judged by different asp"),
        (["--system", "A", "answers", "--inputs_addr", "data.json", "data2"], r"data2: id 'rpg_1' is a different ques"),
        (["--system", "A", "answers", "--output_addr", "answers"], r"answers: is also an input"),
    ],
)  # fmt: skip
def test_mismatched_files_are_refused(files, monkeypatch, arguments, message):
    monkeypatch.chdir(files.folder)
    before = Path(files.responses("answers", {"rpg_1": "x", "diy_2": "y"})).read_bytes()
    files.responses("others", {"x": "x"})
    files.scores("scores", {"rpg_1": [2, 2]})
    entry = {"id": "diy_2", "category": "diy", "question_sha256": "x", "answered": True, "score": 0.5}
    entry["details"] = [{"aspect": "a", "score": 1}]
    files.write("other aspects", {"num_unanswered": 0, "per_question_scores": [entry]})
    files.write("data2", [{**files.data[0], "question": "Another?"}])
    with pytest.raises(UserError, match=message):
        main(["--inputs_addr", "data.json", "--output_addr", "report.html", *arguments])
    assert not (files.folder / "report.html").exists()
    assert (files.folder / "answers").read_bytes() == before


@needs_chromium
def test_a_question_is_shown_with_all_its_parts(files, open_page):
    page = open_page(files.two_systems(), width=390)  # as on a phone
    assert page.texts(".scores tbody tr") == ["A RAG 0.7500 0.5000 0.0000 0.4167 3 0 0", "B Plan 0.2500 – – – 3 0 2"]
    page.go("#rpg_1")
    shown = page.run("$('main').innerText")
    texts = ("Question rpg_1?", "rpg (Arts & Entertainment)", "Profile posts used (2)", "RAG on rpg_1", "first title")
    assert all(text in shown for text in (*texts, "Narrative of rpg_1."))
    assert "Judge says so." not in shown and "evidence prep" not in shown  # on demand
    page.run("document.querySelector('.verdicts summary').click()")
    shown = page.run("$('main').innerText")
    assert "Judge says so." in shown and "evidence prep" in shown
    page.run("document.querySelector('.posts summary').click()")
    assert page.texts(".posts section") == ["Post 1, used by A Post 0 of rpg_1.", "Post 2, used by A Post 1 of rpg_1."]
    assert page.run("document.documentElement.scrollWidth") == 390
    page.send("Emulation.setEmulatedMedia", media="print")  # holds the shown question alone
    text = page.run("document.body.innerText")
    assert "RAG on rpg_1" in text and "Search" not in text and "Question diy_2?" not in text
    page.go("#%3Cb%3Ex")
    assert page.texts("h2") == ["Not in this report"] and page.texts("#main bdi") == ["<b>x"]
    assert page.complaints() == []


@needs_chromium
def test_a_missing_answer_is_not_a_missing_verdict(files, open_page):
    """The first is the system's failure and counts 0; the second is the judge's and does not count."""
    path = files.responses("a.json", {"rpg_1": " \n", "diy_2": "x", "law_3": "y"})
    scores = json.loads(Path(files.scores("s.json", {"rpg_1": [0, 0], "diy_2": [None], "law_3": [2, 1]})).read_text())
    scores["per_question_scores"][0]["answered"] = False
    output = files.report("--system", "A", path, files.write("s.json", scores))
    index, _ = content(output)
    assert [question["failures"] for question in index["questions"]] == [[["no answer"]], [["unscored"]], [[]]]
    assert [question["scores"] for question in index["questions"]] == [[0], [None], [0.75]]
    page = open_page(output)
    for place, chip in (
        ("#rpg_1", "no answer|A: no answer, counts 0"),
        ("#diy_2", "unscored|A: unscored: no verdict"),
        ("#law_3", "2|A: 2 very well"),
    ):
        page.go(place)
        assert page.run(CHIPS)[0][1] == chip


@needs_chromium
def test_figures_agree_with_the_table(files, open_page):
    page = open_page(files.two_systems())
    panels = [
        [title, *page.texts("tr:has(th)", f"document.querySelectorAll('.panel')[{number}]")]
        for number, title in enumerate(page.texts(".panel h4"))
    ]
    assert panels == [
        ["Arts & Entertainment 1 question", "A RAG 0.75", "B Plan 0.25"],
        ["Lifestyle & Personal Development 0 to 1 question", "A RAG 0.50", "B Plan –"],
        ["Society & Culture 0 to 1 question", "A RAG 0.00", "B Plan –"],
        ["Average (macro) 1 to 3 questions", "A RAG 0.42", "B Plan –"],
    ]
    # One axis for all, from 0 to 0.8: where 0.75 and 0.25 are on it.
    places = page.run("[...document.querySelectorAll('.panel circle')].map((circle) => circle.getAttribute('cx'))")
    assert places[:3] == ["93.75%", "31.25%", "62.5%"] and len(places) == 5  # none where there is no mean
    assert page.texts(".map tbody tr") == ["rpg 1 0.75 0.25", "diy 1 0.50 –", "law 1 0.00 –"]
    # Bars are the intervals; the axis begins at 0.4 and ends at 0.8.
    point = {"mean": 0.6, "interval": [0.45, 0.75], "questions": 9}
    page.run(f"index.panels = [{{...index.panels[0], points: [{json.dumps(point)}]}}]; show()")
    ends = "['x1', 'x2'].map((end) => document.querySelector('.range').getAttribute(end))"
    assert page.run(ends) == ["12.5%", "87.5%"]


@needs_chromium
def test_filters_search_and_keys(files, open_page):
    page = open_page(files.two_systems())  # scores: 0.75 and 0.25, 0.5 and none, 0 and none
    for field, value, expected in [
        ("group", "Society & Culture", ["law_3"]),
        ("subgroup", "diy", ["diy_2"]),
        ("failure", "no answer", ["diy_2"]),
        ("least", "0.5", ["rpg_1", "diy_2"]),
        ("most", "0.25", ["rpg_1", "law_3"]),
        ("differ", "0.5", ["rpg_1"]),
        ("differ", "0.51", []),
    ]:
        page.set(field, value)
        assert page.listed() == expected, (field, value)
        page.set(field, "")
    for query, expected in [
        ("plan on LAW", ["law_3"]),  # an answer
        ("second title", ["rpg_1"]),  # a plan, in any order
        ("output", []),  # names of fields are not texts
        ("  ", ["rpg_1", "diy_2", "law_3"]),
    ]:
        page.run(f"$('search').value = {json.dumps(query)}; search()")
        assert page.listed() == expected, query
    for key, place in (("j", "#rpg_1"), ("ArrowRight", "#diy_2"), ("k", "#rpg_1")):
        page.press(key)
        assert page.run("document.querySelector('[aria-current]').hash") == place


@needs_chromium
def test_hostile_texts_change_nothing(files, open_page):
    """Every text of the page is hostile or huge; nothing runs, loads, or leaves its place."""
    files.data[0] |= {"question": NASTY, "narrative": NASTY}
    files.data[0]["rubric_aspects"] = [{"aspect": NASTY, "evidence": NASTY, "reason": NASTY}]
    files.data[2]["rubric_aspects"] = [{"aspect": "x" * 100_000, "evidence": "", "reason": ""}]
    other = files.scores("other.json", {"rpg_1": [1], "law_3": [2]})
    scores = files.scores("s.json", {"rpg_1": [None], "law_3": [1]}, raw=NASTY + "\ud800", reason=NASTY)
    files.data[0]["category"] = NASTY  # the score files have a known one
    files.data[0]["profile"] = [{"id": "p", "text": NASTY}]
    files.data[1]["id"] = '"><img src=x onerror=alert(1)>'
    files.inputs = files.write("data.json", files.data)
    outputs = {"rpg_1": NASTY, "law_3": "x" * 100_000}
    path = files.responses("a.json", outputs, file_hash(files.inputs), num_contexts_used=1, plan=NASTY)
    again = files.responses("b.json", {"rpg_1": NASTY, "law_3": NASTY})
    page = open_page(files.report("--system", NASTY, path, scores, "--system", NASTY + "2", again, other))
    name = page.run("visible(index.systems[0])")
    for drawn in (".scores .system bdi", ".panel bdi", ".legend bdi", ".pair h4 bdi"):
        assert page.run(f"document.querySelector('{drawn}').textContent") == name
    assert page.run("document.querySelectorAll('img, b, main script, main style').length") == 0
    page.go("#rpg_1")
    page.run("document.querySelectorAll('details').forEach((details) => details.open = true)")
    seen = NASTY.replace("\0", "␀")  # a sign for what has none
    for part in (".text", ".plans .written", ".unseen", ".posts .written", ".verdicts .title", ".words .raw"):
        assert page.run(f"document.querySelector('{part}').textContent").startswith(seen[:120])
    assert page.run("document.title") == "LaMP-QA report"
    assert page.run("document.querySelectorAll('img, b, main script').length") == 0
    bidi = "[...document.querySelectorAll('.written')].every((e) => getComputedStyle(e).unicodeBidi != 'normal')"
    assert page.run(bidi)
    page.press("j")
    assert page.run("document.querySelector('h2').textContent") == "Question diy_2?"  # by its id in the address
    page.press("j")
    assert page.run("document.querySelector('.text').textContent.length") == 100_000
    assert page.run("$('main').scrollWidth <= $('main').clientWidth")  # it is broken into lines
    assert page.complaints() == []
    assert page.requests() == [(files.folder / "report.html").as_uri()]


def test_a_system_may_have_partial_answers_and_no_scores(files):
    parts = [files.responses("a1.json", {"rpg_1": "x"}), files.responses("a2.json", {"diy_2": "y", "law_3": "z"})]
    parts += [files.scores("s1.json", {"rpg_1": [2, 2]}), files.scores("s2.json", {"diy_2": [1], "law_3": [0, 0]})]
    index, _ = content(files.report("--system", "A", *parts))
    assert [question["scores"] for question in index["questions"]] == [[1.0], [0.5], [0.0]]
    plans = files.write("plans.json", {"diy_2": [{"aspects": ["a"]}]})
    index, texts = content(files.report("--system", "A", parts[1], plans))
    assert index["table"] is None and [text["answers"][0] is None for text in texts] == [True, False, False]
    assert index["questions"][0]["failures"] == [["no answer"]]  # and not unscored, because there was nothing to score
    assert "A: its files have no plan for 1 question that it answers." in index["notes"]


@pytest.mark.parametrize(
    ("prompted", "plan", "belongs"),
    [("a\nb", {"aspects": ["a", "b"]}, True), ("a\nb", {"aspects": ["a", "c"]}, False),
     ("My plan:\n- a\n- b\n", {"aspects": ["a", "b"], "raw": "My plan:\n- a\n- b\n"}, True),
     ("My plan:\n- a\n- b\n", {"aspects": ["a", "b"]}, True),  # a plan without its text
     ("My plan:\n- a\n- b\n", {"aspects": ["b"], "raw": "My plan:\n- b\n"}, False),
     (None, {"aspects": None}, True), (None, {"aspects": ["a"]}, False), ("a", {"aspects": None}, False)],
)  # fmt: skip
def test_plans_of_other_answers_are_refused(files, prompted, plan, belongs):
    answers = files.responses("a.json", {"rpg_1": "x"}, plan=prompted)
    plans = files.write("plans.json", {"rpg_1": [plan]})
    for order in ((plans, answers), (answers, plans)):
        if belongs:
            assert content(files.report("--system", "A", *order))[1][0]["answers"][0]["plan"] == (plan["aspects"] or [])
            (files.folder / "report.html").unlink()
            continue
        with pytest.raises(UserError, match=r"plans\.json: id 'rpg_1': not the plan with which .*a\.json was made\n"):
            files.report("--system", "A", *order)


def test_answers_in_lamps_own_format(tmp_path):
    source = ["--source_dir", str(ROOT / "tests/data/mini_lamp"), "--output_dir", str(tmp_path)]
    assert download_datasets.main(["--dataset", "LaMP-4", *source]) == 0
    inputs, answers = tmp_path / "LaMP-4_user_dev.json", tmp_path / "answers.json"
    ids = [record["id"] for record in json.loads(inputs.read_text())]
    golds = [{"id": one, "output": f"A headline for {one}"} for one in ids]
    answers.write_text(json.dumps({"task": "LaMP_4", "golds": golds}))
    output = tmp_path / "report.html"
    command = ["--inputs_addr", str(inputs), "--system", "Theirs", str(answers), "--output_addr", str(output)]
    assert main(command) == 0 and f"A headline for {ids[-1]}" in output.read_text()
    answers.write_text(json.dumps({"task": "LaMP_7", "golds": golds}))
    with pytest.raises(UserError, match="LaMP_7"):
        main([*command, "--overwrite"])
