//! What one node does for all: tables that come and go, what is old enough to go, counting what waits.
//!
//! By a lock with a term, so that it is done once however many nodes there are. Should two do it at once nonetheless (one
//! was slow), nothing is lost: every step looks by itself whether it is still to be done.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::pause;
use crate::error::Result;
use crate::store::{KeyWalk, MethodDepth, Rotated};
use crate::task::Lane;

use super::Shared;

const EVERY: Duration = Duration::from_secs(15);

pub(super) async fn run(shared: Arc<Shared>) {
    let mut walk = KeyWalk::default();
    loop {
        tokio::select! {
            () = pause(EVERY) => {}
            () = shared.stopping.cancelled() => return,
        }
        if shared.me.may_work()
            && let Err(e) = shared.keep_up(&mut walk).await
        {
            tracing::warn!(error = %e, "upkeep failed; trying again");
        }
    }
}

impl Shared {
    async fn keep_up(&self, walk: &mut KeyWalk) -> Result<()> {
        let (me, now) = (self.me.number().to_string(), self.clock.now());
        if self.store.lock("upkeep", &me, EVERY * 2, now).await?.is_none() {
            return Ok(());
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
        if let Err(e) = self.store.sweep_old(&retention, walk, now).await {
            tracing::warn!(error = %e, "what is past its time could not be removed; trying again");
        }
        self.report(&self.store.depths().await?).await
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

    /// How much waits in each lane and since when, and what nobody handles.
    async fn report(&self, depths: &[MethodDepth]) -> Result<()> {
        let now = self.clock.now();
        let nodes = self.store.nodes().await?;
        let alive = nodes.iter().filter(|node| !node.dead).flat_map(|node| &node.registration.methods);
        let handled: HashSet<Lane> = alive.map(|method| Lane::of(method)).collect();
        let mut unhandled = 0;
        for lane in depths {
            let lag = lane.oldest_due.map_or(0.0, |due| now.since(due).as_secs_f64());
            let method = || lane.method.clone();
            metrics::gauge!("redrive_depth", "method" => method()).set(lane.depth as f64);
            metrics::gauge!("redrive_lag_seconds", "method" => method()).set(lag);
            if let Some(due) = lane.oldest_due {
                let seconds = due.as_millis() as f64 / 1000.0;
                metrics::gauge!("redrive_oldest_due_seconds", "method" => method()).set(seconds);
            }
            if !handled.contains(&Lane::of(&lane.method)) {
                unhandled += lane.depth;
                tracing::warn!(method = lane.method, tasks = lane.depth, "no node handles this method; its tasks wait");
            }
        }
        metrics::gauge!("redrive_unhandled").set(unhandled as f64);
        Ok(())
    }
}
