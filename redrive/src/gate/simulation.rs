//! Three nodes, one row and a target, in virtual time: the decisions are the real ones, the engine around them is as small as it
//! can be. A node has slots, counts its calls, reads the row at the pace of the engine, takes probes twenty times a second, and
//! never runs out of tasks. Each run has a seed and can be repeated.

use std::collections::BinaryHeap;
use std::sync::Arc;

use super::*;
use crate::resilience::{Sample, Samples};

const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const NODES: usize = 3;
const LATENCY: u64 = 20;
/// The pace at which a node reads a gate that is not calm, in milliseconds.
const READ_EVERY: u64 = 250;

/// A generator of numbers from 0 to 1 (splitmix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The share of calls that fail, from each millisecond on.
type Health = fn(u64) -> f64;

/// A call under way, the one that ends first greatest.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Call {
    ends: std::cmp::Reverse<u64>,
    node: usize,
    failed: bool,
    /// The generation of the probe that it is, or else that in which it began, and its mark.
    probe: Option<i64>,
    generation: i64,
    mark: u32,
}

struct Node {
    gate: Gate,
    samples: Samples,
    failed_at: u64,
    read_at: u64,
    running: usize,
    permits: u32,
}

struct Simulation {
    config: Option<Arc<GateConfig>>,
    slots: usize,
    row: Gate,
    nodes: Vec<Node>,
    calls: BinaryHeap<Call>,
    chance: Chance,
    health: Health,
    ms: u64,
    /// Successes in each second.
    good: Vec<u64>,
    /// Calls that reached a target that is down while the row was not closed: before all nodes had to know it, and later.
    strays: u64,
    reached: u64,
    opened: u64,
    changes: u64,
}

impl Simulation {
    fn new(seed: u64, slots: usize, gated: bool, health: Health) -> Self {
        let config = GateConfig::default();
        let row = Gate::new(Lane(1), "target", START);
        let node = |n| Node {
            gate: row.clone(),
            samples: Samples::plain(&config.breaker.trips, START),
            failed_at: 0,
            read_at: n * 77,
            running: 0,
            permits: 0,
        };
        Self {
            nodes: (0..NODES as u64).map(node).collect(),
            config: gated.then(|| Arc::new(config)),
            slots,
            row,
            calls: BinaryHeap::new(),
            chance: Chance(seed),
            health,
            ms: 0,
            good: Vec::new(),
            strays: 0,
            reached: 0,
            opened: 0,
            changes: 0,
        }
    }

    fn now(&self) -> Timestamp {
        START + Duration::from_millis(self.ms)
    }

    fn run(mut self, seconds: u64) -> Self {
        for ms in 0..seconds * 1_000 {
            self.ms = ms;
            if ms % 1_000 == 0 {
                self.good.push(0);
            }
            while self.calls.peek().is_some_and(|call| call.ends.0 <= ms) {
                let call = self.calls.pop().unwrap();
                self.end(&call);
            }
            for node in 0..NODES {
                self.look(node);
                self.start(node);
            }
        }
        self
    }

    fn start(&mut self, n: usize) {
        let now = self.now();
        loop {
            let node = &self.nodes[n];
            let Some(config) = &self.config else {
                if node.running >= self.slots {
                    return;
                }
                self.begin(n, None);
                continue;
            };
            let room = match node.gate.lets_through(config, now) {
                GateState::Closed if node.gate.generation == 0 => self.slots,
                GateState::Closed => ramp(config.breaker.probes, now.since(node.gate.changed_at)).min(self.slots),
                GateState::Open | GateState::HalfOpen => 0,
            };
            if node.running < room {
                self.begin(n, None);
            } else if node.permits > 0 && node.running < self.slots {
                let generation = node.gate.generation;
                self.nodes[n].permits -= 1;
                self.begin(n, Some(generation));
            } else {
                return;
            }
        }
    }

    fn begin(&mut self, node: usize, probe: Option<i64>) {
        let failed = self.chance.next() < (self.health)(self.ms);
        let took = 1 + (self.chance.next() * 2.0 * LATENCY as f64) as u64;
        if self.row.state != GateState::Closed && (self.health)(self.ms) >= 1.0 {
            let seen = if self.ms - self.opened <= READ_EVERY { &mut self.strays } else { &mut self.reached };
            *seen += 1;
        }
        let known = &mut self.nodes[node];
        known.running += 1;
        let (generation, mark) = (known.gate.generation, known.samples.mark());
        self.calls.push(Call { ends: std::cmp::Reverse(self.ms + took), node, failed, probe, generation, mark });
    }

    fn end(&mut self, call: &Call) {
        self.nodes[call.node].running -= 1;
        if !call.failed {
            *self.good.last_mut().unwrap() += 1;
        }
        let Some(config) = self.config.clone() else { return };
        match call.probe {
            Some(generation) => self.end_probe(call.node, generation, call.failed, &config),
            None => self.count(call, &config),
        }
    }

    fn count(&mut self, call: &Call, config: &GateConfig) {
        let (now, random) = (self.now(), self.chance.next());
        let node = &mut self.nodes[call.node];
        if node.gate.generation != call.generation || node.gate.lets_through(config, now) != GateState::Closed {
            return;
        }
        if call.failed {
            node.failed_at = self.ms;
        }
        let sample = Sample { failed: call.failed, took: Duration::ZERO, mark: call.mark };
        let Some(tally) = node.samples.record(now, sample).and_then(|rule| node.samples.tally(rule, now)) else {
            return;
        };
        if let Some(to) = node.gate.tripped(config, &tally, random, now) {
            self.write(call.node, to);
        }
    }

