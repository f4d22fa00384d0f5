//! `redrive bench`: how fast it is on a database, beside what the database itself can do.
//!
//! Every scenario that has a raw limit measures it in the same run, before and after ours (raw, ours, raw): the same rows and
//! indexes, the same kinds of statements, issued by a tight loop ([`raw`]). Machines are noisy; the ratio is what counts.
//! All rows that it writes are its own (their method begins with `bench.` or `http.bench`, or they are requests to addresses that
//! only this process had) and are removed again.

mod cluster;
mod gate;
mod hosts;
mod http;
mod ours;
mod raw;
mod sagas;
mod targets;
mod trouble;

use std::time::Duration;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::line;
use raw::Raw;
use targets::By;
use trouble::{On, Trouble};

/// Not that of `serve`.
const DEFAULT: &str = "sqlite://redrive-bench.db";

#[derive(Args, Debug)]
pub(crate) struct Bench {
    /// The database; one that nothing else works on. That of redrive.toml, or of `serve` in this directory, which has work to do, is
    /// not taken.
    #[arg(long, value_name = "URL", env = "REDRIVE_DATABASE", hide_env_values = true, default_value = DEFAULT)]
    database: String,
    /// What to measure; several may be given.
    #[arg(value_enum, default_values_t = [Scenario::Enqueue, Scenario::Drain, Scenario::Cycle, Scenario::Latency, Scenario::Precision])]
    scenarios: Vec<Scenario>,
    /// How many tasks.
    #[arg(long, default_value_t = 100_000)]
    tasks: u64,
    /// How many times each is measured; the median is shown.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Other tasks that wait, for `backlog`.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1_000_000, 5_000_000])]
    pending: Vec<u64>,
    /// Requests at once, for `http`.
    #[arg(long, default_value_t = 500)]
    at_once: usize,
    /// One JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
    /// Leave the raw limit out: for profiling.
    #[arg(long)]
    no_raw: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// Writing tasks down: 1, 64 and 1,000 callers at once, and in bulk; with keys and without.
    Enqueue,
    /// Running tasks that are there already.
    Drain,
    /// Writing down and running at the same time.
    Cycle,
    /// From enqueue to the handler, at 50 tasks a second.
    Latency,
    /// How exactly tasks run at their time.
    Precision,
    /// Draining while others wait.
    Backlog,
    /// Ten nodes, three months of two tables, the last of `--pending` tasks that wait: scans, and statements of idle nodes.
    ///
    /// On PostgreSQL, in a database of its own: it is given monthly tables.
    Cluster,
    /// HTTP tasks to a service on this machine, beside what the same client does without a store.
    Http,
    /// A hundred HTTP targets, of which one hangs: how long the others' requests take, beside without it.
    Targets,
    /// `--tasks` for a target that is down and a thousand for one that is not: what its gate costs while it is open, and how they go
    /// when it is back. On PostgreSQL.
    Gate,
    /// `--tasks` that wait, of ten thousand hosts, on one node: its memory, its longest sweep, and how long a task of a new host waits. On
    /// PostgreSQL.
    Hosts,
    /// Three nodes and a target that fails 10, 30 and 50 % of its calls at random: good answers in a minute with its gate, beside
    /// without it.
    Flaky,
    /// Three nodes and a target that is down for 120 s and then fails 50 %: good answers in the 120 s after that, beside without
    /// its gate.
    HalfBack,
    /// Three nodes and a target that is down for ten minutes: calls that reach it, and how soon it is found.
    Outage,
    /// Three nodes and a target that takes 100 calls a second and answers others with 429, with `Retry-After` and without: how long
    /// `--tasks` take.
    SlowDown,
    /// `--tasks` sagas of three steps, started by 512 callers; there is no raw limit for them.
    Sagas,
    /// What the process takes in memory while it holds a million tasks that are due soon (Linux; best alone).
    Memory,
}

/// Nodes of a cluster.
const NODES: usize = 10;

/// More than three nodes get through in a second where an answer takes as long as it does in these scenarios.
const MOST_A_SECOND: u64 = 1_100;
/// Calls that the target of `slow-down` takes in a second.
const ALLOWED: u32 = 100;

/// What was measured.
#[derive(Clone, Debug, Default)]
struct Figures {
    scenario: String,
    tasks: u64,
    rate: Option<f64>,
    raw_rate: Option<f64>,
    /// Ours to raw; of times, with to without.
    ratio: Option<f64>,
    p50: Option<Duration>,
    p99: Option<Duration>,
    max: Option<Duration>,
    pending: Option<u64>,
    memory_mb: Option<f64>,
}

