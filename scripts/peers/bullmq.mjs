// BullMQ, on Redis: https://docs.bullmq.io
import { Queue, Worker } from 'bullmq';
import { inPieces, main, until, versionOf } from './bench.mjs';

const { hostname: host, port } = new URL(process.env.URL ?? 'redis://127.0.0.1:6379');
const connection = { host, port: Number(port), maxRetriesPerRequest: null };
const key = (n) => `bench-${n}`;
const PIECE = 1000;
// Several workers, as its guide recommends. Far more jobs at a time than these made it slower, not faster.
const workerCount = { drain: 2, latency: 1 };
const concurrency = { drain: 25, latency: 50 };
let queue;
let workers = [];
let completed = 0;
let loaded = 0;

await main({
  name: 'bullmq',
  version: versionOf('bullmq'),
  settings:
    'On Redis with appendonly yes and appendfsync always. add with a jobId; addBulk in pieces of 1,000. ' +
    `For drain ${workerCount.drain} workers of concurrency ${concurrency.drain}, more was slower; for latency one of ` +
    `${concurrency.latency}; removeOnComplete.`,

  async open() {
    queue = new Queue('bench', { connection, defaultJobOptions: { removeOnComplete: true, removeOnFail: true } });
    await queue.waitUntilReady();
  },
  add: (n) => queue.add('noop', { n }, { jobId: key(n) }),
  addMany: (all) =>
    inPieces(all.length, PIECE, (ns) =>
      queue.addBulk(ns.map((n) => ({ name: 'noop', data: { n }, opts: { jobId: key(n) } }))),
    ),
  async load(tasks) {
    await inPieces(tasks, PIECE, (ns) => queue.addBulk(ns.map((n) => ({ name: 'noop', data: { n } }))));
    loaded = tasks;
  },
  async work(handler, scenario) {
    const options = { connection, concurrency: concurrency[scenario] };
    const start = () => {
      const worker = new Worker('bench', async (job) => void handler(job.data.n), options);
      worker.on('error', (error) => console.error(error));
      worker.on('completed', () => completed++); // Redis has taken the outcome
      return worker;
    };
    workers = Array.from({ length: workerCount[scenario] }, start);
    await Promise.all(workers.map((worker) => worker.waitUntilReady()));
  },
  acknowledged: () => until(() => completed === loaded),
  async close() {
    await Promise.all(workers.map((worker) => worker.close()));
    await queue.close();
  },
});
