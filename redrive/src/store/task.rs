//! Looking at tasks, and what people do to them.
//!
//! What ends a pending task, or claims it, is a compare-and-set on its version. What people change of a task that stays does not move the
//! version, so no owner loses it by that: a wish to stop, which is left on a running task; its policy, in either state; and when
//! it is due, while it is pending, which is part of the claim's condition. Whoever settles reads the wish and, before the task is
//! given up, the policy under the row's lock.

use std::fmt::Display;
use std::sync::Arc;

use serde::Serialize;

use crate::clock::{Timestamp, millis};
use crate::error::{Error, Result};
use crate::id::{IdSet, TaskId};
use crate::policy::Policy;
use crate::settle::{DeadReason, To};
use crate::task::{Status, StopRequest, Task};

use super::Store;
use super::audit::{self, Record};
use super::db::{Connection, Query, query};
use super::layout::{Ids, Table, Tables};
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::row::{Listed, column_list, joined_on, read_task, stored_backoff, stored_policy};
use super::settle::Settle;
use super::settle_sql::Hold;

/// Which tasks to list. All that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TaskFilter {
    /// Pending or running.
    pub status: Option<Status>,
    /// Of this method.
    pub method: Option<String>,
    /// With this key.
    pub key: Option<String>,
    /// About a business of this type.
    pub business_type: Option<String>,
    /// About this business id.
    pub business_id: Option<String>,
    /// Whose last error is of this kind.
    pub error_kind: Option<String>,
    /// Whose last error has this text in it; great and small letters are the same. No index knows that.
    pub error_contains: Option<String>,
    /// With one of these ids, at most 1,000.
    pub ids: Option<Vec<TaskId>>,
    /// Due at or after.
    pub due_from: Option<Timestamp>,
    /// Due before.
    pub due_before: Option<Timestamp>,
    /// Created at or after.
    pub created_from: Option<Timestamp>,
    /// Created before.
    pub created_before: Option<Timestamp>,
    /// The page after this one: the last id of the page before.
    pub after: Option<TaskId>,
    /// Their params are not read, and empty: for lists that do not show them, as params may be large.
    #[serde(skip)]
    pub without_params: bool,
}

/// What a request to stop a task did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It was pending, and has ended.
    Ended,
    /// It is running; its owner knows, and ends it after this attempt unless that succeeds.
    Requested,
}

/// The ids that were made from a time on, or before it. All ids of monthly tables are greater than those of the single one.
pub(super) fn created(bound: TaskId, is_first: bool, ids: Ids) -> (&'static str, Vec<TaskId>) {
    let (monthly, first_monthly) = (bound.in_month(), TaskId::first_at(Timestamp::EPOCH).in_month());
    match (ids, is_first) {
        (Ids::Single, true) => ("id >= ?", vec![bound]),
        (Ids::Single, false) => ("id < ?", vec![bound]),
        (Ids::Monthly, true) => ("id >= ?", vec![monthly]),
        (Ids::Monthly, false) => ("id < ?", vec![monthly]),
        (Ids::Mixed, true) => ("(id >= ? OR (id >= ? AND id < ?))", vec![monthly, bound, first_monthly]),
        (Ids::Mixed, false) => ("(id < ? OR (id >= ? AND id < ?))", vec![bound, first_monthly, monthly]),
    }
}

