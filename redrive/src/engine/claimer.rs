//! Makes ready tasks ours, as many as there are free slots, and starts them. Turns the wheel.
//!
//! What the wheel holds is claimed a moment before it is due, while there are slots to spare, and waits in its slot: so a
//! task runs at its time however long the claim takes.
//!
//! Of a lane that has far more due than fits in here (*deep*, says the scanner) tasks are claimed where they lie, the
//! earliest first, in one statement; what is ready here goes before.
//!
//! Two claims may be under way: while the rows of one are read and started, the database works on the next. The second one
//! goes only if it is worth a statement of its own; a few tasks wait for the first and go together.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::clock::{Timestamp, pause};
use crate::id::{IdSet, SHARDS};
use crate::settle::{Outcome, spent};
use crate::store::{Claimed, Due, Slice};
use crate::task::{Lane, Task};

use super::limits::{Reserved, Slot};
use super::settler::log_unattempted;
use super::signals::Signal;
use super::{Shared, Waiting};

/// Most rows of a claim.
const MOST_ROWS: usize = 1_000;
/// How many tasks must wait for a second claim to go beside the first.
const WORTH_A_SECOND: usize = 200;
/// How long before its time a task is claimed.
const EARLY: Duration = Duration::from_millis(25);
/// How far ahead the wheel is looked into for the next wake-up.
const LOOK_AHEAD_MS: usize = 1_000;

pub(super) async fn run(shared: Arc<Shared>) {
    let mut claims: JoinSet<()> = JoinSet::new();
    loop {
        let due = shared.take_ready(claims.len());
        if !due.is_empty() {
            claims.spawn(shared.part("claimer", |shared| async move { shared.claim(&due).await }));
            continue;
        }
        if let Some(direct) = shared.take_deep(claims.len()) {
            claims.spawn(shared.part("claimer", |shared| async move { shared.claim_deep(&direct).await }));
            continue;
        }
        tokio::select! {
            Some(_) = claims.join_next(), if !claims.is_empty() => {}
            () = shared.wake.claimer.notified() => {}
            () = pause(shared.until_next_due()) => {}
            () = shared.stopping.cancelled() => break,
        }
    }
    while claims.join_next().await.is_some() {}
}

/// A claim of tasks that are not known yet.
struct Direct {
    lane: Lane,
    half: usize,
    slices: Vec<Slice>,
    /// Slots.
    reserved: usize,
    /// Tasks of a slice.
    limit: usize,
    /// The cycle of the lane's gate whose probes they are, if they are.
    probes: Option<i64>,
    /// The number of times that floors had been forgotten before it.
    forgotten: u64,
}

/// Of each shard, how many tasks a claim got, and when the last of them was due: the next one begins there.
struct Floors(HashMap<u8, (usize, Timestamp)>);

impl Floors {
    fn of(tasks: &[Task]) -> Self {
        let mut floors: HashMap<u8, (usize, Timestamp)> = HashMap::new();
        for task in tasks {
            let (n, last) = floors.entry(task.shard()).or_insert((0, task.due));
            (*n, *last) = (*n + 1, task.due.max(*last));
        }
        Self(floors)
    }
}

impl Shared {
    /// What is due and may be claimed now, beside claims that are under way. Each has a slot reserved.
    fn take_ready(&self, under_way: usize) -> Vec<Due> {
        // Outcomes that cannot be written hold up the claiming of more.
        if !self.may_start() || under_way > 1 || self.settler.len() > 4 * self.config.concurrency {
            return Vec::new();
        }
        let now = self.clock.now();
        let mut waiting = self.waiting();
        let mut limits = self.limits();
        let early = if limits.free() > limits.taken() { EARLY } else { Duration::ZERO };
        let due = waiting.wheel.take_due(now + early);
        due.into_iter().for_each(|d| _ = waiting.ready.push(d));
        if under_way > 0 && waiting.ready.len().min(limits.free()) < WORTH_A_SECOND {
            return Vec::new();
        }
        let most = limits.free().min(MOST_ROWS);
        // Two claims of one lane, one by list and one of what lies there, could want the same rows in different order.
        let Waiting { ready, direct, .. } = &mut *waiting;
        let mut probes = Vec::new();
        let mut taken = ready.take(most, |due| match direct.iter().any(|(lane, ..)| *lane == due.lane) {
            true => Reserved::NotThisLane,
            false => {
                let (probe, reserved) = (limits.probing(due.lane), limits.reserve(Slot::for_due(due), now));
                probes.extend(probe.filter(|_| reserved == Reserved::Yes).map(|cycle| (due.lane, due.id, cycle)));
                reserved
            }
        });
        drop(limits);
        if self.wants_more(&waiting) {
            self.wake.scanner.notify_one();
        }
        drop(waiting);
        // One that the scan saw before we claimed it is ours already.
        taken.retain(|due| {
            let fresh = self.running().expect(due.id, due.version + 1);
            if !fresh {
                self.release(Slot::for_due(due));
            }
            fresh
        });
        for (lane, id, cycle) in probes {
            match taken.iter().any(|due| due.id == id) {
                true => self.gates.expect_probe(id, cycle),
                false => self.gates.give_back(lane, cycle),
            }
        }
        taken
    }

