//! Writing tasks down, each key once.
//!
//! *State.* A task that has a key holds a row in `redrive_key` from its insert until it ends, or longer (`dedup_for`).
//!
//! *Invariants.* A task's row and its key's row are written in one transaction. Of any number of concurrent inserts of one
//! key exactly one becomes a row; the others are given its id. Nothing is acknowledged before it is committed.
//!
//! *Failure.* Equal keys within a batch are merged in memory, and keys are taken in the order of their hashes, so that two
//! batches cannot wait for each other. Should one of the keys be held by someone else's open transaction, the batch gives
//! up after a short time and is halved, until only the guilty rows wait. Ids are made before the first try and used
//! again: if a connection is lost in COMMIT, the rows are looked for before anything is repeated.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use crate::clock::Timestamp;
use crate::error::{Error, Fault, Result};
use crate::id::{IdMaker, TaskId};
use crate::new_task::{NewTask, OnDuplicate};
use crate::task::{KeyHash, Task};

use super::Store;
use super::db::{Connection, Dialect, database_error, fault, query};
use super::key::{key_owners, lost_keys};
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::row::{insert_rows, needed_columns, unnest, unnest_tasks};
use super::schema::TASK_TABLE;

/// The answer to an enqueue: durable, under this id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Enqueued {
    /// The task's id.
    pub id: TaskId,
    /// Whether a task with the same key lived already: then this is its id, and nothing was written.
    pub existed: bool,
}

/// A task that is valid and has its id: ready to be written.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(crate) task: Task,
    pub(crate) on_duplicate: OnDuplicate,
}

/// Whose tasks a batch holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callers {
    /// One caller's: it waits for all of them, and one that cannot be written fails them all.
    One,
    /// Many callers': a task that would have to wait for a lock, or that cannot be written, is answered with its error and
    /// does not hold up the others.
    Many,
}

/// Tasks to be written together.
struct Batch {
    asked: Vec<Prepared>,
    /// For each: the earlier one in the batch with the same key, of which it is the duplicate.
    twin: Vec<Option<usize>>,
    answers: Vec<Option<Result<Enqueued>>>,
}

impl Batch {
    fn new(asked: Vec<Prepared>) -> Self {
        let mut seen: HashMap<KeyHash, usize> = HashMap::new();
        let twin_of = |(i, p): (usize, &Prepared)| {
            let first = *seen.entry(p.task.key_hash()?).or_insert(i);
            (first != i).then_some(first)
        };
        let twin = asked.iter().enumerate().map(twin_of).collect();
        let answers = asked.iter().map(|_| None).collect();
        Self { asked, twin, answers }
    }

    fn task(&self, i: usize) -> Option<&Task> {
        self.asked.get(i).map(|p| &p.task)
    }

    /// What is to be written, in the order of the keys' hashes: batches that take them in one order cannot deadlock.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.asked.len()).filter(|i| self.twin.get(*i) == Some(&None)).collect();
        order.sort_by_cached_key(|i| self.task(*i).map(|t| (t.key_hash(), t.id)));
        order
    }

    fn rename(&mut self, part: &[usize], ids: &IdMaker, now: Timestamp) {
        for i in part {
            if let Some(p) = self.asked.get_mut(*i) {
                p.task.id = ids.next(p.task.shard(), now);
            }
        }
    }

    fn answer(&mut self, i: usize, answer: Result<Enqueued>) {
        if let Some(slot) = self.answers.get_mut(i) {
            *slot = Some(answer);
        }
    }

    fn fail(&mut self, part: &[usize], e: &Error) {
        part.iter().for_each(|i| self.answer(*i, Err(e.echo())));
    }

    /// Duplicates are told what their twins were told, and that it existed.
    fn answer_twins(&mut self) {
        for i in 0..self.asked.len() {
            let twin = self.twin.get(i).copied().flatten();
            let answer = match twin.and_then(|t| self.answers.get(t)) {
                Some(Some(Ok(answer))) => Ok(Enqueued { existed: true, ..*answer }),
                Some(Some(Err(e))) => Err(e.echo()),
                _ => continue,
            };
            self.answer(i, answer);
        }
    }

    /// The policies that are to replace those of existing tasks, in the order asked for: which one asked, for which task.
    fn replacements(&self) -> Vec<(usize, TaskId, Task)> {
        let replaces = |(i, p): (usize, &Prepared)| match self.answers.get(i) {
            Some(Some(Ok(answer))) if answer.existed && p.on_duplicate == OnDuplicate::ReplacePolicy => {
                Some((i, answer.id, p.task.clone()))
            }
            _ => None,
        };
        self.asked.iter().enumerate().filter_map(replaces).collect()
    }
}