impl Bench {
    pub(crate) async fn run(&self) -> anyhow::Result<()> {
        let store = redrive::Store::open(&self.database).await?;
        let raw = Raw::connect(&self.database).await?;
        raw.clean_up().await?;
        raw.remove_backlog().await?; // of a run that was interrupted
        let measured = self.measure(&store, &raw).await;
        let cleaned = raw.clean_up().await; // also if it was broken off
        let all = measured?;
        cleaned?;
        if !self.json {
            print_table(&all)?;
        }
        Ok(())
    }

    async fn measure(&self, store: &redrive::Store, raw: &Raw) -> anyhow::Result<Vec<Figures>> {
        let mut all = Vec::new();
        for scenario in &self.scenarios {
            all.extend(self.scenario(*scenario, store, raw).await?);
        }
        Ok(all)
    }

    async fn scenario(&self, scenario: Scenario, store: &redrive::Store, raw: &Raw) -> anyhow::Result<Vec<Figures>> {
        let mut all = Vec::new();
        match scenario {
            Scenario::Enqueue => {
                for keyed in [true, false] {
                    for callers in [1, 64, 1_000] {
                        let tasks = self.tasks.min(if callers == 1 { self.tasks / 50 } else { self.tasks });
                        let name = format!("enqueue {callers} callers, {}", if keyed { "keyed" } else { "unkeyed" });
                        let ours = async || ours::enqueue(store, tasks, callers, keyed).await;
                        // The raw limit of so many callers: one connection that writes them in batches of that size.
                        let raw_run = async || raw.insert(tasks, (callers as usize).min(1_000), keyed).await;
                        all.push(self.compare(&name, tasks, raw, ours, raw_run).await?);
                    }
                }
                let ours = async || ours::enqueue_bulk(store, self.tasks).await;
                let raw_run = async || raw.insert(self.tasks, 1_000, true).await;
                all.push(self.compare("enqueue bulk, keyed", self.tasks, raw, ours, raw_run).await?);
            }
            Scenario::Drain => all.push(self.drain("drain", store, raw).await?),
            Scenario::Cycle => {
                let ours = async || ours::cycle(store, self.tasks).await;
                let raw_run = async || raw.cycle(self.tasks).await;
                all.push(self.compare("cycle", self.tasks, raw, ours, raw_run).await?);
            }
            Scenario::Latency => {
                let run = async || ours::latency(store, 500, 50).await;
                all.push(self.timed("latency 50/s", 500, run).await?);
            }
            Scenario::Precision => {
                let run = async || ours::precision(store, self.tasks, Duration::from_secs(10)).await;
                all.push(self.timed("precision over 10 s", self.tasks, run).await?);
            }
            Scenario::Memory => {
                let (scenario, tasks) = ("memory of the node".into(), ours::IN_WHEEL);
                let memory_mb = Some(ours::memory(store, self.progress("filling the wheel", tasks)).await?);
                all.push(Figures { scenario, tasks, memory_mb, ..Figures::default() });
            }
            Scenario::Sagas => all.push(self.sagas(store, raw).await?),
            Scenario::Flaky => all.extend(self.flaky(store, raw).await?),
            Scenario::HalfBack => all.push(self.half_back(store, raw).await?),
            Scenario::Outage => all.push(self.outage(store, raw).await?),
            Scenario::SlowDown => all.extend(self.slow_down(store, raw).await?),
            Scenario::Gate => all.extend(self.gate(store, raw).await?),
            Scenario::Hosts => all.push(self.hosts(store, raw).await?),
            Scenario::Cluster => all.extend(self.cluster(store, raw).await?),
            Scenario::Http => all.extend(self.http(store, raw).await?),
            Scenario::Targets => {
                for by in [By::Name, By::Host] {
                    all.extend(self.targets(by, store, raw).await?);
                }
            }
            Scenario::Backlog => all.extend(self.backlog(store, raw).await?),
        }
        if self.json {
            all.iter().try_for_each(|f| line(f.json()))?;
        }
        Ok(all)
    }

