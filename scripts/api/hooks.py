"""What Schemathesis is to know about the API beside its OpenAPI document: newline-delimited JSON, and ids that there are."""

import json
import os

import schemathesis

# Dead letters and tasks that scripts/test-api has made before the run.
IDS = [i for i in os.environ.get("REDRIVE_API_IDS", "").split(",") if i]


@schemathesis.serializer("application/x-ndjson")
def ndjson(ctx, value):
    """One line, or several: the document describes a line."""
    return "\n".join([json.dumps(value)] * 3).encode()


@schemathesis.deserializer("application/x-ndjson")
def lines(ctx, response):
    """The last one. Of none there is nothing to say."""
    return json.loads((response.content.decode().splitlines() or ["{}"])[-1])


@schemathesis.hook
def map_path_parameters(ctx, path_parameters):
    """Every other id is one that there is."""
    if IDS and path_parameters and "id" in path_parameters:
        n = sum(map(ord, str(path_parameters["id"])))
        if n % 2:
            path_parameters["id"] = IDS[n // 2 % len(IDS)]
    return path_parameters
