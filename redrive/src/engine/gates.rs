//! What a node does with gates: it counts how calls end, opens a gate that has seen enough, holds its lane back meanwhile, takes
//! probes and notes how they ended. What a gate is, and why it is safe, is in [`gate`](crate::gate).
//!
//! *State.* For each lane that has a gate: the row as this node knows it, and its calls of late. What follows from it for the lane
//! is in the limits ([`Passage`]): there it costs nothing to ask, and nothing is read for a lane that may not run.
//!
//! A node learns of the others' changes by reading the rows that are not simply closed: four times a second while there are any,
//! or while calls of its own fail one after the other, else as often as it beats. Reading takes a twentieth of the time at most.
//! Its own changes hold here at once, and in the database as soon as they are written.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::sync::{Notify, oneshot};

use crate::classify::Kind;
use crate::clock::{Stopwatch, Timestamp, pause};
use crate::error::Result;
use crate::gate::{Gate, GateConfig, GateState, Hold, ramp};
use crate::id::IdMap;
use crate::resilience::{Health, Mode, Sample, Samples, Tally};
use crate::settle::Outcome;
use crate::task::{Lane, Task, limits, storable};

use super::events::Event;
use super::limits::Passage;
use super::{Engine, Shared, lock};

/// The pace at which gates that are half-open, or that closed a moment ago, are looked at.
const QUICK: Duration = Duration::from_millis(50);
/// The pace at which rows are read while one is not closed.
const READ: Duration = Duration::from_millis(250);
/// The part of the time that reading rows may take.
const READING: u32 = 20;
/// Rows that changed so lately are read although they are closed: a node may have missed it.
const LATELY: Duration = Duration::from_secs(120);
/// Calls in a row that make a node look whether others have opened the gate, and for how long it looks after the last of them.
const SUSPICIOUS: u32 = 2;
const SUSPICIOUS_FOR: Duration = Duration::from_secs(2);
/// Changes of gates that are written side by side.
const WRITERS: usize = 8;

/// So many lanes are remembered that give no trouble.
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
    /// The probes of each lane and cycle that run here: how many, and until when they may.
    pub(super) running: Mutex<HashMap<(Lane, i64), (u32, Timestamp)>>,
    work: Mutex<Vec<Work>>,
    wake: Notify,
}

#[derive(Debug)]
pub(super) struct LaneGate {
    pub(super) config: Arc<GateConfig>,
    samples: Samples,
    pub(super) gate: Gate,
    /// The generation and the state that the limits know of.
    applied: Option<(i64, GateState)>,
    /// True while its lane is let through bit by bit.
    ramping: bool,
    /// When a call last counted against it.
    failed_at: Timestamp,
}

/// As what an attempt began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Nobody counts it.
    Uncounted,
    /// As one of many, in this generation, with the mark of its beginning.
    Through(i64, u32),
    /// As a probe of this cycle.
    Probe(i64),
}

/// What is to be written.
#[derive(Debug)]
pub(super) enum Work {
    /// A rule was tripped.
    Trip(Box<Trip>),
    /// A probe of this generation passed, or why it failed.
    Ended(Lane, i64, Option<String>),
    /// A probe that says nothing of its target.
    Undecided(Lane, i64),
    /// Probes of this generation are not lost before then.
    Extend(Lane, i64, Timestamp),
    /// A caller would make its first try as a probe, and waits to be told of which cycle.
    Wanted(Lane, oneshot::Sender<i64>),
}

/// A gate that opens: how it was known, how it is to be, and the rule.
#[derive(Debug)]
pub(super) struct Trip {
    from: Gate,
    to: Gate,
    tally: Tally,
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
        _ if failure.is_slow_down() => Health::Ignore,
        Health::Ignore if !ours.contains(&failure.kind) => Health::Success,
        health => health,
    }
}

impl LaneGate {
    fn new(gate: Gate, config: Arc<GateConfig>, now: Timestamp) -> Self {
        let samples = Samples::plain(&config.breaker.trips, now);
        Self { config, samples, gate, applied: None, ramping: false, failed_at: Timestamp::EPOCH }
    }

    /// What it lets through; everything, if it is only watched.
    pub(super) fn effective(&self, now: Timestamp) -> GateState {
        match (self.config.breaker.mode, self.gate.held) {
            (Mode::Observe, None) => GateState::Closed,
            _ => self.gate.lets_through(&self.config, now),
        }
    }

    /// True if its lane is, or was of late, held back.
    fn gives_trouble(&self, now: Timestamp) -> bool {
        self.ramping || !self.gate.is_calm(now)
    }

    /// True if calls of this node fail one after the other: others may have opened it.
    fn is_suspicious(&self, now: Timestamp) -> bool {
        self.samples.in_a_row() >= SUSPICIOUS && now.since(self.failed_at) < SUSPICIOUS_FOR
    }

