"""A TCP proxy that holds back what passes for a while, in each direction: a store that is far away, or busy."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    """In the order of arrival, each piece `delay` seconds after it came."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            due, piece = await pieces.get()
            await asyncio.sleep(due - loop.time())
            if not piece:
                writer.close()
                return
            writer.write(piece)

    delivery = asyncio.create_task(deliver())
    with contextlib.suppress(OSError):
        while piece := await reader.read(1 << 16):
            pieces.put_nowait((loop.time() + delay, piece))
    pieces.put_nowait((loop.time() + delay, b""))
    with contextlib.suppress(OSError):
        await delivery


class SlowProxy:
    """Listens at `port` of loopback, and passes on to another port of it, `delay` seconds later."""

    def __init__(self, target: int, delay: float) -> None:
        self._target, self._delay = target, delay
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._end: asyncio.Event
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        tasks: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                there, back = await asyncio.open_connection("127.0.0.1", self._target)
            except OSError:
                writer.close()
                return
            for task in (_pass_on(reader, back, self._delay), _pass_on(there, writer, self._delay)):
                tasks.add(asyncio.create_task(task))

        server = await asyncio.start_server(connected, sock=self._listener)
        await self._end.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.05)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)
        self._loop.close()


@contextlib.contextmanager
def slow_proxy(target: int, delay: float) -> Iterator[int]:
    """The port of a proxy that is closed afterwards."""
    proxy = SlowProxy(target, delay)
    try:
        yield proxy.port
    finally:
        proxy.close()
