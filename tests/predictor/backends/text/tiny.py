"""A language model of 100,000 weights with a tokenizer of its own, made and trained in seconds.

It stands in for weights that nobody could put into a test: it has learnt a few sentences by heart, so that what it says
makes sense and greedy answers do not hang on the last bit of a score. All else is as with a model of billions: the
architecture, the files, the tokenizer and the chat template are transformers' own.
"""

import hashlib
import json
import warnings
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

SENTENCES = (
    "The quick brown fox jumps over the lazy dog and runs into the dark forest.",
    "A pilot light is a small flame that burns all day so that the large one starts at once.",
    "The server sleeps when nobody asks and wakes before the asker loses patience.",
    "One two three four five six seven eight nine ten eleven twelve thirteen.",
    "Grüße aus Köln: süße Äpfel, café, naïve 東京 🙂 and more.",
)
CHAT = (
    ("hello", "Hello! How can I help you today?"),
    ("what is a pilot light", "A pilot light is a small flame that burns all day."),
    ("count", "One two three four five six seven eight nine ten."),
)
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('role must be system, user or assistant') }}{% endif %}"
    "<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
CONTEXT = 128


@cache
def tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIAL, initial_alphabet=letters, show_progress=False
    )  # fmt: skip
    plain.train_from_iterator([*SENTENCES, *(text for pair in CHAT for text in pair)] * 3, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<|bos|>", eos_token="<|end|>")
    made.chat_template = TEMPLATE
    return made


def config(family: str) -> Any:
    import transformers

    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    size = {"vocab_size": 420, "hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": CONTEXT}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4}
    if family == "gpt2":
        gpt2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT, "vocab_size": 420}
        return transformers.GPT2Config(**gpt2, **ends, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0)
    if family == "mistral":  # a window of 16 tokens: rows cannot share a cache
        return transformers.MistralConfig(**size, **heads, **ends, num_key_value_heads=2, sliding_window=16)
    if family == "qwen3":
        return transformers.Qwen3Config(**size, **heads, **ends, num_key_value_heads=2, head_dim=16)
    return transformers.LlamaConfig(**size, **heads, **ends, num_key_value_heads=2)


def text_model(kept: Path, family: str = "llama", steps: int = 60, *, chats: bool = True) -> Path:
    """The model in `kept`, where earlier runs have left it; importing transformers alone takes many seconds."""
    mark = hashlib.sha256(f"{Path(__file__).read_text()}{version('transformers')}".encode()).hexdigest()[:16]
    folder = kept / f"{mark}-{family}-{steps}-{chats}"
    if not folder.exists():
        made = Path(mkdtemp(dir=kept))
        write_text_model(made, family, steps, chats=chats)
        with suppress(OSError):  # another process was faster
            made.rename(folder)
    return folder


def write_text_model(folder: Path, family: str, steps: int, *, chats: bool = True) -> Path:
    """The model's directory, as `save_pretrained` leaves it."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)  # two that wait for each other on busy cores take far longer
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config(family))
    _train(model, steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
    if not chats:
        (folder / "chat_template.jinja").unlink(missing_ok=True)
        told = json.loads((folder / "tokenizer_config.json").read_text())
        told.pop("chat_template", None)
        (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder


def _train(model: Any, steps: int) -> None:
    import torch

    words = tokenizer()
    texts = [f"{sentence}<|end|>" for sentence in SENTENCES]
    texts += [f"<|user|>{question}<|end|><|assistant|>{answer}<|end|>" for question, answer in CHAT]
    rows = [words(text)["input_ids"] for text in texts]
    width = max(map(len, rows))
    ids = torch.tensor([row + [1] * (width - len(row)) for row in rows])
    labels = torch.tensor([row + [-100] * (width - len(row)) for row in rows])
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=ids, attention_mask=(labels != -100).long(), labels=labels).loss.backward()
        optimizer.step()
    model.eval()


def greedy(folder: Path, prompt: str, count: int, *, special: bool = True) -> list[int]:
    """What transformers' own generate makes of a prompt that is alone: the judge."""
    import torch
    from transformers import AutoModelForCausalLM

    model = _loaded(folder, AutoModelForCausalLM)
    ids = tokenizer()(prompt, add_special_tokens=special, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=1
        )  # fmt: skip
    return [int(token) for token in out[0, ids.shape[1] :]]


@cache
def _loaded(folder: Path, kind: Any) -> Any:
    return kind.from_pretrained(folder)


def greedy_text(folder: Path, prompt: str, count: int) -> str:
    return str(tokenizer().decode(greedy(folder, prompt, count), skip_special_tokens=True))
