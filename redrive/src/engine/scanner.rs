//! Looks through the database for tasks that are due, or soon will be.
//!
//! *State.* For every slice (lane and shard) of ours a floor: reading begins there and passes over index entries of rows
//! that are gone; and how far ahead the wheel knows it: after each scan that is at least two scan intervals, so a crowd of
//! timers is as punctual as a single one. A lane that has more due than a scan brings is *deep*: its tasks are claimed where they lie (see
//! [`claimer`](super::claimer)) until there are few, unless priorities or limits of business ids want them to be seen first.
//!
//! *Many lanes.* Each host of HTTP tasks is a lane. Where there are more than [`MANY_LANES`], lanes are read as a whole, a few hundred in a
//! statement; one that has much is read by slices from then on, until the floors are forgotten. What is ready here is bounded: when it is full, only lanes of which nothing
//! is ready are read. The next scan begins where this one stopped, and rests as long as this one took.
//!
//! *Failure.* A caller's transaction may commit an old row late, behind the floor, so every `sweep_interval` the floors are forgotten and
//! everything is looked through from the beginning. What dead nodes held is found by [`sweep`](super::sweep).
//!
//! The scan of what is due is the guarantee; the wheel and the hand-over are optimisations.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Stopwatch, Timestamp, pause};
use crate::error::Result;
use crate::id::SHARDS;
use crate::store::{Dialect, Due, LaneShards, Slice};
use crate::task::Lane;

use super::{MOST_READY, Shared, Waiting};

/// Rows of one slice in one scan, at the most and at the least.
const SLICE_ROWS: std::ops::RangeInclusive<usize> = 16..=1_000;
/// How many due tasks one scan brings, about.
const SCAN_ROWS: usize = 8_000;
/// Rows may be written with a `now` that is a little behind ours.
const SLACK: Duration = Duration::from_secs(2);

/// With more lanes than this, a lane is read as a whole first.
const MANY_LANES: usize = 64;
/// Number of lanes that are read by one statement then, and of those that are read by their slices.
const LANES: usize = 256;
const LANES_BY_SLICES: usize = 64;
/// A lane that has so many tasks due, or due soon, is read by its slices.
const LANE_ROWS: usize = 128;

/// So many tasks of one business id are enough to have in memory; while they wait, scans pass over the id.
const CROWD: usize = 64;
/// How many business ids of a lane are passed over at the most.
const MOST_CROWDS: usize = 32;

/// Others are not woken more often: whoever has just looked need not look again at once.
const BETWEEN_WAKES: Duration = Duration::from_millis(5);

/// How long after a failure to listen for wake-ups it is tried again, at the most.
const LISTEN_AGAIN: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct Scanner {
    /// Business ids that are passed over: by lane and hash, their names.
    crowds: HashMap<(Lane, u32), String>,
    /// Of many lanes, the one with which the next scan begins.
    next: Option<Lane>,
    /// True if the last scan was of many lanes.
    has_many: bool,
    /// Of many lanes, those that had too much to be read as a whole since the floors were forgotten.
    large: HashSet<Lane>,
}

pub(super) async fn run(shared: Arc<Shared>) {
    let mut scanner = Scanner::default();
    let mut swept: Option<Stopwatch> = None;
    loop {
        let settings = shared.settings(); // they may change while we run
        let mut next = settings.engine.scan_interval;
        if shared.me.may_work() {
            if swept.is_none_or(|s| s.elapsed() >= settings.engine.sweep_interval) {
                shared.forget_floors();
                scanner.large.clear();
                swept = Some(Stopwatch::start());
            }
            let begun = Stopwatch::start();
            let found = scanner.run_once(&shared, shared.clock.now()).await;
            if scanner.has_many {
                // However often it is woken, it takes half of the time at the most.
                tokio::select! {
                    () = pause(begun.elapsed()) => {}
                    () = shared.stopping.cancelled() => return,
                }
            }
            match found {
                // Only what is new counts: a slice may begin with tasks that wait here for their limits.
                Ok(news) if news && shared.wants_more(&shared.waiting()) => continue,
                Ok(_) => {}
                Err(e) => tracing::warn!(error = %e, "the scan for due tasks failed"),
            }
        } else {
            next = Duration::from_millis(50);
        }
        tokio::select! {
            () = shared.wake.scanner.notified() => {}
            () = pause(next) => {}
            () = shared.stopping.cancelled() => return,
        }
        if shared.stopping.is_cancelled() {
            return;
        }
    }
}

