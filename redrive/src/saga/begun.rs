//! Who has some work of a saga: a task, and after how many of its nodes have died.
//!
//! What is tried again belongs to the task that was made or brought back for that, and what a node died with to who has it after that.
//! That it failed for somebody who had it before does not matter any more, however late that is heard.

use crate::id::TaskId;

/// Who would do some work: a task, after so many of its nodes have died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Doer {
    pub(crate) task: TaskId,
    pub(crate) crashes: u32,
    /// The letter that it was, if it was brought back.
    pub(crate) origin: Option<TaskId>,
    /// How many events the saga had when it, or the letter that it was, was made.
    pub(crate) made: Option<i64>,
}

/// Who has some work, since it was last started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Begun {
    /// By which event that was.
    pub(super) seq: i64,
    /// The task, if it was there before. Otherwise it was made with that event, and knows its number.
    pub(super) task: Option<TaskId>,
    pub(super) crashes: u32,
}

impl Begun {
    /// Whether this task has it, whatever has become of its nodes.
    pub(crate) fn is_of(self, task: TaskId, made: Option<i64>) -> bool {
        self.task.map_or_else(|| self.is_with(made), |own| own == task)
    }

    /// Whether this is who has it: the task, and no node has died with it since.
    pub(crate) fn is_by(self, doer: &Doer) -> bool {
        let is_task =
            self.task.map_or_else(|| self.is_with(doer.made) && doer.origin.is_none(), |own| own == doer.task);
        is_task && self.crashes == doer.crashes
    }

    /// Whether this one may take it over: it is the same task after a crash, or was brought back from the letter that the task became.
    pub(crate) fn passes_to(self, doer: &Doer) -> bool {
        let is_letter = self.task.is_some() && self.task == doer.origin;
        is_letter || (self.is_of(doer.task, doer.made) && !self.is_by(doer) && self.crashes <= doer.crashes)
    }

    /// Whether a task was made with this start, or later.
    fn is_with(self, made: Option<i64>) -> bool {
        made.is_none_or(|made| made >= self.seq)
    }
}
