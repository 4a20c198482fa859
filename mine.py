import argparse
import json

parser = argparse.ArgumentParser()
parser.add_argument("--inputs_addr", required=True, help="a ranked dataset")
parser.add_argument("--output_addr", required=True, help="where the responses go")
args = parser.parse_args()


def answer(question, posts):
    return f"An answer to {question!r} for somebody who once asked: {posts[0] if posts else 'nothing'}"


with open(args.inputs_addr, encoding="utf-8") as file:
    records = json.load(file)
responses = {}
for record in records:  # a system may see `question` and `profile`, nothing else
    posts = [post["text"] for post in record["profile"][:10]]  # best first
    responses[record["id"]] = [{"output": answer(record["question"], posts)}]
with open(args.output_addr, "w", encoding="utf-8") as file:
    json.dump(responses, file)
