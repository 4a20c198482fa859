"""The report: what stands in the file, and what Chromium makes of it."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from api_server import serve

import baselines
import evaluate_responses
import planpers
from utils.benchmarks.lampqa import CATEGORIES
from utils.cli import UserError
from utils.files.manifest import file_hash
from utils.report import main

SAMPLE = str(Path(__file__).parents[1] / "data/mini_lampqa/test.json")
CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt install chromium)")

NASTY = (
    "</script><script>document.title = 'run'</script><!-- <img src=x onerror=\"document.title = 'run'\"> -->"
    "<b>&amp;</p></div></body>\u202e right to left \u2067 \u0000 \u2028 ' \" \\ `code` {{texts}} {{index}} "
)


class Files:
    """A dataset of three questions and the files of systems, in a folder."""

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
            "id": question_id,
            "question": f"Question {question_id}?",
            "narrative": f"Narrative of {question_id}.",
            "category": community,
            "rubric_aspects": [{"aspect": a, "evidence": f"evidence {a}", "reason": f"reason {a}"} for a in aspects],
            "profile": [{"id": f"{question_id}_{i}", "text": f"Post {i} of {question_id}."} for i in range(3)],
        }

    def write(self, name, value):
        (self.folder / name).write_text(json.dumps(value), encoding="utf-8")
        return str(self.folder / name)

    def responses(self, name, outputs, inputs=None, **more):
        """A response file, and its manifest where the hash of its dataset is given."""
        path = self.write(name, {i: [{"output": output, **more}] for i, output in outputs.items()})
        if inputs is not None:
            manifest = {"settings": {"inputs": inputs}, "output_sha256": file_hash(path)}
            self.write(f"{name}.manifest.json", manifest)
        return path

    def scores(self, name, verdicts, **detail):
        """A score file by {id: verdicts}; a question's score is their sum over twice their number."""
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
        """Run it; the page, its index and its texts."""
        output = self.folder / "report.html"
        assert main(["--inputs_addr", *(inputs or [self.inputs]), "--output_addr", str(output), *arguments]) == 0
        return output

    def two_systems(self, **more):
        """RAG, 3/4, 1/2 and 0, and Plan with an answer that failed: 1/4, none and unscored."""
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
    """The index and the texts in a page, read as an HTML parser delimits them."""
    blocks = re.findall(r'<script type="application/json"[^>]*>(.*?)</script', path.read_text("utf-8"), re.S)
    assert all(map(str.isascii, blocks)) and not set("<>&\0") & set("".join(blocks))  # no markup in them
    index, *texts = map(json.loads, blocks)
    return index, texts


# What stands in the file


def test_what_was_selected_by_scores_is_marked(files):
    path = files.scores("best_s.json", {"rpg_1": [2, 1]})
    files.write("best_s.json", {**json.loads(Path(path).read_text()), "num_selected": 1})
    index, _ = content(files.report("--system", "Best", files.responses("best.json", {"rpg_1": "A"}), path))
    assert index["systems"] == ["Best (selected by score)"] == [row[0]["text"] for row in index["table"]["rows"]]


def test_table_and_questions_are_in_it(files):
    index, texts = content(files.two_systems())
    assert index["systems"] == ["RAG", "Plan"]
    # RAG: arts (2 + 1) / 4, lifestyle 1/2, society 0, macro 1.25 / 3; Plan: arts 1/4, no other question is scored
    cells = [[cell["text"] for cell in row] for row in index["table"]["rows"]]
    assert cells == [
        ["RAG", "0.7500", "0.5000", "0.0000", "0.4167", "3", "0", "0"],
        ["Plan", "0.2500", "–", "–", "–", "3", "0", "2"],
    ]
    assert [cell["bold"] for cell in index["table"]["rows"][0]] == [False, True, *[False] * 6]
    assert [question["scores"] for question in index["questions"]] == [[0.75, 0.25], [0.5, None], [0.0, None]]
    failures = [question["failures"] for question in index["questions"]]
    assert failures == [[[], []], [[], ["no answer", "unscored"]], [[], ["unscored"]]]
    assert [question["group"] for question in index["questions"]] == list(CATEGORIES)
    rag, plan = texts[0]["answers"]
    assert (rag["output"], rag["plan"], rag["verdicts"]) == (
        "RAG on rpg_1", [], [[2, "Judge says so.", None], [1, "Judge says so.", None]],
    )  # fmt: skip
    found = plan["output"], plan["plan"], plan["plan_raw"]
    assert found == ("Plan answers", ["first title", "second"], "first title\n")
    assert texts[0]["posts"] == ["Post 0 of rpg_1.", "Post 1 of rpg_1."]  # the two best of three
    assert (rag["posts"], plan["posts"]) == ([0, 1], [])
    assert texts[0]["aspects"][1] == ["pacing", "evidence pacing", "reason pacing"]
    assert texts[0]["unseen"] == {"narrative": "Narrative of rpg_1."}


