//! Turns: how an insert whose answer was lost is neither written twice nor forgotten.
//!
//! *State.* A row of `redrive_counter` that only one inserter of one store uses, `insert/STORE/N`. Its value names the
//! last batch that this inserter has committed, and so says when that was; of a new one, when it was made.
//!
//! *Invariants.* A batch has a name that no other has. It is written together with a compare-and-set of the value, from the
//! batch before to this one, in one transaction. So of all tries of one batch, those that arrive late included, at most one
//! writes; and whether one has is known by reading the value, even if the tasks have run and are gone by then. A value that
//! names another batch never passes for ours: nothing is acknowledged on the strength of somebody else's commit.
//!
//! *Failure.* A turn whose end is not known when its inserter gives up is not used again; a new row is made. Whoever makes a store's first, or
//! one in the place of an old one, removes those that were not used for a day; nobody uses them any more, for after half a day without use a
//! store makes a new one. SQLite needs none of this: between it and us no answer is lost.

use std::sync::Mutex;
use std::time::Duration;

use crate::clock::Timestamp;
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

/// How long after its last use a turn is removed:
const KEPT_FOR: Duration = Duration::from_secs(86_400);
/// longer than it may be used again.
const USED_FOR: Duration = Duration::from_secs(43_200);
/// How many are removed at once, at the most.
const MOST_REMOVED: i64 = 100;

impl Turns {
    pub(super) fn new(store: i64) -> Self {
        Self { store, free: Mutex::default() }
    }
}

impl Store {
    /// A turn, if the database is one that needs them.
    pub(super) async fn turn(&self, now: Timestamp) -> Result<Option<Turn>> {
        if self.dialect() == Dialect::Sqlite {
            return Ok(None);
        }
        let turns = self.turns();
        let (number, tidies) = {
            let mut free = turns.free.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let old = match free.0.pop() {
                Some(turn) if turn.used_at() > now - USED_FOR => return Ok(Some(turn)),
                old => old.is_some(),
            };
            free.1 += 1;
            (free.1, old || free.1 == 1)
        };
        let name = format!("insert/{}/{number}", turns.store);
        let first = match self.dialect() {
            Dialect::MySql => "INSERT IGNORE INTO redrive_counter (name, value) VALUES (?, ?)",
            _ => "INSERT INTO redrive_counter (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING",
        };
        let made = self.ids().next(0, now).as_i64();
        retrying!(self.pools(), Use::Write, Scope::Statement, "beginning to enqueue", |c, _| {
            if tidies {
                remove_unused(c, now - KEPT_FOR).await?;
            }
            c.execute(query(first).bind(&*name).bind(made)).await
        })?;
        Ok(Some(Turn { name, last: made, batch: made }))
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

/// Removes turns that were not used since. Their values may be ids of monthly tables, which have one bit more.
async fn remove_unused(c: &mut Connection<'_>, since: Timestamp) -> sqlx::Result<()> {
    let monthly = TaskId::from_i64(0).in_month();
    let unused = "name LIKE 'insert/%' AND value % ? < ?";
    let values = || [monthly, TaskId::first_at(since)];
    // By their names: a DELETE over the range would wait, on MySQL, for whoever writes in it.
    let found = format!("SELECT name FROM redrive_counter WHERE {unused} LIMIT {MOST_REMOVED}");
    for row in c.rows(query(found).bind_all(values())).await? {
        let remove = format!("DELETE FROM redrive_counter WHERE {unused} AND name = ?");
        c.execute(query(remove).bind_all(values()).bind(row.columns().text()?)).await?;
    }
    Ok(())
}

impl Turn {
    /// When it was used last, or made.
    fn used_at(&self) -> Timestamp {
        TaskId::from_i64(self.last).made_at()
    }

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
