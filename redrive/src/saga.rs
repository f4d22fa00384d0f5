//! Sagas: flows of several steps that are finished, or undone, or say that they are stuck.
//!
//! ```text
//!  a step ends -> journal + what follows from it + the tasks of that, in one transaction -> those tasks run -> …
//! ```
//!
//! *State.* `redrive_saga` has a row for each saga: its definition, its input, how it stands, and `seq`, the number of its last event.
//! `redrive_saga_event` is its journal. Nothing else is remembered: how far a saga is follows from its journal (`state.rs`), and what is to
//! be done next follows from that (`plan.rs`), both without any I/O.
//!
//! *Invariants.* Every run, undo and confirmation of a step is a task of the engine, and is in the journal before it is one: both are
//! written in one transaction, which moves the row from one `seq` to the next by compare-and-set. Of two who want to write at once
//! one has to look again. Whoever writes down how something ended writes down what follows from it, too: there is no driver that
//! would have to be woken, so no wake-up can be lost.
//!
//! *Failure.* A process that dies before that transaction leaves a task, which is rescued and runs again under the same key. One that dies
//! after it leaves a task whose outcome is known: it ends without running. A task that is given up calls back (in the transaction
//! in which it ends), and its step is *unknown*: undone like one that is done. An undo that is given up, or a step past the point of no
//! return, is a dead letter, and its saga is *stuck* until a person has seen to either.

mod begun;
mod builder;
mod definition;
mod event;
#[cfg(test)]
mod model;
pub(crate) mod plan;
#[cfg(test)]
mod reference;
mod standing;
pub(crate) mod state;
mod step;
mod view;

pub use crate::engine::{Sagas, StartedSaga};
pub use builder::{Saga, StepName};
pub use definition::{
    Compensation, Definition, LONGEST_NAME, LONGEST_STEP, MOST_STEPS, OnUndoFailure, StepDef, StepKind, UndoKind,
    WhenUp, With, undo_policy,
};
pub use event::{Event, Op, SagaState, Why, Work};
pub use step::{Compensate, Ran, Reserve, Step, StepCx, StepError, StepRunner};
pub use view::StepView;

pub(crate) use begun::{Begun, Doer};
pub(crate) use definition::Flow;
pub(crate) use plan::{Next, advance};
pub(crate) use state::{Illegal, State};
