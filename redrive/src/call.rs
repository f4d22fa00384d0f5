//! `call()`: the first try inline, and what becomes of it if that fails.
//!
//! *State.* Under `retry_only`, `on_failure` and `manual` nothing exists outside the caller's future until the first try has
//! failed. Under `always` there is a row, RUNNING under this node, before the first try begins; it is settled like any other
//! attempt of this node. Under `never` there is never anything but the future.
//!
//! *Invariants.* *Deferred* is said only of what is durable. The id and the key that the first try was told are those it is
//! written down under. The first try counts as an attempt.
//!
//! *Failure.* The future may be dropped at any await. During the first try nothing has been written, but under `always`,
//! where a guard gives the row back at once, uncounted, for any node to run. Writing down after a failure goes on in a task of
//! its own, so it is not undone by a caller who went away. A database that cannot be reached is *not recorded*.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use crate::call_error::{CallError, Cause, no_result};
use crate::classify::{Class, Failure, Kind};
use crate::clock::{Stopwatch, Timestamp, pause};
use crate::context::{Context, Inline};
use crate::crypt::Keyring;
use crate::engine::{Back, Engine, Verdict, log_end, panicked, random};
use crate::error::{Error, Result};
use crate::id::TaskId;
use crate::new_task::NewTask;
use crate::policy::Policy;
use crate::retryable::{FirstTry, Persist, Retryable, new_task};
use crate::settle::{Outcome, To, settle};
use crate::store::Enqueued;
use crate::task::{Business, Task};

/// What a call gives, for [`Engine::call`].
pub type Called<C> =
    std::result::Result<<C as Retryable>::Output, CallError<<C as Retryable>::Output, <C as Retryable>::Error>>;

/// How a try ended, before it is judged.
pub(crate) type Ended<C> =
    std::result::Result<<C as Retryable>::Output, Cause<<C as Retryable>::Output, <C as Retryable>::Error>>;

/// Makes a try: a panic and a timeout are ends like others.
pub(crate) async fn try_once<C: Retryable>(call: &C, cx: &Context<'_>, limit: Option<Duration>) -> Ended<C> {
    let attempt = AssertUnwindSafe(async { call.execute(cx).await }).catch_unwind();
    let ended = match limit {
        None => attempt.await,
        Some(limit) => match tokio::time::timeout(limit, attempt).await {
            Ok(ended) => ended,
            Err(_) => return Err(Cause::Timeout(limit)),
        },
    };
    match ended {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Cause::Error(error)),
        Err(panic) => Err(Cause::Panic(panicked(&*panic))),
    }
}

/// What an end means.
pub(crate) fn judge<C: Retryable>(call: &C, cx: &Context<'_>, policy: &Policy, ended: &Ended<C>) -> Outcome {
    let verdict = match ended {
        Ok(value) if succeeded(call, policy, value) => return Outcome::Done,
        Ok(value) | Err(Cause::Unmet(value) | Cause::Untold(value)) => call.unmet(value),
        Err(Cause::Timeout(limit)) => Verdict::Failed(Failure::retry(Kind::TIMEOUT, no_result(*limit))),
        Err(Cause::Panic(said)) => Verdict::Failed(Failure::retry(Kind::PANIC, said)),
        Err(untried @ (Cause::Held(_) | Cause::LeftAlone(_) | Cause::Paused | Cause::Expired(_))) => {
            Verdict::Failed(Failure::retry(Kind::of("not_ready"), untried.to_string()))
        }
        Err(Cause::Error(e)) => call.classify(e),
    };
    let failure = match verdict {
        Verdict::Failed(failure) => by_lists(policy, failure),
        Verdict::Listed(failure) => unless_listed(policy, failure),
        Verdict::Retry(failure) => Failure { class: Class::Retry, ..failure },
        Verdict::Fatal(failure) => return Outcome::Fatal(failure),
        Verdict::Snooze(time) => return Outcome::Snooze(time),
        Verdict::Cancel => return Outcome::Cancel,
    };
    cx.said().of(failure)
}

fn by_lists(policy: &Policy, failure: Failure) -> Failure {
    Failure { class: policy.classify(&failure.kind), ..failure }
}

