// Restate: https://docs.restate.dev. Its server keeps the journal and calls the service; both are on this machine.
// URL is the server's ingress, ADMIN_URL where the service is registered.
import http2 from 'node:http2';
import cluster from 'node:cluster';
import { fileURLToPath } from 'node:url';
import * as restate from '@restatedev/restate-sdk';
import { isWorker, main, steps, versionOf } from './saga-bench.mjs';

// As its guide to sagas says: compensations are put on a list before each step, and run in reverse after a terminal error.
const order = restate.service({
  name: 'order',
  handlers: {
    run: async (ctx, { n }) => {
      const compensations = [];
      const results = [];
      try {
        for (const { name, run, undo } of steps) {
          compensations.push(() => ctx.run(`undo ${name}`, () => undo(n)));
          results.push(await ctx.run(name, () => run(n)));
        }
        return results;
      } catch (error) {
        if (error instanceof restate.TerminalError) {
          for (const compensate of compensations.reverse()) await compensate();
        }
        throw error;
      }
    },
  },
});

const quiet = () => {}; // it logs every invocation otherwise
const serve = (port) =>
  new Promise((resolve) => {
    const server = http2.createServer(restate.endpoint().bind(order).setLogger(quiet).http2Handler());
    server.listen(port, '127.0.0.1', () => resolve(server.address().port));
  });

// Workers share one port: connections of the server are handed out in turn.
async function startServices(workers) {
  if (!workers) return serve(0);
  cluster.setupPrimary({ exec: fileURLToPath(import.meta.url), args: [] });
  const started = Array.from({ length: workers }, () => {
    const worker = cluster.fork({ SAGA_WORKER: '1' });
    return new Promise((resolve) => worker.once('message', resolve));
  });
  return (await Promise.all(started))[0];
}

async function register(port) {
  const response = await fetch(`${process.env.ADMIN_URL}/deployments`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ uri: `http://127.0.0.1:${port}` }),
  });
  if (!response.ok) throw new Error(`registering: ${response.status} ${await response.text()}`);
}

// A call through the ingress is answered when the saga has ended. HTTP/2 with many streams costs the client least.
const SESSIONS = 4;
let sessions = [];

function call(n) {
  return new Promise((resolve, reject) => {
    const stream = sessions[n % SESSIONS].request({
      ':method': 'POST',
      ':path': '/order/run',
      'content-type': 'application/json',
    });
    let status;
    const chunks = [];
    stream.on('response', (headers) => (status = headers[':status']));
    stream.on('data', (chunk) => chunks.push(chunk));
    stream.on('error', reject);
    stream.on('end', () => {
      const body = Buffer.concat(chunks).toString();
      if (status === 200) resolve(JSON.parse(body));
      else reject(new Error(`saga ${n}: ${status} ${body}`));
    });
    stream.end(JSON.stringify({ n }));
  });
}

if (isWorker) {
  process.send(await serve(0));
} else {
  await main({
    name: 'restate',
    version: `${versionOf('@restatedev/restate-sdk')} (server ${process.env.RESTATE_VERSION ?? '?'})`,
    settings:
      'one server of default settings (24 partitions, its log is flushed by fsync, journals kept for a day) without telemetry; ' +
      'a service of three ctx.run with a list of compensations, called through the ingress over HTTP/2.',
    async open(workers) {
      await register(await startServices(workers));
      sessions = Array.from({ length: SESSIONS }, () => http2.connect(process.env.URL));
      await Promise.all(sessions.map((s) => new Promise((resolve) => s.once('connect', resolve))));
    },
    run: call,
    async close() {
      sessions.forEach((session) => session.close());
      Object.values(cluster.workers ?? {}).forEach((worker) => worker.kill());
    },
  });
}
