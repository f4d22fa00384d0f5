//! Dead letters that people are reminded of until someone does something about them: `on_exhausted = escalate`.
//!
//! *State.* `next_remind_time` and `remind_count` of a letter; `redrive_reminder`, with one row for each letter of which a
//! reminder waits to be sent, naming the channels that have it (as `redrive_notice` does for notices).
//!
//! *Invariants.* The first reminder is due when the letter is written, the next one an interval after it, then two, three: the
//! n-th is followed by n intervals (source 5's rule). When one is due its row is written and the letter's time moved on, in one
//! transaction, so it is not lost if no channel works. A reminder that is due while an older one still waits takes its place:
//! every channel gets it, and none gets two. A letter that was closed or taken over is not reminded of, though a row waits.
//!
//! *Failure.* Writing a reminder is a compare-and-set of the letter's `next_remind_time`: two nodes that do it at once, or a
//! repeated try, write one.

use std::time::Duration;

use serde::Serialize;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::id::TaskId;
use crate::settle::DeadReason;
use crate::task::{Business, LastError, limits, storable};

use super::Store;
use super::archive::read_reason;
use super::audit::Record;
use super::db::{Connection, Dialect, Query, Row, query};
use super::dead::{COLUMNS, DeadTask, read_dead};
use super::notice::pattern;
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::row::{column_list, last_error, narrow, read_business, time};

/// A dead letter that people are to be reminded of.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Reminder {
    /// The letter.
    pub task_id: TaskId,
    /// Its method.
    pub method: String,
    /// What it is about.
    #[serde(flatten)]
    pub business: Option<Business>,
    /// Why it is dead.
    pub dead_reason: DeadReason,
    /// Since when.
    pub dead_at: Timestamp,
    /// Whether someone has said that they have seen it, and when.
    pub acknowledged_at: Option<Timestamp>,
    /// The last error, its message cut; a task that was failed by hand may have none.
    pub error: Option<LastError>,
    /// Which reminder it is, from 1.
    pub n: u32,
    /// The channels that have it already.
    pub sent_to: Vec<String>,
}

pub(super) fn acknowledge<'q>(id: TaskId, now: Timestamp) -> Query<'q> {
    let sql = "UPDATE retry_dead SET acknowledged_at = COALESCE(acknowledged_at, ?), updated_at = ? WHERE id = ?";
    query(sql).bind(now).bind(now).bind(id)
}

pub(super) fn take_over(id: TaskId, owner: &str, now: Timestamp) -> Query<'_> {
    let sql = "UPDATE retry_dead SET owner = ?, acknowledged_at = COALESCE(acknowledged_at, ?), next_remind_time = NULL, \
               updated_at = ? WHERE id = ?";
    query(sql).bind(owner).bind(now).bind(now).bind(id)
}

pub(super) fn no_letter(id: TaskId) -> Error {
    Error::NotFound { what: "dead letter", id: id.to_string() }
}

impl Store {
    /// Letters of which a reminder is due, the longest due first.
    pub async fn letters_to_remind(&self, now: Timestamp, limit: u32) -> Result<Vec<DeadTask>> {
        let sql = format!(
            "SELECT {}, {COLUMNS} FROM retry_dead WHERE next_remind_time <= ? AND owner IS NULL \
             ORDER BY next_remind_time LIMIT ?",
            column_list("")
        );
        retrying!(self.pools(), Use::Read, Scope::Statement, "looking for letters to remind of", |c, _| {
            c.rows(query(sql.clone()).bind(now).bind(limit)).await?.iter().map(read_dead).collect()
        })
    }

    /// Writes the reminders of letters as they were read; the next ones are due after `every` times their number. How many:
    /// a letter that someone else wrote one of, took over or closed meanwhile is left alone.
    pub async fn note_reminded(&self, letters: &[DeadTask], every: Duration, now: Timestamp) -> Result<u64> {
        let mut written = 0;
        for letters in letters.chunks(500) {
            written += retrying!(self.pools(), Use::Write, Scope::Transaction, "writing reminders", |c, _| {
                let mut written = 0;
                for letter in letters {
                    written += u64::from(write_one(c, letter, every, now).await?);
                }
                Ok(written)
            })?;
        }
        Ok(written)
    }

    /// Reminders that a channel has not got yet, the oldest tasks first.
    pub async fn reminders_for(&self, channel: &str, limit: u32) -> Result<Vec<Reminder>> {
        self.read_reminders("r.sent_to NOT LIKE ?", vec![pattern(channel)], limit).await
    }

    pub(super) async fn read_reminders(
        &self,
        condition: &str,
        values: Vec<String>,
        limit: u32,
    ) -> Result<Vec<Reminder>> {
        let sql = format!(
            "SELECT r.task_id, d.method_name, d.business_type, d.business_id, d.dead_reason, d.dead_at, d.acknowledged_at, \
             d.last_error_kind, d.last_error_msg, d.last_error_time, r.remind_count, r.sent_to \
             FROM redrive_reminder r JOIN retry_dead d ON d.id = r.task_id AND d.owner IS NULL \
             WHERE {condition} ORDER BY r.task_id LIMIT ?"
        );
        let read = query(sql).bind_all(values).bind(limit);
        retrying!(self.pools(), Use::Read, Scope::Statement, "reading reminders", |c, _| {
            c.rows(read.clone()).await?.iter().map(read_reminder).collect()
        })
    }

