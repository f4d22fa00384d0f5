// Makes a table of what scripts/bench-sagas has measured.
//
//   node saga-report.mjs FIGURES SETTINGS     files with a JSON object on each line
import os from 'node:os';
import { readFileSync } from 'node:fs';

const lines = (file) => readFileSync(file, 'utf8').split('\n').filter(Boolean).map((line) => JSON.parse(line));
const [figures, settings] = process.argv.slice(2).map(lines);
const { env } = process;

function median(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

const shown = (number) => Math.round(number).toLocaleString('en-US');
const row = (cells) => `| ${cells.join(' | ')} |`;

// What was run in the same way belongs together, in the order in which it was first seen.
const groups = new Map();
for (const figure of figures) {
  const key = [figure.system, figure.sagas, figure.in_flight ?? '–', figure.workers ?? '–'].join('\t');
  if (!groups.has(key)) groups.set(key, []);
  groups.get(key).push(figure.sagas_per_second ?? figure.rate);
}

const versionOf = (system) => settings.find((peer) => peer.peer === system)?.version ?? env.BENCH_REVISION;
const table = [...groups].map(([key, rates]) => {
  const [system, sagas, inFlight, workers] = key.split('\t');
  return row([system, versionOf(system), shown(sagas), inFlight, workers, `**${shown(median(rates))}**`, rates.map(shown).join('; ')]);
});

const text = [
  `Measured on ${new Date().toISOString().slice(0, 10)} by \`scripts/bench-sagas\`: sagas of three steps, submitted and completed, each second.`,
  '',
  `- Machine: ${os.cpus().length} cores, ${os.cpus()[0].model.trim()}; ${Math.round(os.totalmem() / 2 ** 30)} GiB of memory; ${os.type()} ${os.release()}.`,
  `- PostgreSQL ${env.BENCH_POSTGRES}. Node ${process.versions.node}.`,
  '',
  row(['system', 'version', 'sagas', 'in flight', 'workers', 'sagas/s, median', 'every round']),
  row(['---', '---', '---:', '---:', '---:', '---:', '---']),
  ...table,
  '',
  ...settings.map((peer) => `- **${peer.peer}**: ${peer.settings}`),
];
console.log(text.join('\n'));
