//! Outcomes of attempts, written in batches.
//!
//! One flush is under way; the next takes all that has gathered, within its caps. When we may not work, it waits.
//!
//! *Failure.* An outcome is never dropped while the task is ours: what has been done must not be done again because it could not be
//! written down at once. While the database is away, all wait. What it refuses leaves the batch and is tried by itself, so that the
//! others do not wait for it. A batch that is in vain again and again while the node beats is taken for refused.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use crate::bisect::Bisect;
use crate::clock::{Timestamp, pause};
pub(crate) use crate::settle::random;
use crate::settle::{Change, DeadReason, To, settle};
use crate::store::{Due, Settle, Settled};
use crate::task::Task;

use super::handler::Attempted;
use super::signals::Signal;
use super::{Shared, lock};

/// Most rows of a flush.
const MOST_ROWS: usize = 2_000;
/// Number of tries in vain, while the node beats, after which a batch is halved.
const MOST_AWAY: u32 = 3;
/// How long what is tried by itself waits between two tries, at the most.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct Settler {
    queue: Mutex<Vec<(Arc<Task>, Attempted)>>,
    /// Decided, but not written yet: the database failed, or the batch was full.
    left: Mutex<Vec<Settle>>,
    /// Whether a flush is under way.
    writing: AtomicBool,
    more: Notify,
}

impl Settler {
    pub(super) fn push(&self, task: Arc<Task>, ended: Attempted) {
        lock(&self.queue).push((task, ended));
        self.more.notify_one();
    }

    /// What is decided and could not be written.
    fn put_back(&self, settles: Vec<Settle>) {
        if settles.is_empty() {
            return;
        }
        lock(&self.left).extend(settles);
        self.more.notify_one();
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.queue).len() + lock(&self.left).len()
    }

    pub(super) fn clear(&self) {
        lock(&self.queue).clear();
        lock(&self.left).clear();
    }

    /// Whether there is nothing to be written, nor being written.
    pub(super) fn is_idle(&self) -> bool {
        self.len() == 0 && !self.writing.load(Ordering::Acquire)
    }

    /// The next batch: what was left over first.
    fn take(&self, max_result: usize, now: Timestamp) -> Vec<Settle> {
        self.writing.store(true, Ordering::Release);
        let mut settles = std::mem::take(&mut *lock(&self.left));
        let mut queue = lock(&self.queue);
        let n = queue.len().min(MOST_ROWS.saturating_sub(settles.len()));
        let ended: Vec<_> = queue.drain(..n).collect();
        drop(queue);
        settles.extend(ended.into_iter().map(|(task, ended)| decide(task, ended, max_result, now)));
        settles
    }
}

pub(super) async fn run(shared: Arc<Shared>) {
    let mut wait = Duration::from_millis(100);
    let mut away = 0;
    loop {
        if !shared.me.may_work() {
            tokio::select! {
                () = pause(Duration::from_millis(50)) => continue,
                () = shared.ended() => return,
            }
        }
        let now = shared.clock.now();
        let settles = shared.settler.take(shared.store.max_result(), now);
        if settles.is_empty() {
            shared.settler.writing.store(false, Ordering::Release);
            shared.wake.idle.notify_waiters();
            tokio::select! {
                () = shared.settler.more.notified() => {}
                () = shared.ended() => return,
            }
            continue;
        }
        let left = flush(&shared, settles, now).await;
        let is_written = left.is_empty();
        // A beat is a write, too: if those succeed, it is not the database.
        away = if is_written || !shared.me.may_work() { 0 } else { away + 1 };
        if away >= MOST_AWAY {
            tracing::warn!(
                tasks = left.len(),
                "outcomes cannot be written though the database takes others; looking for the one that cannot be"
            );
            away = 0;
            tokio::spawn(shared.part("settler", |shared| apart(shared, left, Suspect::Outcomes)));
        } else {
            shared.settler.put_back(left);
        }
        shared.settler.writing.store(false, Ordering::Release);
        if is_written {
            wait = Duration::from_millis(100);
        } else {
            pause(wait).await;
            wait = (wait * 2).min(Duration::from_secs(5));
        }
    }
}

