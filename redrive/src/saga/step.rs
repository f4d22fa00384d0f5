//! What an application writes: steps, and what they know of their saga.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::barrier::BarrierKey;
use crate::classify::{ErrorKind, Failure, Kind};
use crate::clock::Timestamp;
use crate::context::Context;
use crate::error::{chain, unreadable};
use crate::id::TaskId;
use crate::policy::Policy;

use super::definition::{UndoKind, WHOLE};
use super::event::{Op, Work};
use super::state::{Doing, State};

/// A step of a saga. It may be run more than once, after a crash or a lost answer, always under the same [key](StepCx::key):
/// what it calls must do the same thing once.
///
/// ```
/// use redrive::saga::{Step, StepCx, StepError, UndoKind};
///
/// struct BookHotel;
///
/// impl Step for BookHotel {
///     const NAME: &'static str = "hotel";
///     type Input = String; // the saga's: a traveller
///     type Output = u64; // the booking
///
///     async fn run(&self, cx: &StepCx, traveller: &String) -> Result<u64, StepError> {
///         if traveller.is_empty() {
///             return Err(StepError::refused("no name")); // nothing was booked
///         }
///         Ok(hotel::book(traveller, &cx.key()).await?) // an error is tried again
///     }
///
///     async fn undo(&self, cx: &StepCx, _: &String, booking: Option<u64>) -> Result<(), StepError> {
///         // Without a booking it is not known whether there is one: the hotel finds it by the key.
///         Ok(hotel::cancel(booking, &cx.run_key()).await?)
///     }
///
///     fn undo_kind(&self) -> UndoKind {
///         UndoKind::Compensate
///     }
/// }
/// # mod hotel {
/// #     pub async fn book(_: &str, _: &str) -> std::io::Result<u64> { Ok(7) }
/// #     pub async fn cancel(_: Option<u64>, _: &str) -> std::io::Result<()> { Ok(()) }
/// # }
/// ```
pub trait Step: Send + Sync + 'static {
    /// Its name in the saga.
    const NAME: &'static str;
    /// The saga's input.
    type Input: DeserializeOwned + Send + Sync;
    /// What comes of it, for the steps after it and for its undo.
    type Output: Serialize + DeserializeOwned + Send + Sync;

    /// Does it.
    fn run(&self, cx: &StepCx, input: &Self::Input) -> impl Future<Output = Result<Self::Output, StepError>> + Send;

    /// Makes up for it. `output` is `None` if it is not known whether it was done, or with what result.
    fn undo(
        &self,
        cx: &StepCx,
        input: &Self::Input,
        output: Option<Self::Output>,
    ) -> impl Future<Output = Result<(), StepError>> + Send {
        _ = (cx, input, output);
        std::future::ready(Err(StepError::Refused(format!("{} says that it can be undone, but not how", Self::NAME))))
    }

    /// What undoing it means. There is no default: whoever writes a step has thought of it.
    fn undo_kind(&self) -> UndoKind;

    /// How it is tried again. Default: as the settings say for its method, `saga/step`.
    fn policy(&self) -> Option<Policy> {
        None
    }

    /// How its undo and its confirmation are tried again. Default: [`undo_policy`](super::undo_policy).
    fn undo_policy(&self) -> Option<Policy> {
        None
    }
}

/// A step that reserves: its run makes the reservation, its undo cancels it, and this makes it good.
pub trait Reserve: Step {
    /// Makes the reservation good. It is tried until it succeeds; if it is refused, a person is needed.
    fn confirm(
        &self,
        cx: &StepCx,
        input: &Self::Input,
        reservation: Self::Output,
    ) -> impl Future<Output = Result<(), StepError>> + Send;
}

/// One handler that undoes a whole saga: simpler, or in an order of its own.
pub trait Compensate: Send + Sync + 'static {
    /// The saga's input.
    type Input: DeserializeOwned + Send + Sync;

    /// Undoes all that was done: [`StepCx::try_output`] tells what, [`StepCx::may_have_run`] what is not known.
    fn compensate(&self, cx: &StepCx, input: &Self::Input) -> impl Future<Output = Result<(), StepError>> + Send;
}

/// How a step says that it did not succeed. Any error turns into it with `?`, and is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepError {
    /// It failed, and is tried again if its policy says so for errors of this kind. When it is given up it is not known whether
    /// it had an effect.
    Failed(Failure),
    /// It is under way there: to be asked for again after this time. That is no failure.
    Ongoing(Duration),
    /// It will not be done, and has had no effect: nothing to undo. Of an undo or a confirmation: a person is needed.
    Refused(String),
    /// No retry will mend it, and it may have had an effect.
    Unknown(String),
}

