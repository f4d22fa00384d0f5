//! Outcomes of attempts, written in batches.
//!
//! One flush is under way; the next takes all that has gathered. A flush that fails is tried again for as long as we are
//! this node: an outcome is never dropped while the task is ours. When we may not work, it waits.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::{Timestamp, pause};
use crate::error::Fault;
use crate::settle::{Change, DeadReason, To, settle};
use crate::store::{Due, Settle, Settled};
use crate::task::Task;

use super::handler::Attempted;
use super::signals::Signal;
use super::{Shared, lock};

const MOST_ROWS: usize = 2_000;

#[derive(Debug, Default)]
pub(super) struct Settler {
    queue: Mutex<Vec<(Arc<Task>, Attempted)>>,
    /// Decided, but not written yet: the database failed.
    left: Mutex<Vec<Settle>>,
    more: Notify,
}

impl Settler {
    pub(super) fn push(&self, task: Arc<Task>, ended: Attempted) {
        lock(&self.queue).push((task, ended));
        self.more.notify_one();
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.queue).len() + lock(&self.left).len()
    }

    pub(super) fn clear(&self) {
        lock(&self.queue).clear();
        lock(&self.left).clear();
    }

    /// The next batch: what was left over first.
    fn take(&self, now: Timestamp) -> Vec<Settle> {
        let mut settles = std::mem::take(&mut *lock(&self.left));
        let mut queue = lock(&self.queue);
        let n = queue.len().min(MOST_ROWS.saturating_sub(settles.len()));
        let ended: Vec<_> = queue.drain(..n).collect();
        drop(queue);
        settles.extend(ended.into_iter().map(|(task, ended)| decide(task, ended, now)));
        settles
    }
}

pub(super) async fn run(shared: Arc<Shared>) {
    let mut wait = Duration::from_millis(100);
    loop {
        if !shared.me.may_work() {
            tokio::select! {
                () = pause(Duration::from_millis(50)) => continue,
                () = shared.ended() => return,
            }
        }
        let now = shared.clock.now();
        let settles = shared.settler.take(now);
        if settles.is_empty() {
            shared.wake.idle.notify_waiters();
            tokio::select! {
                () = shared.settler.more.notified() => {}
                () = shared.ended() => return,
            }
            continue;
        }
        if flush(&shared, settles, now).await {
            wait = Duration::from_millis(100);
        } else {
            pause(wait).await;
            wait = (wait * 2).min(Duration::from_secs(5));
        }
    }
}

/// What is to be written.
fn decide(task: Arc<Task>, ended: Attempted, now: Timestamp) -> Settle {
    let change = settle(&task, &ended.outcome, now, random(&task));
    log_end(&task, &change);
    Settle::with_result(task, change, ended.result)
}

/// Logs a final failure. Other ends are told by counters and events.
pub(crate) fn log_end(task: &Task, change: &Change) {
    let error = change.failure.as_ref().map(|failure| &*failure.message);
    match change.to {
        To::Dead(reason) => log_final(task, "a task is dead", reason, change.attempts, error),
        To::Dropped(reason) => log_final(task, "a task is given up", reason, change.attempts, error),
        _ => {}
    }
}

/// Logs the final failure of a task that did not end by an attempt: its time was up, or it has crashed too often.
pub(super) fn log_unattempted(task: &Task, reason: DeadReason) {
    let error = task.last_error.as_ref().map(|error| &*error.message);
    log_final(task, "a task is given up without another attempt", reason, task.attempts, error);
}

fn log_final(task: &Task, what: &str, reason: DeadReason, attempts: u32, error: Option<&str>) {
    let business = task.business.as_ref().map(|business| &*business.id);
    let (method, key, reason) = (&*task.method, task.key.as_deref(), reason.as_str());
    tracing::error!(task = %task.id, method, business, key, attempts, reason, error, "{what}");
}

/// Chance for the jitter: of the task and its version, so that it needs no generator.
pub(crate) fn random(task: &Task) -> f64 {
    let mixed =
        xxhash_rust::xxh3::xxh3_64_with_seed(&task.id.as_i64().to_le_bytes(), u64::from(task.version.unsigned_abs()));
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}

/// `false`: it failed and the outcomes are back in the queue.
async fn flush(shared: &Arc<Shared>, settles: Vec<Settle>, now: Timestamp) -> bool {
    metrics::histogram!("redrive_settle_batch").record(settles.len() as f64);
    match shared.store.settle(&settles, now).await {
        Ok(results) => {
            shared.signals.tally.add(settles.iter().zip(&results).map(|(s, result)| Signal::of(s, *result)));
            settles.into_iter().zip(results).for_each(|(s, result)| settled(shared, &s, result));
            true
        }
        Err(e) if e.fault() == Some(Fault::Other) && settles.len() > 1 => {
            // One of them cannot be written: find it, and do not hold up the others.
            let (one, other) = settles.split_at(settles.len() / 2);
            Box::pin(flush(shared, one.to_vec(), now)).await & Box::pin(flush(shared, other.to_vec(), now)).await
        }
        Err(e) if e.is_transient() => {
            tracing::warn!(error = %e, "outcomes could not be written yet; trying again");
            lock(&shared.settler.left).extend(settles);
            false
        }
        Err(e) => {
            // It stays ours in the database, and the sweep gives it back.
            settles.iter().for_each(|s| {
                tracing::error!(task = %s.task.id, error = %e, "the outcome of a task cannot be written");
                shared.running().remove(s.task.id, s.task.version);
            });
            true
        }
    }
}

fn settled(shared: &Shared, s: &Settle, result: Settled) {
    shared.running().remove(s.task.id, s.task.version);
    shared.settled.fetch_add(1, Ordering::Relaxed);
    shared.signals.tell(Signal::of(s, result), &s.task);
    if !s.follow_ups.is_empty() && result != Settled::Lost {
        shared.wake.scanner.notify_one(); // callbacks, which nobody else has told of
    }
    if let Settled::Went(To::Pending { due }) = result
        && shared.owns(s.task.lane, s.task.shard())
        && !shared.stopping.is_cancelled()
    {
        shared.expect(Due::of(&s.task, s.task.version + 1, due));
    }
}