/// What is to be written.
fn decide(task: Arc<Task>, ended: Attempted, max_result: usize, now: Timestamp) -> Settle {
    let change = settle(&task, &ended.outcome, now, random(&task));
    let mut settle = Settle::with_result(task, change, ended.result);
    settle.limit_result(max_result);
    settle
}

/// Logs a final failure. Other ends are told by counters and events.
pub(crate) fn log_end(task: &Task, change: &Change) {
    log_went(task, change, change.to);
}

/// The same for what went elsewhere than was decided, because a person wanted it so.
fn log_went(task: &Task, change: &Change, to: To) {
    let error = change.failure.as_ref().map(|failure| &*failure.message);
    match to {
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

/// Gives what is not written, since the database is away.
async fn flush(shared: &Arc<Shared>, mut settles: Vec<Settle>, now: Timestamp) -> Vec<Settle> {
    metrics::histogram!("redrive_settle_batch").record(settles.len() as f64);
    let e = match shared.store.settle(&settles, now).await {
        Ok(results) => {
            written(shared, &settles, &results);
            return Vec::new();
        }
        Err(e) => e,
    };
    settles.iter_mut().for_each(|s| s.again = true); // some of them may have been written
    if shared.store.is_away(&e) {
        tracing::warn!(error = %e, "outcomes could not be written yet; trying again");
        return settles;
    }
    tracing::warn!(error = %e, tasks = settles.len(), "outcomes cannot be written together; looking for the one that cannot be");
    tokio::spawn(shared.part("settler", |shared| apart(shared, settles, Suspect::Database)));
    Vec::new()
}

/// The suspect if the database seems to be away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suspect {
    Database,
    /// Servers refuse what is too large by closing the connection.
    Outcomes,
}

/// Halves what cannot be written together, until what fails is alone.
async fn apart(shared: Arc<Shared>, settles: Vec<Settle>, suspect: Suspect) {
    let (mut parts, guilty) = Bisect::of_failed(settles);
    leave_alone(&shared, guilty);
    while let Some(part) = parts.next_part() {
        match shared.store.settle(&part, shared.clock.now()).await {
            Ok(results) => written(&shared, &part, &results),
            // None of them is to blame.
            Err(e) if shared.store.is_away(&e) && (suspect == Suspect::Database || !shared.me.may_work()) => {
                shared.settler.put_back(part);
            }
            Err(_) => leave_alone(&shared, parts.split_last(part)),
        }
    }
}

/// Tries a guilty outcome by itself from now on.
fn leave_alone(shared: &Arc<Shared>, guilty: Option<Settle>) {
    if let Some(s) = guilty {
        tokio::spawn(shared.part("settler", |shared| alone(shared, s)));
    }
}

/// What the database refuses, whatever the reason, for as long as the task is ours.
async fn alone(shared: Arc<Shared>, s: Settle) {
    let (id, version) = (s.task.id, s.task.version);
    let mut wait = Duration::from_millis(100);
    while shared.running().is_settling(id, version) {
        tokio::select! {
            () = pause(wait) => {}
            () = shared.ended() => return,
        }
        wait = (wait * 2).min(LONGEST_WAIT);
        if !shared.me.may_work() {
            continue;
        }
        match shared.store.settle(std::slice::from_ref(&s), shared.clock.now()).await {
            Ok(results) => return written(&shared, std::slice::from_ref(&s), &results),
            Err(e) => tracing::error!(task = %id, error = %e, "the outcome of a task cannot be written; trying again"),
        }
    }
}

fn written(shared: &Shared, settles: &[Settle], results: &[Settled]) {
    shared.signals.tally.add(settles.iter().zip(results).map(|(s, result)| Signal::of(s, *result)));
    settles.iter().zip(results).for_each(|(s, result)| settled(shared, s, *result));
}

fn settled(shared: &Shared, s: &Settle, result: Settled) {
    if let Settled::Went(to) = result {
        log_went(&s.task, &s.change, to);
    }
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
