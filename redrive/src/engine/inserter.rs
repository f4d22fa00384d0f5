//! Enqueues of all callers, flushed together.
//!
//! One flush is under way, or two if many callers wait; the next takes all that has gathered. What is due now, is ours and finds a slot is written down
//! as running here and handed over in memory once that is committed: no scan, no claim. A row that has to wait for someone
//! else's lock leaves the batch and waits by itself.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::JoinSet;

use crate::clock::Timestamp;
use crate::error::{Error, Fault, Result};
use crate::id::TaskId;
use crate::settle::Outcome;
use crate::store::{Callers, Dialect, Due, Enqueued, Prepared};
use crate::task::{Status, Task};

use super::limits::Slot;
use super::signals::Signal;
use super::{Shared, lock};

/// Most rows and bytes of a flush.
const MOST_ROWS: usize = 1_000;
const MOST_BYTES: usize = 4 << 20;
/// How many flushes may be under way: while one waits for the disk, the next is worked on.
const AT_ONCE: usize = 2;
/// How many callers must wait for a second flush to go beside the first.
const WORTH_A_SECOND: usize = 128;

/// How often others are let go first between two flushes, at the most.
const MOST_YIELDS: u32 = 8;

/// How many rows may wait for someone else's lock at the same time.
const MOST_ALONE: usize = 3;

/// A caller's task, and where its answer goes.
type Asked = (Prepared, oneshot::Sender<Result<Enqueued>>);

#[derive(Debug)]
pub(super) struct Inserter {
    queue: Mutex<Queue>,
    more: Notify,
    /// What waits for someone else's lock has few connections: the others are for those who need not wait.
    alone: Semaphore,
}

impl Default for Inserter {
    fn default() -> Self {
        Self { queue: Mutex::default(), more: Notify::new(), alone: Semaphore::new(MOST_ALONE) }
    }
}

#[derive(Debug, Default)]
struct Queue {
    asked: VecDeque<Asked>,
    /// The engine has stopped: nothing is taken any more.
    closed: bool,
}

impl Queue {
    /// A place for the answer; it is there at once if this is closed.
    fn push(&mut self, prepared: Prepared) -> oneshot::Receiver<Result<Enqueued>> {
        let (answer, answered_by) = oneshot::channel();
        if self.closed {
            _ = answer.send(Err(unwritten()));
        } else {
            self.asked.push_back((prepared, answer));
        }
        answered_by
    }
}

impl Inserter {
    pub(super) async fn insert(&self, prepared: Prepared) -> Result<Enqueued> {
        let answer = lock(&self.queue).push(prepared);
        self.more.notify_one();
        answered(answer).await
    }

    pub(super) fn insert_many(&self, prepared: Vec<Prepared>) -> Vec<oneshot::Receiver<Result<Enqueued>>> {
        let mut queue = lock(&self.queue);
        let answers = prepared.into_iter().map(|prepared| queue.push(prepared)).collect();
        drop(queue);
        self.more.notify_one();
        answers
    }

    /// Those who were answered just now are about to ask again: as long as more come, they are let in, so that they share a commit.
    async fn gather(&self) {
        for _ in 0..MOST_YIELDS {
            let before = lock(&self.queue).asked.len();
            tokio::task::yield_now().await;
            if lock(&self.queue).asked.len() == before {
                return;
            }
        }
    }

    /// The next batch, within its caps; beside one that is under way only if it is worth a commit of its own.
    fn take(&self, under_way: usize) -> Vec<Asked> {
        let queue = &mut lock(&self.queue).asked;
        if under_way > 0 && queue.len() < WORTH_A_SECOND {
            return Vec::new();
        }
        let mut bytes = 0;
        let fits = |(prepared, _): &&Asked| {
            bytes += prepared.task.params.len() + 500;
            bytes <= MOST_BYTES
        };
        let n = queue.iter().take(MOST_ROWS).take_while(fits).count().max(1).min(queue.len());
        queue.drain(..n).collect()
    }

    /// What was asked for before.
    fn take_older(&self, than: Timestamp) -> Vec<Asked> {
        let queue = &mut lock(&self.queue).asked;
        let n = queue.iter().take_while(|(prepared, _)| prepared.task.created_at <= than).count();
        queue.drain(..n).collect()
    }

    /// Nothing more is taken.
    fn close(&self) {
        lock(&self.queue).closed = true;
    }

    /// Nothing more will be written: whoever waits is told.
    fn forget(&self) {
        let asked = std::mem::take(&mut lock(&self.queue).asked);
        asked.into_iter().for_each(|(_, answer)| _ = answer.send(Err(unwritten())));
    }
}

