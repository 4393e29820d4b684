#!/bin/sh
# Call the iris classifier with curl.
set -eu
url=${PREDICTOR_URL:-http://127.0.0.1:8080}

# Two flowers, and for each the best class as "probability:index:label".
curl --fail-with-body --silent --show-error --noproxy '*' "$url/v2/models/iris/infer" -d '{
  "inputs":  [{"name": "x", "datatype": "FP32", "shape": [2, 4], "data": [5.1, 3.5, 1.4, 0.2,  6.7, 3.0, 5.2, 2.3]}],
  "outputs": [{"name": "y", "parameters": {"classification": 1}}]
}'
echo
