//! Tasks that people are to be told of, and the channels by which they are: see [`notify`](crate::notify).
//!
//! *Invariants.* A notice is written in the transaction that settles the failed attempt, once for a task, and only while
//! its `notified_at` is not set. It is deleted in the transaction that sets that, in whichever table the task is then. Both
//! lock the task's row before the notice's. What no channel takes for a week is deleted by the upkeep.

#[cfg(feature = "notify")]
use std::fmt::Display;

use serde::Serialize;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::id::{IdMap, TaskId};
use crate::settle::{DeadReason, To};
use crate::task::{Business, LastError, Task, limits, storable};

use super::Store;
use super::archive::read_reason;
use super::db::{Connection, Dialect, Row, Value, query};
use super::layout::Table;
#[cfg(feature = "notify")]
use super::layout::Tables;
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::row::{Listed, insert_rows, joined_on, last_error, narrow, read_business, time};
use super::settle::Settle;

/// A task that people are to be told of, as it was when that was decided.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Notice {
    /// The task.
    pub task_id: TaskId,
    /// Its method.
    pub method: String,
    /// What it is about.
    #[serde(flatten)]
    pub business: Option<Business>,
    /// Attempts so far.
    pub attempts: u32,
    /// The error of the last one, its message cut.
    pub error: LastError,
    /// Why it was given up, if it was.
    pub dead_reason: Option<DeadReason>,
    /// When it was decided that people are to be told.
    pub created_at: Timestamp,
    /// The channels that have it already.
    pub sent_to: Vec<String>,
}

/// How telling people by a channel goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChannelState {
    /// The channel.
    pub name: String,
    /// It is left alone until then.
    pub next_at: Timestamp,
    /// When it last took a message.
    pub sent_at: Option<Timestamp>,
    /// When it last failed.
    pub failed_at: Option<Timestamp>,
    /// How many messages it took.
    pub sent: u64,
    /// How often it failed since it last took one.
    pub tries: u32,
    /// What was wrong the last time; `None` when it works.
    pub last_error: Option<String>,
}

/// What was in a message that a channel took.
#[cfg(feature = "notify")]
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// Notices that all channels have now.
    pub(crate) finished: Vec<TaskId>,
    /// Notices that others still wait for.
    pub(crate) partly: Vec<TaskId>,
    /// Reminders.
    pub(crate) reminders: Vec<TaskId>,
}

const COLUMNS: [&str; 10] = [
    "task_id",
    "created_at",
    "failed_at",
    "attempts",
    "method_name",
    "business_type",
    "business_id",
    "dead_reason",
    "error_kind",
    "error_msg",
];

impl Notice {
    /// Whether it is of something that happened, not of a task: a node died, a target is down.
    pub fn is_event(&self) -> bool {
        self.attempts == 0 // a task's has at least one
    }
}

impl Store {
    /// People are to be told of something that happened: `node.fenced`, to whom, in a sentence. In the next message, to all channels, once.
    pub(crate) async fn note_event(&self, kind: &str, who: &str, said: &str, now: Timestamp) -> Result<()> {
        let happened = self.happened(kind, who, said, now);
        retrying!(self.pools(), Use::Write, Scope::Statement, "noting what people are to be told of", |c, _| {
            happened.write(c, now).await
        })
    }

    /// The same, to be written with what happened.
    pub(crate) fn happened(&self, kind: &str, who: &str, said: &str, now: Timestamp) -> Happened {
        let (kind, who, said) = (storable(kind, 100), storable(who, 500), storable(said, LONGEST_EVENT));
        Happened { id: self.new_id(None, now), kind, who, said }
    }
}

/// Something that happened, of which people are to be told.
#[derive(Debug)]
pub(crate) struct Happened {
    id: TaskId,
    kind: String,
    who: String,
    said: String,
}

impl Happened {
    pub(super) async fn write(&self, c: &mut Connection<'_>, now: Timestamp) -> sqlx::Result<()> {
        let (insert, once) = insert_once(c.dialect());
        let columns = "task_id, created_at, failed_at, attempts, method_name, error_kind, error_msg";
        let sql = format!("{insert} INTO redrive_notice ({columns}) VALUES (?, ?, ?, 0, ?, ?, ?) {once}");
        let event = query(sql).bind(self.id).bind(now).bind(now).bind(&*self.who).bind(&*self.kind).bind(&*self.said);
        c.execute(event).await.map(|_| ())
    }
}

/// Bytes of what is said of an event.
const LONGEST_EVENT: usize = 1_000;

/// A task as it is after its failed attempt, and why it was given up, if it was.
pub(super) type Told<'t> = (&'t Task, Option<DeadReason>);

