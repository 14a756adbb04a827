"""A real SLIM 3.x application on a node, driven by lines on its standard input.

    python slim_app.py --endpoint URL --name ORG/NS/APP [--quiet] [--secret S] [--timeout 5000]

Commands and events are those of slim-app.mjs.
"""
import argparse
import asyncio
import datetime
import json
import os
import signal
import sys
import time

import slim_bindings as slim

parser = argparse.ArgumentParser()
parser.add_argument("--endpoint", required=True)
parser.add_argument("--name", required=True)
parser.add_argument("--secret", default="an-interop-test-secret-of-32-chars-or-more")
parser.add_argument("--timeout", type=int, default=5000, help="milliseconds")
parser.add_argument("--quiet", action="store_true")
parser.add_argument("--log", default="error")
options = parser.parse_args()
timeout = options.timeout / 1000

AT_ONCE = 500  # with more at once the library's acknowledgements time out
ARRIVAL = 1  # what is under way when a session closes would be lost


def say(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)


def why(e):
    return getattr(e, "message", None) or str(e) or repr(e)


def milliseconds(n):
    return datetime.timedelta(milliseconds=n)


def name_of(text):
    return slim.Name(*text.split("/"))


def instance_of(text):
    return slim.Name.new_with_id(*text.split("/"))


async def within(pending, what):
    """The library's own completions have no deadline: give them one."""
    try:
        return await asyncio.wait_for(pending, timeout)
    except asyncio.TimeoutError:
        raise RuntimeError(f"{what}: no answer in {options.timeout} ms") from None


class Application:
    def __init__(self, app, connection):
        self.app = app
        self.connection = connection
        self.tasks = set()  # the loop itself holds them weakly
        self.moderated = None
        self.talking = None

    def spawn(self, work):
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def listen(self):
        while True:
            try:
                self.spawn(self.receive(await self.app.listen_for_session_async(None)))
            except Exception as e:
                say("failed", command="listen", error=why(e))
                await asyncio.sleep(0.2)

    async def receive(self, session):
        while True:
            try:
                message = await session.get_message_async(None)
            except Exception:
                return  # the other side closed the session
            at, got = int(time.time() * 1000), message.payload.decode()
            say("message", **{"from": str(message.context.source_name), "text": got, "at": at})
            if not options.quiet:
                self.spawn(self.post(session, "echo:" + got, "echo"))

    async def post(self, session, text, command):
        """Sends a text and does not wait for its acknowledgement."""
        try:
            await session.publish_async(text.encode(), None, None)
        except Exception as e:
            say("failed", command=command, error=why(e))

    async def open_session(self, kind, name, retries=5, interval=milliseconds(1000)):
        opened = await self.app.create_session_async(
            slim.SessionConfig(
                session_type=kind, max_retries=retries, interval=interval, metadata={}, mls_settings=None
            ),
            name,
        )
        try:
            await within(opened.completion.wait_async(), "session")
        except Exception:
            await self.app.delete_session_async(opened.session)
            raise
        return opened.session

    async def publish(self, session, text):
        sent = await session.publish_async(text.encode(), None, None)
        await within(sent.wait_async(), "publish")

    async def send(self, to, words):
        name, text = name_of(to), " ".join(words)
        await self.app.set_route_async(name, self.connection)  # ask this node for the name
        session = await self.open_session(slim.SessionType.POINT_TO_POINT, name)
        try:
            await self.publish(session, text)
            while True:
                message = await session.get_message_async(datetime.timedelta(seconds=timeout))
                if message.payload.decode() == "echo:" + text:
                    return
        finally:
            await self.app.delete_session_async(session)

    async def group(self, channel, words):
        count, *invited = words
        self.moderated = await self.open_session(slim.SessionType.GROUP, name_of(channel))
        for participant in invited:
            name = instance_of(participant)
            await self.app.set_route_async(name, self.connection)
            await within(self.moderated.invite_and_wait_async(name), f"invitation of {participant}")
        for i in range(1, int(count) + 1):
            await self.publish(self.moderated, f"{channel} {i}")

    async def disband(self, *_):
        await self.app.delete_session_async(self.moderated)

    async def talk(self, to, words):
        name, period, word = name_of(to), int(words[0]) / 1000, words[1]
        await self.app.set_route_async(name, self.connection)
        session = await self.open_session(slim.SessionType.POINT_TO_POINT, name, None, None)
        self.talking = {"session": session, "sent": 0, "stop": False}
        self.spawn(self.tick(self.talking, period, word))

    async def tick(self, mine, period, word):
        began = time.monotonic()
        while not mine["stop"]:
            say("sent", text=f"{word} {mine['sent']}")
            self.spawn(self.post(mine["session"], f"tick {word} {mine['sent']} {int(time.time() * 1000)}", "tick"))
            mine["sent"] += 1
            await asyncio.sleep(max(0, began + mine["sent"] * period - time.monotonic()))

    async def hush(self, *_):
        mine = self.talking
        mine["stop"] = True
        await asyncio.sleep(ARRIVAL)
        await self.app.delete_session_async(mine["session"])
        return {"sent": mine["sent"]}

    async def subscribe(self, name, *_):
        await self.app.subscribe_async(name_of(name), self.connection)

    async def unsubscribe(self, name, *_):
        """Unlike subscribing, this needs the instance id in the name."""
        await self.app.unsubscribe_async(slim.Name.new_with_id(*name.split("/"), self.app.id()), self.connection)

    async def announce(self, name, words):
        count = int(words[0])
        for first in range(0, count, AT_ONCE):
            await asyncio.gather(
                *(self.subscribe(f"{name}-{i}") for i in range(first, min(first + AT_ONCE, count)))
            )

    async def obey(self, line):
        command_id, command, *rest = line.split(" ")
        argument = rest[0] if rest else None
        commands = ("send", "group", "disband", "talk", "hush", "subscribe", "unsubscribe", "announce")
        try:
            if command not in commands:
                raise RuntimeError("unknown command")
            result = await getattr(self, command)(argument, rest[1:])
            say("done", command=command_id, **(result or {}))
        except Exception as e:
            say("failed", command=command_id, error=why(e))


async def main():
    loop = asyncio.get_running_loop()
    slim.uniffi_set_event_loop(loop)
    slim.initialize_with_configs(
        runtime_config=slim.new_runtime_config(),
        tracing_config=slim.new_tracing_config_with(options.log, False, False, []),
        service_config=[slim.new_service_config()],
    )
    service = slim.get_global_service()
    connection = await service.connect_async(slim.new_insecure_client_config(options.endpoint))
    app = service.create_app_with_secret(name_of(options.name), options.secret)
    await app.subscribe_async(name_of(options.name), connection)
    application = Application(app, connection)
    application.spawn(application.listen())
    say("ready", name=options.name, id=str(app.id()))
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        await application.obey(line.decode().rstrip("\n"))
    os._exit(0)  # the library's threads would hold the process


signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
asyncio.run(main())