/// Wakes the other nodes, for all that was written since the last time. Beside the flushes, for it is a commit of its own.
pub(super) async fn run_waker(shared: Arc<Shared>) {
    loop {
        tokio::select! {
            () = shared.wake.others.notified() => {}
            () = shared.ended() => return,
        }
        if let Err(e) = shared.store.wake_others(shared.me.number()).await {
            tracing::debug!(error = %e, "other nodes could not be woken; their scans will find what is due");
        }
        pause(BETWEEN_WAKES).await;
    }
}

/// Hears other processes' wake-ups, where the database has them, and lets the scanner look.
pub(super) async fn run_listener(shared: Arc<Shared>) {
    while !shared.stopping.is_cancelled() {
        let listening = async {
            let Some(mut listener) = shared.store.listen().await? else {
                shared.stopping.cancelled().await;
                return Ok(());
            };
            loop {
                shared.wake.scanner.notify_one(); // at first for what nobody heard: it was said before we listened
                listener.next(|| shared.me.number()).await?;
            }
        };
        let heard: Result<()> = tokio::select! {
            () = shared.stopping.cancelled() => return,
            heard = listening => heard,
        };
        if let Err(e) = heard {
            tracing::debug!(error = %e, "not listening for wake-ups; trying again");
            tokio::select! {
                () = shared.stopping.cancelled() => return,
                () = pause(shared.settings().engine.scan_interval.min(LISTEN_AGAIN)) => {}
            }
        }
    }
}

impl Scanner {
    /// One look. `true`: it brought something new.
    async fn run_once(&mut self, shared: &Shared, now: Timestamp) -> Result<bool> {
        shared.find_parts().await?;
        let lanes = self.hungry(shared);
        if lanes.is_empty() {
            return Ok(false);
        }
        let until = {
            let waiting = shared.waiting();
            if waiting.wheel.has_room() { waiting.wheel.horizon() } else { now }
        };
        self.see_crowds(shared).await?;
        if !self.has_many {
            return self.read_slices(shared, &lanes, until, now).await;
        }
        // A statement passes over the crowds of one lane only.
        let crowded: HashSet<Lane> = self.crowds.keys().map(|(lane, _)| *lane).collect();
        let is_large = |lane: &Lane| crowded.contains(lane) || self.large.contains(lane);
        let (mut large, small): (Vec<_>, Vec<_>) = lanes.into_iter().partition(|(lane, _)| is_large(lane));
        let (mut news, grown) = self.read_lanes(shared, small, until, now).await?;
        large.extend(grown);
        for lanes in large.chunks(LANES_BY_SLICES) {
            news |= self.read_slices(shared, lanes, until, now).await?;
            if shared.waiting().is_full() {
                self.next = lanes.last().map(|(lane, _)| *lane);
                break;
            }
        }
        Ok(news)
    }

