//! Turns: how an insert whose answer was lost is neither written twice nor forgotten.
//!
//! *State.* A row of `redrive_counter` that only one inserter of one store uses, `insert/STORE/N`. Its value names the
//! last batch that this inserter has committed.
//!
//! *Invariants.* A batch has a name that no other has. It is written together with a compare-and-set of the value, from the
//! batch before to this one, in one transaction. So of all tries of one batch, those that arrive late included, at most one
//! writes; and whether one has is known by reading the value, even if the tasks have run and are gone by then. A value that
//! names another batch never passes for ours: nothing is acknowledged on the strength of somebody else's commit.
//!
//! *Failure.* A turn whose end is not known when its inserter gives up is not used again; a new row is made. SQLite needs
//! none of this: between it and us no answer is lost.

use std::sync::Mutex;

use crate::error::{Error, Fault, Result};
use crate::id::TaskId;

use super::Store;
use super::db::{Connection, Dialect, Value, query};
use super::pool::Use;
use super::retry::{Scope, retrying};

/// The right to write one batch.
#[derive(Debug)]
pub(super) struct Turn {
    name: String,
    /// The last batch that was committed.
    last: i64,
    /// The batch that is to be.
    batch: i64,
}

/// The turns of a store that nobody uses.
#[derive(Debug)]
pub(super) struct Turns {
    /// Of this store: its number is never given out again.
    store: i64,
    free: Mutex<(Vec<Turn>, u32)>,
}

/// The compare-and-set: changes one row, or none if the batch was written before.
pub(super) const TAKE_TURN: &str = "UPDATE redrive_counter SET value = ? WHERE name = ? AND value = ?";

/// Rows of stores that were opened so long ago are removed as new ones are made.
const KEPT: i64 = 10_000;

impl Turns {
    pub(super) fn new(store: i64) -> Self {
        Self { store, free: Mutex::default() }
    }
}

impl Store {
    /// A turn, if the database is one that needs them.
    pub(super) async fn turn(&self) -> Result<Option<Turn>> {
        if self.dialect() == Dialect::Sqlite {
            return Ok(None);
        }
        let turns = self.turns();
        let number = {
            let mut free = turns.free.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if let Some(turn) = free.0.pop() {
                return Ok(Some(turn));
            }
            free.1 += 1;
            free.1
        };
        let name = |store: i64| format!("insert/{store}/{number}");
        let first = match self.dialect() {
            Dialect::MySql => "INSERT IGNORE INTO redrive_counter (name, value) VALUES (?, 0)",
            _ => "INSERT INTO redrive_counter (name, value) VALUES (?, 0) ON CONFLICT (name) DO NOTHING",
        };
        retrying!(self.pools(), Use::Write, Scope::Statement, "beginning to enqueue", |c, _| {
            c.execute(query("DELETE FROM redrive_counter WHERE name = ?").bind(name(turns.store - KEPT))).await?;
            c.execute(query(first).bind(name(turns.store))).await
        })?;
        Ok(Some(Turn { name: name(turns.store), last: 0, batch: 0 }))
    }

    /// It may be used again, if what became of it is known.
    pub(super) fn end_turn(&self, turn: Option<Turn>, error: Option<&Error>) {
        // These two come from the first try only, and from the database itself: it was rolled back.
        let certain = error.is_none_or(|e| matches!(e.fault(), Some(Fault::Busy | Fault::Unique)));
        if let Some(turn) = turn.filter(|_| certain) {
            self.turns().free.lock().unwrap_or_else(std::sync::PoisonError::into_inner).0.push(turn);
        }
    }
}

impl Turn {
    /// The values of [`TAKE_TURN`].
    pub(super) fn values<'q>(&self) -> [Value<'q>; 3] {
        [self.batch.into(), self.name.clone().into(), self.last.into()]
    }

    /// Whether the batch was written by an earlier try.
    pub(super) async fn is_committed(&self, c: &mut Connection<'_>) -> sqlx::Result<bool> {
        let row = c.row(query("SELECT value FROM redrive_counter WHERE name = ?").bind(&*self.name)).await?;
        Ok(row.map(|row| row.int()).transpose()? == Some(self.batch))
    }

    /// The next batch, under a name of its own.
    pub(super) fn begin(&mut self, batch: TaskId) {
        self.batch = batch.as_i64();
    }

    /// The batch is written.
    pub(super) fn end(&mut self) {
        self.last = self.batch;
    }
}

/// The batch was written before, by a try of ours whose answer we did not hear.
pub(super) fn taken() -> sqlx::Error {
    sqlx::Error::Protocol("an earlier try of this insert was committed, or is about to be".into())
}
