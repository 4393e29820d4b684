"""A chat on the terminal: python examples/clients/chat.py [--url URL] [--model NAME] [MESSAGE]

Needs `pip install openai`. Without MESSAGE it prompts for messages and keeps the conversation; an empty line
ends it.
"""

import argparse

try:
    from openai import OpenAI
    from openai.types.chat import ChatCompletionMessageParam
except ModuleNotFoundError as error:
    raise SystemExit(f"{error.name} is not installed; run: pip install openai") from None

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--url", default="http://127.0.0.1:8080")
parser.add_argument("--model", default="")
parser.add_argument("--max-tokens", type=int, default=200)
parser.add_argument("--temperature", type=float, default=0.7)
parser.add_argument("message", metavar="MESSAGE", nargs="?")
arguments = parser.parse_args()

client = OpenAI(base_url=f"{arguments.url}/v1", api_key="none")
said: list[ChatCompletionMessageParam] = []


def answer(message: str) -> None:
    """Shows each token as it comes."""
    said.append({"role": "user", "content": message})
    text = ""
    for chunk in client.chat.completions.create(
        model=arguments.model, messages=said, stream=True, temperature=arguments.temperature,
        max_tokens=arguments.max_tokens,
    ):  # fmt: skip
        piece = chunk.choices[0].delta.content or ""
        print(piece, end="", flush=True)
        text += piece
    print()
    said.append({"role": "assistant", "content": text})


if arguments.message:
    answer(arguments.message)
else:
    while message := input("> ").strip():
        answer(message)