    /// A claim in a lane that has more than was scanned: of half its shards, so that two of them do not meet.
    fn take_deep(&self, under_way: usize) -> Option<Direct> {
        if !self.may_start() || under_way > 1 || self.settler.len() > 4 * self.config.concurrency {
            return None;
        }
        let mut waiting = self.waiting();
        if under_way > waiting.direct.len() {
            return None; // one by list
        }
        let mut lanes: Vec<Lane> = waiting.deep.iter().copied().collect();
        lanes.sort_unstable();
        let first = waiting.turn / 2 % lanes.len().max(1);
        lanes.rotate_left(first);
        let least = if under_way > 0 { WORTH_A_SECOND } else { 1 };
        let (lane, (reserved, probes)) = lanes
            .into_iter()
            .filter(|lane| waiting.ready.lane_len(*lane) == 0 && self.has_another_half(&waiting, *lane))
            .map(|lane| (lane, self.reserve_many(Slot { lane, business: 0 }, least)))
            .find(|(_, (reserved, _))| *reserved > 0)?;
        let owned = self.owned_in(lane);
        let ours = (0..SHARDS).filter(|shard| owned & (1 << shard) != 0);
        waiting.turn += 1;
        let half = match waiting.direct.iter().find(|(other, ..)| *other == lane) {
            Some((_, half, _)) => 1 - half,
            None if owned.count_ones() == 1 => 0,
            None => waiting.turn % 2,
        };
        let ours = ours.enumerate().filter(|(i, _)| i % 2 == half);
        let mut slices: Vec<Slice> = ours.map(|(_, shard)| waiting.slice(lane, shard)).collect();
        // With few slots not all shards have their turn; the next time others have.
        let first = waiting.turn % slices.len().max(1);
        slices.rotate_left(first);
        slices.truncate(reserved);
        waiting.direct.push((lane, half, self.clock.now()));
        let (limit, forgotten) = (reserved / slices.len().max(1), waiting.forgotten);
        Some(Direct { lane, half, limit, slices, reserved, probes, forgotten })
    }

    /// Tells if a claim can go beside those that are under way in this lane: a single shard has no halves.
    fn has_another_half(&self, waiting: &Waiting, lane: Lane) -> bool {
        self.owned_in(lane).count_ones() > 1 || waiting.direct.iter().all(|(other, ..)| *other != lane)
    }

    /// As many slots as there are, up to the size of a claim; none if they are fewer than `least`. And of which cycle they are probes.
    fn reserve_many(&self, slot: Slot, least: usize) -> (usize, Option<i64>) {
        let (mut limits, now) = (self.limits(), self.clock.now());
        let (wanted, probes) = (limits.free().min(MOST_ROWS), limits.probing(slot.lane));
        if wanted < least {
            return (0, None);
        }
        ((0..wanted).take_while(|_| limits.reserve(slot, now) == Reserved::Yes).count(), probes)
    }

    async fn claim_deep(self: &Arc<Self>, direct: &Direct) {
        let (now, me) = (self.clock.now(), self.me.number());
        let claimed = self.store.claim_due(&direct.slices, me, now, direct.limit as u32).await;
        let claimed = claimed.unwrap_or_else(|e| {
            tracing::warn!(error = %e, "claiming failed; the scan will find these tasks again");
            Claimed { is_partial: true, ..Claimed::default() }
        });
        self.tell_claimed(&claimed);
        let (got, floors) = (claimed.tasks.len(), Floors::of(&claimed.tasks));
        let slot = Slot { lane: direct.lane, business: 0 };
        if let Some(cycle) = direct.probes {
            claimed.tasks.iter().take(direct.reserved).for_each(|task| self.gates.expect_probe(task.id, cycle));
        }
        for (i, task) in claimed.tasks.into_iter().enumerate() {
            // A claim that was repeated because its answer was lost may have got more than was asked for.
            if i < direct.reserved || self.reserve(slot) {
                self.start_reserved(task);
            } else {
                self.settler.push(Arc::new(task), Outcome::GivenBack.into());
            }
        }
        self.end_deep(direct, &floors);
        for _ in got..direct.reserved {
            self.release(slot);
            direct.probes.into_iter().for_each(|cycle| self.gates.give_back(direct.lane, cycle));
        }
    }

    /// The claim is over, and what it got is in `running`. When all slices had less than was asked for, the lane is deep no
    /// more.
    fn end_deep(&self, direct: &Direct, floors: &Floors) {
        let mut waiting = self.waiting();
        let this = |(lane, half, _): &(Lane, usize, Timestamp)| (*lane, *half) == (direct.lane, direct.half);
        if let Some(i) = waiting.direct.iter().position(this) {
            waiting.direct.swap_remove(i);
        }
        // Tasks may have been put back before its floors since it began.
        let is_current = waiting.forgotten == direct.forgotten;
        for (shard, (_, last)) in floors.0.iter().filter(|_| is_current) {
            let floor = waiting.floors.entry((direct.lane, *shard)).or_insert(*last);
            *floor = (*floor).max(*last);
        }
        if !floors.0.values().any(|(n, _)| *n >= direct.limit) {
            waiting.deep.remove(&direct.lane);
            self.wake.scanner.notify_one();
        }
    }

