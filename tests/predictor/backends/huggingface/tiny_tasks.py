"""Models of many tasks with a few thousand random weights, saved by transformers' own functions."""

import string
import warnings
from pathlib import Path
from typing import Any

WORDS = [
    "the", "a", "cat", "dog", "anna", "paris", "lives", "in", "sat", "on", "mat", "who", "where", "is", "happy", "sad",
    "good", "bad", "film", "light", "server", "sleeps",
]  # fmt: skip
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LENGTH = 40
SIZE = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
ENTITIES = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC"}
MOODS = {0: "negative", 1: "neutral", 2: "positive"}


def word_tokenizer() -> Any:
    """BERT's word pieces over a few words and all letters."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = string.ascii_lowercase
    pieces = [*SPECIAL, *WORDS, *letters, *(f"##{letter}" for letter in letters), ".", "?"]
    words = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    plain = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    plain.normalizer, plain.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    plain.decoder = decoders.WordPiece()
    plain.post_processor = processors.BertProcessing(("[SEP]", words["[SEP]"]), ("[CLS]", words["[CLS]"]))
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    made = PreTrainedTokenizerFast(tokenizer_object=plain, model_max_length=LENGTH, **names)
    made.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return made


def write_bert(folder: Path, head: str, **config: Any) -> Path:
    """A BERT with a head such as ForSequenceClassification, or Model without one."""
    import transformers

    tokenizer = word_tokenizer()
    settings = transformers.BertConfig(
        vocab_size=len(tokenizer), max_position_embeddings=LENGTH, initializer_range=0.5, **SIZE, **config
    )
    return save(folder, f"Bert{head}", settings, tokenizer)


def write_t5(folder: Path) -> Path:
    import transformers

    tokenizer = word_tokenizer()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    settings = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, initializer_factor=8.0,
        pad_token_id=0, eos_token_id=3, decoder_start_token_id=0,
        task_specific_params={"summarization": {"prefix": "the film ", "max_new_tokens": 4}},
    )  # fmt: skip
    return save(folder, "T5ForConditionalGeneration", settings, tokenizer)


def write_vit(folder: Path) -> Path:
    import transformers

    settings = transformers.ViTConfig(image_size=32, patch_size=8, initializer_range=0.5, id2label=MOODS, **SIZE)
    return save(folder, "ViTForImageClassification", settings, transformers.ViTImageProcessorPil(size=32))


def write_wav2vec2(folder: Path) -> Path:
    import json

    import transformers

    letters = {
        token: number for number, token in enumerate(["<pad>", "<s>", "</s>", "<unk>", "|", *string.ascii_lowercase])
    }
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps(letters))
    processor = transformers.Wav2Vec2Processor(
        transformers.Wav2Vec2FeatureExtractor(), transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))
    )
    settings = transformers.Wav2Vec2Config(
        vocab_size=len(letters), conv_dim=(16, 16), conv_stride=(10, 8), conv_kernel=(10, 8), initializer_range=0.5,
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2, pad_token_id=0, num_feat_extract_layers=2, **SIZE,
    )  # fmt: skip
    return save(folder, "Wav2Vec2ForCTC", settings, processor)


def save(folder: Path, architecture: str, config: Any, processor: Any) -> Path:
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = getattr(transformers, architecture)(config).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
    return folder


def write_whisper(folder: Path) -> Path:
    import transformers

    tokenizer = transformers.WhisperTokenizer(
        vocab={letter: n for n, letter in enumerate(string.ascii_lowercase)}, merges=[]
    )
    start, end = tokenizer.convert_tokens_to_ids("<|startoftranscript|>"), tokenizer.eos_token_id
    settings = transformers.WhisperConfig(
        vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, num_mel_bins=8, max_target_positions=40,
        init_std=0.5, decoder_start_token_id=start, bos_token_id=end, eos_token_id=end, pad_token_id=end,
    )  # fmt: skip
    extractor = transformers.WhisperFeatureExtractor(feature_size=8)
    return save(
        folder, "WhisperForConditionalGeneration", settings, transformers.WhisperProcessor(extractor, tokenizer)
    )