/// Writes notices of tasks whose rows this transaction has locked in the task table: unless people were told already.
pub(super) async fn write(
    c: &mut Connection<'_>,
    table: Table,
    tasks: &[Told<'_>],
    now: Timestamp,
) -> sqlx::Result<()> {
    if tasks.is_empty() {
        return Ok(());
    }
    let s = Listed::new(c.dialect(), &COLUMNS, tasks.iter().map(|told| values(told, now)).collect());
    let columns = COLUMNS.map(|column| format!("s.{column}")).join(", ");
    let table = joined_on(c.dialect(), table, "t.id = s.task_id");
    let (insert, once) = insert_once(c.dialect());
    let sql = format!(
        "{insert} INTO redrive_notice ({}) SELECT {columns} FROM {} {table} WHERE t.notified_at IS NULL {once}",
        COLUMNS.join(", "),
        s.source
    );
    c.execute(s.bind_to(query(sql))).await.map(|_| ())
}

/// The same for tasks that are about to leave that table, as far as their changes ask for it. Gives those that people were
/// told of already, and when.
pub(super) async fn write_leaving(
    c: &mut Connection<'_>,
    table: Table,
    leaving: &[&Settle],
    now: Timestamp,
) -> sqlx::Result<IdMap<Timestamp>> {
    let after = after_failure(leaving, now);
    let tasks: Vec<Told<'_>> = after.iter().map(|(task, reason)| (task, *reason)).collect();
    write(c, table, &tasks, now).await?;
    told_of(c, table, &after.iter().map(|(task, _)| task.id).collect::<Vec<_>>()).await
}

/// Of settles that want people told: the tasks after them, and why they were given up, if they were.
fn after_failure(settles: &[&Settle], now: Timestamp) -> Vec<(Task, Option<DeadReason>)> {
    let telling = settles.iter().filter(|s| s.change.notice);
    telling.map(|s| (s.task.after(&s.change, now), given_up(s))).collect()
}

fn given_up(settle: &Settle) -> Option<DeadReason> {
    match settle.change.to {
        To::Dead(reason) | To::Dropped(reason) => Some(reason),
        To::Pending { .. } | To::Done | To::Cancelled => None,
    }
}

/// The same for tasks that are new in this transaction, wherever they were written: nobody can have been told.
pub(super) async fn write_new(c: &mut Connection<'_>, settles: &[&Settle], now: Timestamp) -> sqlx::Result<()> {
    let after = after_failure(settles, now);
    if after.is_empty() {
        return Ok(());
    }
    let once = match c.dialect() {
        Dialect::MySql => "ON DUPLICATE KEY UPDATE task_id = redrive_notice.task_id", // changes nothing
        Dialect::Sqlite | Dialect::Postgres => "ON CONFLICT DO NOTHING",
    };
    let rows = after.iter().map(|(task, reason)| values(&(task, *reason), now)).collect();
    insert_rows(c, "redrive_notice", &COLUMNS, rows, once, &[]).await.map(|_| ())
}

/// Which of these, in the task table, people were told of, and when: it may have happened since they were claimed.
async fn told_of(c: &mut Connection<'_>, table: Table, ids: &[TaskId]) -> sqlx::Result<IdMap<Timestamp>> {
    if ids.is_empty() {
        return Ok(IdMap::default());
    }
    let s = Listed::new(c.dialect(), &["id"], ids.iter().map(|id| vec![(*id).into()]).collect());
    let table = joined_on(c.dialect(), table, "t.id = s.id");
    let sql = format!("SELECT t.id, t.notified_at FROM {} {table} WHERE t.notified_at IS NOT NULL", s.source);
    let read = |row: &Row| {
        let mut columns = row.columns();
        Ok((TaskId::from_i64(columns.int()?), Timestamp::from_millis(columns.int()?)))
    };
    c.rows(s.bind_to(query(sql))).await?.iter().map(read).collect()
}

fn insert_once(dialect: Dialect) -> (&'static str, &'static str) {
    match dialect {
        Dialect::MySql => ("INSERT IGNORE", ""),
        Dialect::Sqlite | Dialect::Postgres => ("INSERT", "ON CONFLICT DO NOTHING"),
    }
}

/// The values of [`COLUMNS`].
fn values<'q>((task, reason): &Told<'q>, now: Timestamp) -> Vec<Value<'q>> {
    let error = task.last_error.as_ref();
    vec![
        task.id.into(),
        now.into(),
        error.map_or(now, |e| e.at).into(),
        task.attempts.into(),
        task.method.as_str().into(),
        task.business.as_ref().map(|b| b.kind.as_str()).into(),
        task.business.as_ref().map(|b| b.id.as_str()).into(),
        reason.map(DeadReason::as_str).into(),
        error.map_or("", |e| e.kind.as_str()).into(),
        error.map_or(String::new(), |e| storable(&e.message, limits::HISTORY_ERROR)).into(),
    ]
}

