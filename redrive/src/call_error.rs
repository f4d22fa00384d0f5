//! Why a call has no value: what is durable, what is given up, and what its last try ended with.

use std::fmt;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::error::Error;
use crate::id::TaskId;

/// Why a call has no value.
#[derive(Debug)]
#[non_exhaustive]
pub enum CallError<T, E> {
    /// It failed, is written down, and will be tried again.
    Deferred {
        /// The task that makes it good.
        task_id: TaskId,
        /// Whether that task lived already, because of an earlier call with the same key.
        existed: bool,
        /// How the first try failed. `None`: there was none, because its task lives already; or it was cut off, because this
        /// node lost its right to run it.
        cause: Option<Cause<T, E>>,
    },
    /// It failed, and no retry will mend it.
    Rejected {
        /// How it failed.
        cause: Cause<T, E>,
    },
    /// It failed, and its attempts or its time are used up.
    Exhausted {
        /// The dead letter, if it was written down.
        task_id: Option<TaskId>,
        /// How it failed.
        cause: Cause<T, E>,
    },
    /// It failed, and, as its strategy is `manual`, was not written down.
    Failed {
        /// How it failed.
        cause: Cause<T, E>,
    },
    /// It could not be written down: nothing will be tried again unless the caller does.
    NotRecorded {
        /// How it failed. `None`: it was not tried, as its strategy (`always`) wants it written down first.
        cause: Option<Cause<T, E>>,
        /// Why it could not be written down.
        source: Error,
    },
}

/// How a try failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Cause<T, E> {
    /// With an error.
    Error(E),
    /// With a value that is not a success.
    Unmet(T),
    /// It did not fail: it succeeded with this value, but its callback, or what is to be kept of it, could not be written down.
    Untold(T),
    /// It took longer than its policy allows.
    Timeout(Duration),
    /// It panicked, and said this.
    Panic(String),
    /// It was not tried: what it calls is down, and its [gate](crate::gate) is open until then, if that is known.
    Held(Option<Timestamp>),
    /// It was not tried: what it calls has asked for a slower pace, and is left alone until then.
    LeftAlone(Timestamp),
    /// It was not tried: people have [paused](crate::Engine::pause) its method.
    Paused,
    /// It was not tried: its deadline, which this is, was over.
    Expired(Timestamp),
}

impl<T, E> CallError<T, E> {
    /// How the try failed, if there was one.
    pub fn cause(&self) -> Option<&Cause<T, E>> {
        match self {
            Self::Rejected { cause } | Self::Exhausted { cause, .. } | Self::Failed { cause } => Some(cause),
            Self::Deferred { cause, .. } | Self::NotRecorded { cause, .. } => cause.as_ref(),
        }
    }

    /// The error with which the try failed, if it was one.
    pub fn into_error(self) -> Option<E> {
        let cause = match self {
            Self::Rejected { cause } | Self::Exhausted { cause, .. } | Self::Failed { cause } => Some(cause),
            Self::Deferred { cause, .. } | Self::NotRecorded { cause, .. } => cause,
        };
        match cause {
            Some(Cause::Error(e)) => Some(e),
            _ => None,
        }
    }

    /// Whether it is written down and will be tried again.
    pub fn is_deferred(&self) -> bool {
        matches!(self, Self::Deferred { .. })
    }
}

impl<T, E: fmt::Display> fmt::Display for Cause<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(e) => write!(f, "{e:#}"),
            Self::Unmet(_) => f.write_str(UNMET),
            Self::Untold(_) => f.write_str("it succeeded, but that could not be told to its callback, or kept"),
            Self::Timeout(limit) => f.write_str(&no_result(*limit)),
            Self::Panic(said) => f.write_str(said),
            Self::Held(Some(until)) => write!(f, "what it calls is down; it is held back until {until}"),
            Self::LeftAlone(until) => {
                write!(f, "what it calls has asked for a slower pace; it is left alone until {until}")
            }
            Self::Paused => f.write_str("its method is paused"),
            Self::Expired(deadline) => write!(f, "its deadline was over before it began, at {deadline}"),
            Self::Held(None) => {
                f.write_str("its gate lets nothing through now: it is probed, or held open by a person")
            }
        }
    }
}

impl<T, E: fmt::Display> fmt::Display for CallError<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deferred { task_id, .. } => write!(f, "deferred as task {task_id}")?,
            Self::Rejected { .. } => f.write_str("rejected")?,
            Self::Exhausted { .. } => f.write_str("given up")?,
            Self::Failed { .. } => f.write_str("failed")?,
            Self::NotRecorded { source, .. } => write!(f, "not recorded ({source})")?,
        }
        self.cause().map_or(Ok(()), |cause| write!(f, ": {cause}"))
    }
}

impl<T: fmt::Debug, E: std::error::Error + 'static> std::error::Error for CallError<T, E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match (self, self.cause()) {
            (_, Some(Cause::Error(e))) => Some(e),
            (Self::NotRecorded { source, .. }, _) => Some(source),
            _ => None,
        }
    }
}

pub(crate) const UNMET: &str = "the result does not satisfy the success condition";

pub(crate) fn no_result(limit: Duration) -> String {
    format!("no result within {}", humantime::format_duration(limit))
}
