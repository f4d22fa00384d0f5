//! The attempt that has some work of a saga: a task, and its turn.
//!
//! *State.* Each start of some work names a task and the turn of that task. A turn is one attempt, with the postponements after it: an
//! attempt that only said "not yet" has told its saga nothing. A first attempt has turn 0 and needs no record of its own.
//!
//! *Invariants.* Before a later attempt runs, the journal says that it has the work. After that no earlier attempt can report a failure,
//! however late its report is written: the write is a compare-and-set on the journal's length, and then the attempt is not the one that has
//! the work.
//!
//! *Failure.* It does not matter why there is another attempt: its node died or gave its tasks back, the attempt failed, ran out of
//! time or was cut off while its report was on its way. Each of these gives the task another version, and so another turn.

use crate::id::TaskId;

/// An attempt at some work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Doer {
    pub(crate) task: TaskId,
    /// See [`Task::turn`](crate::Task::turn).
    pub(crate) turn: u32,
    /// The dead letter that it was, if it was brought back.
    pub(crate) origin: Option<TaskId>,
    /// The number of events that the saga had when the task, or the dead letter that it was, was made.
    pub(crate) made: Option<i64>,
}

/// The last start of some work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Begun {
    /// The number of the event.
    pub(super) seq: i64,
    /// The task, if it was there before. Otherwise it was made with that event, and knows its number.
    pub(super) task: Option<TaskId>,
    pub(super) turn: u32,
}

impl Begun {
    /// Tells if this task has the work, in whichever turn.
    pub(crate) fn is_of(self, task: TaskId, made: Option<i64>) -> bool {
        self.task.map_or_else(|| self.is_with(made), |own| own == task)
    }

    /// Tells if this attempt has the work.
    pub(crate) fn is_by(self, doer: &Doer) -> bool {
        let is_task =
            self.task.map_or_else(|| self.is_with(doer.made) && doer.origin.is_none(), |own| own == doer.task);
        is_task && self.turn == doer.turn
    }

    /// Tells if this attempt may take the work over: it is a later turn of the same task, or was brought back from the dead letter that the
    /// task became.
    pub(crate) fn passes_to(self, doer: &Doer) -> bool {
        let is_brought_back = self.task.is_some() && self.task == doer.origin;
        is_brought_back || (self.is_of(doer.task, doer.made) && !self.is_by(doer) && self.turn <= doer.turn)
    }

    /// Tells if a task was made with this start, or later.
    fn is_with(self, made: Option<i64>) -> bool {
        made.is_none_or(|made| made >= self.seq)
    }
}
