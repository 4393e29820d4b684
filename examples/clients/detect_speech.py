"""Says when somebody speaks: python examples/clients/detect_speech.py [--url URL] [--model vad_torchscript] WAV

WAV is mono, 16 kHz, 16 bits. The server keeps nothing between requests: each answer carries the state for the next.
"""

import argparse
import array
import wave

import v2

RATE, CHUNK, CONTEXT = 16000, 512, 64
NAMES = {
    "vad": ("input", "state", "output", "stateN"),
    "vad_torchscript": ("INPUT__0", "INPUT__1", "OUTPUT__0", "OUTPUT__1"),
}

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--url", default=v2.URL)
parser.add_argument("--model", choices=NAMES, default="vad")
parser.add_argument("wav", metavar="WAV")
arguments = parser.parse_args()

with wave.open(arguments.wav) as file:
    if (file.getnchannels(), file.getframerate(), file.getsampwidth()) != (1, RATE, 2):
        raise SystemExit(f"{arguments.wav}: must be mono, 16 kHz, 16 bits")
    samples = [value / 32768 for value in array.array("h", file.readframes(file.getnframes()))]

audio_name, state_name, probability_name, next_state_name = NAMES[arguments.model]
state: list[float] = [0.0] * 256
samples = [0.0] * CONTEXT + samples
speaking = False
for start in range(0, len(samples) - CONTEXT - CHUNK + 1, CHUNK):
    inputs = [
        v2.tensor(audio_name, "FP32", [1, CONTEXT + CHUNK], samples[start : start + CONTEXT + CHUNK]),
        v2.tensor(state_name, "FP32", [2, 1, 128], state),
    ]
    if arguments.model == "vad":
        inputs.append(v2.tensor("sr", "INT64", [1], [RATE]))
    outputs = v2.infer(arguments.url, arguments.model, inputs)
    state = outputs[next_state_name]["data"]
    if (outputs[probability_name]["data"][0] > 0.5) is not speaking:
        speaking = not speaking
        print(f"{start / RATE:5.2f} s  {'speech' if speaking else 'silence'}")
