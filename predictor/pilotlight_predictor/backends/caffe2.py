"""Caffe2 nets: recognised to be refused with a clear error, since no installable runtime exists."""

from typing import NoReturn

from pilotlight_predictor.backends.base import LoadSpec
from pilotlight_predictor.errors import LoadFailed


def load(spec: LoadSpec) -> NoReturn:
    net = spec.config.default_model_filename or "model.netdef"
    missing = [name for name in (net, f"init_{net}") if not (spec.folder / name).is_file()]
    if missing:
        raise LoadFailed(
            f"model {spec.config.name!r} is a caffe2_netdef, which is two files: {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not in version {spec.version}"
        )
    raise LoadFailed(
        f"model {spec.config.name!r} is a caffe2_netdef, but no Caffe2 runtime exists to install: convert it to ONNX "
        f"where an old Caffe2 still runs (caffe2.python.onnx.frontend.caffe2_net_to_onnx_model on {net} and "
        f"init_{net}), save it as model.onnx and set platform: onnxruntime_onnx"
    )
