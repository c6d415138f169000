"""Our loads alone, in a process of their own as in a run, and what they cost; the counterpart of plain_clients.py.

python our_clients.py {requests|watches|views|reopened|streams} URL COUNT SECONDS [PORT]
"""

import asyncio
import json
import sys
from collections import Counter, defaultdict

import psutil
import uvloop

from hashidrill.core.loads.context import LoadContext
from hashidrill.products.consul.loads.kv import KvWrite
from hashidrill.products.consul.loads.streams import Streams
from hashidrill.products.consul.loads.views import Views
from hashidrill.products.consul.loads.watch import Watch


def loads(what, url, count, port):
    samples, operations = defaultdict(list), Counter()
    kind, params = {
        "requests": (KvWrite, {"rate": f"{count}/s"}),
        "watches": (Watch, {"count": count, "service": "bench", "wait": "60s", "establish": "2000/s"}),
        "views": (Views, {"count": count, "service": "bench", "establish": "2000/s"}),
        # what comes back to an agent that answers nobody: each opening has a connection of its own, and is given up
        "reopened": (Views, {"count": count, "service": "bench", "establish": f"{count}/s", "timeout": "1s"}),
        "streams": (Streams, {"count": count, "service": "bench", "establish": "2000/s", "port": port}),
    }[what]
    local = "127.0.0.1" if what == "reopened" else None
    context = LoadContext(
        [url], local_address=local, emit_sample=lambda name, value, _text: samples[name].append(value)
    )
    return kind("bench", kind.Params.model_validate(params), context), samples, operations


async def main(what, url, count, seconds, port):
    process = psutil.Process()
    idle_bytes = process.memory_info().rss
    load, samples, operations = loads(what, url, count, port)
    task = asyncio.create_task(load.run(lambda op: operations.update([op.outcome])))
    while what not in {"requests", "reopened"} and samples["open"][-1:] != [count]:
        if task.done():
            task.result()
        await asyncio.sleep(0.1)
    opened, before = operations["ok"], process.cpu_times()
    events = len(samples["events"])
    await asyncio.sleep(seconds)
    after, resident = process.cpu_times(), process.memory_info().rss
    done = sum(samples["events"][events:]) if what == "streams" else operations["ok"] - opened
    if what == "reopened":
        done = operations["fail"]
    task.cancel()
    await asyncio.wait([task])
    figures = {
        "opened": opened,
        "opening_cpu_s": before.user + before.system,
        "operations": done,
        "cpu_s": after.user + after.system - before.user - before.system,
        "bytes": resident - idle_bytes,
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int([*sys.argv, "8300"][5])))
