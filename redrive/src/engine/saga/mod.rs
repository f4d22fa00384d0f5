//! Steps of sagas as tasks: what runs them, and what hears of their end.
//!
//! A step's task names its saga and what is to be done ([`Work`]); everything else is in the journal. An attempt looks whether that is
//! still wanted, runs the step, has its outcome written (with what follows from it: see `journals`) and only then ends its task. Failures
//! that are tried again are the task's own matter. One that is given up calls `redrive.saga.ended`, in the transaction in which
//! it ends. Going back stops what is under way by `redrive.saga.stop`, a task as well: what is to be done after a commit must survive
//! a crash.
//!
//! | file | what |
//! | --- | --- |
//! | `people` | what an application and its people ask and do |
//! | `tell` | what is told to a saga, and what follows from it |
//! | `journals` | the writes of all sagas of this node, together |
//! | `queue` | what is asked of sagas and not written yet |
//! | `memory` | what this node remembers of sagas |
//! | `times` | deadlines, waits and expiries that come due |
//! | `lost` | work whose task is gone |

pub(super) mod journals;
mod lost;
mod memory;
mod people;
mod queue;
mod tell;
pub(super) mod times;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::call_error::UNMET;
use crate::callback::FinalFailure;
use crate::classify::{Class, Failure, Kind};
use crate::clock::{Timestamp, pause};
use crate::condition;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::new_task::NewTask;
use crate::policy::{OnExhausted, Policy};
use crate::saga::{
    Definition, Doer, Event, Flow, Op, Saga, State, StepCx, StepError, StepRunner, UndoKind, Work, undo_policy,
};
use crate::settle::Outcome;
use crate::store::Store;
use crate::task::{Task, limits};

use super::handler::{Attempted, Attempting, Handler, decode};
use super::{Builder, MethodOptions, Shared, Verdict};
use queue::Journals;
use tell::Tell;
use times::Times;

pub use people::{Sagas, StartedSaga};

/// What hears that a step's task was given up.
pub(super) const ENDED: &str = "redrive.saga.ended";
/// What stops tasks that are not wanted any more.
pub(super) const STOP: &str = "redrive.saga.stop";
/// The business type of a saga's tasks.
pub(super) const BUSINESS: &str = "saga";
/// Undoing goes before what is begun.
const UNDO_PRIORITY: i16 = 10;

/// What a step's task is called with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StepParams {
    pub(super) saga: String,
    #[serde(flatten)]
    pub(super) work: Work,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    part: Option<String>,
    /// The number of the saga's last event when the task was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seq: Option<i64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StopParams {
    saga: String,
    work: Vec<Work>,
}

/// What the builder knows of sagas.
#[derive(Debug, Default)]
pub(super) struct SagaSetup {
    journals: Arc<Journals>,
    definitions: Vec<Definition>,
    hook: Option<Hook>,
    engine: Later,
    /// Whether this engine runs steps.
    any: bool,
}

/// The engine, for handlers of our own, once there is one.
type Later = Arc<OnceLock<Weak<Shared>>>;

/// What the engine has for sagas.
#[derive(Debug)]
pub(super) struct Desk {
    journals: Arc<Journals>,
    /// Those that may be started by their names, with their definitions as JSON.
    pub(super) named: HashMap<String, (Arc<Flow>, String)>,
    times: Times,
    hook: Option<Hook>,
    engine: Later,
    /// Whether this engine runs steps.
    pub(super) any: bool,
}

impl Desk {
    pub(super) fn belongs_to(&self, shared: &Arc<Shared>) {
        _ = self.engine.set(Arc::downgrade(shared));
    }
}

impl Builder {
    /// Runs the steps of this saga, and lets it be [started](crate::saga::Sagas::start) by its name.
    pub fn saga<I>(mut self, saga: Saga<I>) -> Self {
        for (method, (runner, options)) in saga.runners {
            self = self.runner(method, options, runner);
        }
        self.sagas.definitions.push(saga.definition);
        self
    }

    /// Runs the steps of sagas that name this method, whatever sagas these are: for steps that are not Rust types. Their
    /// definitions say with which [part](crate::Builder::split) of the method each is scheduled.
    pub fn saga_runner(self, method: impl Into<String>, options: MethodOptions, runner: impl StepRunner) -> Self {
        self.runner(method.into(), options, Arc::new(runner))
    }

