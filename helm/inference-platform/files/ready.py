"""Asks a URL until it answers well, for so many seconds: what `helm test` runs in the cluster."""

import sys
import time
import urllib.request

url, seconds = sys.argv[1], float(sys.argv[2])
end = time.monotonic() + seconds
while True:
    try:
        # A first request may wait for a replica that starts and loads.
        urllib.request.urlopen(url, timeout=seconds)  # noqa: S310 - the service's own address
        break
    except OSError as error:
        if time.monotonic() >= end:
            sys.exit(f"{url} did not answer within {seconds:g} s: {error}")
        time.sleep(1)
