//! For tests of code that uses redrive.

use crate::clock::Timestamp;
use crate::id::IdMaker;
use crate::new_task::NewTask;
use crate::task::{Task, limits};

/// The row that a [`NewTask`] would become, without a database: at a fixed time, with the first id.
///
/// # Panics
///
/// If the task is not valid.
#[expect(clippy::panic, reason = "for tests")]
pub fn task(new: NewTask) -> Task {
    let now = Timestamp::from_millis(1_800_000_000_000);
    new.into_task(&IdMaker::new(0), now, limits::PARAMS).unwrap_or_else(|e| panic!("{e}"))
}
