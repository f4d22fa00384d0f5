//! The statements of a settle: each changes the rows that are still what they were, and says which they were.
//!
//! *Invariants.* Every condition is [`SAME`](super::row::SAME) (id and version) and [`Hold`] (who has it). What the databases agree on is
//! written once; PostgreSQL says which rows it deleted, the others are asked before, under a lock, or after.

use std::fmt::Display;
use std::sync::Arc;

use crate::clock::Timestamp;
use crate::id::{IdMap, IdSet, TaskId};
use crate::policy::{OnExhausted, Policy};
use crate::seeded;
use crate::settle::{DeadReason, To};
use crate::task::{KeyHash, NodeNumber, StopRequest, Task};

use super::archive::{self, EndedAs};
use super::db::{Connection, Dialect, Query, Value, query};
use super::decode::{Decoder, stop_request};
use super::key::Keys;
use super::layout::{Table, Tables};
use super::pool::Use;
use super::row::{
    ALIKE, Listed, alike, decode_policy, insert_rows, joined, joined_on, locked, stored_history, write_task,
    written_columns,
};
use super::settle::Settle;
use super::task::{ended_ids, existing_ids};

/// Who must hold a task for a change to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Hold {
    /// This node, which is not fenced.
    Node(NodeNumber),
    /// This node, which is fenced, or forgotten since.
    Fenced(NodeNumber),
    /// Nobody: it is pending.
    Nobody,
}

impl Hold {
    /// The condition on `t`.
    pub(super) fn condition(self) -> &'static str {
        match self {
            Self::Node(_) if seeded::is_blind() => "? = ?",
            Self::Node(_) => {
                "t.status = 1 AND t.locked_by = ? AND EXISTS (SELECT 1 FROM redrive_node WHERE number = ? AND dead = 0)"
            }
            Self::Fenced(_) => {
                "t.status = 1 AND t.locked_by = ? AND NOT EXISTS (SELECT 1 FROM redrive_node WHERE number = ? AND dead = 0)"
            }
            Self::Nobody => "t.status = 0",
        }
    }

    pub(super) fn bind_to(self, query: Query<'_>) -> Query<'_> {
        match self {
            Self::Node(n) | Self::Fenced(n) => query.bind(n).bind(n),
            Self::Nobody => query,
        }
    }
}

/// The same, of the tasks of one table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) table: Table,
    pub(super) by: Hold,
}

impl Held {
    /// Whether a lock is waited for: not by who takes back what dead nodes held, for that comes again, and others wait for it.
    pub(super) fn patience(self) -> Use {
        match self.by {
            Hold::Fenced(_) => Use::Insert,
            Hold::Node(_) | Hold::Nobody => Use::Write,
        }
    }

    pub(super) fn condition(self) -> &'static str {
        self.by.condition()
    }

    pub(super) fn bind_to(self, query: Query<'_>) -> Query<'_> {
        self.by.bind_to(query)
    }
}

/// The row is the one that was claimed.
pub(super) fn same() -> &'static str {
    if seeded::is_blind() { "t.id = s.id" } else { super::row::SAME }
}

pub(super) fn cas_list<'q>(dialect: Dialect, settles: &[&Settle]) -> Listed<'q> {
    let rows = settles.iter().map(|s| vec![s.task.id.into(), s.task.version.into()]).collect();
    Listed::new(dialect, &["id", "version"], rows)
}

pub(super) fn ids(rows: &[super::db::Row]) -> sqlx::Result<IdSet> {
    rows.iter().map(|row| Ok(TaskId::from_i64(row.int()?))).collect()
}

/// Deletes those that are still ours; says which they were, where the database can.
pub(super) fn delete_query<'q>(dialect: Dialect, settles: &[&Settle], hold: Held) -> Query<'q> {
    if dialect == Dialect::Postgres
        && !seeded::is_blind()
        && let Some(alike) = alike(settles.iter().map(|s| (s.task.id, s.task.version)))
    {
        let sql = format!("DELETE FROM {} t WHERE {ALIKE} AND {} RETURNING t.id", hold.table, hold.condition());
        return hold.bind_to(query(sql).bind_all(alike));
    }
    let s = cas_list(dialect, settles);
    let (source, table, same, held) = (&s.source, hold.table, same(), hold.condition());
    let sql = match dialect {
        Dialect::Postgres => {
            format!("DELETE FROM {table} t USING {source} WHERE {same} AND {held} RETURNING t.id")
        }
        Dialect::Sqlite => format!(
            "DELETE FROM {table} WHERE id IN (SELECT t.id FROM {source} CROSS JOIN {table} t WHERE {same} AND {held}) RETURNING id"
        ),
        Dialect::MySql => format!("DELETE t FROM {source} {} WHERE {held}", joined_on(dialect, table, same)),
    };
    hold.bind_to(s.bind_to(query(sql)))
}

