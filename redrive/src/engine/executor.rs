//! Attempts: each a tokio task that runs a handler and hands its outcome to the settler.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::call_error::no_result;
use crate::classify::{Failure, Kind};
use crate::clock::{Stopwatch, Timestamp, pause};
use crate::context::{Context, Words};
use crate::crypt::{is_sealed, open};
use crate::id::{IdMap, TaskId};
use crate::settle::{Outcome, spent};
use crate::task::Task;

use super::Shared;
use super::handler::{Attempted, Handler, State};
use super::limits::Slot;
use super::pass::Passed;

/// The tasks that are ours, or may be.
#[derive(Debug, Default)]
pub(super) struct Running {
    /// With the version at which we hold them: a task that was settled can be ours again before that is noted here.
    tasks: IdMap<(i32, Held)>,
}

#[derive(Debug)]
enum Held {
    /// Being claimed or inserted: it may be ours in the database already.
    Coming,
    Executing {
        task: Arc<Task>,
        cancel: CancellationToken,
        abort: Option<AbortHandle>,
        /// Whether it has a slot: what a caller runs has none.
        slot: bool,
    },
    Settling,
}

impl Running {
    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub(super) fn holds(&self, id: TaskId) -> bool {
        self.tasks.contains_key(&id)
    }

    /// It may become ours at this version, any moment. `false`: it is, or has been, ours at that version or a later one.
    pub(super) fn expect(&mut self, id: TaskId, version: i32) -> bool {
        let stale = self.tasks.get(&id).is_some_and(|(at, _)| *at >= version);
        if !stale {
            self.tasks.insert(id, (version, Held::Coming));
        }
        !stale
    }

    /// It has not become ours, or we do not know.
    pub(super) fn forget(&mut self, id: TaskId, version: i32) {
        if matches!(self.tasks.get(&id), Some((at, Held::Coming)) if *at == version) {
            self.tasks.remove(&id);
        }
    }

    pub(super) fn start(&mut self, task: Arc<Task>, cancel: CancellationToken, slot: bool) {
        let (id, version) = (task.id, task.version);
        self.tasks.insert(id, (version, Held::Executing { task, cancel, abort: None, slot }));
    }

    /// Its handler runs. If it has been stopped meanwhile, that goes for the handler, too.
    fn started(&mut self, id: TaskId, version: i32, handle: AbortHandle) {
        match self.tasks.get_mut(&id) {
            Some((held, Held::Executing { abort, .. })) if *held == version => *abort = Some(handle),
            _ => handle.abort(),
        }
    }

    /// Whether it is ours at this version, and its handler may run.
    pub(super) fn is_executing(&self, id: TaskId, version: i32) -> bool {
        matches!(self.tasks.get(&id), Some((at, Held::Executing { .. })) if *at == version)
    }

    /// Whether it is ours at this version, and its outcome is to be written.
    pub(super) fn is_settling(&self, id: TaskId, version: i32) -> bool {
        matches!(self.tasks.get(&id), Some((at, Held::Settling)) if *at == version)
    }

    /// From executing to settling. `false`: someone else has done that.
    pub(super) fn finish(&mut self, id: TaskId, version: i32) -> bool {
        match self.tasks.get_mut(&id) {
            Some((at, held @ Held::Executing { .. })) if *at == version => {
                *held = Held::Settling;
                true
            }
            _ => false,
        }
    }

    /// What we held at this version is settled, or lost.
    pub(super) fn remove(&mut self, id: TaskId, version: i32) {
        if self.tasks.get(&id).is_some_and(|(held, _)| *held == version) {
            self.tasks.remove(&id);
        }
    }

    /// Tells a handler that its task is not wanted any more.
    pub(super) fn cancel(&self, id: TaskId) {
        if let Some((_, Held::Executing { cancel, .. })) = self.tasks.get(&id) {
            cancel.cancel();
        }
    }

    /// Since when the oldest attempt of each method runs.
    pub(super) fn oldest_by_method(&self) -> HashMap<String, Timestamp> {
        let mut oldest: HashMap<String, Timestamp> = HashMap::new();
        for (_, held) in self.tasks.values() {
            let Held::Executing { task, .. } = held else { continue };
            let Some(since) = task.locked_at else { continue };
            match oldest.get_mut(&task.method) {
                Some(first) => *first = since.min(*first),
                None => _ = oldest.insert(task.method.clone(), since),
            }
        }
        oldest
    }

