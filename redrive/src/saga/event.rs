//! What is written in a saga's journal.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::TaskId;

use super::definition::WHOLE;

/// What is done to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// It is run.
    Run,
    /// It is undone.
    Undo,
    /// What it has reserved is confirmed.
    Confirm,
}

impl Op {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Undo => "undo",
            Self::Confirm => "confirm",
        }
    }
}

impl From<Op> for crate::barrier::Op {
    fn from(op: Op) -> Self {
        match op {
            Op::Run => Self::Run,
            Op::Undo => Self::Undo,
            Op::Confirm => Self::Confirm,
        }
    }
}

/// What is done to which step, in which round: the name of an effect.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Work {
    /// The step; `None`: the saga as a whole, which one handler undoes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// What is done to it.
    pub op: Op,
    /// Which time the saga comes past this step, from 1: it may have gone back.
    #[serde(default = "first", skip_serializing_if = "is_first")]
    pub round: u32,
}

fn first() -> u32 {
    1
}

fn is_first(round: &u32) -> bool {
    *round == 1
}

fn is_zero(turn: &u32) -> bool {
    *turn == 0
}

impl Work {
    /// The step's name with its round: `hotel`, or `hotel#2` the second time.
    pub fn place(&self) -> String {
        let step = self.step.as_deref().unwrap_or(WHOLE);
        if self.round == 1 { step.to_owned() } else { format!("{step}#{}", self.round) }
    }
}

/// Something that happened to a saga. What is in the journal is never changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// It began.
    Began,
    /// This is to be done, and may have been from now on.
    Started {
        /// What.
        #[serde(flatten)]
        work: Work,
        /// The task that has it, if it was there before: this is a later attempt, or a person brought it back. `None`: one that was made
        /// with this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<TaskId>,
        /// The turn of that task: 0 for its first attempt, more for a later one. Older journals have the number of its crashes, which grows
        /// in the same way.
        #[serde(default, alias = "crashes", skip_serializing_if = "is_zero")]
        turn: u32,
    },
    /// This is done.
    Done {
        /// What.
        #[serde(flatten)]
        work: Work,
        /// What came of it.
        #[serde(default, skip_serializing_if = "Value::is_null")]
        output: Value,
        /// Who says so, if a person does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// This failed for good.
    Failed {
        /// What.
        #[serde(flatten)]
        work: Work,
        /// Whether it is known to have had no effect. Otherwise that is not known.
        refused: bool,
        /// Why.
        error: String,
    },
    /// The task of this is gone, and nobody has told what came of it. A person is needed.
    Lost {
        /// What.
        #[serde(flatten)]
        work: Work,
    },
    /// A person says that this is to be left out.
    Skipped {
        /// What.
        #[serde(flatten)]
        work: Work,
        /// Who.
        by: String,
    },
    /// The time of a wait is up.
    TimeUp {
        /// What.
        #[serde(flatten)]
        work: Work,
    },
    /// It was told something.
    Signal {
        /// What the signal is called.
        name: String,
        /// What it was told.
        #[serde(default, skip_serializing_if = "Value::is_null")]
        payload: Value,
        /// By whom.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// What makes it the same as one that was said before, which then counts once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
    },
    /// From now on nothing new is begun, and what was done is undone.
    Rollback {
        /// Why.
        why: Why,
        /// Back to this step, which then begins anew; `None`: all of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
    },
    /// It is back at the step it was to go back to: the next round begins.
    Round,
    /// Nothing can go wrong any more: what is reserved is to be confirmed.
    Decided,
    /// A person wants it to go on instead of back. What had failed or was undone begins anew.
    Forward {
        /// Who.
        by: String,
    },
    /// A person has given it another input, which counts from the next attempts on.
    Input {
        /// The input.
        input: Value,
        /// Who.
        by: String,
    },
    /// It has ended.
    Ended {
        /// How.
        state: SagaState,
        /// Who ended it, if a person did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
}

impl Event {
    /// Some work is started, with a task that is made for it.
    pub(crate) const fn started(work: Work) -> Self {
        Self::Started { work, task: None, turn: 0 }
    }

    /// What it is about, if that is some work.
    pub fn work(&self) -> Option<&Work> {
        match self {
            Self::Started { work, .. }
            | Self::Done { work, .. }
            | Self::Failed { work, .. }
            | Self::Lost { work }
            | Self::Skipped { work, .. }
            | Self::TimeUp { work } => Some(work),
            Self::Began
            | Self::Signal { .. }
            | Self::Rollback { .. }
            | Self::Round
            | Self::Decided
            | Self::Forward { .. }
            | Self::Input { .. }
            | Self::Ended { .. } => None,
        }
    }
}

/// Why a saga is undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Why {
    /// A step failed.
    Failed {
        /// Which.
        step: String,
        /// How.
        error: String,
    },
    /// The time of this wait or reservation is up.
    TimeUp {
        /// Which.
        step: String,
    },
    /// The saga's own time is up.
    Deadline,
    /// Somebody wanted it.
    Asked {
        /// Who.
        by: String,
        /// What they said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
}

/// How a saga stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SagaState {
    /// Steps are under way.
    Running,
    /// It waits for a time or a signal, and nothing else is under way.
    Waiting,
    /// It is being undone.
    Compensating,
    /// It cannot go on, nor back, without a person.
    Stuck,
    /// All is done.
    Succeeded,
    /// All that was done is undone.
    Compensated,
    /// It was undone, but for what could not be, or was left out.
    CompensatedWithGaps,
    /// It failed, and nothing had to be undone.
    Failed,
    /// A person ended it; nothing was undone.
    Killed,
}

impl SagaState {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Running,
        Self::Waiting,
        Self::Compensating,
        Self::Stuck,
        Self::Succeeded,
        Self::Compensated,
        Self::CompensatedWithGaps,
        Self::Failed,
        Self::Killed,
    ];

    /// Its name in the database and the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Compensating => "compensating",
            Self::Stuck => "stuck",
            Self::Succeeded => "succeeded",
            Self::Compensated => "compensated",
            Self::CompensatedWithGaps => "compensated_with_gaps",
            Self::Failed => "failed",
            Self::Killed => "killed",
        }
    }

    /// By its name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// Whether nothing more happens.
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Running | Self::Waiting | Self::Compensating | Self::Stuck)
    }
}

impl std::fmt::Display for SagaState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
