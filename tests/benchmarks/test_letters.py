"""The letter of an option as models write it, and as the public code parses it."""

import itertools
import re

import pytest

from utils.benchmarks.personamem.letters import LETTERS, parse_letter, read_officially

# Each must be parsed the same with each of the letters a to d and A to D.
PHRASINGS = [
    *("{}", "({})", "**{}**.", "[{}]", " ( {} ) ", "{})", "{}."),
    *("{}) because it fits", "- {}. It fits.", "{}: it fits", "It suits me: ({})", "({}) fits, as she said"),
    *("Option {} is the best", "I would take option {}.", "Option {}: it fits", "Option **{}**"),
    *("The answer is {}", "The answer is {} because it fits", "the answer is {}, since it fits", "The answer is: {}"),
    *("Answer: {}", "Answer: {} since it fits", "answer = {}", "**Answer:** {}", "Answer: **{}**", "Answer:\n\n{}"),
    *("final answer: {}\nReason: it fits", "Final answer\n{} fits best", "Answer: {}\n\nA fit"),
    *("The best choice is {}", "My choice: {}", "the response {} is the best", "Response {}", "Letter {}"),
    *("<final_answer>{}", "<final_answer> {} fits best", "<final_answer>({})", "<final_answer>({}, which fits"),
    *("<final_answer>\n{}\n</final_answer>", "<final_answer> Option {} fits", "<final_answer>: {}"),
    *("<final_answer>The answer is {} because", "<final_answer> It has to be ({})", "<final_answer>**{}** fits"),
    *("(d)? no. <final_answer>{}", "<final_answer>(c) <final_answer>({})"),
    *("<final_answer>({}), a good one", "Answer: {}, a good one", "<final_answer>({}) and ({})"),
    *("<final_answer>'{}'</final_answer>", "The answer is '{}'.", "Answer: '{}'", "Answer: ‘{}’", "“{}”"),
    *("\\boxed{{ {} }}", "$$\\boxed{{\\textbf{{{}.}}}}$$", "\\boxed{{\\mathrm{{({})}}}}"),
    *("\\boxed{{{}}}", "So $\\boxed{{\\text{{{}}}}}$.", "I would pick ({}), not least for"),
    *("final_answer: {}", '"final_answer": "{}"'),
    *("Final answer: {}. Unlike (c), it fits", "(c)? No. Final answer: option ({})", "<final_answer>({})\n\nC: no"),
]


@pytest.mark.parametrize("phrasing", PHRASINGS)
def test_all_letters_are_read_alike(phrasing):
    for letter in (*LETTERS, *map(str.upper, LETTERS)):
        assert parse_letter(phrasing.format(letter, letter)).value == letter.lower(), letter


@pytest.mark.parametrize(
    "phrasing",
    ["I'd say the answer is {} matter of taste", "The best choice is {} warm reply", "To answer {} question like this"],
)
def test_an_article_is_the_only_letter_that_is_not_read(phrasing):
    assert parse_letter(phrasing.format("a")).value is None
    for letter in ("b", "c", "d", "A"):
        assert parse_letter(phrasing.format(letter)).value == letter.lower()


TIED = ["({})({})", "({}) ({})", "({}) vs ({})", "option {} vs. {}", "({})/({})", "Final answer: {} or {}"]


@pytest.mark.parametrize(
    "joined", ["({}) or ({})", "options {} and {}", "Answer: {} or {}, as you like", "{}) or {})", *TIED]
)
@pytest.mark.parametrize("marker", ["", "<final_answer>"])
def test_two_letters_are_not_an_answer(joined, marker):
    for first, second in itertools.permutations(LETTERS, 2):
        assert parse_letter(marker + joined.format(first, second)).value is None, (first, second)


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("（b）", "b"), ("<final_answer>（Ｃ）</final_answer>", "c"), ("Answer：Ｄ", "d"),
        ("<final_answer> Option (b), since (a) is wrong", "b"), ("<final_answer> none of the four, or (d)", "d"),
        ("<final_answer>(c), a good one and (d) not", "c"), ("<final_answer>(b) and (B)", "b"),
        ("(a)? No. <final_answer>(b)</final_answer> is my final answer.", "b"),
        ("My final answer is a short list, so option (b)", "b"), ("Final answer: a because it fits", "a"),
        ("<final_answer>(a certain one", "a"),  # right after the marker it is not an article
        ("I like a good soup", None), ("", None), ("e", None), ("<final_answer>", None),
        ("(a) x (b) y (c) z (d) w", None), ("<final_answer>(a) or (b)</final_answer>", None),
        ("<final_answer>a, b", None), ("<final_answer>**(a)**, or **(d)**", None), ("Options: A, B, C, D", None),
        ("A: no. B: no. C: yes.", None), ("A) no. B) no. C) yes.", None), ("<final_answer>A: no. B: yes.", None),
        ("<final_answer>(A): no. (B): yes.", None), ("<final_answer>b: it fits, as I said: really", "b"),
        ("<final_answer>Option A: no. Option B: yes.", None), ("<final_answer>A: no\nB: yes", None),
        ("<final_answer>(b)\n(c)", "b"), ("<final_answer>(b)\n\n(a) is too plain.", "b"),
        ("Option B fits. Unlike (c), it is short", None), ("A is right, B is correct", None),
        ("I would not go with b", None), ("I'd pick a restaurant", None), ("Answer: d'accord", None),
    ],
)  # fmt: skip
def test_a_letter_is_read_without_the_right_one(text, letter):
    assert parse_letter(text).value == letter


@pytest.mark.parametrize("text", ["<final_answer> c", "c", "<final_answer>(c", "<final_answer>c'"])
def test_a_letter_at_a_cut_may_be_the_first_of_a_word(text):
    assert parse_letter(text).value == "c" and parse_letter(text, cut=True).value is None


REJECTED = "Looking at the four, ({}) mentions a concert the user disliked, so that one is out. Next, the"


@pytest.mark.parametrize("letter", LETTERS)
def test_in_a_cut_text_only_a_letter_after_the_marker_counts(letter):
    for text in (REJECTED, "Option {} is out. Next, the", "{}) is out, and the", "<final_answer> " + REJECTED):
        assert parse_letter(text.format(letter)).value == letter
        assert parse_letter(text.format(letter), cut=True).value is None
    assert parse_letter(f"(b) is out. <final_answer>({letter}) for", cut=True).value == letter
    assert parse_letter(f"({letter})", cut=True).value == letter  # a schema and --max_tokens 3


def public_rule(response, right):
    """Apply the public code's rule, step by step."""
    told = response.strip()
    if "<final_answer>" in told:
        told = told.split("<final_answer>")[-1].strip()
    if told.endswith("</final_answer>"):
        told = told[: -len("</final_answer>")].strip()

    def letters(text):
        marked = re.findall(r"\(([a-d])\)", text.lower())
        return set(marked) if marked else set(re.findall(r"\b([a-d])\b", text.lower()))

    return letters(told) == {right} or letters(response) == {right}


def test_the_public_rule_on_all_texts_of_five_pieces():
    pieces = ["<final_answer>", "</final_answer>", "(b)", "(A)", "b", " a ", "est"]
    texts = list(map("".join, itertools.product(pieces, repeat=5)))
    differing = [text for text in texts for right in "ab" if read_officially(text, right) != public_rule(text, right)]
    assert not differing and sum(public_rule(text, "b") for text in texts) > 1000
