"""Python models as people write them for Triton: decoupled ones, and ones that call other models."""

from pathlib import Path
from textwrap import dedent

HEAD = """
import asyncio
import json
import threading
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def tensor_of(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def response_of(**outputs):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in outputs.items()])

"""
DECOUPLED = "model_transaction_policy { decoupled: true } "


def tensor(name: str, kind: str, dims: str = "-1") -> str:
    return f'{{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] }}'


def config(inputs: list[str], outputs: list[str], more: str = "") -> str:
    return f'backend: "python" input [ {", ".join(inputs)} ] output [ {", ".join(outputs)} ] {more}'


REPEAT = """
class TritonPythonModel:
    def initialize(self, args):
        self.threads = []
        assert pb_utils.using_decoupled_model_transaction_policy(json.loads(args["model_config"]))

    def execute(self, requests):
        for request in requests:
            given = (request.get_response_sender(), tensor_of(request, "IN"))
            thread = threading.Thread(target=self.respond, args=given)
            self.threads.append(thread)
            thread.start()
        return None

    def respond(self, sender, numbers):
        for index, number in enumerate(numbers):
            if number < 0:
                error = pb_utils.TritonError(f"{number} is negative", pb_utils.TritonError.INVALID_ARG)
                sender.send(pb_utils.InferenceResponse(error=error))
                continue
            sender.send(response_of(OUT=np.array([number], np.int32), IDX=np.array([index], np.uint32)))
        sender.send(flags=FINAL)

    def finalize(self):
        for thread in self.threads:
            thread.join()
"""

SQUARE = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            (number,), sender = tensor_of(request, "IN"), request.get_response_sender()
            for left in range(number, 0, -1):
                sender.send(response_of(OUT=np.array([number], np.int32)), flags=0 if left > 1 else FINAL)
            if not number:
                sender.send(flags=FINAL)
"""

ASYNC_SQUARE = """
class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.gather(*(self.respond(request) for request in requests))

    async def respond(self, request):
        (number,), sender = tensor_of(request, "IN"), request.get_response_sender()
        if number == 13:
            raise ValueError("secret")
        for _ in range(number):
            await asyncio.sleep(0)
            sender.send(response_of(OUT=np.array([number], np.int32)))
        sender.send(flags=FINAL)
"""

ENDLESS = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.respond, args=(request, request.get_response_sender())).start()

    def respond(self, request, sender):
        number = 0
        while not sender.is_cancelled():
            sender.send(response_of(OUT=np.array([number], np.int32)))
            number += 1
        assert request.is_cancelled()
        sender.send(flags=FINAL)
        noted = Path(pb_utils.get_model_dir(), f"noted-{threading.get_ident()}")
        noted.write_text(str(number))
        noted.rename(noted.with_name("cancelled"))  # whoever sees it finds the number in it
"""

FORGETFUL = """
class TritonPythonModel:
    def execute(self, requests):
        requests[0].get_response_sender().send(response_of(OUT=np.array([1], np.int32)))
"""

ADD_SUB = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            a, b = tensor_of(request, "INPUT0"), tensor_of(request, "INPUT1")
            responses.append(response_of(OUTPUT0=a + b, OUTPUT1=a - b))
        return responses
"""

LATER = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.respond, args=(request.get_response_sender(), request)).start()
        return None

    def respond(self, sender, request):
        a, b = tensor_of(request, "INPUT0"), tensor_of(request, "INPUT1")
        sender.send(response_of(OUTPUT0=a + b, OUTPUT1=a - b), flags=FINAL)
"""

ASK = """
    def ask(self, request, **fields):
        return pb_utils.InferenceRequest(
            model_name=tensor_of(request, "MODEL")[0].decode(),
            requested_output_names=["OUTPUT0", "OUTPUT1"],
            inputs=[each for each in request.inputs() if each.name() != "MODEL"],
            preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0),
            trace=request.trace(),
            **fields,
        )

    def passed_on(self, response):
        if response.has_error():
            raise pb_utils.TritonModelException(f"{response.error().code()} {response.error().message()}")
        return pb_utils.InferenceResponse(response.output_tensors())
"""

CALLER = f"""
class TritonPythonModel:
{ASK}
    def execute(self, requests):
        return [self.passed_on(self.ask(request, request_id="inner", timeout=10**8).exec()) for request in requests]
"""

ASYNC_CALLER = f"""
class TritonPythonModel:
{ASK}
    async def execute(self, requests):
        asked = [self.ask(request).async_exec() for request in requests for _ in range(3)]
        responses = await asyncio.gather(*asked)
        return [self.passed_on(response) for response in responses[::3]]
"""

SUM_OF_PARTS = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.summed(request) for request in requests]

    def summed(self, request):
        asked = pb_utils.InferenceRequest(model_name="square", requested_output_names=["OUT"], inputs=request.inputs())
        total, answers = 0, 0
        for response in asked.exec(decoupled=True):
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            if response.output_tensors():
                total += int(pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()[0])
                answers += 1
        return response_of(OUT=np.array([total], np.int32))
