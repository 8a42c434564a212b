"""The client for asyncio: the same names and meanings as in `worldstream`, with `await` and `async for`.

    from worldstream.aio import AsyncWorldClient

    async with AsyncWorldClient() as client, client.session("street.png", seed=7) as session:
        async for batch in session.generate(actions="wwwwll"):
            show(batch.frames)

In one thing it differs: whoever leaves such a loop, or is cancelled in it, cancels what is under way, and the server
sees it. No task is left behind, for none is started.
"""

from worldstream.aio.client import AsyncWorldClient
from worldstream.aio.replies import AsyncFrames, AsyncReplies
from worldstream.aio.session import AsyncSession

__all__ = ["AsyncFrames", "AsyncReplies", "AsyncSession", "AsyncWorldClient"]