    /// Reads whole lanes. Returns whether that brought something new, and the lanes that have more than such a look brings.
    async fn read_lanes(
        &mut self,
        shared: &Shared,
        mut lanes: Vec<LaneShards>,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<(bool, Vec<LaneShards>)> {
        let first = self.next.take().map_or(0, |next| lanes.partition_point(|(lane, _)| *lane <= next));
        let first = first.min(lanes.len());
        lanes.rotate_left(first);
        let (mut news, mut large) = (false, Vec::new());
        for lanes in lanes.chunks(LANES) {
            let lanes = shared.waiting().without_ready_if_full(lanes);
            let found = shared.store.scan_lanes(&lanes, until, LANE_ROWS as u32).await?;
            metrics::histogram!("redrive_scan_rows").record(found.len() as f64);
            news |= shared.take_in_lanes(&lanes, &found, now);
            let counts = count_by_lane(&found);
            large.extend(lanes.into_iter().filter(|(lane, _)| counts.get(lane).is_some_and(|n| *n >= LANE_ROWS)));
        }
        self.large.extend(large.iter().map(|(lane, _)| *lane));
        Ok((news, large))
    }

    /// Reads lanes by their slices.
    async fn read_slices(
        &mut self,
        shared: &Shared,
        lanes: &[LaneShards],
        until: Timestamp,
        now: Timestamp,
    ) -> Result<bool> {
        let slices = shared.waiting().slices(lanes);
        let limit = Self::limit(slices.len());
        let crowded = |slice: &Slice| self.crowds.keys().any(|(lane, _)| *lane == slice.lane);
        let (crowded, free): (Vec<Slice>, Vec<Slice>) = slices.into_iter().partition(crowded);
        let mut news = false;
        for slices in crowded.chunk_by(|a, b| a.lane == b.lane).chain([&*free]).filter(|slices| !slices.is_empty()) {
            let without = self.crowds_of(slices);
            let found = shared.store.scan_without(slices, &without, until, limit as u32).await?;
            metrics::histogram!("redrive_scan_rows").record(found.len() as f64);
            news |= self.take_in(shared, slices, &found, limit, now);
        }
        self.read_ahead(shared, lanes, now).await?;
        Ok(news)
    }

    /// Reads on in slices that have more due soon than a scan brings.
    async fn read_ahead(&self, shared: &Shared, lanes: &[LaneShards], now: Timestamp) -> Result<()> {
        let soon = now + shared.settings().engine.scan_interval * 2;
        loop {
            let (slices, horizon) = {
                let waiting = shared.waiting();
                let horizon = waiting.wheel.horizon();
                let until = |s: &Slice| waiting.known.get(&(s.lane, s.shard)).copied().unwrap_or(horizon);
                let is_hungry = |(lane, _): &&LaneShards| self.is_hungry(shared, &waiting, *lane);
                let hungry: Vec<LaneShards> = lanes.iter().filter(is_hungry).copied().collect();
                let ahead = waiting.slices(&hungry).into_iter().map(|s| Slice { from: until(&s), ..s });
                let behind = ahead.filter(|s| s.from > now && s.from < soon.min(horizon));
                (if waiting.wheel.has_room() { behind.collect() } else { Vec::new() }, horizon)
            };
            if slices.is_empty() {
                return Ok(());
            }
            let limit = Self::limit(slices.len());
            let found = shared.store.scan(&slices, horizon, limit as u32).await?;
            let mut waiting = shared.waiting();
            found.iter().for_each(|due| _ = waiting.wheel.insert(*due));
            waiting.know(&slices, &found, limit);
        }
    }

    /// Returns the number of rows that a scan brings of each of so many slices.
    fn limit(slices: usize) -> usize {
        (SCAN_ROWS / slices.max(1)).clamp(*SLICE_ROWS.start(), *SLICE_ROWS.end())
    }

    /// Which business ids have more tasks waiting in memory than they can run for a while. Scans pass over them, and the
    /// floor with it; when there is room for more of them, the floor goes back.
    async fn see_crowds(&mut self, shared: &Shared) -> Result<()> {
        // The more slices, the fewer rows a scan brings of each: one id must not fill them.
        let slices = shared.owned_lanes().iter().map(|(_, shards)| shards.count_ones() as usize).sum();
        let crowd = CROWD.min(Self::limit(slices) / 4);
        let crowds = shared.waiting().ready.crowds(crowd);
        let still: HashSet<(Lane, u32)> = crowds.iter().map(|due| (due.lane, due.business)).collect();
        let gone: Vec<(Lane, u32)> = self.crowds.keys().filter(|crowd| !still.contains(crowd)).copied().collect();
        for crowd in gone {
            self.crowds.remove(&crowd);
            shared.waiting().floors.retain(|(lane, _), _| *lane != crowd.0);
        }
        for due in self.newcomers(crowds) {
            if let Some(business) = shared.store.get(due.id).await?.and_then(|task| task.business) {
                self.crowds.insert((due.lane, due.business), business.id);
            }
        }
        Ok(())
    }

    /// Of these, whom there is room to pass over, too: a lane's list is part of the statements that read it.
    fn newcomers(&self, mut crowds: Vec<Due>) -> Vec<Due> {
        let mut lanes: HashMap<Lane, usize> = HashMap::new();
        self.crowds.keys().for_each(|(lane, _)| *lanes.entry(*lane).or_default() += 1);
        crowds.retain(|due| {
            let of_lane = lanes.entry(due.lane).or_default();
            let is_one = *of_lane < MOST_CROWDS && !self.crowds.contains_key(&(due.lane, due.business));
            *of_lane += usize::from(is_one);
            is_one
        });
        crowds
    }

    fn crowds_of(&self, slices: &[Slice]) -> Vec<String> {
        let of = |lane| slices.first().is_some_and(|slice| slice.lane == lane);
        self.crowds.iter().filter(|((lane, _), _)| of(*lane)).map(|(_, name)| name.clone()).collect()
    }

    /// All that is ours, less the lanes that have enough ready, are read without us, or may not run now. In the order of the lanes.
    fn hungry(&mut self, shared: &Shared) -> Vec<LaneShards> {
        let mut owned = shared.owned_lanes();
        self.has_many = owned.len() > MANY_LANES;
        let waiting = shared.waiting();
        let limits = shared.limits();
        owned.retain(|(lane, _)| self.is_hungry(shared, &waiting, *lane) && !limits.is_held(*lane));
        owned.sort_unstable();
        owned
    }

    /// Tells if so little of a lane is ready that it is read.
    fn is_hungry(&self, shared: &Shared, waiting: &Waiting, lane: Lane) -> bool {
        let enough = if self.has_many { *SLICE_ROWS.start() } else { shared.low_water() };
        waiting.ready.lane_len(lane) < enough && !waiting.deep.contains(&lane)
    }

    fn take_in(&mut self, shared: &Shared, slices: &[Slice], found: &[Due], limit: usize, now: Timestamp) -> bool {
        let mut counts: HashMap<(Lane, u8), (usize, Timestamp)> = HashMap::new();
        let mut waiting = shared.waiting();
        let mut news = false;
        for due in found {
            let seen = counts.entry((due.lane, due.id.shard())).or_insert((0, due.due));
            seen.0 += 1;
            news |= waiting.take_in(*due, now);
        }
        slices.iter().for_each(|slice| _ = waiting.more.remove(&slice.lane));
        for slice in slices {
            let (n, first) = counts.get(&(slice.lane, slice.shard)).copied().unwrap_or((0, now));
            waiting.floors.insert((slice.lane, slice.shard), first.min(now - SLACK));
            if n >= limit && first <= now {
                waiting.more.insert(slice.lane);
            }
        }
        waiting.know(slices, found, limit);
        let ranked = |lane: Lane| found.iter().any(|due| due.lane == lane && due.priority != 0);
        let deep = waiting.more.iter().copied().filter(|lane| !ranked(*lane) && shared.may_be_deep(*lane));
        let deep: Vec<Lane> = deep.collect();
        waiting.deep.extend(deep);
        drop(waiting);
        shared.wake.claimer.notify_one();
        news
    }
}

/// The slices of a lane, from the beginning.
pub(super) fn slices_of((lane, shards): LaneShards) -> impl Iterator<Item = Slice> {
    let ours = (0..SHARDS).filter(move |shard| shards & (1 << shard) != 0);
    ours.map(move |shard| Slice { lane, shard, from: Timestamp::EPOCH })
}

fn count_by_lane(found: &[Due]) -> HashMap<Lane, usize> {
    let mut counts: HashMap<Lane, usize> = HashMap::new();
    found.iter().for_each(|due| *counts.entry(due.lane).or_default() += 1);
    counts
}

impl Shared {
    /// Has all be looked at from its beginning, by claims that are under way, too; and forgets lanes that have no tasks any more.
    pub(super) fn forget_floors(&self) {
        let lanes: HashSet<Lane> = self.lanes.all().into_iter().collect();
        let mut waiting = self.waiting();
        waiting.floors.clear();
        waiting.forgotten += 1;
        waiting.known.retain(|(lane, _), _| lanes.contains(lane));
    }