    async fn backlog(&self, store: &redrive::Store, raw: &Raw) -> anyhow::Result<Vec<Figures>> {
        let (mut all, mut there) = (Vec::new(), 0);
        for pending in &self.pending {
            let bar = self.progress("filling the backlog", *pending);
            raw.fill_backlog(pending.saturating_sub(there), bar).await?;
            there = *pending;
            let figures = self.drain(&format!("drain with {pending} pending"), store, raw).await?;
            all.push(Figures { pending: Some(*pending), ..figures });
        }
        raw.remove_backlog().await?;
        Ok(all)
    }

    async fn cluster(&self, store: &redrive::Store, raw: &Raw) -> anyhow::Result<[Figures; 2]> {
        let pending = self.pending.last().copied().unwrap_or(0);
        let bar = self.progress("filling the tables", pending);
        let seen = cluster::run(store, raw, NODES, pending, &bar).await?;
        bar.finish_and_clear();
        let scans = async || Ok(seen.scans.clone());
        let name = format!("scan of one of {NODES} nodes, {} rows", seen.rows);
        let scan = Figures {
            pending: Some(pending),
            memory_mb: Some(seen.megabytes),
            ..self.timed(&name, pending, scans).await?
        };
        let (scenario, rate) = (format!("statements of {NODES} idle nodes"), Some(seen.statements_per_second));
        Ok([scan, Figures { scenario, tasks: pending, rate, ..Figures::default() }])
    }

    async fn sagas(&self, store: &redrive::Store, raw: &Raw) -> anyhow::Result<Figures> {
        let bar = self.progress("sagas", self.runs as u64);
        let mut times = Vec::new();
        for _ in 0..self.runs {
            raw.remove_sagas().await?;
            times.push(sagas::run(store, self.tasks).await?);
            bar.inc(1);
        }
        raw.remove_sagas().await?;
        bar.finish_and_clear();
        let rate = Some(self.tasks as f64 / median(&mut times).as_secs_f64());
        Ok(Figures { scenario: "sagas of three steps".into(), tasks: self.tasks, rate, ..Figures::default() })
    }

    async fn gate(&self, store: &redrive::Store, raw: &Raw) -> anyhow::Result<[Figures; 2]> {
        let bar = self.progress("filling the table", self.tasks);
        let seen = gate::run(store, raw, self.tasks, &bar).await?;
        bar.finish_and_clear();
        let gate::Seen { written, probes, cycles, burnt, ramp, .. } = &seen;
        line(format!("rows of retry_task written in 10 s while the gate was open: {written}"))?;
        line(format!("calls that reached the dead target after its gate had opened: {probes}, in {cycles} cycles"))?;
        line(format!("tasks with an attempt when the target came back: {burnt}"))?;
        line(format!("done in each half second after the gate closed: {ramp:?}"))?;
        let named = |scenario: &str, tasks, time: Duration| Figures {
            scenario: scenario.into(),
            tasks,
            rate: Some(tasks as f64 / time.as_secs_f64()),
            max: Some(time),
            ..Figures::default()
        };
        Ok([
            named("healthy, while the others wait", 1_000, seen.healthy),
            named("the others, when it is back", self.tasks, seen.drained),
        ])
    }

    /// Good answers in these seconds, with the gate and without.
    async fn with_and_without(
        &self,
        on: &On<'_>,
        name: &str,
        trouble: Trouble,
        (from, to): (u64, u64),
    ) -> anyhow::Result<Figures> {
        let tasks = MOST_A_SECOND * to;
        let with = on.good(trouble, true, tasks, from, to).await?;
        let without = on.good(trouble, false, tasks, from, to).await?;
        let [rate, raw_rate] = [with, without].map(|good| Some(good as f64 / (to - from) as f64));
        let ratio = Some(with as f64 / without as f64);
        Ok(Figures { scenario: name.into(), tasks, rate, raw_rate, ratio, ..Figures::default() })
    }

    async fn flaky(&self, store: &redrive::Store, raw: &Raw) -> anyhow::Result<Vec<Figures>> {
        let (bar, mut all) = (self.progress("a target that fails at random", 1), Vec::new());
        let on = On { url: &self.database, store, raw, bar: &bar };
        for share in [0.1, 0.3, 0.5] {
            let name = format!("good while {:.0} % fail", share * 100.0);
            all.push(self.with_and_without(&on, &name, Trouble::Fails(share), (10, 70)).await?);
        }
        bar.finish_and_clear();
        Ok(all)
    }

