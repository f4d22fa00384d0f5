//! Finds tasks that are running and that nobody will end, and puts them back.
//!
//! *State.* There are two kinds of them. An *orphan* is held by a node that is not alive; whoever owns its shard takes it back. A
//! *stray* is held by this node without its knowing, since the answer to the claim or insert was lost for good; it is given back.
//! [`Doubts`] says whether there may be any: since nodes came or went, or since an answer was lost.
//!
//! *Invariants.* Both lie among what is due, since what runs was due when it was claimed. A pass reads all that is due in our lanes,
//! by whole lanes, and changes a row by a compare-and-set only. A doubt ends with a pass that found nothing and began so late that
//! whatever was on its way has arrived: a statement ends within a minute, and a stray counts after two leases. Without doubts
//! nothing is read, however many lanes there are, except by a pass now and then for what this file does not foresee.
//!
//! *Failure.* A pass that fails is begun again at the next sweep; what it had done is done. What is put back lies before the floors of
//! the scans, so they are taken back.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::clock::{Stopwatch, Timestamp, pause};
use crate::error::Result;
use crate::settle::{Outcome, To};
use crate::store::{LaneShards, Slice};
use crate::task::Task;

use super::settler::log_unattempted;
use super::signals::Signal;
use super::{Shared, lock};

/// Most tasks that one statement takes back, and that one gives back.
const MOST: u32 = 1_000;
/// How many lanes a statement looks through, if there are many. Few lanes may be deep, so each has a statement of its own.
const LANES: usize = 256;
const FEW_LANES: usize = 32;
/// How long after a doubt arose the last pass for it begins, at the least.
const LATE: Duration = Duration::from_secs(90);
/// After so many sweeps without a pass there is one without any doubt.
const SWEEPS: u32 = 30;
/// A pass takes at most one part in so many of a node's time.
const SHARE: u32 = 10;
/// How many lanes are counted at once for what other nodes run of a business id.
const COUNTED: usize = 256;

/// Whether tasks may be running that nobody will end.
#[derive(Debug)]
pub(super) struct Doubts(Mutex<Since>);

#[derive(Clone, Copy, Debug)]
struct Since {
    /// Nodes came or went.
    nodes: Option<Stopwatch>,
    /// An answer was lost.
    answer: Option<Stopwatch>,
}

impl Default for Doubts {
    /// Nobody knows what happened before this node was there.
    fn default() -> Self {
        Self(Mutex::new(Since { nodes: Some(Stopwatch::start()), answer: Some(Stopwatch::start()) }))
    }
}

impl Doubts {
    /// Nodes came or went: they may have left orphans.
    pub(super) fn nodes_changed(&self) {
        lock(&self.0).nodes = Some(Stopwatch::start());
    }

    /// The answer to a claim or an insert was lost: it may have left strays.
    pub(super) fn answer_was_lost(&self) {
        lock(&self.0).answer = Some(Stopwatch::start());
    }

    fn look(&self) -> Since {
        *lock(&self.0)
    }

    /// A pass that began after `begun` found neither; `late` is when doubts end.
    fn ended(&self, found: Found, age: impl Fn(Stopwatch) -> Duration, late: Duration) {
        let mut since = lock(&self.0);
        let is_over = |doubt: Option<Stopwatch>| doubt.is_some_and(|doubt| age(doubt) >= late);
        if found.orphans == 0 && is_over(since.nodes) {
            since.nodes = None;
        }
        if found.strays == 0 && is_over(since.answer) {
            since.answer = None;
        }
    }
}

/// How many tasks a pass found.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    orphans: usize,
    strays: usize,
}

#[derive(Debug, Default)]
struct Sweeper {
    /// Sweeps since the last pass.
    idle: u32,
    /// The last pass: when it ended, and how long it took.
    last: Option<(Stopwatch, Duration)>,
    /// The lane from which the next count of what others run begins.
    counted: usize,
}

pub(super) async fn run(shared: Arc<Shared>) {
    let mut sweeper = Sweeper::default();
    loop {
        if shared.me.may_work() {
            sweeper.run_once(&shared).await;
        }
        tokio::select! {
            () = pause(shared.settings().engine.sweep_interval) => {}
            () = shared.stopping.cancelled() => return,
        }
    }
}

impl Sweeper {
    async fn run_once(&mut self, shared: &Shared) {
        let begun = Stopwatch::start();
        if self.is_time_for_a_pass(shared) {
            self.idle = 0;
            match shared.look_through(begun).await {
                Ok(found) if found.orphans + found.strays > 0 => shared.look_again(),
                Ok(_) => {}
                Err(e) => {
                    tracing::warn!(error = %e, "looking for tasks that nobody ends failed; trying again at the next sweep");
                }
            }
            self.last = Some((Stopwatch::start(), begun.elapsed()));
        } else {
            self.idle += 1;
        }
        if let Err(e) = self.count_elsewhere(shared).await {
            tracing::warn!(error = %e, "what other nodes run of our business ids could not be counted");
        }
        metrics::histogram!("redrive_sweep_seconds").record(begun.elapsed().as_secs_f64());
    }