"""

ASYNC_SUM = """
class TritonPythonModel:
    async def execute(self, requests):
        return [await self.summed(request) for request in requests]

    async def summed(self, request):
        asked = pb_utils.InferenceRequest(model_name="square", requested_output_names=["OUT"], inputs=request.inputs())
        total = 0
        async for response in await asked.async_exec(decoupled=True):
            total += sum(int(each.as_numpy()[0]) for each in response.output_tensors())
        return response_of(OUT=np.array([total], np.int32))
"""

COUNTDOWN = """
class TritonPythonModel:
    def initialize(self, args):
        self.other = {"ping": "pong", "pong": "ping"}.get(args["model_name"], args["model_name"])

    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        (number,) = tensor_of(request, "IN")
        if number == 0:
            return response_of(OUT=np.array([0], np.int32))
        asked = pb_utils.InferenceRequest(
            model_name=self.other, requested_output_names=["OUT"],
            inputs=[pb_utils.Tensor("IN", np.array([number - 1], np.int32))],
        )
        response = asked.exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        return response_of(OUT=pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy() + 1)
"""

AUTO = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        assert auto_complete_model_config.as_dict()["name"] == "auto"
        auto_complete_model_config.set_max_batch_size(4)
        auto_complete_model_config.set_dynamic_batching()
        auto_complete_model_config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [2]})
        auto_complete_model_config.add_input({"name": "w", "data_type": "TYPE_FP32", "dims": [1], "optional": True})
        auto_complete_model_config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [2]})
        return auto_complete_model_config

    def initialize(self, args):
        told = json.loads(args["model_config"])
        assert pb_utils.get_input_config_by_name(told, "x")["dims"] == [2]
        assert told["max_batch_size"] == 4

    def execute(self, requests):
        return [response_of(y=tensor_of(request, "x") * 2) for request in requests]
"""

AUTO_DECOUPLED = SQUARE.replace(
    "class TritonPythonModel:",
    """class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_model_transaction_policy(dict(decoupled=True))
        config.add_input({"name": "IN", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]})
        return config
""",
)

TOLD = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "IN")
        again = pb_utils.Tensor.from_dlpack("IN", given.to_dlpack())
        told = {
            "id": request.request_id(), "correlation": request.correlation_id(), "flags": request.flags(),
            "priority": request.priority(), "timeout": request.timeout(), "outputs": request.requested_output_names(),
            "parameters": json.loads(request.parameters()), "model": request.model_name(),
            "cancelled": request.is_cancelled(), "memory": request.preferred_memory().preferred_memory,
            "cpu": given.is_cpu(), "shape": list(given.shape()), "type": given.triton_dtype(),
            "same": again.as_numpy().tolist() == given.as_numpy().tolist(), "dir": pb_utils.get_model_dir(),
        }
        pb_utils.Logger.log_info("told")
        return response_of(TOLD=np.array([json.dumps(told)], np.object_))
"""

IN, OUT = tensor("IN", "INT32", "1"), tensor("OUT", "INT32", "1")
PAIR = [tensor("INPUT0", "FP32"), tensor("INPUT1", "FP32")]
PAIR_OUT = [tensor("OUTPUT0", "FP32"), tensor("OUTPUT1", "FP32")]
MODEL = tensor("MODEL", "STRING", "1")
TWO = "instance_group [ { kind: KIND_CPU count: 2 } ]"
MODELS = {
    "repeat": (REPEAT, config([tensor("IN", "INT32")], [OUT, tensor("IDX", "UINT32", "1")], DECOUPLED)),
    "square": (SQUARE, config([IN], [OUT], DECOUPLED)),
    "async_square": (ASYNC_SQUARE, config([IN], [OUT], DECOUPLED)),
    "endless": (ENDLESS, config([tensor("IN", "INT32", "1")], [OUT], DECOUPLED)),
    "forgetful": (FORGETFUL, config([IN], [OUT], DECOUPLED)),
    "add_sub": (ADD_SUB, config(PAIR, PAIR_OUT)),
    "later": (LATER, config(PAIR, PAIR_OUT)),
    "caller": (CALLER, config([MODEL, *PAIR], PAIR_OUT)),
    "async_caller": (ASYNC_CALLER, config([MODEL, *PAIR], PAIR_OUT)),
    "sum_of_parts": (SUM_OF_PARTS, config([IN], [OUT])),
    "async_sum": (ASYNC_SUM, config([IN], [OUT])),
    "itself": (COUNTDOWN, config([IN], [OUT])),
    "itself_twice": (COUNTDOWN, config([IN], [OUT], TWO)),
    "ping": (COUNTDOWN, config([IN], [OUT])),
    "pong": (COUNTDOWN, config([IN], [OUT])),
    "auto": (AUTO, ""),
    "auto_decoupled": (AUTO_DECOUPLED, ""),
    "told": (TOLD, config([tensor("IN", "INT32")], [tensor("TOLD", "STRING", "1")])),
}


def write_model(root: Path, name: str, source: str, text: str) -> Path:
    folder = root / name / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(HEAD + dedent(source))
    if text:
        (folder.parent / "config.pbtxt").write_text(text)
    return folder


def write_models(root: Path, *names: str) -> Path:
    for name in names or MODELS:
        write_model(root, name, *MODELS[name])
    return root