    async fn half_back(&self, store: &redrive::Store, raw: &Raw) -> anyhow::Result<Figures> {
        let bar = self.progress("a target that comes back half well", 1);
        let on = On { url: &self.database, store, raw, bar: &bar };
        let trouble = Trouble::Down(Duration::ZERO, Duration::from_secs(120), 0.5);
        let figures = self.with_and_without(&on, "good after an outage, 50 % fail", trouble, (120, 240)).await;
        bar.finish_and_clear();
        figures
    }

    async fn outage(&self, store: &redrive::Store, raw: &Raw) -> anyhow::Result<Figures> {
        let bar = self.progress("a target that is down", 1);
        let on = On { url: &self.database, store, raw, bar: &bar };
        let (well, down) = (30, 600);
        let tasks = MOST_A_SECOND * (well + 100);
        let seen = on.outage(well, down, tasks).await?;
        bar.finish_and_clear();
        let trouble::Outage { strays, probes, first, whole } = seen;
        line(format!("calls that reached it in the 250 ms in which the nodes learned of it: {strays}"))?;
        line(format!("calls that reached it after that, until it was back: {probes}"))?;
        line(format!("seconds from its return to the first success: {first:?}, to the whole rate: {whole:?}"))?;
        let max = whole.map(Duration::from_secs);
        Ok(Figures { scenario: "whole rate after an outage".into(), tasks, max, ..Figures::default() })
    }

    async fn slow_down(&self, store: &redrive::Store, raw: &Raw) -> anyhow::Result<Vec<Figures>> {
        let (bar, mut all) = (self.progress("a target that asks for a slower pace", 1), Vec::new());
        let on = On { url: &self.database, store, raw, bar: &bar };
        for names in [true, false] {
            let trouble::Slowed { took, refused, attempts, dead } = on.slowed(ALLOWED, names, self.tasks).await?;
            let with = if names { "with" } else { "without" };
            line(format!(
                "{with} Retry-After: {took:.0?}, refused {refused}, highest attempt {attempts}, dead {dead}"
            ))?;
            let rate = self.tasks as f64 / took.as_secs_f64();
            all.push(Figures {
                scenario: format!("429 {with} Retry-After, 100/s allowed"),
                tasks: self.tasks,
                rate: Some(rate),
                raw_rate: Some(ALLOWED.into()),
                ratio: Some(rate / f64::from(ALLOWED)),
                max: Some(took),
                ..Figures::default()
            });
        }
        bar.finish_and_clear();
        Ok(all)
    }

    async fn hosts(&self, store: &redrive::Store, raw: &Raw) -> anyhow::Result<Figures> {
        let bar = self.progress("filling the table", self.tasks);
        let seen = hosts::run(store, raw, self.tasks, &bar).await?;
        line(format!("longest sweep: {:?}", seen.sweep))?;
        let figures = percentiles("task of a new host among 10,000", self.tasks, vec![seen.delays]);
        Ok(Figures { memory_mb: Some(seen.megabytes), ..figures })
    }

    async fn http(&self, store: &redrive::Store, raw: &Raw) -> anyhow::Result<[Figures; 2]> {
        let client = async || http::client_alone(self.tasks, self.at_once).await;
        let deliver = async || http::deliver(store, self.tasks, self.at_once).await;
        let both = async || http::enqueue_and_deliver(store, self.tasks, self.at_once).await;
        Ok([
            self.compare("http: deliver", self.tasks, raw, deliver, client).await?,
            self.compare("http: enqueue and deliver", self.tasks, raw, both, client).await?,
        ])
    }

