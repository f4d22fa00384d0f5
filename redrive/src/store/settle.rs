//! Ending attempts: each task goes back to wait, or leaves for where its [`Change`] says, in one transaction.
//!
//! *Invariants.* A change is written only if the task still is what it was when it was decided: same id, same version,
//! and held by whom we think. Who that is, is [`Hold`]: a node that is not fenced, a node that is, or nobody. So nothing is
//! written after a fence but what the rescuer writes. A task that leaves is inserted where it goes, deleted, and its key is
//! released, together; its follow-up tasks are inserted with that. `locked_by` stays when a task goes back to wait: a settle
//! whose commit was not heard of is recognised by (version + 1, our number).
//!
//! *Failure.* "Not ours any more" is [`Settled::Lost`], row by row. A task that a person wants stopped does not go back
//! to wait: the update finds `cancel_requested` set, and the task is settled as that wish says.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::callback::{ENVELOPE, callback, without_large};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::id::{IdMap, IdSet, TaskId};
use crate::new_task::{Maker, NewTask};
use crate::settle::{Change, Outcome, To, settle};
use crate::task::{NodeNumber, Status, Task};

use super::Store;
use super::audit::{self, Record};
use super::db::{Connection, Dialect, query};
use super::hot::{Slice, Wanted, read_slices};
use super::key::Keys;
use super::layout::{Table, Tables};
use super::notice;
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::row::{Listed, column_list, joined_on, read_task};
use super::settle_sql::{
    Held, Hold, delete_ids, delete_once, moved_already, put_back_already, put_back_once, survivors, write_where_they_go,
};

/// A task and what is to become of it.
#[derive(Clone, Debug)]
pub struct Settle {
    /// The task as it was claimed.
    pub task: Arc<Task>,
    /// What is to be written.
    pub change: Change,
    /// Tasks to be written down with it: callbacks.
    pub follow_ups: Vec<NewTask>,
    /// If it is done: keep it in the archive, with this result (JSON).
    pub keep: Option<Kept>,
    /// What the audit is to say of it, if a person wants it. Written if it leaves.
    pub(super) record: Option<Box<Record>>,
}

/// What the archive keeps of a task that is done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Its result, as JSON.
    pub result: Option<String>,
}

impl Settle {
    /// A change, with the callback that it asks for.
    pub fn new(task: impl Into<Arc<Task>>, change: Change) -> Self {
        Self::with_result(task, change, None)
    }

    /// The same for a task that is done, with its result (JSON), which its callback and the archive are told.
    pub fn with_result(task: impl Into<Arc<Task>>, change: Change, result: Option<String>) -> Self {
        let task = task.into();
        let follow_ups = callback(&task, &change, result.as_deref());
        let keep = (change.to == To::Done && task.policy.keep).then_some(Kept { result });
        Self { task, change, follow_ups, keep, record: None }
    }

    /// Whether the row just goes: nothing is written elsewhere.
    fn only_goes(&self) -> bool {
        self.change.to == To::Done && self.keep.is_none() && self.follow_ups.is_empty()
    }

    /// How much of it is sent to the database, about.
    fn bytes(&self) -> usize {
        let history: usize = self.task.history.iter().map(|past| past.message.len() + 100).sum();
        let failure = self.change.failure.as_ref().map_or(0, |failure| failure.message.len());
        let moved = match self.change.to.is_final() {
            true if self.only_goes() => return 50,
            true => self.task.params.len() + self.keep.as_ref().map_or(0, Kept::bytes),
            false => 0,
        };
        let follow_ups: usize = self.follow_ups.iter().map(|new| new.params.len() + 500).sum();
        history + failure + moved + follow_ups + 500
    }
}

impl Kept {
    fn bytes(&self) -> usize {
        self.result.as_ref().map_or(0, String::len)
    }
}

/// Most bytes of a statement, about: servers refuse what is too large by closing the connection, and that looks like one that is away.
const MOST_BYTES: usize = 4 << 20;

