// What the Node peers have in common: the scenarios, the clock and the output. A peer says only how it does each
// step; what is measured, and from when to when, is written here once, in the words of scripts/bench-peers.
//
//   node PEER.mjs SCENARIO TASKS     with the address of the fresh, empty server or database in URL
//
// A peer is an object:
//   name, version   as printed
//   settings        what was chosen, for the report; the scenario `settings` prints it
//   open()          makes the schema and opens the connections; nothing of it is measured
//   add(n)          writes task n down, with a unique key; resolves when it is durable
//   addMany(ns)     writes these down by the peer's own bulk call, with unique keys
//   load(tasks)     fills the queue for `drain`, without keys; not measured
//   work(handler, scenario)   starts the worker; handler(n) is to be called once a task
//   acknowledged()  resolves when no task is left that is waiting or running
//   close()
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const CALLERS = 64;
const LATENCY = { tasks: 500, everyMs: 20 };
// Tasks before the measured ones, so that all connections are open and the code is compiled: so many callers at once,
// so many times.
const WARM_UP = 10;

// The version of a package that is installed beside us; not every package exports its package.json.
export function versionOf(name) {
  const { resolve } = createRequire(import.meta.url);
  for (let dir = dirname(resolve(name)); dir !== '/'; dir = dirname(dir)) {
    try {
      const found = JSON.parse(readFileSync(join(dir, 'package.json'), 'utf8'));
      if (found.name === name) return found.version;
    } catch {
      // no package.json in this directory
    }
  }
  throw new Error(`which version of ${name} is this?`);
}

export const range = (from, to) => Array.from({ length: to - from }, (_, i) => from + i);

// Calls many(ns) with pieces of 0..tasks, one after the other.
export async function inPieces(tasks, size, many) {
  for (let from = 0; from < tasks; from += size) await many(range(from, Math.min(from + size, tasks)));
}

// Asks again and again until ask() resolves to true.
export async function until(ask) {
  while (!(await ask())) await sleep(2);
}

const scenarios = {
  async enqueue(peer, tasks) {
    await addAll(peer, tasks, tasks + CALLERS * WARM_UP);
    const started = performance.now();
    await addAll(peer, 0, tasks);
    return rate(tasks, started);
  },

  async bulk(peer, tasks) {
    const all = range(0, tasks);
    const started = performance.now();
    await peer.addMany(all);
    return rate(tasks, started);
  },

  async drain(peer, tasks) {
    await peer.load(tasks);
    const goal = countTo(tasks);
    const started = performance.now();
    await peer.work(goal.step, 'drain');
    await goal.reached;
    await peer.acknowledged();
    return rate(tasks, started);
  },

  async latency(peer) {
    const { tasks, everyMs } = LATENCY;
    const warmUp = CALLERS * WARM_UP;
    const sent = [];
    const ran = [];
    const all = countTo(tasks + warmUp);
    await peer.work((n) => {
      ran[n] = performance.now();
      all.step();
    }, 'latency');
    await addAll(peer, tasks, tasks + warmUp);
    await until(() => all.count() === warmUp);

    const started = performance.now();
    const calls = [];
    for (let n = 0; n < tasks; n++) {
      await sleep(Math.max(0, started + n * everyMs - performance.now()));
      sent[n] = performance.now();
      calls.push(peer.add(n));
    }
    await Promise.all(calls);
    await all.reached;
    const times = sent.map((at, n) => ran[n] - at).sort((a, b) => a - b);
    const share = (s) => times[Math.min(Math.floor(tasks * s), tasks - 1)];
    return { tasks, p50_ms: round(share(0.5)), p99_ms: round(share(0.99)), max_ms: round(times.at(-1)) };
  },
};

// 64 callers, each of which waits for its task to be written before it takes the next.
async function addAll(peer, from, to) {
  let next = from;
  const caller = async () => {
    while (next < to) await peer.add(next++);
  };
  await Promise.all(range(0, CALLERS).map(caller));
}

function countTo(all) {
  let done = 0;
  let reach;
  const reached = new Promise((resolve) => (reach = resolve));
  return { reached, count: () => done, step: () => ++done === all && reach() };
}

const round = (number) => Math.round(number * 1000) / 1000;
const rate = (tasks, started) => ({ tasks, rate: round((tasks * 1000) / (performance.now() - started)) });

export async function main(peer) {
  const [scenario, tasks] = process.argv.slice(2);
  const print = (figures) =>
    console.log(JSON.stringify({ peer: peer.name, version: peer.version, scenario, ...figures }));
  if (scenario === 'settings') return print({ settings: peer.settings });
  if (!scenarios[scenario] || !process.env.URL) throw new Error('usage: URL=... node PEER.mjs SCENARIO TASKS');
  await peer.open();
  print(await scenarios[scenario](peer, Number(tasks)));
  await peer.close();
  process.exit(0); // a peer may have timers left
}
