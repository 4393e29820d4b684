from pathlib import Path

import pytest
from tests.predictor.gpu.driver import Driver

from pilotlight_predictor.core.threads import mapped_library
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.gpu.cublas_warmup import (
    RESERVED_BYTES,
    has_free_memory,
    is_usable,
    run_gemm,
    warm_up_cublas,
)
from pilotlight_predictor.gpu.cuda_driver import Context
from pilotlight_predictor.gpu.safetensors_header import TensorInfo


@pytest.mark.parametrize(
    ("dtype", "shape", "size", "taken"),
    [
        ("BF16", (4, 8), 64, True),
        ("F32", (4, 8), 128, True),
        ("I64", (4, 8), 256, False),
        ("BF16", (32,), 64, False),
        ("F16", (0, 8), 0, False),
        ("F16", (1 << 16, 1 << 16), 1 << 33, False),
    ],
)
def test_a_matrix_that_products_are_made_of_stands_for_the_models(
    dtype: str, shape: tuple[int, ...], size: int, taken: bool
) -> None:
    assert is_usable(TensorInfo(dtype, shape, 0, size)) is taken


def test_without_cublas_in_memory_nothing_is_multiplied(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 00000000 00:00 0  /lib/libm.so.6\n")
    assert mapped_library("/libcublas.so", str(maps)) is None
    weights = tmp_path / "model.safetensors"
    weights.write_bytes((2).to_bytes(8, "little") + b"{}")
    assert not warm_up_cublas(weights, 0)


@pytest.mark.parametrize("granted", [0, 1], ids=["the matrix", "the vectors"])
def test_a_product_that_finds_no_memory_keeps_none(driver: Driver, granted: int) -> None:
    driver.refused["cuMemAlloc_v2"] = granted
    with pytest.raises(LoadFailed):
        run_gemm(None, Context(0), TensorInfo("F32", (4, 8), 0, 128))
    assert not driver.allocated


GB = 10**9


@pytest.mark.parametrize(
    ("free", "weights", "room"),
    [
        (140 * GB, 9 * GB, True),
        (RESERVED_BYTES + 100, 9 * GB, True),
        (RESERVED_BYTES + 99, 9 * GB, False),
        (140 * GB, 139 * GB, False),
    ],
    ids=["empty", "just enough", "nearly full", "full once the weights are there"],
)
def test_a_gpu_with_little_beside_the_weights_is_left_to_them(free: int, weights: int, room: bool) -> None:
    assert has_free_memory((free, 140 * GB), weights, 100) is room
