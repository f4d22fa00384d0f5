"""Makes some tasks and dead letters, so that there is something to show and to act on: their ids."""

import json
import sys
import urllib.request

URL, TOKEN = sys.argv[1:]


def post(path, body=None):
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    data = json.dumps(body or {}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{URL}/api/v1{path}", data, headers)) as answer:
        return json.load(answer)


def make(n):
    task = {"method": "charge", "params": {"n": n}, "delay": "1h"}
    return post("/tasks", task)["id"]


ids = [make(n) for n in range(40)]
for task_id in ids[::2]:
    post(f"/tasks/{task_id}/fail")
print(",".join(ids))
