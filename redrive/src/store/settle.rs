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
use std::fmt::Display;
use std::sync::Arc;

use crate::callback::callback;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::id::{IdMap, IdSet, TaskId};
use crate::new_task::NewTask;
use crate::policy::OnExhausted;
use crate::settle::{Change, DeadReason, Outcome, To, settle};
use crate::task::{KeyHash, NodeNumber, Status, StopRequest, Task};

use super::Store;
use super::archive::{self, EndedAs};
use super::audit::{self, Record};
use super::db::{Connection, Dialect, Query, Value, query};
use super::hot::{Slice, Wanted, read_slices};
use super::key::Keys;
use super::layout::{Table, Tables};
use super::notice;
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::row::{
    ALIKE, Listed, alike, column_list, insert_rows, joined, joined_on, read_task, stop_request, stored_history,
    write_task, written_columns,
};
use crate::seeded;

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
}

/// What a settle did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It is written. Where the task went: what was asked for, or what a person wanted instead.
    Went(To),
    /// The task was not ours any more; nothing was written.
    Lost,
}

/// The condition on `x` for a running task whose node is not alive.
pub(super) const ORPHANED: &str =
    "x.status = 1 AND NOT EXISTS (SELECT 1 FROM redrive_node n WHERE n.number = x.locked_by AND n.dead = 0)";

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
    fn condition(self) -> &'static str {
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

    fn bind_to(self, query: Query<'_>) -> Query<'_> {
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
    fn condition(self) -> &'static str {
        self.by.condition()
    }

    fn bind_to(self, query: Query<'_>) -> Query<'_> {
        self.by.bind_to(query)
    }
}

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
    /// often. Gives the tasks as they were, and where they went.
    pub async fn rescue(&self, slices: &[Slice], now: Timestamp, limit: u32) -> Result<Vec<(Arc<Task>, To)>> {
        let mut by_node: BTreeMap<NodeNumber, Vec<Settle>> = BTreeMap::new();
        for task in self.running(slices, Wanted::AtHead(ORPHANED, Vec::new()), limit).await? {
            let change = settle(&task, &Outcome::Crashed, now, 0.0);
            by_node.entry(task.locked_by.unwrap_or(NodeNumber(0))).or_default().push(Settle::new(task, change));
        }
        let mut rescued = Vec::new();
        for (node, settles) in by_node {
            let went = self.settle_held(&settles.iter().collect::<Vec<_>>(), Hold::Fenced(node), now).await?;
            rescued.extend(settles.into_iter().filter_map(|s| went.get(&s.task.id).map(|to| (s.task, *to))));
        }
        Ok(rescued)
    }

    /// What a node holds in these slices and has held since before `since`.
    pub async fn held_by(&self, slices: &[Slice], node: NodeNumber, since: Timestamp, limit: u32) -> Result<Vec<Task>> {
        let which = "x.status = 1 AND x.locked_by = ? AND x.locked_at < ?";
        let mut held = self.running(slices, Wanted::AtHead(which, vec![node.into(), since.into()]), limit).await?;
        held.retain(|task| task.locked_by == Some(node)); // it may have gone to another since
        Ok(held)
    }

    /// What other nodes hold in these slices.
    pub async fn held_by_others(&self, slices: &[Slice], node: NodeNumber, limit: u32) -> Result<Vec<Task>> {
        let which = "x.status = 1 AND x.locked_by <> ?";
        self.running(slices, Wanted::AtHead(which, vec![node.into()]), limit).await
    }

    async fn running(&self, slices: &[Slice], wanted: Wanted, limit: u32) -> Result<Vec<Task>> {
        let mut found = Vec::new();
        for (table, slices) in self.tables().reading(slices) {
            let running =
                retrying!(self.pools(), Use::Read, Scope::Statement, "looking for running tasks", |c, _| read_running(
                    c, table, &slices, &wanted, limit
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
            went.extend(self.settle_in(Held { table, by: hold }, &settles, now).await?);
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
            let made = s.follow_ups.iter().map(|new| new.clone().into_task(&self.maker(), now));
            all.insert(s.task.id, made.collect::<Result<Vec<_>>>()?);
        }
        let ids: Vec<TaskId> = all.values().flatten().map(|task| task.id).collect();
        let tables = self.make_room(&ids).await?;
        Ok((all, tables))
    }
}

/// Running tasks of these slices that are wanted.
pub(super) async fn read_running(
    c: &mut Connection<'_>,
    table: Table,
    slices: &[Slice],
    wanted: &Wanted,
    limit: u32,
) -> sqlx::Result<Vec<Task>> {
    let found = read_slices(c, table, slices, "t.id", wanted, Timestamp::MAX, limit).await?;
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

/// The row is the one that was claimed.
fn same() -> &'static str {
    if seeded::is_blind() { "t.id = s.id" } else { super::row::SAME }
}

fn cas_list<'q>(dialect: Dialect, settles: &[&Settle]) -> Listed<'q> {
    let rows = settles.iter().map(|s| vec![s.task.id.into(), s.task.version.into()]).collect();
    Listed::new(dialect, &["id", "version"], rows)
}

fn ids(rows: &[super::db::Row]) -> sqlx::Result<IdSet> {
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
fn delete_with_keys_query<'q>(settles: &[&Settle], hold: Held, keys: &[(KeyHash, TaskId)]) -> Query<'q> {
    let hashes = Value::Hashes(keys.iter().map(|(hash, _)| Some(hash.0)).collect());
    let owners = Value::Ints(keys.iter().map(|(_, id)| Some(id.as_i64())).collect());
    let freed = "freed AS (DELETE FROM redrive_key k USING unnest(?::bytea[], ?::int8[]) AS f(key_hash, id)
                   WHERE k.key_hash = f.key_hash AND k.task_id = f.id AND (f.id IN (SELECT id FROM gone)) IS TRUE)";
    let delete = delete_query(Dialect::Postgres, settles, hold).prefixed("WITH gone AS (");
    delete.followed_by(&format!("), {freed} SELECT id FROM gone")).bind(hashes).bind(owners)
}

async fn delete_once(
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
async fn put_back_once(
    c: &mut Connection<'_>,
    settles: &[&Settle],
    after: &[Task],
    hold: Held,
    now: Timestamp,
) -> sqlx::Result<IdSet> {
    let update = put_back_query(c.dialect(), settles, after, hold, now);
    if c.dialect() != Dialect::MySql {
        return ids(&c.rows(update).await?);
    }
    // No RETURNING: lock the survivors first, then change just those.
    let ours = survivors(c, settles, hold, true).await?;
    c.execute(update).await?;
    Ok(ours.into_iter().filter(|(_, stop)| *stop == StopRequest::None).map(|(id, _)| id).collect())
}

/// MySQL does not say which rows a DELETE took: the survivors are locked first, and just those are deleted.
async fn delete_mysql(c: &mut Connection<'_>, settles: &[&Settle], hold: Held) -> sqlx::Result<IdSet> {
    let ours: IdSet = survivors(c, settles, hold, true).await?.into_keys().collect();
    delete_ids(c, hold.table, &ours).await?;
    Ok(ours)
}

/// Which of these are still what they were and held so, and whether a person wants them stopped.
async fn survivors(
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
    let lock = match dialect {
        Dialect::Postgres if lock => "FOR UPDATE OF t",
        Dialect::MySql if lock => "FOR UPDATE",
        _ => "", // SQLite's transaction has the only writer
    };
    let (source, held) = (&s.source, hold.condition());
    let table = joined_on(dialect, hold.table, same());
    let sql = format!("SELECT t.id, t.cancel_requested FROM {source} {table} WHERE {held} {lock}");
    hold.bind_to(s.bind_to(query(sql)))
}

pub(super) fn put_back_query<'q>(
    dialect: Dialect,
    settles: &[&Settle],
    after: &'q [Task],
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
    let row = |(s, t): (&&Settle, &'q Task)| {
        let error = t.last_error.as_ref();
        vec![
            t.id.into(),
            s.task.version.into(),
            t.due.into(),
            t.attempts.into(),
            t.crashes.into(),
            t.postponements.into(),
            t.first_failed_at.into(),
            error.map(|e| e.kind.as_str()).into(),
            error.map(|e| &*e.message).into(),
            error.map(|e| e.at).into(),
            stored_history(t).into(),
        ]
    };
    let s = Listed::new(dialect, &columns, settles.iter().zip(after).map(row).collect());
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
        let sql = format!("UPDATE {source} {} SET {set} WHERE {held}", joined_on(dialect, table, same));
        return hold.bind_to(s.bind_to(query(sql)).bind(now));
    }
    let sql = format!("UPDATE {table} AS t SET {} FROM {source} WHERE {same} AND {held} RETURNING id", set.join(", "));
    let sql = if dialect == Dialect::Postgres { sql.replace("RETURNING id", "RETURNING t.id") } else { sql };
    hold.bind_to(s.bind_to(query(sql).bind(now)))
}

/// Which of these wait again by our hand: the next version, with our number still on it.
async fn put_back_already(c: &mut Connection<'_>, settles: &[&Settle], hold: Held) -> sqlx::Result<IdSet> {
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

/// Which of these are among the dead letters or in the archive.
async fn moved_already(c: &mut Connection<'_>, tables: &Tables, settles: &[&Settle]) -> sqlx::Result<IdMap<To>> {
    let ids: Vec<TaskId> = settles.iter().map(|s| s.task.id).collect();
    let moved = super::task::ended_ids(c, tables, &ids).await?;
    Ok(settles.iter().filter(|s| moved.contains(&s.task.id)).map(|s| (s.task.id, s.change.to)).collect())
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
async fn insert_dead(c: &mut Connection<'_>, dead: &[(Task, DeadReason)], now: Timestamp) -> sqlx::Result<()> {
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
