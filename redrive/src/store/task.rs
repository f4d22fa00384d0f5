//! Looking at tasks, and what people do to them.
//!
//! A pending task is changed by compare-and-set on its version. On a running one only columns outside the fence are
//! touched: a wish to stop it, its policy. Its owner sees them when it settles.

use std::fmt::Display;
use std::sync::Arc;

use crate::clock::{Timestamp, millis};
use crate::error::{Error, Result};
use crate::id::{IdSet, TaskId};
use crate::policy::Policy;
use crate::settle::{DeadReason, To};
use crate::task::{Lane, Status, StopRequest, Task};

use super::Store;
use super::db::{Connection, Query, Value, query};
use super::layout::{Ids, Table, Tables};
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::row::{Listed, column_list, joined_on, read_task, stored_backoff, stored_policy};
use super::settle::{Hold, Settle};

/// Which tasks to list. All that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// Created at or after.
    pub created_from: Option<Timestamp>,
    /// Created before.
    pub created_before: Option<Timestamp>,
    /// The page after this one: the last id of the page before.
    pub after: Option<TaskId>,
}

/// What a request to stop a task did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It was pending, and has ended.
    Ended,
    /// It is running; its owner knows, and ends it after this attempt unless that succeeds.
    Requested,
}

impl TaskFilter {
    /// `WHERE …`, newest first, one page.
    pub(super) fn query<'q>(&'q self, select: &str, table: impl Display, ids: Ids, limit: u32) -> Query<'q> {
        let mut conditions = vec!["1 = 1".to_owned()];
        let mut values = Vec::new();
        let mut add = |condition: &str, more: Vec<Value<'q>>| {
            conditions.push(condition.to_owned());
            values.extend(more);
        };
        if let Some(status) = self.status {
            add("status = ?", vec![i64::from(status == Status::Running).into()]);
        }
        if let Some(method) = &self.method {
            // The index knows lanes.
            let parts = Lane::parts_of(method);
            let lanes = [Lane::of(method), *parts.start(), *parts.end()].map(Value::from);
            add("(lane = ? OR (lane >= ? AND lane <= ?))", lanes.into());
            add("method_name = ?", vec![(&**method).into()]);
        }
        let texts = [
            ("task_key = ?", &self.key),
            ("business_type = ?", &self.business_type),
            ("business_id = ?", &self.business_id),
            ("last_error_kind = ?", &self.error_kind),
        ];
        for (condition, text) in texts {
            if let Some(text) = text {
                add(condition, vec![(&**text).into()]);
            }
        }
        if let Some(after) = self.after {
            add("id < ?", vec![after.into()]);
        }
        for (limit, is_first) in [(self.created_from, true), (self.created_before, false)] {
            if let Some(time) = limit {
                let (condition, bounds) = created(TaskId::first_at(time), is_first, ids);
                add(condition, bounds.into_iter().map(Value::from).collect());
            }
        }
        let sql = format!("SELECT {select} FROM {table} WHERE {} ORDER BY id DESC LIMIT ?", conditions.join(" AND "));
        query(sql).bind_all(values).bind(limit)
    }
}

