//! What a node does with gates: it counts how calls fare, opens a gate that has seen enough, holds its lane back meanwhile, takes probes
//! and tells what became of them. What a gate is, and why it is safe, is in [`gate`](crate::gate).
//!
//! *State.* For each lane that has a gate: the row as this node knows it, and the calls of late. What follows from it for the lane is in
//! the limits ([`Passage`]): there it costs nothing to ask, and nothing is read for a lane that may not run.
//!
//! A node learns of the others' changes by reading the rows that are not simply closed: as often as it beats, and four times a second while
//! there are any. Its own changes hold here at once, and in the database as soon as they are written.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use crate::classify::Kind;
use crate::clock::{Timestamp, pause};
use crate::error::Result;
use crate::gate::{Gate, GateConfig, GateState, Hold, ramp};
use crate::id::IdMap;
use crate::resilience::{Health, Mode, Sample, Samples, Tally};
use crate::settle::Outcome;
use crate::task::{Lane, Task, limits, storable};

use super::events::Event;
use super::limits::Passage;
use super::{Engine, Shared, lock};

/// How often gates are looked at while one is not closed, and how often their rows are read then.
const QUICK: Duration = Duration::from_millis(50);
const READ: Duration = Duration::from_millis(250);
/// Rows that changed so lately are read although they are closed: a node may have missed it.
const LATELY: Duration = Duration::from_secs(120);

/// So many lanes are remembered that give no trouble; each counts its calls in a few kilobytes.
const MOST_CALM: usize = 2_000;
/// So many are remembered at most because calls have failed of late: more than that at once cannot be held in memory.
const MOST_FAILING: usize = 10 * MOST_CALM;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Gates {
    lanes: Mutex<HashMap<Lane, LaneGate>>,
    /// When there are so many lanes, it is looked which of them can go.
    room: AtomicUsize,
    /// Tasks that are claimed as probes, each of a cycle.
    pub(super) probes: Mutex<IdMap<i64>>,
    work: Mutex<Vec<Work>>,
    wake: Notify,
}

#[derive(Debug)]
pub(super) struct LaneGate {
    pub(super) config: Arc<GateConfig>,
    samples: Samples,
    pub(super) gate: Gate,
    /// The generation that the limits know of.
    applied: Option<i64>,
    /// Whether its lane is let through bit by bit.
    ramping: bool,
}

/// As what an attempt began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Nobody counts it.
    Uncounted,
    /// As one of many, in this generation.
    Through(i64),
    /// As a probe of this cycle.
    Probe(i64),
}

/// What is to be written.
#[derive(Debug)]
pub(super) enum Work {
    Move(Box<(Gate, Gate)>),
    Passed(Lane, i64),
    Failed(Lane, i64, String),
    /// A probe that says nothing of its target.
    Undecided(Lane, i64),
    /// A caller would make its first try as a probe, and waits to be told of which cycle.
    Wanted(Lane, oneshot::Sender<i64>),
}

/// What an outcome says about the health of whoever was called. Only an outage counts against it; that it refused a call shows that
/// it is there. What is our own trouble, or nobody's, says nothing.
fn health(outcome: &Outcome) -> Health {
    let failure = match outcome {
        Outcome::Done => return Health::Success,
        Outcome::Failed(failure) | Outcome::Fatal(failure) => failure,
        _ => return Health::Ignore,
    };
    let ours = [Kind::PANIC, Kind::UNMET, Kind::UNDECODABLE, Kind::SEALED, Kind::CRASH, Kind::ERROR];
    match Health::of_failure(&failure.kind) {
        Health::Failure if failure.retry_after.is_some() && failure.kind == Kind::http(429) => Health::Ignore, // it asks for less
        Health::Ignore if !ours.contains(&failure.kind) => Health::Success,
        health => health,
    }
}

impl LaneGate {
    fn new(gate: Gate, config: Arc<GateConfig>, now: Timestamp) -> Self {
        let samples = Samples::new(&config.breaker.trips, now);
        Self { config, samples, gate, applied: None, ramping: false }
    }

    /// What it lets through; only seen, if it is to be watched first.
    pub(super) fn effective(&self) -> GateState {
        match (self.config.breaker.mode, self.gate.held) {
            (Mode::Observe, None) => GateState::Closed,
            _ => self.gate.effective(),
        }
    }

