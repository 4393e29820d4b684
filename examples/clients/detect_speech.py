"""Find speech in a recording: python examples/clients/detect_speech.py [--url URL] [--model vad_torchscript] WAV

WAV is mono, 16 kHz, 16 bits. The server keeps nothing between requests: each answer carries the state for the next.
"""

import argparse
import os
import wave

import numpy as np

from pilotlight.client import Client

RATE, CHUNK, CONTEXT = 16000, 512, 64
NAMES = {
    "vad": ("input", "state", "output", "stateN"),
    "vad_torchscript": ("INPUT__0", "INPUT__1", "OUTPUT__0", "OUTPUT__1"),
}

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--url", default=os.environ.get("PREDICTOR_URL", "http://127.0.0.1:8080"))
parser.add_argument("--model", choices=NAMES, default="vad")
parser.add_argument("wav", metavar="WAV")
arguments = parser.parse_args()

with wave.open(arguments.wav) as file:
    if (file.getnchannels(), file.getframerate(), file.getsampwidth()) != (1, RATE, 2):
        raise SystemExit(f"{arguments.wav}: must be mono, 16 kHz, 16 bits")
    samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768

audio_name, state_name, probability_name, next_state_name = NAMES[arguments.model]
client, state = Client(arguments.url), np.zeros((2, 1, 128))
samples = np.concatenate([np.zeros(CONTEXT), samples])
speaking = False
for start in range(0, len(samples) - CONTEXT - CHUNK + 1, CHUNK):
    inputs = {audio_name: samples[start : start + CONTEXT + CHUNK], state_name: state}
    if arguments.model == "vad":
        inputs["sr"] = np.array([RATE])
    result = client.infer(arguments.model, inputs)
    state = result[next_state_name]
    if (result[probability_name].item() > 0.5) is not speaking:
        speaking = not speaking
        print(f"{start / RATE:5.2f} s  {'speech' if speaking else 'silence'}")