/// The answer; if there is none, the flush was cut off by a panic, or with its process.
pub(super) async fn answered(answer: oneshot::Receiver<Result<Enqueued>>) -> Result<Enqueued> {
    let cut_off = || refusal("it was cut off at it; whether anything was written is not known");
    answer.await.unwrap_or_else(|_| Err(cut_off()))
}

fn unwritten() -> Error {
    refusal("it has stopped; nothing was written")
}

fn refusal(why: &str) -> Error {
    Error::Unavailable { doing: "enqueue on", id: "this engine".into(), why: why.into() }
}

pub(super) async fn run(shared: Arc<Shared>) {
    let mut flushes: JoinSet<()> = JoinSet::new();
    loop {
        if next_flush(&shared, &mut flushes) {
            continue;
        }
        tokio::select! {
            Some(_) = flushes.join_next(), if !flushes.is_empty() => shared.inserter.gather().await,
            () = shared.inserter.more.notified() => {}
            // Not at the beginning of a stop: handlers that come to their end enqueue, too, and calls that failed are written down.
            () = shared.ended() => break,
        }
    }
    shared.inserter.close();
    let rest = async { while next_flush(&shared, &mut flushes) || flushes.join_next().await.is_some() {} };
    if tokio::time::timeout(shared.config.grace, rest).await.is_err() {
        tracing::error!("enqueues could not be written before the stop; their callers are told");
    }
    shared.inserter.forget();
    while flushes.join_next().await.is_some() {}
}

/// Starts the next flush, if there is one to be made and room for it.
fn next_flush(shared: &Arc<Shared>, flushes: &mut JoinSet<()>) -> bool {
    let at_once = if shared.store.dialect() == Dialect::Sqlite { 1 } else { AT_ONCE }; // it has one writer
    let asked = if flushes.len() < at_once { shared.inserter.take(flushes.len()) } else { Vec::new() };
    let is_any = !asked.is_empty();
    if is_any {
        flushes.spawn(shared.part("inserter", |shared| async move { flush(&shared, asked).await }));
    }
    is_any
}

async fn flush(shared: &Arc<Shared>, asked: Vec<Asked>) {
    let now = shared.clock.now();
    let (mut prepared, answers): (Vec<Prepared>, Vec<_>) = asked.into_iter().unzip();
    prepared.iter_mut().for_each(|p| offer(shared, &mut p.task));
    let ids: Vec<TaskId> = prepared.iter().map(|p| p.task.id).collect();
    let written = shared.store.insert_prepared(prepared, Callers::Many, now).await;
    metrics::histogram!("redrive_insert_batch").record(written.len() as f64);
    for (id, (p, _)) in ids.into_iter().zip(&written) {
        if p.task.id != id {
            shared.running().forget(id, p.task.version); // the id was another's, and this task was given a new one
        }
    }
    shared.signals.tally.add(written.iter().filter_map(|(_, result)| new(result)));
    if let Some(e) = away(&written) {
        tell_away(shared, &e);
    }
    let mut others = false;
    for ((prepared, result), answer) in written.into_iter().zip(answers) {
        if result.as_ref().is_err_and(|e| e.fault() == Some(Fault::Busy)) {
            withdraw(shared, &prepared);
            tokio::spawn(shared.part("inserter", |shared| insert_alone(shared, prepared, answer)));
            continue;
        }
        others |= result.is_ok() && prepared.task.due <= now && !shared.owns(prepared.task.lane, prepared.task.shard());
        reply(shared, prepared, result, answer);
    }
    if others {
        shared.wake.others.notify_one();
    }
}

/// The error of them all, if the database is away.
fn away(written: &[(Prepared, Result<Enqueued>)]) -> Option<Error> {
    let is_away = |e: &Error| e.is_transient() && e.fault() != Some(Fault::Busy);
    let all = written.iter().all(|(_, result)| result.as_ref().is_err_and(is_away));
    written.first().filter(|_| all).and_then(|(_, result)| result.as_ref().err()).map(Error::echo)
}

/// Whoever has waited for as long as a database that is away is tried hears of it now, and not after all who came before: in an outage the
/// queue would grow, and every answer come later than the one before.
fn tell_away(shared: &Arc<Shared>, e: &Error) {
    for (prepared, answer) in shared.inserter.take_older(shared.clock.now() - shared.store.retry_for()) {
        reply(shared, prepared, Err(e.echo()), answer);
    }
}

/// A task that was not there before.
fn new(result: &Result<Enqueued>) -> Option<Signal> {
    result.as_ref().is_ok_and(|answer| !answer.existed).then_some(Signal::Enqueued)
}

