"""The workflow of TAO's guide with curl and jq, against the local platform: a model and media that lie in a bucket."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import object_stores
from tests.object_stores import S3_SECRET, Bucket
from tests.platform.microservices.api.conftest import ORG, Api
from tests.platform.microservices.media.conftest import png, video
from tests.platform.microservices.media.test_predicting import SPEAKER, SPEAKER_CONFIG

SCRIPT_S = 500.0
# Waiting is shortened, and answers are kept; the rest is what somebody types who follows the guide.
SCRIPT = r"""
set -u
sleep() { command sleep 0.2; }

# Authenticate
TOKEN=$(curl -s -X POST $BASE_URL/login \
    -H "Content-Type: application/json" \
    -d '{
        "ngc_key": "'"$NGC_API_KEY"'",
        "ngc_org_name": "'"$NGC_ORG"'"
    }' | jq -r '.token')
echo "Authenticated with token"

echo "Starting inference microservice..."
INFERENCE_MS_JOB_ID=$(curl -s -X POST \
    $BASE_URL/orgs/$NGC_ORG/experiments/$EXPERIMENT_ID/inference_microservice/start \
    -H "Authorization: Bearer $TOKEN" \
    -H "Content-Type: application/json" \
    -d '{
        "parent_id": "'"$TRAIN_JOB_ID"'"
    }' | jq -r '.job_id')
echo "Inference Microservice Job ID: $INFERENCE_MS_JOB_ID"

echo "Waiting for model to load..."
while true; do
    STATUS=$(curl -s -X GET \
        $BASE_URL/orgs/$NGC_ORG/experiments/$EXPERIMENT_ID/jobs/$INFERENCE_MS_JOB_ID/inference_microservice/status \
        -H "Authorization: Bearer $TOKEN")
    MODEL_LOADED=$(echo $STATUS | jq -r '.model_loaded')
    MODEL_LOADING=$(echo $STATUS | jq -r '.model_loading')
    SERVER_INIT=$(echo $STATUS | jq -r '.server_initializing')
    INIT_ERROR=$(echo $STATUS | jq -r '.initialization_error')
    LOAD_ERROR=$(echo $STATUS | jq -r '.model_load_error')
    # Check for errors
    if [ "$INIT_ERROR" != "null" ]; then
        echo "Initialization error: $INIT_ERROR"
        exit 1
    fi
    if [ "$LOAD_ERROR" != "null" ]; then
        echo "Model load error: $LOAD_ERROR"
        exit 1
    fi
    # Check if ready
    if [ "$MODEL_LOADED" == "true" ]; then
        echo "Model is ready!"
        break
    fi
    # Status message
    if [ "$SERVER_INIT" == "true" ]; then
        echo "Server initializing (downloading files)... waiting 10s"
    elif [ "$MODEL_LOADING" == "true" ]; then
        echo "Model loading... waiting 10s"
    else
        echo "Waiting for service... 10s"
    fi
    sleep 10
done

echo "Running inference..."
RESULT=$(curl -s -X POST \
    $BASE_URL/orgs/$NGC_ORG/experiments/$EXPERIMENT_ID/jobs/$INFERENCE_MS_JOB_ID/inference_microservice/inference \
    -H "Authorization: Bearer $TOKEN" \
    -H "Content-Type: application/json" \
    -d 'FIRST')
echo "Inference result:"
echo $RESULT | jq '.' | tee $OUT/first.json

RESULT2=$(curl -s -X POST \
    $BASE_URL/orgs/$NGC_ORG/experiments/$EXPERIMENT_ID/jobs/$INFERENCE_MS_JOB_ID/inference_microservice/inference \
    -H "Authorization: Bearer $TOKEN" \
    -H "Content-Type: application/json" \
    -d 'SECOND')
echo "Second inference result:"
echo $RESULT2 | jq '.' | tee $OUT/second.json

echo "Stopping inference microservice..."
curl -s -X POST \
    $BASE_URL/orgs/$NGC_ORG/experiments/$EXPERIMENT_ID/jobs/$INFERENCE_MS_JOB_ID/inference_microservice/stop \
    -H "Authorization: Bearer $TOKEN" | jq '.' | tee $OUT/stopped.json