    /// Takes up what was found in whole lanes. `true`: some of it is new.
    fn take_in_lanes(&self, lanes: &[LaneShards], found: &[Due], now: Timestamp) -> bool {
        let mut waiting = self.waiting();
        let mut news = false;
        for due in found {
            news |= waiting.take_in(*due, now);
        }
        lanes.iter().for_each(|(lane, _)| _ = waiting.more.remove(lane));
        drop(waiting);
        self.wake.claimer.notify_one();
        news
    }

    /// Whether tasks of this lane may be claimed without being seen first.
    fn may_be_deep(&self, lane: Lane) -> bool {
        self.store.dialect() != Dialect::MySql && !self.limits().is_tight(lane)
    }
}

impl Waiting {
    /// Tells if as much is ready as is kept in memory.
    fn is_full(&self) -> bool {
        self.ready.known() >= MOST_READY
    }

    /// When it is full, only lanes of which nothing is ready.
    fn without_ready_if_full(&self, lanes: &[LaneShards]) -> Vec<LaneShards> {
        let is_full = self.is_full();
        lanes.iter().filter(|(lane, _)| !is_full || self.ready.lane_len(*lane) == 0).copied().collect()
    }

    /// Takes up a task that was found: it is ready, or soon will be. `true`: it is ready, and was not known.
    fn take_in(&mut self, due: Due, now: Timestamp) -> bool {
        if due.due <= now || self.wheel.has_passed(due.due) {
            return self.ready.push(due);
        }
        self.wheel.insert(due);
        false
    }

