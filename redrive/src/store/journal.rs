//! Writing the journals of sagas: see [`saga`](crate::saga). What is written was decided there; here it is written, if the saga is still as
//! it was when that was decided.
//!
//! *State.* `redrive_saga.seq` is the number of the last event in `redrive_saga_event`. `updated_at` says since when the saga has been
//! in its state. `driver_id` names the last write: a name that no other has.
//!
//! *Invariants.* The events of one write, the tasks that they ask for and the row's new `seq` are one transaction, and the row moves only
//! from the `seq` that the writer knew. Many sagas' writes share a transaction; each is won or lost by itself.
//!
//! *Failure.* If the answer to a commit is lost, the write's name in the row says that it was written. If others have written since, it does
//! not: then all is told again to what the saga has become, where each event is known by what it says, and a signal by its key.

use std::collections::HashSet;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::id::TaskId;
use crate::saga::SagaState;
use crate::task::{KeyHash, Task};

use super::Store;
use super::audit::{AuditEntry, Record};
use super::db::{Connection, Dialect, Row, Value, database_error, query};
use super::insert::insert_follow_ups;
use super::layout::Tables;
use super::notice::Happened;
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::row::{Listed, insert_rows, joined_on};

/// One saga's part of a write.
#[derive(Debug)]
pub(crate) struct Append {
    pub(crate) id: String,
    /// What it is, if it begins with this.
    pub(crate) begins: Option<Begins>,
    /// The number of the last event before this.
    pub(crate) was: i64,
    pub(crate) state: SagaState,
    /// Since when it is in that state.
    pub(crate) since: Timestamp,
    /// When it must be looked at again.
    pub(crate) look_at: Option<Timestamp>,
    /// What is new in the journal.
    pub(crate) events: Vec<String>,
    pub(crate) tasks: Vec<Task>,
    /// What people did, for the audit.
    pub(crate) audits: Vec<AuditEntry>,
    /// What people are to be told of it.
    pub(crate) happened: Option<Happened>,
}

/// What a new saga is.
#[derive(Clone, Debug)]
pub(crate) struct Begins {
    pub(crate) name: String,
    pub(crate) definition: String,
    pub(crate) input: String,
    pub(crate) input_hash: KeyHash,
}

const ROWS: [&str; 10] =
    ["id", "seq", "driver_id", "created_at", "updated_at", "deadline", "state", "name", "input_hash", "definition"];

impl Store {
    /// Writes what many sagas have come to, and the tasks that follow, in one transaction. Says of each whether it was written; if not,
    /// somebody else was faster. A row that another transaction holds is waited for only if that is wanted.
    pub(crate) async fn append_sagas(&self, appends: &[Append], waits: bool, now: Timestamp) -> Result<Vec<bool>> {
        let wanted = if waits { Use::Write } else { Use::Insert };
        let name = self.new_id(Some(0), now);
        let ids: Vec<TaskId> = appends.iter().flat_map(|a| &a.tasks).map(|task| task.id).collect();
        let tables = self.make_room(&ids).await?;
        let records: Vec<Vec<Record>> =
            appends.iter().map(|a| a.audits.iter().map(|entry| self.record(entry.clone(), now)).collect()).collect();
        let doing = describe(appends);
        let written = retrying!(self.pools(), wanted, Scope::Transaction, &doing, |c, tried| {
            if tried > 0 {
                let before = written_by(c, appends, name).await?;
                if !before.is_empty() {
                    return Ok(before);
                }
            }
            append_once(c, &tables, appends, &records, name, now).await
        });
        let written = self.learn_from(written).await?;
        Ok(appends.iter().map(|a| written.contains(&a.id)).collect())
    }

