"""Prints how alike sentences are: python examples/clients/embed.py [--url URL] SENTENCE SENTENCE…

The vectors have length 1, so the product of two is the cosine of their angle: 1 is the same, 0 unrelated.
"""

import argparse
import os

from pilotlight.client import Client

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--url", default=os.environ.get("PREDICTOR_URL", "http://127.0.0.1:8080"))
parser.add_argument("sentences", metavar="SENTENCE", nargs="+")
arguments = parser.parse_args()

vectors = Client(arguments.url).embed(arguments.sentences, model="embed_text")
for sentence, cosines in zip(arguments.sentences, vectors @ vectors.T, strict=True):
    print(*(f"{cosine:6.3f}" for cosine in cosines), "", sentence)
