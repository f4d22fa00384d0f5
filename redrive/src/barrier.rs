//! For participants of sagas: each step's run, undo and confirm takes effect once at the most, and in no order that does harm,
//! however late, often and out of order its calls come.
//!
//! A call of a saga may come twice, and an undo may overtake the run that it undoes: an answer was lost, a run hangs in the
//! network, the saga gives it up and undoes it, and then it arrives. A participant whose effects are in a database asks the barrier in
//! the transaction of its effects, and does what it is told. See docs/guide/barrier.md.
//!
//! *State.* A step of a saga has two places, rows of `redrive_barrier`: `run`, where it begins, and `undo`, where it ends.
//! A place belongs to the first transaction that commits it; `written_by` says for which [`Op`], `result` what that one kept
//! for those who ask again. A run takes the first place; an undo and a confirm take both, as far as they are free.
//!
//! *Invariants.* Places are taken in the order run, undo, in the same transaction as the effect, and never given back. So of all
//! runs of a step one has an effect at the most, likewise of all undos; an undo has one only if the run had; none begins
//! after an undo that found nothing; and of undo and confirm there is one. What is told depends only on places that are committed or
//! our own: nothing that others do until our commit makes it wrong.
//!
//! *Failure.* A transaction that is rolled back leaves its places free. Whoever wants a place that an open transaction holds
//! waits for its end. Deadlocks, lock timeouts and serialization failures are [transient](crate::Error::is_transient) errors: the transaction is to
//! be rolled back and begun again, as nothing is repeated in here. A place that was removed by [`expire`] is free again: rows must outlive their
//! sagas.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value as Json;

use crate::error::{Error, Fault, Problems, Result};
use crate::saga::SagaState;
use crate::store::{Connection, Dialect, Query, Row, database_error, make_alone, query, script_of};

/// How long rows should be kept, if nothing is known of the sagas: 90 days. It must be more than the longest saga takes, with all its retries
/// and the time that it may wait for a person.
pub const KEEP: Duration = Duration::from_secs(90 * 24 * 3600);

const TABLE: &str = "redrive_barrier";
/// The most characters of a saga's id, and of a step's name: what the columns hold.
const LONGEST_SAGA_ID: usize = 255;
const LONGEST_STEP: usize = 100;

/// What a participant is asked to do.
///
/// Of a reservation, *try* is its run and *cancel* its undo: both words are understood where an op is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// To do the step; for reservations: to reserve.
    Run,
    /// To undo the step, if it was done; for reservations: to cancel.
    Undo,
    /// To make a reservation final. After that it cannot be undone.
    Confirm,
}

impl Op {
    /// As it is stored.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Undo => "undo",
            Self::Confirm => "confirm",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Op {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "run" | "try" => Ok(Self::Run),
            "undo" | "cancel" => Ok(Self::Undo),
            "confirm" => Ok(Self::Confirm),
            _ => Err(Error::invalid("op", format!("{text:?} is none of run, undo, confirm, try, cancel"))),
        }
    }
}

/// Which call it is: the same whenever it is repeated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BarrierKey {
    saga_id: String,
    step: String,
    op: Op,
}

impl BarrierKey {
    /// Of this saga, this step, this op. Ids have up to 255 characters, names of steps up to 100; [`enter`] refuses others.
    pub fn new(saga_id: impl Into<String>, step: impl Into<String>, op: Op) -> Self {
        Self { saga_id: saga_id.into(), step: step.into(), op }
    }

    fn check(&self) -> Result<()> {
        let mut problems = Problems::default();
        for (field, text, most) in [("saga_id", &self.saga_id, LONGEST_SAGA_ID), ("step", &self.step, LONGEST_STEP)] {
            let fits = !text.is_empty() && text.chars().count() <= most;
            problems.require(fits, field, || format!("must have from 1 to {most} characters"));
            // MySQL takes 'a' and 'a ' for the same, PostgreSQL has no NUL.
            let plain = !text.ends_with(' ') && !text.contains('\0');
            problems.require(plain, field, || "must not end with a space, nor contain NUL".into());
        }
        problems.into_result()
    }
}