    /// Whether it gives probes away, and has some left as far as we know.
    pub(super) fn has_probes(&self) -> bool {
        self.effective() == GateState::HalfOpen && self.gate.probes_given < self.config.breaker.probes
    }

    /// Whether its lane is, or was of late, held back.
    fn gives_trouble(&self) -> bool {
        self.ramping || self.gate.state != GateState::Closed || self.gate.held.is_some()
    }

    /// Whether a call of late counts against it: forgotten, its gate would never open.
    fn has_failed(&self, now: Timestamp) -> bool {
        self.samples.tallies(now).iter().any(|tally| tally.bad > 0)
    }

    pub(super) fn set(&mut self, gate: Gate) {
        if gate.generation != self.gate.generation {
            self.samples.clear();
        }
        self.gate = gate;
    }
}

pub(super) async fn run(shared: Arc<Shared>) {
    let mut read_at = Timestamp::EPOCH;
    loop {
        let wait = if shared.gates.is_active() { QUICK } else { shared.config.beat_interval };
        tokio::select! {
            () = shared.gates.wake.notified() => {}
            () = pause(wait) => {}
            () = shared.stopping.cancelled() => return,
        }
        let now = shared.clock.now();
        let result = async {
            shared.do_gate_work(now).await?;
            if now.since(read_at) >= READ.min(wait) {
                read_at = now;
                shared.read_gates(now).await?;
            }
            shared.move_gates(now).await
        };
        if let Err(e) = result.await {
            tracing::warn!(error = %e, "the gates could not be read or written; trying again");
        }
    }
}

impl Gates {
    pub(super) fn push(&self, work: Work) {
        lock(&self.work).push(work);
        self.wake.notify_one();
    }

    /// Forgets lanes that give no trouble, if there are too many.
    fn make_room(&self, lanes: &mut HashMap<Lane, LaneGate>, now: Timestamp) {
        if lanes.len() < self.room.load(Relaxed).max(MOST_CALM) {
            return;
        }
        lanes.retain(|_, lane| lane.gives_trouble() || lane.has_failed(now));
        if lanes.len() >= MOST_FAILING {
            lanes.retain(|_, lane| lane.gives_trouble());
        }
        self.room.store((2 * lanes.len()).min(MOST_FAILING), Relaxed); // or each new lane would look at all
    }

    /// Whether one is not closed, or was closed just now.
    fn is_active(&self) -> bool {
        lock(&self.lanes).values().any(LaneGate::gives_trouble)
    }
}

impl Shared {
    /// The config of a lane's gate, if it has one.
    fn gate_config(&self, lane: Lane) -> Option<Arc<GateConfig>> {
        let limits = self.limits();
        limits.options_of(lane)?.gate.as_ref().filter(|gate| gate.enabled).map(|gate| Arc::new(gate.clone()))
    }

    /// Does something with the gate of a lane, if it has one.
    pub(super) fn with_gate<T>(&self, lane: Lane, f: impl FnOnce(&mut LaneGate) -> T) -> Option<T> {
        let mut lanes = lock(&self.gates.lanes);
        if !lanes.contains_key(&lane) {
            drop(lanes);
            let (config, now) = (self.gate_config(lane)?, self.clock.now());
            lanes = lock(&self.gates.lanes);
            self.gates.make_room(&mut lanes, now);
            lanes.entry(lane).or_insert_with(|| LaneGate::new(Gate::new(lane, "", now), config, now));
        }
        lanes.get_mut(&lane).map(f)
    }

    /// The attempt of a task begins. `None`: its gate has opened since it was claimed; it is to wait, too.
    pub(super) fn begin(&self, task: &Task) -> Option<Pass> {
        if !self.has_gates {
            return Some(Pass::Uncounted);
        }
        let probe = self.gates.forget_probe(task.id);
        let pass = self.with_gate(task.lane, |lane| match (probe, lane.gate.generation) {
            // One of an earlier cycle is none any more, whatever became of its claim.
            (Some(cycle), now) if cycle == now => Some(Pass::Probe(cycle)),
            (_, generation) => (lane.effective() == GateState::Closed).then_some(Pass::Through(generation)),
        });
        let pass = pass.unwrap_or(Some(Pass::Uncounted));
        if let Some(Pass::Probe(generation)) = pass {
            self.signals.listeners.tell(|| Event::Probe { lane: task.lane, generation, id: task.id });
        }
        pass
    }

