"""Prompts as a model reads them: rendering, counting, and fitting the token budget."""

import json
import random
import socket
import threading
from array import array
from dataclasses import replace
from types import SimpleNamespace

import pytest

from prompts import join_posts, own_prompt
from utils.base.errors import UserError
from utils.generation.chat import APIChat, LocalChat, PlainText, choose_length, fold
from utils.generation.fitting import Fitted, Window, largest
from utils.models.model_folder import ModelFolder

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "猫 ’{x}’?\n\noutput: ```json"}]
MERGED = "Be brief.\n\n猫 ’{x}’?\n\noutput: ```json"

TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
BEGIN = "{% if add_generation_prompt %}[assistant]{% endif %}"
TEMPLATES = {
    "normal": TURNS + BEGIN,
    "with BOS": "{{ bos_token }}" + TURNS + BEGIN,
    # As Gemma 2's.
    "refuses system": "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}" + TURNS + BEGIN,
    "drops system": TURNS.replace(" %}", " if m.role == 'user' %}", 1) + BEGIN,
}
BOS_ID = 256


def byte_tokenizer():
    """Return a tokenizer with one token per byte, for counting by hand, and <s>, which a plain call puts first."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE({**vocabulary, "<s>": BOS_ID}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS_ID)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


def save_model(folder, template, config=None):
    """Save a model without weights."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    config = config or {"model_type": "llama", "max_position_embeddings": 300}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of models that differ only in the chat template."""
    return {name: save_model(tmp_path_factory.mktemp("model"), template) for name, template in TEMPLATES.items()}


def decode(rendered):
    return byte_tokenizer().decode(list(rendered))


# A model's own template


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("normal", "[system]Be brief.[end][user]猫 ’{x}’?\n\noutput: ```json[end][assistant]"),
        ("with BOS", "<s>[system]Be brief.[end][user]猫 ’{x}’?\n\noutput: ```json[end][assistant]"),
        ("refuses system", f"<s>[user]{MERGED}[end][assistant]"),
        ("drops system", f"[user]{MERGED}[end][assistant]"),
    ],
)
def test_messages_are_rendered_by_the_models_template(models, name, expected):
    chat = LocalChat(ModelFolder(models[name]))
    rendered = chat.render(MESSAGES)
    assert decode(rendered) == expected
    assert list(rendered).count(BOS_ID) == expected.count("<s>")  # never more than the template has
    assert (rendered.typecode, rendered.itemsize) == ("i", 4)
    # A token a byte; <s> is one token of three letters.
    assert chat.length(rendered) == len(rendered) == len(expected.replace("<s>", "s").encode())


def test_the_models_limit_comes_from_its_config(tmp_path):
    for config, limit in (
        ({"model_type": "llama", "max_position_embeddings": 300}, 300),
        ({"model_type": "mamba"}, None),
        ({"model_type": "gemma3", "text_config": {"max_position_embeddings": 500}}, 500),
    ):
        assert LocalChat(ModelFolder(save_model(tmp_path, TEMPLATES["normal"], config))).model_limit == limit


def save_adapter(folder, base):
    folder.mkdir()
    config = {"peft_type": "LORA", "base_model_name_or_path": base, "r": 16}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


def test_an_adapter_has_its_bases_config_and_tokenizer_unless_it_has_its_own(tmp_path, models):
    adapter = save_adapter(tmp_path / "adapter", models["normal"])
    assert ModelFolder(adapter).base.addr == models["normal"]
    chat = LocalChat(ModelFolder(adapter))
    assert chat.model_limit == 300 and decode(chat.render(MESSAGES)).startswith("[system]Be brief.")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "own:{% for m in messages|reverse %}{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(adapter)
    chat = LocalChat(ModelFolder(adapter))
    assert decode(chat.render(MESSAGES)).startswith("own:猫")
    assert chat.model_limit == 300  # still the base's


NONE_IS_DEFAULT = r"none of its chat templates \(chat, tool_use\) is named default"


@pytest.mark.parametrize(
    ("names", "message"), [(["chat", "tool_use"], NONE_IS_DEFAULT), ([], "has no chat template; use an instr")]
)
def test_several_chat_templates_need_a_default(tmp_path, names, message):
    folder = save_model(tmp_path, None)
    one_each = [{"name": name, "template": TEMPLATES["normal"]} for name in [*names, "default"]]
    put_field(tmp_path / "tokenizer_config.json", "chat_template", one_each[:-1])
    with pytest.raises(UserError, match=message):
        LocalChat(ModelFolder(folder))
    put_field(tmp_path / "tokenizer_config.json", "chat_template", one_each)
    assert decode(LocalChat(ModelFolder(folder)).render(MESSAGES)).startswith("[system]Be brief.")