    fn tell_claimed(&self, claimed: &Claimed) {
        if claimed.is_partial {
            self.doubts.answer_was_lost();
        }
        metrics::histogram!("redrive_claim_batch").record(claimed.tasks.len() as f64);
        claimed.tasks.iter().for_each(|task| self.signals.tell(Signal::Claimed, task));
        self.tell_spent(&claimed.spent);
    }

    /// What ran out of time while it waited.
    pub(super) fn tell_spent(&self, tasks: &[Task]) {
        for task in tasks {
            spent(task, self.clock.now()).iter().for_each(|reason| log_unattempted(task, *reason));
            self.signals.tell(Signal::Dead, task);
        }
        self.signals.tally.add(tasks.iter().map(|_| Signal::Dead));
    }

    /// How few ready tasks of a lane make the scanner look for more, while there are more.
    pub(super) fn low_water(&self) -> usize {
        self.config.concurrency.min(MOST_ROWS) * 2
    }

    /// How many ready tasks of a lane are kept in memory that nobody scanned for.
    pub(super) fn most_ready(&self) -> usize {
        self.low_water() * 8
    }

    /// Whether a lane of which there is more in the database has little here.
    pub(super) fn wants_more(&self, waiting: &Waiting) -> bool {
        let seen = waiting.more.iter().filter(|lane| !waiting.deep.contains(lane));
        seen.into_iter().any(|lane| waiting.ready.lane_len(*lane) < self.low_water())
    }

    /// Until something comes due, or a method that has reached its rate may go on.
    fn until_next_due(&self) -> Duration {
        let waiting = self.waiting();
        let limits = self.limits();
        // Without a free slot a token is of no use, and whoever gives a slot back wakes us.
        let has_room = limits.free() > 0 && self.may_start();
        let tokens = waiting.ready.lanes().filter(|_| has_room).filter_map(|lane| limits.next_token(lane));
        let due = waiting.wheel.next_due(LOOK_AHEAD_MS).map(|at| at - EARLY);
        let longest = Duration::from_millis(LOOK_AHEAD_MS as u64);
        let next = tokens.chain(due).min();
        next.map_or(longest, |at| at.since(self.clock.now())).min(longest).max(Duration::from_millis(1))
    }

    async fn claim(self: &Arc<Self>, due: &[Due]) {
        let now = self.clock.now();
        let claimed = self.store.claim_until(due, self.me.number(), now, now + EARLY).await;
        let claimed = claimed.unwrap_or_else(|e| {
            tracing::warn!(error = %e, "claiming failed; the scan will find these tasks again");
            Claimed { is_partial: true, ..Claimed::default() }
        });
        self.tell_claimed(&claimed);
        let ours: IdSet = claimed.tasks.iter().map(|task| task.id).collect();
        claimed.tasks.into_iter().for_each(|task| self.start_reserved(task));
        // Someone else took them, or their time was up: their slots are free again.
        for d in due.iter().filter(|d| !ours.contains(&d.id)) {
            self.running().forget(d.id, d.version + 1);
            self.gates.return_probe(d.lane, d.id);
            self.release(Slot::for_due(d));
        }
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use std::sync::PoisonError;
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::engine::Engine;
    use crate::{Context, Store, Verdict};

    async fn by_hand() -> Engine {
        let store = Store::open("sqlite::memory:").await.unwrap();
        let handler = |_: Context<'static>, _: u64| async { Ok::<(), Verdict>(()) };
        Engine::builder(store).register("m", handler).by_hand().start().await.unwrap()
    }

    /// A lane of which this node has one shard has no second half.
    #[tokio::test]
    async fn a_deep_lane_of_one_shard_is_claimed_again_and_again() {
        let (engine, lane) = (by_hand().await, Lane::of("m"));
        let shared = &engine.0;
        shared.gate.store(true, Ordering::Release); // no service moves before the next await
        shared.owned.write().unwrap_or_else(PoisonError::into_inner).insert(lane, 1 << 5);
        shared.waiting().deep.insert(lane);
        for _ in 0..4 {
            let direct = shared.take_deep(0).expect("there are slots");
            assert_eq!(direct.slices.iter().map(|slice| slice.shard).collect::<Vec<_>>(), [5]);
            assert!(shared.take_deep(1).is_none(), "there is nothing to claim beside it");
            let full = Floors([(5, (direct.limit, Timestamp::EPOCH))].into());
            shared.end_deep(&direct, &full);
            (0..direct.reserved).for_each(|_| shared.release(Slot { lane, business: 0 }));
            assert!(shared.waiting().deep.contains(&lane));
        }
        engine.stop().await;
    }
}
