// DBOS Transact for TypeScript: https://docs.dbos.dev. A library: workflows run in the process that starts them, and are
// checkpointed in PostgreSQL.
import { DBOS } from '@dbos-inc/dbos-sdk';
import { isWorker, main, startWorkers, steps, versionOf } from './saga-bench.mjs';

const POOL = 10; // connections of a process: its default; 20 and 50 were no faster

// Compensation is the workflow's own code: what was done is undone by steps, in reverse.
async function order(n) {
  const done = [];
  const results = [];
  try {
    for (const step of steps) {
      done.push(step);
      results.push(await DBOS.runStep(() => step.run(n), { name: step.name }));
    }
    return results;
  } catch (error) {
    for (const { name, undo } of done.reverse()) await DBOS.runStep(() => undo(n), { name: `undo ${name}` });
    throw error;
  }
}
const saga = DBOS.registerWorkflow(order, { name: 'order' });

async function launch(executor) {
  DBOS.setConfig({
    name: 'sagas',
    systemDatabaseUrl: process.env.URL,
    systemDatabasePoolSize: POOL,
    executorID: executor,
    logLevel: 'error',
  });
  await DBOS.launch();
}

const start = async (n) => (await DBOS.startWorkflow(saga, { workflowID: `order-${n}` })(n)).getResult();

// With workers: the client says which, and hears of the end.
let workers = [];
const waiting = new Map();

function ask(n) {
  return new Promise((resolve, reject) => {
    waiting.set(n, { resolve, reject });
    workers[n % workers.length].send(n);
  });
}

function heard({ n, result, error }) {
  const { resolve, reject } = waiting.get(n);
  waiting.delete(n);
  if (error) reject(new Error(error));
  else resolve(result);
}

if (isWorker) {
  await launch(`worker-${process.pid}`);
  process.on('message', (n) => {
    start(n).then(
      (result) => process.send({ n, result }),
      (error) => process.send({ n, error: String(error) }),
    );
  });
  process.send('ready');
} else {
  await main({
    name: 'dbos',
    version: versionOf('@dbos-inc/dbos-sdk'),
    settings: `PostgreSQL with its default, durable settings; startWorkflow of three runStep; ${POOL} connections a process.`,
    async open(count) {
      if (!count) return launch('client');
      // One makes the schema before several look for it.
      await launch('client');
      await DBOS.shutdown();
      workers = await startWorkers(import.meta.url, count);
      workers.forEach((worker) => {
        worker.removeAllListeners('exit');
        worker.on('message', heard);
      });
      this.run = ask;
    },
    run: start,
    async close() {
      workers.forEach((worker) => worker.kill());
    },
  });
}
