//! One batch of what people do to many: see `bulk`.

use crate::clock::Timestamp;
use crate::error::Result;
use crate::id::TaskId;
use crate::task::{Status, StopRequest, Task};

use super::Store;
use super::archive::EndedAs;
use super::bulk::{Bulk, BulkResult, BulkWhat, DeadAction, TaskAction};
use super::db::{Connection, Dialect, query};
use super::dead::Redriven;
use super::layout::Table;
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::row::{Listed, column_list, joined_on, read_task};
use super::settle_sql::Hold;
use super::task::stopped;

/// How often a task is looked at again that changed hands just then.
const TRIES: usize = 3;

impl Store {
    pub(super) async fn do_batch(&self, bulk: &Bulk, ids: &[TaskId], now: Timestamp) -> Result<BulkResult> {
        match &bulk.what {
            BulkWhat::Tasks(TaskAction::RetryNow, _) => self.batch_due(bulk, ids, now).await,
            BulkWhat::Tasks(TaskAction::Cancel, _) => self.batch_stop(StopRequest::Cancel, ids, now).await,
            BulkWhat::Tasks(TaskAction::Fail, _) => self.batch_stop(StopRequest::Fail, ids, now).await,
            BulkWhat::Dead(DeadAction::Redrive(policy), _) => {
                let went = self.bring_back(ids, policy.clone(), &bulk.by, None, now).await?;
                Ok(BulkResult::of_redriven(&went))
            }
            BulkWhat::Dead(DeadAction::Resolve, _) => self.batch_close(bulk, EndedAs::Resolved, ids, now).await,
            BulkWhat::Dead(DeadAction::Discard, _) => self.batch_close(bulk, EndedAs::Discarded, ids, now).await,
        }
    }

    async fn batch_close(&self, bulk: &Bulk, how: EndedAs, ids: &[TaskId], now: Timestamp) -> Result<BulkResult> {
        let done = self.close_letters(ids, how, &bulk.by, bulk.note.as_deref(), None, now).await?;
        let mut result = BulkResult { done, ..BulkResult::default() };
        result.skip("gone", (ids.len() as u64).saturating_sub(done));
        Ok(result)
    }

    /// Pending tasks end together; of running ones it is asked. Those that change hands just then are looked at again.
    async fn batch_stop(&self, wish: StopRequest, ids: &[TaskId], now: Timestamp) -> Result<BulkResult> {
        let mut result = BulkResult::default();
        let mut open: Vec<TaskId> = ids.to_vec();
        for _ in 0..TRIES {
            let tasks = self.get_many(&open).await?;
            result.skip("gone", (open.len() - tasks.len()) as u64);
            let (running, pending): (Vec<Task>, Vec<Task>) =
                tasks.into_iter().partition(|task| task.status == Status::Running);
            open.clear();
            for task in &running {
                match self.request_stop(task, wish, None, now).await? {
                    true => result.requested += 1,
                    false => open.push(task.id),
                }
            }
            let settles: Vec<_> = pending.into_iter().map(|task| stopped(task, wish)).collect();
            let went = self.settle_held(&settles.iter().collect::<Vec<_>>(), Hold::Nobody, now).await?;
            result.done += went.len() as u64;
            open.extend(settles.iter().map(|s| s.task.id).filter(|id| !went.contains_key(id)));
            if open.is_empty() {
                return Ok(result);
            }
        }
        result.skip("busy", open.len() as u64);
        Ok(result)
    }

    async fn batch_due(&self, bulk: &Bulk, ids: &[TaskId], now: Timestamp) -> Result<BulkResult> {
        let mut result = BulkResult::default();
        let tables = self.tables_for(ids).await?;
        let mut there = 0;
        for (table, ids) in tables.sort(ids.iter().copied(), |id| *id) {
            let (pending, running) =
                retrying!(self.pools(), Use::Write, Scope::Transaction, "making tasks due now", |c, _| make_due(
                    c, table, &ids, &bulk.by, now
                )
                .await)?;
            result.done += pending;
            result.skip("running", running);
            there += pending + running;
        }
        result.skip("gone", (ids.len() as u64).saturating_sub(there));
        Ok(result)
    }

    /// The tasks of these ids that there are.
    pub(super) async fn get_many(&self, ids: &[TaskId]) -> Result<Vec<Task>> {
        let tables = self.tables_for(ids).await?;
        let mut found = Vec::new();
        for (table, ids) in tables.sort(ids.iter().copied(), |id| *id) {
            let tasks = retrying!(self.pools(), Use::Read, Scope::Statement, "reading tasks", |c, _| {
                let s = listed(c.dialect(), &ids);
                let join = joined_on(c.dialect(), table, "t.id = s.id");
                let sql = format!("SELECT {} FROM {} {join}", column_list("t."), s.source);
                c.rows(s.bind_to(query(sql))).await?.iter().map(read_task).collect::<sqlx::Result<Vec<_>>>()
            });
            found.extend(self.learn_from(tasks).await?);
        }
        Ok(found)
    }
}

impl BulkResult {
    fn of_redriven(went: &[Redriven]) -> Self {
        let mut result = Self::default();
        for went in went {
            match went {
                Redriven::As(_) => result.done += 1,
                Redriven::Twin(_) => result.skip("twin", 1),
                Redriven::Gone => result.skip("gone", 1),
            }
        }
        result
    }
}

fn listed<'q>(dialect: Dialect, ids: &[TaskId]) -> Listed<'q> {
    Listed::new(dialect, &["id"], ids.iter().map(|id| vec![(*id).into()]).collect())
}

/// Makes those that wait due; how many, and how many run.
async fn make_due(
    c: &mut Connection<'_>,
    table: Table,
    ids: &[TaskId],
    by: &str,
    now: Timestamp,
) -> sqlx::Result<(u64, u64)> {
    let there = super::task::existing_ids(c, table, ids).await?.len() as u64;
    let s = listed(c.dialect(), ids);
    let set = "next_retry_time = ?, updated_at = ?, updated_by = ?";
    let pending = if c.dialect() == Dialect::MySql {
        let join = joined_on(c.dialect(), table, "t.id = s.id");
        let sql = format!("UPDATE {} {join} SET {set} WHERE t.status = 0", s.source);
        c.execute(s.bind_to(query(sql)).bind(now).bind(now).bind(by)).await?
    } else {
        let sql = format!("UPDATE {table} AS t SET {set} FROM {} WHERE t.id = s.id AND t.status = 0", s.source);
        c.execute(s.bind_to(query(sql).bind(now).bind(now).bind(by))).await?
    };
    Ok((pending, there.saturating_sub(pending)))
}