/// Parts that are not too large, at least one settle each.
fn within_bytes<'s, 't>(settles: &'t [&'s Settle]) -> impl Iterator<Item = &'t [&'s Settle]> {
    let mut rest = settles;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |s: &&&Settle| {
            bytes += s.bytes();
            bytes <= MOST_BYTES
        };
        let n = rest.iter().take_while(fits).count().max(1).min(rest.len());
        let (part, more) = rest.split_at(n);
        rest = more;
        (!part.is_empty()).then_some(part)
    })
}

/// What a settle did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It is written. Where the task went: what was asked for, or what a person wanted instead.
    Went(To),
    /// The task was not ours any more; nothing was written.
    Lost,
}

/// How far ahead of the time tasks may be claimed, and clocks differ, and more.
const AHEAD: Duration = Duration::from_secs(60);

/// The condition on `x` for a running task whose node is not alive.
pub(super) const ORPHANED: &str =
    "x.status = 1 AND NOT EXISTS (SELECT 1 FROM redrive_node n WHERE n.number = x.locked_by AND n.dead = 0)";

impl Store {
    /// Ends attempts. The results are in the order of the settles.
    pub async fn settle(&self, settles: &[Settle], now: Timestamp) -> Result<Vec<Settled>> {
        let mut by_hold: HashMap<Hold, Vec<usize>> = HashMap::new();
        for (i, s) in settles.iter().enumerate() {
            let hold = match (s.task.status, s.task.locked_by) {
                (Status::Running, Some(node)) => Hold::Node(node),
                _ => Hold::Nobody,
            };
            by_hold.entry(hold).or_default().push(i);
        }
        let mut results = vec![Settled::Lost; settles.len()];
        for (hold, part) in by_hold {
            let chosen: Vec<&Settle> = part.iter().filter_map(|i| settles.get(*i)).collect();
            let settled = self.settle_held(&chosen, hold, now).await?;
            for i in part {
                if let (Some(result), Some(s)) = (results.get_mut(i), settles.get(i)) {
                    *result = settled.get(&s.task.id).map_or(Settled::Lost, |to| Settled::Went(*to));
                }
            }
        }
        Ok(results)
    }

    /// Takes back what nodes held in these slices that are not alive any more: waiting again, or dead if it crashed too
    /// often. Gives the tasks as they were, and where they went. What lies behind many that wait is not found.
    pub async fn rescue(&self, slices: &[Slice], now: Timestamp, limit: u32) -> Result<Vec<(Arc<Task>, To)>> {
        let orphans = self.running(slices, Wanted::AtHead(ORPHANED, Vec::new()), Timestamp::MAX, limit).await?;
        self.take_back(orphans, now).await
    }

    /// The same however many wait before them: all that is due is read.
    pub async fn rescue_all(&self, slices: &[Slice], now: Timestamp, limit: u32) -> Result<Vec<(Arc<Task>, To)>> {
        // What runs was due when it was claimed; timers that wait are not looked through.
        let until = now + AHEAD;
        let orphans = self.running(slices, Wanted::Anywhere(ORPHANED), until, limit).await?;
        self.take_back(orphans, now).await
    }

    async fn take_back(&self, orphans: Vec<Task>, now: Timestamp) -> Result<Vec<(Arc<Task>, To)>> {
        let mut by_node: BTreeMap<NodeNumber, Vec<Settle>> = BTreeMap::new();
        for task in orphans {
            let change = settle(&task, &Outcome::Crashed, now, 0.0);
            by_node.entry(task.locked_by.unwrap_or(NodeNumber(0))).or_default().push(Settle::new(task, change));
        }
        let (mut rescued, mut failed) = (Vec::new(), None);
        for (node, settles) in by_node {
            // What cannot be taken back from one node must not keep the others' from it.
            match self.settle_held(&settles.iter().collect::<Vec<_>>(), Hold::Fenced(node), now).await {
                Ok(went) => {
                    rescued.extend(settles.into_iter().filter_map(|s| went.get(&s.task.id).map(|to| (s.task, *to))));
                }
                Err(e) => {
                    tracing::warn!(error = %e, %node, "tasks of a dead node could not be taken back; trying again at the next sweep");
                    failed = Some(e);
                }
            }
        }
        match failed {
            Some(e) if rescued.is_empty() => Err(e),
            _ => Ok(rescued),
        }
    }

