"""One record's calls: JSON replies that are checked, in conversations of several turns, and counts of dropped parts."""

import random
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from prompts import FOLDER, History, Messages, Prompt
from utils.benchmarks.readers import Parsed, nothing
from utils.building.personas.replies import Faults, read, schema_of
from utils.runs.ask import Ask

Check = Callable[[Any], tuple[Any, Faults]]
PROMPTS = {path.stem: f"personamem/building/{path.stem}" for path in (FOLDER / "personamem/building").glob("*.txt")}
GENERATOR, SMALL = "generator", "small"  # roles; the small model expands sections and answers without a history


class Asking:
    """One record's calls.

    Attributes:
        values: values for all prompts; each call may add its own.
        dropped: by reason, counts of what was dropped after all attempts.
    """

    def __init__(self, ask: Ask, args: Namespace, prompts: Mapping[str, Prompt]):
        self.id: str = ask.steps.key[0]
        self.seed: int = args.seed
        self.values: dict[str, str] = {}
        self.dropped: Counter[str] = Counter()
        self._ask, self._prompts = ask, prompts
        self._small = SMALL if args.model else GENERATOR

    def random(self, what: str) -> random.Random:
        """Return a generator seeded by the record and `what`, so that the order of finished calls does not matter."""
        return random.Random(f"{self.seed}:{self.id}:{what}")

    async def json(
        self, name: str, form: type, check: Check, turns: Messages | None = None, small: bool = False, **values: str
    ) -> Any:
        """Return the value of the first reply without faults, else the usable part of the last reply, or None.

        The faults of the last reply are counted as dropped.

        Args:
            turns: the conversation to continue; prompt and reply are appended.
            small: whether to ask the small model.
        """
        prompt = self._prompts[name]
        values = {field: text for field, text in (self.values | values).items() if field in prompt.placeholders}

        def parse(text: str, cut: bool) -> Parsed:
            reply = read(text, form)
            value, faults = check(reply) if isinstance(reply, form) else (None, [reply])
            return nothing(faults[0]) if faults else Parsed(value, "strict", None)

        history = History(list(turns or ()), range(len(turns or ())), [])
        request = {"items": () if turns is None else history, "values": values, "schema": schema_of(form)}
        piece = await self._ask.record(name, parse=parse, model=self._small if small else GENERATOR, **request)
        value = piece["value"]
        if value is None:
            reply = read(piece.get("raw") or "", form)
            value, faults = check(reply) if isinstance(reply, form) else (None, [piece["reason"]])
            self.dropped.update(f"{name}: {fault}" for fault in faults)
        if turns is not None:
            [*_, message] = prompt.messages(turns=history.messages, **values)
            turns += [message, {"role": "assistant", "content": piece.get("raw") or ""}]
        return value or None

    async def choose_blind(self, question: str, options: str) -> str | None:
        """Return the letter that the model chooses without any history."""
        values = {"question": question, "options": options}
        return (await self._ask.record("blind", values=values, model=self._small))["value"]
