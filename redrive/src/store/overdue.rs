//! Tasks whose time is up while nobody reads them: their gate is open, their method is paused, or no node handles it. And those
//! whose version no claim can count up.
//!
//! What is read is ended by the claim that finds it. The rest is found by a walk through the tables in the order of the ids, a little at a
//! time: an index of deadlines would be one more that every task pays for. It is ended as it lies, pending, by a compare-and-set: whoever
//! else claims or ends it first has it, and nobody holds it meanwhile. Whom a person has given more time since it was read stays
//! ([`settle`](super::settle)); what the database refuses is passed over, and found again by the next walk.

use std::collections::HashMap;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::id::{IdSet, TaskId};
use crate::settle::{give_up, spent};
use crate::task::Task;

use super::Store;
use super::db::{Connection, query};
use super::decode::LAST_VERSION;
use super::layout::Table;
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::row::{column_list, read_task};
use super::settle::Settle;
use super::settle_sql::Hold;

/// Rows of a table that are looked at in one round.
const ROUND: i64 = 50_000;
/// Tasks that are ended together.
const TOGETHER: usize = 1_000;

/// How far a walk through the tables has come: the last id in each that was looked at.
#[derive(Clone, Debug, Default)]
pub struct OverdueWalk(HashMap<Table, TaskId>);

impl Store {
    /// Ends pending tasks that have passed their deadline or `max_duration`, among the next ones of the walk; gives them. For one node at a
    /// time, again and again.
    pub async fn end_overdue(&self, walk: &mut OverdueWalk, now: Timestamp) -> Result<Vec<Task>> {
        let mut ended = Vec::new();
        for table in self.tables().read() {
            let from = walk.0.get(&table).copied().unwrap_or(TaskId::from_i64(0));
            let looked = retrying!(self.pools(), Use::Read, Scope::Statement, "looking for overdue tasks", |c, _| {
                overdue(c, table, from, now).await
            });
            let (mut tasks, last) = self.learn_from(looked).await?;
            tasks.retain(|task| spent(task, now).is_some());
            ended.extend(self.expire(tasks, Hold::Nobody, now).await?);
            match last {
                Some(last) => walk.0.insert(table, last),
                None => walk.0.remove(&table),
            };
        }
        Ok(ended)
    }

    /// Ends pending tasks whose rows cannot be decoded.
    pub(super) async fn end_undecodable(&self, ids: &[TaskId]) -> Result<()> {
        let mut tasks = self.get_many(ids).await?;
        tasks.retain(|task| task.undecodable.is_some());
        self.expire(tasks, Hold::Nobody, self.now().await?).await.map(|_| ())
    }

    /// Ends tasks whose time is up, all held alike; gives those that were still what they are said to be.
    pub(super) async fn expire(&self, tasks: Vec<Task>, hold: Hold, now: Timestamp) -> Result<Vec<Task>> {
        let end = |task: &Task| Some(Settle::new(task.clone(), give_up(task, spent(task, now)?)));
        let ends: Vec<Settle> = tasks.iter().filter_map(end).collect();
        let went = self.settle_what_can_be(ends, hold, now).await?;
        let ended: IdSet = went.into_iter().map(|(task, _)| task.id).collect();
        Ok(tasks.into_iter().filter(|task| ended.contains(&task.id)).collect())
    }
}

/// What is overdue among the next rows, and the last of these, if that was not the end. No more at once than is ended together.
async fn overdue(
    c: &mut Connection<'_>,
    table: Table,
    from: TaskId,
    now: Timestamp,
) -> sqlx::Result<(Vec<Task>, Option<TaskId>)> {
    let last = format!("SELECT id FROM {table} WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?");
    let last = c.row(query(last).bind(from).bind(ROUND)).await?;
    let last = last.map(|row| row.int().map(TaskId::from_i64)).transpose()?;
    let sql = format!(
        "SELECT {} FROM {table} t WHERE t.id > ? AND t.id <= ? AND t.status = 0 \
         AND (t.deadline <= ? OR t.max_retry_duration <= ? - t.created_at OR t.version NOT BETWEEN 0 AND {LAST_VERSION}) \
         ORDER BY t.id LIMIT {TOGETHER}",
        column_list("t.")
    );
    let rows = query(sql).bind(from).bind(last.map_or(i64::MAX, TaskId::as_i64)).bind(now).bind(now);
    let rows = c.rows(rows).await?;
    let tasks: Vec<Task> = rows.iter().map(read_task).collect::<sqlx::Result<_>>()?;
    let is_cut = tasks.len() >= TOGETHER;
    let last = if is_cut { tasks.last().map(|task| task.id) } else { last };
    Ok((tasks, last))
}