/// One of those that are tried again, by a pattern; what the policy excepts by its kind is not.
pub(crate) fn unless_listed(policy: &Policy, failure: Failure) -> Failure {
    Failure { class: if policy.excepts(&failure.kind) { Class::Reject } else { Class::Retry }, ..failure }
}

fn succeeded<C: Retryable>(call: &C, policy: &Policy, value: &C::Output) -> bool {
    match &policy.success_if {
        Some(condition) => call.meets(value, condition),
        None => call.is_success(value),
    }
}

/// The result as it is told to callbacks and kept, if it is.
pub(crate) fn told<C: Retryable>(call: &C, policy: &Policy, value: &C::Output) -> Option<String> {
    let wanted = policy.on_success.is_some() || policy.keep;
    wanted.then(|| call.result(value).unwrap_or_default().to_string())
}

fn cause<C: Retryable>(ended: Ended<C>) -> Cause<C::Output, C::Error> {
    ended.map_or_else(|cause| cause, Cause::Unmet)
}

/// An inline call as its context sees it.
struct Asked<'a, C> {
    engine: &'a Engine,
    call: &'a C,
    /// Since when it is tried. `None`: since now.
    since: Option<Timestamp>,
}

impl<C: Retryable> Asked<'_, C> {
    fn ring(&self) -> Option<&Keyring> {
        self.engine.store().keyring().filter(|ring| self.call.encrypt() || ring.encrypts_all())
    }
}

impl<C: Retryable> Inline for Asked<'_, C> {
    fn key(&self) -> Option<String> {
        new_task(self.call, Policy::default()).ok()?.resolved_key(self.ring())
    }

    fn business(&self) -> Option<Business> {
        self.call.business()
    }

    fn limit(&self) -> Option<Timestamp> {
        self.engine.policy_for(self.call).limit(self.since.unwrap_or_else(|| self.engine.now()))
    }

    fn new_id(&self) -> TaskId {
        let shard = new_task(self.call, Policy::default()).ok().and_then(|new| new.shard(self.ring()));
        self.engine.new_id(shard)
    }
}

impl Engine {
    /// Makes a call: tries it here and now and, if that fails, writes it down as its [`Persist`] strategy says, so that it is
    /// made good later. Gives the value, or says what will become of it.
    pub async fn call<C: Retryable>(&self, call: C) -> Called<C> {
        let (persist, first) = self.first_try_of(&call);
        if let Some(deadline) = first.deadline.filter(|deadline| *deadline <= self.now()) {
            return Box::pin(self.call_too_late(&call, persist, deadline)).await;
        }
        if self.may_hold_back() {
            return Box::pin(self.call_through_gate(&call, persist, &first)).await;
        }
        if persist == Persist::Always {
            return Box::pin(self.call_recorded(&call)).await.0;
        }
        let asked = Asked { engine: self, call: &call, since: None };
        let cx = self.inline_context(1, &asked);
        let ended = try_once(&call, &cx, first.timeout).await;
        match ended {
            Ok(value) if first.plain && call.is_success(&value) => Ok(value),
            ended => {
                let policy = self.policy_for(&call);
                let outcome = judge(&call, &cx, &policy, &ended);
                self.note_pace(&call, &policy, &outcome, None);
                Box::pin(self.call_tried(&call, &cx, persist, policy, outcome, ended)).await
            }
        }
    }

    /// Makes a call where a gate, a pause or a slower pace may be in the way: while it is, nothing is tried, and the call is
    /// written down if its strategy writes anything at all.
    async fn call_through_gate<C: Retryable>(&self, call: &C, persist: Persist, first: &FirstTry) -> Called<C> {
        let (part, since) = (call.part(), self.now());
        let inline = loop {
            match self.pass_inline(call.method(), part.as_deref(), first.timeout).await {
                Ok(inline) => break inline,
                Err(Back::Paused) => return self.hold_back(call, persist, Cause::Paused).await,
                Err(Back::Gate(until)) => return self.hold_back(call, persist, Cause::Held(until)).await,
                // One that is tried in memory waits there.
                Err(Back::Pace(until)) if persist == Persist::Never => self.wait_in_memory(call, since, until).await?,
                Err(Back::Pace(until)) => return self.hold_back(call, persist, Cause::LeftAlone(until)).await,
            }
        };
        let name = || part.as_deref().unwrap_or(call.method()).to_owned();
        let started = Stopwatch::start();
        if persist == Persist::Always {
            let (called, outcome) = self.call_recorded(call).await;
            inline.end(&outcome, started.elapsed(), name);
            return called;
        }
        let asked = Asked { engine: self, call, since: None };
        let cx = self.inline_context(1, &asked);
        let ended = try_once(call, &cx, first.timeout).await;
        let policy = self.policy_for(call);
        let outcome = judge(call, &cx, &policy, &ended);
        inline.end(&outcome, started.elapsed(), name);
        self.note_pace(call, &policy, &outcome, Some(started.elapsed()));
        self.call_tried(call, &cx, persist, policy, outcome, ended).await
    }

