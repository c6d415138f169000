"""Three contenders for each lock, of which two wait for it with an open query, as thin clients in one process.

    python lock_contenders.py URL COUNT SECONDS AGENT_PID

Prints, as JSON, what they cost the agent and this process.
"""

import asyncio
import json
import sys

import aiohttp
import psutil


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


if __name__ == "__main__":
    figures = asyncio.run(locks(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
    sys.stdout.write(json.dumps(figures) + "\n")
