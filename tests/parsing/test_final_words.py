"""PersonaMem-v2's public rules for the last word of a reasoned text: cases read off its patterns."""

import pytest

from utils.benchmarks.personamem_v2 import parse_final_letter, parse_yes_no


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("So.\nFinal Answer: C", "c"),
        ("final answer:\n\n b and more", "b"),
        (r"Final Answer: A, no: $\boxed{D}$", "d"),  # a box before all other forms
        ("Answer: B. The final answer is C", "b"),  # and "Answer:" before "is"
        ("Final Answer: A ... Answer: B", "a"),
        ("The final answer is (B)", None),
        ("I'd say the answer is d", "d"),
        ("answer: a good one", "a"),  # as their code reads it
        ("It is B.  \nBecause it fits", "b"),
        ("It is B, I think.", None),
        ("Final Answer: [B]", None),
        ("Final Answer: **B**", None),
        ("Final Answer: E", None),
        ("", None),
    ],
)
def test_the_first_form_decides(text, letter):
    assert parse_final_letter(text).value == letter


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"It does. \boxed{Yes}", 1),
        (r"\boxed{no}, or \boxed{Yes}", 0),
        (r"No. But then: \boxed {Yes}", 1),
        ("yes, it does. No doubt.", 1),
        ("**No**", 0),
        ("I know that it does, yes. No?", 1),
        ("Yes or no: who knows.", 1),  # it begins with it
        ("Is it yes or no? Hard.", None),
        ("It follows the preference.", None),
    ],
)
def test_yes_or_no(text, value):
    assert parse_yes_no(text).value == value


@pytest.mark.parametrize(("text", "value"), [("There is no", None), ("No. The user", None), (r"\boxed{Yes} A", 1)])
def test_of_a_cut_verdict_only_the_box_counts(text, value):
    assert parse_yes_no(text, cut=True).value == value