echo "Inference microservice stopped"

curl -s -o $OUT/gone.json -w '%{http_code}' \
    $BASE_URL/orgs/$NGC_ORG/experiments/$EXPERIMENT_ID/jobs/$INFERENCE_MS_JOB_ID/inference_microservice/status \
    -H "Authorization: Bearer $TOKEN"
"""
VIDEO = """{
        "media": "s3://my-bucket/videos/sample.mp4",
        "text": "What is happening in this video?",
        "conv_mode": "auto"
    }"""
IMAGES = """{
        "media": [
            "s3://my-bucket/images/img1.jpg",
            "s3://my-bucket/images/img2.jpg"
        ],
        "text": "Compare these two images",
        "conv_mode": "auto"
    }"""
# For machines without jq: what the script uses of it.
STAND_IN = """#!{python}
import json, sys
found = json.load(sys.stdin)
for name in filter(None, sys.argv[-1].split(".")):
    found = found.get(name)
raw = "-r" in sys.argv and isinstance(found, str)
print(found if raw else json.dumps(found, indent=2))
"""


@pytest.fixture(scope="module")
def bucket() -> Iterator[tuple[Bucket, str]]:
    with object_stores.moto() as endpoint:
        made = object_stores.s3_bucket(endpoint, "my-bucket")
        made.put("runs/42/model/1/model.py", SPEAKER.encode())
        made.put("runs/42/model/config.pbtxt", SPEAKER_CONFIG.encode())
        made.put("videos/sample.mp4", video(3))
        made.put("images/img1.jpg", png(colour=(255, 0, 0)))
        made.put("images/img2.jpg", png(colour=(0, 0, 255)))
        yield made, endpoint


def workflow(
    url: str, org: str, key: str, experiment: str, parent: str, out: Path, first: str, second: str
) -> dict[str, Any]:
    """What the script was told: by `first` and `second`, which are the model's own, at the stop and after it."""
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    if shutil.which("jq") is None:
        (out / "jq").write_text(STAND_IN.format(python=sys.executable))
        (out / "jq").chmod(0o755)
    env = {
        "PATH": f"{os.environ['PATH']}:{out}", "BASE_URL": url, "NGC_ORG": org, "NGC_API_KEY": key, "OUT": str(out),
        "EXPERIMENT_ID": experiment, "TRAIN_JOB_ID": parent,
    }  # fmt: skip
    script = SCRIPT.replace("FIRST", first).replace("SECOND", second)
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=SCRIPT_S)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    told = {name: json.loads((out / f"{name}.json").read_text()) for name in ("first", "second", "stopped", "gone")}
    return {**told, "code": done.stdout.splitlines()[-1], "said": done.stdout + done.stderr}


def test_the_guides_workflow_runs_as_written(api: Api, bucket: tuple[Bucket, str], tmp_path: Path) -> None:
    made = json.loads(
        api.ctl(
            "microservice", "register", ORG, "--network-arch", "vision-language", "--workspace", "s3://my-bucket",
            "--endpoint", bucket[1], "--credential", "access_key=env:WORKSPACE_ACME__ID",
            "--credential", "secret_key=env:WORKSPACE_ACME__SECRET", "--artifact", "runs/42/model", "-o", "json",
        )
    )  # fmt: skip
    told = workflow(api.url, ORG, api.key, made["experiment_id"], made["job_id"], tmp_path, VIDEO, IMAGES)
    assert told["first"]["status"] == told["second"]["status"] == "completed"
    assert told["first"]["results"]["response"].startswith("['video', 'text']")
    assert told["second"]["results"]["response"].startswith("['image', 'image', 'text']")
    assert told["stopped"]["status"] == "stopped"
    assert told["code"] == "404"
    assert S3_SECRET not in json.dumps(told) + api.platform.log()
    kept = [file for file in api.platform.home.root.rglob("*") if file.is_file()]
    assert not [file for file in kept if S3_SECRET.encode() in file.read_bytes()]
