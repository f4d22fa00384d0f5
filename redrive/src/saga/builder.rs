//! Sagas of Rust types.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::MethodOptions;
use crate::policy::Policy;

use super::definition::{Compensation, Definition, OnUndoFailure, StepDef, StepKind, UndoKind, WhenUp, With};
use super::step::{Compensate, Reserve, Step, StepRunner, Typed, TypedReserve, TypedWhole};

/// A saga of typed steps, to be given to [`Builder::saga`](crate::Builder::saga).
///
/// Words that follow a step (`after`, `pivot`, `undo_first` …) are about that step.
///
/// ```
/// # use redrive::saga::{Saga, Step, StepCx, StepError, UndoKind};
/// # macro_rules! steps { ($($step:ident)*) => { $( struct $step; impl Step for $step {
/// #     const NAME: &'static str = stringify!($step);
/// #     type Input = String; type Output = String;
/// #     async fn run(&self, _: &StepCx, who: &String) -> Result<String, StepError> { Ok(format!("{} for {who}", Self::NAME)) }
/// #     async fn undo(&self, _: &StepCx, _: &String, _: Option<String>) -> Result<(), StepError> { Ok(()) }
/// #     fn undo_kind(&self) -> UndoKind { UndoKind::Compensate }
/// # } )* } }
/// # steps!(BookHotel BookFlight BookCar Charge);
/// use redrive::{Engine, Store};
/// use redrive::saga::SagaState;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redrive::Result<()> {
/// let trip = Saga::new("book-trip")
///     .step(BookHotel)
///     .step(BookFlight).after(BookHotel)
///     .step(BookCar).after(BookHotel) // beside the flight
///     .step(Charge).after(BookFlight).after(BookCar);
/// let engine = Engine::builder(Store::open("sqlite::memory:").await?).saga(trip).start().await?;
///
/// engine.sagas().start("book-trip", "trip-7", &"Ada").await?;
/// let ended = engine.sagas().ended("trip-7").await?;
/// assert_eq!(ended.state, SagaState::Succeeded);
/// # engine.stop().await;
/// # Ok(()) }
/// ```
pub struct Saga<I> {
    pub(crate) definition: Definition,
    pub(crate) runners: HashMap<String, (Arc<dyn StepRunner>, MethodOptions)>,
    input: PhantomData<fn(I)>,
}

impl<I> fmt::Debug for Saga<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Saga").field("definition", &self.definition).finish_non_exhaustive()
    }
}

/// What names a step: a step, or its name.
pub trait StepName {
    /// The name.
    fn step_name(&self) -> &str;
}

impl<S: Step> StepName for S {
    fn step_name(&self) -> &str {
        S::NAME
    }
}

impl StepName for &str {
    fn step_name(&self) -> &str {
        self
    }
}

impl<I> Saga<I> {
    /// A saga of this name, without steps so far.
    pub fn new(name: impl Into<String>) -> Self {
        let definition = Definition { name: name.into(), ..Definition::default() };
        Self { definition, runners: HashMap::new(), input: PhantomData }
    }

    /// Its definition, as it is stored.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    /// A step. It begins with the saga, unless [`after`](Self::after) follows.
    pub fn step<S: Step<Input = I>>(mut self, step: S) -> Self {
        self.definition.steps.push(defined(&step, StepKind::Call));
        self.runs(Arc::new(Typed(step)))
    }

    /// A step after the one before it.
    pub fn then<S: Step<Input = I>>(self, step: S) -> Self {
        let last = self.last_name();
        self.step(step).on_last(|step| step.after.extend(last))
    }

    /// A step that reserves something for a time: confirmed when all else is done, or the pivot is; cancelled when the time is up
    /// before that.
    pub fn reserve<S: Reserve<Input = I>>(mut self, step: S, ttl: Duration) -> Self {
        let kind = StepKind::Reserve { ttl, when_up: WhenUp::default() };
        self.definition.steps.push(defined(&step, kind));
        self.runs(Arc::new(TypedReserve(step)))
    }

    /// Waits for a time.
    pub fn sleep(mut self, name: &str, time: Duration) -> Self {
        self.definition.steps.push(waiting(name, StepKind::Sleep { time }));
        self
    }

