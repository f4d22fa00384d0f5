//! What a task of the load does at each attempt, and how it must end. It travels in the task's params, so the handler, and
//! afterwards the checker, know it without asking anybody.

use std::time::Duration;

use redrive::{Backoff, Jitter, NewTask, Policy};
use serde::{Deserialize, Serialize};

use crate::chance::Chance;

/// The methods of the load; each is a lane.
pub const METHODS: [&str; 3] = ["soak.red", "soak.green", "soak.blue"];

/// How long after its enqueue a task is due that is to be cancelled.
const IN_AN_HOUR: u64 = 3_600_000;
const TIMEOUT_MS: u64 = 300;

/// The params of a task: its number, which no other has, and its plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub n: String,
    pub plan: Plan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Plan {
    /// Succeeds at once.
    Done,
    /// Fails so many times, then succeeds.
    Fail(u32),
    /// Takes so many milliseconds, then succeeds.
    Slow(u64),
    /// Panics once.
    Panic,
    /// Takes longer than it may, once.
    Timeout,
    /// Asks once to be called again after so many milliseconds; that is not an attempt.
    Snooze(u64),
    /// Fails once, and asks not to be called before so many milliseconds.
    After(u64),
    /// Says that no retry will help.
    Fatal,
    /// Fails always and has three attempts.
    Exhaust,
    /// Due after so many milliseconds.
    Delay(u64),
    /// Due in an hour, and cancelled before.
    Cancel,
}

/// What a handler does in one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Succeed,
    SucceedAfter(u64),
    Fail,
    Panic,
    Hang,
    Snooze(u64),
    RetryAfter(u64),
    Fatal,
}

/// How a task must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Done,
    /// A dead letter with this reason, after so many attempts.
    Dead(&'static str, i64),
    Cancelled,
}

impl Plan {
    /// A plan, the plain ones most often.
    pub fn draw(chance: &mut Chance) -> Self {
        match chance.below(100) {
            0..30 => Self::Done,
            30..50 => Self::Fail(chance.between(1, 3) as u32),
            50..56 => Self::Slow(chance.between(200, 2_500)),
            56..60 => Self::Panic,
            60..64 => Self::Timeout,
            64..69 => Self::Snooze(chance.between(50, 1_000)),
            69..73 => Self::After(chance.between(200, 1_500)),
            73..77 => Self::Fatal,
            77..82 => Self::Exhaust,
            82..92 => Self::Delay(chance.between(1_000, 5_000)),
            _ => Self::Cancel,
        }
    }

    /// A plan that ends well: a dead letter does not keep its key, so a second enqueue would rightly be a second task.
    pub fn draw_done(chance: &mut Chance) -> Self {
        match chance.below(4) {
            0 => Self::Done,
            1 => Self::Fail(chance.between(1, 2) as u32),
            2 => Self::Slow(chance.between(200, 1_000)),
            _ => Self::Delay(chance.between(100, 1_000)),
        }
    }

    /// What to do in the attempt of this number. A crash does not count, so after one the same step comes again.
    pub fn step(self, attempt: u32, postponements: u32) -> Step {
        let once = |step| if attempt == 1 { step } else { Step::Succeed };
        match self {
            Self::Done | Self::Delay(_) | Self::Cancel => Step::Succeed,
            Self::Fail(times) => {
                if attempt <= times {
                    Step::Fail
                } else {
                    Step::Succeed
                }
            }
            Self::Slow(ms) => Step::SucceedAfter(ms),
            Self::Panic => once(Step::Panic),
            Self::Timeout => once(Step::Hang),
            Self::Snooze(ms) => {
                if postponements == 0 {
                    Step::Snooze(ms)
                } else {
                    Step::Succeed
                }
            }
            Self::After(ms) => once(Step::RetryAfter(ms)),
            Self::Fatal => Step::Fatal,
            Self::Exhaust => Step::Fail,
        }
    }

    pub fn end(self) -> End {
        match self {
            Self::Fatal => End::Dead("rejected", 1),
            Self::Exhaust => End::Dead("exhausted", 3),
            Self::Cancel => End::Cancelled,
            _ => End::Done,
        }
    }

    /// How long after its enqueue it is due, in milliseconds.
    pub fn delay(self) -> u64 {
        match self {
            Self::Delay(ms) => ms,
            Self::Cancel => IN_AN_HOUR,
            _ => 0,
        }
    }

    /// Short waits, so that a run is dense. Crashes never end a task here: they are what we cause.
    fn policy(self) -> Policy {
        let ms = Duration::from_millis;
        Policy {
            max_attempts: Some(if self == Self::Exhaust { 3 } else { 16 }),
            backoff: Backoff::exponential(ms(50), 2.0, ms(500)),
            jitter: Jitter::Add(ms(50)),
            timeout: (self == Self::Timeout).then(|| ms(TIMEOUT_MS)),
            max_crashes: 1_000,
            ..Policy::default()
        }
    }
}

impl Call {
    /// The task, with the key that params give.
    pub fn task(&self) -> redrive::Result<NewTask> {
        let method = METHODS[self.n.bytes().map(usize::from).sum::<usize>() % METHODS.len()];
        let new = NewTask::new(method, self)?.policy(self.plan.policy());
        Ok(new.delay(Duration::from_millis(self.plan.delay())))
    }
}