@pytest.mark.parametrize("kind", ["chat", "reply", "plain text"])
def test_a_text_with_a_token_that_the_model_lacks_is_refused(tmp_path, kind):
    """Here <s>, whose id is 256; the bytes' are below. A chat's comes from its template, as texts have none."""
    config = {"model_type": "llama", "vocab_size": 257}
    folder = save_model(tmp_path, TEMPLATES["with BOS" if kind == "chat" else "normal"], config)
    if kind == "reply":
        with pytest.raises(UserError, match=r"does not end the assistant's turn, and its .* has no eos_token"):
            LocalChat(ModelFolder(folder)).render_reply("a")
    for name in ("pad_token", "eos_token"):
        put_field(tmp_path / "tokenizer_config.json", name, "<s>")
    chat = PlainText(ModelFolder(folder)) if kind == "plain text" else LocalChat(ModelFolder(folder))
    chat.num_tokens = 256
    make = chat.render_reply if kind == "reply" else lambda text: chat.render([{"role": "user", "content": text}])
    with pytest.raises(UserError, match=r"it returns token 256 \('<s>'\), but the model has 256 tokens\n  use the tok"):
        make("a")


USERS = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{% for", "fails: unexpected 'end of template'"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "fails: maximum recursion depth exceeded"),
        ("{{ ''.__class__.__mro__ }}", "fails: access to attribute '__class__'"),
        ("{{ raise_exception('\x1b[2J never') }}", r"fails: \x1b[2J never"),
        ("", "drops the user's text; use another model"),
    ],
)
def test_an_unusable_chat_template_is_reported_in_one_line(tmp_path, template, problem):
    folder = save_model(tmp_path, template or " ")
    with pytest.raises(UserError) as error:
        LocalChat(ModelFolder(folder))
    message = str(error.value)
    start = f"{folder}: its chat template (chat_template.jinja)"
    assert message.startswith(f"{start} {problem}") and len(message.splitlines()) == 1
    assert message.isprintable()


def test_a_template_may_fail_later(tmp_path):
    """If it fails for a role that is tried first, the role is not used; for the prompt itself, the run ends."""
    fails = "{% if messages[0].role == 'system' %}{{ 1 / 0 }}{% endif %}" + USERS
    chat = LocalChat(ModelFolder(save_model(tmp_path / "role", fails)))
    assert decode(chat.render(MESSAGES)) == MERGED
    template = "{% if 'brief' in messages[0].content %}{{ 1 / 0 }}{% endif %}" + USERS
    chat = LocalChat(ModelFolder(save_model(tmp_path / "fails", template)))
    with pytest.raises(UserError, match=r"chat template \(chat_template\.jinja\) fails"):
        chat.render(MESSAGES)
    answers = "{% if messages[-1].role == 'assistant' %}{{ 1 / 0 }}{% endif %}" + USERS
    with pytest.raises(UserError, match="fails: division by zero"):
        LocalChat(ModelFolder(save_model(tmp_path / "answers", answers))).render_reply("text")


def put_field(path, name, value):
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))


@pytest.mark.parametrize(
    ("file", "change", "problem"),
    [
        ("config.json", ("model_type", "no such type"), "config.json cannot be loaded: The checkpoint you are trying"),
        ("config.json", ("max_position_embeddings", "many"), "config.json cannot be loaded: Validation error for"),
        ("config.json", b"[" * 100_000, "config.json cannot be loaded: "),
        ("tokenizer_config.json", ("tokenizer_class", []), "tokenizer_config.json or tokenizer.json cannot be loaded"),
        ("tokenizer_config.json", ("model_max_length", "half"), "tokenizer_config.json or tokenizer.json cannot be "),
        ("tokenizer_config.json", b"\xff\xfe{}", "tokenizer_config.json cannot be loaded: "),
        ("tokenizer.json", ("post_processor", True), "tokenizer_config.json or tokenizer.json cannot be loaded: "),
        ("tokenizer.json", b"[" * 100_000, "tokenizer.json cannot be loaded: "),
    ],
)
def test_a_damaged_model_file_is_reported_in_one_line(tmp_path, file, change, problem):
    folder = save_model(tmp_path, USERS)
    if isinstance(change, bytes):
        (tmp_path / file).write_bytes(change)
    else:
        put_field(tmp_path / file, *change)
    with pytest.raises(UserError) as error:
        LocalChat(ModelFolder(folder))
    assert str(error.value).startswith(f"{folder}: its {problem}") and len(str(error.value).splitlines()) == 1


