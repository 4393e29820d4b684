"""Errors as Triton states them, for `--compat triton`: one table with our sentence and Triton's status and text.

Scripts that people bring match on these. An error without a row keeps its own status and sentence, which are better.
"""

import re
from typing import Final

from pilotlight_predictor.errors import PredictorError

INTERNAL: Final = (500, "INTERNAL")
INVALID: Final = (400, "INVALID_ARGUMENT")
NOT_FOUND: Final = (404, "NOT_FOUND")
UNAVAILABLE: Final = (503, "UNAVAILABLE")
UNSUPPORTED: Final = (501, "UNIMPLEMENTED")
_NOT: Final = "attempt to access JSON non-"
_RESERVED: Final = "parameter keys starting with 'triton_' are reserved for Triton usage"
_STRINGS: Final = "string elements for inference input '{0}'"
_ONE_DATA: Final = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters',"
    " 'shared_memory_region' in 'parameters'. "
)
_VERSION: Final = "version should be an integral value > 0"
_CONFIG: Final = r"it is in none of|no_?model file|.*no model file|.*config\.pbtxt:|.*is not valid JSON"

# Where (transport and path), our sentence, Triton's status and text; {0} is the first group. The first row applies.
_TABLE: Final[tuple[tuple[str, str, tuple[int, str], str], ...]] = (
    ("", r"(attempt to (?:access|get) .*)", INTERNAL, "{0}"),
    ("", r"explicit model load / unload is not allowed", UNAVAILABLE,
     "explicit model load / unload is not allowed if polling is enabled"),
    ("", r"failed to load '(.*?)': .*no version to serve", INVALID,
     "load failed for model '{0}': at least one version must be available under the version policy of model '{0}'"),
    ("", rf"failed to load '(.*?)': (?:{_CONFIG})", INTERNAL,
     "failed to load '{0}', failed to poll from model repository"),
    ("", r"failed to load '(.*?)': (.*)", INVALID,
     "load failed for model '{0}': version 1 is at UNAVAILABLE state: Internal: {1};"),
    ("/load$", r"parameters\.config is not valid JSON: Input must", INTERNAL, f"{_NOT}string as string"),
    ("^grpc", r"parameters\.config is not valid JSON: Input must", INVALID,
     "invalid value type for load parameter 'config', expected string_param."),
    ("http.*/([^/]*)/load$", r"parameters\.config is not valid JSON", INTERNAL,
     "failed to load '{model}', failed to poll from model repository"),
    ("", r"parameters\['file:.*must be base64", INTERNAL, f"{_NOT}string as string"),
    ("", r"parameters must be a JSON object", INTERNAL, "attempt to get members for non-object"),
    ("", r"ready = .*must be true or false", INTERNAL, f"{_NOT}boolean as boolean"),
    # Generate, before what its fields have in common with those of infer
    ("/generate", r"(?:unexpected shape for input '(.*?)'|(\S+) is nested deeper)", INVALID,
     "The schema can not convert input '{0}{1}' to tensor with proper shape"),
    # Requests
    ("", r"(?:the request|the body) is not valid JSON", INTERNAL,
     "failed to parse the request JSON buffer: Invalid value. at 0"),
    ("/register$", r"key = None", INVALID, "Shared memory register request has no 'key' field"),
    ("", r"the request does not fit V2 inference: .*missing required field (\w+)", INTERNAL,
     "Unable to parse '{0}': attempt to access non-existing object member '{0}'"),
    ("", r"the request does not fit V2 inference: inputs: Expected array", INTERNAL,
     f"Unable to parse 'inputs': {_NOT}array as array"),
    ("", r"the request does not fit V2 inference: parameters: Expected object", INTERNAL,
     "failed to get request params.: attempt to get members for non-object"),
    ("", r"the request does not fit V2 inference: Expected object", INTERNAL,
     "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
    ("", r"the request does not fit V2 inference: .*shape.*Expected int >= 0", INTERNAL,
     f"Unable to parse 'shape': {_NOT}unsigned-integer as unsigned-integer"),
    ("", r"inputs\[[^]]+\]\.data: .*Expected int", INTERNAL,
     f"Unable to parse 'data': {_NOT}signed-integer as signed-integer"),
    ("", r"inputs\[[^]]+\]\.data: .*Expected float", INTERNAL, f"Unable to parse 'data': {_NOT}number as double"),
    ("", r"inputs\[[^]]+\]\.data: .*Expected str", INTERNAL,
     f"Unable to parse JSON bytes array: {_NOT}string as string"),
    ("", r"inputs\[[^]]+\]\.data must be an array", INTERNAL, f"Unable to parse 'data': {_NOT}array as array"),
    ("", r"inputs\[[^]]+\]\.data has (\d+) elements of BYTES, shape \[(\d+)\] takes", INVALID,
     "expected {1} string elements for inference input, got {0}"),
    ("", r"inputs\[[^]]+\]\.data has \d+ elements, shape", INTERNAL,
     "Unable to parse 'data': Shape does not match true shape of 'data' field"),
    ("", r".* is nested (?:deeper than \d+ levels|too deep)", INVALID,
     "JSON nesting depth exceeds maximum allowed limit (100)"),
    ("", r"inputs\[\d+\] \('.*'\) has neither data nor", INVALID, f"{_ONE_DATA}But no field is set"),
    ("", r"input '.*' has both data and the parameter (\w+)", INVALID, f"{_ONE_DATA}But set 'data' '{{0}}'"),
    ("", r"inputs\[\d+\].* needs data or a binary_data_size", INTERNAL,
     f"Unable to parse 'binary_data_size': {_NOT}unsigned-integer as unsigned-integer"),
    ("", r"inputs\[\d+\]\.name = '(.*)' appears twice", INVALID, "input '{0}' already exists in request"),
    ("^http", r"inputs\[\d+\]\.datatype = ", INVALID, "invalid datatype for input"),
    ("", r"(unexpected shape for input '.*' for model '.*'): expected (.*), got (.*)", INVALID,
     "{0}. Expected {1}, got {2}."),
    ("", r"unexpected size for input '(.*)': shape .* takes (\d+) bytes, got (\d+)", INVALID,
     "input byte size mismatch for input '{0}' for model '{model}'. Expected {1}, got {2}"),
    ("", r"(unexpected size for input '.*', expecting \d+ additional bytes)", INVALID, "{0} for model '{model}'"),
    ("", r"Inference-Header-Content-Length = '?([^',]*)'?,", INVALID,
     "inference header size should be in range (0, {size}), got: {0}"),
    ("", r"input '(.*)': (?:element 0 claims|shape \[(\d+)\] takes \d+ elements, the data has \d+$)", INVALID,
     f"expected {{1}} {_STRINGS} for model '{{model}}'"),
    ("", r"input '(.*)': shape \[(\d+)\] takes \d+ elements, the data has more than (\d+)", INVALID,
     f"unexpected number of {_STRINGS} for model '{{model}}', expecting {{1}}"),
    ("", r"input '(.*)': the 4-byte length .* is cut off", INVALID,
     "incomplete string length indicator for inference input '{0}' for model '{model}', expecting 4 bytes"),
    ("", r"input '(.*)'\.contents\.bytes_contents has (\d+) elements, shape \[(\d+)\]", INVALID,
     f"expected {{2}} {_STRINGS} for model '{{model}}', got {{1}}"),
    ("", r"input '(.*)'\.contents\.\w+ has \d+ elements", INVALID,
     "input byte size mismatch for input '{0}' for model '{model}'"),
    # Parameters and outputs
    ("^grpc", r"parameters\.triton_\w* is reserved", INVALID,
     f"{_RESERVED}. Only the following keys starting with 'triton_' are allowed: triton_enable_empty_final_response"),
    ("", r"parameters\.triton_\w* is reserved", INVALID, f"{_RESERVED} and should not be specified."),
    ("^grpc", r"parameters\.priority = ", INVALID,
     "invalid value type for 'priority' parameter, expected int64_param or uint64_param."),
    ("^grpc", r"parameters\.timeout = ", INVALID, "invalid value type for 'timeout' parameter, expected int64_param."),
    ("^grpc", r"parameters\.sequence_id = ", INVALID,
     "invalid value type for 'sequence_id' parameter, expected int64_param or string_param."),
    ("^grpc", r"parameters\.(\S+) (?:has no value|= )", INVALID,
     "invalid value type for '{0}' parameter, expected int64_param, bool_param, or string_param."),
    ("", r"parameters\.(priority|timeout) = ", INTERNAL,
     f"Unable to parse '{{0}}': {_NOT}unsigned-integer as unsigned-integer"),
    ("", r"parameters\.(binary_data_output|sequence_start|sequence_end) = ", INTERNAL,
     f"Unable to parse '{{0}}': {_NOT}boolean as boolean"),
    ("", r"outputs\[\d+\]: classification does not support shared memory", INVALID,
     "Output can't set both 'shared_memory_region' and 'classification'"),
    ("^grpc", r"outputs\[\d+\]\.parameters\.classification = -", INVALID,
     "invalid value for 'classification' parameter, expected >= 0"),
    ("^grpc", r"outputs\[\d+\]\.parameters\.classification = ", INVALID,
     "invalid value type for 'classification' parameter, expected int64_param"),
    ("", r"outputs\[\d+\]\.parameters\.classification = ", INTERNAL,
     f"Unable to set 'classification': {_NOT}unsigned-integer as unsigned-integer"),
    ("", r"output '.*' is (\w+); classification needs numbers", INVALID,
     "class result not available for output due to unsupported type '{0}'"),
    # Versions and states
    ("^grpc", r"model_version = '(-.*)', must be a number", INVALID,
     f"invalid model version specified '{{0}}' , {_VERSION}"),
    ("", r"(?:model_)?version = '(\d{19,}|.*)', must be a number, or", INVALID,
     f"failed to get model version from specified version string '{{0}}' (details: stol), {_VERSION}"),
    ("", r"version = '(\d{19,})'", INVALID,
     f"failed to get model version from specified version string '{{0}}' (details: stol), {_VERSION}"),
    ("", r"version = '", NOT_FOUND, "Not Found"),
    ("/stats$|ModelStatistics$", r"Request for unknown model: '(.*)' version", INVALID,
     "requested model version is not available for model '{0}'"),
    ("/stats$|ModelStatistics$", r"Request for unknown model: '(.*?)'", INVALID,
     "requested model '{0}' is not available"),
    ("/trace/setting$|TraceSetting$", r"Request for unknown model: '(.*?)'", INVALID,
     "Request for unknown model : {0}"),
    ("", r"(Request for unknown model: '.*' version \d+) is not found: ", UNAVAILABLE, "{0} is not at ready state"),
    ("", r"ensemble '(.*)' cannot run: Request for unknown model", NOT_FOUND,
     "Request for unknown model: '{0}' has no available versions"),
    ("^http", r"(?:GET|POST|PUT|DELETE|PATCH) is not allowed", (405, "UNIMPLEMENTED"), "Method Not Allowed"),
    # Generate
    ("/generate", r"the body must be a JSON object", INTERNAL, "attempt to get members for non-object"),
    ("/generate$", r"'.*' is decoupled and returned", (200, "OK"),
     "generate expects model to produce exactly 1 response, use generate stream for model that generates various number"
     " of responses"),
    ("/generate", r"parameters\.(.*) is set twice", INVALID,
     "Converting keyword: 'parameters': input '{0}' already exists in request"),
    ("/generate", r"(.*) is set twice", INVALID, "input '{0}' already exists in request"),
    ("/generate", r"(\S+) has .*, must be", INVALID,
     "The schema can not convert input '{0}' to tensor with proper shape"),
    # Settings
    ("^http", r"log_format = '(.*)', must be", UNAVAILABLE, "invalid argument for --log_format, got: {0}"),
    ("^grpc", r"log_format = '(.*)', must be", INVALID, "invalid argument for log_format, got: {0}"),
    ("", r"log_format = ", INTERNAL, f"{_NOT}string as string"),
    ("^grpc", r"(log_\w+) = .*, must be true or false", INVALID, "expect boolean for '{0}'"),
    ("^grpc", r"(log_(?!freq)\w+) = .*, must be", INVALID, "expect int32 for '{0}'"),
    ("", r"log_\w+ = .*, must be true or false", INTERNAL, f"{_NOT}boolean as boolean"),
    ("", r"log_(?!freq)\w+ = .*, must be", INTERNAL, f"{_NOT}unsigned-integer as unsigned-integer"),
    ("", r"(trace_count) = '(-\d+)'", INVALID, "Unable to parse '{0}'. Expecting value >= -1, got:{1}"),
    ("", r"(trace_\w+|log_frequency) = \"\[", INVALID, "expect only 1 value for '{0}'"),
    ("", r"(trace_\w+|log_frequency) = '(\d{10,})'", INVALID,
     "Unable to parse '{0}', value is out of range [ 0, 4294967295 ], got: {1}"),
    ("", r"(trace_\w+|log_frequency) = '(.*)', must be an integer", INVALID, "Unable to parse '{0}', got: {1}"),
    # Shared memory
    ("", r"failed to register shared memory region: ('.*?') has", INTERNAL, "Invalid shared memory region: {0}"),
    ("", r"Unable to open shared memory region: key = ('.*?'):", INTERNAL, "Unable to open shared memory region: {0}"),
    ("", r"key = '', must be", INTERNAL, "Unable to open shared memory region: ''"),
    ("", r"key = \d", INTERNAL, f"{_NOT}string as string"),
    ("", r"byte_size = None", INVALID, "Shared memory register request has no 'byte_size' field"),
    ("", r"(?:offset|byte_size) = -", INTERNAL, f"{_NOT}unsigned-integer as unsigned-integer"),
    ("", r"(?:offset|byte_size) = \d|name has 0 characters", INTERNAL, "Invalid shared memory region"),
    ("", r"inputs\[\d+\]\.parameters\.shared_memory_region = ", INTERNAL,
     f"Unable to parse 'shared_memory_region': {_NOT}string as string"),
    ("", r"inputs\[\d+\]\.parameters\.(shared_memory_\w+) = '", INTERNAL,
     f"Unable to parse '{{0}}': {_NOT}unsigned-integer as unsigned-integer"),
    ("", r"inputs\[\d+\]\.parameters\.shared_memory_offset = ", INVALID, "Invalid offset for shared memory region"),
    ("", r"inputs\[\d+\]\.parameters\.shared_memory_byte_size = ", INVALID,
     "Invalid offset + byte size for shared memory region"),
    ("", r"(shared memory size specified with the request for output .*)", INTERNAL, "{0}"),
    ("", r"the decompressed body exceeds the limit", INVALID,
     "decompressed size exceeds the maximum allowed input size"),
    ("", r"the request has \d+ bytes, the limit is (\d+)", INVALID,
     "request body size exceeds the maximum allowed input size of {0} bytes. Use --http-max-input-size to increase it"),
)  # fmt: skip


class TritonError(PredictorError):
    """An error in Triton's words."""

    def __init__(self, status: int, grpc_status: str, text: str) -> None:
        super().__init__(text)
        self.status, self.grpc_status = status, grpc_status  # type: ignore[misc] # of the class elsewhere


def triton_error(error: PredictorError, where: str, model: str, size: int) -> TritonError:
    """Return the error as Triton states it. `where`: `http` or `grpc`, a space and the path; `size` of the body."""
    ours = str(error)
    for place, sentence, (status, code), text in _TABLE:
        if re.search(place, where) and (match := re.match(sentence, ours, re.DOTALL)):
            values = [value or "" for value in match.groups()]
            restated = text.format(*values, model=model, size=size)
            return TritonError(status, code, re.sub(r"(?<=\d), (?=-?\d+[],])", ",", restated))  # shapes
    if error.status == 500 and re.search(r"^http.*/generate", where) and not ours.startswith("internal error"):
        return TritonError(*INVALID, ours)  # of the model
    return TritonError(error.status, error.grpc_status, ours)