    fn is_time_for_a_pass(&self, shared: &Shared) -> bool {
        let since = shared.doubts.look();
        let is_rested = self.last.is_none_or(|(ended, took)| ended.elapsed() >= took * SHARE);
        is_rested && (since.nodes.is_some() || since.answer.is_some() || self.idle >= SWEEPS)
    }

    /// What others still run in shards that are ours: it counts for the limits of business ids. Of many lanes, some at each sweep.
    async fn count_elsewhere(&mut self, shared: &Shared) -> Result<()> {
        let mut lanes = shared.limits().lanes_by_business();
        if lanes.is_empty() {
            return Ok(());
        }
        lanes.sort_unstable();
        let first = self.counted % lanes.len();
        lanes.rotate_left(first);
        lanes.truncate(COUNTED);
        self.counted = first + lanes.len();
        let owned: Vec<LaneShards> = lanes.iter().map(|lane| (*lane, shared.owned_in(*lane))).collect();
        let slices: Vec<Slice> = owned.iter().flat_map(|lane| super::scanner::slices_of(*lane)).collect();
        let running = shared.store.held_by_others(&slices, shared.me.number(), MOST).await?;
        shared.limits().set_elsewhere(&lanes, &running);
        shared.waiting().ready.unpark_all();
        shared.wake.claimer.notify_one();
        Ok(())
    }
}

impl Shared {
    /// Looks through all that is due in our lanes.
    async fn look_through(&self, begun: Stopwatch) -> Result<Found> {
        let (now, since) = (self.clock.now(), self.doubts.look());
        let all: Vec<LaneShards> = self.lanes.all().into_iter().map(|lane| (lane, u64::MAX)).collect();
        let owned = self.owned_lanes();
        let mut found = Found::default();
        for lanes in some(&owned) {
            found.orphans += self.rescue(lanes, now).await?;
        }
        // A shard may have gone to another node since the claim, and another node leaves our tasks alone: so all shards.
        if since.answer.is_some() || since.nodes.is_none() {
            for lanes in some(&all) {
                found.strays += self.give_back_strays(lanes, now).await?;
            }
        }
        let late = LATE.max(self.config.lease * 3);
        let age = |doubt: Stopwatch| doubt.elapsed().saturating_sub(begun.elapsed());
        self.doubts.ended(found, age, late);
        Ok(found)
    }

    /// Takes back what dead nodes held. Returns how many tasks there were, those that could not be taken back included.
    async fn rescue(&self, lanes: &[LaneShards], now: Timestamp) -> Result<usize> {
        let rescued = self.store.rescue(lanes, now, MOST).await?;
        for (task, to) in &rescued.tasks {
            let signal = match to {
                To::Dead(reason) | To::Dropped(reason) => {
                    log_unattempted(task, *reason); // it has crashed too often
                    Signal::Dead
                }
                _ => Signal::Rescued,
            };
            self.signals.tell(signal, task);
        }
        if !rescued.tasks.is_empty() {
            tracing::warn!(tasks = rescued.tasks.len(), "rescued tasks of nodes that died");
        }
        Ok(rescued.tasks.len() + rescued.left)
    }

    /// Gives back rows that bear our number and are in none of our lists. Returns how many there were.
    async fn give_back_strays(&self, lanes: &[LaneShards], now: Timestamp) -> Result<usize> {
        // What a claim that is under way has got is not known here yet.
        let under_way = self.waiting().direct.iter().map(|(_, _, begun)| *begun).min();
        let since = (now - self.config.lease * 2).min(under_way.unwrap_or(now));
        let held = self.store.held_by(lanes, self.me.number(), since, now, MOST).await?;
        let strays: Vec<Task> = held.into_iter().filter(|task| !self.running().holds(task.id)).collect();
        let n = strays.len();
        for task in strays {
            tracing::warn!(task = %task.id, "a task was ours without our knowing; giving it back");
            self.settler.push(Arc::new(task), Outcome::GivenBack.into());
        }
        Ok(n)
    }

    /// Has the scans begin at the beginning: something was put back there.
    fn look_again(&self) {
        self.forget_floors();
        self.wake.scanner.notify_one();
    }
}

/// Lanes in portions for one statement.
fn some(lanes: &[LaneShards]) -> impl Iterator<Item = &[LaneShards]> {
    lanes.chunks(if lanes.len() <= FEW_LANES { 1 } else { LANES })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A doubt ends with a pass that found nothing and began late enough.
    #[test]
    fn a_doubt_ends_with_a_late_pass_that_finds_nothing() {
        let (none, one) = (Found::default(), Found { orphans: 1, strays: 0 });
        let (early, late) = (Duration::from_secs(5), Duration::from_secs(90));
        let doubts = Doubts::default();
        let is_left = |doubts: &Doubts| (doubts.look().nodes.is_some(), doubts.look().answer.is_some());
        doubts.ended(none, |_| early, late);
        assert_eq!(is_left(&doubts), (true, true), "something may still be on its way");
        doubts.ended(one, |_| late, late);
        assert_eq!(is_left(&doubts), (true, false), "there may be more");
        doubts.ended(none, |_| late, late);
        assert_eq!(is_left(&doubts), (false, false));
        doubts.answer_was_lost();
        assert_eq!(is_left(&doubts), (false, true));
    }
}
