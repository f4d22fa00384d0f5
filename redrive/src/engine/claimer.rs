//! Makes ready tasks ours, as many as there are free slots, and starts them. Turns the wheel.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::pause;
use crate::id::TaskId;
use crate::store::{Claimed, Due};

use super::Shared;

/// Most rows of a claim.
const MOST_ROWS: usize = 1_000;
/// How far ahead the wheel is looked into for the next wake-up.
const LOOK_AHEAD_MS: usize = 1_000;

pub(super) async fn run(shared: Arc<Shared>) {
    loop {
        let due = if shared.me.may_work() { shared.take_ready() } else { Vec::new() };
        if !due.is_empty() {
            shared.claim(&due).await;
            continue;
        }
        tokio::select! {
            () = shared.wake.claimer.notified() => {}
            () = pause(shared.until_next_due()) => {}
            () = shared.stopping.cancelled() => return,
        }
    }
}

impl Shared {
    /// What is due and may be claimed now. Each has a slot reserved.
    fn take_ready(&self) -> Vec<Due> {
        // Outcomes that cannot be written hold up the claiming of more.
        if self.settler.len() > 4 * self.config.concurrency {
            return Vec::new();
        }
        let now = self.clock.now();
        let mut waiting = self.waiting();
        let due = waiting.wheel.take_due(now);
        due.into_iter().for_each(|d| waiting.ready.push(d));
        if waiting.ready.len() < self.low_water() {
            self.wake.scanner.notify_one();
        }
        let running = self.running();
        let room = |lane| match self.lanes.get(&lane) {
            Some(Some(most)) => most.saturating_sub(running.taken(lane)),
            Some(None) => usize::MAX,
            None => 0,
        };
        let mut taken = waiting.ready.take(self.free_slots().min(MOST_ROWS), room);
        drop((running, waiting));
        taken.retain(|due| self.reserve(due.lane));
        // One that the scan saw before we claimed it is ours already.
        taken.retain(|due| {
            let fresh = self.running().expect(due.id, due.version + 1);
            if !fresh {
                self.release(due.lane);
            }
            fresh
        });
        taken
    }

    /// How few ready tasks make the scanner look for more, while there are more.
    pub(super) fn low_water(&self) -> usize {
        self.config.concurrency.min(MOST_ROWS) * 2
    }

    fn until_next_due(&self) -> Duration {
        let next = self.waiting().wheel.next_due(LOOK_AHEAD_MS);
        let longest = Duration::from_millis(LOOK_AHEAD_MS as u64);
        next.map_or(longest, |at| at.since(self.clock.now())).max(Duration::from_millis(1))
    }

    async fn claim(self: &Arc<Self>, due: &[Due]) {
        let claimed = self.store.claim(due, self.me.number(), self.clock.now()).await;
        let claimed = claimed.unwrap_or_else(|e| {
            tracing::warn!(error = %e, "claiming failed; the scan will find these tasks again");
            Claimed::default()
        });
        metrics::histogram!("redrive_claim_batch").record(claimed.tasks.len() as f64);
        metrics::counter!("redrive_claimed").increment(claimed.tasks.len() as u64);
        let ours: HashSet<TaskId> = claimed.tasks.iter().map(|task| task.id).collect();
        claimed.tasks.into_iter().for_each(|task| self.start_reserved(task));
        // Someone else took them, or their time was up: their slots are free again.
        for d in due.iter().filter(|d| !ours.contains(&d.id)) {
            self.running().forget(d.id, d.version + 1);
            self.release(d.lane);
        }
    }
}
