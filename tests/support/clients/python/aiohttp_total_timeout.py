"""aiohttp with a total timeout of 1 s, which a body that drips cannot outwit; no retry but aiohttp's one replay."""

import asyncio
import sys

import aiohttp


async def main() -> None:
    timeout = aiohttp.ClientTimeout(total=1)
    async with (
        aiohttp.ClientSession(raise_for_status=True, timeout=timeout) as session,
        session.get(f"{sys.argv[1]}/v1/kv/hashidrill/retry") as reply,
    ):
        await reply.read()


asyncio.run(main())
