//! redrive makes failed calls good.

#![warn(missing_docs)]

mod backoff;
mod classify;
mod clock;
mod duration;
mod error;
mod id;
mod policy;
mod settle;
pub mod store;
pub mod task;
pub mod testing;

pub use backoff::{Backoff, Jitter};
pub use classify::{Class, ErrorKind, Failure, Kind, classify};
pub use clock::{Clock, Timestamp};
pub use error::{DatabaseError, Error, Problems, Result};
pub use id::{SHARDS, TaskId};
pub use policy::{Notify, OnCrash, OnExhausted, Policy, RetryStrategy};
pub use settle::{Change, DeadReason, Outcome, To, give_up, settle, spent};
pub use store::{Enqueued, Store, StoreOptions};
pub use task::{Attempt, Business, Key, Lane, LastError, NewTask, NodeNumber, OnDuplicate, Status, StopRequest, Task};