impl fmt::Display for BarrierKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of step {} of saga {}", self.op, self.step, self.saga_id)
    }
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "whether to do anything is in here"]
pub enum Entered {
    /// It is the first: do it in this transaction, and commit.
    Proceed(Entry),
    /// It has been done: do nothing, and answer as the first one did. What that one [kept](Entry::keep) is in here.
    Duplicate(Option<Json>),
    /// An undo of what never ran: do nothing, answer with success, and **commit**: a run that comes later is then dangling.
    NullUndo,
    /// It came too late, or for nothing: a run after its undo, a confirm without a run or after an undo, an undo after a confirm. Do nothing, and
    /// refuse: nobody must take it for done.
    Dangling,
}

/// The place of a call that proceeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry(BarrierKey);

impl Entry {
    /// Keeps a result, as JSON, for the calls that repeat this one. In the same transaction, once the result is known.
    pub async fn keep(self, connection: impl Into<Connection<'_>>, result: &(impl Serialize + Sync)) -> Result<()> {
        let mut c = connection.into();
        let unfit = |e: serde_json::Error| Error::invalid("result", format!("cannot be written as JSON: {e}"));
        let json = serde_json::to_string(result).map_err(unfit)?;
        let sql = "UPDATE redrive_barrier SET result = ? WHERE saga_id = ? AND step = ? AND op = ? AND written_by = ?";
        let update = query(sql).bind(json);
        let update = bind_place(update, &self.0, Place::of(self.0.op)).bind(self.0.op.as_str());
        let changed = c.execute(update).await.map_err(|e| failed("keeping the result", &self.0, e))?;
        if changed == 0 {
            let why = "its row is not here: the transaction in which it was entered has ended".to_owned();
            return Err(Error::Conflict { doing: "keep the result of", id: self.0.to_string(), why });
        }
        Ok(())
    }
}

/// Asks whether to do what a saga wants, in the transaction in which it is done: as its first statement, so that everyone
/// takes locks in the same order.
///
/// ```
/// use redrive::barrier::{self, BarrierKey, Entered, Op};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
/// # let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
/// barrier::create_table(&mut *pool.acquire().await?).await?;
///
/// let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?; // on SQLite; elsewhere begin()
/// let answer = match barrier::enter(&mut *tx, &BarrierKey::new("order-7", "charge", Op::Run)).await? {
///     Entered::Proceed(entry) => {
///         // … the effect, on tx …
///         entry.keep(&mut *tx, &"paid").await?;
///         Ok("paid".into())
///     }
///     Entered::Duplicate(kept) => Ok(kept.unwrap_or_default()),
///     Entered::NullUndo => Ok("nothing to undo".into()),
///     Entered::Dangling => Err("too late"),
/// };
/// tx.commit().await?;
/// assert_eq!(answer, Ok("paid".into()));
/// # Ok(()) }
/// ```
///
/// Without a transaction around it the barrier has no meaning: its rows would be there before the effect, and stay without it.
/// After an error nothing is to be done but to roll back; if it is [transient](Error::is_transient), begin again.
pub async fn enter(connection: impl Into<Connection<'_>>, key: &BarrierKey) -> Result<Entered> {
    key.check()?;
    let mut c = connection.into();
    let (run, end) = take_places(&mut c, key).await.map_err(|e| failed("entering the barrier", key, e))?;
    Ok(decide(key, run, end))
}

/// Makes the table where it is missing: in a participant's own database. Redrive's has it. Any number of processes may do
/// so at once. On MySQL it ends the transaction that is open, as every change of a schema does there.
pub async fn create_table(connection: impl Into<Connection<'_>>) -> Result<()> {
    let made = make_alone(&mut connection.into(), TABLE).await;
    made.map_err(|e| database_error(format!("making the table {TABLE}"), e))
}

/// What [`create_table`] does, for those who keep their schema in files.
pub fn table_sql(dialect: Dialect) -> String {
    script_of(TABLE, dialect)
}

/// Removes rows that are older than this by the database's clock, the oldest first and `limit` at the most; how many there were. Call it again
/// while it is `limit`. [`KEEP`] says how long rows should live.
pub async fn expire(connection: impl Into<Connection<'_>>, older_than: Duration, limit: u32) -> Result<u64> {
    remove(&mut connection.into(), older_than, limit, "").await
}

/// The same in redrive's own database, where it is known which sagas have not ended: their rows stay, however old they are.
pub(crate) async fn expire_ended(c: &mut Connection<'_>, older_than: Duration, limit: u32) -> Result<u64> {
    let live = SagaState::ALL.into_iter().filter(|state| !state.is_final());
    let live = live.map(|state| format!("'{}'", state.as_str())).collect::<Vec<_>>().join(", ");
    let none_lives = format!(
        "AND NOT EXISTS (SELECT 1 FROM redrive_saga AS s WHERE s.id = redrive_barrier.saga_id AND s.state IN ({live}))"
    );
    remove(c, older_than, limit, &none_lives).await
}