    /// When it must be looked at again.
    fn next_look(&self, now: Timestamp) -> Option<Timestamp> {
        if !self.gives_trouble(now) || self.gate.held.is_some() {
            return None;
        }
        let wait = self.gate.open_until.filter(|until| self.gate.state == GateState::Open && *until > now);
        Some(if self.ramping { now + QUICK } else { wait.unwrap_or(now + QUICK) })
    }

    /// True if a call of late counts against it: forgotten, its gate would never open.
    fn has_failed(&self, now: Timestamp) -> bool {
        self.samples.tallies(now).iter().any(|tally| tally.bad > 0)
    }

    /// How a call begins while it is closed.
    pub(super) fn through(&self) -> Pass {
        Pass::Through(self.gate.generation, self.samples.mark())
    }

    pub(super) fn set(&mut self, gate: Gate) {
        if gate.generation != self.gate.generation {
            self.samples.clear();
        }
        self.gate = gate;
    }

    /// Its probes wait for their tasks, as the limits know by now.
    pub(super) fn set_probing(&mut self, gate: Gate) {
        self.applied = Some((gate.generation, GateState::HalfOpen));
        self.set(gate);
    }
}

pub(super) async fn run(shared: Arc<Shared>) {
    let (mut read_at, mut read_every) = (Timestamp::EPOCH, READ);
    loop {
        let now = shared.clock.now();
        let is_watchful = shared.gates.is_watchful(now);
        let pace = if is_watchful { read_every } else { shared.config.beat_interval };
        let looks = [shared.gates.next_look(now), Some(read_at + pace)].into_iter().flatten().min();
        tokio::select! {
            () = shared.gates.wake.notified() => {}
            () = pause(looks.map_or(pace, |at| at.since(now)).min(pace)) => {}
            () = shared.stopping.cancelled() => return,
        }
        let now = shared.clock.now();
        let result = async {
            shared.do_gate_work(now).await?;
            if now.since(read_at) >= pace || read_at > now {
                let took = Stopwatch::start();
                read_at = now;
                shared.read_gates(now).await?;
                read_every = READ.max(took.elapsed() * READING);
            }
            shared.move_gates(now).await
        };
        if let Err(e) = result.await {
            tracing::warn!(error = %e, "the gates could not be read or written; trying again");
            pause(QUICK).await;
        }
    }
}

impl Gates {
    /// Gates have something to do now.
    pub(super) fn look_soon(&self) {
        self.wake.notify_one();
    }

    pub(super) fn push(&self, work: Work) {
        lock(&self.work).push(work);
        self.wake.notify_one();
    }

    /// Forgets lanes that give no trouble, if there are too many.
    fn make_room(&self, lanes: &mut HashMap<Lane, LaneGate>, now: Timestamp) {
        if lanes.len() < self.room.load(Relaxed).max(MOST_CALM) {
            return;
        }
        lanes.retain(|_, lane| lane.gives_trouble(now) || lane.has_failed(now));
        if lanes.len() >= MOST_FAILING {
            lanes.retain(|_, lane| lane.gives_trouble(now));
        }
        self.room.store((2 * lanes.len()).min(MOST_FAILING), Relaxed); // or each new lane would look at all
    }

    /// True if one is not closed, was closed just now, or may have been opened by others.
    fn is_watchful(&self, now: Timestamp) -> bool {
        lock(&self.lanes).values().any(|lane| lane.gives_trouble(now) || lane.is_suspicious(now))
    }

    fn next_look(&self, now: Timestamp) -> Option<Timestamp> {
        lock(&self.lanes).values().filter_map(|lane| lane.next_look(now)).min()
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
        let (probe, now) = (self.gates.forget_probe(task.id), self.clock.now());
        let pass = self.with_gate(task.lane, |lane| match (probe, lane.gate.generation) {
            // One of an earlier round is none any more, whatever became of its claim.
            (Some(round), generation) if round == generation => Some(Pass::Probe(round)),
            _ if lane.effective(now) == GateState::Closed => Some(lane.through()),
            _ => None,
        });
        let pass = pass.unwrap_or(Some(Pass::Uncounted));
        if let Some(Pass::Probe(generation)) = pass {
            self.signals.listeners.tell(|| Event::Probe { lane: task.lane, generation, id: task.id });
        }
        pass
    }

