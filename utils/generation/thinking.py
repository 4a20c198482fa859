"""Whether a model thinks, how long its thoughts may be, and where its answer begins. Also variables of chat templates.

An API's thoughts are found by marks in the text, or in a separate field of the reply. For a local model, one of vLLM's
reasoning parsers finds them: the one that --reasoning_parser names, or by default, `openai_gptoss` if the model's
config says gpt_oss; `mistral` or `deepseek_r1` if its chat template mentions [THINK] or <think> and its tokenizer has
these marks as tokens; otherwise none. A model does not think if its template closes the thought in the prompt, or if
our scripts trained it to answer at once.
"""

import json
import re
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from utils.base.errors import UserError
from utils.benchmarks.thoughts import CLOSING, OPENING, Split, split_thoughts
from utils.generation.requests import Sampling, is_cut

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput
    from vllm.reasoning import ReasoningParser

NO_PARSER, GPT_OSS, MISTRAL, TAGS = "none", "openai_gptoss", "mistral", "deepseek_r1"
MARKS = {MISTRAL: ("[THINK]", "[/THINK]", "[TOOL_CALLS]"), TAGS: ("<think>", "</think>")}  # tokens that a parser needs
ENDS_THOUGHT = {"<think>": "\n</think>\n\n", "[THINK]": "[/THINK]"}  # ends an empty thought, as in Qwen3's template
TO_ANSWER = "<|channel|>final<|message|>"  # the end of gpt-oss's prompts for an answer
THOUGHT_TOKENS = 8192  # tokens for thoughts, in addition to those of the answer: a guess
# "OpenAI recommends reserving at least 25,000 tokens for reasoning and outputs when you start experimenting":
# https://developers.openai.com/api/docs/guides/reasoning. A high limit costs nothing at OpenAI. The chat variants of
# gpt-5 are not matched, because they write 16,384 tokens at most.
OPENAI_TOKENS, OPENAI_NAMES = 25_000, re.compile(r"(?i)(?:.*/)?(?:o[1-9]\b|gpt-5(?!.*-chat))")
# Names of API models that think.
THINKING_NAMES = re.compile(r"(?i)(?:.*/)?(?:o[1-9]\b|gpt-5|gpt-oss|deepseek-r)")
TRAINED = ("train_planner.py", "utils/train_generator.py")  # scripts that train models to answer without thinking


def template_variables(args: Namespace) -> dict[str, Any]:
    """Return the variables of --chat_template_kwargs and --reasoning_effort; UserError if both set the same one."""
    variables = dict(args.chat_template_kwargs or {})
    if args.reasoning_effort is not None:
        if "reasoning_effort" in variables:
            raise UserError("--reasoning_effort: also in --chat_template_kwargs; set only one of them")
        variables["reasoning_effort"] = args.reasoning_effort
    return variables