    fn runner(mut self, method: String, options: MethodOptions, runner: Arc<dyn StepRunner>) -> Self {
        let (journals, store) = (self.sagas.journals.clone(), self.store.clone());
        let run = move |cx: Context<'static>, task: Arc<Task>| -> Attempting {
            let (journals, store, runner) = (journals.clone(), store.clone(), runner.clone());
            Box::pin(async move { attempt(&journals, &store, &*runner, cx, &task).await })
        };
        let part = |params: &str| serde_json::from_str::<StepParams>(params).ok()?.part;
        self.add(Handler::raw(method, options, run, part));
        self.sagas.any = true;
        self
    }

    /// Called before and after each write of journals, with that word: for tests that kill the process there.
    #[doc(hidden)]
    pub fn journal_hook(mut self, hook: impl Fn(&'static str) + Send + Sync + 'static) -> Self {
        self.sagas.hook = Some(Hook(Arc::new(hook)));
        self
    }

    /// What the engine needs for sagas; with them come handlers of our own.
    pub(super) fn gather_sagas(&mut self) -> Result<Desk> {
        if self.sagas.any {
            self.add(self.ended_handler());
            self.add(self.stop_handler());
        }
        let SagaSetup { journals, definitions, hook, engine, any } = std::mem::take(&mut self.sagas);
        let mut named = HashMap::new();
        for definition in definitions {
            let json = serde_json::to_string(&definition).map_err(|e| Error::invalid("saga", e.to_string()))?;
            let name = definition.name.clone();
            let twice = format!("{name:?} is the name of two sagas; give one of them another");
            if named.insert(name, (journals.memory.flow(definition)?, json)).is_some() {
                return Err(Error::invalid("saga", twice));
            }
        }
        Ok(Desk { journals, named, times: Times::default(), hook, engine, any })
    }

    fn ended_handler(&self) -> Handler {
        let journals = self.sagas.journals.clone();
        let ended = move |_: Context<'static>, failure: FinalFailure| {
            let journals = journals.clone();
            async move { hear(&journals, failure).await }
        };
        Handler::new(ENDED.into(), MethodOptions::default(), ended)
    }

    fn stop_handler(&self) -> Handler {
        let later = self.sagas.engine.clone();
        let stop = move |_: Context<'static>, params: StopParams| {
            let shared = later.get().and_then(Weak::upgrade);
            async move {
                match shared {
                    Some(shared) => shared.stop_work(&params).await.map_err(Verdict::from),
                    None => Err(Verdict::Snooze(Duration::from_secs(1))), // it is just being started, or stopped
                }
            }
        };
        Handler::new(STOP.into(), MethodOptions::default(), stop)
    }
}