    /// In the order without, with, without.
    async fn targets(&self, by: By, store: &redrive::Store, raw: &Raw) -> anyhow::Result<[Figures; 2]> {
        let by_what = format!("{by:?}").to_lowercase();
        let bar = self.progress(&format!("100 targets by {by_what}"), self.runs as u64 * 3);
        let mut seen = [const { Vec::new() }; 2];
        for hangs in [false, true, false].repeat(self.runs) {
            seen[usize::from(hangs)].push(targets::run(store, raw, by, hangs).await?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        let [without, with] = seen;
        let without = percentiles(&format!("99 targets by {by_what}"), targets::counted(), without);
        let with = percentiles("the same, the 100th hangs", targets::counted(), with);
        let ratio = with.p99.zip(without.p99).map(|(with, without)| with.as_secs_f64() / without.as_secs_f64());
        Ok([without, Figures { ratio, ..with }])
    }

    async fn drain(&self, name: &str, store: &redrive::Store, raw: &Raw) -> anyhow::Result<Figures> {
        let ours = async || ours::drain(store, raw, self.tasks).await;
        let raw_run = async || raw.drain(self.tasks).await;
        self.compare(name, self.tasks, raw, ours, raw_run).await
    }

    /// Medians of raw, ours, raw.
    async fn compare(
        &self,
        name: &str,
        tasks: u64,
        raw: &Raw,
        ours: impl AsyncFn() -> anyhow::Result<Duration>,
        raw_run: impl AsyncFn() -> anyhow::Result<Duration>,
    ) -> anyhow::Result<Figures> {
        let bar = self.progress(name, self.runs as u64 * 3);
        let (mut our_times, mut raw_times) = (Vec::new(), Vec::new());
        for _ in 0..self.runs {
            for is_raw in if self.no_raw { &[false][..] } else { &[true, false, true] } {
                raw.clean_up().await?;
                let time = if *is_raw { raw_run().await? } else { ours().await? };
                if *is_raw { &mut raw_times } else { &mut our_times }.push(time);
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        let rate = |times: &mut Vec<Duration>| (!times.is_empty()).then(|| tasks as f64 / median(times).as_secs_f64());
        let (rate, raw_rate) = (rate(&mut our_times), rate(&mut raw_times));
        let ratio = rate.zip(raw_rate).map(|(rate, raw)| rate / raw);
        Ok(Figures { scenario: name.into(), tasks, rate, raw_rate, ratio, ..Figures::default() })
    }

    /// Medians of each run's percentiles.
    async fn timed(
        &self,
        name: &str,
        tasks: u64,
        run: impl AsyncFn() -> anyhow::Result<Vec<Duration>>,
    ) -> anyhow::Result<Figures> {
        let mut runs = Vec::new();
        for _ in 0..self.runs {
            runs.push(run().await?);
        }
        Ok(percentiles(name, tasks, runs))
    }

    fn progress(&self, name: &str, steps: u64) -> ProgressBar {
        let bar = ProgressBar::new(steps).with_message(name.to_owned());
        if let Ok(style) = ProgressStyle::with_template("{msg:40} {bar:30} {pos}/{len} {elapsed}") {
            bar.set_style(style);
        }
        bar
    }
}

impl Figures {
    fn json(&self) -> String {
        let mut fields = vec![format!("\"scenario\":{:?}", self.scenario), format!("\"tasks\":{}", self.tasks)];
        let ms = |d: Option<Duration>| d.map(|d| d.as_secs_f64() * 1000.0);
        let numbers = [
            ("rate", self.rate),
            ("raw_rate", self.raw_rate),
            ("ratio", self.ratio),
            ("p50_ms", ms(self.p50)),
            ("p99_ms", ms(self.p99)),
            ("max_ms", ms(self.max)),
            ("pending", self.pending.map(|n| n as f64)),
            ("memory_mb", self.memory_mb),
        ];
        fields.extend(numbers.iter().filter_map(|(name, n)| n.map(|n| format!("\"{name}\":{n:.3}"))));
        format!("{{{}}}", fields.join(","))
    }
}

/// Medians of each run's percentiles.
fn percentiles(name: &str, tasks: u64, runs: Vec<Vec<Duration>>) -> Figures {
    let mut at = [const { Vec::new() }; 3];
    for mut times in runs {
        times.sort_unstable();
        for (at, share) in at.iter_mut().zip([0.5, 0.99, 1.0]) {
            let i = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
            at.extend(times.get(i));
        }
    }
    let [p50, p99, max] = at.map(|mut runs| Some(median(&mut runs)));
    Figures { scenario: name.into(), tasks, p50, p99, max, ..Figures::default() }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn print_table(all: &[Figures]) -> std::io::Result<()> {
    let mut table = comfy_table::Table::new();
    table.set_header(["scenario", "tasks", "ours /s", "raw /s", "ratio", "p50 ms", "p99 ms", "max ms", "MB"]);
    let number = |n: Option<f64>, digits: usize| n.map(|n| format!("{n:.digits$}")).unwrap_or_default();
    for f in all {
        let ms = |d: Option<Duration>| number(d.map(|d| d.as_secs_f64() * 1000.0), 2);
        table.add_row([
            f.scenario.clone(),
            f.tasks.to_string(),
            number(f.rate, 0),
            number(f.raw_rate, 0),
            number(f.ratio, 2),
            ms(f.p50),
            ms(f.p99),
            ms(f.max),
            number(f.memory_mb, 0),
        ]);
    }
    line(table)
}
