"""The tiny language model with chat templates that take tools, in the formats of the field."""

import json
import shutil
from pathlib import Path
from typing import Any

HERMES = (
    '{% if tools %}<|system|>{{ tools | tojson }} <tool_call>\n{"name": …}\n</tool_call><|end|>{% endif %}'
    "{% for m in messages %}<|{{ m.role if m.role in ['system', 'user'] else 'assistant' }}|>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.arguments | tojson }}</tool_call>{% endfor %}"
    "<|end|>{% endfor %}<|assistant|>"
)
TEMPLATES = {
    "hermes": HERMES,
    "hermes_list": HERMES.replace('<tool_call>\n{"name": …}\n', '<tool_call>[{"name": …}]'),
    "mistral": HERMES.replace("<tool_call>", "[TOOL_CALLS]").replace("</tool_call>", ""),
    "llama3_json": HERMES.replace('<tool_call>\n{"name": …}\n</tool_call>', '{"name": …, "parameters": dictionary}')
    .replace("<tool_call>", "")
    .replace("</tool_call>", ""),
    "unknown": HERMES.replace("<tool_call>", "<|tool|>"),
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Paris", "Köln"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "get_time"}}


def tool_model(plain: Path, folder: Path, form: str = "hermes", context: int = 2048) -> Path:
    """Copy a model, with a template of the format and a longer context."""
    shutil.copytree(plain, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATES[form])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": context}))
    return folder