def test_posts_are_those_of_the_dataset_that_was_answered_from(files):
    turned = files.write("turned.json", [{**record, "profile": record["profile"][::-1]} for record in files.data])
    one = files.responses("one.json", {"rpg_1": "a"}, file_hash(files.inputs), num_contexts_used=2)
    two = files.responses("two.json", {"rpg_1": "b"}, file_hash(turned), num_contexts_used=2)
    _, texts = content(files.report("--system", "1", one, "--system", "2", two, inputs=[files.inputs, turned]))
    assert texts[0]["posts"] == ["Post 0 of rpg_1.", "Post 1 of rpg_1.", "Post 2 of rpg_1."]
    assert [answer["posts"] for answer in texts[0]["answers"]] == [[0, 1], [2, 1]]  # each text stands once

    index, texts = content(files.report("--system", "1", one, "--system", "2", two))
    assert [answer["posts"] for answer in texts[0]["answers"]] == [[0, 1], None]
    assert [note for note in index["notes"] if "not shown" in note] == [
        "2: the posts used in 1 answer are not shown; by the manifest beside its responses, or for want of one, "
        "they are from no --inputs_addr."
    ]


def test_what_the_other_scripts_write_is_understood(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    rag, gold, rag_scores, gold_scores = (str(tmp_path / f"{name}.json") for name in ("rag", "gold", "rag_s", "gold_s"))
    with serve() as server:
        api = ["--openai", "--base_url", server.url, "--inputs_addr", SAMPLE]
        answers = [*api, "--model_addr", "model", "--rag", "--num_contexts", "3", "--unranked"]
        baselines.main([*answers, "--output_addr", rag])
        planpers.main([*answers, "--gold_plan", "--output_addr", gold])
        files = ["--response_addr", rag, gold, "--score_addr", rag_scores, gold_scores]
        evaluate_responses.main([*api, "--evaluator_llm", "judge", *files])
    output = tmp_path / "report.html"
    systems = ["--system", "RAG", rag, rag_scores, "--system", "Gold", gold, gold_scores, f"{gold}.plans.json"]
    assert main(["--inputs_addr", SAMPLE, "--output_addr", str(output), *systems]) == 0
    index, texts = content(output)
    assert ["more than one category" in note for note in index["notes"]] == [True, False]  # the other: on wordings
    responses = json.loads(Path(rag).read_text())
    for question, text, record in zip(index["questions"], texts, json.loads(Path(SAMPLE).read_text()), strict=True):
        answer_rag, answer_gold = text["answers"]
        assert text["posts"] == [post["text"] for post in record["profile"][:3]]
        assert answer_rag["output"] == responses[record["id"]][0]["output"]
        assert answer_gold["plan"] == [aspect["aspect"] for aspect in record["rubric_aspects"]]
        verdicts = [verdict for verdict, raw, reason in answer_rag["verdicts"]]
        assert question["scores"][0] == sum(verdicts) / 2 / len(verdicts)


def test_notes_on_an_answer(files):
    cut = {"output": "x", "truncated": True, "plan": None, "no_plan": "an empty plan", "raw": "{x}"}
    outputs = {
        "rpg_1": [{"output": None, "reason": {"code": 3}, "raw": "<b>", "plan": 7}],  # of other kinds, as JSON
        "diy_2": [cut, {"output": "y"}],
        "law_3": [{"output": "z", "plan": "one\ntwo", "parsed": "repaired", "num_contexts_dropped": 3}],
    }
    _, texts = content(files.report("--system", "A", files.write("a.json", outputs)))
    answers = [text["answers"][0] for text in texts]
    assert [answer["notes"] for answer in answers] == [
        ['reason: {"code": 3}'],
        ["answered without a plan: an empty plan", "cut at --max_tokens", "the first of 2 answers"],
        ["read from damaged JSON", "3 posts left out for length"],
    ]
    assert [answer["raw"] for answer in answers] == ["<b>", None, None]
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


def test_the_policy_lets_nothing_in_from_outside(files):
    page = files.two_systems().read_text()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'" and rules["form-action"] == "'none'" and rules["base-uri"] == "'none'"
    assert all(re.fullmatch(r"'sha256-[\w+/]{43}='", rules[name]) for name in ("script-src", "style-src"))
    assert "http:" not in page and "https:" not in page and "innerHTML" not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--system", "A"], r"--system 'A': no file of responses"),
        (["--system", "A", "scores"], r"--system 'A': no file of responses"),
        (["--system", "A", "answers", "--system", " A ", "others"], r"--system ' A ' is given twice"),
        (["--system", "A", "answers", "data.json"], r"data\.json: holds neither responses nor scores nor plans"),
        (["--system", "A", "answers", "answers"], r"answers: another file of this system has 'diy_2', 'rpg_1' too"),
        (["--system", "A", "answers", "foreign scores"], r"foreign scores: 1 id is in no --inputs_addr: 'x'"),
        (["--system", "A", "foreign answers"], r"foreign answers: its ids are not the dataset's"),
        (["--system", "A", "answers", "other aspects"], r"other aspects: question 'diy_2' was judged by other aspects"),
        (["--system", "A", "answers", "--inputs_addr", "data.json", "data2"], r"data2: id 'rpg_1' is another question"),
        (["--system", "A", "answers", "--inputs_addr", "data3"], r"data3: id 'rpg_1': field 'narrative' is a list; it"),
        (["--system", "A", "answers", "--output_addr", "answers"], r"answers: is an input too"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(files, monkeypatch, arguments, message):
    monkeypatch.chdir(files.folder)
    files.responses("answers", {"rpg_1": "x", "diy_2": "y"})
    files.responses("others", {"rpg_1": "x"})
    files.responses("foreign answers", {"x": "x"})
    files.scores("scores", {"rpg_1": [2, 2]})
    entry = {"id": "x", "category": "diy", "question_sha256": "x", "answered": True, "score": 0.5}
    entry["details"] = [{"aspect": "a", "score": 1}]
    files.write("foreign scores", {"num_unanswered": 0, "per_question_scores": [entry]})
    files.write("other aspects", {"num_unanswered": 0, "per_question_scores": [{**entry, "id": "diy_2"}]})
    files.write("data2", [{**files.data[0], "question": "Another?"}])
    files.write("data3", [{**files.data[0], "narrative": ["text"]}])
    before = (files.folder / "answers").read_bytes()
    with pytest.raises(UserError, match=message):
        main(["--inputs_addr", "data.json", "--output_addr", "report.html", *arguments])
    assert not (files.folder / "report.html").exists()
    assert (files.folder / "answers").read_bytes() == before


# In a browser


class Browser:
    """Headless Chromium, driven by the DevTools protocol over a pipe; its pages are kept by their sessions."""

    def __init__(self, folder):
        to_browser, commands = os.pipe()
        answers, from_browser = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        flags += [f"--user-data-dir={folder}", "about:blank"]
        pipes = f'exec "$@" 3</proc/self/fd/{to_browser} 4>/proc/self/fd/{from_browser}'  # where Chromium looks
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = ["sh", "-c", pipes, "sh", CHROMIUM, *flags]
        self.process = subprocess.Popen(command, pass_fds=(to_browser, from_browser), **silent)
        os.close(to_browser)
        os.close(from_browser)
        self.commands, self.answers = os.fdopen(commands, "wb"), os.fdopen(answers, "rb")
        self.number, self.pages = 0, {}

    def send(self, method, session=None, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        self.commands.write(json.dumps(message).encode() + b"\0")
        self.commands.flush()
        while (answer := self.read()).get("id") != self.number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def read(self):
        """The next message; events are kept by the page they are of."""
        letters = bytearray()
        while (letter := self.answers.read(1)) not in (b"\0", b""):
            letters += letter
        assert letter, "the browser is gone"
        message = json.loads(letters)
        if "method" in message and message.get("sessionId") in self.pages:
            self.pages[message["sessionId"]].events.append(message)
        return message

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.commands.write(b'{"id":0,"method":"Browser.close"}\0')
            self.commands.close()
        self.process.wait(timeout=600)
        self.answers.close()


class Page:
    """A page, in a profile of its own unless another page's is given, whom that belongs to."""

    def __init__(self, browser, path, width=1280, height=900, dark=False, place="", profile=None):
        self.browser, self.events = browser, []
        self.watchdog = threading.Timer(600, browser.process.kill)  # seconds; a browser that hangs ends the test
        self.watchdog.daemon = True
        self.watchdog.start()
        self.is_own = profile is None
        self.profile = profile or browser.send("Target.createBrowserContext")["browserContextId"]
        target = browser.send("Target.createTarget", url="about:blank", browserContextId=self.profile)["targetId"]
        self.session = browser.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.pages[self.session] = self
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=scheme)
        self.send("Page.navigate", url=path.as_uri() + place)
        self.wait_for_load()

    def wait_for_load(self):
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.browser.read()

    def send(self, method, **params):
        return self.browser.send(method, self.session, **params)

    def run(self, code):
        """The value of an expression, or of what it promises."""
        result = self.send("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def texts(self, selector, inside="document"):
        """What one reads in every such element, each in one line."""
        found = f"[...{inside}.querySelectorAll({json.dumps(selector)})]"
        return self.run(f"{found}.map((element) => element.innerText.replace(/\\s+/g, ' ').trim())")

    def go(self, place):
        self.run(
            f"new Promise((go) => {{ addEventListener('hashchange', go, {{once: true}}); location.hash = '{place}' }})"
        )

    def set(self, field, value):
        """Put a value into a field, as a user does."""
        event = "new Event('input', {bubbles: true})"
        self.run(f"$('{field}').value = {json.dumps(value)}; $('{field}').dispatchEvent({event})")

    def listed(self):
        """Ids of the questions in the list."""
        return self.run("passing.map((place) => questions[place].id)")

    def press(self, key):
        moved = "new Promise((go) => addEventListener('hashchange', go, {once: true}))"
        event = f"document.body.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}', bubbles: true}}))"
        self.run(f"{{ const moved = {moved}; {event}; moved }}")

    def complaints(self):
        """What the page logged, refused or threw."""
        names = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return [event["params"] for event in self.events if event["method"] in names]

    def requests(self):
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    def close(self):
        self.watchdog.cancel()
        if self.is_own:
            self.browser.send("Target.disposeBrowserContext", browserContextId=self.profile)
        del self.browser.pages[self.session]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


@pytest.fixture
def open_page(browser):
    with contextlib.ExitStack() as pages:

        def open_one(*arguments, **more):
            page = Page(browser, *arguments, **more)
            pages.callback(page.close)
            return page

        yield open_one


@needs_chromium
def test_a_question_is_shown_with_all_that_belongs_to_it(files, open_page):
    """Answers come first, side by side, and the posts last under one line."""
    page = open_page(files.two_systems())
    assert page.texts(".scores tbody tr") == ["A RAG 0.7500 0.5000 0.0000 0.4167 3 0 0", "B Plan 0.2500 – – – 3 0 2"]
    page.go("#rpg_1")
    parts = "h2, .verdicts, .answers, .plans, .unseen, .posts"
    order = page.run(f"[...$('main').querySelectorAll('{parts}')].map((part) => part.className || part.tagName)")
    assert [names.split()[-1] for names in order] == ["written", "verdicts", "answers", "plans", "unseen", "posts"]
    boxes = "[...document.querySelectorAll('.answer')].map((part) => part.getBoundingClientRect().toJSON())"
    left, right = page.run(boxes)
    assert left["top"] == right["top"] < 900 and left["right"] <= right["left"]  # in sight at once
    shown = page.run("$('main').innerText")
    texts = ("Question rpg_1?", "rpg (Arts & Entertainment)", "Profile posts used (2)", "RAG on rpg_1", "first title")
    assert all(text in shown for text in (*texts, "Narrative of rpg_1."))
    assert "Judge says so." not in shown and "evidence prep" not in shown  # on demand
    page.run("document.querySelector('.verdicts summary').click()")
    shown = page.run("$('main').innerText")
    assert "Judge says so." in shown and "evidence prep" in shown
    page.run("document.querySelector('.posts summary').click()")
    assert page.texts(".posts section") == ["Post 1, used by A Post 0 of rpg_1.", "Post 2, used by A Post 1 of rpg_1."]
    nodes = page.send("Accessibility.getFullAXTree")["nodes"]
    fields = ("searchbox", "combobox", "spinbutton", "button", "link", "navigation")
    names = [(node["role"]["value"], node["name"]["value"]) for node in nodes if not node["ignored"]]
    assert {role for role, _ in names} >= set(fields) and ("", *fields) not in names
    assert [role for role, name in names if role in fields and not name.strip()] == []  # a screen reader has them
    page.send("Emulation.setEmulatedMedia", media="print")  # holds the shown question alone
    text = page.run("document.body.innerText")
    assert "RAG on rpg_1" in text and "Search" not in text and "Question diy_2?" not in text
    page.go("#")
    assert page.run("document.querySelector('h2').textContent") == "Overview"
    assert page.complaints() == []


CHIPS = """
[...document.querySelectorAll('.verdicts summary')].map((line) => [line.querySelector('.title').textContent,
  ...[...line.querySelectorAll('.chip')].map((chip) => chip.textContent + '|' + chip.ariaLabel)])
"""  # by aspect
HEADS = ".answer header"


@needs_chromium
def test_blocks_of_code_stay_what_was_written(files, open_page):
    output = "Do this:\n```python\nif x:\n    <b>`y`</b>\n```\nand `that`.\n```\nnever closed"
    page = open_page(files.report("--system", "A", files.responses("a.json", {"rpg_1": output})))
    page.go("#rpg_1")
    assert page.run("document.querySelector('.text').textContent") == output
    assert page.texts(".text code") == ["```python if x: <b>`y`</b> ```"]


@needs_chromium
def test_a_missing_answer_is_not_a_missing_verdict(files, open_page):
    """The first is the system's failure and counts 0, the second the judge's and counts nothing."""
    path = files.responses("a.json", {"rpg_1": " \n", "diy_2": "x", "law_3": "y"})
    scores = json.loads(Path(files.scores("s.json", {"rpg_1": [0, 0], "diy_2": [None], "law_3": [2, 1]})).read_text())
    scores["per_question_scores"][0]["answered"] = False
    output = files.report("--system", "A", path, files.write("s.json", scores))
    index, texts = content(output)
    assert [question["failures"] for question in index["questions"]] == [[["no answer"]], [["unscored"]], [[]]]
    assert [question["scores"] for question in index["questions"]] == [[0], [None], [0.75]]
    assert [text["answers"][0]["answered"] for text in texts] == [False, True, True]
    page = open_page(output)
    for place, chip, head in [
        ("#rpg_1", "no answer|A: no answer, counts 0", "A A 0.00 no answer"),
        ("#diy_2", "unscored|A: unscored: no verdict", "A A – –"),
        ("#law_3", "2|A: 2 very well", "A A 0.75 2 1"),
    ]:
        page.go(place)
        assert page.run(CHIPS)[0][1] == chip
        assert page.texts(HEADS) == [head]
        assert page.texts(".answer > p") == (["(no answer)"] if place == "#rpg_1" else [])
    rows = [row.split("? ")[1] for row in page.texts("#list li")]
    assert rows == ["rpg · no answer A A 0.00", "diy · unscored A A –", "law A 0.75"]


# The figures on the first page


def test_heat_map_has_the_mean_of_every_community(files):
    files.data += [Files.question("rpg_4", "rpg", ["x"]), Files.question("other_5", "chess", ["x"])]
    files.inputs = files.write("data.json", files.data)
    index, _ = content(files.two_systems())
    assert index["judged"] == [0, 1]
    assert index["subgroups"] == [
        {"subgroup": "rpg", "group": "Arts & Entertainment", "questions": 2, "cells": [[0.75, 1], [0.25, 1]]},
        {
            "subgroup": "diy", "group": "Lifestyle & Personal Development", "questions": 1,
            "cells": [[0.5, 1], [None, 0]],
        },
        {"subgroup": "law", "group": "Society & Culture", "questions": 1, "cells": [[0, 1], [None, 0]]},
        {"subgroup": "chess", "group": "unknown", "questions": 1, "cells": [[None, 0], [None, 0]]},
    ]  # fmt: skip


@needs_chromium
def test_figures_show_what_the_table_says(files, open_page):
    files.data.append(Files.question("rpg_4", "rpg", ["x"]))  # without answers
    files.inputs = files.write("data.json", files.data)
    output = files.two_systems()
    page = open_page(output)
    heads = ["Table", "Mean scores with 95% intervals", "Mean scores by community"]
    assert page.texts("h3") == [*heads, "Largest differences between two systems"]
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
    assert places[:3] == ["93.75%", "31.25%", "62.5%"]
    assert len(places) == 5  # none where there is no mean
    assert page.texts(".map tbody tr") == ["rpg 2 0.75 of 1 0.25 of 1", "diy 1 0.50 –", "law 1 0.00 –"]
    shades = page.run("[...document.querySelectorAll('.map td')].map((cell) => cell.className)")
    assert shades == ["h8", "h3", "h5", "quiet", "h0", "quiet"]
    # Bars are the intervals; the axis begins at 0.4 and ends at 0.8.
    point = {"mean": 0.6, "interval": [0.45, 0.75], "questions": 9}
    page.run(f"index.panels = [{{...index.panels[0], points: [{json.dumps(point)}]}}]; show()")
    ends = "['x1', 'x2'].map((end) => document.querySelector('.range').getAttribute(end))"
    assert page.run(ends) == ["12.5%", "87.5%"]
    assert page.texts(".panel .number") == ["0.60 0.45–0.75"]
    assert page.complaints() == []


GAPS = """
[...document.querySelectorAll('.pair li')].map((line) => [line.querySelector('strong').textContent,
  line.querySelector('a').hash, ...[...line.querySelectorAll('.points')].map((part) => part.textContent)].join(' '))
"""  # the difference, the question, the scores


@needs_chromium
def test_largest_differences_lead_to_their_questions(files, open_page):
    files.data += [Files.question(f"diy_{i}", "diy", ["x"]) for i in range(3, 16)]
    files.inputs = files.write("data.json", files.data)
    arguments = []
    for name, verdicts in [
        ("one", {"rpg_1": [2, 2], "law_3": [0, 0], "diy_2": [1]}),
        ("two", {"rpg_1": [2, 1], "law_3": [2, 1], "diy_2": [1]}),
        ("three", {"rpg_1": [0, 0], "law_3": [None, 0], "diy_2": [2]}),
    ]:
        more = {f"diy_{i}": [2 if name == "three" else 1] for i in range(3, 16)}
        answers = files.responses(f"{name}.json", dict.fromkeys(verdicts, "x"))
        arguments += ["--system", name, answers, files.scores(f"{name}_s.json", verdicts | more)]
    page = open_page(files.report(*arguments))
    assert page.run("[$('first').value, $('second').value]") == ["0", "2"]
    many = [f"+0.50 #diy_{i} A 0.50 C 1.00" for i in range(2, 12)]  # ten at most, equal ones as in the dataset
    assert page.texts(".pair h4") == ["A one is higher", "C three is higher"]
    assert page.run(GAPS) == ["+1.00 #rpg_1 A 1.00 C 0.00", *many]
    [count] = page.texts("#differences > p")
    assert count == "Of 15 questions with a score of both: 1 where A is higher, 14 where C is, 0 where they are equal."
    page.set("second", "1")
    assert page.run(GAPS) == ["+0.25 #rpg_1 A 1.00 B 0.75", "+0.75 #law_3 A 0.00 B 0.75"]
    page.run("new Promise((go) => { addEventListener('hashchange', go); document.querySelector('.pair a').click(); })")
    assert page.run("document.querySelector('h2').textContent") == "Question rpg_1?"
    page.go("#")
    assert page.run("[$('first').value, $('second').value]") == ["0", "1"]  # as it was left
    page.set("first", "1")
    assert page.run("$('differences').innerText") == "Choose two different systems."


@needs_chromium
def test_figures_of_one_system_and_of_none(files, open_page):
    answers = files.responses("a.json", {"rpg_1": "x"})
    scored = files.responses("b.json", {"rpg_1": "x"}), files.scores("b_s.json", {"rpg_1": [2, 1]})
    page = open_page(files.report("--system", "A", answers, "--system", "scored", *scored))
    assert page.texts(".panel th") == ["B scored"] * 2
    assert page.texts(".map thead tr") == ["Community B"] * 3
    assert "2 systems (1 without scores)" in page.run("$('main').innerText")
    assert "They need two systems with scores." in page.run("$('main').innerText")
    page.go("#rpg_1")
    assert page.run(CHIPS)[0] == ["prep", "2|scored: 2 very well"]
    page.events.clear()
    page.send("Page.navigate", url=files.report("--system", "A", answers).as_uri())
    page.wait_for_load()
    assert page.run("$('main').querySelectorAll('table, svg, select').length") == 0
    assert "No score files were given" in page.run("$('main').innerText")
    assert page.complaints() == []


@needs_chromium
def test_an_unknown_id_says_so(files, open_page):
    page = open_page(files.two_systems())
    for place, shown in (("#nope", "nope"), ("#%3Cb%3E%E0%A4%A", "%3Cb%3E%E0%A4%A"), ("#%3Cb%3Ex", "<b>x")):
        page.go(place)
        assert page.run("document.querySelector('h2').textContent") == "Not in this report"
        assert page.run("$('main').querySelector('bdi').textContent") == shown
        assert page.run("document.querySelectorAll('#list [aria-current], main b').length") == 0
    page.press("j")
    assert page.run("location.hash") == "#rpg_1"


@needs_chromium
def test_a_link_opens_its_question_and_keys_go_on_from_there(files, open_page):
    page = open_page(files.two_systems())
    seen = []
    for key in ("j", "ArrowRight", "k", "j", "ArrowRight", "ArrowLeft"):
        before = page.run("location.hash")
        if (key, before) != ("ArrowRight", "#law_3"):
            page.press(key)
        seen.append(page.run("document.querySelector('[aria-current]').hash"))
    assert seen == ["#rpg_1", "#diy_2", "#rpg_1", "#diy_2", "#law_3", "#diy_2"]
    assert page.run("document.activeElement.tagName") == "H2"  # screen readers go on here
    page.set("subgroup", "law")
    page.press("j")
    assert page.run("location.hash") == "#law_3"  # only what passes the filters


@needs_chromium
def test_a_search_colours_what_it_found_and_the_title_of_what_is_folded(files, open_page):
    page = open_page(files.two_systems())
    page.go("#rpg_1")
    page.run("$('search').value = 'rpg_1 says'; search()")
    found = page.run("[...CSS.highlights.get('found')].map((range) => range.toString())")
    assert [found.count(line) for line in ("prepA2B0", "pacingA1B1")] == [1, 1]
    page.run("new Promise((go) => { document.querySelector('.verdicts details').open = true; setTimeout(go, 100); })")
    found = page.run("[...CSS.highlights.get('found')].map((range) => range.toString())")
    assert (found.count("pacingA1B1"), found.count("says")) == (1, 1)


@needs_chromium
def test_whatever_was_written_changes_nothing(files, open_page):
    """Every text of the page is hostile, or huge; nothing runs, loads, or comes out of its place."""
    files.data[0] |= {"question": NASTY, "narrative": NASTY}
    files.data[0]["rubric_aspects"] = [{"aspect": NASTY, "evidence": NASTY, "reason": NASTY}]
    files.data[2]["rubric_aspects"] = [{"aspect": "x" * 100_000, "evidence": "", "reason": ""}]
    other = files.scores("other.json", {"rpg_1": [1], "law_3": [2]})
    scores = files.scores("s.json", {"rpg_1": [None], "law_3": [1]}, raw=NASTY + "\ud800", reason=NASTY)
    files.data[0]["category"] = NASTY  # in the score files it is one that is known
    files.data[0]["profile"] = [{"id": "p", "text": NASTY}]
    files.data[1]["id"] = '"><img src=x onerror=alert(1)>'
    files.inputs = files.write("data.json", files.data)
    path = files.responses(
        "a.json", {"rpg_1": NASTY, "law_3": "x" * 100_000}, file_hash(files.inputs), num_contexts_used=1, plan=NASTY
    )
    again = files.responses("b.json", {"rpg_1": NASTY, "law_3": NASTY})
    page = open_page(files.report("--system", NASTY, path, scores, "--system", NASTY + "2", again, other))
    name = page.run("visible(index.systems[0])")
    assert page.run("document.querySelectorAll('.panel, .map, .pair li').length") == 3 + 3 + 1
    for drawn in (".scores .system bdi", ".panel bdi", ".legend bdi", ".pair h4 bdi"):
        assert page.run(f"document.querySelector('{drawn}').textContent") == name
    assert page.run("document.querySelectorAll('.map')[2].querySelector('bdi').textContent").startswith("</script>")
    assert page.run("document.querySelectorAll('img, b, main script, main style').length") == 0
    assert page.run("$('main').scrollWidth <= $('main').clientWidth")
    page.go("#rpg_1")
    page.run("document.querySelectorAll('details').forEach((details) => details.open = true)")
    seen = NASTY.replace("\0", "␀")  # a sign for what has none
    for part in (".text", ".plans .written", ".unseen", ".posts .written", ".verdicts .title", ".words .raw"):
        assert page.run(f"document.querySelector('{part}').textContent").startswith(seen[:120])
    assert page.run("document.title") == "LaMP-QA report"
    assert page.run("document.querySelectorAll('img, b, main script').length") == 0
    assert page.run("document.querySelectorAll('script').length") == 1 + 1 + 3
    assert page.run(
        "[...document.querySelectorAll('.written')].every((e) => getComputedStyle(e).unicodeBidi != 'normal')"
    )
    page.press("j")
    assert page.run("document.querySelector('h2').textContent") == "Question diy_2?"  # by its id in the address
    page.press("j")
    assert page.run("document.querySelector('.text').textContent.length") == 100_000
    assert page.run("$('main').scrollWidth <= $('main').clientWidth")  # it is broken into lines
    assert page.complaints() == []
    assert page.requests() == [(files.folder / "report.html").as_uri()]


@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone_nothing_is_wider_than_the_screen(files, open_page, dark):
    page = open_page(files.two_systems(), width=390, height=844, dark=dark, place="#law_3")
    assert page.texts("h2") == ["Question law_3?"]  # and not the list alone, which stands above it
    assert page.run("$('filters').open") is False
    for place in ("#rpg_1", "#"):
        page.go(place)
        assert page.run("document.documentElement.scrollWidth") == 390
        assert page.run("document.querySelector('h2').getBoundingClientRect().top") < 844  # what is new is in sight
    background = page.run("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(21, 23, 26)" if dark else "rgb(255, 255, 255)")


LONG_NAMES = (
    "No personalization",
    "RAG, random profile (k=10)",
    "RAG, asker's profile (Contriever, k=10)",
    "PlanPers (Qwen2.5-7B planner trained with LoRA)",
    "PlanPers_with_gold_plans_and_a_name_without_a_space",
)


@needs_chromium
@pytest.mark.parametrize("width", [400, 1400])
def test_five_systems_with_long_names_scroll_in_their_boxes_only(files, open_page, width):
    files.data[0]["category"] = "sustainability"
    files.inputs = files.write("data.json", files.data)
    arguments = []
    for number, name in enumerate(LONG_NAMES):
        outputs = {"rpg_1": "```\n" + "x = 1; " * 300 + "\n```\n", "diy_2": "word " * 500, "law_3": None}
        verdicts = {"rpg_1": [2, 1], "diy_2": [number % 3], "law_3": [None, 0]}
        arguments += ["--system", name, files.responses(f"{number}.json", outputs, plan="A title\n" * 9)]
        arguments += [files.scores(f"{number}_s.json", verdicts, raw="words " * 100)]
    page = open_page(files.report(*arguments), width=width)
    wide = "[...document.querySelectorAll('.wide')].filter((box) => box.scrollWidth > box.clientWidth)"
    for place in ("#rpg_1", "#diy_2", "#"):
        page.go(place)
        page.run("document.querySelectorAll('main details').forEach((details) => details.open = true)")
        assert page.run("document.documentElement.scrollWidth <= innerWidth"), place
        assert page.run("$('main').scrollWidth <= $('main').clientWidth"), place
        boxes = page.run(f"{wide}.map((box) => box.getAttribute('aria-label'))")
        assert "Table" not in boxes and (width > 400 or boxes == []), place  # a phone is scrolled downwards only
        if place == "#diy_2":  # side by side, on a phone below each other
            tops = page.run("[...document.querySelectorAll('.answer')].map((part) => part.getBoundingClientRect().top)")
            assert len(set(tops)) == (5 if width == 400 else 1)
    heads = page.run("getComputedStyle(document.querySelector('.scores thead')).display")
    labels = page.run("getComputedStyle(document.querySelector('.scores td'), '::before').content")
    assert (heads, labels) == (("table-header-group", "none") if width == 1400 else ("none", '"Arts & Entertainment"'))


@needs_chromium
def test_of_many_questions_the_list_shows_a_part(files, open_page):
    files.data = [files.question(f"q{i}", "rpg", ["one"]) for i in range(1000)]
    files.inputs = files.write("data.json", files.data)
    answers = files.responses("a.json", {record["id"]: f"Answer to {record['id']}." for record in files.data})
    page = open_page(files.report("--system", "A", answers))
    assert page.run("$('list').children.length") <= 200 and len(page.listed()) == 1000
    page.go("#q999")
    assert "Answer to q999." in page.run("$('main').innerText")


def test_a_system_may_have_a_file_a_category_a_part_of_the_answers_and_no_scores(files):
    parts = [files.responses("a1.json", {"rpg_1": "x"}), files.responses("a2.json", {"diy_2": "y", "law_3": "z"})]
    parts += [files.scores("s1.json", {"rpg_1": [2, 2]}), files.scores("s2.json", {"diy_2": [1], "law_3": [0, 0]})]
    index, _ = content(files.report("--system", "A", *parts))
    assert [question["scores"] for question in index["questions"]] == [[1.0], [0.5], [0.0]]
    plans = files.write("plans.json", {"diy_2": [{"aspects": ["a"]}]})
    index, texts = content(files.report("--system", "A", parts[1], plans))
    assert index["table"] is None and [text["answers"][0] is None for text in texts] == [True, False, False]
    assert index["questions"][0]["failures"] == [["no answer"]]  # and not unscored: nothing was to be
    assert "A: its files have no plan for 1 question that it answers." in index["notes"]


@needs_chromium
def test_filters_and_search(files, open_page):
    page = open_page(files.two_systems())  # scores: 0.75 and 0.25, 0.5 and none, 0 and none
    for field, value, expected in [
        ("group", "Society & Culture", ["law_3"]),
        ("subgroup", "diy", ["diy_2"]),
        ("failure", "any", ["diy_2", "law_3"]),
        ("failure", "no answer", ["diy_2"]),
        ("least", "0.5", ["rpg_1", "diy_2"]),
        ("most", "0.25", ["rpg_1", "law_3"]),
        ("differ", "0.5", ["rpg_1"]),
        ("differ", "0.51", []),
    ]:
        page.set(field, value)
        assert page.listed() == expected, (field, value)
        assert page.run("$('count').textContent") == f"{len(expected)} of 3 questions"
        page.set(field, "")
    page.set("scored", "1")  # Plan
    page.set("least", "0")
    assert page.listed() == ["rpg_1"]
    page.run("new Promise((go) => { document.querySelector('[type=reset]').click(); setTimeout(go, 100); })")
    assert len(page.listed()) == 3
    for query, expected in [
        ("plan on LAW", ["law_3"]),  # an answer
        ("post 1 of DIY_2", ["diy_2"]),
        ("second title", ["rpg_1"]),  # a plan, in any order
        ("evidence pacing", ["rpg_1"]),
        ("output", []),  # names of fields are no text
        ("  ", ["rpg_1", "diy_2", "law_3"]),
    ]:
        page.run(f"$('search').value = {json.dumps(query)}; search()")
        assert page.listed() == expected, query
