// What the saga peers have in common: the saga's steps, the clock and the output. A peer says only how it does each
// thing; what is measured, and from when to when, is written here once, in the words of scripts/bench-sagas.
//
//   node saga-PEER.mjs SAGAS IN_FLIGHT WORKERS     with the address of the fresh, empty server or database in URL
//   node saga-PEER.mjs settings
//
// A peer is an object:
//   name, version   as printed
//   settings        what was chosen, for the report
//   open(workers)   starts that many processes that run sagas, 0: this one does; nothing of it is measured
//   run(n)          submits saga n; resolves to its result when it is completed, durably
//   close()
import { fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { versionOf } from './bench.mjs';

export { versionOf };

// Sagas before the measured ones, so that all connections are open and the code is compiled.
const WARM_UP = 500;

// The three steps, each with its undo: nothing to do, a small value to remember.
export const steps = ['reserve', 'charge', 'ship'].map((name) => ({
  name,
  run: async (n) => ({ step: name, order: n }),
  undo: async (n) => ({ undone: name, order: n }),
}));

const right = (n, result) => steps.every(({ name }, i) => result?.[i]?.step === name && result[i].order === n);

// Submits the sagas from..to, so many at a time, and waits for all.
async function runAll(peer, from, to, inFlight) {
  let next = from;
  const caller = async () => {
    while (next < to) {
      const n = next++;
      const result = await peer.run(n);
      if (!right(n, result)) throw new Error(`saga ${n} ended with ${JSON.stringify(result)}`);
    }
  };
  await Promise.all(Array.from({ length: inFlight }, caller));
}

// Starts this file again so many times, as processes that only run sagas; resolves when each has said that it is ready.
export function startWorkers(file, count, environment) {
  const start = () =>
    new Promise((resolve, reject) => {
      const child = fork(fileURLToPath(file), [], { env: { ...process.env, ...environment, SAGA_WORKER: '1' } });
      child.once('error', reject);
      child.once('exit', (code) => reject(new Error(`a worker ended with ${code}`)));
      child.once('message', () => resolve(child));
    });
  return Promise.all(Array.from({ length: count }, start));
}

export const isWorker = Boolean(process.env.SAGA_WORKER);

export async function main(peer) {
  const [sagas, inFlight, workers] = process.argv.slice(2);
  const print = (figures) => console.log(JSON.stringify({ peer: peer.name, version: peer.version, ...figures }));
  if (sagas === 'settings') return print({ settings: peer.settings });
  if (!workers || !process.env.URL) throw new Error('usage: URL=... node saga-PEER.mjs SAGAS IN_FLIGHT WORKERS');
  const total = Number(sagas);
  await peer.open(Number(workers));
  await runAll(peer, total, total + WARM_UP, Number(inFlight));
  const started = performance.now();
  await runAll(peer, 0, total, Number(inFlight));
  const seconds = (performance.now() - started) / 1000;
  print({
    sagas: total,
    in_flight: Number(inFlight),
    workers: Number(workers),
    sagas_per_second: Math.round((total / seconds) * 10) / 10,
  });
  await peer.close();
  process.exit(0); // a peer may have timers left
}
