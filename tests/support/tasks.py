"""Work that goes on beside a block."""

import asyncio
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def running(work):
    """Yields its task, cancelled once where the block ends, as a load generator does it; its errors are raised."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
