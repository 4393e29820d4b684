import pytest
from tests.predictor.gpu.driver import Driver

from pilotlight_predictor.gpu import cuda_driver


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Stands where the machine's own is loaded."""
    driver = Driver()
    monkeypatch.setattr(cuda_driver, "library", lambda *_: driver)
    cuda_driver.context_of.cache_clear()
    return driver
