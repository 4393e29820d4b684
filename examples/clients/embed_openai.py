"""Prints how alike sentences are, by OpenAI's client: python examples/clients/embed_openai.py [--url URL] SENTENCE…

The vectors of embed_text have length 1, so the product of two is the cosine of their angle.
"""

import argparse

from openai import OpenAI

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--url", default="http://127.0.0.1:8080")
parser.add_argument("--model", default="embed_text")
parser.add_argument("sentences", metavar="SENTENCE", nargs="+")
arguments = parser.parse_args()

client = OpenAI(base_url=f"{arguments.url}/v1", api_key="none")
told = client.embeddings.create(model=arguments.model, input=arguments.sentences)
vectors = [row.embedding for row in told.data]
for sentence, vector in zip(arguments.sentences, vectors, strict=True):
    cosines = (sum(a * b for a, b in zip(vector, other, strict=True)) for other in vectors)
    print(*(f"{cosine:6.3f}" for cosine in cosines), "", sentence)