fn read_notice(row: &Row) -> sqlx::Result<Notice> {
    let mut c = row.columns();
    let task_id = TaskId::from_i64(c.int()?);
    let created_at = Timestamp::from_millis(c.int()?);
    let failed_at = time(&mut c)?;
    let attempts = narrow(c.int()?)?;
    let method = c.text()?.to_owned();
    let business = read_business(&mut c)?;
    let dead_reason = c.opt_text()?.map(read_reason).transpose()?;
    let error = last_error(Some(c.text()?.to_owned()), Some(c.text()?.to_owned()), failed_at);
    let error = error.ok_or(sqlx::Error::RowNotFound)?; // the columns are NOT NULL
    let sent_to = names(c.text()?);
    Ok(Notice { task_id, method, business, attempts, error, dead_reason, created_at, sent_to })
}

fn read_channel(row: &Row) -> sqlx::Result<ChannelState> {
    let mut c = row.columns();
    Ok(ChannelState {
        name: c.text()?.to_owned(),
        next_at: time(&mut c)?.unwrap_or_default(),
        sent_at: time(&mut c)?,
        failed_at: time(&mut c)?,
        sent: narrow(c.int()?)?,
        tries: narrow(c.int()?)?,
        last_error: c.opt_text()?.map(str::to_owned),
    })
}

