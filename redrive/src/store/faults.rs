//! Faults on purpose: what a database and a network do, when a test wants it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::pause;

use super::pool::Use;

/// What goes wrong with an operation on the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection is lost before anything is done.
    FailBefore,
    /// It is done and committed, and the answer is lost.
    FailAfterCommit,
    /// It takes this much longer.
    Delay(Duration),
    /// The connection is lost when it is to be committed: nothing is done.
    Disconnect,
    /// Whoever wants it done panics, as drivers may.
    Panic,
}

/// The faults to come. Clones share them. See [`StoreOptions::faults`](super::StoreOptions).
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<Planned>>);

#[derive(Debug, Default)]
struct Planned {
    writes: VecDeque<Fault>,
    down: bool,
}

impl Faults {
    /// The next operation that writes meets this fault. Several are met in their order, one each: the repetition of an
    /// operation, which is what the store does about a lost connection, is an operation of its own.
    pub fn next_write(&self, fault: Fault) {
        self.lock().writes.push_back(fault);
    }

    /// Whether the database can be reached at all.
    pub fn set_down(&self, down: bool) {
        self.lock().down = down;
    }

    /// Whether all planned faults have been met.
    pub fn are_spent(&self) -> bool {
        self.lock().writes.is_empty()
    }

    /// Met before an operation; gives what is to be met after it.
    #[expect(clippy::panic, reason = "a test asked for it")]
    pub(super) async fn before(&self, wanted: Use) -> sqlx::Result<Option<Fault>> {
        let met = {
            let mut planned = self.lock();
            if planned.down {
                return Err(lost());
            }
            if wanted == Use::Read { None } else { planned.writes.pop_front() }
        };
        match met {
            Some(Fault::FailBefore) => Err(lost()),
            Some(Fault::Panic) => panic!("a fault on purpose"),
            Some(Fault::Delay(time)) => {
                pause(time).await;
                Ok(None)
            }
            met => Ok(met),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Planned> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a lost connection looks like.
pub(super) fn lost() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::ConnectionReset, "a fault on purpose"))
}
