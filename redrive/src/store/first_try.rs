//! A first try, made inline, that ended before there was a row of it: it goes straight to where it belongs.

use crate::clock::Timestamp;
use crate::error::Result;
use crate::id::{IdMap, TaskId};
use crate::settle::{Change, DeadReason, To};
use crate::task::Task;

use super::Store;
use super::archive::{self, EndedAs};
use super::db::Connection;
use super::notice;
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::schema::TASK_TABLE;
use super::settle::{Settle, write_where_they_go};

impl Store {
    /// Writes down a first try that ended before there was a row: where it goes, and the callback that it asks for. One that
    /// no retry can mend goes to the archive: its caller has been told.
    pub(crate) async fn write_first_try(
        &self,
        task: Task,
        change: Change,
        result: Option<String>,
        now: Timestamp,
    ) -> Result<()> {
        let doing = format!("writing down the first try of task {}", task.id);
        let rejected = matches!(change.to, To::Dead(DeadReason::Rejected) | To::Dropped(DeadReason::Rejected));
        let settle = Settle::with_result(task, change, result);
        let follow_ups = if rejected { IdMap::default() } else { self.follow_up_tasks(&[&settle], now)? };
        retrying!(self.pools(), Use::Write, Scope::Transaction, &doing, |c, tried| {
            let ids = [settle.task.id];
            if tried > 0 && written_already(c, &settle, &follow_ups).await? {
                return Ok(());
            }
            if rejected {
                let task = settle.task.after(&settle.change, now);
                let entry = archive::Entry::new(task, EndedAs::Rejected);
                let reason = Some(DeadReason::Rejected);
                archive::insert(c, &[archive::Entry { dead_reason: reason, ..entry }], now).await?;
            } else {
                write_where_they_go(c, &[&settle], &IdMap::default(), now).await?;
            }
            notice::write_new(c, &[&settle], now).await?;
            for tasks in ids.iter().filter_map(|id| follow_ups.get(id)) {
                super::insert::insert_follow_ups(c, tasks, now).await?;
            }
            Ok(())
        })
    }
}

/// Whether an earlier try, whose answer was lost, has written this down.
async fn written_already(c: &mut Connection<'_>, settle: &Settle, follow_ups: &IdMap<Vec<Task>>) -> sqlx::Result<bool> {
    let ids = [settle.task.id];
    let called_back: Vec<TaskId> = follow_ups.values().flatten().map(|task| task.id).collect();
    for (table, ids) in [("retry_dead", &ids[..]), ("retry_archive", &ids), (TASK_TABLE, &called_back)] {
        if !ids.is_empty() && !super::task::existing_ids(c, table, ids).await?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}
