// graphile-worker: https://worker.graphile.org
import { Logger, makeWorkerUtils, run } from 'graphile-worker';
import pg from 'pg';
import { inPieces, main, until, versionOf } from './bench.mjs';

const quiet = new Logger(() => () => {});
const show = (options) => `\`${JSON.stringify(options)}\``;
const key = (n) => `bench-${n}`;
let pool, utils, runner;

// https://worker.graphile.org/docs/performance: jobs fetched in batches into a local queue, and their completions
// written in batches. Both are for load; for latency the plain worker, which is woken by NOTIFY, is faster.
const settings = {
  drain: {
    concurrentJobs: 500,
    localQueue: { size: 5000 },
    completeJobBatchDelay: 5,
    failJobBatchDelay: 5,
  },
  latency: { concurrentJobs: 24, completeJobBatchDelay: 0, failJobBatchDelay: 0 },
};

await main({
  name: 'graphile-worker',
  version: versionOf('graphile-worker'),
  settings:
    'addJob with a jobKey over a pool of 64; addJobs in pieces of 5,000. ' +
    `Worker for drain: ${show(settings.drain)}; for latency: woken by NOTIFY, ${show(settings.latency)}.`,

  async open() {
    pool = new pg.Pool({ connectionString: process.env.URL, max: 64 });
    pool.on('error', (error) => console.error(error));
    pool.on('connect', (client) => client.on('error', (error) => console.error(error)));
    utils = await makeWorkerUtils({ pgPool: pool, logger: quiet });
    await utils.migrate();
  },
  add: (n) => utils.addJob('noop', { n }, { jobKey: key(n) }),
  addMany: (all) =>
    inPieces(all.length, 5000, (ns) =>
      utils.addJobs(ns.map((n) => ({ identifier: 'noop', payload: { n }, jobKey: key(n) }))),
    ),
  async load(tasks) {
    await inPieces(tasks, 5000, (ns) => utils.addJobs(ns.map((n) => ({ identifier: 'noop', payload: { n } }))));
    await pool.query('VACUUM ANALYZE');
  },
  async work(handler, scenario) {
    const worker = { connectionString: process.env.URL, maxPoolSize: 20, logger: quiet, ...settings[scenario] };
    const taskList = { noop: ({ n }) => handler(n) };
    runner = await run({ preset: { worker }, taskList, noHandleSignals: true });
  },
  acknowledged: () =>
    until(async () => (await pool.query('SELECT FROM graphile_worker._private_jobs LIMIT 1')).rowCount === 0),
  async close() {
    await runner?.stop();
    await utils.release();
    await pool.end();
  },
});