@dataclass(frozen=True)
class Thoughts:
    """Whether and how a model thinks."""

    parser: str | None = None  # vLLM's parser for a local model; NO_PARSER if the user wants none
    opened: bool | None = False  # whether a prompt ends inside a thought; None if unknown
    thinks: bool = False
    tokens: int = THOUGHT_TOKENS  # tokens for its thoughts, unless `room` allows fewer

    def room(self, is_set: bool, *lengths: int | None) -> int:
        """Return how many tokens to add to the answer's limit for thoughts; 0 if the user has set the limit (`is_set`).

        The number is at most a quarter of each known length (tokens of prompt and output together) in `lengths`.
        """
        if not self.thinks or is_set:
            return 0
        return min([self.tokens, *(length // 4 for length in lengths if length)])


def find_thoughts(args: Namespace, chat: Any, model_addr: str, made_with: dict[str, Any]) -> Thoughts:
    """Return whether and how a chat's model thinks; UserError for a --reasoning_parser that an API cannot use.

    `made_with` are the settings of the training that made a local model.
    """
    parser_flag = args.reasoning_parser
    if args.openai:
        return _thoughts_of_api(model_addr, parser_flag, args.reasoning_effort)
    opened = opening_of(chat.prompt_end) is not None
    if parser_flag == NO_PARSER:
        return Thoughts(NO_PARSER, True if opened else None)  # None: the marks in the text decide
    is_closed = not opened and CLOSING.search(chat.prompt_end) is not None
    if is_closed or made_with.get("script") in TRAINED:
        return Thoughts()
    parser = parser_flag or chat.own_parser
    return Thoughts(parser, opened, opened or parser is not None)


def _thoughts_of_api(model: str, parser_flag: str | None, effort: str | None) -> Thoughts:
    if parser_flag not in (None, TAGS):
        meant = f"with --openai the only parser is {TAGS}, for texts that begin with a thought without an opening tag"
        remedy = "remove the flag: other thoughts are recognized by their tags"
        raise UserError(f"--reasoning_parser {parser_flag}: {meant}\n  {remedy}")
    thinks = parser_flag == TAGS or bool(THINKING_NAMES.match(model)) or effort not in (None, "none")
    tokens = OPENAI_TOKENS if OPENAI_NAMES.match(model) else THOUGHT_TOKENS
    return Thoughts(parser_flag, True if parser_flag else None, thinks, tokens)


def end_thoughts(chat: Any, thoughts: Thoughts) -> None:
    """Make a chat's prompts end where the answer begins, because texts that are scored have no thoughts."""
    if thoughts.opened:
        chat.behind = ENDS_THOUGHT[opening_of(chat.prompt_end)]
    elif thoughts.parser == GPT_OSS:
        chat.behind = TO_ANSWER


def own_parser(model_type: str | None, tokenizer: Any) -> str | None:
    """Return the name of a local model's reasoning parser, by the rule at the top of this file; None if it has none."""
    if model_type == "gpt_oss":
        return GPT_OSS
    template, vocabulary = str(tokenizer.chat_template), tokenizer.get_vocab()
    candidates = (name for name, marks in MARKS.items() if any(mark in template for mark in marks[:2]))
    return next((name for name in candidates if all(mark in vocabulary for mark in MARKS[name])), None)


def opening_of(end: str) -> str | None:
    """Return the opening mark of a thought that the end of a prompt leaves open; None if there is none."""
    opened = list(OPENING.finditer(end))
    return opened[-1][0] if opened and CLOSING.search(end, opened[-1].end()) is None else None


class ThoughtReader:
    """Separates thoughts from answers, with vLLM's parser if its marks are in the text, else with `split_thoughts`.

    Attributes:
        marks_are_special: whether the marks are special tokens, which vLLM leaves out of a text unless asked.

    Raises:
        UserError: vLLM has no parser of this name, or the tokenizer lacks its marks.
    """

    def __init__(self, name: str | None, load_tokenizer: Callable[[], Any]):
        self._load_tokenizer, self._parser = load_tokenizer, None
        self.marks_are_special = name == GPT_OSS
        if name in (None, NO_PARSER, GPT_OSS):  # vLLM's parser for gpt-oss reads no text
            return
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.reasoning import ReasoningParserManager

        if name not in (parsers := ReasoningParserManager.list_registered()):
            problem = f"--reasoning_parser {name}: unknown; vLLM has {', '.join(parsers)}"
            raise UserError(f"{problem}\n  use one of these, or {NO_PARSER}")
        tokenizer = load_tokenizer()
        try:
            self._parser = ReasoningParserManager.get_reasoning_parser(name)(tokenizer)
        except (RuntimeError, ValueError) as error:  # raised if the marks are not tokens
            raise UserError(f"--reasoning_parser {name}: not for this model: {error}") from None
        self._request = ChatCompletionRequest(messages=[])
        marks = {self._parser.reasoning_start_str, self._parser.reasoning_end_str}
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        self.marks_are_special = any(token.special and token.content in marks for token in added)

    def read(self, output: "CompletionOutput", sampling: Sampling) -> tuple[Split, int]:
        """Return an output split into thoughts and answer, and the number of tokens in the thoughts without marks."""
        parser = self._parser if sampling.reasoning_parser not in (None, NO_PARSER) else None
        # An output that is constrained from its first token begins with the answer.
        opened = False if sampling.opened and parser is None and sampling.schema else sampling.opened
        split = self._split(parser, output.text, is_cut(output.finish_reason), opened)
        if not split.reasoning:
            return split, 0
        tokenizer = self._load_tokenizer()
        start = parser and tokenizer.get_vocab().get(parser.reasoning_start_str)
        ids = [start, *output.token_ids] if opened and start is not None else output.token_ids
        counted = parser.count_reasoning_tokens(ids) if parser else 0  # 0: the parser does not count
        return split, counted or len(tokenizer.encode(split.reasoning, add_special_tokens=False))

    def _split(self, parser: "ReasoningParser | None", text: str, cut: bool, opened: bool | None) -> Split:
        start, end = (parser.reasoning_start_str, parser.reasoning_end_str) if parser else (None, None)
        if parser is None or not (opened or start is None or start in text):
            return split_thoughts(text, cut, opened if parser is None else None)
        begun = f"{start}{text}" if opened and start and not text.lstrip().startswith(start) else text
        reasoning, content = (part or "" for part in parser.extract_reasoning(begun, self._request))
        if not content.strip() and not (end and end in text):
            return Split("", reasoning.strip(), unfinished=bool(reasoning.strip() or opened))
        behind = split_thoughts(content, cut, False)  # vLLM's parsers take a second thought as part of the answer
        thoughts = "\n".join(filter(None, (reasoning.strip(), behind.reasoning)))
        return Split(behind.answer, thoughts, behind.unfinished)


def harmony_tag(schema: dict[str, Any] | str) -> str:
    """Return vLLM's `structural_tag` that constrains gpt-oss's final channel, but not the analysis before it."""
    is_regex = isinstance(schema, str)
    content = {"type": "regex", "pattern": schema} if is_regex else {"type": "json_schema", "json_schema": schema}
    analysis = {"begin": "<|channel|>analysis<|message|>", "content": {"type": "any_text"}, "end": "<|end|>"}
    turn = {"type": "const_string", "value": "<|start|>assistant"}
    thought = {"type": "sequence", "elements": [{"type": "tag", **analysis}, turn]}
    final = {"type": "tag", "begin": TO_ANSWER, "content": content, "end": ["<|end|>", ""]}
    elements = [{"type": "optional", "content": thought}, final]
    return json.dumps({"type": "structural_tag", "format": {"type": "sequence", "elements": elements}})
