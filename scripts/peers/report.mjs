// Turns the figures of scripts/bench-peers into the part of docs/benchmarks.md between its two markers.
//
//   node report.mjs FIGURES SETTINGS OUT     OUT is - for the standard output
//
// FIGURES has a JSON object a line, several for each system and scenario: medians are taken here. What Node cannot know
// of the machine comes in variables that begin with BENCH_.
import { readFileSync, writeFileSync } from 'node:fs';
import os from 'node:os';

const BEGIN = '<!-- peers:begin -->';
const END = '<!-- peers:end -->';
const [figuresFile, settingsFile, out] = process.argv.slice(2);
const lines = (file) => readFileSync(file, 'utf8').split('\n').filter(Boolean).map((line) => JSON.parse(line));
const figures = lines(figuresFile);
const settings = lines(settingsFile);
const { env } = process;

// The scenarios of `redrive bench` have names of their own.
const ours = { enqueue: 'enqueue 64 callers, keyed', bulk: 'enqueue bulk, keyed', drain: 'drain', latency: 'latency 50/s' };
const systems = ['redrive', ...settings.map((peer) => peer.peer)];

const runsOf = (system, scenario, field) => {
  const name = system === 'redrive' ? ours[scenario] : scenario;
  return figures.filter((f) => f.system === system && f.scenario === name).map((f) => f[field]);
};

function median(numbers) {
  if (!numbers.length) return undefined;
  const sorted = [...numbers].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

const grouped = (number) => Math.round(number).toLocaleString('en-US');
const ms = (number) => number.toFixed(1);
const shown = (field, number) => (field === 'rate' ? grouped(number) : ms(number));

// One figure, and in brackets redrive's divided by it.
function cell(system, scenario, field) {
  const figure = median(runsOf(system, scenario, field));
  if (figure === undefined) return '–';
  if (system === 'redrive') return `**${shown(field, figure)}**`;
  const ratio = median(runsOf('redrive', scenario, field)) / figure;
  return Number.isFinite(ratio) ? `${shown(field, figure)} (${ratio.toPrecision(2)})` : shown(field, figure);
}

const columns = [
  ['enqueue', 'rate', 'enqueue, 64 callers, /s'],
  ['bulk', 'rate', 'bulk enqueue, /s'],
  ['drain', 'rate', 'drain, /s'],
  ['latency', 'p50_ms', 'latency p50, ms'],
  ['latency', 'p99_ms', 'p99, ms'],
];
const row = (cells) => `| ${cells.join(' | ')} |`;
const versionOf = (system) => settings.find((peer) => peer.peer === system)?.version ?? env.BENCH_REVISION;

const table = [
  row(['system', 'version', ...columns.map(([, , title]) => title)]),
  row(['---', '---', ...columns.map(() => '---:')]),
  ...systems.map((system) => row([system, versionOf(system), ...columns.map(([s, f]) => cell(system, s, f))])),
];

const everyRun = [
  row(['system', ...columns.map(([, , title]) => title), 'max, ms']),
  row(['---', ...columns.map(() => '---'), '---']),
  ...systems.map((system) => {
    const runs = ([scenario, field]) => runsOf(system, scenario, field).map((n) => shown(field, n)).join('; ') || '–';
    return row([system, ...[...columns, ['latency', 'max_ms']].map(runs)]);
  }),
];

const sizes = `${grouped(env.BENCH_TASKS)} tasks for drain, ${grouped(env.BENCH_ENQUEUE_TASKS)} for enqueue and bulk`;
const text = [
  `Measured on ${new Date().toISOString().slice(0, 10)} by \`scripts/bench-peers --runs ${env.BENCH_RUNS} --tasks ${env.BENCH_TASKS}\`.`,
  '',
  `- Machine: ${os.cpus().length} cores, ${os.cpus()[0].model.trim()}; ${Math.round(os.totalmem() / 2 ** 30)} GiB of memory; ` +
    `${os.type()} ${os.release()}.`,
  `- PostgreSQL ${env.BENCH_POSTGRES}.`,
  `- Node ${process.versions.node}; Rust ${env.BENCH_RUST}${env.BENCH_REDIS ? `; Redis ${env.BENCH_REDIS}, appendfsync always` : ''}.`,
  `- ${sizes}; medians of ${env.BENCH_RUNS} rounds, in each of which every system ran once.`,
  '',
  'In brackets: redrive’s figure divided by this one. For rates more than 1 means that redrive is faster, for times less than 1.',
  '',
  ...table,
  '',
  'The settings of each:',
  '',
  '- **redrive**: `redrive bench` as it is: one node; 4,000 at a time for drain, the defaults for the rest.',
  ...settings.map((peer) => `- **${peer.peer}**: ${peer.settings}`),
  '',
  '<details><summary>Every run</summary>',
  '',
  ...everyRun,
  '',
  '</details>',
].join('\n');

if (out === '-') {
  console.log(text);
} else {
  const document = readFileSync(out, 'utf8');
  const [begin, end] = [document.indexOf(BEGIN), document.indexOf(END)];
  if (begin < 0 || end < begin) throw new Error(`${out} has no ${BEGIN} … ${END}`);
  writeFileSync(out, `${document.slice(0, begin)}${BEGIN}\n\n${text}\n\n${document.slice(end)}`);
}
