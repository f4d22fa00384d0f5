//! Looks through the database for tasks that are due, or soon will be.
//!
//! *State.* For every slice (lane and shard) of ours a floor: the scan begins there and passes over index entries of rows
//! that are gone. A caller's transaction may commit an old row late, behind the floor, so every `sweep_interval` everything is
//! looked through from the beginning; that also rescues what dead nodes held.
//!
//! The scan of what is due is the guarantee; the wheel and the hand-over are optimisations.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Stopwatch, Timestamp, pause};
use crate::error::Result;
use crate::id::SHARDS;
use crate::store::{Due, Slice};
use crate::task::Lane;

use super::Shared;

/// Rows of one slice in one scan, at the most and at the least.
const SLICE_ROWS: std::ops::RangeInclusive<usize> = 16..=1_000;
/// How many due tasks one scan brings, about.
const SCAN_ROWS: usize = 8_000;
/// Rows may be written with a `now` that is a little behind ours.
const SLACK: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
struct Scanner {
    floors: HashMap<(Lane, u8), Timestamp>,
}

pub(super) async fn run(shared: Arc<Shared>) {
    let mut scanner = Scanner::default();
    let mut swept: Option<Stopwatch> = None;
    loop {
        let mut next = shared.config.scan_interval;
        if shared.me.may_work() {
            let sweeping = swept.is_none_or(|s| s.elapsed() >= shared.config.sweep_interval);
            if sweeping {
                scanner.floors.clear();
                swept = Some(Stopwatch::start());
                shared.sweep().await;
            }
            match scanner.run_once(&shared, shared.clock.now()).await {
                Ok(more) if more => next = Duration::ZERO,
                Ok(_) => {}
                Err(e) => tracing::warn!(error = %e, "the scan for due tasks failed"),
            }
        } else {
            next = Duration::from_millis(50);
        }
        if next.is_zero() {
            shared.room_for_more().await;
            continue;
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

/// Hears other processes' wake-ups, where the database has them, and lets the scanner look.
pub(super) async fn run_listener(shared: Arc<Shared>) {
    while !shared.stopping.is_cancelled() {
        let listening = async {
            let Some(mut listener) = shared.store.listen().await? else {
                shared.stopping.cancelled().await;
                return Ok(());
            };
            loop {
                listener.next().await?;
                shared.wake.scanner.notify_one();
            }
        };
        tokio::select! {
            () = shared.stopping.cancelled() => return,
            heard = listening => {
                let heard: Result<()> = heard;
                if let Err(e) = heard {
                    tracing::debug!(error = %e, "not listening for wake-ups; trying again");
                    pause(shared.config.scan_interval).await;
                }
            }
        }
    }
}

impl Scanner {
    /// One look. `true`: there is more than it could bring.
    async fn run_once(&mut self, shared: &Shared, now: Timestamp) -> Result<bool> {
        let slices = self.slices(shared);
        if slices.is_empty() {
            return Ok(false);
        }
        let limit = (SCAN_ROWS / slices.len()).clamp(*SLICE_ROWS.start(), *SLICE_ROWS.end());
        let until = {
            let waiting = shared.waiting();
            if waiting.wheel.has_room() { waiting.wheel.horizon() } else { now }
        };
        let found = shared.store.scan(&slices, until, limit as u32).await?;
        metrics::histogram!("redrive_scan_rows").record(found.len() as f64);
        Ok(self.take_in(shared, &slices, &found, limit, now))
    }

    /// All that is ours, less the lanes that have enough ready.
    fn slices(&self, shared: &Shared) -> Vec<Slice> {
        let owned = shared.owned.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let enough = shared.low_water();
        let waiting = shared.waiting();
        let hungry = owned.into_iter().filter(|(lane, _)| waiting.ready.lane_len(*lane) < enough);
        let shards = |(lane, shards): (Lane, u64)| {
            let ours = (0..SHARDS).filter(move |shard| shards & (1 << shard) != 0);
            ours.map(move |shard| Slice { lane, shard, from: self.floor(lane, shard) })
        };
        hungry.flat_map(shards).collect()
    }

    fn floor(&self, lane: Lane, shard: u8) -> Timestamp {
        self.floors.get(&(lane, shard)).copied().unwrap_or(Timestamp::EPOCH)
    }

    fn take_in(&mut self, shared: &Shared, slices: &[Slice], found: &[Due], limit: usize, now: Timestamp) -> bool {
        let mut counts: HashMap<(Lane, u8), (usize, Timestamp)> = HashMap::new();
        let mut waiting = shared.waiting();
        for due in found {
            let seen = counts.entry((due.lane, due.id.shard())).or_insert((0, due.due));
            seen.0 += 1;
            if due.due <= now {
                waiting.ready.push(*due);
            } else {
                waiting.wheel.insert(*due);
            }
        }
        drop(waiting);
        shared.wake.claimer.notify_one();
        let mut more = false;
        for slice in slices {
            let (n, first) = counts.get(&(slice.lane, slice.shard)).copied().unwrap_or((0, now));
            self.floors.insert((slice.lane, slice.shard), first.min(now - SLACK));
            more |= n >= limit && first <= now;
        }
        more
    }
}

impl Shared {
    /// Waits until the ready queue wants more.
    async fn room_for_more(&self) {
        while !self.stopping.is_cancelled() && self.waiting().ready.len() >= self.low_water() {
            tokio::select! {
                () = self.wake.scanner.notified() => {}
                () = pause(self.config.scan_interval) => {}
                () = self.stopping.cancelled() => {}
            }
        }
    }

    /// Everything that is ours, from the beginning: what dead nodes held, and what is ours without our knowing.
    async fn sweep(&self) {
        let owned = Scanner::default().all(self);
        let now = self.clock.now();
        match self.store.rescue(&owned, now, 1_000).await {
            Ok(rescued) if rescued.is_empty() => {}
            Ok(rescued) => {
                metrics::counter!("redrive_rescued").increment(rescued.len() as u64);
                tracing::warn!(tasks = rescued.len(), "rescued tasks of nodes that died");
            }
            Err(e) => tracing::warn!(error = %e, "rescuing failed; trying again at the next sweep"),
        }
        if let Err(e) = self.give_back_lost(now).await {
            tracing::warn!(error = %e, "looking for lost claims failed; trying again at the next sweep");
        }
    }

    /// Rows that bear our number and are in none of our lists: the answer to their claim, or insert, was lost for good.
    /// Looked for in all shards: one may have gone to another node since, which does not touch what a live node holds.
    async fn give_back_lost(&self, now: Timestamp) -> Result<()> {
        let shards = |lane: &Lane| {
            let lane = *lane;
            (0..SHARDS).map(move |shard| Slice { lane, shard, from: Timestamp::EPOCH })
        };
        let all: Vec<Slice> = self.lanes.keys().flat_map(shards).collect();
        let since = now - self.config.lease * 2;
        let held = self.store.held_by(&all, self.me.number(), since, 1_000).await?;
        for task in held {
            if !self.running().holds(task.id) {
                tracing::warn!(task = %task.id, "a task was ours without our knowing; giving it back");
                self.settler.push(Arc::new(task), crate::settle::Outcome::GivenBack);
            }
        }
        Ok(())
    }
}

impl Scanner {
    fn all(&self, shared: &Shared) -> Vec<Slice> {
        let owned = shared.owned.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let shards = |(lane, shards): (Lane, u64)| {
            let ours = (0..SHARDS).filter(move |shard| shards & (1 << shard) != 0);
            ours.map(move |shard| Slice { lane, shard, from: self.floor(lane, shard) })
        };
        owned.into_iter().flat_map(shards).collect()
    }
}
