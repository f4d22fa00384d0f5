//! Ending attempts: each task goes back to wait, or leaves for where its [`Change`] says, in one transaction.
//!
//! *Invariants.* A change is written only if the task still is what it was when it was decided: same id, same version,
//! and held by whom we think. Who that is, is [`Hold`]: a node that is not fenced, a node that is, or nobody. So nothing is
//! written after a fence but what the rescuer writes. A task that leaves is inserted where it goes, deleted, and its key is
//! released, together; its follow-up tasks are inserted with that. `locked_by` stays when a task goes back to wait: a settle
//! whose commit was not heard of is recognised by (version + 1, our number).
//!
//! *Failure.* "Not ours any more" is [`Settled::Lost`], row by row. A task that a person wants stopped does not go back
//! to wait: the update finds `cancel_requested` set, and the task is settled as that wish says. One that is to be given up because of
//! its limits is not if a person has given it others meanwhile: its policy is read under the lock under which it would leave, and if it is
//! another, it is decided anew. One settle is several transactions: if it fails, some of them may have been written, which
//! whoever repeats it says ([`Settle::again`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::bisect::Bisect;
use crate::callback::{ENVELOPE, callback, without_large};
use crate::clock::{Stopwatch, Timestamp};
use crate::error::{Error, Fault, Result};
use crate::id::{IdMap, IdSet, TaskId};
use crate::new_task::{Maker, NewTask};
use crate::policy::Policy;
use crate::settle::{Change, Outcome, To, random, reconsider, settle};
use crate::task::{NodeNumber, Status, Task};