/// On PostgreSQL the keys go in the same statement. (`IS TRUE` keeps the planner from making a join of the IN, which, with
/// hash joins off, would compare each with each.)
pub(super) fn delete_with_keys_query<'q>(settles: &[&Settle], hold: Held, keys: &[(KeyHash, TaskId)]) -> Query<'q> {
    let hashes = Value::Hashes(keys.iter().map(|(hash, _)| Some(hash.0)).collect());
    let owners = Value::Ints(keys.iter().map(|(_, id)| Some(id.as_i64())).collect());
    let freed = "freed AS (DELETE FROM redrive_key k USING unnest(?::bytea[], ?::int8[]) AS f(key_hash, id)
                   WHERE k.key_hash = f.key_hash AND k.task_id = f.id AND (f.id IN (SELECT id FROM gone)) IS TRUE)";
    let delete = delete_query(Dialect::Postgres, settles, hold).prefixed("WITH gone AS (");
    delete.followed_by(&format!("), {freed} SELECT id FROM gone")).bind(hashes).bind(owners)
}

pub(super) async fn delete_once(
    c: &mut Connection<'_>,
    settles: &[&Settle],
    hold: Held,
    keys: &Keys,
    now: Timestamp,
) -> sqlx::Result<IdSet> {
    let gone = match (c.dialect(), keys.all_free()) {
        (Dialect::Postgres, Some(free)) if !free.is_empty() => {
            return ids(&c.rows(delete_with_keys_query(settles, hold, free)).await?);
        }
        (Dialect::Postgres | Dialect::Sqlite, _) => ids(&c.rows(delete_query(c.dialect(), settles, hold)).await?)?,
        (Dialect::MySql, _) => delete_mysql(c, settles, hold).await?,
    };
    keys.end(c, &gone, now).await?;
    Ok(gone)
}

/// Puts back those that are still ours and that nobody wants stopped; which they were.
pub(super) async fn put_back_once(
    c: &mut Connection<'_>,
    settles: &[&Settle],
    after: &[Task],
    hold: Held,
    now: Timestamp,
) -> sqlx::Result<IdSet> {
    let pairs = settles.iter().copied().zip(after);
    if c.dialect() != Dialect::MySql {
        return ids(&c.rows(put_back_query(c.dialect(), pairs, hold, now)).await?);
    }
    // No RETURNING: the survivors are locked first, and just those are changed.
    let ours = survivors(c, settles, hold, true).await?;
    let stays = |id| ours.get(&id) == Some(&StopRequest::None);
    let back: Vec<(&Settle, &Task)> = pairs.filter(|(s, _)| stays(s.task.id)).collect();
    if !back.is_empty() {
        c.execute(put_back_query(Dialect::MySql, back.iter().copied(), hold, now)).await?;
    }
    Ok(back.into_iter().map(|(s, _)| s.task.id).collect())
}

/// MySQL does not say which rows a DELETE took: the survivors are locked first, and just those are deleted.
pub(super) async fn delete_mysql(c: &mut Connection<'_>, settles: &[&Settle], hold: Held) -> sqlx::Result<IdSet> {
    let ours: IdSet = survivors(c, settles, hold, true).await?.into_keys().collect();
    delete_ids(c, hold.table, &ours).await?;
    Ok(ours)
}

/// Which of these are still what they were and held so, and whether a person wants them stopped.
pub(super) async fn survivors(
    c: &mut Connection<'_>,
    settles: &[&Settle],
    hold: Held,
    lock: bool,
) -> sqlx::Result<IdMap<StopRequest>> {
    let rows = c.rows(survivors_query(c.dialect(), settles, hold, lock)).await?;
    let read = |row: &super::db::Row| {
        let mut columns = row.columns();
        let id = TaskId::from_i64(columns.int()?);
        Ok((id, stop_request(columns.int()?)))
    };
    rows.iter().map(read).collect()
}

pub(super) fn survivors_query<'q>(dialect: Dialect, settles: &[&Settle], hold: Held, lock: bool) -> Query<'q> {
    let s = cas_list(dialect, settles);
    let lock = if lock { locked(dialect) } else { "" };
    let (source, held) = (&s.source, hold.condition());
    let table = joined_on(dialect, hold.table, same());
    let sql = format!("SELECT t.id, t.cancel_requested FROM {source} {table} WHERE {held} {lock}");
    hold.bind_to(s.bind_to(query(sql)))
}