    /// What a node holds in these slices and has held since before `since`.
    pub async fn held_by(&self, slices: &[Slice], node: NodeNumber, since: Timestamp, limit: u32) -> Result<Vec<Task>> {
        let which = "x.status = 1 AND x.locked_by = ? AND x.locked_at < ?";
        let mut held =
            self.running(slices, Wanted::AtHead(which, vec![node.into(), since.into()]), Timestamp::MAX, limit).await?;
        held.retain(|task| task.locked_by == Some(node)); // it may have gone to another since
        Ok(held)
    }

    /// What other nodes hold in these slices.
    pub async fn held_by_others(&self, slices: &[Slice], node: NodeNumber, limit: u32) -> Result<Vec<Task>> {
        let which = "x.status = 1 AND x.locked_by <> ?";
        self.running(slices, Wanted::AtHead(which, vec![node.into()]), Timestamp::MAX, limit).await
    }

    async fn running(&self, slices: &[Slice], wanted: Wanted, until: Timestamp, limit: u32) -> Result<Vec<Task>> {
        let mut found = Vec::new();
        for (table, slices) in self.tables().reading(slices) {
            let running =
                retrying!(self.pools(), Use::Read, Scope::Statement, "looking for running tasks", |c, _| read_running(
                    c, table, &slices, &wanted, until, limit
                )
                .await);
            found.extend(self.learn_from(running).await?);
        }
        Ok(found)
    }

    /// Writes the changes of tasks that are all held alike. Gives where each went; those that are missing were lost.
    pub(super) async fn settle_held(&self, settles: &[&Settle], hold: Hold, now: Timestamp) -> Result<IdMap<To>> {
        let ids: Vec<TaskId> = settles.iter().map(|s| s.task.id).collect();
        let tables = self.tables_for(&ids).await?;
        let mut went = IdMap::default();
        for (table, settles) in tables.sort(settles.iter().copied(), |s| s.task.id) {
            for part in within_bytes(&settles) {
                went.extend(self.settle_in(Held { table, by: hold }, part, now).await?);
            }
        }
        Ok(went)
    }

    async fn settle_in(&self, hold: Held, settles: &[&Settle], now: Timestamp) -> Result<IdMap<To>> {
        let (waiting, ending): (Vec<&Settle>, Vec<&Settle>) = settles.iter().partition(|s| !s.change.to.is_final());
        let (going, leaving): (Vec<&Settle>, Vec<&Settle>) = ending.into_iter().partition(|s| s.only_goes());
        let mut went = IdMap::default();
        if !going.is_empty() {
            went.extend(self.delete_done(&going, hold, now).await?.into_iter().map(|id| (id, To::Done)));
        }
        let mut stopped = Vec::new();
        if !waiting.is_empty() {
            went.extend(self.put_back(&waiting, hold, now).await?);
            let lost: Vec<&Settle> = waiting.into_iter().filter(|s| !went.contains_key(&s.task.id)).collect();
            stopped = self.wanted_stopped(&lost, hold).await?;
        }
        let leaving: Vec<&Settle> = leaving.into_iter().chain(&stopped).collect();
        if !leaving.is_empty() {
            went.extend(self.move_out(&leaving, hold, now).await?);
        }
        Ok(went)
    }