    /// A compare-and-set from what the node knows; it knows the row afterwards.
    fn write(&mut self, n: usize, to: Gate) {
        if self.nodes[n].gate.generation == self.row.generation {
            self.changes += u64::from(self.row.state != to.state);
            if self.row.state == GateState::Closed {
                self.opened = self.ms;
            }
            self.row = to;
        }
        self.learn(n);
    }

    fn learn(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        if node.gate.generation != self.row.generation {
            node.samples.clear();
            node.permits = 0;
        }
        node.gate = self.row.clone();
    }

    fn end_probe(&mut self, n: usize, generation: i64, failed: bool, config: &GateConfig) {
        let (now, random) = (self.now(), self.chance.next());
        if self.row.generation != generation || self.row.state != GateState::HalfOpen {
            return self.learn(n);
        }
        if failed {
            self.row.probes_failed += 1;
        } else {
            self.row.probes_passed += 1;
        }
        self.learn(n);
        if let Some(to) = self.row.decided(config, "a probe failed", random, now) {
            self.write(n, to);
        }
    }

    fn look(&mut self, n: usize) {
        let (now, random) = (self.now(), self.chance.next());
        let Some(config) = self.config.clone() else { return };
        let node = &self.nodes[n];
        let is_suspicious = node.samples.in_a_row() >= 2 && self.ms - node.failed_at < 2_000;
        let pace = if is_suspicious || !node.gate.is_calm(now) { READ_EVERY } else { 2_000 };
        if self.ms.saturating_sub(node.read_at) >= pace {
            self.nodes[n].read_at = self.ms;
            self.learn(n);
        }
        if self.ms % 50 != n as u64 * 7 {
            return;
        }
        let node = &self.nodes[n];
        if let Some(to) = node.gate.due(&config, random, now) {
            return self.write(n, to);
        }
        let room = u32::try_from(self.slots - node.running.min(self.slots)).unwrap();
        let wanted = node.gate.probes_left(&config, now).min(room);
        if wanted > 0 && node.permits == 0 {
            let to = node.gate.taken(&config, wanted, now).unwrap();
            let numbers = |gate: &Gate| (gate.generation, gate.probes_given, gate.probes_passed, gate.probes_failed);
            if numbers(&node.gate) == numbers(&self.row) {
                self.row = to;
                self.learn(n);
                self.nodes[n].permits = wanted;
            } else {
                self.learn(n);
            }
        }
    }

    fn total(&self) -> u64 {
        self.good.iter().sum()
    }
}

/// Successes with and without the gate, from `from` on.
fn ratio(seed: u64, slots: usize, health: Health, from: usize, seconds: u64) -> f64 {
    let [with, without] = [true, false]
        .map(|gated| Simulation::new(seed, slots, gated, health).run(seconds).good[from..].iter().sum::<u64>());
    with as f64 / without as f64
}

#[test]
fn a_target_that_half_works_is_hardly_held_back() {
    let shares: [(Health, f64); 3] = [(|_| 0.1, 0.95), (|_| 0.3, 0.9), (|_| 0.5, 0.8)];
    for (health, least) in shares {
        for slots in [1, 10, 100] {
            for seed in 0..3 {
                let ratio = ratio(seed, slots, health, 0, 60);
                assert!(ratio >= least, "{ratio} with {slots} slots, seed {seed}, {} fail", health(0));
            }
        }
    }
}

#[test]
fn a_target_that_is_down_for_ten_minutes_sees_few_calls_and_is_soon_back() {
    let health: Health = |ms| f64::from(u8::from((30_000..630_000).contains(&ms)));
    for slots in [1, 10, 100] {
        for seed in 0..5 {
            let seen = Simulation::new(seed, slots, true, health).run(740);
            let full = Simulation::new(seed, slots, false, |_| 0.0).run(30).total() / 30;
            let first = seen.good[630..].iter().position(|good| *good > 0).expect("a success");
            let whole = seen.good[630..].iter().position(|good| *good * 10 >= full * 9).expect("the full rate");
            assert!(seen.reached <= 60 && seen.reached >= 10, "{} calls, {slots} slots, seed {seed}", seen.reached);
            assert!(seen.strays <= 4 * slots as u64 + 20, "{} strays, {slots} slots, seed {seed}", seen.strays);
            assert!(
                first <= 30 && whole - first <= 60,
                "first {first} s, full rate {whole} s, {slots} slots, seed {seed}"
            );
        }
    }
}

#[test]
fn a_target_that_comes_back_half_healthy_is_soon_given_most_of_its_load() {
    let health: Health = |ms| if ms < 120_000 { 1.0 } else { 0.5 };
    for slots in [1, 10, 100] {
        let ratios: Vec<f64> = (0..10).map(|seed| ratio(seed, slots, health, 120, 240)).collect();
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        assert!(mean >= 0.6, "{mean} with {slots} slots: {ratios:?}");
    }
}

#[test]
fn a_run_can_be_repeated() {
    let health: Health = |ms| if ms < 20_000 { 0.0 } else { 0.97 };
    let seen = [7, 7, 8].map(|seed| {
        let seen = Simulation::new(seed, 10, true, health).run(60);
        (seen.good, seen.reached, seen.changes)
    });
    assert!(seen[0] == seen[1] && seen[0] != seen[2] && seen[0].2 > 1);
}
