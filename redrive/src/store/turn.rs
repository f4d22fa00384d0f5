//! Turns: how an insert whose answer was lost is neither written twice nor forgotten.
//!
//! *State.* A row of `redrive_counter` that only one inserter of one store uses, `insert/STORE/INSTANCE/N`. Its value names the
//! last batch that this inserter has committed, and so says when that was; of a new one, when it was made.
//!
//! *Invariants.* A batch has a name that no other has. It is written together with a compare-and-set of the value, from the
//! batch before to this one, in one transaction. So of all tries of one batch, those that arrive late included, at most one
//! writes; and whether one has is known by reading the value, even if the tasks have run and are gone by then. A value that
//! names another batch never passes for ours: nothing is acknowledged on the strength of somebody else's commit.
//!
//! The rows also say who enqueues: STORE is the number by which a store has the slot of its ids (`id.rs`). After a restore the number may be
//! given out again, so INSTANCE is random. A store that makes a turn looks whether another has its slot, and then goes on under the next number. Of two that look at the same
//! time at least the later one sees the other: both have made their rows before.
//!
//! *Failure.* A turn whose end is not known when its inserter gives up is not used again; a new row is made. Whoever makes a store's first, or
//! one in the place of an old one, removes those that were not used for a day; nobody uses them any more, for after half a day without use a
//! store makes a new one. SQLite needs none of this: between it and us no answer is lost.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::clock::Timestamp;
use crate::error::{Error, Fault, Result};
use crate::id::{TaskId, in_slots};

use super::Store;
use super::db::{Connection, Dialect, Value, query};
use super::node::{count_up, first_value};
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
    /// Of this store: its number is not given out again, unless the database is restored. Another, when it has moved.
    store: AtomicI64,
    /// Tells this store from another that was given its number after a restore.
    instance: String,
    free: Mutex<(Vec<Turn>, u32)>,
}

/// The compare-and-set: changes one row, or none if the batch was written before.
pub(super) const TAKE_TURN: &str = "UPDATE redrive_counter SET value = ? WHERE name = ? AND value = ?";

/// How often a store moves on at the most: those that have come and gone in a day may be more than there are slots.
const MOST_MOVES: u32 = 4;

/// The counter of stores.
pub(super) const SLOT: &str = "slot";

/// How long after its last use a turn is removed:
const KEPT_FOR: Duration = Duration::from_secs(86_400);
/// longer than it may be used again.
const USED_FOR: Duration = Duration::from_secs(43_200);
/// How many are removed at once, at the most.
const MOST_REMOVED: i64 = 100;

impl Turns {
    pub(super) fn new(store: i64) -> Self {
        let mut random = [0; 8];
        // Without random numbers, stores of one number are not told apart, which is as it was.
        _ = getrandom::fill(&mut random);
        let instance = format!("{:016x}", u64::from_be_bytes(random));
        Self { store: AtomicI64::new(store), instance, free: Mutex::default() }
    }
}

impl Store {
    /// A turn, if the database is one that needs them.
    pub(super) async fn turn(&self, now: Timestamp) -> Result<Option<Turn>> {
        if self.dialect() == Dialect::Sqlite {
            return Ok(None);
        }
        let turns = self.turns();
        // Whoever makes a turn looks who else enqueues: another may be needed because this store's rows are gone.
        let (number, tidies) = {
            let mut free = turns.free.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let old = match free.0.pop() {
                Some(turn) if turn.used_at() > now - USED_FOR => return Ok(Some(turn)),
                old => old.is_some(),
            };
            free.1 += 1;
            (free.1, old || free.1 == 1)
        };
        let mut moves = MOST_MOVES;
        loop {
            let store = turns.store.load(Ordering::Acquire);
            let name = format!("insert/{store}/{}/{number}", turns.instance);
            let turn = self.make_turn(name, tidies, now).await?;
            if moves == 0 || !self.has_twin(store).await? {
                return Ok(Some(turn));
            }
            moves -= 1;
            let next = count_up(self.pools(), SLOT).await?;
            self.ids().move_to(next);
            turns.store.store(next, Ordering::Release);
        }
    }

    async fn make_turn(&self, name: String, tidies: bool, now: Timestamp) -> Result<Turn> {
        let made = self.ids().next(0, now).as_i64();
        retrying!(self.pools(), Use::Write, Scope::Statement, "beginning to enqueue", |c, _| {
            if tidies {
                remove_unused(c, now - KEPT_FOR).await?;
            }
            c.execute(query(first_value(c.dialect())).bind(&*name).bind(made)).await
        })?;
        Ok(Turn { name, last: made, batch: made })
    }

    /// Whether another store that enqueues has the slot of this one.
    async fn has_twin(&self, store: i64) -> Result<bool> {
        let all = "SELECT name FROM redrive_counter WHERE name LIKE 'insert/%'";
        let names = retrying!(self.pools(), Use::Read, Scope::Statement, "looking who else enqueues", |c, _| {
            let rows = c.rows(query(all)).await?;
            rows.iter().map(|row| row.columns().text().map(str::to_owned)).collect::<sqlx::Result<Vec<String>>>()
        })?;
        Ok(names.iter().any(|name| is_twin(name, store, &self.turns().instance)))
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

/// Whether this is the turn of another store that has the slot of this one.
fn is_twin(turn: &str, store: i64, instance: &str) -> bool {
    let mut parts = turn.split('/').skip(1);
    let Some(other) = parts.next().and_then(|number| number.parse::<i64>().ok()) else { return false };
    in_slots(other) == in_slots(store) && (other != store || parts.next() != Some(instance))
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

/// The batch is written, and what came after it failed: the next try finds out what became of each.
pub(super) fn unheard(e: &sqlx::Error) -> sqlx::Error {
    sqlx::Error::Protocol(format!("after an insert was committed: {e}"))
}

/// The batch was written before, by a try of ours whose answer we did not hear.
pub(super) fn taken() -> sqlx::Error {
    sqlx::Error::Protocol("an earlier try of this insert was committed, or is about to be".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_store_in_the_slot_is_a_twin_and_so_is_one_of_the_same_number() {
        let twin = |turn| is_twin(turn, 5, "aa");
        assert_eq!(["insert/5/aa/1", "insert/6/aa/1", "insert/6/bb/1"].map(twin), [false; 3]);
        assert_eq!(["insert/5/bb/1", "insert/1029/aa/1", "insert/5/1"].map(twin), [true; 3]);
    }
}
