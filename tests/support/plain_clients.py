"""What our loads with open queries do, written the way one would without them: aiohttp, a task for each query.

    python plain_clients.py {requests|watches|views} URL COUNT SECONDS

Prints, as JSON, what it did, the CPU seconds it took from when all stood, and its resident memory.
"""

import asyncio
import json
import sys

import aiohttp
import psutil


async def watch(session, url, done):
    index = 0
    while True:
        params = {"index": str(index), "wait": "60s"} if index else None
        async with session.get(f"{url}/v1/health/service/bench", params=params) as reply:
            await reply.json()
            index = int(reply.headers["X-Consul-Index"])
            done[0] += 1


async def view(session, url, n, done):
    async with session.get(f"{url}/v1/health/service/bench?cached&tag=t{n}") as reply:
        await reply.read()
        done[0] += 1


async def put(session, url, n, done):
    async with session.put(f"{url}/v1/kv/hashidrill/w/{n % 500}", data=b"x" * 512) as reply:
        await reply.read()
        done[0] += 1


async def requests(session, url, rate_per_s, done):
    loop, started = asyncio.get_running_loop(), 0
    begin = loop.time()
    async with asyncio.TaskGroup() as tasks:
        while True:
            while started < (loop.time() - begin) * rate_per_s:
                tasks.create_task(put(session, url, started, done))
                started += 1
            await asyncio.sleep(0.001)


async def main(what, url, count, seconds):
    process, done = psutil.Process(), [0]
    idle_bytes = process.memory_info().rss
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout()
    ) as session:
        if what == "views":
            await asyncio.gather(*(view(session, url, n, done) for n in range(count)))
            tasks = []
        elif what == "watches":
            tasks = [asyncio.create_task(watch(session, url, done)) for _ in range(count)]
            while done[0] < count:
                await asyncio.sleep(0.1)
        else:
            tasks = [asyncio.create_task(requests(session, url, count, done))]
        opening, before = done[0], process.cpu_times()
        opening_cpu_s = before.user + before.system
        await asyncio.sleep(seconds)
        after = process.cpu_times()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    figures = {
        "opened": opening,
        "opening_cpu_s": opening_cpu_s,
        "operations": done[0] - opening,
        "cpu_s": after.user + after.system - before.user - before.system,
        "bytes": process.memory_info().rss - idle_bytes,
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
