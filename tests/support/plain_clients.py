"""What our loads with open queries do, written the way one would without them: aiohttp, a task for each query.

    python plain_clients.py {requests|watches|views} URL COUNT SECONDS
    python plain_clients.py locks URL COUNT SECONDS AGENT_PID

Prints, as JSON, what it did, the CPU seconds it took from when all stood, and its resident memory. `locks` prints what
the contenders cost the agent and the client: three for each lock, of which two wait for it with an open query.
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


async def contend(session, url, key):
    """Takes a lock, or waits for it with a query that stays open, as Consul's own client does."""
    async with session.put(f"{url}/v1/session/create", json={"TTL": "600s", "LockDelay": "1s"}) as reply:
        own = (await reply.json())["ID"]
    async with session.put(key, params={"acquire": own}, data=b"x") as reply:
        got = await reply.text()
    if got.strip() == "true":
        return own, None
    async with session.get(key) as reply:
        index = reply.headers["X-Consul-Index"]
    waiting = asyncio.create_task(session.get(key, params={"index": index, "wait": "600s"}).__aenter__())
    return own, waiting


async def at_once(seconds, agent, request, in_flight=32):
    """(requests a second, CPU seconds of the agent for each) with so many under way all the time."""
    loop, done = asyncio.get_running_loop(), [0]
    begin, before = loop.time(), agent.cpu_times()

    async def one(n):
        while loop.time() < begin + seconds:
            await request(n + done[0])
            done[0] += 1

    await asyncio.gather(*map(one, range(in_flight)))
    after = agent.cpu_times()
    return done[0] / seconds, (after.user + after.system - before.user - before.system) / done[0]


async def locks(url, count, seconds, pid):
    agent, own = psutil.Process(pid), psutil.Process()

    async def held():
        async with session.get(f"{url}/debug/pprof/heap?debug=1&gc=1") as reply:
            await reply.read()
        async with session.get(f"{url}/debug/pprof/goroutine?debug=1") as reply:
            goroutines = int((await reply.text()).split("total ", 1)[1].split()[0])
        both = [(each.memory_full_info().uss, each.num_fds()) for each in (agent, own)]
        return {"goroutines": goroutines, "agent": both[0], "client": both[1]}

    connector, never = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout()
    async with aiohttp.ClientSession(connector=connector, timeout=never) as session:
        sessions, waiting, before = [], [], await held()
        keys = [f"{url}/v1/kv/bench-{count}/{n // 3}" for n in range(count)]
        for first in range(0, count, 60):
            made = await asyncio.gather(*(contend(session, url, key) for key in keys[first : first + 60]))
            sessions += [one for one, _ in made]
            waiting += [task for _, task in made if task is not None]
        await asyncio.sleep(1)
        after = await held()

        async def renew(n):
            async with session.put(f"{url}/v1/session/renew/{sessions[n % count]}") as reply:
                reply.raise_for_status()

        async def look(n):
            async with session.get(keys[n % count]) as reply:
                reply.raise_for_status()

        found = {"before": before, "after": after, "waiting": sum(not task.done() for task in waiting)}
        found["renewals"] = await at_once(seconds, agent, renew)
        found["looks"] = await at_once(seconds, agent, look)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return found


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
    if sys.argv[1] == "locks":
        figures = asyncio.run(locks(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])))
        sys.stdout.write(json.dumps(figures) + "\n")
        sys.exit()
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