impl Store {
    /// A task, if it is in the task table.
    pub async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        let tables = self.tables_for(&[id]).await?;
        if !tables.may_have(id) {
            return Ok(None);
        }
        let doing = format!("reading task {id}");
        let found = retrying!(self.pools(), Use::Read, Scope::Statement, &doing, |c, _| {
            c.row(get_query(tables.of(id), id)).await?.as_ref().map(read_task).transpose()
        });
        self.learn_from(found).await
    }

    /// Cancels a task: at once if it is pending, after its attempt (unless that succeeds) if it is running.
    pub async fn cancel(&self, id: TaskId, now: Timestamp) -> Result<Cancelled> {
        self.stop(id, StopRequest::Cancel, None, now).await
    }

    /// Fails a task by hand: it becomes a dead letter, at once or after its attempt (unless that succeeds).
    pub async fn fail(&self, id: TaskId, now: Timestamp) -> Result<Cancelled> {
        self.stop(id, StopRequest::Fail, None, now).await
    }

    /// It may change hands between looking and acting; then it is looked at again.
    pub(super) async fn stop(
        &self,
        id: TaskId,
        wish: StopRequest,
        record: Option<Record>,
        now: Timestamp,
    ) -> Result<Cancelled> {
        loop {
            let task = self.get(id).await?.ok_or_else(|| not_found(id))?;
            if task.status == Status::Running {
                if self.request_stop(&task, wish, record.as_ref(), now).await? {
                    return Ok(Cancelled::Requested);
                }
                continue;
            }
            let settle = Settle { record: record.clone().map(Box::new), ..stopped(task, wish) };
            if self.settle_held(&[&settle], Hold::Nobody, now).await?.contains_key(&id) {
                return Ok(Cancelled::Ended);
            }
        }
    }

    /// Leaves a wish on a running task. It does not move the version: the owner's settle must find what it claimed.
    pub(super) async fn request_stop(
        &self,
        task: &Task,
        wish: StopRequest,
        record: Option<&Record>,
        now: Timestamp,
    ) -> Result<bool> {
        let doing = format!("asking to stop task {}", task.id);
        let table = self.tables().of(task.id);
        retrying!(self.pools(), Use::Write, scope(record), &doing, |c, _| {
            let sql = format!("UPDATE {table} SET cancel_requested = ? WHERE id = ? AND version = ? AND status = 1");
            if c.execute(query(sql).bind(wish as i64).bind(task.id).bind(task.version)).await? == 0 {
                return Ok(false);
            }
            audit::write(c, record, now).await?;
            Ok(true)
        })
    }

    /// Which of these running tasks a person wants stopped.
    pub async fn stop_requests(&self, ids: &[TaskId]) -> Result<Vec<TaskId>> {
        let tables = self.tables_for(ids).await?;
        let mut wanted = Vec::new();
        for (table, ids) in tables.sort(ids.iter().copied(), |id| *id) {
            let found = retrying!(self.pools(), Use::Read, Scope::Statement, "looking for stop requests", |c, _| {
                to_be_stopped(c, table, &ids).await
            })?;
            wanted.extend(found);
        }
        Ok(wanted)
    }

    /// Makes a pending task due now.
    pub async fn retry_now(&self, id: TaskId, by: Option<&str>, now: Timestamp) -> Result<()> {
        self.make_due(id, by, None, now).await
    }

    pub(super) async fn make_due(
        &self,
        id: TaskId,
        by: Option<&str>,
        record: Option<&Record>,
        now: Timestamp,
    ) -> Result<()> {
        let doing = format!("making task {id} due now");
        let tables = self.tables_for(&[id]).await?;
        if !tables.may_have(id) {
            return Err(not_found(id));
        }
        let table = tables.of(id);
        let sql = format!(
            "UPDATE {table} SET next_retry_time = ?, updated_at = ?, updated_by = ? WHERE id = ? AND status = 0"
        );
        let edit = query(sql).bind(now).bind(now).bind(by).bind(id);
        let done = retrying!(self.pools(), Use::Write, scope(record), &doing, |c, _| {
            let done = c.execute(edit.clone()).await?;
            audit::write(c, record.filter(|_| done == 1), now).await?;
            Ok(done)
        })?;
        if done == 1 {
            return Ok(());
        }
        match self.get(id).await? {
            None => Err(not_found(id)),
            Some(_) => {
                Err(Error::Conflict { doing: "retry now", id: id.to_string(), why: "it is running already".into() })
            }
        }
    }

    /// Gives a task another policy. If it is running, it counts from the next attempt on, and for whether there is one. A saga still hears
    /// how its step ends.
    pub async fn edit_policy(&self, id: TaskId, policy: &Arc<Policy>, by: Option<&str>, now: Timestamp) -> Result<()> {
        self.change_policy(id, policy, by, None, now).await
    }

    pub(super) async fn change_policy(
        &self,
        id: TaskId,
        policy: &Arc<Policy>,
        by: Option<&str>,
        record: Option<&Record>,
        now: Timestamp,
    ) -> Result<()> {
        policy.validate()?;
        let doing = format!("changing the policy of task {id}");
        let tables = self.tables_for(&[id]).await?;
        if !tables.may_have(id) {
            return Err(not_found(id));
        }
        let done = retrying!(self.pools(), Use::Write, scope(record), &doing, |c, _| {
            let done = write_policy(c, tables.of(id), id, policy, by, now).await?;
            audit::write(c, record.filter(|_| done == 1), now).await?;
            Ok(done)
        })?;
        if done == 1 { Ok(()) } else { Err(not_found(id)) }
    }
}