/// See [`Builder::journal_hook`].
struct Hook(Arc<dyn Fn(&'static str) + Send + Sync>);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

/// One attempt at a step.
async fn attempt(
    journals: &Journals,
    store: &Store,
    runner: &dyn StepRunner,
    context: Context<'static>,
    task: &Task,
) -> Attempted {
    let params: StepParams = match decode(task) {
        Ok(params) => params,
        Err(undecodable) => return undecodable.into(),
    };
    let saga = match wanted(journals, store, &params, task).await {
        Ok(Wanted::Yes(saga)) => saga,
        Ok(Wanted::Stopped) => return leave(journals, &params, task).await.into(),
        Ok(Wanted::Later) => return Outcome::Snooze(ANOTHERS).into(),
        Ok(Wanted::No) => return Outcome::Done.into(),
        Err(e) => return untried(&params, &e).into(),
    };
    let doer = doer(&params, task);
    let cx = StepCx { context, saga, id: params.saga, work: params.work };
    let ended = runner.run(&cx).await.and_then(|output| accepted(store, task, cx.op(), output));
    let event = match ended {
        Ok(output) => Event::Done { work: cx.work.clone(), output, by: None },
        Err(StepError::Ongoing(time)) => return Outcome::Snooze(time).into(),
        Err(StepError::Failed(failure))
            if failure.kind == Kind::UNMET
                || task.policy.classify(&failure.kind) == Class::Retry
                || (Kind::SLOW_DOWN.covers(&failure.kind) && !task.policy.excepts(&failure.kind)) =>
        {
            return Outcome::from(Failure { class: Class::Retry, ..failure }).into();
        }
        Err(StepError::Refused(error)) if cx.op() == Op::Confirm || is_first(task) => {
            gone_wrong(&cx.work, true, &error)
        }
        Err(StepError::Refused(error)) => {
            gone_wrong(&cx.work, false, &format!("refused, but an earlier attempt may have had an effect: {error}"))
        }
        Err(StepError::Unknown(error)) => gone_wrong(&cx.work, false, &error),
        Err(StepError::Failed(failure)) => gone_wrong(&cx.work, false, &failure.message),
    };
    end(journals, &cx, event, doer).await.into()
}

/// Whether nobody can have tried this before: only then does a refusal say that it has had no effect. A task that was written as running
/// has version 0 at its first attempt, one that was claimed for it has 1; and a letter that was brought back had its attempts before.
fn is_first(task: &Task) -> bool {
    task.version <= 1 && task.attempts + task.crashes + task.postponements == 0 && task.origin_id.is_none()
}

/// For how long after it is made a task goes by what its node remembers of its saga.
const JUST_NOW: Duration = Duration::from_secs(1);

/// Whether a task was taken to be run a moment after the journal was written for it. What waited for long, or was tried before, must not go
/// by what was remembered then: people may have said otherwise since.
fn is_just_made(task: &Task) -> bool {
    is_first(task) && task.locked_at.is_some_and(|taken| taken.since(task.created_at) < JUST_NOW)
}

/// How long a task waits for another one that has its work.
const ANOTHERS: Duration = Duration::from_secs(5);

/// Whether a saga wants some work to be done.
enum Wanted {
    Yes(Arc<State>),
    /// Not any more: it goes back, and waits to hear how this ends.
    Stopped,
    /// Another task has it, which was made or brought back since.
    Later,
    /// It is decided, or gone: there is nothing to do.
    No,
}

/// Whether its saga still wants this. What is known here may be out of date: whoever is not wanted, or was not made just now, or was made
/// by another node of something newer, looks again. Every attempt after the first, and every dead letter that was brought back, is recorded in
/// the journal before it runs (see `saga/begun.rs`): otherwise the saga could be sent elsewhere while it runs, or be told by an earlier
/// attempt that it has failed.
async fn wanted(journals: &Journals, store: &Store, params: &StepParams, task: &Task) -> Result<Wanted> {
    let (id, work, doer) = (&params.saga, &params.work, doer(params, task));
    let is_its = |saga: &State| saga.is_awaited(work) && saga.begun(work).is_by(&doer);
    if is_just_made(task)
        && let Some(saga) = journals.memory.get(store, id, false).await?
        && params.seq.is_some_and(|seq| saga.seq >= seq)
        && saga.wants(work)
        && is_its(&saga)
    {
        return Ok(Wanted::Yes(saga));
    }
    let found = journals.memory.get(store, id, true).await?;
    let has_to_do = |saga: &Arc<State>| saga.wants(work) || saga.is_awaited(work);
    // A server that was the primary until a moment ago may not have heard of it yet: what ends a task is read from one that is.
    let found = match found.filter(has_to_do) {
        Some(saga) => Some(saga),
        None => journals.memory.verified(store, id).await?,
    };
    let Some(mut saga) = found else { return Ok(Wanted::No) };
    if saga.wants(work) && !is_its(&saga) {
        saga = journals.tell(id, Tell::Again(work.clone(), doer)).await?.state;
    }
    Ok(match (saga.wants(work), saga.is_awaited(work)) {
        (true, true) if is_its(&saga) => Wanted::Yes(saga),
        (true, true) => Wanted::Later,
        (false, true) => Wanted::Stopped,
        (_, false) => Wanted::No,
    })
}

/// Names a task's attempt for its saga.
fn doer(params: &StepParams, task: &Task) -> Doer {
    Doer { task: task.id, turn: task.turn(), origin: task.origin_id, made: params.seq }
}

/// Its saga has turned back before this attempt, and [`STOP`] has not come for it yet. Without a word about it the saga would wait for
/// ever. Only of what nobody has tried before is it known that it had no effect.
async fn leave(journals: &Journals, params: &StepParams, task: &Task) -> Outcome {
    let event = gone_wrong(&params.work, is_first(task), "stopped: the saga goes back");
    match journals.tell(&params.saga, Tell::Failed(event, doer(params, task))).await {
        Ok(_) | Err(Error::NotFound { .. }) => Outcome::Done,
        Err(e) => untried(params, &e),
    }
}

/// What comes of an attempt, if it can be stored and what was run is a success by its policy.
fn accepted(store: &Store, task: &Task, op: Op, output: Value) -> Result<Value, StepError> {
    fits(store, &output)?;
    match &task.policy.success_if {
        Some(condition) if op == Op::Run && !meets(&output, condition) => {
            Err(StepError::Failed(Failure::retry(Kind::UNMET, UNMET)))
        }
        _ => Ok(output),
    }
}

/// Whether a condition holds for an output: for `result`, which is all of it, and for its fields by their names, such as the `status`,
/// `headers` and `body` of a request.
fn meets(output: &Value, condition: &str) -> bool {
    let fields = output.as_object().into_iter().flatten().map(|(name, value)| (name.as_str(), value));
    let variables: Vec<(&str, &Value)> = fields.chain([("result", output)]).collect();
    condition::holds(condition, &variables)
}

/// What cannot be stored, or could not be read again, is not taken. It was done, though.
fn fits(store: &Store, output: &Value) -> Result<(), StepError> {
    let is_short = output.is_null() || output.to_string().len() <= store.max_params();
    match is_short && depth(output) <= DEEPEST {
        true => Ok(()),
        false => Err(StepError::unknown(format!(
            "its output is of more than {} bytes, or nested deeper than {DEEPEST}",
            store.max_params()
        ))),
    }
}

/// How deep a value is nested; what is written must be read again, and readers of JSON give up at 128.
pub(super) const DEEPEST: usize = 100;

pub(super) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(all) => 1 + all.iter().map(depth).max().unwrap_or(0),
        Value::Object(all) => 1 + all.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

fn gone_wrong(work: &Work, refused: bool, error: &str) -> Event {
    Event::Failed { work: work.clone(), refused, error: crate::task::storable(error, limits::ERROR) }
}

/// Has an outcome written, and says what becomes of the task: if the saga needs a person because of it, a dead letter.
async fn end(journals: &Journals, cx: &StepCx, event: Event, doer: Doer) -> Outcome {
    let error = match &event {
        Event::Failed { error, .. } => Some(error.clone()),
        _ => None,
    };
    let tell = if error.is_some() { Tell::Failed(event, doer) } else { Tell::Event(event) };
    let mut wait = JOURNAL_WAIT;
    loop {
        match journals.tell(&cx.id, tell.clone()).await {
            Ok(answer) => match error {
                Some(error) if answer.state.wants(&cx.work) => {
                    return Outcome::Fatal(Failure::reject("refused", error));
                }
                _ => return Outcome::Done,
            },
            Err(Error::NotFound { .. }) => return Outcome::Done,
            // This node stops. Another attempt follows, and it must be told apart from this one: what this one has reported may still be written.
            Err(e) if e.is_transient() => return Outcome::GivenBack,
            // The step was run: without its outcome it would be run again.
            Err(e) => {
                let (saga, step) = (&cx.id, cx.work.place());
                tracing::error!(saga, step, error = %e, "the outcome of a step cannot be written; trying again");
            }
        }
        pause(wait).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

/// Postpones an attempt that was not made, since the journal could not be read or written. It is not the step's fault, so it does not
/// count: a step that may be tried once is still tried.
fn untried(params: &StepParams, e: &Error) -> Outcome {
    tracing::warn!(saga = params.saga, step = params.work.place(), error = %e, "a step waits for its saga's journal");
    match e.is_transient() {
        true => Outcome::Snooze(JOURNAL_WAIT),
        false => Outcome::Sealed(format!("the saga's journal: {e}")),
    }
}

/// The time for which a step waits while the database does not answer.
const JOURNAL_WAIT: Duration = Duration::from_secs(1);

/// The longest pause before an outcome is written again that could not be written.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A step's task was given up: what came of it is not known, unless nobody has ever had it.
async fn hear(journals: &Journals, failure: FinalFailure) -> Result<(), Verdict> {
    let params: StepParams = serde_json::from_value(failure.params)?;
    let why = serde_json::to_value(failure.reason).ok().and_then(|reason| reason.as_str().map(str::to_owned));
    let error = failure.error.unwrap_or_else(|| why.clone().unwrap_or_default());
    let error = format!("{}: {error}", why.unwrap_or_default());
    let event = gone_wrong(&params.work, failure.untouched, &error);
    let given_up = Tell::GivenUp { failed: event, task: failure.task_id, made: params.seq };
    match journals.tell(&params.saga, given_up).await {
        Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

impl Shared {
    /// The task of some work.
    pub(super) fn saga_task(
        &self,
        id: &str,
        state: &State,
        work: &Work,
        committed: bool,
        now: Timestamp,
    ) -> Result<Task> {
        let definition = &state.flow.definition;
        let step = work.step.as_deref().and_then(|name| state.flow.place(name)).and_then(|i| state.flow.step(i));
        let (method, part, own) = match step {
            Some(step) => {
                let part = match work.op {
                    Op::Run => None,
                    Op::Undo => step.undo_part.clone(),
                    Op::Confirm => step.confirm_part.clone(),
                };
                let own = if work.op == Op::Run { &step.policy } else { &step.undo_policy };
                (definition.method_of(step), part.or_else(|| step.part.clone()), own.clone())
            }
            None => {
                let with = definition.compensate_with.clone().unwrap_or_default();
                (definition.compensate_method().unwrap_or_default(), with.part, with.policy)
            }
        };
        let mut policy = match (own, work.op) {
            (Some(own), _) => own,
            (None, Op::Run) => (*self.defaults().policy_for(&method)).clone(),
            (None, Op::Undo | Op::Confirm) => undo_policy(),
        };
        policy.on_final_failure = Some(ENDED.into());
        policy.on_success = None;
        if let Some(step) = step.filter(|_| work.op == Op::Run) {
            // What is undone anyway need not lie among the dead letters as well.
            if !committed && step.undo != UndoKind::Irreversible {
                policy.on_exhausted = OnExhausted::Drop;
            }
            if let Some(deadline) = step.deadline {
                policy.deadline = Some(now + deadline);
                policy.timeout = policy.timeout.or(Some(deadline));
            }
        }
        let params = StepParams { saga: id.to_owned(), work: work.clone(), part: part.clone(), seq: Some(state.seq) };
        let mut new = NewTask::new(method, &params)?.no_key().business(BUSINESS, id).policy(policy);
        new = if work.op == Op::Undo { new.priority(UNDO_PRIORITY) } else { new };
        new = part.iter().fold(new, |new, part| new.part(part));
        self.store.saga_task(new, now)
    }

    /// The task that stops others.
    pub(super) fn stop_task(&self, id: &str, work: &[Work], now: Timestamp) -> Result<Task> {
        let params = StopParams { saga: id.to_owned(), work: work.to_vec() };
        let new = NewTask::new(STOP, &params)?.no_key().business(BUSINESS, id).policy(Policy::until_done());
        self.store.saga_task(new, now)
    }

    /// Cancels the tasks of this work, unless it is wanted again: then there are new ones, made after those that are looked at here. What runs
    /// may still succeed.
    async fn stop_work(&self, params: &StopParams) -> Result<()> {
        let tasks = self.saga_tasks(&params.saga).await?;
        let saga = self.sagas.journals.memory.get(&self.store, &params.saga, true).await?;
        let is_unwanted = |work: &Work| params.work.contains(work) && !saga.as_ref().is_some_and(|s| s.wants(work));
        for task in tasks {
            if !serde_json::from_str::<StepParams>(&task.params).is_ok_and(|p| is_unwanted(&p.work)) {
                continue;
            }
            match self.store.cancel(task.id, self.clock.now()).await {
                Ok(_) => self.running().cancel(task.id),
                Err(Error::NotFound { .. }) => {} // it has ended
                Err(e) => return Err(e),
            }
        }
        self.wake.scanner.notify_one();
        Ok(())
    }

    /// The tasks of a saga that wait or run.
    pub(super) async fn saga_tasks(&self, id: &str) -> Result<Vec<Task>> {
        self.store.list(&people::of_saga(id), 1_000).await
    }

    fn defaults(&self) -> Arc<crate::settings::Defaults> {
        self.defaults.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// A test may want the process to die here.
    pub(super) fn journal_moment(&self, when: &'static str) {
        self.sagas.hook.iter().for_each(|hook| (hook.0)(when));
    }
}
