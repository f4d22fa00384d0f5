//! Looks through the database for tasks that are due, or soon will be.
//!
//! *State.* For every slice (lane and shard) of ours a floor: reading begins there and passes over index entries of rows
//! that are gone; and how far ahead the wheel knows it: after each scan that is at least two scan intervals, so a crowd of
//! timers is as punctual as a single one. A lane that has more due than a scan brings is *deep*: its tasks are claimed where they lie (see
//! [`claimer`](super::claimer)) until there are few, unless priorities or limits of business ids want them to be seen first.
//!
//! *Failure.* A caller's transaction may commit an old row late, behind the floor, so every `sweep_interval` everything is
//! looked through from the beginning; that also rescues what dead nodes held.
//!
//! The scan of what is due is the guarantee; the wheel and the hand-over are optimisations.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::clock::{Stopwatch, Timestamp, pause};
use crate::error::Result;
use crate::id::SHARDS;
use crate::settle::To;
use crate::store::{Dialect, Due, Slice};
use crate::task::Lane;

use super::settler::log_unattempted;
use super::signals::Signal;
use super::{Shared, Waiting};

/// Rows of one slice in one scan, at the most and at the least.
const SLICE_ROWS: std::ops::RangeInclusive<usize> = 16..=1_000;
/// How many due tasks one scan brings, about.
const SCAN_ROWS: usize = 8_000;
/// Rows may be written with a `now` that is a little behind ours.
const SLACK: Duration = Duration::from_secs(2);

/// How many tasks of dead nodes a sweep takes back of each slice, at the most.
const RESCUED: u32 = 1_000;

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
}