def test_a_tokenizer_without_its_file_is_refused(tmp_path):
    """transformers would make one without a vocabulary, if the class also has a slow version."""
    folder = save_model(tmp_path, USERS)
    put_field(tmp_path / "tokenizer_config.json", "tokenizer_class", "Qwen2Tokenizer")
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"has no vocabulary; is tokenizer.json missing"):
        LocalChat(ModelFolder(folder))


@pytest.mark.parametrize("lacking", ["pad_token", "eos_token"])
def test_plain_text_needs_padding_and_end_tokens(tmp_path, lacking):
    folder = save_model(tmp_path, USERS)
    for name in ("pad_token", "eos_token"):
        put_field(tmp_path / "tokenizer_config.json", name, None if name == lacking else "<s>")
    with pytest.raises(UserError, match=rf"^{folder}: its tokenizer_config\.json has no {lacking}$"):
        PlainText(ModelFolder(folder))


# An API


def test_an_unknown_models_tokens_are_estimated_from_bytes():
    chat = APIChat("Qwen/Qwen2.5-7B-Instruct")
    assert chat.counter == "estimate: 1 token per 3 bytes"
    assert chat.render(MESSAGES) is MESSAGES
    assert chat.model_limit is None
    # "Be brief." has 9 bytes, 3 tokens. "猫é" has 3 + 2 bytes, 2 tokens. 4 more around each message.
    assert chat.length([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "猫é"}]) == 13


@pytest.fixture
def no_table(monkeypatch, tmp_path):
    """Let tiktoken have no cached table, so that it must download one."""
    monkeypatch.setattr("tiktoken.registry.ENCODINGS", {})
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    return monkeypatch


def test_without_a_network_tokens_are_estimated_at_once(no_table):
    no_table.setattr("utils.generation.chat.FETCH_SECONDS", 600)
    before = set(threading.enumerate())
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but not listening, so nothing answers there
        no_table.setenv("https_proxy", f"http://127.0.0.1:{closed.getsockname()[1]}")
        no_table.setenv("no_proxy", "")
        chat = APIChat("gpt-4o-mini")
    assert set(threading.enumerate()) <= before  # the fetch has failed, and was not given up
    assert chat.counter.startswith("estimate")


def test_a_model_that_tiktoken_knows_is_counted_by_it(monkeypatch):
    import tiktoken

    single_bytes = {bytes([i]): i for i in range(256)}
    encoding = tiktoken.Encoding("bytes", pat_str=".", mergeable_ranks=single_bytes, special_tokens={"<|end|>": 256})
    monkeypatch.setattr("tiktoken.encoding_for_model", {"gpt-4o-mini": encoding}.__getitem__)
    chat = APIChat("gpt-4o-mini")
    assert chat.counter == "tiktoken"
    # A token a byte and 4 around the message; a special token's name in a post is a text like any other.
    assert chat.length([{"role": "user", "content": "é <|end|>"}]) == 10 + 4


# The length of prompt and output together


@pytest.mark.parametrize(
    ("model_limit", "max_model_len", "max_tokens", "wanted", "expected"),
    [
        (32768, None, 2048, 8192, 8192),  # the paper's length
        (4096, None, 2048, 8192, 4096),  # a model that takes less
        (32768, 4000, 2048, 8192, 4000),  # and below
        (4096, None, 4095, 8192, 4096),  # room for one token of prompt
    ],
)
def test_chosen_lengths(model_limit, max_model_len, max_tokens, wanted, expected):
    chat = SimpleNamespace(model_limit=model_limit)
    assert choose_length(chat, max_model_len, max_tokens, wanted) == expected


@pytest.mark.parametrize(
    ("model_limit", "max_model_len", "max_tokens", "message"),
    [
        (4096, 4097, 512, "--max_model_len 4097: the model supports at most 4096 tokens"),
        (4096, None, 4096, "--max_tokens 4096 leaves no room .* share 4096 tokens\n  lower --max_tokens$"),
        (4096, 512, 600, "--max_tokens 600 leaves no room .* share 512 tokens"),
    ],
)
def test_impossible_lengths_are_refused(model_limit, max_model_len, max_tokens, message):
    with pytest.raises(UserError, match=message):
        choose_length(SimpleNamespace(model_limit=model_limit), max_model_len, max_tokens, 8192)


# The token budget


class LetterChat:
    """One token per letter; counts the renderings."""

    def __init__(self):
        self.renders = 0

    def render(self, messages):
        self.renders += 1
        return messages

    def length(self, messages):
        return sum(len(message["content"]) for message in messages)