    /// Waits while its target is left alone; not longer than its policy lets a call that began at `since`.
    async fn wait_in_memory<C: Retryable>(
        &self,
        call: &C,
        since: Timestamp,
        until: Timestamp,
    ) -> std::result::Result<(), CallError<C::Output, C::Error>> {
        let policy = self.policy_for(call);
        let is_late = policy.limit(since).is_some_and(|limit| limit <= until);
        if is_late || until.since(since) > policy.max_postponed {
            return Err(CallError::Exhausted { task_id: None, cause: Cause::LeftAlone(until) });
        }
        pause(until.since(self.now())).await;
        Ok(())
    }

    async fn hold_back<C: Retryable>(
        &self,
        call: &C,
        persist: Persist,
        cause: Cause<C::Output, C::Error>,
    ) -> Called<C> {
        match persist {
            Persist::Never => return Err(CallError::Rejected { cause }),
            Persist::Manual => return Err(CallError::Failed { cause }),
            Persist::RetryOnly | Persist::OnFailure | Persist::Always => {}
        }
        Err(match self.write_untried(call).await {
            Ok(Enqueued { id, existed }) => CallError::Deferred { task_id: id, existed, cause: Some(cause) },
            Err(source) => CallError::NotRecorded { cause: Some(cause), source },
        })
    }

    /// Its deadline was over before it began. Written down it is found to have run out of time, like any other, and becomes a dead letter.
    async fn call_too_late<C: Retryable>(&self, call: &C, persist: Persist, deadline: Timestamp) -> Called<C> {
        let cause = Cause::Expired(deadline);
        if matches!(persist, Persist::Never | Persist::Manual) {
            return Err(CallError::Exhausted { task_id: None, cause });
        }
        Err(match self.write_untried(call).await {
            Ok(Enqueued { id, existed: false }) => CallError::Exhausted { task_id: Some(id), cause },
            Ok(Enqueued { id, existed: true }) => {
                CallError::Deferred { task_id: id, existed: true, cause: Some(cause) }
            }
            Err(source) => CallError::NotRecorded { cause: Some(cause), source },
        })
    }

    async fn write_untried<C: Retryable>(&self, call: &C) -> Result<Enqueued> {
        self.enqueue(new_task(call, self.policy_for(call))?).await
    }

    /// The policy of a call, settings included.
    fn policy_for<C: Retryable>(&self, call: &C) -> Policy {
        self.defaults().policy_of(call)
    }

    /// What becomes of a first try that was not plainly a success.
    async fn call_tried<C: Retryable>(
        &self,
        call: &C,
        cx: &Context<'_>,
        persist: Persist,
        policy: Policy,
        outcome: Outcome,
        ended: Ended<C>,
    ) -> Called<C> {
        match ended {
            Ok(value) if outcome == Outcome::Done => {
                if FirstTry::is_plain(&policy) || persist == Persist::Never {
                    return Ok(value);
                }
                self.record_success(call, policy, cx.task_id(), value).await
            }
            ended if persist == Persist::Never => self.call_in_memory(call, &policy, outcome, ended).await,
            ended if persist == Persist::Manual && !cx.said().persist => Err(unwritten(&outcome, cause::<C>(ended))),
            ended => {
                let rejects = persist != Persist::RetryOnly;
                self.record_failure(call, policy, cx.id_told(), outcome, cause::<C>(ended), rejects).await
            }
        }
    }