    /// It has ended.
    pub(super) fn end_call(&self, task: &Arc<Task>, pass: Pass, outcome: &Outcome, took: Duration) {
        let name = || self.gate_name(task);
        self.count_call(task.lane, pass, outcome, took, &name);
    }

    pub(super) fn count_call(
        &self,
        lane: Lane,
        pass: Pass,
        outcome: &Outcome,
        took: Duration,
        name: &dyn Fn() -> String,
    ) {
        let health = health(outcome);
        match (pass, health) {
            (Pass::Uncounted, _) | (Pass::Through(_), Health::Ignore) => {}
            (Pass::Through(generation), _) => self.count(lane, generation, health == Health::Failure, took, name),
            (Pass::Probe(generation), Health::Success) => self.gates.push(Work::Passed(lane, generation)),
            (Pass::Probe(generation), Health::Ignore) => self.gates.give_back(lane, generation),
            (Pass::Probe(generation), Health::Failure) => {
                self.gates.push(Work::Failed(lane, generation, format!("a probe failed: {}", said(outcome))));
            }
        }
    }

    fn count(&self, lane: Lane, generation: i64, failed: bool, took: Duration, name: &dyn Fn() -> String) {
        let now = self.clock.now();
        let tripped = self.with_gate(lane, |lane| {
            if lane.gate.generation != generation || lane.gate.state != GateState::Closed || lane.gate.held.is_some() {
                return None; // a late result of before
            }
            let rule = lane.samples.record(now, Sample { failed, took })?;
            let why = lane.samples.tally(rule, now).map_or_else(String::new, |tally| tally.to_string());
            let from = lane.gate.clone();
            lane.set(from.opened(&lane.config, chance(&from, now), &why, now));
            Some((from, lane.gate.clone()))
        });
        let Some(Some((mut from, mut to))) = tripped else { return };
        self.apply_gate(lane);
        if to.name.is_empty() {
            to.name = storable(&name(), limits::METHOD); // asks the application: not under the lock
            from.name.clone_from(&to.name);
            self.with_gate(lane, |lane| lane.gate.name.clone_from(&to.name));
        }
        self.gates.push(Work::Move(Box::new((from, to))));
    }

    /// The method, or the part of it that the lane is of.
    fn gate_name(&self, task: &Arc<Task>) -> String {
        let part = self.handlers.get(&task.method).and_then(|handler| {
            let read = self.readable(task).ok()?;
            catch_unwind(AssertUnwindSafe(|| handler.part_of(&read))).ok()? // the application's
        });
        part.unwrap_or_else(|| task.method.clone())
    }

    /// What a gate means for its lane.
    fn apply_gate(&self, lane: Lane) {
        let now = self.clock.now();
        let passage = self.with_gate(lane, |lane| {
            let probes = lane.config.breaker.probes;
            let ramped = ramp(probes, now.since(lane.gate.changed_at)) >= self.config.concurrency;
            let was_open = lane.gate.state == GateState::Closed && lane.gate.generation > 0 && lane.gate.held.is_none();
            lane.ramping = was_open && !ramped && lane.config.breaker.mode == Mode::Enforce;
            let is_news = lane.applied.replace(lane.gate.generation) != Some(lane.gate.generation);
            match lane.effective() {
                GateState::Closed if lane.ramping => Some(Passage::Ramp(lane.gate.changed_at, probes)),
                GateState::Closed => Some(Passage::All),
                GateState::Open => Some(Passage::None),
                GateState::HalfOpen => is_news.then_some(Passage::Probes(0, lane.gate.generation)), // what was taken is known there
            }
        });
        if let Some(Some(passage)) = passage
            && self.limits().set_passage(lane, passage, now)
        {
            self.waiting().ready.unpark_all();
            self.wake.scanner.notify_one();
            self.wake.claimer.notify_one();
        }
    }

