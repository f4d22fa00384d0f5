//! What one node does for all: tables that come and go, what is old enough to go, what ran out of time where nobody
//! reads, counting what waits.
//!
//! By a lock with a term, so that it is done once however many nodes there are. Should two do it at once nonetheless (one
//! was slow), nothing is lost: every step looks by itself whether it is still to be done.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Stopwatch, Timestamp, pause};
use crate::error::Result;
use crate::settle::DeadReason;
use crate::store::{Count, KeyWalk, MethodDepth, OverdueWalk, Retention, Rotated};
use crate::task::Lane;

use super::Shared;
use super::history::{Recorder, Seen};
use super::signals::OTHER;

const EVERY: Duration = Duration::from_secs(15);

/// A gate that nobody has needed for this long loses its row.
const GATES_KEPT: Duration = Duration::from_secs(3600);

/// How long what is past its time is removed without a rest, while there is much of it.
const SWEEPING: Duration = Duration::from_secs(5);

pub(super) async fn run(shared: Arc<Shared>) {
    let (mut walks, mut gauges, mut recorder) = (Walks::default(), Gauges::default(), Recorder::default());
    loop {
        tokio::select! {
            () = pause(EVERY) => {}
            () = shared.stopping.cancelled() => return,
        }
        shared.report_attempts();
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
        if let Err(e) = self.sweep_much(&retention, &mut walks.keys, now).await {
            tracing::warn!(error = %e, "some of what is past its time could not be removed; trying again");
        }
        match self.store.end_overdue(&mut walks.overdue, now).await {
            Ok(ended) => self.tell_spent(&ended),
            Err(e) => tracing::warn!(error = %e, "tasks whose time is up could not be ended; trying again"),
        }
        if let Err(e) = self.store.forget_gates(now - GATES_KEPT).await {
            tracing::warn!(error = %e, "gates that nobody needs could not be removed; trying again");
        }
        let (letters, by_reason) = self.store.count_dead().await?;
        gauges.report_dead(by_reason);
        gauges.report_stuck(self.store.count_stuck_sagas().await?);
        let (depths, now) = (self.store.depths().await?, self.clock.now());
        let handled = self.handled().await?;
        gauges.report(&depths, &handled, now);
        self.report_unhandled(&depths, &handled);
        let first = depths.iter().filter_map(|depth| depth.oldest_due).min();
        let waiting = depths.iter().map(|depth| depth.depth).sum();
        Ok(Some(Seen { waiting, letters: letters.n, lag: first.map_or(Duration::ZERO, |due| now.since(due)) }))
    }

    /// Round after round while there is much to remove: as much must be able to go as comes.
    async fn sweep_much(&self, retention: &Retention, keys: &mut KeyWalk, now: Timestamp) -> Result<()> {
        let since = Stopwatch::start();
        while self.store.sweep_old(retention, keys, now).await?.is_much()
            && since.elapsed() < SWEEPING
            && !self.stopping.is_cancelled()
        {}
        Ok(())
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

    /// For how long the oldest attempt of each method has been running here.
    fn report_attempts(&self) {
        let (oldest, now) = (self.running().oldest_by_method(), self.clock.now());
        for method in self.handlers.keys() {
            let age = oldest.get(method).map_or(Duration::ZERO, |since| now.since(*since));
            metrics::gauge!("redrive_oldest_attempt_seconds", "method" => method.clone()).set(age.as_secs_f64());
        }
    }

    /// The methods that some live node handles.
    async fn handled(&self) -> Result<HashSet<String>> {
        let alive = self.store.nodes().await?.into_iter().filter(|node| !node.dead);
        Ok(alive.flat_map(|node| node.registration.methods).collect())
    }

    /// What nobody handles.
    fn report_unhandled(&self, depths: &[MethodDepth], handled: &HashSet<String>) {
        let handled: HashSet<Lane> = handled.iter().map(|method| Lane::of(method)).collect();
        let mut unhandled = 0;
        for lane in depths {
            if !handled.contains(&Lane::of(&lane.method)) {
                unhandled += lane.depth;
                tracing::warn!(method = lane.method, tasks = lane.depth, "no node handles this method; its tasks wait");
            }
        }
        metrics::gauge!("redrive_unhandled").set(unhandled as f64);
    }
}

/// How many methods that nobody handles are told of by name. Whoever enqueues chooses names, and no label is ever forgotten.
const MOST_UNHANDLED: usize = 100;

/// What this node has told of methods and dead letters. It tells only while it does the upkeep, and takes back what is not so any
/// more: a gauge keeps its value until it is set again.
#[derive(Debug, Default)]
struct Gauges {
    methods: HashSet<String>,
    /// How many of these nobody handled.
    unhandled: usize,
    is_telling: bool,
}

impl Gauges {
    /// How much waits of each method, and since when.
    fn report(&mut self, depths: &[MethodDepth], handled: &HashSet<String>, now: Timestamp) {
        self.is_telling = true;
        let there = self.by_label(depths, handled);
        let gone = self.methods.iter().filter(|method| !there.contains_key(&**method));
        gone.for_each(|method| Self::tell(method, 0, None, now));
        there.iter().for_each(|(label, (depth, oldest_due))| Self::tell(label, *depth, *oldest_due, now));
    }

    /// What is told under each label. The deepest come first to one of their own.
    fn by_label(
        &mut self,
        depths: &[MethodDepth],
        handled: &HashSet<String>,
    ) -> HashMap<String, (u64, Option<Timestamp>)> {
        let mut deepest: Vec<&MethodDepth> = depths.iter().collect();
        deepest.sort_by_key(|depth| std::cmp::Reverse(depth.depth));
        let mut all: HashMap<String, (u64, Option<Timestamp>)> = HashMap::new();
        for depth in deepest {
            let (n, oldest_due) = all.entry(self.label(&depth.method, handled)).or_default();
            *n += depth.depth;
            *oldest_due = [*oldest_due, depth.oldest_due].into_iter().flatten().min();
        }
        all
    }

    /// Its name, if somebody handles it or there is room for one more that nobody does.
    fn label(&mut self, method: &str, handled: &HashSet<String>) -> String {
        let is_handled = handled.contains(method);
        let named = self.methods.contains(method) || is_handled || self.unhandled < MOST_UNHANDLED;
        let label = if named { method } else { OTHER };
        if self.methods.insert(label.to_owned()) && label == method && !is_handled {
            self.unhandled += 1;
        }
        label.to_owned()
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
            self.report(&[], &HashSet::new(), Timestamp::from_millis(0));
            self.report_dead(Vec::new());
            self.report_stuck(0);
            metrics::gauge!("redrive_unhandled").set(0.0);
            self.is_telling = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(method: &str, depth: u64) -> MethodDepth {
        MethodDepth { method: method.into(), depth, oldest_due: Some(Timestamp::from_millis(depth as i64)) }
    }

    #[test]
    fn whatever_callers_name_there_are_so_many_labels() {
        let (mut gauges, handled) = (Gauges::default(), HashSet::from(["m".to_owned()]));
        // New names all the time, as over the API; the later ones are the deeper ones.
        for round in 0..10u64 {
            let strangers = (0..1_000).map(|n| depth(&format!("x-{round}-{n}"), 10 + n));
            let told = gauges.by_label(&strangers.chain([depth("m", 5)]).collect::<Vec<_>>(), &handled);
            assert_eq!(told["m"], (5, Some(Timestamp::from_millis(5))));
            let all = told.values().map(|(depth, _)| depth).sum::<u64>();
            assert_eq!(all, 5 + (0..1_000).map(|n| 10 + n).sum::<u64>(), "nothing is left out");
            assert_eq!(told[OTHER].1, Some(Timestamp::from_millis(10)), "since the first of them is due");
            assert!(told.contains_key("x-0-999") == (round == 0) && !told.contains_key("x-0-899"), "the deepest");
        }
        assert_eq!(gauges.methods.len(), MOST_UNHANDLED + 2);
    }

    #[test]
    fn a_method_that_is_handled_has_its_name_whatever_others_there_are() {
        let mut gauges = Gauges::default();
        let strangers: Vec<_> = (0..200).map(|n| depth(&format!("x-{n}"), 1)).collect();
        gauges.by_label(&strangers, &HashSet::new());
        let handled: HashSet<String> = (0..200).map(|n| format!("m-{n}")).collect();
        let own: Vec<_> = handled.iter().map(|method| depth(method, 1)).collect();
        assert_eq!(gauges.by_label(&own, &handled).len(), 200);
        // Its nodes are gone: it is still told of.
        assert!(gauges.by_label(&own, &HashSet::new()).contains_key("m-7"));
    }
}
