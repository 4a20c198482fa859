"""No text makes a parser hang: endless repetitions of a model, up to 1 MB."""

import signal

import pytest

from utils.benchmarks.choices import parse_level, parse_preference, parse_verdict
from utils.benchmarks.lamp.bare_text import parse_rating, parse_text
from utils.benchmarks.lamp.task import CITATION, MOVIE_TAG
from utils.benchmarks.lampqa.answers import parse_answer
from utils.benchmarks.lampqa.plans import parse_plan, plan_parser
from utils.benchmarks.personamem.letters import parse_letter, read_officially
from utils.benchmarks.personamem.v2 import parse_yes_no
from utils.benchmarks.thoughts import split_thoughts
from utils.building.asking import parse_aspects, parse_needs

# Readers, and beginnings of texts after which the reader continues.
PARSERS = {
    "answer": (parse_answer, '{"personalized_answer": "'),
    "answer, a list": (parse_answer, '{"personalized_answer": ['),
    "verdict": (parse_verdict, "match_score: "),
    "level": (parse_level, '{"score": '),
    "preference": (parse_preference, "better_response: "),
    "needs": (parse_needs, "needs_personalization: "),
    "aspects": (parse_aspects, '{"aspects": [{"aspect": "'),
    "plan": (parse_plan, "Plan:\n"),
    "plan, an array": (parse_plan, '["'),
    "reference plan": (plan_parser("The aspects are:\n"), "The aspects are:\n- "),
    "letter": (parse_letter, "answer"),
    "letter, final": (parse_letter, "final_answer"),
    "letter behind the marker": (parse_letter, "<final_answer>"),
    "official letter": (lambda text, cut: read_officially(text, "a"), "<final_answer>"),
    "yes or no": (parse_yes_no, "The verdict is "),
    "rating": (parse_rating, "4"),
    "citation": (CITATION.parse, "1"),
    "tag": (MOVIE_TAG.parse, "based"),
    "text": (parse_text, "Title"),
    "thoughts": (split_thoughts, "<think>"),
    "channels": (split_thoughts, "<|channel|>analysis"),
}
LONGEST = ("\n", " ", '"', "a ")  # 1 MB of each, 100 KB of the others
PIECES = (
    *LONGEST, "\t", "a", "A\n", "(", "(a", "a)", "a:\n", "[", "]", "{", "}", '{"', "'", "“", "\\", '\\"', "\\u", "`",
    "```\n", "``` ", "*", "**", "**a ", "_", "#", "# ", ">", "-", "- ", "- Cost\n", "1. ", "(1) ", "1 to ",
    "4 out of ", "0", "0.", ",", ", ", "/", "//", "/*", ":", ": ", "or and ", "answer is\n", "option a ",
    "<final_answer>", "</final_answer>", "<think>", "</think>", "<think></think>", "dark  ", "sci-", '" \n', '"//',
    '"/*', '"}', '{"a":', '{"":[0,', '["a", ', '"a" ', "personalized_answer", '{"personalized_answer": "',
    "match_score: 1 ", ',"match_score":', "score: 1\n", '{"better_response": "', "the first ",
    "[THINK]", "<|channel|>a", "<|channel|>a<|message|>", "needs_personalization: ", "is the following ", "\ud83d",
    "\0", "\ufeff", "é", "\\boxed{", "boxed{no} or ", "a is ", ". (a) ", "go with ",
)  # fmt: skip
SECONDS = 60  # a quadratic search takes minutes


@pytest.fixture
def limit():
    """Return a function to call before each text, which fails the test SECONDS later by a signal."""

    def hang(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, hang)
    yield lambda: signal.alarm(SECONDS)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.alike("first")
@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize("name", PARSERS)
def test_no_repetition_makes_a_parser_hang(name, first, limit):
    """Tests every fifth piece."""
    parse, opening = PARSERS[name]
    for piece in PIECES[first::5]:
        times = (1_000_000 if piece in LONGEST else 100_000) // len(piece)
        for ending, cut in (("", True), (" end", False)):
            limit()
            try:
                parse(opening + piece * times + ending, cut)
            except TimeoutError:
                pytest.fail(f"{opening!r}, {times} times {piece!r} and {ending!r} take over {SECONDS} seconds")
