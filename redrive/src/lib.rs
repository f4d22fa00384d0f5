//! redrive makes failed calls good: a call that fails is written down durably, tried again under a policy, and handed
//! to a person when nothing else helps.
//!
//! This crate is the library. What it is made of, in the order in which a task meets it:
//!
//! | module | what |
//! | --- | --- |
//! | [`task`], [`Policy`], [`Backoff`], [`Jitter`] | a call to be made good, and how |
//! | [`store`] | where tasks are kept: SQLite, PostgreSQL, MySQL/MariaDB |
//! | [`Engine`] | takes due tasks, runs their handlers, settles them |
//! | [`saga`] | flows of several steps that are finished, or undone |
//! | [`registry`] | how the nodes that share the work find each other |
//! | [`guard`] | retries failed rows of existing business tables, and hands them to people |
//! | `notify` | tells people, by mail and webhook, that tasks keep failing |
//! | [`resilience`] | for calls that are made here and now: circuit breaker, retries in memory, last good value |
//! | [`barrier`] | for participants of sagas: every call once, none out of order |
//! | [`condition`] | success conditions in CEL |
//! | [`settle()`], [`classify()`] | what becomes of a task when an attempt has ended: pure functions |
//! | [`testing`] | for tests of code that uses redrive |
//!
//! Databases are cargo features: `sqlite`, `postgres`, `mysql`, all on by default. `nacos`, off by default, is a registry;
//! `tower`, on by default, makes layers of what is in [`resilience`]; `axum`, off by default, makes a router of the routes of
//! [`guard`].

#![warn(missing_docs)]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::todo)
)]
#![cfg_attr(
    not(all(feature = "sqlite", feature = "postgres", feature = "mysql")),
    allow(dead_code, unused_imports, unused_variables, reason = "what only the databases that are left out need")
)]

#[cfg(not(any(feature = "sqlite", feature = "postgres", feature = "mysql")))]
compile_error!("redrive needs a database: turn on one of the features sqlite, postgres, mysql");

extern crate self as redrive; // so that derived code can name it, also in here

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
mod backoff;
pub mod barrier;
mod bisect;
mod call;
mod call_error;
mod callback;
mod classify;
mod clock;
mod cluster;
pub mod condition;
mod context;
mod crypt;
mod duration;
mod engine;
mod error;
pub mod gate;
pub mod guard;
mod id;
mod new_task;
#[cfg(feature = "notify")]
pub mod notify;
mod policy;
pub mod registry;
pub mod resilience;
mod retryable;
pub mod saga;
mod secret;
#[cfg(feature = "seeded-bugs")]
pub mod seeded;
#[cfg(not(feature = "seeded-bugs"))]
mod seeded;
mod settings;
mod settle;
pub mod store;
pub mod task;
pub mod testing;
mod unbroken;

pub use backoff::{Backoff, Jitter};
pub use call::Called;
pub use call_error::{CallError, Cause};
pub use callback::{FinalFailure, GivenUp, Succeeded};
pub use classify::{Class, ErrorKind, Failure, Kind, classify};
pub use clock::{Clock, Timestamp};
pub use context::Context;
pub use crypt::Keyring;
pub use engine::{Builder, Engine, EngineConfig, Event, MethodOptions, Rate, Stats, Verdict};
pub use error::{DatabaseError, Error, Problems, Result};
pub use id::{SHARDS, TaskId};
pub use new_task::{Key, NewTask, OnDuplicate};
pub use policy::{Notify, OnCrash, OnExhausted, Policy, RetryStrategy};
pub use redrive_macros::{ErrorKind, retryable};
pub use retryable::{FirstTry, IntoTask, Persist, Registration, Retryable};
pub use secret::Secret;
pub use settings::{
    DatabaseUrl, Defaults, EncryptionSettings, GuardSettings, GuardedTableSettings, HttpSettings, LogFormat,
    MethodSettings, Network, PolicyPatch, ServerSettings, Settings, TargetSettings, Watcher,
};
pub use settle::{Change, DeadReason, Outcome, To, give_up, settle, spent};
pub use store::{Enqueued, Store, StoreOptions};
pub use task::{Attempt, Business, Lane, LastError, NodeNumber, Status, StopRequest, Task};
#[doc(hidden)]
pub use unbroken::unbroken; // for the server, not for applications

// The README's example, and those of the guides, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../../README.zh-CN.md")]
#[doc = include_str!("../../docs/guide/barrier.md")]
#[doc = include_str!("../../docs/guide/encryption.md")]
#[doc = include_str!("../../docs/guide/errors.md")]
#[doc = include_str!("../../docs/guide/getting-started.md")]
#[doc = include_str!("../../docs/guide/idempotency.md")]
#[doc = include_str!("../../docs/guide/policies.md")]
#[doc = include_str!("../../docs/guide/resilience.md")]
#[doc = include_str!("../../docs/guide/running.md")]
#[doc = include_str!("../../docs/guide/saga.md")]
#[doc = include_str!("../../docs/guide/settings.md")]
#[doc = include_str!("../../docs/guide/strategies.md")]
#[doc = include_str!("../../docs/guide/testing.md")]
#[doc = include_str!("../../docs/guide/transactions.md")]
#[doc = include_str!("../../redrive-macros/src/retryable.md")]
#[cfg_attr(feature = "axum", doc = include_str!("../../docs/guide/guard.md"))]
#[cfg_attr(feature = "notify", doc = include_str!("../../docs/guide/notices.md"))]
#[cfg_attr(feature = "tower", doc = include_str!("../../docs/guide/composing.md"))]
struct Guides;
