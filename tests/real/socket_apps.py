"""Shared by the tests of applications in `sockets`: a configuration and Socket.IO clients."""

import asyncio
import contextlib
import json
import sys
from pathlib import Path

import aiohttp
import socketio

FOLDER = Path(__file__).resolve().parent / "sockets"
CLIENTS = 20
PATIENCE = 60

CONFIG = """\
[apps.it]
dir = {folder}
kind = "{kind}"
entry = "{entry}"
{more}

[[sites]]
[[sites.routes]]
app = "it"
"""


def settings(case, kind, entry, more, interpreter=sys.executable):
    """Returns a configuration for an application in `sockets`; `interpreter` runs Python ones."""
    path = case.folder() / "penstock.toml"
    if kind != "rack":
        more = f"interpreter = {json.dumps(str(interpreter))}\n{more}"
    folder = json.dumps(str(FOLDER))
    path.write_text(CONFIG.format(folder=folder, kind=kind, entry=entry, more=more))
    return path


def together(work):
    """Returns the result of `work`, in bounded time."""
    return asyncio.run(asyncio.wait_for(work, PATIENCE))


def talk_socketio(url, transports):
    """Connects many clients, five calls each, and returns the process that answered each."""

    async def talk():
        async with contextlib.AsyncExitStack() as stack:
            # One after the other: each keeps its process busy with a poll or a WebSocket, so that
            # the next one goes to the other process, however slow the clients are.
            clients = [await _connect(stack, url, transports) for _ in range(CLIENTS)]
            calls = (_talk(client, transports, at) for at, client in enumerate(clients))
            return await asyncio.gather(*calls)

    return together(talk())


async def _connect(stack, url, transports):
    # Without this it would take no cookies from an address.
    jar = aiohttp.CookieJar(unsafe=True)
    session = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=jar))
    client = socketio.AsyncClient(reconnection=False, http_session=session)
    await client.connect(url, transports=transports)
    return client


async def _talk(client, transports, number):
    try:
        return await _process_of(client, transports, number)
    finally:
        await client.disconnect()


async def _process_of(client, transports, number):
    """Returns the process that has answered all calls of one client."""
    processes = set()
    for at in range(5):
        answer = await client.call("say", f"{number}.{at}", timeout=20)
        if answer["text"] != f"{number}.{at}":
            raise AssertionError(f"client {number} was answered {answer}")
        processes.add(answer["process"])
    # The upgrade follows the first responses.
    while client.transport() != transports[-1]:
        await asyncio.sleep(0.01)
    if len(processes) != 1:
        raise AssertionError(f"client {number} was answered by {processes}")
    return processes.pop()


class SocketIoChecks:
    """Tests that two processes serve each client by each transport."""

    def check_every_transport(self, server):
        for transports in (["websocket"], ["polling", "websocket"], ["polling"]):
            with self.subTest(transports=transports):
                processes = talk_socketio(server.url, transports)
                self.assertEqual(len(processes), CLIENTS)
                self.assertEqual(len(set(processes)), 2, "both have clients")