use super::Store;
use super::audit::{self, Record};
use super::db::{Connection, Dialect, Row, query};
use super::hot::{InLane, LaneShards, Slice, Wanted, read_lanes, read_slices};
use super::key::Keys;
use super::layout::{Table, Tables};
use super::notice;
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::row::{Listed, column_list, joined_on, read_task, within_bytes};
use super::settle_sql::{
    Held, Hold, delete_ids, delete_once, moved_already, other_policies, put_back_already, put_back_once, survivors,
    write_where_they_go,
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
    /// Whether it may have been written before: it was settled with others, and that failed. Then what was written by us is not [`Lost`](Settled::Lost).
    pub again: bool,
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
        Self { task, change, follow_ups, keep, again: false, record: None }
    }

    /// Keeps, of a result that is larger than params may be, only how large it was.
    pub(crate) fn limit_result(&mut self, max: usize) {
        let Some(result) = self.keep.as_mut().and_then(|kept| kept.result.as_mut()).filter(|kept| kept.len() > max)
        else {
            return;
        };
        let bytes = result.len();
        tracing::warn!(task = %self.task.id, bytes, max, "the result of a task is too large to be kept; raise max_params, or return less");
        let said = format!("the result has {bytes} bytes; at most {max} are kept");
        *result = serde_json::json!({ "not_kept": said }).to_string();
    }

    /// What becomes of the task under another policy, if anything does.
    fn under(&self, policy: Arc<Policy>, now: Timestamp) -> Option<Self> {
        let task = Task { policy, ..(*self.task).clone() };
        let change = reconsider(&task, &self.change, now, random(&task))?;
        Some(Self { again: self.again, ..Self::new(task, change) })
    }

    /// Whether the row just goes: nothing is written elsewhere.
    fn only_goes(&self) -> bool {
        self.leaves_no_trace() && self.follow_ups.is_empty()
    }

    /// Whether the task is in no table any more.
    pub(super) fn leaves_no_trace(&self) -> bool {
        self.change.to == To::Done && self.keep.is_none()
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

/// Parts that are not too large for a statement, at least one settle each.
fn parts<'s, 't>(settles: &'t [&'s Settle]) -> impl Iterator<Item = &'t [&'s Settle]> {
    let mut rest = settles;
    std::iter::from_fn(move || {
        let (part, more) = rest.split_at(within_bytes(rest, |s| s.bytes()));
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

/// What a rescue did.
#[derive(Clone, Debug, Default)]
pub struct Rescued {
    /// The tasks as they were, and where they went.
    pub tasks: Vec<(Arc<Task>, To)>,
    /// Tasks that could not be taken back now: the database refuses that, somebody holds their rows, or others were faster.
    pub left: usize,
}

/// How far ahead of the time tasks may be claimed, and clocks differ, and more.
const AHEAD: Duration = Duration::from_secs(60);
/// How long a sweep looks for what the database refuses.
const LONGEST_APART: Duration = Duration::from_secs(5);

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

    /// Takes back what nodes held in these lanes that are not alive any more: waiting again, or dead if it crashed too
    /// often. All that is due is read.
    pub async fn rescue(&self, lanes: &[LaneShards], now: Timestamp, limit: u32) -> Result<Rescued> {
        let orphans = self.running_in(lanes, &InLane::That(ORPHANED, Vec::new()), now, limit).await?;
        let found = orphans.len();
        let tasks = self.take_back(orphans, now).await?;
        let left = found.saturating_sub(tasks.len());
        Ok(Rescued { tasks, left })
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
            match self.settle_what_can_be(settles, Hold::Fenced(node), now).await {
                Ok(went) => rescued.extend(went),
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

    /// Returns what a node holds in these lanes and has held since before `since`. All that is due is read.
    pub async fn held_by(
        &self,
        lanes: &[LaneShards],
        node: NodeNumber,
        since: Timestamp,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<Task>> {
        let which = "x.status = 1 AND x.locked_by = ? AND x.locked_at < ?";
        let wanted = InLane::That(which, vec![node.into(), since.into()]);
        let mut held = self.running_in(lanes, &wanted, now, limit).await?;
        held.retain(|task| task.locked_by == Some(node)); // it may have gone to another since
        Ok(held)
    }

    /// Returns what other nodes hold at the head of these slices.
    pub async fn held_by_others(&self, slices: &[Slice], node: NodeNumber, limit: u32) -> Result<Vec<Task>> {
        let wanted = Wanted::AtHead("x.status = 1 AND x.locked_by <> ?", vec![node.into()]);
        let mut found = Vec::new();
        for (table, slices) in self.tables().reading(slices) {
            let doing = "looking for tasks that others run";
            let running = retrying!(self.pools(), Use::Read, Scope::Statement, doing, |c, _| {
                let ids = read_slices(c, table, &slices, "t.id", &wanted, Timestamp::MAX, limit, Row::int).await?;
                read_those_running(c, table, ids).await
            });
            found.extend(self.learn_from(running).await?);
        }
        Ok(found)
    }

    /// Running tasks of lanes. What runs was due when it was claimed; timers that wait are not looked through.
    async fn running_in(&self, lanes: &[LaneShards], wanted: &InLane, now: Timestamp, limit: u32) -> Result<Vec<Task>> {
        let (mut found, until) = (Vec::new(), now + AHEAD);
        for (table, lanes) in self.tables().reading_lanes(lanes) {
            let doing = "looking for running tasks";
            let running = retrying!(self.pools(), Use::Read, Scope::Statement, doing, |c, _| read_running(
                c, table, &lanes, wanted, until, limit
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
            for part in parts(&settles) {
                went.extend(self.settle_in(Held { table, by: hold }, part, now).await?);
            }
        }
        Ok(went)
    }

    /// The same for sweeps, which come again: what the database refuses by itself does not keep the others from being settled. It counts as
    /// lost.
    pub(super) async fn settle_what_can_be(
        &self,
        mut settles: Vec<Settle>,
        hold: Hold,
        now: Timestamp,
    ) -> Result<Vec<(Arc<Task>, To)>> {
        let went = match self.settle_held(&settles.iter().collect::<Vec<_>>(), hold, now).await {
            Err(e) if !self.is_away(&e) => {
                settles.iter_mut().for_each(|s| s.again = true); // some of them may have been written
                self.settle_apart(&settles, hold, now).await?
            }
            together => together?,
        };
        Ok(settles.into_iter().filter_map(|s| went.get(&s.task.id).map(|to| (s.task, *to))).collect())
    }

    /// Most bytes of a result that is kept: as many as params may have.
    pub(crate) fn max_result(&self) -> usize {
        self.pools().options().max_params
    }

    /// Whether nothing can be written now, whatever it is. A lock is somebody's on one row, but on SQLite, where it is on all.
    pub(crate) fn is_away(&self, e: &Error) -> bool {
        let one_row = e.fault() == Some(Fault::Busy) && self.dialect() != Dialect::Sqlite;
        e.is_transient() && !one_row
    }

    /// Halves what cannot be written together, until what is refused is alone. However many of them somebody holds, others wait for us:
    /// the next sweep finds what there was no time for.
    async fn settle_apart(&self, settles: &[Settle], hold: Hold, now: Timestamp) -> Result<IdMap<To>> {
        let (mut went, mut parts) = (IdMap::default(), Bisect::of(settles.iter().collect()));
        let since = Stopwatch::start();
        while let Some(part) = parts.next_part().filter(|_| since.elapsed() < LONGEST_APART) {
            match self.settle_held(&part, hold, now).await {
                Ok(to) => went.extend(to),
                Err(e) if self.is_away(&e) && went.is_empty() => return Err(e),
                Err(e) if self.is_away(&e) => break,
                Err(e) => parts.split_last(part).into_iter().for_each(|s| log_refused(s, &e)),
            }
        }
        Ok(went)
    }

    async fn settle_in(&self, hold: Held, settles: &[&Settle], now: Timestamp) -> Result<IdMap<To>> {
        self.fit_versions(hold, settles).await?;
        let (mut went, mut anew) = self.settle_once(hold, settles, now).await?;
        // Each time round, a policy was changed since it was read last.
        while !anew.is_empty() {
            let (also, more) = self.settle_once(hold, &anew.iter().collect::<Vec<_>>(), now).await?;
            went.extend(also);
            anew = more;
        }
        Ok(went)
    }

    /// Gives where tasks went, and what is decided anew.
    async fn settle_once(&self, hold: Held, settles: &[&Settle], now: Timestamp) -> Result<(IdMap<To>, Vec<Settle>)> {
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
        if leaving.is_empty() {
            return Ok((went, Vec::new()));
        }
        let (left, anew) = self.move_out(&leaving, hold, now).await?;
        went.extend(left);
        Ok((went, anew))
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
        retrying!(self.pools(), hold.patience(), scope, doing, |c, tried| {
            let mut gone = delete_once(c, settles, hold, &keys, now).await?;
            // Gone already: by our earlier try, whose answer was lost. There is nothing more to do in any case.
            let ids: Vec<TaskId> = unsure(settles, tried).iter().map(|s| s.task.id).collect();
            let there = super::task::existing_ids(c, hold.table, &ids).await?;
            gone.extend(ids.into_iter().filter(|id| !there.contains(id)));
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
        let back = retrying!(self.pools(), hold.patience(), scope, doing, |c, tried| {
            let mut back = put_back_once(c, settles, &after, hold, now).await?;
            let telling: Vec<_> = telling.iter().copied().filter(|(task, _)| back.contains(&task.id)).collect();
            notice::write(c, hold.table, &telling, now).await?;
            let unsure = unsure(settles, tried);
            if back.len() < settles.len() && !unsure.is_empty() {
                back.extend(put_back_already(c, &unsure, hold).await?);
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

    /// Tasks that leave for the dead letters or the archive, with their follow-ups. Those stay whose limits are others by now; gives what
    /// is to become of them instead.
    async fn move_out(&self, settles: &[&Settle], hold: Held, now: Timestamp) -> Result<(IdMap<To>, Vec<Settle>)> {
        let doing = describe("moving out", settles);
        let (follow_ups, tables) = self.follow_up_tasks(settles, now).await?;
        retrying!(self.pools(), hold.patience(), Scope::Transaction, &doing, |c, tried| {
            let ours = survivors(c, settles, hold, true).await?;
            let ours: Vec<&Settle> = settles.iter().copied().filter(|s| ours.contains_key(&s.task.id)).collect();
            let edited = other_policies(c, hold.table, &ours).await?;
            let (staying, leaving): (Vec<&Settle>, Vec<&Settle>) =
                ours.into_iter().partition(|s| edited.contains_key(&s.task.id));
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
            went.extend(moved_already(c, hold.table, &tables, &unsure(settles, tried)).await?);
            let anew = staying.iter().filter_map(|s| s.under(edited.get(&s.task.id)?.clone(), now));
            Ok((went, anew.collect()))
        })
        .inspect(|(went, _)| log_undecodable(hold.table, settles, went))
    }

    /// SQLite stores any number as a version. One that does not fit is made the greatest one, by which the task is then ended.
    async fn fit_versions(&self, hold: Held, settles: &[&Settle]) -> Result<()> {
        let fits = |s: &&Settle| s.task.undecodable.is_none() || s.task.version != i32::MAX;
        if self.dialect() != Dialect::Sqlite || settles.iter().all(fits) {
            return Ok(());
        }
        for s in settles.iter().filter(|s| !fits(s)) {
            let sql = format!(
                "UPDATE {} AS t SET version = {} WHERE t.id = ? AND t.version NOT BETWEEN {} AND {} AND {}",
                hold.table,
                i32::MAX,
                i32::MIN,
                i32::MAX,
                hold.condition()
            );
            retrying!(self.pools(), Use::Write, Scope::Statement, "fitting a version", |c, _| {
                c.execute(hold.bind_to(query(sql.clone()).bind(s.task.id))).await
            })?;
        }
        Ok(())
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
    /// A callback tells of params, or of a result, that may be as large as params may be. One that is larger still, or that cannot be written as its
    /// method wants it, is made without them: a task's end must not fail because of how it is told.
    fn follow_up(&self, new: &NewTask, of: TaskId, now: Timestamp) -> Result<Task> {
        let maker = self.maker();
        let maker = Maker { max_params: maker.max_params + ENVELOPE, ..maker };
        let called = match (&new.policy, self.1.as_ref().and_then(Weak::upgrade)) {
            (None, Some(methods)) => methods.called(new.clone()),
            _ => new.clone(), // redrive's own, or nobody here knows it
        };
        called.into_task(&maker, now).or_else(|e| {
            tracing::error!(task = %of, method = %new.method, error = %e, "a callback is told without the result or the params");
            without_large(new.clone()).into_task(&maker, now)
        })
    }
}

/// Running tasks of these lanes that are wanted.
pub(super) async fn read_running(
    c: &mut Connection<'_>,
    table: Table,
    lanes: &[LaneShards],
    wanted: &InLane,
    until: Timestamp,
    limit: u32,
) -> sqlx::Result<Vec<Task>> {
    let ids = read_lanes(c, table, lanes, "t.id", wanted, until, limit, Row::int).await?;
    read_those_running(c, table, ids).await
}

/// Those of these tasks that are running.
async fn read_those_running(c: &mut Connection<'_>, table: Table, ids: Vec<i64>) -> sqlx::Result<Vec<Task>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let s = Listed::new(c.dialect(), &["id"], ids.into_iter().map(|id| vec![id.into()]).collect());
    let table = joined_on(c.dialect(), table, "t.id = s.id");
    let sql = format!("SELECT {} FROM {} {table} WHERE t.status = 1", column_list("t."), s.source);
    c.rows(s.bind_to(query(sql))).await?.iter().map(read_task).collect()
}

/// Those that may have been written before.
fn unsure<'s>(settles: &[&'s Settle], tried: u32) -> Vec<&'s Settle> {
    settles.iter().copied().filter(|s| tried > 0 || s.again).collect()
}

/// Says which task it was that could not be settled with the others.
fn log_refused(s: &Settle, e: &Error) {
    let task = s.task.id;
    if e.fault() == Some(Fault::Busy) {
        tracing::info!(%task, "somebody holds a task; trying again later");
    } else {
        tracing::error!(%task, error = %e, "the database refuses what is to become of a task; trying again later");
    }
}

/// Says which rows could not be decoded and are dead letters now.
fn log_undecodable(table: Table, settles: &[&Settle], went: &IdMap<To>) {
    for s in settles.iter().filter(|s| went.contains_key(&s.task.id)) {
        if let Some(why) = &s.task.undecodable {
            tracing::error!(task = %s.task.id, %table, "{why}; the task is a dead letter now: find out who wrote that, then redrive or discard it");
        }
    }
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
    fn of_a_result_that_is_too_large_only_its_size_is_kept() {
        let policy = Policy { keep: true, ..Policy::default() };
        let task = crate::testing::task(NewTask::new("pay", &7).unwrap().policy(policy));
        let kept = |bytes: usize| {
            let result = Some(format!("\"{}\"", "x".repeat(bytes - 2)));
            let mut settle = Settle::with_result(task.clone(), task.unchanged(To::Done), result);
            settle.limit_result(100);
            settle.keep.unwrap().result.unwrap()
        };
        assert_eq!(kept(100).len(), 100);
        assert_eq!(kept(101), r#"{"not_kept":"the result has 101 bytes; at most 100 are kept"}"#);
    }

    #[test]
    fn a_statement_is_not_larger_than_servers_take() {
        let new = NewTask::new("pay", &"x".repeat(1 << 20)).unwrap();
        let ids = crate::id::IdMaker::new(0, Arc::default());
        let maker = Maker { ids: &ids, max_params: 2 << 20, keyring: None };
        let task = Arc::new(new.into_task(&maker, Timestamp::EPOCH).unwrap());
        let dead = Settle::new(task.clone(), crate::settle::give_up(&task, crate::settle::DeadReason::Expired));
        let done = Settle::new(task.clone(), task.unchanged(To::Done));
        let parts = |settles: &[&Settle]| parts(settles).map(<[_]>::len).collect::<Vec<_>>();
        assert_eq!(parts(&[&dead; 8]), [3, 3, 2]);
        assert_eq!(parts(&[&done; 8]), [8], "what just goes is not sent");
        assert!(parts(&[]).is_empty());
    }
}