impl Store {
    /// Looks whether a task is valid and gives it an id; nothing is written.
    pub fn prepare(&self, new: NewTask, now: Timestamp) -> Result<Prepared> {
        let on_duplicate = new.on_duplicate;
        Ok(Prepared { task: new.into_task(self.ids(), now, self.options().max_params)?, on_duplicate })
    }

    fn prepare_all(&self, new: Vec<NewTask>, now: Timestamp) -> Result<Vec<Prepared>> {
        let many = new.len() > 1;
        let named = |i: usize, e: Error| match e {
            Error::Invalid(problems) if many => {
                let mut named = crate::Problems::default();
                named.nest(&format!("tasks[{i}]"), problems);
                Error::Invalid(named)
            }
            e => e,
        };
        new.into_iter().enumerate().map(|(i, new)| self.prepare(new, now).map_err(|e| named(i, e))).collect()
    }

    /// Writes tasks down. When it returns they are durable; the answers are in the order of the tasks. If one of them is
    /// not valid, none is written and the error says which.
    pub async fn insert(&self, new: Vec<NewTask>, now: Timestamp) -> Result<Vec<Enqueued>> {
        let prepared = self.prepare_all(new, now)?;
        self.insert_prepared(prepared, Callers::One, now).await.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Writes prepared tasks down; gives each back with its answer, in their order.
    pub(crate) async fn insert_prepared(
        &self,
        asked: Vec<Prepared>,
        callers: Callers,
        now: Timestamp,
    ) -> Vec<(Prepared, Result<Enqueued>)> {
        let mut batch = Batch::new(asked);
        let (mut open, mut waiting) = (vec![batch.order()], Vec::new());
        while let Some(part) = open.pop() {
            let e = match self.insert_part(Use::Insert, &mut batch, &part, now).await {
                Ok(()) => continue,
                Err(e) => e,
            };
            let splits = match e.fault() {
                Some(Fault::Busy) => true,
                Some(Fault::Other) => callers == Callers::Many,
                _ => false,
            };
            match e.fault() {
                // Another maker with our slot was quicker with one of the ids: give them new ones.
                Some(Fault::Unique) => {
                    batch.rename(&part, self.ids(), now);
                    open.push(part);
                }
                _ if splits && part.len() > 1 => {
                    let (one, other) = part.split_at(part.len() / 2);
                    open.extend([other.to_vec(), one.to_vec()]);
                }
                // A single row whose key someone else holds: the rest goes first.
                Some(Fault::Busy) if callers == Callers::One => waiting.push(part),
                _ => batch.fail(&part, &e),
            }
        }
        for part in waiting {
            if let Err(e) = self.insert_part(Use::Write, &mut batch, &part, now).await {
                batch.fail(&part, &e);
            }
        }
        batch.answer_twins();
        for (i, id, task) in batch.replacements() {
            let edited = self.edit_policy(id, &task.policy, task.created_by.as_deref(), now).await;
            if let Err(e) = edited.or_else(ignore_not_found) {
                batch.answer(i, Err(e));
            }
        }
        let answered = batch.asked.into_iter().zip(batch.answers);
        answered.map(|(p, answer)| (p, answer.unwrap_or_else(unanswered))).collect()
    }

    /// Writes tasks down in the caller's own transaction, on any of the three databases: they become visible, and due, when
    /// it commits. Nothing is repeated and no savepoint is opened: an error may have undone the whole transaction, which is
    /// then the caller's to begin again.
    pub async fn insert_in(
        &self,
        connection: impl Into<Connection<'_>>,
        new: Vec<NewTask>,
        now: Timestamp,
    ) -> Result<Vec<Enqueued>> {
        let mut c = connection.into();
        let mut batch = Batch::new(self.prepare_all(new, now)?);
        let mut rest = batch.order();
        let doing = format!("enqueueing {} in the caller's transaction", describe(&batch, &rest));
        while !rest.is_empty() {
            let tasks: Vec<&Task> = rest.iter().filter_map(|i| batch.task(*i)).collect();
            let answers = insert_once(&mut c, &tasks, now).await.map_err(|e| database_error(&*doing, e))?;
            take_answers(&mut batch, &mut rest, answers);
        }
        batch.answer_twins();
        for (_, id, task) in batch.replacements() {
            let edit = super::task::policy_edit(id, &task.policy, task.created_by.as_deref(), now);
            c.execute(edit).await.map_err(|e| database_error(format!("replacing the policy of task {id}"), e))?;
        }
        batch.answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
    }

    /// A part of a batch, repeated until every row is written or found to exist.
    async fn insert_part(&self, wanted: Use, batch: &mut Batch, part: &[usize], now: Timestamp) -> Result<()> {
        let doing = format!("enqueueing {}", describe(batch, part));
        let mut rest = part.to_vec();
        while !rest.is_empty() {
            let tasks: Vec<&Task> = rest.iter().filter_map(|i| batch.task(*i)).collect();
            // PostgreSQL writes keys and rows in one statement, and a row without a key is one everywhere.
            let alone = self.dialect() == Dialect::Postgres || matches!(tasks[..], [Task { key: None, .. }]);
            let scope = if alone { Scope::Statement } else { Scope::Transaction };
            let answers =
                retrying!(self.pools(), wanted, scope, doing, |c, tried| insert_try(c, &tasks, tried, now).await)?;
            take_answers(batch, &mut rest, answers);
        }
        Ok(())
    }
}

/// Notes the answers; what has none is still to be written.
fn take_answers(batch: &mut Batch, rest: &mut Vec<usize>, answers: Vec<Option<Enqueued>>) {
    let mut left = Vec::new();
    for (i, answer) in rest.drain(..).zip(answers) {
        match answer {
            Some(answer) => batch.answer(i, Ok(answer)),
            None => left.push(i),
        }
    }
    *rest = left;
}

fn unanswered() -> Result<Enqueued> {
    Err(Error::NotFound { what: "answer to", id: "an enqueue".into() }) // every task is answered or failed above
}

fn ignore_not_found(e: Error) -> Result<()> {
    if matches!(e, Error::NotFound { .. }) { Ok(()) } else { Err(e) }
}

fn describe(batch: &Batch, part: &[usize]) -> String {
    let mut tasks = part.iter().filter_map(|i| batch.task(*i));
    match (tasks.next(), tasks.count()) {
        (Some(task), 0) => format!("task {} of {}", task.id, task.method),
        (Some(task), more) => format!("tasks {} and {more} more", task.id),
        (None, _) => "no tasks".into(),
    }
}

/// One try. After the first, an earlier one may have been committed: what it wrote is looked for before anything is
/// written again.
async fn insert_try(
    c: &mut Connection<'_>,
    tasks: &[&Task],
    tried: u32,
    now: Timestamp,
) -> sqlx::Result<Vec<Option<Enqueued>>> {
    if tried == 0 {
        return insert_once(c, tasks, now).await;
    }
    let ids: Vec<TaskId> = tasks.iter().map(|t| t.id).collect();
    let mut found = HashSet::new();
    // Others may have ended them already. Looked for in the order in which tasks move, so that none slips through.
    for table in [TASK_TABLE, "retry_dead", "retry_archive"] {
        found.extend(super::task::existing_ids(c, table, &ids).await?);
    }
    let rest: Vec<&Task> = tasks.iter().copied().filter(|t| !found.contains(&t.id)).collect();
    let more = match insert_once(c, &rest, now).await {
        // The earlier try was still on its way and has been committed just now: look again.
        Err(e) if fault(&e) == Fault::Unique => {
            return Err(sqlx::Error::Protocol("an earlier try was committed meanwhile".into()));
        }
        result => result?,
    };
    let mut more = more.into_iter();
    let written = |id| Some(Enqueued { id, existed: false });
    Ok(ids.into_iter().map(|id| if found.contains(&id) { written(id) } else { more.next().flatten() }).collect())
}

/// Writes what can be written; an answer for each task. One that has none lost its key to a task that has ended
/// meanwhile: it is to be tried again.
pub(super) async fn insert_once(
    c: &mut Connection<'_>,
    tasks: &[&Task],
    now: Timestamp,
) -> sqlx::Result<Vec<Option<Enqueued>>> {
    let keys: Vec<(KeyHash, TaskId)> = tasks.iter().filter_map(|t| Some((t.key_hash()?, t.id))).collect();
    let lost = match c.dialect() {
        _ if keys.is_empty() => {
            insert_tasks(c, tasks).await?;
            HashSet::new()
        }
        Dialect::Postgres => insert_postgres(c, tasks, &keys, now).await?,
        Dialect::Sqlite | Dialect::MySql => {
            let lost = lost_keys(c, &keys, now).await?;
            let winners: Vec<&Task> = tasks.iter().copied().filter(|t| !lost.contains(&t.id)).collect();
            insert_tasks(c, &winners).await?;
            lost
        }
    };
    let losers: Vec<KeyHash> = keys.iter().filter(|(_, id)| lost.contains(id)).map(|(hash, _)| *hash).collect();
    let owners = key_owners(c, &losers).await?;
    let answer = |task: &&Task| {
        if !lost.contains(&task.id) {
            return Some(Enqueued { id: task.id, existed: false });
        }
        let owner = *owners.get(&task.key_hash()?)?;
        Some(Enqueued { id: owner, existed: owner != task.id })
    };
    Ok(tasks.iter().map(answer).collect())
}

async fn insert_tasks(c: &mut Connection<'_>, tasks: &[&Task]) -> sqlx::Result<()> {
    if tasks.is_empty() {
        return Ok(());
    }
    let columns = needed_columns(tasks);
    let names: Vec<&str> = columns.iter().map(|c| c.name).collect();
    if c.dialect() == Dialect::Postgres {
        let (source, values) = unnest_tasks(tasks, &columns);
        let sql = format!("INSERT INTO {TASK_TABLE} ({}) SELECT * FROM {source}", names.join(", "));
        return c.execute(query(sql).bind_all(values)).await.map(|_| ());
    }
    let rows = tasks.iter().map(|t| columns.iter().map(|c| (c.value)(t)).collect()).collect();
    insert_rows(c, TASK_TABLE, &names, rows, "", &[]).await.map(|_| ())
}

/// Keys and rows in one statement. Gives the ids of the tasks whose keys were taken.
async fn insert_postgres(
    c: &mut Connection<'_>,
    tasks: &[&Task],
    keys: &[(KeyHash, TaskId)],
    now: Timestamp,
) -> sqlx::Result<HashSet<TaskId>> {
    let columns = needed_columns(tasks);
    let names = columns.iter().map(|c| c.name).collect::<Vec<_>>().join(", ");
    let (key_source, key_values) = unnest(keys.iter().map(|(hash, id)| vec![(*hash).into(), (*id).into()]).collect());
    let (source, values) = unnest_tasks(tasks, &columns);
    // Rows without a key are written in any case. (The OR also keeps the planner from making a join of it, which, with
    // hash joins off, would compare each with each.)
    let sql = format!(
        "WITH taken AS (
           INSERT INTO redrive_key (key_hash, task_id) SELECT * FROM {key_source}
           ON CONFLICT (key_hash) DO UPDATE SET task_id = excluded.task_id, expires_at = NULL WHERE redrive_key.expires_at <= ?
           RETURNING task_id)
         INSERT INTO {TASK_TABLE} ({names})
         SELECT {names} FROM {source} AS n({names}) WHERE task_key IS NULL OR id IN (SELECT task_id FROM taken)
         RETURNING id"
    );
    let rows = c.rows(query(sql).bind_all(key_values).bind(now).bind_all(values)).await?;
    let mut lost: HashSet<TaskId> = keys.iter().map(|(_, id)| *id).collect();
    for row in rows {
        lost.remove(&TaskId::from_i64(row.int()?));
    }
    Ok(lost)
}

/// Tasks that follow from the end of another, inside its transaction. One that exists already is left as it is.
pub(super) async fn insert_follow_ups(c: &mut Connection<'_>, tasks: &[Task], now: Timestamp) -> sqlx::Result<()> {
    let mut rest: Vec<&Task> = tasks.iter().collect();
    while !rest.is_empty() {
        let answers = insert_once(c, &rest, now).await?;
        rest = rest.into_iter().zip(answers).filter(|(_, answer)| answer.is_none()).map(|(task, _)| task).collect();
    }
    Ok(())
}