    /// The slices of lanes, each from its floor on.
    fn slices(&self, lanes: &[LaneShards]) -> Vec<Slice> {
        lanes.iter().flat_map(|lane| slices_of(*lane)).map(|slice| self.slice(slice.lane, slice.shard)).collect()
    }

    /// A slice from its floor on.
    pub(super) fn slice(&self, lane: Lane, shard: u8) -> Slice {
        let from = self.floors.get(&(lane, shard)).copied().unwrap_or(Timestamp::EPOCH);
        Slice { lane, shard, from }
    }

    /// Notes how far ahead these slices are known, now that they were read: to the end, or to the last row that came. A crowd
    /// in one millisecond that is more than a scan brings is left to the scan of what is due.
    fn know(&mut self, slices: &[Slice], found: &[Due], limit: usize) {
        let horizon = self.wheel.horizon();
        let mut read: HashMap<(Lane, u8), (usize, Timestamp)> = HashMap::new();
        for due in found {
            let (n, last) = read.entry((due.lane, due.id.shard())).or_insert((0, due.due));
            (*n, *last) = (*n + 1, due.due.max(*last));
        }
        for s in slices {
            let until = match read.get(&(s.lane, s.shard)) {
                Some((n, last)) if *n >= limit => (*last).max(s.from + Duration::from_millis(1)),
                _ => horizon,
            };
            self.known.insert((s.lane, s.shard), until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::TaskId;

    #[test]
    fn a_lane_has_so_many_crowds_passed_over_and_no_more_however_often_it_is_looked() {
        let due = |lane, business| Due {
            id: TaskId::from_i64(1),
            version: 0,
            due: Timestamp::EPOCH,
            priority: 0,
            lane: Lane(lane),
            business,
        };
        let mut scanner = Scanner::default();
        let mut look = |crowds: Vec<Due>| {
            let new = scanner.newcomers(crowds);
            scanner.crowds.extend(new.iter().map(|due| ((due.lane, due.business), due.business.to_string())));
            new.len()
        };
        assert_eq!(look((0..20).map(|n| due(1, n)).collect()), 20);
        let both = || (0..1_000).flat_map(|n| [due(1, n), due(2, n)]).collect();
        assert_eq!((look(both()), look(both())), (12 + 32, 0));
        assert_eq!(scanner.crowds_of(&[Slice { lane: Lane(1), shard: 0, from: Timestamp::EPOCH }]).len(), MOST_CROWDS);
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn what_is_known_of_a_host_is_forgotten_when_it_has_no_tasks() {
        let store = crate::Store::open("sqlite::memory:").await.unwrap();
        let handler = |_: crate::Context<'static>, _: u64| async { Ok::<(), crate::Verdict>(()) };
        let engine = crate::Engine::builder(store).register("m", handler).by_hand().start().await.unwrap();
        let (gone, method) = (Lane(-5), Lane::of("m"));
        for lane in [gone, method] {
            engine.0.waiting().known.insert((lane, 0), Timestamp::EPOCH);
        }
        engine.0.forget_floors();
        assert_eq!(engine.0.waiting().known.keys().copied().collect::<Vec<_>>(), [(method, 0)]);
        engine.stop().await;
    }
}