async fn remove(c: &mut Connection<'_>, older_than: Duration, limit: u32, also: &str) -> Result<u64> {
    let old = format!("created_at < {} - ? {also} ORDER BY created_at LIMIT ?", clock(c.dialect()));
    let sql = match c.dialect() {
        Dialect::Sqlite => {
            format!("DELETE FROM redrive_barrier WHERE rowid IN (SELECT rowid FROM redrive_barrier WHERE {old})")
        }
        Dialect::Postgres => format!(
            "DELETE FROM redrive_barrier WHERE ctid = ANY(ARRAY \
             (SELECT ctid FROM redrive_barrier WHERE {old} FOR UPDATE SKIP LOCKED))"
        ),
        Dialect::MySql => format!("DELETE FROM redrive_barrier WHERE {old}"),
    };
    let age = i64::try_from(older_than.as_millis()).unwrap_or(i64::MAX / 2);
    let removed = c.execute(query(sql).bind(age).bind(limit)).await;
    removed.map_err(|e| database_error(format!("removing old rows of {TABLE}"), e))
}

/// One of the two places of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Run,
    End,
}

impl Place {
    /// The one that an op must have, to have an effect.
    fn of(op: Op) -> Self {
        if op == Op::Run { Self::Run } else { Self::End }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::End => "undo",
        }
    }
}

/// Whose a place is.
#[derive(Clone, Debug)]
struct Taken {
    by: Op,
    /// It was free until now.
    just_now: bool,
    result: Option<Json>,
}

/// The one decision: whose are the places?
fn decide(key: &BarrierKey, run: Taken, end: Option<Taken>) -> Entered {
    let never_ran = run.by != Op::Run;
    let place = end.unwrap_or(run);
    match key.op {
        Op::Undo if never_ran => Entered::NullUndo,
        Op::Confirm if never_ran => Entered::Dangling,
        _ if place.just_now => Entered::Proceed(Entry(key.clone())),
        op if place.by == op => Entered::Duplicate(place.result),
        _ => Entered::Dangling,
    }
}

/// First the run's place, then the end's: always in this order, so that two calls cannot wait for each other.
async fn take_places(c: &mut Connection<'_>, key: &BarrierKey) -> sqlx::Result<(Taken, Option<Taken>)> {
    let run = take(c, key, Place::Run).await?;
    match key.op {
        Op::Run => Ok((run, None)),
        Op::Undo | Op::Confirm => Ok((run, Some(take(c, key, Place::End).await?))),
    }
}

async fn take(c: &mut Connection<'_>, key: &BarrierKey, place: Place) -> sqlx::Result<Taken> {
    // On PostgreSQL under READ COMMITTED a row that stood in the way may have expired before it is read: its place is free then.
    for _ in 0..8 {
        // Waits for an open transaction that has it.
        if c.execute(insert(c.dialect(), key, place)).await? == 1 {
            return Ok(Taken { by: key.op, just_now: true, result: None });
        }
        if let Some(row) = c.row(select(c.dialect(), key, place)).await? {
            return read(&row);
        }
    }
    Err(sqlx::Error::Protocol("a row that stood in the way is not to be seen".into()))
}

fn insert<'q>(dialect: Dialect, key: &'q BarrierKey, place: Place) -> Query<'q> {
    let (verb, otherwise) = match dialect {
        Dialect::MySql => ("INSERT IGNORE", ""),
        Dialect::Sqlite | Dialect::Postgres => ("INSERT", "ON CONFLICT (saga_id, step, op) DO NOTHING"),
    };
    let now = clock(dialect);
    let sql = format!(
        "{verb} INTO redrive_barrier (saga_id, step, op, written_by, created_at) VALUES (?, ?, ?, ?, {now}) {otherwise}"
    );
    bind_place(query(sql), key, place).bind(key.op.as_str())
}

fn select(dialect: Dialect, key: &BarrierKey, place: Place) -> Query<'_> {
    let row = query("SELECT written_by, result FROM redrive_barrier WHERE saga_id = ? AND step = ? AND op = ?");
    let row = bind_place(row, key, place);
    match dialect {
        // The snapshot of a REPEATABLE READ may be older than the row that stood in the way; a locking read has none.
        Dialect::MySql => row.followed_by("LOCK IN SHARE MODE"),
        Dialect::Sqlite | Dialect::Postgres => row,
    }
}

