"""Separate a local model's thoughts from its answer by vLLM's reasoning parsers, and constrain gpt-oss's answer."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from utils.cli import UserError
from utils.generation.requests import Sampling, is_cut
from utils.generation.thinking import GPT_OSS, NO_PARSER, TO_ANSWER
from utils.parsing.thoughts import Split, split_thoughts

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput
    from vllm.reasoning import ReasoningParser


class ThoughtReader:
    """Separates thoughts from answers, by vLLM's parser if its marks are in the text, otherwise by `split_thoughts`.

    Attributes:
        marks_are_special: whether the marks are special tokens, which a text shows only on request.

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
            raise UserError(f"{problem}\n  give one of these, or {NO_PARSER}")
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
        """Return an output split into thoughts and answer, and the thoughts' number of tokens, without marks."""
        parser = self._parser if sampling.reasoning_parser not in (None, NO_PARSER) else None
        # Constrained from its first token, it begins with the answer.
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
        behind = split_thoughts(content, cut, False)  # another thought may follow, which these parsers take as answer
        thoughts = "\n".join(filter(None, (reasoning.strip(), behind.reasoning)))
        return Split(behind.answer, thoughts, behind.unfinished)


def harmony_tag(schema: dict[str, Any] | str) -> str:
    """Return vLLM's `structural_tag` that constrains gpt-oss's final channel, after an unconstrained analysis."""
    is_regex = isinstance(schema, str)
    content = {"type": "regex", "pattern": schema} if is_regex else {"type": "json_schema", "json_schema": schema}
    analysis = {"begin": "<|channel|>analysis<|message|>", "content": {"type": "any_text"}, "end": "<|end|>"}
    turn = {"type": "const_string", "value": "<|start|>assistant"}
    thought = {"type": "sequence", "elements": [{"type": "tag", **analysis}, turn]}
    final = {"type": "tag", "begin": TO_ANSWER, "content": content, "end": ["<|end|>", ""]}
    elements = [{"type": "optional", "content": thought}, final]
    return json.dumps({"type": "structural_tag", "format": {"type": "sequence", "elements": elements}})