QUESTION = "How?"
PROMPT = replace(own_prompt("{profile}|" + QUESTION), exact=True)


def build(posts):
    return [{"role": "user", "content": f"{join_posts(posts)}|{QUESTION}"}]


def fit(posts, budget):
    return Window(LetterChat(), budget, 0).fit(PROMPT, posts, join_posts)


def fit_by_trying_everything(posts, budget):
    """Do the same as `fit`, by trying all cases."""

    def fits(kept):
        return LetterChat().length(build(kept)) <= budget

    for count in range(len(posts), 0, -1):
        if fits(posts[:count]):
            return Fitted(build(posts[:count]), count, len(posts) - count, False)
    if not fits([]):
        return None
    for length in range(len(posts[0]) if posts else 0, 0, -1):
        if (text := posts[0][:length].rstrip()) and fits([text]):
            return Fitted(build([text]), 1, len(posts) - 1, True)
    return Fitted(build([]), 0, len(posts), False)


def test_fitting_agrees_with_an_exhaustive_search():
    generator = random.Random(0)
    outcomes = set()
    for _ in range(3000):
        sizes = [generator.choice([1, 2, 5, 12]) for _ in range(generator.randrange(6))]
        posts = ["".join(generator.choices("ab \n猫", k=size - 1)) + "z" for size in sizes]
        budget = generator.randrange(45)
        fitted = fit(posts, budget)
        assert fitted == fit_by_trying_everything(posts, budget), (posts, budget)
        outcomes.add(fitted and (fitted.num_contexts_used > 0, fitted.num_contexts_dropped > 0, fitted.context_cut))
        if fitted:
            assert fitted.num_contexts_used + fitted.num_contexts_dropped == len(posts)
            assert fitted.prompt[0]["content"].endswith(f"|{QUESTION}")
            assert LetterChat().length(fitted.prompt) <= budget
    assert outcomes == {  # posts used, posts dropped, the first one cut: every case was among them
        (True, False, False),
        (True, True, False),
        (True, False, True),
        (True, True, True),
        (False, True, False),
        (False, False, False),
        None,
    }


@pytest.mark.parametrize(
    ("posts", "budget", "most_renders"),
    [
        (["b" * 10] * 1000, 3000, 12),  # log2 of 1000 posts is 10
        (["a" * 4000] + ["b" * 10] * 999, 100, 26),  # and log2 of the first post's 4000 letters is 12
    ],
)
def test_a_long_profile_is_rendered_a_few_times_only(posts, budget, most_renders):
    chat = LetterChat()
    Window(chat, budget, 0).fit(PROMPT, posts, join_posts)
    assert chat.renders <= most_renders


@pytest.mark.parametrize("guess", [None, 0, 3, 40, 100])
@pytest.mark.parametrize("fits", range(-1, 101))
def test_the_largest_that_fits_is_found_from_any_guess(guess, fits):
    tried = []
    assert largest(100, lambda n: (tried.append(n), n if n <= fits else None)[1], guess) == (
        (fits, fits) if fits >= 0 else (0, None)
    )
    start = 100 if guess is None else guess
    assert tried[0] == start and len(set(tried)) == len(tried)  # nothing is rendered twice
    if guess is None:
        assert len(tried) <= 9  # both ends, and log2 of 100
    else:
        assert len(tried) <= 2 + 2 * abs(fits - guess).bit_length()


# What the assistant says


def spoken(text):
    """Return a chat template whose turns are `text` with ROLE and TEXT replaced."""
    turn = text.replace("ROLE", "{{ m.role }}").replace("TEXT", "{{ m.content }}")
    return "{% for m in messages %}" + turn + "{% endfor %}"


CHATML = (
    spoken("<|im_start|>ROLE\nTEXT<|im_end|>\n") + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Gemma calls the assistant "model" and knows no system role.
GEMMA = (
    "<bos>{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
MISTRAL = (
    "<s>{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }}</s>"
    "{% else %}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"
)
PLAIN = spoken("ROLE: TEXT\n\n") + "{% if add_generation_prompt %}assistant: {% endif %}"
STYLES = {  # template, the tokenizer's own eos, all special tokens, the token that ends a turn
    "ChatML": (CHATML, "<|im_end|>", ["<|im_start|>", "<|im_end|>", "<|endoftext|>"], "<|im_end|>"),
    "ChatML, base tokenizer": (CHATML, "<|endoftext|>", ["<|im_start|>", "<|im_end|>", "<|endoftext|>"], "<|im_end|>"),
    "Gemma": (GEMMA, "<eos>", ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"], "<end_of_turn>"),
    "Mistral": (MISTRAL, "</s>", ["</s>"], "</s>"),
    "no token after the text": (PLAIN, "</s>", ["</s>"], "</s>"),
}


def styled_chat(folder, style):
    from transformers import AddedToken

    template, eos, special, _ = STYLES[style]
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken(token, special=True) for token in special], special_tokens=True)
    tokenizer.eos_token = eos
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 300}))
    return LocalChat(ModelFolder(str(folder)))