fn bind_place<'q>(query: Query<'q>, key: &'q BarrierKey, place: Place) -> Query<'q> {
    query.bind(&*key.saga_id).bind(&*key.step).bind(place.as_str())
}

fn read(row: &Row) -> sqlx::Result<Taken> {
    let mut columns = row.columns();
    let by = columns.text()?.parse().map_err(|e: Error| sqlx::Error::Decode(e.into()))?;
    let result = columns.opt_text()?.map(serde_json::from_str).transpose();
    Ok(Taken { by, just_now: false, result: result.map_err(|e| sqlx::Error::Decode(e.into()))? })
}

/// Milliseconds since 1970 by the database's clock, the same for a whole statement: an index can be used with it.
fn clock(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite => "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
        Dialect::Postgres => "CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000 AS BIGINT)",
        Dialect::MySql => "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)",
    }
}

fn failed(doing: &str, key: &BarrierKey, e: sqlx::Error) -> Error {
    match database_error(format!("{doing} for {key}"), e) {
        e if e.fault() == Some(Fault::NoTable) => {
            Error::Schema(format!("{e}; redrive::barrier::create_table makes the table {TABLE}"))
        }
        e => e,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(by: Op, just_now: bool) -> Taken {
        Taken { by, just_now, result: None }
    }

    /// Everything that can be found, and what is said to it.
    #[test]
    fn who_has_the_places_decides() {
        use Op::{Confirm, Run, Undo};
        let said = |op, run: Taken, end| match decide(&BarrierKey::new("s", "a", op), run, end) {
            Entered::Proceed(_) => "proceed",
            Entered::Duplicate(_) => "duplicate",
            Entered::NullUndo => "null undo",
            Entered::Dangling => "dangling",
        };
        for (by, just_now, answer) in
            [(Run, true, "proceed"), (Run, false, "duplicate"), (Undo, false, "dangling"), (Confirm, false, "dangling")]
        {
            assert_eq!(said(Run, taken(by, just_now), None), answer, "a run, the place taken by {by}");
        }
        for (op, run, end, just_now, answer) in [
            (Undo, Run, Undo, true, "proceed"),
            (Undo, Run, Undo, false, "duplicate"),
            (Undo, Run, Confirm, false, "dangling"),
            (Undo, Undo, Undo, true, "null undo"),
            (Undo, Undo, Undo, false, "null undo"),
            (Undo, Confirm, Confirm, false, "null undo"),
            (Confirm, Run, Confirm, true, "proceed"),
            (Confirm, Run, Confirm, false, "duplicate"),
            (Confirm, Run, Undo, false, "dangling"),
            (Confirm, Confirm, Confirm, true, "dangling"),
            (Confirm, Confirm, Confirm, false, "dangling"),
            (Confirm, Undo, Undo, false, "dangling"),
        ] {
            let found = said(op, taken(run, just_now), Some(taken(end, just_now)));
            assert_eq!(found, answer, "{op}, run taken by {run}, the end by {end}, just now: {just_now}");
        }
    }

    #[test]
    fn ops_are_read_as_written_and_by_the_words_for_reservations() {
        for op in [Op::Run, Op::Undo, Op::Confirm] {
            assert_eq!(op.as_str().parse::<Op>().unwrap(), op);
        }
        assert_eq!(("try".parse::<Op>().unwrap(), "cancel".parse::<Op>().unwrap()), (Op::Run, Op::Undo));
        assert!("RUN".parse::<Op>().is_err());
    }

    #[test]
    fn keys_that_a_database_would_change_are_refused() {
        let good = BarrierKey::new("é".repeat(255), "x".repeat(100), Op::Run);
        good.check().unwrap();
        for (saga_id, step) in
            [("", "a"), ("s", ""), (&*"x".repeat(256), "a"), ("s", &*"x".repeat(101)), ("s ", "a"), ("s", "a\0b")]
        {
            let said = BarrierKey::new(saga_id, step, Op::Run).check().unwrap_err().to_string();
            assert!(said.contains("must"), "{said}");
        }
        let both = BarrierKey::new("", "", Op::Run).check().unwrap_err().to_string();
        assert!(both.contains("saga_id") && both.contains("step"), "{both}");
    }
}