    /// Writes a saga that begins in the caller's own transaction. Nothing is repeated in there. If its id is taken: the hash of what that
    /// one was started with.
    pub(crate) async fn begin_saga_in(
        &self,
        c: &mut Connection<'_>,
        append: &Append,
        now: Timestamp,
    ) -> Result<Option<[u8; 16]>> {
        let ids: Vec<TaskId> = append.tasks.iter().map(|task| task.id).collect();
        let tables = self.make_room_in(c, &ids, now).await?;
        let (name, appends) = (self.new_id(Some(0), now), std::slice::from_ref(append));
        let doing = format!("starting saga {} in the caller's transaction", append.id);
        let written = append_once(c, &tables, appends, &[], name, now).await;
        if !written.map_err(|e| database_error(&*doing, e))?.is_empty() {
            return Ok(None);
        }
        let taken = started_with(c, &append.id).await.map_err(|e| database_error(&*doing, e))?;
        taken.map(Some).ok_or_else(|| Error::NotFound { what: "saga", id: append.id.clone() }) // removed just now
    }
}

fn describe(appends: &[Append]) -> String {
    match appends {
        [one] => format!("writing the journal of saga {}", one.id),
        [first, rest @ ..] => format!("writing the journals of saga {} and {} more", first.id, rest.len()),
        [] => "writing no journal".into(),
    }
}

async fn append_once(
    c: &mut Connection<'_>,
    tables: &Tables,
    appends: &[Append],
    records: &[Vec<Record>],
    name: TaskId,
    now: Timestamp,
) -> sqlx::Result<HashSet<String>> {
    let (begin, go_on): (Vec<&Append>, Vec<&Append>) = appends.iter().partition(|a| a.begins.is_some());
    let mut written = insert_sagas(c, &begin, name, now).await?;
    written.extend(move_sagas(c, &go_on, name).await?);
    let won = || appends.iter().filter(|a| written.contains(&a.id));
    insert_events(c, won(), now).await?;
    let tasks: Vec<Task> = won().flat_map(|a| a.tasks.iter().cloned()).collect();
    if !tasks.is_empty() {
        insert_follow_ups(c, tables, &tasks, now).await?;
    }
    for (a, records) in appends.iter().zip(records) {
        for record in records.iter().filter(|_| written.contains(&a.id)) {
            record.write(c, now).await?;
        }
    }
    for happened in appends.iter().filter(|a| written.contains(&a.id)).filter_map(|a| a.happened.as_ref()) {
        happened.write(c, now).await?;
    }
    Ok(written)
}

async fn started_with(c: &mut Connection<'_>, id: &str) -> sqlx::Result<Option<[u8; 16]>> {
    let sql = match c.dialect() {
        // The row is locked by our insert already, but a plain look is at what there was when the transaction first looked.
        Dialect::MySql => "SELECT input_hash FROM redrive_saga WHERE id = ? FOR UPDATE",
        Dialect::Sqlite | Dialect::Postgres => "SELECT input_hash FROM redrive_saga WHERE id = ?",
    };
    c.row(query(sql).bind(id)).await?.map(|row| row.columns().hash()).transpose()
}

/// New sagas, but those whose ids are taken.
async fn insert_sagas(
    c: &mut Connection<'_>,
    begin: &[&Append],
    name: TaskId,
    now: Timestamp,
) -> sqlx::Result<HashSet<String>> {
    if begin.is_empty() {
        return Ok(HashSet::new());
    }
    let row = |a: &&Append| -> Option<Vec<Value<'_>>> {
        let b = a.begins.as_ref()?;
        let last = a.events.len() as i64;
        Some(vec![
            a.id.clone().into(),
            last.into(),
            name.into(),
            now.into(),
            a.since.into(),
            a.look_at.into(),
            a.state.as_str().into(),
            b.name.clone().into(),
            b.input_hash.into(),
            b.definition.clone().into(),
            b.input.clone().into(),
        ])
    };
    let rows = begin.iter().filter_map(row).collect();
    let columns: Vec<&str> = ROWS.into_iter().chain(["input"]).collect();
    if c.dialect() == Dialect::MySql {
        // It does not say which it has inserted; the rows do.
        insert_rows(c, "redrive_saga", &columns, rows, "ON DUPLICATE KEY UPDATE seq = seq", &[]).await?;
        return named(c, begin, name).await;
    }
    let suffix = "ON CONFLICT (id) DO NOTHING RETURNING id";
    ids(&insert_rows(c, "redrive_saga", &columns, rows, suffix, &[]).await?)
}

