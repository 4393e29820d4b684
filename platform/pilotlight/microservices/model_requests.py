"""JSON Schemas of requests to each kind of model, for the OpenAPI document. Pure, from the table of kinds."""

from typing import Any, Final

from pilotlight.microservices import kinds
from pilotlight.microservices.kinds import Parameter, Schema

Json = Any

BOUNDS: Final = {"least": "minimum", "most": "maximum", "above": "exclusiveMinimum"}


def schemas() -> dict[str, Json]:
    """Return schemas by names such as `Request.classification`; networks of one kind share one."""
    return {f"Request.{kind}": _of(kinds.schema(kind)) for kind in kinds.networks() if kinds.schema(kind).kind == kind}


def _of(schema: Schema) -> dict[str, Json]:
    needs = [{"anyOf": [{"required": [name]} for name in names]} for names in schema.needs]
    document: dict[str, Json] = {
        "title": f"A request to a model of the kind {schema.kind}",
        "type": "object",
        "properties": {name: _parameter(each) for name, each in schema.parameters.items()},
        "additionalProperties": False,
    }
    return {**document, "allOf": needs} if needs else document


def _parameter(parameter: Parameter) -> dict[str, Json]:
    one: dict[str, Json] = {} if parameter.type == "json" else {"type": parameter.type}
    for field, word in BOUNDS.items():
        value = getattr(parameter, field)
        one |= {word: value} if value is not None else {}
    one |= {"enum": list(parameter.choices)} if parameter.choices else {}
    document = {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]} if parameter.many else one
    default = {"default": parameter.default} if parameter.default is not None else {}
    return {**document, "description": parameter.help, **default}
