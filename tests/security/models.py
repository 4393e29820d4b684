"""Models that several attacks are sent to."""

CHAT = """
INPUTS = {"messages": ("BYTES", [1]), "text_input": ("BYTES", [1])}
OUTPUTS = {"text_output": ("BYTES", [1])}


def predict(messages=None, text_input=None):
    return {"text_output": messages if messages is not None else text_input}
"""
CHAT_CONFIG = """
backend: "python"
input [
  { name: "messages" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] optional: true }
]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
