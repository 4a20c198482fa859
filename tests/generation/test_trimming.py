"""Trimmed entries compared with a plain version of LaMP's rule, with a real tokenizer."""

import random
import re
from array import array
from itertools import product
from pathlib import Path

import pytest
from lamp_samples import CONFIGS, LAMP, read_sample

from prompts import load_prompt
from utils.benchmarks import tasks
from utils.generation.chat import LocalChat, PlainText
from utils.generation.encoder_decoder import TextWindow
from utils.generation.fitting import Window
from utils.generation.requests import passages_of
from utils.models.model_folder import ModelFolder

ROOT = Path(__file__).resolve().parents[2]
CHAT = ROOT / "demo/models/chat"
WORDS = ["review", "of", "a", "chair", "“quoted”", "1.234", "naïve", "漢字", "🎸", "I'd", "-", "it,", "etc."]


@pytest.fixture(scope="module")
def chat():
    if not (CHAT / "tokenizer.json").is_file():
        pytest.skip("make models")
    return LocalChat(ModelFolder(str(CHAT)))


def made_up(length, seed):
    generator = random.Random(seed)
    return " ".join(generator.choice(WORDS) for _ in range(length))


@pytest.mark.parametrize("name", [*LAMP, *CONFIGS])
def test_a_prompt_has_all_its_entries_and_is_within_the_budget(chat, name):
    task = tasks()[name]
    prompt = load_prompt(task.prompts["rag"])
    for record in read_sample(name):
        entries, values = task.best_entries(record, 10), task.values(record)
        items = task.best_items(record, 10)
        assert [write(text) for text, write in entries] == items
        window = Window(chat, 8192, 0)
        whole = window.fit(prompt, items, task.join, **values)
        assert window.fit_trimmed(prompt, entries, task.join, **values).prompt == whole.prompt
        if not items:
            continue
        around = chat.length(window.fit(prompt, [], task.join, **values).prompt)
        needed = sum(chat.count(write("")) for _, write in entries)
        # Room for the surrounding text within 0.6 of it, for the entries' own words, and some of their texts.
        budget = max(int(around / 0.6) + 50, around + 2 * needed + 50)
        fitted = Window(chat, budget, 0).fit_trimmed(prompt, entries, task.join, **values)
        assert chat.length(fitted.prompt) <= budget
        assert (fitted.num_contexts_used, fitted.num_contexts_dropped) == (len(items), 0)
        assert 0 <= fitted.num_contexts_trimmed <= len(items)
        assert record["question"].strip() in chat.tokenizer.decode(list(fitted.prompt))


def lamp_s_tokens(question, texts, words, around, budget):
    """Return how many tokens of each text and of the question LaMP's code keeps, from numbers of tokens alone.

    The entries get equal shares of what min(the input, 0.6 of the budget) leaves, minus what joins them; each passes on
    what it does not need. If that fails, the input gets 0.1 less. Then the input's end is cut. Each text's end token
    counts, though it is not in the prompt.

    Args:
        question: its number of tokens; `around` are the other tokens, with and without entries.
        texts: number of tokens of each entry; `words` are those around it.
    """
    with_entries, without = around
    alone, factor = without + question, 0.6
    while factor >= 0:
        share = (budget - min(alone, int(factor * budget)) - (with_entries - without)) // len(texts)
        saved, kept = 0, []
        for text, own in zip(texts, words, strict=True):
            kept.append(min(text, share + saved - own - 1))
            saved += share - kept[-1] - own - 1
        if min(kept) >= 0:
            return kept, min(question, budget - with_entries - sum(words) - sum(kept))
        factor -= 0.1
    return None, min(question, budget - without)


class Characters(PlainText):
    """Every character is a token, so that the token counts of parts add up."""

    def __init__(self):
        pass

    def render(self, messages):
        return array("i", map(ord, messages[-1]["content"] + "$"))

    def count(self, text):
        return len(text)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("budget", [512, 1024])
def test_a_long_question_leaves_entries_as_much_as_in_lamps_code(fused, budget):
    task, outcomes = tasks()["LaMP-6"], set()
    prompt = load_prompt(task.prompts["rag"])

    def count_rendered(items):
        return len(Window(Characters(), 10**6, 0).fit(prompt, items, task.join, question="?").prompt) - 1

    for k, num_words, seed in product(range(1, 17), (2, 40, 60, 400), (1, 2)):
        generator = random.Random(100 * seed + k)
        question = made_up(num_words, seed)
        texts = [made_up(generator.choice([1, 10, 150]), seed + n) for n in range(k)]
        entries = [(text, lambda text, n=n: f'subject {n} for "{text}"') for n, text in enumerate(texts)]
        window = TextWindow(Characters(), budget + 1, 1, fused)
        fitted = window.fit_trimmed(prompt, entries, task.join, question=question)
        expected = []
        for group in [[n] for n in range(k)] if fused else [range(k)]:
            words = [entries[n][1]("") for n in group]
            around = count_rendered(words) - sum(map(len, words)), count_rendered([])
            sizes = [len(texts[n]) for n in group], list(map(len, words))
            kept, left = lamp_s_tokens(len(question), *sizes, around, budget)
            expected.append((dict(zip(group, kept or [], strict=kept is not None)), left))
        assert fitted.num_contexts_used == sum(len(kept) for kept, _ in expected)
        assert fitted.question_cut == any(left < len(question) for _, left in expected)
        for part, (kept, left) in zip(passages_of(fitted.prompt), expected, strict=True):
            text = "".join(map(chr, part))[:-1]
            assert len(part) <= budget
            stated, question_text = dict(re.findall(r'subject (\d+) for "(.*?)"', text)), text.rpartition("\n\n")[2]
            assert question.startswith(question_text) and list(stated) == [str(n) for n in kept]
            assert all(texts[int(n)].startswith(text) for n, text in stated.items())
            # An entry that would end in a space is shorter; the rest goes to the next ones.
            off = [len(question_text) - left, *(len(stated[str(n)]) - number for n, number in kept.items())]
            assert all(abs(number) <= 1 + len(kept) for number in off)
            outcomes.add((left < len(question), all(len(texts[n]) == number for n, number in kept.items())))
    assert outcomes == set(product([False, True], repeat=2))
