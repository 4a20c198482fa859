"""PersonaMem-v2: the last word of a reasoned text. Letters are read by the public code's rule, Yes and No are not."""

import pytest

from utils.benchmarks.personamem.v2 import parse_final_letter, parse_yes_no


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
        (r"\boxed{\text{Yes}}", 1),
        (r"No issues: it follows. $\boxed{ Yes }$", 1),
        (r"Yes, it is friendly, but no. \boxed{No.}", 0),
        (r"Yes, but: \[\boxed{\textbf{No}}\]", 0),
        (r"\boxed{\mathbf{\text{ Yes. }}}", 1),
        (r"\boxed{\,\text{No}\,}", 0),
        (r'\boxed{**"Yes"**}', 1),
        (r"No: \\boxed{Final answer: Yes}", 1),
        ("No. boxed{Yes}", 1),
        (r"\boxed{Yes} was my first thought. But it ignores the pets: \boxed{No}", 0),
        (r"I must end with \boxed{Yes} or \boxed{No}. It does: \boxed{Yes}", 1),
        (r"It does: \boxed{Yes} (of \boxed{Yes} or \boxed{No}).", 1),
        (r"I must end with \boxed{Yes} or \boxed{No}.", None),
        (r"It does: \boxed{\text{Yes}} (of $\boxed{\text{Yes}}$ or $\boxed{\text{No}}$).", 1),
        ("No. The answer is either. Final answer: Yes or No?", 0),
        (r"Yes. \boxed{...}", None),
        (r"No. \boxed{Yes/No}", None),
        (r"Yes: \boxed{Yesterday}", None),
        (r"No. But then: \boxed {Yes}", 1),
        ("yes, it does. No doubt.", 1),
        ("**No**", 0),
        ("I know that it does, yes. No?", 1),
        ("Yes or no: who knows.", None),
        ("Yes or No? No.", 0),
        ("Yes or No: No", 0),
        (r"I say \boxed{Yes} if it follows or \boxed{No} if not. It follows. Final answer: Yes", 1),
        (r"Output \boxed{Yes} when good, \boxed{No} when bad. Good, so the answer is Yes.", 1),
        (r"No. Output \boxed{Yes} when good, else \boxed{No}.", None),
        ("- \\boxed{Yes} if it follows\n- \\boxed{No} otherwise\nIt follows, yes.", None),
        (r"\boxed{Yes} (not \boxed{No})", None),
        (r"I end with \boxed{Yes} or \boxed{No}. It follows. Final answer: Yes", 1),
        (r"\boxed{\ Yes\ }", 1),
        (r"\boxed{Answer: \text{No}}", 0),
        (r"\boxed{\textcolor{red}{No}}", 0),
        (r"\boxed{yes;}", 1),
        (r"\boxed{Yes}. If it had not: no.", 1),
        ("Is it yes or no? Hard.", None),
        ("It follows the preference.", None),
        ("No conflict. It follows the preference.", None),
        ("The user has no pets, so that is fine. **Final answer: Yes**", 1),
        ("Yes, it is friendly. But it ignores the pets.\nVerdict: **No**", 0),
        ("The answer is no longer than the example. The answer is Yes.", 1),
        ("No because it ignores the pets", 0),
    ],
)
def test_yes_or_no(text, value):
    assert parse_yes_no(text).value == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("There is no", None),
        ("No. The user", None),
        (r"\boxed{Yes} A", 1),
        (r"\boxed{\text{Yes}} A", 1),
        ("Final answer: Yes", None),
        (r"I say \boxed{Yes} if it follows, and \boxed{No} otherwise. The user likes", None),
        (r"\boxed{Yes}/\boxed{No}. So, the user has", None),
        (r"First \boxed{Yes}. But then: \boxed{No} The", None),
        (r"I end with \boxed{Yes} or \boxed{No}. It does: \boxed{Yes} A", 1),
    ],
)
def test_of_a_cut_verdict_only_the_box_counts(text, value):
    assert parse_yes_no(text, cut=True).value == value