    /// It has ended.
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
            (Pass::Uncounted, _) | (Pass::Through(..), Health::Ignore) => {}
            (Pass::Through(generation, mark), _) => {
                let sample = Sample { failed: health == Health::Failure, took, mark };
                self.count(lane, generation, sample, name);
            }
            (Pass::Probe(generation), Health::Success) => self.gates.push(Work::Ended(lane, generation, None)),
            (Pass::Probe(generation), Health::Ignore) => self.gates.give_back(lane, generation),
            (Pass::Probe(generation), Health::Failure) => {
                let why = format!("a probe failed: {}", said(outcome));
                self.gates.push(Work::Ended(lane, generation, Some(why)));
            }
        }
    }

    fn count(&self, lane: Lane, generation: i64, sample: Sample, name: &dyn Fn() -> String) {
        let now = self.clock.now();
        let tripped = self.with_gate(lane, |lane| {
            let is_closed = lane.gate.lets_through(&lane.config, now) == GateState::Closed;
            if lane.gate.generation != generation || !is_closed || lane.gate.held.is_some() {
                return None; // a late result of before
            }
            if sample.failed {
                lane.failed_at = now;
            }
            let tally = lane.samples.record(now, sample).and_then(|rule| lane.samples.tally(rule, now))?;
            let from = lane.gate.clone();
            let to = from.tripped(&lane.config, &tally, chance(&from, now), now)?;
            lane.set(to.clone());
            Some(Trip { from, to, tally })
        });
        if sample.failed && self.with_gate(lane, |lane| lane.samples.in_a_row()) == Some(SUSPICIOUS) {
            self.gates.look_soon(); // others may have opened it
        }
        let Some(Some(mut trip)) = tripped else { return };
        self.apply_gate(lane);
        if trip.to.name.is_empty() {
            trip.to.name = storable(&name(), limits::METHOD); // asks the application: not under the lock
            trip.from.name.clone_from(&trip.to.name);
            self.with_gate(lane, |lane| lane.gate.name.clone_from(&trip.to.name));
        }
        self.gates.push(Work::Trip(Box::new(trip)));
    }

    /// The method, or the part of it that the lane is of.
    pub(super) fn gate_name(&self, task: &Arc<Task>) -> String {
        let part = self.handlers.get(&task.method).and_then(|handler| {
            let read = self.readable(task).ok()?;
            catch_unwind(AssertUnwindSafe(|| handler.part_of(&read))).ok()? // the application's
        });
        part.unwrap_or_else(|| task.method.clone())
    }

    /// What a gate means for its lane.
    pub(super) fn apply_gate(&self, lane: Lane) {
        let now = self.clock.now();
        let passage = self.with_gate(lane, |lane| {
            let probes = lane.config.breaker.probes;
            let closed = lane.gate.closed_since(now).filter(|_| lane.config.breaker.mode == Mode::Enforce);
            let closed = closed.filter(|since| ramp(probes, now.since(*since)) < self.config.concurrency);
            lane.ramping = closed.is_some();
            let effective = lane.effective(now);
            let applied = Some((lane.gate.generation, effective));
            let is_news = std::mem::replace(&mut lane.applied, applied) != applied;
            match (effective, closed) {
                (GateState::Closed, Some(since)) => Some(Passage::Ramp(since, probes)),
                (GateState::Closed, None) => Some(Passage::All),
                (GateState::Open, _) => Some(Passage::None),
                (GateState::HalfOpen, _) => is_news.then_some(Passage::Probes(0, lane.gate.generation)), // what was taken is known there
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
        let work = std::mem::take(&mut *lock(&self.gates.work));
        let done = stream::iter(work).map(|work| self.do_one(work, now)).buffer_unordered(WRITERS);
        done.fold(Ok(()), |all, done| std::future::ready(all.and(done))).await
    }

    async fn do_one(&self, work: Work, now: Timestamp) -> Result<()> {
        match work {
            Work::Trip(trip) => self.trip(*trip, now).await,
            Work::Ended(lane, generation, why) => self.end_probe(lane, generation, why.as_deref(), now).await,
            Work::Undecided(lane, generation) => self.store.give_probe_back(lane, generation).await,
            Work::Extend(lane, generation, until) => self.store.extend_probes(lane, generation, until).await,
            Work::Wanted(lane, caller) => self.give_probe(lane, caller, now).await,
        }
    }

    /// A gate opens. This node may not have known that it has opened before: then it opens from what it is.
    async fn trip(&self, trip: Trip, now: Timestamp) -> Result<()> {
        let lane = trip.to.lane;
        if self.move_gate(trip.from, trip.to).await? {
            return Ok(());
        }
        let again = self.with_gate(lane, |lane| {
            let from = lane.gate.clone();
            from.tripped(&lane.config, &trip.tally, chance(&from, now), now).map(|to| (from, to))
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
        self.refresh_gate(lane).await?;
        Ok(false)
    }

    /// Reads the gate of one lane, which is not what we thought.
    pub(super) async fn refresh_gate(&self, lane: Lane) -> Result<()> {
        let (gate, now) = (self.store.gate(lane).await?, self.clock.now());
        self.with_gate(lane, |lane| {
            let gate = gate.unwrap_or_else(|| Gate::new(lane.gate.lane, &lane.gate.name, now));
            lane.set(gate);
        });
        self.apply_gate(lane);
        Ok(())
    }

    pub(super) async fn tell_gate(&self, from: &Gate, to: &Gate) {
        if from.state == to.state && from.held == to.held {
            return; // the next round of probes
        }
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
        } else if to.state == GateState::Open && to.failing_since == Some(to.changed_at) {
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
            lanes.iter().filter(|(_, lane)| lane.gives_trouble(now)).map(|(lane, _)| *lane).collect()
        };
        for gate in rows {
            missed.remove(&gate.lane);
            self.learn_gate(gate);
        }
        // They were closed, or deleted, while we could not look.
        for lane in missed {
            self.refresh_gate(lane).await?;
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

    /// Probes that run here are not lost while they may run.
    fn extend_probes(&self, now: Timestamp) {
        let running = lock(&self.gates.running).iter().map(|(of, (_, until))| (*of, *until)).collect::<Vec<_>>();
        for ((lane, generation), _) in running.into_iter().filter(|(_, until)| *until > now) {
            let until = self.with_gate(lane, |known| {
                let limit = known.config.breaker.probe_limit;
                let ends_soon = known.gate.generation == generation && known.gate.probes_until < now + limit / 2;
                ends_soon.then(|| {
                    known.gate.probes_until = now + limit;
                    known.gate.probes_until
                })
            });
            until.flatten().into_iter().for_each(|until| self.gates.push(Work::Extend(lane, generation, until)));
        }
    }

    /// What time brings: waits that are over, probes to be taken, probes that are lost, lanes that are let through bit by bit.
    pub(super) async fn move_gates(&self, now: Timestamp) -> Result<()> {
        let (mut changed, mut moves, mut probing) = (Vec::new(), Vec::new(), Vec::new());
        for (lane, known) in lock(&self.gates.lanes).iter() {
            let effective = known.effective(now);
            if known.ramping || known.applied.is_some_and(|(_, applied)| applied != effective) {
                changed.push(*lane);
            }
            if let Some(next) = known.gate.due(&known.config, chance(&known.gate, now), now) {
                moves.push((known.gate.clone(), next));
            } else if effective == GateState::HalfOpen {
                probing.push(*lane);
            }
        }
        self.extend_probes(now);
        for lane in changed {
            self.apply_gate(lane);
            self.wake.claimer.notify_one();
        }
        let moved = stream::iter(moves).map(|(from, to)| self.move_gate(from, to)).buffer_unordered(WRITERS);
        let moved = moved.fold(Ok(()), |all, done| std::future::ready(all.and(done.map(|_| ())))).await;
        let wanted = self.wanted_probes(probing, now);
        let taken = stream::iter(wanted).map(|(lane, n)| self.take_probes(lane, n, now)).buffer_unordered(WRITERS);
        moved.and(taken.fold(Ok(()), |all, done| std::future::ready(all.and(done))).await)
    }
}

/// Chance for how long it waits: different for each gate and time.
pub(super) fn chance(gate: &Gate, now: Timestamp) -> f64 {
    chance_of(gate.lane, gate.generation, now)
}

/// Chance for the `n`-th wait of a lane.
pub(super) fn chance_of(lane: Lane, n: i64, now: Timestamp) -> f64 {
    let seed = now.as_millis().cast_unsigned() ^ n.cast_unsigned();
    let mixed = xxhash_rust::xxh3::xxh3_64_with_seed(&lane.0.to_le_bytes(), seed);
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

    impl LaneGate {
        fn fail(&self, now: Timestamp) -> Option<usize> {
            self.samples.record(now, Sample { failed: true, took: Duration::ZERO, mark: self.samples.mark() })
        }
    }

    /// Lanes with so many calls that failed.
    fn lanes(n: usize, failed: usize) -> HashMap<Lane, LaneGate> {
        let config = Arc::new(GateConfig::default());
        let lane = |i: usize| {
            let lane = Lane(i32::try_from(i).unwrap());
            let known = LaneGate::new(Gate::new(lane, "", NOW), config.clone(), NOW);
            (0..failed).for_each(|_| _ = known.fail(NOW));
            (lane, known)
        };
        (0..n).map(lane).collect()
    }

    #[test]
    fn lanes_that_fail_are_not_forgotten_among_many() {
        let (gates, mut all) = (Gates::default(), lanes(MOST_CALM, 0));
        let failing = Lane(7);
        all.extend(lanes(8, 19).remove_entry(&failing));
        gates.make_room(&mut all, NOW);
        assert_eq!(all.keys().collect::<Vec<_>>(), [&failing]);
        let known = &all[&failing];
        assert!(known.fail(NOW).is_some(), "the twentieth in a row");
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