    /// A success that is to be told or kept.
    async fn record_success<C: Retryable>(&self, call: &C, policy: Policy, id: TaskId, value: C::Output) -> Called<C> {
        let result = told(call, &policy, &value);
        let written = match new_task(call, policy) {
            Ok(new) => {
                self.detached(move |engine| async move { engine.write_end(new, Some(id), Outcome::Done, result).await })
                    .await
            }
            Err(e) => Err(e),
        };
        match written {
            Ok(_) => Ok(value),
            Err(source) => Err(CallError::NotRecorded { cause: Some(Cause::Untold(value)), source }),
        }
    }

    /// A failure of a first try. `all`: also one that no retry can mend.
    async fn record_failure<C: Retryable>(
        &self,
        call: &C,
        policy: Policy,
        id: Option<TaskId>,
        outcome: Outcome,
        cause: Cause<C::Output, C::Error>,
        all: bool,
    ) -> Called<C> {
        let rejected = match &outcome {
            Outcome::Failed(failure) => failure.class == Class::Reject,
            Outcome::Snooze(_) | Outcome::SlowDown(_) => false,
            _ => true,
        };
        if rejected && (!all || outcome == Outcome::Cancel) {
            return Err(CallError::Rejected { cause });
        }
        let written = match new_task(call, policy) {
            Ok(new) => self.detached(move |engine| async move { engine.write_end(new, id, outcome, None).await }).await,
            Err(e) => Err(e),
        };
        Err(match written {
            Err(source) => CallError::NotRecorded { cause: Some(cause), source },
            Ok(Written { id, existed, to: To::Pending { .. } }) => {
                CallError::Deferred { task_id: id, existed, cause: Some(cause) }
            }
            Ok(_) if rejected => CallError::Rejected { cause },
            Ok(Written { id, .. }) => CallError::Exhausted { task_id: Some(id), cause },
        })
    }

    /// Goes on when the caller is gone.
    async fn detached<F, Fut>(&self, write: F) -> Result<Written>
    where
        F: FnOnce(Engine) -> Fut,
        Fut: Future<Output = Result<Written>> + Send + 'static,
    {
        let lost = |e: tokio::task::JoinError| Error::Unavailable {
            doing: "write down",
            id: "a call".into(),
            why: format!("the runtime is stopping: {e}"),
        };
        let writing = write(self.clone());
        let logged = async move {
            // The caller may be gone by then, and this the only trace of the call.
            writing.await.inspect_err(|e| tracing::error!(error = %e, "a call that failed could not be written down"))
        };
        tokio::spawn(logged).await.unwrap_or_else(|e| Err(lost(e)))
    }

    /// Writes a first try's end down.
    async fn write_end(
        self,
        mut new: NewTask,
        id: Option<TaskId>,
        outcome: Outcome,
        result: Option<String>,
    ) -> Result<Written> {
        new.id = id;
        let now = self.now();
        let task = self.first_try(new, now)?;
        let change = settle(&task, &outcome, now, random(&task));
        let to = change.to;
        if let To::Pending { .. } = to {
            let task = task.after(&change, now);
            let answer = self.insert_tried(task.clone()).await?;
            // It is durable, whatever comes of the notice, which the next failure asks for again.
            if change.notice
                && !answer.existed
                && let Err(e) = self.store().note_failing(&Task { id: answer.id, ..task }, now).await
            {
                tracing::warn!(task = %answer.id, error = %e, "a notice of a first failure could not be written");
            }
            return Ok(Written { id: answer.id, existed: answer.existed, to });
        }
        let id = task.id;
        let (tried, ended) = (task.clone(), change.clone());
        self.store().write_first_try(task, change, result, now).await?;
        log_end(&tried, &ended); // not before: what could not be written has another end
        self.wake();
        Ok(Written { id, existed: false, to })
    }