/// Each with the task as it is to be. On MySQL their rows are locked and looked at by now: a second look at the node could find it
/// fenced meanwhile, and nothing would be changed of what is said to be.
pub(super) fn put_back_query<'s, 'q>(
    dialect: Dialect,
    settles: impl Iterator<Item = (&'s Settle, &'q Task)>,
    hold: Held,
    now: Timestamp,
) -> Query<'q> {
    let columns = [
        "id",
        "version",
        "due",
        "attempts",
        "crashes",
        "postponements",
        "first_failed",
        "error_kind",
        "error_msg",
        "error_time",
        "history",
    ];
    let rows = settles.map(|(settle, after)| put_back_values(settle, after)).collect();
    let s = Listed::new(dialect, &columns, rows);
    let set = [
        "status = 0",
        "version = t.version + 1",
        "next_retry_time = s.due",
        "attempt_count = s.attempts",
        "crashes = s.crashes",
        "postponements = s.postponements",
        "first_failed_at = s.first_failed",
        "last_error_kind = s.error_kind",
        "last_error_msg = s.error_msg",
        "last_error_time = s.error_time",
        "history = s.history",
        "updated_at = ?",
    ];
    let held = format!("{} AND t.cancel_requested = 0", hold.condition());
    let (source, table, same) = (&s.source, hold.table, same());
    if dialect == Dialect::MySql {
        let set = set.map(|s| format!("t.{s}")).join(", ");
        let sql = format!("UPDATE {source} {} SET {set}", joined_on(dialect, table, same));
        return s.bind_to(query(sql)).bind(now);
    }
    let sql = format!("UPDATE {table} AS t SET {} FROM {source} WHERE {same} AND {held} RETURNING id", set.join(", "));
    let sql = if dialect == Dialect::Postgres { sql.replace("RETURNING id", "RETURNING t.id") } else { sql };
    hold.bind_to(s.bind_to(query(sql).bind(now)))
}

/// The columns of one row that is put back.
fn put_back_values<'q>(settle: &Settle, after: &'q Task) -> Vec<Value<'q>> {
    let error = after.last_error.as_ref();
    vec![
        after.id.into(),
        settle.task.version.into(),
        after.due.into(),
        after.attempts.into(),
        after.crashes.into(),
        after.postponements.into(),
        after.first_failed_at.into(),
        error.map(|e| e.kind.as_str()).into(),
        error.map(|e| &*e.message).into(),
        error.map(|e| e.at).into(),
        stored_history(after).into(),
    ]
}

/// Which of these wait again by our hand: the next version, with our number still on it.
pub(super) async fn put_back_already(c: &mut Connection<'_>, settles: &[&Settle], hold: Held) -> sqlx::Result<IdSet> {
    let (Hold::Node(node) | Hold::Fenced(node)) = hold.by else {
        return Ok(IdSet::default());
    };
    let rows = settles.iter().map(|s| vec![s.task.id.into(), (s.task.version + 1).into()]).collect();
    let s = Listed::new(c.dialect(), &["id", "version"], rows);
    let table = joined(c.dialect(), hold.table);
    // A rescue leaves the number as well, so it counts only if nobody has fenced us.
    let alive = if matches!(hold.by, Hold::Node(_)) { "EXISTS" } else { "NOT EXISTS" };
    let sql = format!(
        "SELECT t.id FROM {} {table} WHERE t.status = 0 AND t.locked_by = ? \
         AND {alive} (SELECT 1 FROM redrive_node WHERE number = ? AND dead = 0)",
        s.source
    );
    ids(&c.rows(s.bind_to(query(sql)).bind(node).bind(node)).await?)
}

/// Which of these are among the dead letters or in the archive, or, if they leave no trace, not in their table any more.
pub(super) async fn moved_already(
    c: &mut Connection<'_>,
    table: Table,
    tables: &Tables,
    settles: &[&Settle],
) -> sqlx::Result<IdMap<To>> {
    let (traceless, kept): (Vec<&Settle>, Vec<&Settle>) = settles.iter().partition(|s| s.leaves_no_trace());
    let ids = |settles: &[&Settle]| settles.iter().map(|s| s.task.id).collect::<Vec<TaskId>>();
    let there = existing_ids(c, table, &ids(&traceless)).await?;
    let ended = ended_ids(c, tables, &ids(&kept)).await?;
    let gone = traceless.into_iter().filter(|s| !there.contains(&s.task.id));
    let moved = kept.into_iter().filter(|s| ended.contains(&s.task.id));
    Ok(gone.chain(moved).map(|s| (s.task.id, s.change.to)).collect())
}