/// A row whose key someone else's transaction holds.
async fn insert_alone(shared: Arc<Shared>, mut prepared: Prepared, answer: oneshot::Sender<Result<Enqueued>>) {
    if !prepared.held {
        let task = &mut prepared.task;
        (task.status, task.locked_by, task.locked_at) = (Status::Pending, None, None);
    }
    let turn = shared.inserter.alone.acquire().await;
    let written = shared.store.insert_prepared(vec![prepared], Callers::One, shared.clock.now()).await;
    drop(turn);
    shared.signals.tally.add(written.iter().filter_map(|(_, result)| new(result)));
    if let Some((prepared, result)) = written.into_iter().next() {
        reply(&shared, prepared, result, answer);
    }
}

/// Makes a task ours from the start, if it is due, its shard is ours and there is a slot, which is then reserved.
pub(super) fn offer(shared: &Shared, task: &mut Task) {
    let wanted = task.due <= shared.clock.now() && task.locked_by.is_none();
    if !wanted || !shared.owns(task.lane, task.shard()) || !shared.may_start() || shared.stopping.is_cancelled() {
        return;
    }
    if shared.handlers.contains_key(&task.method) && shared.reserve(Slot::of(task)) {
        task.status = Status::Running;
        task.locked_by = Some(shared.me.number());
        task.locked_at = Some(task.created_at);
        _ = shared.running().expect(task.id, task.version); // a new id
    }
}

/// Answers a caller. One that is gone needs no answer, but what it wanted to run itself is given back.
fn reply(
    shared: &Arc<Shared>,
    prepared: Prepared,
    result: Result<Enqueued>,
    answer: oneshot::Sender<Result<Enqueued>>,
) {
    let held = prepared.held.then(|| prepared.task.clone());
    if let (Err(Ok(Enqueued { existed: false, .. })), Some(task)) =
        (answer.send(accept(shared, prepared, result)), held)
    {
        shared.settler.push(Arc::new(*task), Outcome::GivenBack.into());
    }
}

/// Gives the reserved slot back.
fn withdraw(shared: &Shared, prepared: &Prepared) {
    if !prepared.held {
        withdraw_offer(shared, &prepared.task);
    }
}

/// The same of a task that was only offered.
pub(super) fn withdraw_offer(shared: &Shared, task: &Task) {
    if task.status == Status::Running {
        shared.running().forget(task.id, task.version);
        shared.release(Slot::of(task));
    }
}

/// What is written runs, now or at its time, unless its caller runs it.
fn accept(shared: &Arc<Shared>, prepared: Prepared, result: Result<Enqueued>) -> Result<Enqueued> {
    let fresh = result.as_ref().is_ok_and(|answer| !answer.existed);
    if !fresh {
        withdraw(shared, &prepared);
        if result.as_ref().is_err_and(Error::is_transient) {
            shared.doubts.answer_was_lost();
        }
        return result;
    }
    if prepared.held {
        shared.signals.tell(Signal::Enqueued, &prepared.task);
    } else {
        begin(shared, *prepared.task);
    }
    result
}

/// A task that is written: it runs now, if it was given a slot, or at its time.
pub(super) fn begin(shared: &Arc<Shared>, task: Task) {
    shared.signals.tell(Signal::Enqueued, &task);
    if task.status == Status::Running {
        shared.start_reserved(task);
    } else if shared.owns(task.lane, task.shard()) {
        shared.expect(Due::of(&task, task.version, task.due));
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use std::task::Poll;
    use std::time::Duration;

    use futures_util::future::{join_all, poll_fn};

    use super::*;
    use crate::clock::Clock;
    use crate::engine::Engine;
    use crate::new_task::NewTask;
    use crate::store::{Faults, Store, StoreOptions};

    /// Nothing else runs between two awaits here, so all are asked for before the first flush and have waited long at its end.
    #[tokio::test]
    async fn in_an_outage_nobody_waits_for_all_who_came_before() {
        let (clock, faults, retry_for) =
            (Clock::manual(Timestamp::from_millis(1)), Faults::default(), Duration::from_millis(100));
        let options = StoreOptions { faults: Some(faults.clone()), retry_for, ..StoreOptions::default() };
        let store = Store::open_with("sqlite::memory:", options).await.unwrap();
        let engine = Engine::builder(store).clock(clock.clone()).by_hand().start().await.unwrap();
        faults.set_down(true);
        let callers = (0..3 * MOST_ROWS).map(|n| {
            let (engine, faults) = (engine.clone(), faults.clone());
            async move {
                let answer = engine.enqueue(NewTask::new("m", &n).unwrap()).await;
                faults.set_down(false); // for those behind, it is back as soon as one has heard that it is not
                answer
            }
        });
        let mut all = Box::pin(join_all(callers));
        assert!(poll_fn(|cx| Poll::Ready(all.as_mut().poll(cx))).await.is_pending());
        clock.advance(retry_for);
        let answers = all.await;
        assert!(answers.iter().all(|answer| answer.as_ref().is_err_and(Error::is_transient)));
        engine.enqueue(NewTask::new("m", &1).unwrap()).await.unwrap();
    }
}