    /// Written down before it is tried. Also what the try says of what it called.
    async fn call_recorded<C: Retryable>(&self, call: &C) -> (Called<C>, Outcome) {
        let untried = |e| (Err(e), Outcome::GivenBack);
        let recorded = match new_task(call, self.policy_for(call)) {
            Ok(new) => self.hold_inline(new).await,
            Err(e) => Err(e),
        };
        let held = match recorded {
            Ok(Ok(held)) => held,
            Ok(Err(Enqueued { id, existed })) => {
                return untried(CallError::Deferred { task_id: id, existed, cause: None });
            }
            Err(source) => return untried(CallError::NotRecorded { cause: None, source }),
        };
        let task = held.task().clone();
        let cx = held.context();
        let started = Stopwatch::start();
        // Cut off from the database, or fenced, we must not go on: others may run it now.
        let ended = tokio::select! {
            biased;
            () = held.lost() => return untried(CallError::Deferred { task_id: task.id, existed: false, cause: None }),
            ended = try_once(call, &cx, task.policy.timeout) => ended,
        };
        let outcome = judge(call, &cx, &task.policy, &ended);
        self.note_pace(call, &task.policy, &outcome, Some(started.elapsed()));
        let now = self.now();
        let to = settle(&task, &outcome, now, random(&task)).to;
        let result = ended.as_ref().ok().and_then(|value| told(call, &task.policy, value));
        held.finish(outcome.clone(), result);
        let called = match (to, ended) {
            (To::Done, Ok(value)) => Ok(value),
            (To::Pending { .. }, ended) => {
                Err(CallError::Deferred { task_id: task.id, existed: false, cause: Some(cause::<C>(ended)) })
            }
            (_, ended) => Err(given_up(&task, &outcome, cause::<C>(ended))),
        };
        (called, outcome)
    }

    /// Tried again and again, here: after a first try that ended like this.
    async fn call_in_memory<C: Retryable>(
        &self,
        call: &C,
        policy: &Policy,
        mut outcome: Outcome,
        mut ended: Ended<C>,
    ) -> Called<C> {
        let (since, mut failures, mut waited) = (self.now(), 0, Duration::ZERO);
        let asked = Asked { engine: self, call, since: Some(since) };
        let is_late = |due: Timestamp| policy.limit(since).is_some_and(|limit| limit <= due);
        loop {
            match (outcome, ended) {
                (Outcome::Done, Ok(value)) => return Ok(value),
                (Outcome::Snooze(time), ended) if is_late(self.now() + time) => {
                    return Err(CallError::Exhausted { task_id: None, cause: cause::<C>(ended) });
                }
                (Outcome::Snooze(time), _) => pause(time).await,
                (Outcome::SlowDown(failure), ended) => {
                    let wait = policy.slow_down(failure.retry_after, failures + 1, self.chance(failures));
                    waited += wait;
                    if waited > policy.max_postponed || is_late(self.now() + wait) {
                        return Err(CallError::Exhausted { task_id: None, cause: cause::<C>(ended) });
                    }
                    pause(wait).await;
                }
                (Outcome::Failed(failure), ended) if failure.class == Class::Retry => {
                    failures += 1;
                    let now = self.now();
                    match policy.next(failures, failure.retry_after, since, now, self.chance(failures)) {
                        Ok(due) => pause(due.since(now)).await,
                        Err(_) => return Err(CallError::Exhausted { task_id: None, cause: cause::<C>(ended) }),
                    }
                }
                (_, ended) => return Err(CallError::Rejected { cause: cause::<C>(ended) }),
            }
            while let Some(until) = self.left_alone(call) {
                self.wait_in_memory(call, since, until).await?;
            }
            let cx = self.inline_context(failures + 1, &asked);
            let started = Stopwatch::start();
            ended = try_once(call, &cx, policy.timeout).await;
            outcome = judge(call, &cx, policy, &ended);
            self.note_pace(call, policy, &outcome, Some(started.elapsed()));
        }
    }
}

/// Where a first try that was written down went.
struct Written {
    id: TaskId,
    existed: bool,
    to: To,
}

/// A failure that is not written down.
fn unwritten<T, E>(outcome: &Outcome, cause: Cause<T, E>) -> CallError<T, E> {
    match outcome {
        Outcome::Failed(failure) if failure.class == Class::Retry => CallError::Failed { cause },
        Outcome::Snooze(_) | Outcome::SlowDown(_) => CallError::Failed { cause },
        _ => CallError::Rejected { cause },
    }
}

fn given_up<T, E>(task: &Arc<Task>, outcome: &Outcome, cause: Cause<T, E>) -> CallError<T, E> {
    match outcome {
        Outcome::Failed(failure) | Outcome::SlowDown(failure) if failure.class == Class::Retry => {
            CallError::Exhausted { task_id: Some(task.id), cause }
        }
        _ => CallError::Rejected { cause },
    }
}