    /// Waits for a signal, which is also the step's name; what it brings is the step's output. `None`: for ever.
    pub fn wait_for(mut self, signal: &str, timeout: impl Into<Option<Duration>>) -> Self {
        let timeout = timeout.into();
        let kind = StepKind::WaitFor { signal: signal.to_owned(), timeout, when_up: WhenUp::default() };
        self.definition.steps.push(waiting(signal, kind));
        self
    }

    /// The step begins when this one is done.
    #[expect(clippy::needless_pass_by_value, reason = "`after(BookHotel)` reads well")]
    pub fn after(self, step: impl StepName) -> Self {
        let name = step.step_name().to_owned();
        self.on_last(|last| last.after.push(name))
    }

    fn last_name(&self) -> Option<String> {
        self.definition.steps.last().map(|step| step.name.clone())
    }

    /// The point of no return: once the step is done, the saga only goes forward.
    pub fn pivot(self) -> Self {
        self.on_last(|last| last.pivot = true)
    }

    /// When the time of this wait or reservation is up, the saga goes back to that step and begins anew from there.
    #[expect(clippy::needless_pass_by_value, reason = "as `after`")]
    pub fn back_to(self, step: impl StepName) -> Self {
        let name = step.step_name().to_owned();
        self.on_last(|last| match &mut last.kind {
            StepKind::Reserve { when_up, .. } | StepKind::WaitFor { when_up, .. } => *when_up = WhenUp::BackTo(name),
            StepKind::Call | StepKind::Sleep { .. } => {}
        })
    }

    /// The step is undone before the others.
    pub fn undo_first(self) -> Self {
        self.on_last(|last| last.undo_first = true)
    }

    /// The step cannot be undone and stands before the pivot nonetheless.
    pub fn allow_irreversible(self) -> Self {
        self.on_last(|last| last.allow_irreversible = true)
    }

    /// How the step is tried again.
    pub fn policy(self, policy: Policy) -> Self {
        self.on_last(|last| last.policy = Some(policy))
    }

    /// How the step's undo and confirmation are tried again.
    pub fn undo_policy(self, policy: Policy) -> Self {
        self.on_last(|last| last.undo_policy = Some(policy))
    }

    /// No attempt of the step begins later than this after it was started.
    pub fn step_deadline(self, deadline: Duration) -> Self {
        self.on_last(|last| last.deadline = Some(deadline))
    }

    /// Limits and gate of the step's method.
    pub fn limit(mut self, options: MethodOptions) -> Self {
        if let Some(last) = self.definition.steps.last()
            && let Some(runner) = self.runners.get_mut(&self.definition.method_of(last))
        {
            runner.1 = options;
        }
        self
    }

    /// In which order steps are undone. Default: in reverse.
    pub fn compensation(mut self, order: Compensation) -> Self {
        self.definition.compensation = order;
        self
    }

    /// What becomes of the other undos when one has failed for good. Default: they wait for a person, too.
    pub fn on_undo_failure(mut self, what: OnUndoFailure) -> Self {
        self.definition.on_undo_failure = what;
        self
    }

    /// One handler undoes the whole, instead of each step's own undo.
    pub fn compensate_with<C: Compensate<Input = I>>(mut self, handler: C) -> Self {
        self.definition.compensate_with = Some(With::default());
        if let Some(method) = self.definition.compensate_method() {
            self.runners.insert(method, (Arc::new(TypedWhole(handler)), MethodOptions::default()));
        }
        self
    }

    /// Past this time since its start it is undone, unless it is past its pivot.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.definition.deadline = Some(deadline);
        self
    }

    fn on_last(mut self, change: impl FnOnce(&mut StepDef)) -> Self {
        if let Some(last) = self.definition.steps.last_mut() {
            change(last);
        }
        self
    }

    /// The runner of the last step.
    fn runs(mut self, runner: Arc<dyn StepRunner>) -> Self {
        if let Some(last) = self.definition.steps.last() {
            self.runners.insert(self.definition.method_of(last), (runner, MethodOptions::default()));
        }
        self
    }
}

fn defined<S: Step>(step: &S, kind: StepKind) -> StepDef {
    StepDef {
        name: S::NAME.to_owned(),
        kind,
        undo: step.undo_kind(),
        policy: step.policy(),
        undo_policy: step.undo_policy(),
        ..StepDef::default()
    }
}

fn waiting(name: &str, kind: StepKind) -> StepDef {
    StepDef { name: name.to_owned(), kind, undo: UndoKind::Nothing, ..StepDef::default() }
}
