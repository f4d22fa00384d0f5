// pg-boss: https://timgit.github.io/pg-boss
import * as library from 'pg-boss';
import pg from 'pg';
import { inPieces, main, until, versionOf } from './bench.mjs';

const version = versionOf('pg-boss');
const modern = Number(version.split('.')[0]) >= 11; // named export; insert() takes the queue
const PgBoss = library.PgBoss ?? library.default;

// The queue of keyed jobs has the policy under which a singletonKey is unique among the jobs that wait.
const KEYED = 'keyed';
const PLAIN = 'plain';
const key = (n) => `bench-${n}`;
const PIECE = 5000; // of a bulk insert
const BATCH = 1000; // of a worker
let boss, pool;
let wake = () => {};

const insert = (queue, jobs) =>
  modern ? boss.insert(queue, jobs) : boss.insert(jobs.map((job) => ({ name: queue, ...job })));

await main({
  name: 'pg-boss',
  version,
  settings:
    'send with a singletonKey on a queue of policy short over a pool of 64; insert in pieces of 5,000. ' +
    'Two workers; for drain batchSize 1,000, for latency 100; pollingIntervalSeconds 0.5, the least it takes, and ' +
    'notifyWorker() so as not to wait for it: after each batch, and after each send of the same process. ' +
    'A worker in another process would wait half a second at most, a quarter on average.',

  async open() {
    pool = new pg.Pool({ connectionString: process.env.URL, max: 2 });
    boss = new PgBoss({ connectionString: process.env.URL, max: 64, schedule: false });
    boss.on('error', (error) => console.error(error));
    await boss.start();
    await boss.createQueue(KEYED, { name: KEYED, policy: 'short' });
    await boss.createQueue(PLAIN, { name: PLAIN });
  },
  async add(n) {
    const id = await boss.send(KEYED, { n }, { singletonKey: key(n) });
    if (!id) throw new Error(`job ${n} was taken for one that is there already`);
    wake();
  },
  addMany: (all) =>
    inPieces(all.length, PIECE, (ns) => insert(KEYED, ns.map((n) => ({ data: { n }, singletonKey: key(n) })))),
  async load(tasks) {
    await inPieces(tasks, PIECE, (ns) => insert(PLAIN, ns.map((n) => ({ data: { n } }))));
    await pool.query('VACUUM ANALYZE');
  },
  // It polls, at most twice a second. notifyWorker() makes a worker of the same process look at once: after each send
  // for latency (sender and worker share a process here, as ours do), and after each full batch for drain.
  async work(handler, scenario) {
    const drain = scenario === 'drain';
    const options = { batchSize: drain ? BATCH : 100, pollingIntervalSeconds: 0.5 };
    const ids = [];
    const notify = () => ids.forEach((id) => boss.notifyWorker(id));
    const work = async (jobs) => {
      for (const job of jobs) handler(job.data.n);
      if (drain) notify();
    };
    for (let i = 0; i < 2; i++) ids.push(await boss.work(drain ? PLAIN : KEYED, options, work));
    if (!drain) wake = notify;
  },
  acknowledged: () =>
    until(async () => (await pool.query(`SELECT FROM pgboss.job WHERE state < 'completed' LIMIT 1`)).rowCount === 0),
  async close() {
    await boss.stop({ graceful: false });
    await pool.end();
  },
});