    /// Tasks that are done and leave no trace but, perhaps, a key that outlives them.
    async fn delete_done(&self, settles: &[&Settle], hold: Held, now: Timestamp) -> Result<IdSet> {
        let keys = Keys::of(settles.iter().copied());
        let alone = match self.dialect() {
            Dialect::Postgres => keys.all_free().is_some(),
            Dialect::Sqlite => keys.is_empty(),
            Dialect::MySql => false,
        };
        let scope = if alone { Scope::Statement } else { Scope::Transaction };
        let doing = describe("finishing", settles);
        retrying!(self.pools(), Use::Write, scope, doing, |c, tried| {
            let mut gone = delete_once(c, settles, hold, &keys, now).await?;
            if tried > 0 {
                // Gone already: by our earlier try, whose answer was lost. There is nothing more to do in any case.
                let ids: Vec<TaskId> = settles.iter().map(|s| s.task.id).collect();
                let there = super::task::existing_ids(c, hold.table, &ids).await?;
                gone.extend(ids.into_iter().filter(|id| !there.contains(id)));
            }
            Ok(gone)
        })
    }

    /// Tasks that wait again.
    async fn put_back(&self, settles: &[&Settle], hold: Held, now: Timestamp) -> Result<IdMap<To>> {
        let doing = describe("putting back", settles);
        let after: Vec<Task> = settles.iter().map(|s| s.task.after(&s.change, now)).collect();
        let telling: Vec<_> =
            settles.iter().zip(&after).filter(|(s, _)| s.change.notice).map(|(_, t)| (t, None)).collect();
        // MySQL has to look which they were, before others can change them; notices are written with them.
        let alone = self.dialect() != Dialect::MySql && telling.is_empty();
        let scope = if alone { Scope::Statement } else { Scope::Transaction };
        let back = retrying!(self.pools(), Use::Write, scope, doing, |c, tried| {
            let mut back = put_back_once(c, settles, &after, hold, now).await?;
            let telling: Vec<_> = telling.iter().copied().filter(|(task, _)| back.contains(&task.id)).collect();
            notice::write(c, hold.table, &telling, now).await?;
            if back.len() < settles.len() && tried > 0 {
                back.extend(put_back_already(c, settles, hold).await?);
            }
            Ok(back)
        })?;
        let to = |s: &&Settle| back.contains(&s.task.id).then_some((s.task.id, s.change.to));
        Ok(settles.iter().filter_map(to).collect())
    }

    /// Of tasks that could not be put back, those that a person wants stopped, with what is then to become of them.
    async fn wanted_stopped(&self, settles: &[&Settle], hold: Held) -> Result<Vec<Settle>> {
        if settles.is_empty() {
            return Ok(Vec::new());
        }
        let survivors =
            retrying!(self.pools(), Use::Read, Scope::Statement, "looking for tasks to stop", |c, _| survivors(
                c, settles, hold, false
            )
            .await)?;
        let stopped = |s: &&Settle| {
            let stop = *survivors.get(&s.task.id)?;
            let change = s.change.clone().obeying(stop);
            change.to.is_final().then(|| Settle::new(Task { stop, ..(*s.task).clone() }, change))
        };
        Ok(settles.iter().filter_map(stopped).collect())
    }

    /// Tasks that leave for the dead letters or the archive, with their follow-ups.
    async fn move_out(&self, settles: &[&Settle], hold: Held, now: Timestamp) -> Result<IdMap<To>> {
        let doing = describe("moving out", settles);
        let (follow_ups, tables) = self.follow_up_tasks(settles, now).await?;
        retrying!(self.pools(), Use::Write, Scope::Transaction, &doing, |c, tried| {
            let ours = survivors(c, settles, hold, true).await?;
            let leaving: Vec<&Settle> = settles.iter().copied().filter(|s| ours.contains_key(&s.task.id)).collect();
            let gone: IdSet = leaving.iter().map(|s| s.task.id).collect();
            let told = notice::write_leaving(c, hold.table, &leaving, now).await?;
            write_where_they_go(c, &tables, &leaving, &told, now).await?;
            delete_ids(c, hold.table, &gone).await?;
            Keys::of(leaving.iter().copied()).end(c, &gone, now).await?;
            for s in &leaving {
                audit::write(c, s.record.as_deref(), now).await?;
                if let Some(tasks) = follow_ups.get(&s.task.id) {
                    super::insert::insert_follow_ups(c, &tables, tasks, now).await?;
                }
            }
            let mut went: IdMap<To> = leaving.iter().map(|s| (s.task.id, s.change.to)).collect();
            if tried > 0 {
                went.extend(moved_already(c, &tables, settles).await?);
            }
            Ok(went)
        })
    }

