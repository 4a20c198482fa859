"""Forty made-up records, short prompts for them, and trainings by train_generator.py on a tiny model."""

import json

from utils import train_generator
from utils.benchmarks.lampqa.answers import write_answer
from utils.models.model_folder import ModelFolder

COLOURS = ("red", "blue", "green", "white", "black", "brown", "grey", "pink")
THINGS = ("car", "door", "hat", "cup", "boat")
PROMPTS = {  # the placeholders of the shipped ones, in few words
    "no_personalization": "[system]\nAnswer.\n[user]\n{question}\noutput: ```json\n",
    "rag": "[system]\nAnswer.\n[user]\n{profile}\n\n{question}\noutput: ```json\n",
    "teacher": "[system]\nAnswer.\n[user]\n{profile}\n\nNotes: {aspects}\n\n{question}\noutput: ```json\n",
}


def records():
    """By its two words, each question has an answer of its own."""
    return [
        {
            "id": f"{colour}-{thing}",
            "question": f"Where is the {colour} {thing}?",
            "narrative": f"I look for a {thing}.",
            "category": "cooking",
            "rubric_aspects": [{"aspect": f"{thing} {colour}", "evidence": f"a {thing}", "reason": "lost it"}],
            "profile": [{"id": "p", "text": "I lose things."}],
        }
        for colour in COLOURS
        for thing in THINGS
    ]


def answer_to(record):
    colour, thing = record["id"].split("-")
    return f"Look {COLOURS.index(colour) + 10} steps {THINGS[-1 - THINGS.index(thing)]}wards."


def write_files(folder):
    """Write the dataset, responses with its answers and with worse ones, samples of a model, and the short prompts."""
    made = records()
    (folder / "train.json").write_text(json.dumps(made))
    for name, text_of in (("best", answer_to), ("worst", lambda record: "Nobody knows.")):
        content = {record["id"]: [{"output": text_of(record)}] for record in made}
        (folder / f"{name}.json").write_text(json.dumps(content))
    samples = {record["id"]: [{"output": answer_to(record), "raw": write_answer(answer_to(record))}] for record in made}
    (folder / "samples.json").write_text(json.dumps(samples))
    (folder / "prompts").mkdir()
    for name, text in PROMPTS.items():
        (folder / "prompts" / f"{name}.txt").write_text(text)
    return made


def flags_of(folder, output, *more):
    words = ["--inputs_addr", folder / "train.json", "--prompts_dir", folder / "prompts", "--output_dir", output]
    words += ["--unranked", "--num_contexts", 1, "--lora_rank", 64, "--no-gradient_checkpointing", *more]
    return list(map(str, words))


def learn(folder, output, *more):
    assert train_generator.main(flags_of(folder, output, *more)) == 0
    return [json.loads(line) for line in (output / "training_log.jsonl").read_text().splitlines()]


def figures(log, name):
    return [entry[name] for entry in log if name in entry]


def make_teacher(folder, source, steps=250):
    """Write a copy of a model that has learnt, with all its weights, to answer the teacher's prompt alone."""
    import torch
    from transformers import AutoModelForCausalLM

    from prompts import load_prompt
    from utils.benchmarks.lampqa.task import private_notes
    from utils.generation.chat import LocalChat

    chat, prompt = LocalChat(ModelFolder(str(source))), load_prompt("lampqa/teacher", folder / "prompts")
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    rows = []
    for record in records():
        shown = {"question": record["question"], "profile": "I lose things.", "aspects": private_notes(record)}
        rows.append(
            (list(chat.render(prompt.messages(**shown))), list(chat.render_reply(write_answer(answer_to(record)))))
        )
    return learn_rows(model, chat, lambda: rows, steps, folder / "teacher")


def learn_rows(model, chat, rows_of_step, steps, folder):
    """Train all weights on rows of prompt and reply, as token ids, write the model, and return the last loss."""
    import torch

    from utils.models.base_model import NO_LOSS

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    for _ in range(steps):
        rows = rows_of_step()
        length = max(len(prompt) + len(reply) for prompt, reply in rows)
        pads = [length - len(prompt) - len(reply) for prompt, reply in rows]
        ids = [prompt + reply + [0] * pad for (prompt, reply), pad in zip(rows, pads, strict=True)]
        labels = [
            [NO_LOSS] * len(prompt) + reply + [NO_LOSS] * pad for (prompt, reply), pad in zip(rows, pads, strict=True)
        ]
        loss = model(input_ids=torch.tensor(ids), labels=torch.tensor(labels)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    chat.tokenizer.save_pretrained(folder)
    return loss.item()


def greedy_answers(folder, base, adapter=None, prompt="rag"):
    """Each record's greedy text to the short prompt, by PEFT alone."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from prompts import load_prompt
    from utils.benchmarks.lampqa.task import private_notes
    from utils.generation.chat import LocalChat
    from utils.models.base_model import write_reply

    chat, prompt = LocalChat(ModelFolder(str(base))), load_prompt(f"lampqa/{prompt}", folder / "prompts")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = (PeftModel.from_pretrained(model, adapter) if adapter else model).eval()
    answers = {}
    for record in records():
        shown = {"question": record["question"], "profile": "I lose things.", "aspects": private_notes(record)}
        ids = chat.render(prompt.messages(**{name: shown[name] for name in prompt.placeholders}))
        answers[record["id"]] = chat.tokenizer.decode(write_reply(model, chat, ids, 60)[0], skip_special_tokens=True)
    return answers
