//! What one node does for all: tables that come and go, what is old enough to go, what ran out of time where nobody
//! reads, counting what waits.
//!
//! By a lock with a term, so that it is done once however many nodes there are. Should two do it at once nonetheless (one
//! was slow), nothing is lost: every step looks by itself whether it is still to be done.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Timestamp, pause};
use crate::error::Result;
use crate::settle::DeadReason;
use crate::store::{Count, KeyWalk, MethodDepth, OverdueWalk, Rotated};
use crate::task::Lane;

use super::Shared;
use super::history::{Recorder, Seen};

const EVERY: Duration = Duration::from_secs(15);

pub(super) async fn run(shared: Arc<Shared>) {
    let (mut walks, mut gauges, mut recorder) = (Walks::default(), Gauges::default(), Recorder::default());
    loop {
        tokio::select! {
            () = pause(EVERY) => {}
            () = shared.stopping.cancelled() => return,
        }
        if !shared.me.may_work() {
            continue;
        }
        let kept_up = shared.keep_up(&mut walks, &mut gauges).await;
        let seen = kept_up.unwrap_or_else(|e| {
            tracing::warn!(error = %e, "upkeep failed; trying again");
            None
        });
        if let Err(e) = shared.record(&mut recorder, seen).await {
            tracing::debug!(error = %e, "what happened could not be written; a curve will have a gap");
        }
    }
}

/// What is gone through a little at a time.
#[derive(Debug, Default)]
struct Walks {
    keys: KeyWalk,
    overdue: OverdueWalk,
}

impl Shared {
    /// What it has seen on the way; `None`: another node does it.
    async fn keep_up(&self, walks: &mut Walks, gauges: &mut Gauges) -> Result<Option<Seen>> {
        let (me, now) = (self.me.number().to_string(), self.clock.now());
        if self.store.lock("upkeep", &me, EVERY * 2, now).await?.is_none() {
            gauges.clear(); // another node tells of them now
            return Ok(None);
        }
        // Each by itself: a user who may not drop tables still has his keys swept and his tasks counted.
        let retention = self.settings().retention.clone();
        let rotated = match self.store.go_on_monthly(now).await {
            Ok(()) => self.store.rotate(&retention, now).await,
            Err(e) => Err(e),
        };
        match rotated {
            Ok(rotated) => self.say(&rotated),
            Err(e) => tracing::warn!(error = %e, "the monthly tables could not be looked after; trying again"),
        }
        if let Err(e) = self.store.sweep_old(&retention, &mut walks.keys, now).await {
            tracing::warn!(error = %e, "what is past its time could not be removed; trying again");
        }
        match self.store.end_overdue(&mut walks.overdue, now).await {
            Ok(ended) => self.tell_spent(&ended),
            Err(e) => tracing::warn!(error = %e, "tasks whose time is up could not be ended; trying again"),
        }
        let (letters, by_reason) = self.store.count_dead().await?;
        gauges.report_dead(by_reason);
        gauges.report_stuck(self.store.count_stuck_sagas().await?);
        let (depths, now) = (self.store.depths().await?, self.clock.now());
        gauges.report(&depths, now);
        self.report_unhandled(&depths).await?;
        let first = depths.iter().filter_map(|depth| depth.oldest_due).min();
        let waiting = depths.iter().map(|depth| depth.depth).sum();
        Ok(Some(Seen { waiting, letters: letters.n, lag: first.map_or(Duration::ZERO, |due| now.since(due)) }))
    }

    fn say(&self, rotated: &Rotated) {
        for (tables, what) in [(&rotated.made, "made"), (&rotated.dropped, "dropped")] {
            if !tables.is_empty() {
                tracing::info!(tables = tables.join(", "), "tables {what}");
            }
        }
        metrics::gauge!("redrive_tables_past_retention").set(rotated.kept.len() as f64);
        if !rotated.kept.is_empty() {
            let tables = rotated.kept.join(", ");
            tracing::info!(tables, "past retention, but there are tasks in them that have not ended: kept");
        }
    }

    /// What nobody handles.
    async fn report_unhandled(&self, depths: &[MethodDepth]) -> Result<()> {
        let nodes = self.store.nodes().await?;
        let alive = nodes.iter().filter(|node| !node.dead).flat_map(|node| &node.registration.methods);
        let handled: HashSet<Lane> = alive.map(|method| Lane::of(method)).collect();
        let mut unhandled = 0;
        for lane in depths {
            if !handled.contains(&Lane::of(&lane.method)) {
                unhandled += lane.depth;
                tracing::warn!(method = lane.method, tasks = lane.depth, "no node handles this method; its tasks wait");
            }
        }
        metrics::gauge!("redrive_unhandled").set(unhandled as f64);
        Ok(())
    }
}

/// What this node has told of methods and dead letters. It tells only while it does the upkeep, and takes back what is not so any
/// more: a gauge keeps its value until it is set again.
#[derive(Debug, Default)]
struct Gauges {
    methods: HashSet<String>,
    is_telling: bool,
}

impl Gauges {
    /// How much waits of each method, and since when.
    fn report(&mut self, depths: &[MethodDepth], now: Timestamp) {
        self.is_telling = true;
        let there: HashSet<&str> = depths.iter().map(|depth| &*depth.method).collect();
        self.methods
            .iter()
            .filter(|method| !there.contains(&***method))
            .for_each(|method| Self::tell(method, 0, None, now));
        depths.iter().for_each(|depth| Self::tell(&depth.method, depth.depth, depth.oldest_due, now));
        self.methods.extend(there.into_iter().map(str::to_owned));
    }

    fn tell(method: &str, depth: u64, oldest_due: Option<Timestamp>, now: Timestamp) {
        let method = || method.to_owned();
        let lag = oldest_due.map_or(0.0, |due| now.since(due).as_secs_f64());
        let due = oldest_due.map_or(f64::NAN, |due| due.as_millis() as f64 / 1000.0); // there is none
        metrics::gauge!("redrive_depth", "method" => method()).set(depth as f64);
        metrics::gauge!("redrive_lag_seconds", "method" => method()).set(lag);
        metrics::gauge!("redrive_oldest_due_seconds", "method" => method()).set(due);
    }

    /// How many letters wait for a person.
    fn report_dead(&self, dead: Vec<(DeadReason, Count)>) {
        let dead: HashMap<DeadReason, Count> = dead.into_iter().collect();
        for reason in DeadReason::ALL {
            let n = dead.get(&reason).map_or(0, |count| count.n);
            metrics::gauge!("redrive_dead_letters", "reason" => reason.as_str()).set(n as f64);
        }
    }

    /// How many sagas do.
    fn report_stuck(&self, sagas: u64) {
        metrics::gauge!("redrive_saga_stuck").set(sagas as f64);
    }

    /// Somebody else tells of them.
    fn clear(&mut self) {
        if std::mem::take(&mut self.is_telling) {
            self.report(&[], Timestamp::from_millis(0));
            self.report_dead(Vec::new());
            self.report_stuck(0);
            metrics::gauge!("redrive_unhandled").set(0.0);
            self.is_telling = false;
        }
    }
}