/// The channels that `sent_to` names.
pub(super) fn names(sent_to: &str) -> Vec<String> {
    sent_to.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// What a channel that has the notice finds in `sent_to`. Names have no characters that mean something to LIKE.
pub(super) fn pattern(channel: &str) -> String {
    format!("%,{channel},%")
}

impl Store {
    /// People are to be told of this task, which waits after its first try. Nothing is lost if this is not reached: the next
    /// failure asks for it again.
    pub(crate) async fn note_failing(&self, task: &Task, now: Timestamp) -> Result<()> {
        let doing = format!("noting that people are to be told of task {}", task.id);
        let table = self.tables().of(task.id);
        retrying!(self.pools(), Use::Write, Scope::Transaction, &doing, |c, _| write(c, table, &[(task, None)], now)
            .await)
    }

    /// What people are still to be told of, the oldest tasks first.
    pub async fn notices(&self, limit: u32) -> Result<Vec<Notice>> {
        self.read_notices("1 = 1", Vec::new(), limit).await
    }

    /// What a channel has not got yet, the oldest tasks first.
    pub async fn notices_for(&self, channel: &str, limit: u32) -> Result<Vec<Notice>> {
        self.read_notices("sent_to NOT LIKE ?", vec![pattern(channel)], limit).await
    }

    async fn read_notices(&self, condition: &str, values: Vec<String>, limit: u32) -> Result<Vec<Notice>> {
        let columns = COLUMNS.join(", ");
        let sql = format!("SELECT {columns}, sent_to FROM redrive_notice WHERE {condition} ORDER BY task_id LIMIT ?");
        let read = query(sql).bind_all(values).bind(limit);
        retrying!(self.pools(), Use::Read, Scope::Statement, "reading notices", |c, _| {
            c.rows(read.clone()).await?.iter().map(read_notice).collect()
        })
    }

    /// How telling people goes, by channel.
    pub async fn channel_states(&self) -> Result<Vec<ChannelState>> {
        let sql =
            "SELECT name, next_at, sent_at, failed_at, sent, tries, last_error FROM redrive_channel ORDER BY name";
        retrying!(self.pools(), Use::Read, Scope::Statement, "reading channels", |c, _| {
            c.rows(query(sql)).await?.iter().map(read_channel).collect()
        })
    }
}

#[cfg(feature = "notify")]
impl Store {
    /// What all of these channels have.
    pub(crate) async fn notices_sent_to_all(&self, channels: &[&str], limit: u32) -> Result<Vec<TaskId>> {
        let condition = vec!["sent_to LIKE ?"; channels.len()].join(" AND ");
        let patterns = channels.iter().map(|channel| pattern(channel)).collect();
        let notices = self.read_notices(&condition, patterns, limit).await?;
        Ok(notices.into_iter().map(|notice| notice.task_id).collect())
    }

    /// A channel took a message.
    pub(crate) async fn note_sent(&self, channel: &str, sent: &Sent, next: Timestamp, now: Timestamp) -> Result<()> {
        let doing = format!("noting what was sent to {channel}");
        let tables = self.tables_for(&sent.finished).await?;
        retrying!(self.pools(), Use::Write, Scope::Transaction, &doing, |c, _| {
            finish(c, &tables, &sent.finished, now).await?;
            add_channel(c, "redrive_notice", &sent.partly, channel).await?;
            add_channel(c, "redrive_reminder", &sent.reminders, channel).await?;
            make_channel(c, channel).await?;
            let sql = "UPDATE redrive_channel SET next_at = ?, sent_at = ?, sent = sent + 1, tries = 0, last_error = NULL \
                       WHERE name = ?";
            c.execute(query(sql).bind(next).bind(now).bind(channel)).await.map(|_| ())
        })
    }

    /// A channel did not take a message, for the `tries`-th time in a row.
    pub(crate) async fn note_not_sent(
        &self,
        channel: &str,
        error: &str,
        tries: u32,
        next: Timestamp,
        now: Timestamp,
    ) -> Result<()> {
        let doing = format!("noting that {channel} failed");
        retrying!(self.pools(), Use::Write, Scope::Transaction, &doing, |c, _| {
            make_channel(c, channel).await?;
            let sql = "UPDATE redrive_channel SET next_at = ?, failed_at = ?, tries = ?, last_error = ? WHERE name = ?";
            c.execute(query(sql).bind(next).bind(now).bind(tries).bind(error).bind(channel)).await.map(|_| ())
        })
    }

    /// People were told of these by all channels.
    pub(crate) async fn finish_notices(&self, ids: &[TaskId], now: Timestamp) -> Result<()> {
        let tables = self.tables_for(ids).await?;
        retrying!(self.pools(), Use::Write, Scope::Transaction, "finishing notices", |c, _| finish(
            c, &tables, ids, now
        )
        .await)
    }
}

/// Marks the tasks, wherever they are, and deletes the notices.
#[cfg(feature = "notify")]
async fn finish(c: &mut Connection<'_>, tables: &Tables, ids: &[TaskId], now: Timestamp) -> sqlx::Result<()> {
    if ids.is_empty() {
        return Ok(());
    }
    for (table, ids) in tables.sort(ids.iter().copied(), |id| *id) {
        mark(c, table, &ids, now).await?;
    }
    mark(c, "retry_dead", ids, now).await?;
    for archive in tables.all_archives() {
        mark(c, archive, ids, now).await?;
    }
    let s = listed(c.dialect(), ids);
    let sql = match c.dialect() {
        Dialect::Postgres => format!("DELETE FROM redrive_notice t USING {} WHERE t.task_id = s.id", s.source),
        Dialect::Sqlite => format!("DELETE FROM redrive_notice WHERE task_id IN (SELECT s.id FROM {})", s.source),
        Dialect::MySql => {
            format!("DELETE t FROM {} {}", s.source, joined_on(c.dialect(), "redrive_notice", "t.task_id = s.id"))
        }
    };
    c.execute(s.bind_to(query(sql))).await.map(|_| ())
}

#[cfg(feature = "notify")]
async fn mark(c: &mut Connection<'_>, table: impl Display, ids: &[TaskId], now: Timestamp) -> sqlx::Result<()> {
    update(c, table, "id", "notified_at = ?", now.into(), ids).await
}

#[cfg(feature = "notify")]
async fn add_channel(c: &mut Connection<'_>, table: &str, ids: &[TaskId], channel: &str) -> sqlx::Result<()> {
    let set = match c.dialect() {
        Dialect::MySql => "sent_to = CONCAT(t.sent_to, ?)", // `||` is a logical or there
        Dialect::Sqlite | Dialect::Postgres => "sent_to = t.sent_to || ?",
    };
    update(c, table, "task_id", set, format!("{channel},").into(), ids).await
}

/// Sets a column of the rows of these ids.
#[cfg(feature = "notify")]
async fn update(
    c: &mut Connection<'_>,
    table: impl Display,
    id: &str,
    set: &str,
    value: Value<'_>,
    ids: &[TaskId],
) -> sqlx::Result<()> {
    if ids.is_empty() {
        return Ok(());
    }
    let s = listed(c.dialect(), ids);
    let same = format!("t.{id} = s.id");
    if c.dialect() == Dialect::MySql {
        let sql = format!("UPDATE {} {} SET t.{set}", s.source, joined_on(Dialect::MySql, table, &same));
        return c.execute(s.bind_to(query(sql)).bind(value)).await.map(|_| ());
    }
    let sql = format!("UPDATE {table} AS t SET {set} FROM {} WHERE {same}", s.source);
    c.execute(s.bind_to(query(sql).bind(value))).await.map(|_| ())
}

#[cfg(feature = "notify")]
fn listed<'q>(dialect: Dialect, ids: &[TaskId]) -> Listed<'q> {
    Listed::new(dialect, &["id"], ids.iter().map(|id| vec![(*id).into()]).collect())
}

/// The channel's row, if it is not there yet.
#[cfg(feature = "notify")]
async fn make_channel(c: &mut Connection<'_>, channel: &str) -> sqlx::Result<()> {
    let (insert, once) = insert_once(c.dialect());
    let sql = format!("{insert} INTO redrive_channel (name) VALUES (?) {once}");
    c.execute(query(sql).bind(channel)).await.map(|_| ())
}