    /// Each by itself: one that cannot be written does not take the others with it.
    pub(super) async fn do_gate_work(&self, now: Timestamp) -> Result<()> {
        let (work, mut all) = (std::mem::take(&mut *lock(&self.gates.work)), Ok(()));
        for work in work {
            let done = match work {
                Work::Move(change) => self.trip(change.0, change.1, now).await,
                Work::Passed(lane, generation) => self.pass(lane, generation, now).await,
                Work::Undecided(lane, generation) => self.store.give_probe_back(lane, generation).await,
                Work::Wanted(lane, caller) => self.give_probe(lane, caller, now).await,
                Work::Failed(lane, generation, why) => self.fail_probe(lane, generation, &why, now).await,
            };
            all = all.and(done);
        }
        all
    }

    /// A gate opens. This node may not have known that it has opened before: then it opens from what it is.
    async fn trip(&self, from: Gate, to: Gate, now: Timestamp) -> Result<()> {
        let (lane, why) = (to.lane, to.why.clone().unwrap_or_default());
        if self.move_gate(from, to).await? {
            return Ok(());
        }
        let again = self.with_gate(lane, |lane| {
            let is_closed = lane.gate.state == GateState::Closed && lane.gate.held.is_none();
            is_closed.then(|| (lane.gate.clone(), lane.gate.opened(&lane.config, chance(&lane.gate, now), &why, now)))
        });
        match again.flatten() {
            Some((from, to)) => self.move_gate(from, to).await.map(|_| ()),
            None => Ok(()),
        }
    }

    /// Changes a gate for all. `false`: another was faster, or it was not what we thought; what it is holds.
    pub(super) async fn move_gate(&self, from: Gate, to: Gate) -> Result<bool> {
        let lane = to.lane;
        if self.store.move_gate(&from, &to).await? {
            self.with_gate(lane, |lane| lane.set(to.clone()));
            self.apply_gate(lane);
            self.tell_gate(&from, &to).await;
            return Ok(true);
        }
        let now = self.clock.now();
        let gate = self.store.gates().await?.into_iter().find(|gate| gate.lane == lane);
        self.with_gate(lane, |lane| lane.set(gate.unwrap_or_else(|| Gate::new(to.lane, &to.name, now))));
        self.apply_gate(lane);
        Ok(false)
    }

    async fn tell_gate(&self, from: &Gate, to: &Gate) {
        let (name, why) = (&to.name, to.why.as_deref().unwrap_or("all is well"));
        tracing::warn!(
            gate = name,
            from = from.state.as_str(),
            to = to.state.as_str(),
            opens = to.opens,
            why,
            "a gate has changed"
        );
        let (before, after) = (from.state.as_str(), to.state.as_str());
        let event = || Event::Gate {
            gate: name.clone(),
            from: before,
            to: after,
            why: to.why.clone(),
            open_until: to.open_until,
        };
        self.signals.listeners.tell(event);
        metrics::counter!("redrive_gate_changes", "method" => self.method_of(to.lane), "to" => after).increment(1);
        let is_suspended = to.held == Some(Hold::Open) && from.held.is_none();
        if is_suspended {
            let said = format!("{name} is suspended: {why}; its tasks are kept until a person resets the gate");
            self.tell_people("gate.suspended", name, &said).await;
        } else if to.state == GateState::Open && to.opens == 1 {
            self.tell_people("gate.opened", name, &format!("{name} keeps failing: {why}; its tasks wait")).await;
        }
    }

    /// Learns what others have made of them.
    pub(super) async fn read_gates(&self, now: Timestamp) -> Result<()> {
        if !self.has_gates {
            return Ok(());
        }
        let rows = self.store.active_gates(now - LATELY).await?;
        let mut missed: HashSet<Lane> = {
            let lanes = lock(&self.gates.lanes);
            lanes.iter().filter(|(_, lane)| lane.gives_trouble()).map(|(lane, _)| *lane).collect()
        };
        for gate in rows {
            missed.remove(&gate.lane);
            self.learn_gate(gate);
        }
        // They were closed while we could not look.
        if !missed.is_empty() {
            let all = self.store.gates().await?.into_iter();
            all.filter(|gate| missed.contains(&gate.lane)).for_each(|gate| self.learn_gate(gate));
        }
        Ok(())
    }