/// The policies of those that are to be given up because of their limits, if they are others than when that was decided. Their rows are locked.
pub(super) async fn other_policies(
    c: &mut Connection<'_>,
    table: Table,
    settles: &[&Settle],
) -> sqlx::Result<IdMap<Arc<Policy>>> {
    let known: IdMap<&Policy> =
        settles.iter().filter(|s| s.change.is_by_limits()).map(|s| (s.task.id, &*s.task.policy)).collect();
    if known.is_empty() {
        return Ok(IdMap::default());
    }
    let s = Listed::new(c.dialect(), &["id"], known.keys().map(|id| vec![(*id).into()]).collect());
    let table = joined_on(c.dialect(), table, "t.id = s.id");
    let columns = "t.id, t.policy, t.max_attempts, t.max_retry_duration, t.deadline";
    let sql = format!("SELECT {columns} FROM {} {table}", s.source);
    let rows = c.rows(s.bind_to(query(sql))).await?;
    let read = |row: &super::db::Row| {
        let mut columns = row.columns();
        let id = TaskId::from_i64(columns.int()?);
        let mut c = Decoder::new(&mut columns);
        let policy = decode_policy(id, &mut c);
        Ok(c.is_sound().then_some((id, policy))) // limits that nobody can read grant nothing
    };
    let stored = rows.iter().map(read).collect::<sqlx::Result<Vec<_>>>()?;
    let stored = stored.into_iter().flatten();
    Ok(stored.filter(|(id, policy)| known.get(id).is_some_and(|known| **known != **policy)).collect())
}

/// `told`: of which of them people were told since they were claimed, and when.
pub(super) async fn write_where_they_go(
    c: &mut Connection<'_>,
    tables: &Tables,
    leaving: &[&Settle],
    told: &IdMap<Timestamp>,
    now: Timestamp,
) -> sqlx::Result<()> {
    let mut dead = Vec::new();
    let mut archived = Vec::new();
    for s in leaving {
        let mut task = s.task.after(&s.change, now);
        task.notified_at = task.notified_at.or(told.get(&task.id).copied());
        match s.change.to {
            To::Dead(reason) => dead.push((task, reason)),
            To::Cancelled => archived.push(archive::Entry::new(task, EndedAs::Cancelled)),
            To::Dropped(reason) => archived
                .push(archive::Entry { dead_reason: Some(reason), ..archive::Entry::new(task, EndedAs::Dropped) }),
            To::Done => {
                if let Some(kept) = &s.keep {
                    archived.push(archive::Entry {
                        result: kept.result.clone(),
                        ..archive::Entry::new(task, EndedAs::Done)
                    });
                }
            }
            To::Pending { .. } => {}
        }
    }
    insert_dead(c, &dead, now).await?;
    archive::insert(c, tables.archive(now), &archived, now).await
}

/// Dead letters; those whose policy says *escalate* are to be reminded of from now on.
pub(super) async fn insert_dead(
    c: &mut Connection<'_>,
    dead: &[(Task, DeadReason)],
    now: Timestamp,
) -> sqlx::Result<()> {
    if dead.is_empty() {
        return Ok(());
    }
    let mut columns = written_columns();
    columns.extend(["dead_at", "dead_reason", "next_remind_time"]);
    let mut rows = Vec::with_capacity(dead.len());
    for (task, reason) in dead {
        let remind = (task.policy.on_exhausted == OnExhausted::Escalate).then_some(now);
        let mut values = write_task(task);
        values.extend([now.into(), Value::from(reason.as_str()), remind.into()]);
        rows.push(values);
    }
    insert_rows(c, "retry_dead", &columns, rows, "", &[]).await.map(|_| ())
}

/// Deletes rows that this transaction has locked.
pub(super) async fn delete_ids(c: &mut Connection<'_>, table: impl Display, ids: &IdSet) -> sqlx::Result<()> {
    if ids.is_empty() {
        return Ok(());
    }
    let s = Listed::new(c.dialect(), &["id"], ids.iter().map(|id| vec![(*id).into()]).collect());
    let sql = match c.dialect() {
        Dialect::Postgres => format!("DELETE FROM {table} t USING {} WHERE t.id = s.id", s.source),
        Dialect::Sqlite => format!("DELETE FROM {table} WHERE id IN (SELECT s.id FROM {})", s.source),
        Dialect::MySql => format!("DELETE t FROM {} {}", s.source, joined_on(Dialect::MySql, table, "t.id = s.id")),
    };
    c.execute(s.bind_to(query(sql))).await.map(|_| ())
}
