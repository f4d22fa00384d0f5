//! Tasks whose time is up while nobody reads them: their gate is open, their method is paused, or no node handles it.
//!
//! What is read is ended by the claim that finds it. The rest is found by a walk through the tables in the order of the ids, a little at a
//! time: an index of deadlines would be one more that every task pays for. What the walk finds is claimed and ended as any claim
//! would, so whoever else takes or ends it first has it.

use std::collections::HashMap;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::id::TaskId;
use crate::task::NodeNumber;

use super::Store;
use super::db::{Connection, query};
use super::hot::{Claimed, DUE_COLUMNS, Due, read_due};
use super::layout::Table;
use super::pool::Use;
use super::retry::{Scope, retrying};

/// Rows of a table that are looked at in one round.
const ROUND: i64 = 50_000;
/// Tasks that are ended together.
const TOGETHER: usize = 1_000;

/// How far a walk through the tables has come: the last id in each that was looked at.
#[derive(Clone, Debug, Default)]
pub struct OverdueWalk(HashMap<Table, TaskId>);

impl Store {
    /// Ends pending tasks that have passed their deadline or `max_duration`, among the next ones of the walk. For one node at a time, again and
    /// again. What it got besides (its policy was changed meanwhile) is in [`Claimed::tasks`], to be given back.
    pub async fn end_overdue(&self, walk: &mut OverdueWalk, node: NodeNumber, now: Timestamp) -> Result<Claimed> {
        let mut ended = Claimed::default();
        for table in self.tables().read() {
            let from = walk.0.get(&table).copied().unwrap_or(TaskId::from_i64(0));
            let looked = retrying!(self.pools(), Use::Read, Scope::Statement, "looking for overdue tasks", |c, _| {
                overdue(c, table, from, now).await
            });
            let (overdue, last) = self.learn_from(looked).await?;
            for due in overdue.chunks(TOGETHER) {
                let claimed = self.claim_until(due, node, now, Timestamp::MAX).await?;
                ended.tasks.extend(claimed.tasks);
                ended.spent.extend(claimed.spent);
            }
            match last {
                Some(last) => walk.0.insert(table, last),
                None => walk.0.remove(&table),
            };
        }
        Ok(ended)
    }
}

/// What is overdue among the next rows, and the last of these, if that was not the end.
async fn overdue(
    c: &mut Connection<'_>,
    table: Table,
    from: TaskId,
    now: Timestamp,
) -> sqlx::Result<(Vec<Due>, Option<TaskId>)> {
    let last = format!("SELECT id FROM {table} WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?");
    let last = c.row(query(last).bind(from).bind(ROUND)).await?;
    let last = last.map(|row| row.int().map(TaskId::from_i64)).transpose()?;
    let sql = format!(
        "SELECT {DUE_COLUMNS} FROM {table} t WHERE t.id > ? AND t.id <= ? AND t.status = 0 \
         AND (t.deadline <= ? OR t.max_retry_duration <= ? - t.created_at)"
    );
    let rows = query(sql).bind(from).bind(last.map_or(i64::MAX, TaskId::as_i64)).bind(now).bind(now);
    let rows = c.rows(rows).await?;
    Ok((rows.iter().map(read_due).collect::<sqlx::Result<_>>()?, last))
}
