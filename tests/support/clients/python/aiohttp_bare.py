"""aiohttp as it comes: no retry of its own but one replay of an idempotent request whose connection broke.

The total timeout is 5 minutes by default.
"""

import asyncio
import sys

import aiohttp


async def main() -> None:
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.get(f"{sys.argv[1]}/v1/kv/hashidrill/retry") as reply,
    ):
        await reply.read()


asyncio.run(main())