impl StepError {
    /// Failed with an error that knows its kind.
    pub fn of(error: &(impl std::error::Error + ErrorKind)) -> Self {
        Self::Failed(Failure::retry(error.kind(), chain(error)))
    }

    /// Failed; to be tried again after this time at the earliest.
    pub fn retry_after(error: &dyn std::error::Error, time: Duration) -> Self {
        Self::Failed(Failure::retry(Kind::ERROR, chain(error)).after(time))
    }

    /// What it calls asks for a slower pace, and may have named a time for which it is to be left alone. No attempt is used up.
    pub fn slow_down(error: &dyn std::error::Error, time: Option<Duration>) -> Self {
        Self::Failed(Failure::slow_down(chain(error), time))
    }

    /// It will not be done, and has had no effect.
    pub fn refused(why: impl fmt::Display) -> Self {
        Self::Refused(why.to_string())
    }

    /// No retry will mend it, and it may have had an effect.
    pub fn unknown(why: impl fmt::Display) -> Self {
        Self::Unknown(why.to_string())
    }
}

impl<E: std::error::Error> From<E> for StepError {
    fn from(error: E) -> Self {
        Self::Failed(Failure::retry(Kind::ERROR, chain(&error)))
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failure) => write!(f, "failed: {}", failure.message),
            Self::Ongoing(time) => write!(f, "under way, to be asked for again in {time:?}"),
            Self::Refused(why) => write!(f, "refused: {why}"),
            Self::Unknown(why) => write!(f, "it is not known what happened: {why}"),
        }
    }
}

/// The outcome of a step's attempt.
pub type Ran<'a> = Pin<Box<dyn Future<Output = Result<Value, StepError>> + Send + 'a>>;

/// What executes the steps of a method, whichever they are: the way in for steps that are not Rust types. Registered by
/// [`Builder::saga_runner`](crate::Builder::saga_runner); steps name it as their `method`.
pub trait StepRunner: Send + Sync + 'static {
    /// Runs, undoes or confirms a step, as [`StepCx::op`] says. What it gives is the step's output, if it was run.
    fn run<'a>(&'a self, cx: &'a StepCx) -> Ran<'a>;
}

/// What a step knows of its saga, and of the attempt that it is.
#[derive(Debug)]
pub struct StepCx {
    pub(crate) context: Context<'static>,
    pub(crate) saga: Arc<State>,
    pub(crate) id: String,
    pub(crate) work: Work,
}

impl StepCx {
    /// The attempt, as any task's handler knows it.
    pub fn context(&self) -> &Context<'static> {
        &self.context
    }

    /// The saga's id.
    pub fn saga_id(&self) -> &str {
        &self.id
    }

    /// The saga's name.
    pub fn saga_name(&self) -> &str {
        &self.saga.flow.definition.name
    }

    /// The step's name; `compensate` if the saga is undone as a whole.
    pub fn step(&self) -> &str {
        self.work.step.as_deref().unwrap_or(WHOLE)
    }

    /// What is to be done to it.
    pub fn op(&self) -> Op {
        self.work.op
    }

    /// Which time the saga comes past this step, from 1.
    pub fn round(&self) -> u32 {
        self.work.round
    }

    /// The name of this effect, the same in all attempts: `saga/step/op`, or `saga/step#2/op` the second time the saga comes past.
    /// What to send to a target that takes an idempotency key.
    pub fn key(&self) -> String {
        self.key_of(self.work.op)
    }

    /// The key under which this step was run: an undo finds by it what it has to undo.
    pub fn run_key(&self) -> String {
        self.key_of(Op::Run)
    }

    fn key_of(&self, op: Op) -> String {
        format!("{}/{}/{}", self.id, self.work.place(), op.as_str())
    }

    /// The step's name with its round, as in its key: what a participant's barrier goes by.
    pub fn place(&self) -> String {
        self.work.place()
    }

    /// What a participant asks its [barrier](crate::barrier) with, in the transaction of its effect.
    pub fn barrier_key(&self) -> BarrierKey {
        BarrierKey::new(&*self.id, self.place(), self.work.op.into())
    }

    /// The saga's input.
    pub fn input(&self) -> &Value {
        &self.saga.input
    }

    /// What the definition has for this step's runner.
    pub fn spec(&self) -> &Value {
        const NONE: &Value = &Value::Null;
        let definition = &self.saga.flow.definition;
        match &self.work.step {
            Some(name) => self.saga.flow.place(name).and_then(|i| self.saga.flow.step(i)).map_or(NONE, |s| &s.spec),
            None => definition.compensate_with.as_ref().map_or(NONE, |with| &with.spec),
        }
    }

    /// What came of an earlier step. Refused if there is none: then this step does not come after that one.
    pub fn output<S: Step>(&self) -> Result<S::Output, StepError> {
        self.output_of(S::NAME)
    }

    /// The same by its name: for waits and signals.
    pub fn output_of<T: DeserializeOwned>(&self, step: &str) -> Result<T, StepError> {
        let value = self.value_of(step).ok_or_else(|| StepError::refused(format!("{step} has no output yet")))?;
        T::deserialize(value)
            .map_err(|e| StepError::refused(format!("the output of {step} cannot be read: {}", unreadable(&e))))
    }

    /// What came of a step, if it was done and that can be read.
    pub fn try_output<S: Step>(&self) -> Option<S::Output> {
        self.output::<S>().ok()
    }

    /// What came of a step, as it is stored.
    pub fn value_of(&self, step: &str) -> Option<&Value> {
        self.saga.output(step).map(|output| &**output)
    }

    /// What came of all steps that are done, by their names.
    pub fn outputs(&self) -> impl Iterator<Item = (&str, &Value)> {
        let steps = self.saga.flow.steps().iter().zip(&self.saga.steps);
        steps.filter_map(|(def, step)| Some((&*def.name, &**step.output.as_ref()?)))
    }

    /// Whether a step has, or may have, had an effect.
    pub fn may_have_run(&self, step: &str) -> bool {
        let step = self.saga.flow.place(step).and_then(|i| self.saga.steps.get(i));
        step.is_some_and(|step| step.may_have_happened() || step.run == Doing::Started)
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.context.attempt()
    }

    /// The task that it is.
    pub fn task_id(&self) -> TaskId {
        self.context.task_id()
    }

    /// A value that is unique to this attempt and grows with each.
    pub fn fence(&self) -> String {
        self.context.fence()
    }

    /// From when on it will not be tried again.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.context.deadline()
    }

    /// What the application gave to [`Builder::state`](crate::Builder::state), by its type.
    pub fn state<T: Send + Sync + 'static>(&self) -> crate::Result<&T> {
        self.context.state()
    }

    /// Whether it is not wanted any more: the saga goes back, or the node has to stop.
    pub fn is_cancelled(&self) -> bool {
        self.context.is_cancelled()
    }

    /// Waits until it is not wanted any more.
    pub async fn cancelled(&self) {
        self.context.cancelled().await;
    }

    /// The same as a token, to hand on.
    pub fn cancellation(&self) -> &CancellationToken {
        self.context.cancellation()
    }
}

