// A real SLIM application on a node, driven by lines on its standard input.
//
//   node slim-app.mjs --endpoint URL --name ORG/NS/APP [--quiet] [--secret S] [--timeout 5000]
//
// It subscribes to the name, answers each message that it gets with "echo:" and
// the message unless it is to be quiet, and obeys, one after the other:
//
//   ID send ORG/NS/APP TEXT   open a session to the name, send the text, wait
//                             for its echo, close the session
//   ID subscribe ORG/NS/APP   announce a further name; unsubscribe takes it back
//   ID announce ORG/NS/APP N  announce the further names ORG/NS/APP-0 to N-1, as
//                             fast as the node takes them
//   ID group ORG/NS/CHANNEL N INVITED...
//                             open a Group session as its moderator, invite each
//                             ORG/NS/APP/INSTANCE, send "CHANNEL 1" to "CHANNEL N",
//                             each until all have acknowledged it. The invited
//                             must be quiet: each would get the echoes of the
//                             others, and echo those
//   ID disband                close that session
//   ID talk ORG/NS/APP MS WORD
//                             open a session without retransmission to the name,
//                             and send "tick WORD N AT" every MS milliseconds by
//                             the clock, whatever comes back; N counts from 0, AT
//                             is the Unix time in milliseconds. A "sent" event
//                             with "WORD N" goes with each
//   ID hush                   send no more, let the last arrive, close that
//                             session; "done" tells how many were sent
//
// It is of no use once its node was killed: the library tries to reconnect at
// once, may reach the dying process, and then gives up for good.
//
// ID is anything without a space; "done" or "failed" answer with it.
// It ends at SIGTERM or at the end of its input. URL is the data-plane endpoint
// of the node, such as http://127.0.0.1:14601. Applications that talk to each
// other need the same secret, of 32 characters or more. Each event is one JSON
// object on a line of standard output: {"event": "ready" | "message" |
// "failed" | "done" ...}, a message with the Unix time of its arrival in
// milliseconds; other lines are the library's log.
import slim from '@agntcy/slim-bindings';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';

const { values: o } = parseArgs({
  options: {
    endpoint: { type: 'string' },
    name: { type: 'string' },
    secret: { type: 'string', default: 'an-interop-test-secret-of-32-chars-or-more' },
    timeout: { type: 'string', default: '5000' },
    quiet: { type: 'boolean', default: false },
    log: { type: 'string', default: 'error' },
  },
});
if (!o.endpoint || !o.name) {
  console.error('usage: node slim-app.mjs --endpoint URL --name ORG/NS/APP [--quiet] [--secret S] [--timeout MS] [--log LEVEL]');
  process.exit(2);
}

const say = (event, more) => console.log(JSON.stringify({ event, ...more }));
const why = (e) => e?.inner?.message ?? String(e);
const sleep = (ms) => new Promise((r) => setTimeout(r, ms));
// A copy, since the encoder's buffer may be larger than the text.
const bytes = (s) => { const b = new TextEncoder().encode(s); return b.buffer.slice(b.byteOffset, b.byteOffset + b.byteLength); };
const text = (buffer) => new TextDecoder().decode(buffer);
const timeout = Number(o.timeout);
// The library's own completions have no deadline: give them one.
const within = (p, what) => Promise.race([p, sleep(timeout).then(() => { throw new Error(`${what}: no answer in ${timeout} ms`); })]);

slim.initializeWithConfigs(slim.newRuntimeConfig(), slim.newTracingConfigWith(o.log, false, false, []), [slim.newServiceConfig()]);
const service = slim.getGlobalService();
const connection = await service.connectAsync(slim.newInsecureClientConfig(o.endpoint));
// Not createAppWithSecretAsync, which panics ("no reactor running").
const app = service.createAppWithSecret(slim.Name.fromString(o.name), o.secret);
await app.subscribeAsync(slim.Name.fromString(o.name), connection);

