"""How a step asks for one record: JSON replies that are checked, in conversations that go on; and what was dropped."""

import random
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from typing import Any

from prompts import History, Messages, load_prompt
from utils.parsing import Parsed
from utils.personas.replies import Faults, parsed, read, schema_of
from utils.runs.ask import Ask

Check = Callable[[Any], tuple[Any, Faults]]
FOLDER = "personamem/building"
PROMPTS = {
    name: f"{FOLDER}/{name}"
    for name in (
        "persona", "general_history", "general_later", "hobbies", "topic_history", "topic_later", "warm_up",
        "conversation", "missing_events", "section", "small_talk", "follow_up", "facts", "facts_wrong", "ideas",
        "ideas_wrong", "latest", "latest_wrong", "scenario", "scenario_wrong", "reasons", "reasons_wrong",
        "reasons_line", "evolution", "evolution_wrong", "recommendation", "recommendation_wrong", "blind",
    )
}  # fmt: skip
GENERATOR, SMALL = "generator", "small"  # roles; the small one expands sections and answers without a history


class Asking:
    """One record's calls.

    Attributes:
        values: what prompts are filled with, besides a call's own.
        dropped: by reason, what was left out after all tries.
    """

    def __init__(self, ask: Ask, args: Namespace, values: dict[str, str]):
        self.id: str = ask.key[0]
        self.values, self.dropped = values, Counter[str]()
        self._ask, self._args = ask, args
        self._small = SMALL if args.model else GENERATOR

    def random(self, what: str) -> random.Random:
        """Draws the same for the same thing of the record, in whatever order its calls end."""
        return random.Random(f"{self._args.seed}:{self.id}:{what}")

    async def json(
        self, name: str, form: type, check: Check, turns: Messages | None = None, small: bool = False, **values: str
    ) -> Any:
        """The value of a reply without faults; of one that has some on every try what is left of it, and they count.

        None if nothing is left.

        Args:
            turns: the conversation that goes on; the prompt and the reply are added to it.
        """
        prompt = load_prompt(PROMPTS[name], self._args.prompts_dir)
        values = {one: text for one, text in (self.values | values).items() if one in prompt.placeholders}

        def parse(text: str, cut: bool) -> Parsed:
            reply = read(text, form)
            return parsed(*check(reply)) if isinstance(reply, form) else parsed(None, [reply])

        history = History(list(turns or ()), range(len(turns or ())), [])
        role = self._small if small else GENERATOR
        items = () if turns is None else history
        make = {"items": items, "values": values, "model": role, "parse": parse, "schema": schema_of(form)}
        piece = await self._ask.record(name, **make)
        value = piece["value"]
        if value is None:
            reply = read(piece.get("raw") or "", form)
            value, faults = check(reply) if isinstance(reply, form) else (None, [piece["reason"]])
            self.dropped.update(f"{name}: {fault}" for fault in faults)
        if turns is not None:
            [*_, said] = prompt.messages(turns=history.messages, **values)
            turns += [said, {"role": "assistant", "content": piece.get("raw") or ""}]
        return value or None

    async def choose_blind(self, question: str, options: str) -> str | None:
        """The letter of the option that is chosen without any history."""
        values = {"question": question, "options": options}
        return (await self._ask.record("blind", values=values, model=self._small))["value"]
