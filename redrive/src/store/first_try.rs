//! A first try, made inline, that ended before there was a row of it: it goes straight to where it belongs.

use std::time::Duration;

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

/// How long the key of a callback outlives it. A first try that succeeded leaves nothing else behind: if the answer to its commit was lost,
/// and the callback has been run meanwhile, only that says that it was written.
const CALLED_BACK_FOR: Duration = Duration::from_secs(3600);

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
        let mut settle = Settle::with_result(task, change, result);
        settle.limit_result(self.max_result());
        let telling: &[&Settle] = if rejected { &[] } else { &[&settle] };
        let (mut follow_ups, tables) = self.follow_up_tasks(telling, now).await?;
        follow_ups.values_mut().flatten().for_each(|task| task.dedup_for = CALLED_BACK_FOR);
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

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use crate::id::SHARDS;
    use crate::new_task::NewTask;
    use crate::policy::Policy;
    use crate::settle::{Outcome, settle};
    use crate::store::{Registration, Slice};
    use crate::task::Lane;

    const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    /// The answer to the first commit was lost, and the callback has come and gone.
    #[tokio::test]
    async fn what_is_written_again_calls_back_once() {
        let store = Store::open("sqlite::memory:").await.unwrap();
        let node = store.register(&Registration::default(), NOW).await.unwrap();
        let policy = Policy { on_success: Some("paid".into()), ..Policy::default() };
        let task = *store.prepare(NewTask::new("pay", &7).unwrap().policy(policy), NOW).unwrap().task;
        let slice = |shard| Slice { lane: Lane::of("paid"), shard, from: Timestamp::EPOCH };
        let slices: Vec<Slice> = (0..SHARDS).map(slice).collect();
        let write = async || {
            let change = settle(&task, &Outcome::Done, NOW, 0.0);
            store.write_first_try(task.clone(), change, Some("1".into()), NOW).await.unwrap();
            store.claim_due(&slices, node, NOW, 10).await.unwrap().tasks
        };
        let called = write().await.remove(0);
        let done = settle(&called, &Outcome::Done, NOW, 0.0);
        store.settle(&[Settle::new(called, done)], NOW).await.unwrap();
        assert_eq!(write().await, []);
    }
}