/// The ids that were made from a time on, or before it. All ids of monthly tables are greater than those of the single one.
fn created(bound: TaskId, is_first: bool, ids: Ids) -> (&'static str, Vec<TaskId>) {
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

    /// Tasks, newest first, one page at a time.
    pub async fn list(&self, filter: &TaskFilter, limit: u32) -> Result<Vec<Task>> {
        let tables: Vec<Table> = self.tables().all().collect();
        let mut found: Vec<Task> = Vec::new();
        // Month by month: older ones only if there is room on the page.
        for tables in tables.chunk_by(|a, b| a.month() == b.month()) {
            for table in tables {
                let page = retrying!(self.pools(), Use::Read, Scope::Statement, "listing tasks", |c, _| {
                    let rows = c.rows(filter.query(&column_list(""), table, table.ids(), limit)).await?;
                    rows.iter().map(read_task).collect::<sqlx::Result<Vec<_>>>()
                });
                found.extend(self.learn_from(page).await?);
            }
            if found.len() >= limit as usize {
                break;
            }
        }
        found.sort_unstable_by_key(|task| std::cmp::Reverse(task.id));
        found.truncate(limit as usize);
        Ok(found)
    }

    /// Cancels a task: at once if it is pending, after its attempt (unless that succeeds) if it is running.
    pub async fn cancel(&self, id: TaskId, now: Timestamp) -> Result<Cancelled> {
        self.stop(id, StopRequest::Cancel, now).await
    }

    /// Fails a task by hand: it becomes a dead letter, at once or after its attempt (unless that succeeds).
    pub async fn fail(&self, id: TaskId, now: Timestamp) -> Result<Cancelled> {
        self.stop(id, StopRequest::Fail, now).await
    }

    /// It may change hands between looking and acting; then it is looked at again.
    async fn stop(&self, id: TaskId, wish: StopRequest, now: Timestamp) -> Result<Cancelled> {
        loop {
            let task = self.get(id).await?.ok_or_else(|| not_found(id))?;
            if task.status == Status::Running {
                if self.request_stop(&task, wish).await? {
                    return Ok(Cancelled::Requested);
                }
                continue;
            }
            let to = if wish == StopRequest::Fail { To::Dead(DeadReason::FailedByHand) } else { To::Cancelled };
            let settle = Settle::new(task.clone(), task.unchanged(to));
            if self.settle_held(&[&settle], Hold::Nobody, now).await?.contains_key(&id) {
                return Ok(Cancelled::Ended);
            }
        }
    }

    /// Leaves a wish on a running task. It does not move the version: the owner's settle must find what it claimed.
    async fn request_stop(&self, task: &Task, wish: StopRequest) -> Result<bool> {
        let doing = format!("asking to stop task {}", task.id);
        let table = self.tables().of(task.id);
        retrying!(self.pools(), Use::Write, Scope::Statement, &doing, |c, _| {
            let sql = format!("UPDATE {table} SET cancel_requested = ? WHERE id = ? AND version = ? AND status = 1");
            Ok(c.execute(query(sql).bind(wish as i64).bind(task.id).bind(task.version)).await? == 1)
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
        let done = retrying!(self.pools(), Use::Write, Scope::Statement, &doing, |c, _| c.execute(edit.clone()).await)?;
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

    /// Gives a task another policy. If it is running, it counts from the next attempt on.
    pub async fn edit_policy(&self, id: TaskId, policy: &Arc<Policy>, by: Option<&str>, now: Timestamp) -> Result<()> {
        policy.validate()?;
        let doing = format!("changing the policy of task {id}");
        let tables = self.tables_for(&[id]).await?;
        if !tables.may_have(id) {
            return Err(not_found(id));
        }
        let done = retrying!(self.pools(), Use::Write, Scope::Statement, &doing, |c, _| c
            .execute(policy_edit(tables.of(id), id, policy, by, now))
            .await)?;
        if done == 1 { Ok(()) } else { Err(not_found(id)) }
    }

    /// Notes that people were told that these tasks keep failing.
    pub async fn mark_notified(&self, ids: &[TaskId], now: Timestamp) -> Result<()> {
        let tables = self.tables_for(ids).await?;
        let sorted = tables.sort(ids.iter().copied(), |id| *id).into_iter();
        let sorted = sorted.map(|(table, ids)| (table.to_string(), ids));
        for (table, ids) in sorted.chain([("retry_dead".to_owned(), ids.to_vec())]) {
            retrying!(self.pools(), Use::Write, Scope::Statement, "noting sent notices", |c, _| {
                for id in &ids {
                    let sql = format!("UPDATE {table} SET notified_at = ? WHERE id = ? AND notified_at IS NULL");
                    c.execute(query(sql).bind(now).bind(*id)).await?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }
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

fn not_found(id: TaskId) -> Error {
    Error::NotFound { what: "task", id: id.to_string() }
}

pub(super) fn policy_edit<'q>(
    table: Table,
    id: TaskId,
    policy: &'q Arc<Policy>,
    by: Option<&'q str>,
    now: Timestamp,
) -> Query<'q> {
    let sql = format!(
        "UPDATE {table} SET policy = ?, max_attempts = ?, max_retry_duration = ?, deadline = ?, backoff_strategy = ?, \
         updated_at = ?, updated_by = ? WHERE id = ?"
    );
    query(sql)
        .bind(stored_policy(policy))
        .bind(policy.max_attempts.map(i64::from))
        .bind(policy.max_duration.map(millis))
        .bind(policy.deadline)
        .bind(stored_backoff(policy))
        .bind(now)
        .bind(by)
        .bind(id)
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