@pytest.mark.parametrize("style", STYLES)
def test_a_reply_is_its_text_and_the_token_that_ends_the_turn(tmp_path, style):
    chat, end = styled_chat(tmp_path, style), STYLES[style][3]
    end_id = chat.tokenizer.convert_tokens_to_ids(end)
    assert end_id > BOS_ID  # one token of its own
    assert chat.end_of_turn == end_id
    reply = chat.render_reply("Cost\n猫 ’ time")
    assert (reply.typecode, reply.itemsize) == ("i", 4)
    assert len(reply) == len("Cost\n猫 ’ time".encode()) + 1  # a token a byte: nothing in front, nothing after
    assert reply[-1] == end_id
    assert chat.tokenizer.decode(reply) == "Cost\n猫 ’ time" + end


@pytest.mark.parametrize("style", STYLES)
def test_a_control_token_in_a_text_is_rendered_as_characters(tmp_path, style):
    chat = styled_chat(tmp_path, style)
    marks = STYLES[style][2]
    ids = chat.tokenizer.convert_tokens_to_ids(marks)
    text = f"It prints {marks[0]}{marks[-1]} and {marks[0][:2]}{marks[0]}{marks[0][2:]} 猫."
    for render in (
        lambda text: chat.render([{"role": "user", "content": text}]),
        lambda text: chat.render_reply(text)[:-1],
    ):
        rendered = render(text)
        assert [[*rendered].count(token) for token in ids] == [[*render("It prints.")].count(token) for token in ids]
        assert text in chat.tokenizer.decode(list(rendered))
    assert chat.count(text) == len(text.encode()) == len(chat.render_option(text))


def test_a_tokenizer_that_reads_control_tokens_in_any_text_is_named(tmp_path, capsys):
    chat = styled_chat(tmp_path, "ChatML")
    del chat._marks
    chat._encode_all = lambda texts: [array("i", [chat.end_of_turn]) for _ in texts]
    chat.render_option("text")
    assert capsys.readouterr().err.startswith(f"note: {tmp_path}: its tokenizer reads <|im_end|> as a control token")


def test_a_template_that_marks_turns_with_plain_text_is_named(tmp_path, capsys):
    styled_chat(tmp_path, "ChatML")
    assert capsys.readouterr().err == ""
    styled_chat(tmp_path, "Mistral")
    assert "its chat template ends the user's turn with plain text, '[/INST]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "expected"), [({}, "26 Jul 2024 00:00"), ({"strftime_now": "2031-02-03"}, "03 Feb 2031 00:00")]
)
def test_a_template_writes_the_same_date_on_every_day(tmp_path, variables, expected):
    template = "{{ strftime_now('%d %b %Y %H:%M') }} {{ messages[0].content }}"
    chat = LocalChat(ModelFolder(save_model(tmp_path, template)), variables)
    assert decode(chat.render([{"role": "user", "content": "Hi"}])) == f"{expected} Hi"
    assert chat.date == variables.get("strftime_now", "2024-07-26") and chat.variables == variables


def test_a_date_that_is_none_is_refused(tmp_path, models):
    template = "{{ strftime_now('%Y') }} {{ messages[0].content }}"
    with pytest.raises(UserError, match="strftime_now is today, not a date"):
        LocalChat(ModelFolder(save_model(tmp_path, template)), {"strftime_now": "today"})
    assert LocalChat(ModelFolder(models["normal"])).date is None


@pytest.mark.parametrize("style", ["ChatML", "Gemma"])
def test_prompt_and_reply_equal_the_rendered_conversation(tmp_path, style):
    chat = styled_chat(tmp_path, style)
    user = [{"role": "user", "content": "Which?"}]
    system = [{"role": "system", "content": "Be brief."}]
    whole = [*user, {"role": "assistant", "content": "Cost\ntime"}]
    prompt = user
    if style == "Gemma":
        prompt = system + user  # merged into the user's
        whole[0] = fold(prompt, 0, True)[0]
    ids = [*chat.render(prompt), *chat.render_reply("Cost\ntime")]
    expected = chat.tokenizer.apply_chat_template(whole, return_dict=False)
    assert ids == expected[: len(ids)]
    assert chat.tokenizer.decode(expected[len(ids) :]) == "\n"
