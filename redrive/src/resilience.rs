//! For calls that are made here and now: a circuit breaker, retries in memory with a budget, the last good value. Small values
//! that know nothing of each other, of a database or of the engine; with the feature `tower` (on by default) also as layers.
//! `docs/guide/resilience.md` shows each, `docs/guide/composing.md` in which order they go together.
//!
//! | type | what |
//! | --- | --- |
//! | [`CircuitBreaker`] | rejects calls at once while what they call is ill; told by a [`BreakerConfig`] |
//! | [`Retry`], [`RetryBudget`] | tries again by a [`Policy`](crate::Policy), as far as a budget goes |
//! | [`LastGood`] | the last good value, while there is no new one |
//! | [`HttpAnswer`], [`Health::of_failure`] | what an answer or an error says of who was called |
//! | `BreakerLayer`, `RetryLayer`, `LastGoodLayer` | the same for tower |
//!
//! Within, deciding is apart from doing: `machine` (states) and `samples` (what was counted) take the time as an argument and
//! have neither clock nor chance of their own.

mod breaker;
mod budget;
mod builder;
pub(crate) mod config;
mod events;
mod http;
mod last_good;
#[cfg(feature = "tower")]
mod layer;
pub(crate) mod machine;
mod permit;
mod retry;
pub(crate) mod samples;
mod snapshot;
pub(crate) mod window;

pub use breaker::CircuitBreaker;
pub use budget::RetryBudget;
pub use builder::BreakerBuilder;
pub use config::{BreakerConfig, HalfOpen, Mode, Trip, Window};
pub use events::{BreakerEvent, Events};
pub use http::HttpAnswer;
pub use last_good::{LastGood, MaybeRejected, Served};
#[cfg(feature = "tower")]
pub use layer::{
    BreakerFuture, BreakerLayer, BreakerService, ByResult, JudgeFailure, JudgeHealth, LastGoodLayer, LastGoodService,
    RetryLayer, RetryService,
};
pub use machine::{Health, Hold, Reason, State};
pub use permit::{BreakerError, OwnedPermit, Permit, Rejected, rejection};
pub use retry::{GaveUp, Retry, RetryError, by_kind};
pub use samples::Tally;
pub(crate) use samples::{Sample, Samples};
pub use snapshot::{ProbeCounts, Snapshot};
