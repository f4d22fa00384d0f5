//! A first try, made inline, that ended before there was a row of it: it goes straight to where it belongs.

use crate::clock::Timestamp;
use crate::error::Result;
use crate::id::{IdMap, TaskId};
use crate::settle::{Change, DeadReason, To};
use crate::task::Task;

use super::Store;
use super::archive::{self, EndedAs};
use super::db::Connection;
use super::layout::Tables;
use super::notice;
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::settle::Settle;
use super::settle_sql::write_where_they_go;

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
        let telling: &[&Settle] = if rejected { &[] } else { &[&settle] };
        let (follow_ups, tables) = self.follow_up_tasks(telling, now).await?;
        retrying!(self.pools(), Use::Write, Scope::Transaction, &doing, |c, tried| {
            let ids = [settle.task.id];
            if tried > 0 && written_already(c, &tables, &settle, &follow_ups).await? {
                return Ok(());
            }
            if rejected {
                let task = settle.task.after(&settle.change, now);
                let entry = archive::Entry::new(task, EndedAs::Rejected);
                let reason = Some(DeadReason::Rejected);
                archive::insert(c, tables.archive(now), &[archive::Entry { dead_reason: reason, ..entry }], now)
                    .await?;
            } else {
                write_where_they_go(c, &tables, &[&settle], &IdMap::default(), now).await?;
            }
            notice::write_new(c, &[&settle], now).await?;
            for tasks in ids.iter().filter_map(|id| follow_ups.get(id)) {
                super::insert::insert_follow_ups(c, &tables, tasks, now).await?;
            }
            Ok(())
        })
    }
}

/// Whether an earlier try, whose answer was lost, has written this down.
async fn written_already(
    c: &mut Connection<'_>,
    tables: &Tables,
    settle: &Settle,
    follow_ups: &IdMap<Vec<Task>>,
) -> sqlx::Result<bool> {
    let ids = [settle.task.id];
    let called_back: Vec<TaskId> = follow_ups.values().flatten().map(|task| task.id).collect();
    let mut there = super::task::existing_tasks(c, tables, &called_back).await?;
    there.extend(super::task::ended_ids(c, tables, &ids).await?);
    Ok(!there.is_empty())
}