    /// The tasks whose handlers run.
    pub(super) fn executing(&self) -> Vec<TaskId> {
        self.tasks.iter().filter(|(_, (_, held))| matches!(held, Held::Executing { .. })).map(|(id, _)| *id).collect()
    }

    pub(super) fn cancel_all(&self) {
        for (_, held) in self.tasks.values() {
            if let Held::Executing { cancel, .. } = held {
                cancel.cancel();
            }
        }
    }

    /// Stops all handlers; the tasks that were executing, now settling.
    fn stop_all(&mut self) -> Vec<(Arc<Task>, Option<Slot>)> {
        let mut stopped = Vec::new();
        for (_, held) in self.tasks.values_mut() {
            if let Held::Executing { task, cancel, abort, slot } = held {
                cancel.cancel();
                abort.iter().for_each(AbortHandle::abort);
                stopped.push((task.clone(), slot.then(|| Slot::of(task))));
                *held = Held::Settling;
            }
        }
        stopped
    }

    /// Forgets everything: we are fenced, and others have our tasks.
    fn clear(&mut self) {
        self.tasks.clear();
    }
}

impl Shared {
    /// Starts a task that has a slot.
    pub(super) fn start_reserved(self: &Arc<Self>, task: Task) {
        let task = Arc::new(task);
        let cancel = CancellationToken::new();
        self.running().start(task.clone(), cancel.clone(), true);
        // Only methods that we handle are claimed; and the answer may have come when we may not work any more, are stopping, or are
        // another node already: the settle of what is not ours is refused.
        let may = self.me.may_work() && !self.stopping.is_cancelled();
        let ours = may && task.locked_by == Some(self.me.number());
        let Some(handler) = self.handlers.get(&task.method).filter(|_| ours) else {
            return self.finish(task, Outcome::GivenBack.into());
        };
        let read = match self.readable(&task) {
            Ok(read) => read,
            Err(why) => {
                tracing::error!(task = %task.id, method = %task.method, why, "params cannot be decrypted; the task waits");
                return self.finish(task, Outcome::Sealed(format!("params cannot be read: {why}")).into());
            }
        };
        let is_secret = !Arc::ptr_eq(&read, &task);
        let attempt = attempt(handler, read, cancel, self.state.clone());
        let (shared, id, version) = (self.clone(), task.id, task.version);
        let (held, number) = (task.clone(), task.attempts + 1);
        let span = tracing::debug_span!("attempt", task = %id, method = %task.method, attempt = number, node = %self.me.number());
        let running = async move {
            let mut now = shared.clock.now();
            if now < task.due {
                pause(task.due.since(now)).await;
                now = shared.clock.now();
            }
            // What is written as running was not looked at by a claim, and time has passed since one looked: the next one ends it.
            let waits = spent(&task, now).is_some() || shared.is_too_fast(&task, now);
            let Some(pass) = (if waits { None } else { shared.begin(&task) }) else {
                return shared.finish(task, Outcome::GivenBack.into());
            };
            let passed = Passed::new(&shared, task.lane, pass, task.policy.timeout);
            shared.signals.started(&task, now.since(task.due));
            let started = Stopwatch::start();
            let mut ended = attempt.await;
            if let (true, Outcome::Undecodable(why)) = (is_secret, &mut ended.outcome) {
                *why = "encrypted params are not what the handler takes (how they differ is not told)".into();
            }
            let took = started.elapsed();
            shared.signals.ended(&task, took);
            passed.end(&ended.outcome, took, || shared.gate_name(&task));
            shared.note_pace(task.lane, &task.policy, &ended.outcome, Some(took));
            if task.lane.0 < 0 && is_answer(&ended.outcome) {
                shared.limits().note_answer(task.lane);
            }
            shared.finish(task, ended);
        };
        let (shared, held) = (self.clone(), held);
        let running = AssertUnwindSafe(running).catch_unwind().map(move |ended| {
            if let Err(panic) = ended {
                // Not the handler's work, which is looked after: a destructor of what it left behind when its time was up.
                let failed = failed(&held, &Words::default(), Kind::PANIC, panicked(&*panic));
                shared.finish(held, failed);
            }
        });
        let running = if span.is_disabled() { tokio::spawn(running) } else { tokio::spawn(running.instrument(span)) };
        self.running().started(id, version, running.abort_handle());
    }

