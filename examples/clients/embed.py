"""Prints how alike sentences are: python examples/clients/embed.py [--url URL] SENTENCE SENTENCE…

The vectors have length 1, so the product of two is the cosine of their angle: 1 is the same, 0 unrelated.
"""

import argparse

import v2

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--url", default=v2.URL)
parser.add_argument("sentences", metavar="SENTENCE", nargs="+")
arguments = parser.parse_args()

sentences = arguments.sentences
text = v2.tensor("text", "BYTES", [len(sentences), 1], sentences)
answer = v2.infer(arguments.url, "embed_text", [text])["embedding"]
width = answer["shape"][1]
vectors = [answer["data"][row * width : (row + 1) * width] for row in range(len(sentences))]
for sentence, vector in zip(sentences, vectors, strict=True):
    cosines = (sum(a * b for a, b in zip(vector, other, strict=True)) for other in vectors)
    print(*(f"{cosine:6.3f}" for cosine in cosines), "", sentence)