/// A change and its record are written together.
fn scope(record: Option<&Record>) -> Scope {
    if record.is_some() { Scope::Transaction } else { Scope::Statement }
}

/// A pending task that ends because a person wants it to.
pub(super) fn stopped(task: Task, wish: StopRequest) -> Settle {
    let to = if wish == StopRequest::Fail { To::Dead(DeadReason::FailedByHand) } else { To::Cancelled };
    let change = task.unchanged(to);
    Settle::new(task, change)
}

pub(super) fn get_query<'q>(table: Table, id: TaskId) -> Query<'q> {
    query(format!("SELECT {} FROM {table} WHERE id = ?", column_list(""))).bind(id)
}

async fn to_be_stopped(c: &mut Connection<'_>, table: Table, ids: &[TaskId]) -> sqlx::Result<Vec<TaskId>> {
    let s = Listed::new(c.dialect(), &["id"], ids.iter().map(|id| vec![(*id).into()]).collect());
    let table = joined_on(c.dialect(), table, "t.id = s.id");
    let sql = format!("SELECT t.id FROM {} {table} WHERE t.cancel_requested <> 0", s.source);
    c.rows(s.bind_to(query(sql))).await?.iter().map(|row| Ok(TaskId::from_i64(row.int()?))).collect()
}

pub(super) fn not_found(id: TaskId) -> Error {
    Error::NotFound { what: "task", id: id.to_string() }
}

/// Gives a task another policy, if it is there; how many that are. What stays of the one before (see [`Policy::in_place_of`]) never
/// changes, so it may be read before the row is locked.
pub(super) async fn write_policy(
    c: &mut Connection<'_>,
    table: Table,
    id: TaskId,
    policy: &Arc<Policy>,
    by: Option<&str>,
    now: Timestamp,
) -> sqlx::Result<u64> {
    let Some(row) = c.row(get_query(table, id)).await? else { return Ok(0) };
    let policy = policy.in_place_of(&read_task(&row)?.policy);
    let sql = format!(
        "UPDATE {table} SET policy = ?, max_attempts = ?, max_retry_duration = ?, deadline = ?, backoff_strategy = ?, \
         updated_at = ?, updated_by = ? WHERE id = ?"
    );
    let edit = query(sql)
        .bind(stored_policy(&policy))
        .bind(policy.max_attempts.map(i64::from))
        .bind(policy.max_duration.map(millis))
        .bind(policy.deadline)
        .bind(stored_backoff(&policy))
        .bind(now)
        .bind(by)
        .bind(id);
    c.execute(edit).await
}

/// Which of these ids a table has.
pub(super) async fn existing_ids(c: &mut Connection<'_>, table: impl Display, ids: &[TaskId]) -> sqlx::Result<IdSet> {
    if ids.is_empty() {
        return Ok(IdSet::default());
    }
    let s = Listed::new(c.dialect(), &["id"], ids.iter().map(|id| vec![(*id).into()]).collect());
    let sql = format!("SELECT t.id FROM {} {}", s.source, joined_on(c.dialect(), table, "t.id = s.id"));
    c.rows(s.bind_to(query(sql))).await?.iter().map(|row| Ok(TaskId::from_i64(row.int()?))).collect()
}

/// Which of these tasks there are.
pub(super) async fn existing_tasks(c: &mut Connection<'_>, tables: &Tables, ids: &[TaskId]) -> sqlx::Result<IdSet> {
    let mut there = IdSet::default();
    for (table, ids) in tables.sort(ids.iter().copied(), |id| *id) {
        there.extend(existing_ids(c, table, &ids).await?);
    }
    Ok(there)
}

/// Which of these have ended, as dead letters or in the archive.
pub(super) async fn ended_ids(c: &mut Connection<'_>, tables: &Tables, ids: &[TaskId]) -> sqlx::Result<IdSet> {
    let mut ended = existing_ids(c, "retry_dead", ids).await?;
    for archive in tables.all_archives() {
        ended.extend(existing_ids(c, archive, ids).await?);
    }
    Ok(ended)
}
