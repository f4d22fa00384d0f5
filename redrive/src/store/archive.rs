//! What has ended: history, kept for people.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::id::TaskId;
use crate::settle::DeadReason;
use crate::task::Task;

use super::db::{Connection, Row, Value};
use super::decode::Decoder;
use super::layout::Archive;
use super::row::{insert_rows, read_columns, write_task, written_columns};

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedAs {
    /// It succeeded (kept only if asked).
    Done,
    /// It was cancelled.
    Cancelled,
    /// It failed at its first try with an error that no retry can mend, and its caller was told.
    Rejected,
    /// It was given up and its policy wants no dead letter.
    Dropped,
    /// It was dead and a person said that it is done.
    Resolved,
    /// It was dead and a person dropped it.
    Discarded,
    /// It was dead and was brought back as a new task.
    Redriven,
}

impl EndedAs {
    const ALL: [Self; 7] =
        [Self::Done, Self::Cancelled, Self::Rejected, Self::Dropped, Self::Resolved, Self::Discarded, Self::Redriven];

    /// Its name in the database and the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Cancelled => "cancelled",
            Self::Rejected => "rejected",
            Self::Dropped => "dropped",
            Self::Resolved => "resolved",
            Self::Discarded => "discarded",
            Self::Redriven => "redriven",
        }
    }
}

/// A task in the archive.
#[derive(Clone, Debug, PartialEq)]
pub struct Archived {
    /// The task as it was when it ended.
    pub task: Task,
    /// When it ended.
    pub ended_at: Timestamp,
    /// How.
    pub ended_as: EndedAs,
    /// Why it was dead or given up, if it was.
    pub dead_reason: Option<DeadReason>,
    /// Its result, as JSON.
    pub result: Option<String>,
    /// The task that it was brought back as.
    pub redriven_as: Option<TaskId>,
    /// Who ended it, if a person did.
    pub ended_by: Option<String>,
    /// What they said.
    pub note: Option<String>,
}

/// An entry to be written.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) task: Task,
    pub(super) ended_as: EndedAs,
    pub(super) dead_reason: Option<DeadReason>,
    pub(super) result: Option<String>,
    pub(super) redriven_as: Option<TaskId>,
    pub(super) by: Option<String>,
    pub(super) note: Option<String>,
}

impl Entry {
    pub(super) fn new(task: Task, ended_as: EndedAs) -> Self {
        Self { task, ended_as, dead_reason: None, result: None, redriven_as: None, by: None, note: None }
    }
}

pub(super) const COLUMNS: [&str; 7] =
    ["ended_at", "ended_as", "dead_reason", "result_json", "redriven_as", "ended_by", "note"];

pub(super) async fn insert(
    c: &mut Connection<'_>,
    table: Archive,
    entries: &[Entry],
    now: Timestamp,
) -> sqlx::Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    let mut columns = written_columns();
    columns.extend(COLUMNS);
    let mut rows = Vec::with_capacity(entries.len());
    for e in entries {
        let mut values = write_task(&e.task);
        values.extend([
            now.into(),
            Value::from(e.ended_as.as_str()),
            e.dead_reason.map(DeadReason::as_str).into(),
            e.result.as_deref().into(),
            e.redriven_as.into(),
            e.by.as_deref().into(),
            e.note.as_deref().into(),
        ]);
        rows.push(values);
    }
    insert_rows(c, table, &columns, rows, "", &[]).await.map(|_| ())
}

pub(super) fn read_archived(row: &Row) -> sqlx::Result<Archived> {
    let mut columns = row.columns();
    let task = read_columns(&mut columns)?;
    let c = &mut Decoder::new(&mut columns);
    let ended_at = c.time("ended_at").unwrap_or_default();
    let ended_as = c.text("ended_as");
    let ended_as = c.name("ended_as", ended_as, EndedAs::ALL.into_iter().find(|e| e.as_str() == ended_as));
    let dead_reason = c.opt_text("dead_reason");
    let mut archived = Archived {
        task,
        ended_at,
        ended_as: ended_as.unwrap_or(EndedAs::Dropped),
        dead_reason: dead_reason.and_then(|reason| c.name("dead_reason", reason, reason_of(reason))),
        result: c.opt_text("result_json").map(str::to_owned),
        redriven_as: c.opt_int("redriven_as").map(TaskId::from_i64),
        ended_by: c.opt_text("ended_by").map(str::to_owned),
        note: c.opt_text("note").map(str::to_owned),
    };
    c.mark(&mut archived.task);
    Ok(archived)
}

/// The reason of this name.
pub(super) fn reason_of(name: &str) -> Option<DeadReason> {
    DeadReason::ALL.into_iter().find(|reason| reason.as_str() == name)
}

pub(super) fn read_reason(name: &str) -> sqlx::Result<DeadReason> {
    reason_of(name).ok_or_else(|| unknown("dead_reason", name))
}

fn unknown(column: &str, value: &str) -> sqlx::Error {
    sqlx::Error::Decode(format!("unknown {column} {value:?}").into())
}