const receive = async (session) => {
  for (;;) {
    let message;
    try {
      message = await session.getMessageAsync(undefined);
    } catch {
      return; // the other side closed the session
    }
    const at = Date.now();
    const got = text(message.payload);
    say('message', { from: message.context.sourceName.toString(), text: got, at });
    if (o.quiet) continue;
    session.publishAsync(bytes('echo:' + got), undefined, undefined).catch((e) => say('failed', { command: 'echo', error: why(e) }));
  }
};
const listen = async () => {
  for (;;) {
    try {
      receive(await app.listenForSessionAsync(undefined));
    } catch (e) {
      say('failed', { command: 'listen', error: why(e) });
      await sleep(200);
    }
  }
};

const retransmission = { maxRetries: 5, interval: 1000 };
const openSession = async (sessionType, name, { maxRetries, interval } = retransmission) => {
  const opened = await app.createSessionAsync(slim.SessionConfig.create({
    sessionType, maxRetries, interval, metadata: new Map(), mlsSettings: undefined,
  }), name);
  try {
    await within(opened.completion.waitAsync(), 'session');
  } catch (e) {
    await app.deleteSessionAsync(opened.session);
    throw e;
  }
  return opened.session;
};
const publish = async (session, message) => {
  const sent = await session.publishAsync(bytes(message), undefined, undefined);
  await within(sent.waitAsync(), 'publish');
};

const send = async (to, message) => {
  const name = slim.Name.fromString(to);
  await app.setRouteAsync(name, connection); // ask this node for the name
  const session = await openSession(slim.SessionType.PointToPoint, name);
  try {
    await publish(session, message);
    while (text((await session.getMessageAsync(timeout)).payload) !== 'echo:' + message);
  } finally {
    await app.deleteSessionAsync(session);
  }
};

let moderated;
const group = async (channel, [count, ...invited]) => {
  moderated = await openSession(slim.SessionType.Group, slim.Name.fromString(channel));
  for (const participant of invited) {
    const name = slim.Name.newWithId(...participant.split('/'));
    await app.setRouteAsync(name, connection);
    await within(moderated.inviteAndWaitAsync(name), `invitation of ${participant}`);
  }
  for (let i = 1; i <= count; i++) await publish(moderated, `${channel} ${i}`);
};
const disband = () => app.deleteSessionAsync(moderated);

// What is under way when the session closes would be lost.
const arrival = 1000;
let talking;
const talk = async (to, [period, word]) => {
  const name = slim.Name.fromString(to);
  await app.setRouteAsync(name, connection);
  const session = await openSession(slim.SessionType.PointToPoint, name, {});
  const mine = { session, sent: 0, began: performance.now() };
  const tick = () => {
    say('sent', { text: `${word} ${mine.sent}` });
    session.publishAsync(bytes(`tick ${word} ${mine.sent++} ${Date.now()}`), undefined, undefined)
      .catch((e) => say('failed', { command: 'tick', error: why(e) }));
    mine.timer = setTimeout(tick, mine.began + mine.sent * period - performance.now());
  };
  tick();
  talking = mine;
};
const hush = async () => {
  clearTimeout(talking.timer);
  await sleep(arrival);
  await app.deleteSessionAsync(talking.session);
  return { sent: talking.sent };
};

const subscribe = (name) => app.subscribeAsync(slim.Name.fromString(name), connection);
// Unlike subscribing, this needs the instance id in the name.
const unsubscribe = (name) => app.unsubscribeAsync(slim.Name.newWithId(...name.split('/'), app.id()), connection);
const announce = async (name, [count]) => {
  // With all at once the library's acknowledgements time out.
  const atOnce = 500;
  for (let i = 0; i < count; i += atOnce) {
    await Promise.all(Array.from({ length: Math.min(atOnce, count - i) }, (_, j) => subscribe(`${name}-${i + j}`)));
  }
};
const commands = { send: (to, words) => send(to, words.join(' ')), group, disband, talk, hush, subscribe, unsubscribe, announce };

const input = createInterface({ input: process.stdin });
process.once('SIGTERM', () => process.exit(0));
listen();
say('ready', { name: o.name, id: app.id().toString() });
for await (const line of input) {
  const [id, command, argument, ...words] = line.split(' ');
  try {
    if (!commands[command]) throw new Error('unknown command');
    const result = await commands[command](argument, words);
    say('done', { command: id, ...result });
  } catch (e) {
    say('failed', { command: id, error: why(e) });
  }
}
process.exit(0);
