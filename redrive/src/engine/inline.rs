//! What [`call`](crate::call) needs of the engine: contexts and ids for first tries, and rows that are held by a caller.
//!
//! A task that is written down before its first try is ours like any that we claimed, but a caller runs it: it takes no
//! slot, it cannot be aborted, and if the caller goes away its guard gives it back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::{Timestamp, pause};
use crate::context::{Context, Inline};
use crate::error::{Error, Result};
use crate::id::TaskId;
use crate::new_task::{NewTask, OnDuplicate};
use crate::retryable::{FirstTry, Persist, Retryable};
use crate::settings::Defaults;
use crate::settle::Outcome;
use crate::store::{Enqueued, Prepared, TaskFilter};
use crate::task::Task;

use super::handler::Attempted;
use super::{Engine, Shared};

impl Engine {
    /// What holds for calls and tasks that do not say otherwise.
    pub fn defaults(&self) -> Arc<Defaults> {
        self.0.defaults.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// When a call is written down, and what its first try needs of its policy.
    pub(crate) fn first_try_of<C: Retryable>(&self, call: &C) -> (Persist, FirstTry) {
        self.defaults().first_try(call) // which asks the application: not under the lock
    }

    /// Whether this engine has a handler of this method.
    pub fn handles(&self, method: &str) -> bool {
        self.0.handlers.contains_key(method)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    pub(crate) fn new_id(&self, shard: Option<u8>) -> TaskId {
        self.0.store.new_id(shard, self.now())
    }

    /// Chance for the jitter of retries in memory.
    pub(crate) fn chance(&self, n: u32) -> f64 {
        let mixed = xxhash_rust::xxh3::xxh3_64_with_seed(&n.to_le_bytes(), self.now().as_millis().cast_unsigned());
        (mixed >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn inline_context<'a>(&'a self, attempt: u32, call: &'a (dyn Inline + 'a)) -> Context<'a> {
        Context::inline(attempt, call, &self.0.stopping, &self.0.state)
    }

    /// Runs all that is due, and what that makes due; how many attempts were settled. For engines by hand.
    pub(crate) async fn run_due_by_hand(&self) -> Result<u64> {
        let shared = &self.0;
        let before = shared.settled.load(Ordering::Acquire);
        shared.gate.store(true, Ordering::Release);
        while self.look_at_sagas_by_hand().await? > 0 || !self.is_idle().await? {
            shared.wake.scanner.notify_one();
            shared.wake.claimer.notify_one();
            pause(Duration::from_millis(1)).await;
        }
        shared.gate.store(false, Ordering::Release);
        Ok(shared.settled.load(Ordering::Acquire) - before)
    }

    /// Nothing runs, and nothing that is due could.
    async fn is_idle(&self) -> Result<bool> {
        let shared = &self.0;
        if !shared.running().is_empty() || shared.settler.len() > 0 {
            return Ok(false);
        }
        let waiting = shared.store.list(&TaskFilter::default(), 10_000).await?;
        let now = self.now();
        let may_run = |task: &Task| shared.handlers.contains_key(&task.method) && !shared.limits().is_held(task.lane);
        Ok(!waiting.iter().any(|task| task.due <= now && may_run(task)))
    }

    /// The task that a first try would have been.
    pub(crate) fn first_try(&self, new: NewTask, now: Timestamp) -> Result<Task> {
        self.0.store.prepare(new, now).map(|prepared| *prepared.task)
    }

    /// Writes down a task that waits after its first try.
    pub(crate) async fn insert_tried(&self, mut task: Task) -> Result<Enqueued> {
        (task.version, task.locked_by, task.locked_at) = (0, None, None);
        self.0.inserter.insert(Prepared { task: Box::new(task), on_duplicate: OnDuplicate::Keep, held: false }).await
    }

    /// Writes a task down as running here, for a caller. `Err` inside: it is not the caller's to run, because its twin lives
    /// already, because we are not the node any more that it was written down under, or because we stop.
    pub(crate) async fn hold_inline(&self, new: NewTask) -> Result<Result<HeldInline, Enqueued>> {
        let shared = &self.0;
        if !shared.handlers.contains_key(&new.method) {
            let why = "no handler of this method is registered here, so nobody could make it good".into();
            return Err(Error::Conflict { doing: "call", id: new.method, why });
        }
        if !shared.me.may_work() {
            let why = "this node is cut off from its database".into();
            return Err(Error::Unavailable { doing: "write down a call of", id: new.method, why });
        }
        let waiting = new.clone();
        let mut prepared = shared.store.prepare(new.running_on(shared.me.number()), self.now())?;
        prepared.held = true;
        let guard = HeldInline::new(shared.clone(), Arc::new((*prepared.task).clone()));
        // Looked at after it is in `running`, where a stop looks after it has begun: one of the two sees the other.
        if shared.stopping.is_cancelled() {
            drop(guard);
            return shared.inserter.insert(shared.store.prepare(waiting, self.now())?).await.map(Err);
        }
        let answer = shared.inserter.insert(prepared).await?;
        if answer.existed {
            return Ok(Err(answer));
        }
        let held = guard.written(answer.id);
        let may = shared.me.may_work() && !shared.stopping.is_cancelled();
        let ours = may && held.task.locked_by == Some(shared.me.number());
        Ok(if ours { Ok(held) } else { Err(answer) })
    }
}

/// A task that is ours and that a caller runs. Dropped: it is given back.
#[derive(Debug)]
pub(crate) struct HeldInline {
    shared: Arc<Shared>,
    task: Arc<Task>,
    cancelled: CancellationToken,
    state: Held,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// On its way into the database.
    Coming,
    Executing,
    Ended,
}

impl HeldInline {
    fn new(shared: Arc<Shared>, task: Arc<Task>) -> Self {
        _ = shared.running().expect(task.id, task.version); // a new id
        Self { shared, task, cancelled: CancellationToken::new(), state: Held::Coming }
    }

    /// It is there, under this id.
    fn written(mut self, id: TaskId) -> Self {
        if id != self.task.id {
            self.shared.running().forget(self.task.id, self.task.version);
            self.task = Arc::new(Task { id, ..(*self.task).clone() });
        }
        self.shared.running().start(self.task.clone(), self.cancelled.clone(), false);
        self.state = Held::Executing;
        self
    }

    pub(crate) fn task(&self) -> &Arc<Task> {
        &self.task
    }

    pub(crate) fn context(&self) -> Context<'static> {
        Context::stored(self.task.clone(), self.cancelled.clone(), self.shared.state.clone())
    }

    /// Waits until it is not ours any more. That a person wants it cancelled is not that.
    pub(crate) async fn lost(&self) {
        self.cancelled.cancelled().await;
        while self.shared.running().is_executing(self.task.id, self.task.version) {
            pause(Duration::from_millis(100)).await;
        }
    }

    /// The try has ended.
    pub(crate) fn finish(mut self, outcome: Outcome, result: Option<String>) {
        self.end(Attempted { outcome, result });
    }

    fn end(&mut self, ended: Attempted) {
        if self.state == Held::Executing && self.shared.running().finish(self.task.id, self.task.version) {
            self.shared.settler.push(self.task.clone(), ended);
        }
        self.state = Held::Ended;
    }
}

impl Drop for HeldInline {
    fn drop(&mut self) {
        match self.state {
            Held::Ended => {}
            Held::Executing => self.end(Outcome::GivenBack.into()),
            // Not there, or not known to be: if it is, the sweep finds that it is ours and gives it back.
            Held::Coming => {
                self.shared.running().forget(self.task.id, self.task.version);
                self.shared.doubts.answer_was_lost();
            }
        }
    }
}