    /// Changes a letter for a person, with the record of it.
    pub(super) async fn change_letter(
        &self,
        id: TaskId,
        change: Query<'_>,
        record: &Record,
        now: Timestamp,
    ) -> Result<()> {
        let doing = format!("changing dead letter {id}");
        let changed = retrying!(self.pools(), Use::Write, Scope::Transaction, &doing, |c, _| {
            let changed = c.execute(change.clone()).await?;
            if changed == 1 {
                record.write(c, now).await?;
            }
            Ok(changed)
        })?;
        if changed == 1 { Ok(()) } else { Err(no_letter(id)) }
    }
}

#[cfg(feature = "notify")]
impl Store {
    /// Whether there is anything that people are to be told or reminded of.
    pub(crate) async fn has_news(&self, now: Timestamp) -> Result<bool> {
        let any = [
            "SELECT 1 FROM redrive_notice LIMIT 1",
            "SELECT 1 FROM redrive_reminder LIMIT 1",
            "SELECT 1 FROM retry_dead WHERE next_remind_time <= ? LIMIT 1",
        ];
        retrying!(self.pools(), Use::Read, Scope::Statement, "looking for notices and reminders", |c, _| {
            for sql in any {
                let look = query(sql).bind_all(sql.contains('?').then_some(now));
                if c.row(look).await?.is_some() {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    /// Deletes reminders that all of these channels have, and those of letters that need none any more.
    pub(crate) async fn finish_reminders(&self, channels: &[&str]) -> Result<()> {
        let has = vec!["sent_to LIKE ?"; channels.len()].join(" AND ");
        let waits = "EXISTS (SELECT 1 FROM retry_dead d WHERE d.id = redrive_reminder.task_id AND d.owner IS NULL)";
        let which = |what: &str| {
            let sql = format!("{what} FROM redrive_reminder WHERE ({has}) OR NOT {waits}");
            query(sql).bind_all(channels.iter().map(|channel| pattern(channel)))
        };
        let (any, delete) = (which("SELECT 1"), which("DELETE"));
        let found = retrying!(self.pools(), Use::Read, Scope::Statement, "looking for sent reminders", |c, _| {
            Ok(c.row(any.clone().followed_by("LIMIT 1")).await?.is_some())
        })?;
        if !found {
            return Ok(()); // without a write: this is asked often
        }
        retrying!(self.pools(), Use::Write, Scope::Statement, "finishing reminders", |c, _| {
            c.execute(delete.clone()).await.map(|_| ())
        })
    }
}

/// The letter's time moves on, if it still is what it was; then the reminder is written, in the place of an older one.
async fn write_one(c: &mut Connection<'_>, letter: &DeadTask, every: Duration, now: Timestamp) -> sqlx::Result<bool> {
    let n = letter.remind_count.saturating_add(1);
    let move_on = "UPDATE retry_dead SET next_remind_time = ?, remind_count = ? \
                   WHERE id = ? AND next_remind_time = ? AND remind_count = ? AND owner IS NULL";
    let move_on = query(move_on).bind(now + every.saturating_mul(n)).bind(n).bind(letter.task.id);
    if c.execute(move_on.bind(letter.next_remind_time).bind(letter.remind_count)).await? == 0 {
        return Ok(false);
    }
    let again = match c.dialect() {
        Dialect::MySql => {
            "ON DUPLICATE KEY UPDATE created_at = VALUES(created_at), remind_count = VALUES(remind_count), sent_to = ','"
        }
        Dialect::Sqlite | Dialect::Postgres => {
            "ON CONFLICT (task_id) DO UPDATE SET created_at = excluded.created_at, \
             remind_count = excluded.remind_count, sent_to = ','"
        }
    };
    let sql = format!("INSERT INTO redrive_reminder (task_id, created_at, remind_count) VALUES (?, ?, ?) {again}");
    c.execute(query(sql).bind(letter.task.id).bind(now).bind(n)).await?;
    Ok(true)
}

fn read_reminder(row: &Row) -> sqlx::Result<Reminder> {
    let mut c = row.columns();
    let (task_id, method) = (TaskId::from_i64(c.int()?), c.text()?.to_owned());
    let business = read_business(&mut c)?;
    let (dead_reason, dead_at) = (read_reason(c.text()?)?, time(&mut c)?.unwrap_or_default());
    let acknowledged_at = time(&mut c)?;
    let (kind, message) = (c.opt_text()?.map(str::to_owned), c.opt_text()?);
    let message = message.map(|message| storable(message, limits::HISTORY_ERROR));
    let error = last_error(kind, message, time(&mut c)?);
    let n = narrow(c.int()?)?;
    let sent_to = super::notice::names(c.text()?);
    Ok(Reminder { task_id, method, business, dead_reason, dead_at, acknowledged_at, error, n, sent_to })
}