    fn learn_gate(&self, gate: Gate) {
        let lane = gate.lane;
        let is_news = self.with_gate(lane, |known| {
            // A change of our own may be on its way; a probe that was taken or passed is in the same generation.
            let is_news = gate.generation > known.gate.generation
                || (gate.generation == known.gate.generation && gate != known.gate);
            if is_news {
                known.set(gate);
            }
            is_news
        });
        if is_news == Some(true) {
            self.apply_gate(lane);
        }
    }

    /// What time brings: waits that are over, probes to be taken, probes that are lost, lanes that are let through bit by bit.
    async fn move_gates(&self, now: Timestamp) -> Result<()> {
        let active: Vec<(Gate, Arc<GateConfig>, bool)> = {
            let lanes = lock(&self.gates.lanes);
            let active = lanes.values().filter(|lane| lane.ramping || lane.gate.state != GateState::Closed);
            active.map(|lane| (lane.gate.clone(), lane.config.clone(), lane.ramping)).collect()
        };
        for (gate, config, ramping) in active {
            if ramping {
                self.apply_gate(gate.lane);
                self.wake.claimer.notify_one();
            } else if let Some(next) = match config.breaker.mode {
                Mode::Enforce => gate.half_opened(now),
                Mode::Observe => gate.let_go(now),
            } {
                self.move_gate(gate, next).await?;
            } else if gate.has_lost_a_probe(&config, now) {
                let lost = Gate { opens: gate.opens.saturating_sub(1), ..gate.clone() }; // nothing failed: the same wait again
                let opened = lost.opened(&config, chance(&gate, now), "a probe was lost", now);
                self.move_gate(gate, opened).await?;
            } else if gate.state == GateState::HalfOpen {
                self.take_probes(&gate, &config, now).await?;
            }
        }
        Ok(())
    }
}

/// Chance for how long it waits: different for each gate and time.
pub(super) fn chance(gate: &Gate, now: Timestamp) -> f64 {
    let seed = now.as_millis().cast_unsigned() ^ gate.generation.cast_unsigned();
    let mixed = xxhash_rust::xxh3::xxh3_64_with_seed(&gate.lane.0.to_le_bytes(), seed);
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}

fn said(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Failed(failure) | Outcome::Fatal(failure) => format!("{}: {}", failure.kind.as_str(), failure.message),
        _ => String::new(),
    }
}

impl Engine {
    /// How the rules of a lane's gate stand by what this node has seen of late. Nothing if it has no gate, or was not called here.
    pub fn gate_tallies(&self, lane: Lane) -> Vec<Tally> {
        let (lanes, now) = (lock(&self.0.gates.lanes), self.0.clock.now());
        lanes.get(&lane).map(|lane| lane.samples.tallies(now)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::EPOCH;

    /// Lanes with so many calls that failed.
    fn lanes(n: usize, failed: usize) -> HashMap<Lane, LaneGate> {
        let config = Arc::new(GateConfig::default());
        let lane = |i: usize| {
            let lane = Lane(i32::try_from(i).unwrap());
            let known = LaneGate::new(Gate::new(lane, "", NOW), config.clone(), NOW);
            (0..failed).for_each(|_| _ = known.samples.record(NOW, Sample { failed: true, took: Duration::ZERO }));
            (lane, known)
        };
        (0..n).map(lane).collect()
    }

    #[test]
    fn lanes_that_fail_are_not_forgotten_among_many() {
        let (gates, mut all) = (Gates::default(), lanes(MOST_CALM, 0));
        let failing = Lane(7);
        all.extend(lanes(8, 4).remove_entry(&failing));
        gates.make_room(&mut all, NOW);
        assert_eq!(all.keys().collect::<Vec<_>>(), [&failing]);
        let known = &all[&failing];
        assert!(
            known.samples.record(NOW, Sample { failed: true, took: Duration::ZERO }).is_some(),
            "the fifth in a row"
        );
    }

    #[test]
    fn there_is_an_end_to_what_is_remembered() {
        let (gates, mut all) = (Gates::default(), lanes(MOST_FAILING, 1));
        all.retain(|lane, _| lane.0 > 0);
        gates.make_room(&mut all, NOW);
        assert_eq!(all.len(), MOST_FAILING - 1);
        all.extend(lanes(1, 1));
        gates.make_room(&mut all, NOW);
        assert!(all.is_empty());
    }
}