    /// The tasks that follow from settles, and the tables, which have room for them.
    pub(super) async fn follow_up_tasks(
        &self,
        settles: &[&Settle],
        now: Timestamp,
    ) -> Result<(IdMap<Vec<Task>>, Arc<Tables>)> {
        let mut all: IdMap<Vec<Task>> = IdMap::default();
        for s in settles.iter().filter(|s| !s.follow_ups.is_empty()) {
            let made = s.follow_ups.iter().map(|new| self.follow_up(new, s.task.id, now));
            all.insert(s.task.id, made.collect::<Result<Vec<_>>>()?);
        }
        let ids: Vec<TaskId> = all.values().flatten().map(|task| task.id).collect();
        let tables = self.make_room(&ids).await?;
        Ok((all, tables))
    }
}

impl Store {
    /// A callback tells of params, or of a result, that may be as large as params may be. One that is larger still is made without them: a
    /// task's end must not fail because of how it is told.
    fn follow_up(&self, new: &NewTask, of: TaskId, now: Timestamp) -> Result<Task> {
        let maker = self.maker();
        let maker = Maker { max_params: maker.max_params + ENVELOPE, ..maker };
        new.clone().into_task(&maker, now).or_else(|e| {
            tracing::error!(task = %of, method = %new.method, error = %e, "a callback is told without the result or the params, which are too large");
            without_large(new.clone()).into_task(&maker, now)
        })
    }
}

/// Running tasks of these slices that are wanted.
pub(super) async fn read_running(
    c: &mut Connection<'_>,
    table: Table,
    slices: &[Slice],
    wanted: &Wanted,
    until: Timestamp,
    limit: u32,
) -> sqlx::Result<Vec<Task>> {
    let found = read_slices(c, table, slices, "t.id", wanted, until, limit).await?;
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let found: sqlx::Result<Vec<_>> = found.iter().map(|row| Ok(vec![row.int()?.into()])).collect();
    let s = Listed::new(c.dialect(), &["id"], found?);
    let table = joined_on(c.dialect(), table, "t.id = s.id");
    let sql = format!("SELECT {} FROM {} {table} WHERE t.status = 1", column_list("t."), s.source);
    c.rows(s.bind_to(query(sql))).await?.iter().map(read_task).collect()
}

fn describe(verb: &str, settles: &[&Settle]) -> String {
    match settles {
        [one] => format!("{verb} task {}", one.task.id),
        [first, rest @ ..] => format!("{verb} task {} and {} more", first.task.id, rest.len()),
        [] => verb.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_not_larger_than_servers_take() {
        let new = NewTask::new("pay", &"x".repeat(1 << 20)).unwrap();
        let ids = crate::id::IdMaker::new(0, Arc::default());
        let maker = Maker { ids: &ids, max_params: 2 << 20, keyring: None };
        let task = Arc::new(new.into_task(&maker, Timestamp::EPOCH).unwrap());
        let dead = Settle::new(task.clone(), crate::settle::give_up(&task, crate::settle::DeadReason::Expired));
        let done = Settle::new(task.clone(), task.unchanged(To::Done));
        let parts = |settles: &[&Settle]| within_bytes(settles).map(<[_]>::len).collect::<Vec<_>>();
        assert_eq!(parts(&[&dead; 8]), [3, 3, 2]);
        assert_eq!(parts(&[&done; 8]), [8], "what just goes is not sent");
        assert!(parts(&[]).is_empty());
    }
}