fn read_input<I: DeserializeOwned>(cx: &StepCx) -> Result<I, StepError> {
    I::deserialize(cx.input())
        .map_err(|e| StepError::refused(format!("the saga's input cannot be read: {}", unreadable(&e))))
}

fn written(output: &impl Serialize) -> Result<Value, StepError> {
    serde_json::to_value(output).map_err(|e| StepError::unknown(format!("the output cannot be written as JSON: {e}")))
}

/// What a step gave, for its undo. It may have been written by an earlier version.
fn read_own<S: Step>(cx: &StepCx) -> Result<Option<S::Output>, StepError> {
    cx.value_of(S::NAME).map(|_| cx.output::<S>()).transpose()
}

/// A step as a runner.
pub(super) struct Typed<S>(pub(super) S);

impl<S: Step> StepRunner for Typed<S> {
    fn run<'a>(&'a self, cx: &'a StepCx) -> Ran<'a> {
        Box::pin(async move {
            let input = read_input::<S::Input>(cx)?;
            match cx.op() {
                Op::Run => written(&self.0.run(cx, &input).await?),
                Op::Undo => self.0.undo(cx, &input, read_own::<S>(cx)?).await.map(|()| Value::Null),
                Op::Confirm => Err(StepError::refused("this step reserves nothing")),
            }
        })
    }
}

/// A step that reserves, as a runner.
pub(super) struct TypedReserve<S>(pub(super) S);

impl<S: Reserve> StepRunner for TypedReserve<S> {
    fn run<'a>(&'a self, cx: &'a StepCx) -> Ran<'a> {
        Box::pin(async move {
            let input = read_input::<S::Input>(cx)?;
            match cx.op() {
                Op::Run => written(&self.0.run(cx, &input).await?),
                Op::Undo => self.0.undo(cx, &input, read_own::<S>(cx)?).await.map(|()| Value::Null),
                Op::Confirm => self.0.confirm(cx, &input, cx.output::<S>()?).await.map(|()| Value::Null),
            }
        })
    }
}

/// A handler of the whole, as a runner.
pub(super) struct TypedWhole<C>(pub(super) C);

impl<C: Compensate> StepRunner for TypedWhole<C> {
    fn run<'a>(&'a self, cx: &'a StepCx) -> Ran<'a> {
        Box::pin(async move {
            let input = read_input::<C::Input>(cx)?;
            self.0.compensate(cx, &input).await.map(|()| Value::Null)
        })
    }
}
