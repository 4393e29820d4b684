"""A model of data alone reads no weights of others: its index names files of its own folder."""

import json
from pathlib import Path

import pytest

from pilotlight_predictor.backends.transformers_library import check_shards
from pilotlight_predictor.errors import LoadFailed

pytestmark = pytest.mark.security
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("name", ["/srv/other/model.safetensors", "../other/model.safetensors", "a/../../b", 5])
def test_an_index_that_leads_out_of_the_folder_is_refused(name: object, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))
    check_shards(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": name}}))
    with pytest.raises(LoadFailed, match=INDEX):
        check_shards(tmp_path)
