"""Make one row of the paper's table 2, "RAG (asker's profile)", in one file that reads as the paper does.

  python docs/one_row.py --model_addr Qwen/Qwen2.5-7B-Instruct --evaluator_llm Qwen/Qwen2.5-32B-Instruct \\
      --output_addr row.json --inputs_addr data/Art_and_Entertainment_test.json \\
      data/Lifestyle_and_Personal_Development_test.json data/Society_and_Culture_test.json

To read, and to check the other scripts: it imports nothing from this repository. To work with, use
retrieval/rank_dataset.py, baselines.py and evaluate_responses.py, which do what this file leaves out:

- An output that cannot be read is neither requested again nor repaired. Without an answer, a question scores 0; if a
  verdict is missing, the question is left out of the mean. Both are counted.
- Nothing is saved before the end, so an interrupted run starts from the beginning.
- All questions share one random seed. Above temperature 0, texts therefore differ from those of baselines.py.
- Texts that look like the model's control tokens are not escaped, and the chat template must have a system role
  (Gemma 2's has none). Input files are not checked. There are no APIs, no adapters and no models that think.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean

import torch
from transformers import AutoModel, AutoTokenizer
from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

PROMPTS = Path(__file__).parent.parent / "prompts/lampqa"  # [system] and its text, [user] and a text with {names} in it
MAX_LENGTH = 8192  # tokens of an answer and its prompt together (appendix E)
VERDICT_TOKENS = 512  # most tokens of a verdict
# The outputs' fields. With --constrained_decoding always, a model can write nothing but such an object.
ANSWER = {"personalized_answer": {"type": "string", "minLength": 1}}
VERDICT = {"match_score": {"type": "integer", "enum": [0, 1, 2]}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--inputs_addr", required=True, nargs="+", help="datasets, one per category")
    add("--output_addr", required=True, help="JSON file to write, with scores, answers and verdicts")
    add("--model_name", default="facebook/contriever-msmarco", help="encoder that ranks the posts (%(default)s)")
    add("--model_addr", required=True, help="model that answers")
    add("--evaluator_llm", required=True, help="judge")
    add("--num_contexts", type=int, default=10, help="posts in the prompt (%(default)s)")
    add("--temperature", type=float, default=0.1, help="temperature of the answers (%(default)s)")
    add("--max_tokens", type=int, default=2048, help="most tokens of an answer (%(default)s)")
    add("--constrained_decoding", choices=["never", "always"], default="never", help="force valid JSON (%(default)s)")
    add("--dtype", default="auto", help="type of the weights in vLLM (%(default)s)")
    add("--tensor_parallel_size", type=int, default=1, help="GPUs per model (%(default)s)")
    args = parser.parse_args()
    categories = [json.loads(Path(path).read_text(encoding="utf-8")) for path in args.inputs_addr]
    questions = [question for category in categories for question in category]

    # Retrieval (section 4): order the asker's earlier posts by their similarity to the question.
    profiles = rank(questions, args.model_name)

    # Generation: the prompt has the ten best posts, or fewer if it would be too long.
    tokenizer, prompts = AutoTokenizer.from_pretrained(args.model_addr), []
    for question, posts in zip(questions, profiles, strict=True):
        for number in range(args.num_contexts, -1, -1):
            values = {"question": question["question"], "profile": "\n\n".join(posts[:number])}
            prompt = render(tokenizer, "rag", values)
            if len(prompt) + args.max_tokens <= MAX_LENGTH:
                break
        prompts.append(prompt)
    sampling = {"temperature": args.temperature, "top_p": 0.95, "max_tokens": args.max_tokens, "seed": 0}
    texts = generate(args.model_addr, prompts, sampling, ANSWER, MAX_LENGTH, args)
    answers = [read_field(text, "personalized_answer") for text in texts]
    answers = [answer.strip() if isinstance(answer, str) else "" for answer in answers]

    # Evaluation (section 3.2): the judge sees the narrative too, and judges one aspect at a time.
    tokenizer, prompts = AutoTokenizer.from_pretrained(args.evaluator_llm), []
    for question, answer in zip(questions, answers, strict=True):
        for aspect in question["rubric_aspects"] if answer else []:
            values = {"question": question["question"], "details": question["narrative"], "response": answer}
            prompts.append(render(tokenizer, "aspect_judge", values | aspect))
    sampling = {"temperature": 0, "max_tokens": VERDICT_TOKENS}
    texts = iter(generate(args.evaluator_llm, prompts, sampling, VERDICT, -1, args))  # -1: as long as memory allows

    # Algorithm 1: a question's score is the mean of its verdicts (0, 1 or 2), divided by 2.
    results = []
    for question, answer in zip(questions, answers, strict=True):
        verdicts = [read_field(next(texts), "match_score") for _ in question["rubric_aspects"] if answer]
        is_judged = all(verdict in (0, 1, 2) for verdict in verdicts)
        score = (fmean(verdicts) / 2 if is_judged else None) if answer else 0
        results.append({"id": question["id"], "output": answer, "verdicts": verdicts, "score": score})

    # Table 2: the mean of each category, and the mean of these means.
    scores, row = iter([result["score"] for result in results]), []
    for category in categories:
        row.append(fmean(score for score in [next(scores) for _ in category] if score is not None))
    unjudged = sum(result["score"] is None for result in results)
    print(" | ".join(f"{score:.4f}" for score in [*row, fmean(row)]))
    print(f"{len(results)} questions: {answers.count('')} without an answer (0), {unjudged} without a score (left out)")
    output = {"row": row, "average": fmean(row), "questions": results}
    Path(args.output_addr).write_text(json.dumps(output, indent=2, ensure_ascii=False), encoding="utf-8")


def rank(questions, encoder):
    """Return each question's posts (texts), by the dot product of their embeddings with the question's."""
    tokenizer, model = AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder).eval()
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")

    @torch.inference_mode()
    def embed(text):  # Contriever: the mean of the last layer over all tokens
        tokens = tokenizer(text, truncation=True, max_length=512, return_tensors="pt").to(model.device)
        return model(**tokens).last_hidden_state[0].mean(0)

    profiles = []
    for question in questions:
        query, posts = embed(question["question"]), [post["text"] for post in question["profile"]]
        profiles.append(sorted(posts, key=lambda post, query=query: float(query @ embed(post)), reverse=True))
    return profiles


def render(tokenizer, name, values):
    """Return a prompt's token ids. A paragraph whose value is empty is left out, such as the profile without posts."""
    system, user = (PROMPTS / f"{name}.txt").read_text(encoding="utf-8").strip("\n").split("\n[user]\n")
    empty = [f"{{{field}}}" for field, value in values.items() if not value]
    paragraphs = [text for text in user.split("\n\n") if not any(field in text for field in empty)]
    messages = [
        {"role": "system", "content": system.removeprefix("[system]\n")},
        {"role": "user", "content": "\n\n".join(paragraphs).format(**values)},
    ]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer.encode(text, add_special_tokens=False)


def generate(model, prompts, sampling, fields, max_model_len, args):
    """Return one text per prompt. The model leaves memory at the end, so that the next one fits."""
    schema = {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
    form = StructuredOutputsParams(json=schema) if args.constrained_decoding == "always" else None
    settings = {"dtype": args.dtype, "tensor_parallel_size": args.tensor_parallel_size, "max_model_len": max_model_len}
    settings |= {"structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True}}
    llm = LLM(model, **settings, enforce_eager=not torch.cuda.is_available())
    sampling = SamplingParams(**sampling, structured_outputs=form)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling)
    return [output.outputs[0].text for output in outputs]


def read_field(text, field):
    """Return a field of the JSON object in a text, None if there is no such object."""
    try:
        return json.loads(text[text.find("{") : text.rfind("}") + 1], strict=False).get(field)
    except ValueError:
        return None


if __name__ == "__main__":
    main()