    /// The task with its params in the clear, for its handler alone.
    pub(super) fn readable(&self, task: &Arc<Task>) -> Result<Arc<Task>, String> {
        if !is_sealed(&task.params) {
            return Ok(task.clone());
        }
        let params = open(self.store.keyring(), &task.method, &task.params)?;
        Ok(Arc::new(Task { params, ..(**task).clone() }))
    }

    /// An attempt has ended: its slot is free, and what becomes of it is to be written.
    fn finish(&self, task: Arc<Task>, ended: Attempted) {
        if self.has_gates {
            self.gates.return_probe(task.lane, task.id); // if it was to be one and has not begun
        }
        if self.running().finish(task.id, task.version) {
            self.release(Slot::of(&task));
            self.settler.push(task, ended);
        }
    }

    /// Stops all handlers and gives their tasks back: we may not work any more, or have to end.
    pub(super) fn give_back_all(&self) {
        let stopped = self.running().stop_all();
        for (task, slot) in stopped {
            slot.into_iter().for_each(|slot| self.release(slot));
            self.gates.return_probe(task.lane, task.id); // one that has not begun
            self.settler.push(task, Outcome::GivenBack.into());
        }
    }

    /// Stops all handlers and forgets their tasks: we are fenced.
    pub(super) fn drop_all(&self) {
        let stopped = self.running().stop_all();
        for (task, slot) in stopped {
            slot.into_iter().for_each(|slot| self.release(slot));
            self.gates.return_probe(task.lane, task.id); // one that has not begun
        }
        self.running().clear();
        self.settler.clear();
        self.forget_waiting();
    }
}

/// Failures of which nobody knows whether anybody is there.
const UNANSWERED: [&str; 6] = ["timeout", "connect", "dns", "tls", "refused_address", "panic"];

/// Returns whether what a task calls has answered, however.
pub(super) fn is_answer(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Done | Outcome::Fatal(_) | Outcome::Snooze(_) | Outcome::SlowDown(_) | Outcome::Cancel => true,
        Outcome::Failed(failure) => {
            let kind = failure.kind.as_str();
            !UNANSWERED.contains(&kind.split('.').next().unwrap_or(kind))
        }
        Outcome::GivenBack | Outcome::Undecodable(_) | Outcome::Sealed(_) | Outcome::Crashed => false,
    }
}

/// Runs a handler; a panic or a timeout is a failed attempt.
fn attempt(
    handler: &Handler,
    task: Arc<Task>,
    cancel: CancellationToken,
    state: State,
) -> impl Future<Output = Attempted> + Send + use<> {
    let limit = task.policy.timeout;
    let cx = Context::stored(task.clone(), cancel, state);
    let words = cx.words();
    let (handler, run) = (handler.clone(), task.clone());
    let running = AssertUnwindSafe(async move { handler.run(cx, run).await }).catch_unwind();
    async move {
        let ended = match limit {
            None => running.await,
            Some(limit) => match tokio::time::timeout(limit, running).await {
                Ok(ended) => ended,
                Err(_) => return failed(&task, &words, Kind::TIMEOUT, no_result(limit)),
            },
        };
        ended.unwrap_or_else(|panic| failed(&task, &words, Kind::PANIC, panicked(&*panic)))
    }
}

/// A failure that the handler did not live to tell of; what it said before holds.
fn failed(task: &Task, words: &Words, kind: Kind, why: String) -> Attempted {
    let class = task.policy.classify(&kind);
    words.said().of(Failure { class, ..Failure::retry(kind, why) }).into()
}

pub(crate) fn panicked(panic: &(dyn std::any::Any + Send)) -> String {
    let said =
        panic.downcast_ref::<&str>().map(|s| (*s).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the handler panicked: {}", said.unwrap_or_else(|| "without a message".into()))
}
