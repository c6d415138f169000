"""Work that goes on beside a block, and what stands in for work that fails."""

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


def raising(error):
    """A function that raises the error whatever it is called with; where one awaits, that is as good as a coroutine."""

    def fails(*_, **__):
        raise error

    return fails