/// Moves those on that are still where they were thought to be.
async fn move_sagas(c: &mut Connection<'_>, go_on: &[&Append], name: TaskId) -> sqlx::Result<HashSet<String>> {
    if go_on.is_empty() {
        return Ok(HashSet::new());
    }
    let mut sorted = go_on.to_vec();
    sorted.sort_unstable_by(|a, b| a.id.cmp(&b.id)); // in one order everywhere: no deadlocks
    let row = |a: &&Append| {
        let last = a.was + a.events.len() as i64;
        vec![a.id.clone().into(), a.was.into(), last.into(), a.state.as_str().into(), a.since.into(), a.look_at.into()]
    };
    let columns = ["id", "was", "seq", "state", "since", "look_at"];
    let s = Listed::new(c.dialect(), &columns, sorted.iter().map(row).collect());
    let set = ["seq = s.seq", "state = s.state", "updated_at = s.since", "deadline = s.look_at", "driver_id = ?"];
    let same = "t.id = s.id AND t.seq = s.was";
    match c.dialect() {
        Dialect::MySql => {
            let set = set.map(|s| format!("t.{s}")).join(", ");
            let table = joined_on(Dialect::MySql, "redrive_saga", same);
            let sql = format!("UPDATE {} {table} SET {set}", s.source);
            c.execute(s.bind_to(query(sql)).bind(name)).await?;
            named(c, go_on, name).await
        }
        Dialect::Postgres => {
            let set = set.join(", ");
            let sql = format!("UPDATE redrive_saga t SET {set} FROM {} WHERE {same} RETURNING t.id", s.source);
            ids(&c.rows(s.bind_to(query(sql).bind(name))).await?)
        }
        Dialect::Sqlite => {
            let set = set.join(", ");
            let sql = format!("UPDATE redrive_saga AS t SET {set} FROM {} WHERE {same} RETURNING id", s.source);
            ids(&c.rows(s.bind_to(query(sql).bind(name))).await?)
        }
    }
}

/// Which of these were written last under this name.
async fn named(c: &mut Connection<'_>, appends: &[&Append], name: TaskId) -> sqlx::Result<HashSet<String>> {
    let s = Listed::new(c.dialect(), &["id"], appends.iter().map(|a| vec![a.id.clone().into()]).collect());
    let table = joined_on(c.dialect(), "redrive_saga", "t.id = s.id");
    let sql = format!("SELECT t.id FROM {} {table} WHERE t.driver_id = ?", s.source);
    ids(&c.rows(s.bind_to(query(sql)).bind(name)).await?)
}

async fn written_by(c: &mut Connection<'_>, appends: &[Append], name: TaskId) -> sqlx::Result<HashSet<String>> {
    named(c, &appends.iter().collect::<Vec<_>>(), name).await
}

fn ids(rows: &[Row]) -> sqlx::Result<HashSet<String>> {
    rows.iter().map(|row| row.columns().text().map(str::to_owned)).collect()
}

async fn insert_events<'a>(
    c: &mut Connection<'_>,
    appends: impl Iterator<Item = &'a Append>,
    now: Timestamp,
) -> sqlx::Result<()> {
    let mut rows: Vec<Vec<Value<'_>>> = Vec::new();
    for a in appends {
        let numbered = (a.was + 1..).zip(&a.events);
        rows.extend(
            numbered.map(|(seq, event)| vec![a.id.as_str().into(), seq.into(), now.into(), event.as_str().into()]),
        );
    }
    if rows.is_empty() {
        return Ok(());
    }
    insert_rows(c, "redrive_saga_event", &["saga_id", "seq", "at", "event"], rows, "", &[]).await.map(|_| ())
}
