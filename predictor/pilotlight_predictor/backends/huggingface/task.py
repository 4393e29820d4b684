"""Task of a model in Hugging Face's layout: the parameter `task`, else the one of the architecture in config.json."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from pilotlight_predictor.errors import LoadFailed

Positive = Annotated[int, Meta(ge=1)]


class Task(NamedTuple):
    """A task by the name of its pipeline. `architectures`: endings of those that have its head."""

    name: str
    architectures: tuple[str, ...]
    auto_class: str


EMBEDDING: Final = Task("feature-extraction", ("Model",), "AutoModel")
CLASSIFICATION: Final = Task(
    "text-classification", ("ForSequenceClassification",), "AutoModelForSequenceClassification"
)
RANKING: Final = CLASSIFICATION._replace(name="text-ranking")  # a classifier of one label: a cross-encoder
TASKS: Final = (
    CLASSIFICATION,
    RANKING,
    Task("token-classification", ("ForTokenClassification",), "AutoModelForTokenClassification"),
    Task("fill-mask", ("ForMaskedLM",), "AutoModelForMaskedLM"),
    Task("question-answering", ("ForQuestionAnswering",), "AutoModelForQuestionAnswering"),
    Task("image-classification", ("ForImageClassification",), "AutoModelForImageClassification"),
    # Before text2text-generation, whose ending they share.
    Task("automatic-speech-recognition", ("ForCTC",), "AutoModelForCTC"),
    Task("automatic-speech-recognition", ("WhisperForConditionalGeneration",), "AutoModelForSpeechSeq2Seq"),
    Task(
        "text2text-generation", ("ForConditionalGeneration", "MTModel", "EncoderDecoderModel"), "AutoModelForSeq2SeqLM"
    ),
    EMBEDDING,
)
# Other names of tasks: KServe's, with - for _, and those of pipelines that compute the same.
ALIASES: Final = {
    "sequence-classification": "text-classification", "sentiment-analysis": "text-classification",
    "ner": "token-classification", "text-embedding": EMBEDDING.name, "embeddings": EMBEDDING.name,
    "sentence-similarity": EMBEDDING.name, "summarization": "text2text-generation",
    "translation": "text2text-generation", "rerank": RANKING.name, "cross-encoder": RANKING.name,
}  # fmt: skip


class TaskSettings(Struct, frozen=True):
    """Parameters of a configuration, by the names that KServe and transformers have for them."""

    task: str = ""
    max_length: Positive | None = None  # tokens of an input; the rest is cut off
    return_probabilities: bool = False
    return_raw_logits: bool = False
    top_k: Positive = 5
    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] = "simple"
    max_answer_len: Positive = 15  # tokens of an answer to a question
    max_new_tokens: Positive | None = None
    pooling: Literal["mean", "cls", "max", "lasttoken"] | None = None
    normalize: bool | None = None


def read_settings(model: str, parameters: Mapping[str, str]) -> TaskSettings:
    """Return the parameters, whose names may be in upper case, as those of the text backend are."""
    lower = {name.lower(): value for name, value in parameters.items()}
    known = {name: lower[name] for name in TaskSettings.__struct_fields__ if name in lower}
    try:
        return msgspec.convert(known, TaskSettings, strict=False)
    except msgspec.ValidationError as error:
        problem, _, field = str(error).rpartition(" - at `$.")
        field = field.rstrip("`")
        raise LoadFailed(f"{model}: parameters {field} = {known.get(field)!r}: {problem}") from None


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise LoadFailed(f"{path.name} of {path.parent.name} cannot be read as JSON: {error}") from None


def choose_task(model: str, folder: Path, named: str) -> Task:
    """Return the task to serve. Raise LoadFailed if the weights of the folder have no head for it."""
    config = read_json(folder / "config.json")
    architectures: Sequence[str] = config.get("architectures") or ()
    fitting = next((task for task in TASKS for name in architectures if name.endswith(task.architectures)), None)
    labels = config.get("num_labels") or len(config.get("id2label") or ("LABEL_0", "LABEL_1"))
    if fitting == CLASSIFICATION:
        fitting = RANKING if labels == 1 else CLASSIFICATION
    elif (folder / "modules.json").is_file():  # of sentence-transformers
        fitting = EMBEDDING
    task_name = named.lower().replace("_", "-")
    task_name = ALIASES.get("translation" if task_name.startswith("translation") else task_name, task_name)
    if not task_name and fitting is not None:
        return fitting
    known = ", ".join(dict.fromkeys(task.name for task in TASKS))
    has = f"config.json of {folder.name} has architectures = {list(architectures)}"
    if not task_name:
        raise LoadFailed(f"{model}: {has}, which belong to none of the tasks {known}; set the parameter task")
    if task_name == EMBEDDING.name:
        return EMBEDDING  # any encoder, without its head
    if task_name not in {task.name for task in TASKS}:
        raise LoadFailed(f"{model}: parameters task = {named!r}, must be one of {known}")
    if task_name == RANKING.name and fitting == CLASSIFICATION:
        has = f"config.json of {folder.name} has {labels} labels, and a score needs a classifier of one"
    if task_name == CLASSIFICATION.name and fitting == RANKING:
        return CLASSIFICATION
    if fitting is None or fitting.name != task_name:
        other = f", for {fitting.name}" if fitting else ""
        raise LoadFailed(f"{model}: parameters task = {named!r}, but {has}{other}; leave task out")
    return fitting