pub(super) async fn run(shared: Arc<Shared>) {
    let mut scanner = Scanner::default();
    let mut swept: Option<Stopwatch> = None;
    loop {
        let settings = shared.settings(); // they may change while we run
        let mut next = settings.engine.scan_interval;
        if shared.me.may_work() {
            let sweeping = swept.is_none_or(|s| s.elapsed() >= settings.engine.sweep_interval);
            if sweeping {
                shared.waiting().sweep();
                swept = Some(Stopwatch::start());
                shared.sweep().await;
            }
            match scanner.run_once(&shared, shared.clock.now()).await {
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
        let slices = self.slices(shared, &shared.waiting());
        if slices.is_empty() {
            return Ok(false);
        }
        let limit = Self::limit(&slices);
        let until = {
            let waiting = shared.waiting();
            if waiting.wheel.has_room() { waiting.wheel.horizon() } else { now }
        };
        self.see_crowds(shared).await?;
        let crowded = |slice: &Slice| self.crowds.keys().any(|(lane, _)| *lane == slice.lane);
        let (crowded, free): (Vec<Slice>, Vec<Slice>) = slices.into_iter().partition(crowded);
        let mut news = false;
        for slices in crowded.chunk_by(|a, b| a.lane == b.lane).chain([&*free]).filter(|slices| !slices.is_empty()) {
            let without = self.crowds_of(slices);
            let found = shared.store.scan_without(slices, &without, until, limit as u32).await?;
            metrics::histogram!("redrive_scan_rows").record(found.len() as f64);
            news |= self.take_in(shared, slices, &found, limit, now);
        }
        self.read_ahead(shared, now).await?;
        Ok(news)
    }

    /// Reads on in slices that have more due soon than a scan brings.
    async fn read_ahead(&self, shared: &Shared, now: Timestamp) -> Result<()> {
        let soon = now + shared.settings().engine.scan_interval * 2;
        loop {
            let (slices, horizon) = {
                let waiting = shared.waiting();
                let horizon = waiting.wheel.horizon();
                let until = |s: &Slice| waiting.known.get(&(s.lane, s.shard)).copied().unwrap_or(horizon);
                let ahead = self.slices(shared, &waiting).into_iter().map(|s| Slice { from: until(&s), ..s });
                let behind = ahead.filter(|s| s.from > now && s.from < soon.min(horizon));
                (if waiting.wheel.has_room() { behind.collect() } else { Vec::new() }, horizon)
            };
            if slices.is_empty() {
                return Ok(());
            }
            let limit = Self::limit(&slices);
            let found = shared.store.scan(&slices, horizon, limit as u32).await?;
            let mut waiting = shared.waiting();
            found.iter().for_each(|due| _ = waiting.wheel.insert(*due));
            waiting.know(&slices, &found, limit);
        }
    }

    fn limit(slices: &[Slice]) -> usize {
        (SCAN_ROWS / slices.len().max(1)).clamp(*SLICE_ROWS.start(), *SLICE_ROWS.end())
    }

    /// Which business ids have more tasks waiting in memory than they can run for a while. Scans pass over them, and the
    /// floor with it; when there is room for more of them, the floor goes back.
    async fn see_crowds(&mut self, shared: &Shared) -> Result<()> {
        // The more slices, the fewer rows a scan brings of each: one id must not fill them.
        let crowd = CROWD.min(Self::limit(&shared.all_slices()) / 4);
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

    /// All that is ours, less the lanes that have enough ready, are read without us, or may not run now.
    fn slices(&self, shared: &Shared, waiting: &Waiting) -> Vec<Slice> {
        let owned = shared.owned_lanes();
        let enough = shared.low_water();
        let limits = shared.limits();
        let is_hungry = |lane| waiting.ready.lane_len(lane) < enough && !waiting.deep.contains(&lane);
        let hungry = owned.into_iter().filter(|(lane, _)| is_hungry(*lane) && !limits.is_held(*lane));
        let shards = |(lane, shards): (Lane, u64)| {
            let ours = (0..SHARDS).filter(move |shard| shards & (1 << shard) != 0);
            ours.map(move |shard| (lane, shard))
        };
        hungry.flat_map(shards).map(|(lane, shard)| waiting.slice(lane, shard)).collect()
    }

    fn take_in(&mut self, shared: &Shared, slices: &[Slice], found: &[Due], limit: usize, now: Timestamp) -> bool {
        let mut counts: HashMap<(Lane, u8), (usize, Timestamp)> = HashMap::new();
        let mut waiting = shared.waiting();
        let mut news = false;
        for due in found {
            let seen = counts.entry((due.lane, due.id.shard())).or_insert((0, due.due));
            seen.0 += 1;
            if due.due <= now || waiting.wheel.has_passed(due.due) {
                news |= waiting.ready.push(*due);
            } else {
                waiting.wheel.insert(*due);
            }
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

impl Shared {
    /// Everything that is ours, from the beginning: what dead nodes held, and what is ours without our knowing.
    async fn sweep(&self) {
        let owned = self.all_slices();
        let now = self.clock.now();
        // Whoever is gone may have held tasks from behind many that wait.
        let whole = self.has_lost_nodes.swap(false, Ordering::AcqRel);
        let rescued = match whole {
            true => self.store.rescue_all(&owned, now, RESCUED).await,
            false => self.store.rescue(&owned, now, RESCUED).await,
        };
        if whole && rescued.as_ref().map_or(true, |rescued| !rescued.is_empty()) {
            self.has_lost_nodes.store(true, Ordering::Release); // there may be more
        }
        match rescued {
            Ok(rescued) if rescued.is_empty() => {}
            Ok(rescued) => {
                for (task, to) in &rescued {
                    let signal = match to {
                        To::Dead(reason) | To::Dropped(reason) => {
                            log_unattempted(task, *reason); // it has crashed too often
                            Signal::Dead
                        }
                        _ => Signal::Rescued,
                    };
                    self.signals.tell(signal, task);
                }
                tracing::warn!(tasks = rescued.len(), "rescued tasks of nodes that died");
            }
            Err(e) => tracing::warn!(error = %e, "rescuing failed; trying again at the next sweep"),
        }
        if let Err(e) = self.give_back_lost(now).await {
            tracing::warn!(error = %e, "looking for lost claims failed; trying again at the next sweep");
        }
        if let Err(e) = self.count_elsewhere(&owned).await {
            tracing::warn!(error = %e, "what other nodes run of our business ids could not be counted");
        }
    }

    /// What others still run in shards that are ours now: it counts for the limits of business ids.
    async fn count_elsewhere(&self, owned: &[Slice]) -> Result<()> {
        let lanes = self.limits().lanes_by_business();
        if lanes.is_empty() {
            return Ok(());
        }
        let slices: Vec<Slice> = owned.iter().filter(|slice| lanes.contains(&slice.lane)).copied().collect();
        let running = self.store.held_by_others(&slices, self.me.number(), 1_000).await?;
        self.limits().set_elsewhere(&running);
        self.waiting().ready.unpark_all();
        self.wake.claimer.notify_one();
        Ok(())
    }

    /// Rows that bear our number and are in none of our lists: the answer to their claim, or insert, was lost for good.
    /// Looked for in all shards: one may have gone to another node since, which does not touch what a live node holds.
    async fn give_back_lost(&self, now: Timestamp) -> Result<()> {
        let shards = |lane: &Lane| {
            let lane = *lane;
            (0..SHARDS).map(move |shard| Slice { lane, shard, from: Timestamp::EPOCH })
        };
        let all: Vec<Slice> = self.lanes.all().iter().flat_map(shards).collect();
        // What a claim that is under way has got is not known here yet.
        let under_way = self.waiting().direct.iter().map(|(_, _, begun)| *begun).min();
        let since = (now - self.config.lease * 2).min(under_way.unwrap_or(now));
        let held = self.store.held_by(&all, self.me.number(), since, 1_000).await?;
        for task in held {
            if !self.running().holds(task.id) {
                tracing::warn!(task = %task.id, "a task was ours without our knowing; giving it back");
                self.settler.push(Arc::new(task), crate::settle::Outcome::GivenBack.into());
            }
        }
        Ok(())
    }
}

impl Shared {
    /// All that is ours, from the beginning.
    fn all_slices(&self) -> Vec<Slice> {
        let owned = self.owned_lanes();
        let shards = |(lane, shards): (Lane, u64)| {
            let ours = (0..SHARDS).filter(move |shard| shards & (1 << shard) != 0);
            ours.map(move |shard| Slice { lane, shard, from: Timestamp::EPOCH })
        };
        owned.into_iter().flat_map(shards).collect()
    }

    /// Whether tasks of this lane may be claimed without being seen first.
    fn may_be_deep(&self, lane: Lane) -> bool {
        self.store.dialect() != Dialect::MySql && !self.limits().is_tight(lane)
    }
}

impl Waiting {
    /// All is to be looked at from its beginning, by claims that are under way, too.
    fn sweep(&mut self) {
        self.floors.clear();
        self.sweeps += 1;
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
}
