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
use crate::task::{KeyHash, NewTask, OnDuplicate, Task};

use super::Store;
use super::db::{Connection, Dialect, Value, database_error, fault, query};
use super::pool::{Scope, Use, retrying};
use super::row::{insert_rows, unnest, write_task, written_columns};
use super::schema::TASK_TABLE;

/// The answer to an enqueue: durable, under this id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Enqueued {
    /// The task's id.
    pub id: TaskId,
    /// Whether a task with the same key lived already: then this is its id, and nothing was written.
    pub existed: bool,
}

/// Tasks ready to be written: every key once, in the order of their hashes.
pub(super) struct Batch {
    /// What is to be written.
    tasks: Vec<Task>,
    /// For each task asked for: which of `tasks` it is, whether it is another's duplicate, and what then.
    asked: Vec<(usize, bool, OnDuplicate)>,
    /// The policies of duplicates that want to replace the existing one.
    replacing: Vec<(usize, Task)>,
}

impl Batch {
    fn new(store: &Store, new: Vec<NewTask>, now: Timestamp) -> Result<Self> {
        let many = new.len() > 1;
        let mut batch =
            Self { tasks: Vec::with_capacity(new.len()), asked: Vec::with_capacity(new.len()), replacing: Vec::new() };
        let mut seen: HashMap<KeyHash, usize> = HashMap::new();
        for (i, new) in new.into_iter().enumerate() {
            let what = new.on_duplicate;
            let task = new.into_task(store.ids(), now, store.options().max_params).map_err(|e| match e {
                Error::Invalid(problems) if many => {
                    let mut named = crate::Problems::default();
                    named.nest(&format!("tasks[{i}]"), problems);
                    Error::Invalid(named)
                }
                e => e,
            })?;
            let first = task.key_hash().map(|hash| *seen.entry(hash).or_insert(batch.tasks.len()));
            match first {
                Some(first) if first < batch.tasks.len() => {
                    batch.asked.push((first, true, what));
                    batch.replacing.push((first, task));
                }
                _ => {
                    batch.asked.push((batch.tasks.len(), false, what));
                    batch.tasks.push(task);
                }
            }
        }
        Ok(batch)
    }

    /// Positions in the order in which rows are written: by key hash, so that batches never deadlock.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.tasks.len()).collect();
        order.sort_by_cached_key(|i| self.tasks.get(*i).map(|t| (t.key_hash(), t.id)));
        order
    }

    fn rename(&mut self, part: &[usize], ids: &IdMaker, now: Timestamp) {
        for i in part {
            if let Some(task) = self.tasks.get_mut(*i) {
                task.id = ids.next(task.shard(), now);
            }
        }
    }

    /// The answers, in the order asked for, and the policies to replace.
    fn answers(self, written: &HashMap<usize, Enqueued>) -> (Vec<Enqueued>, Vec<(TaskId, Task)>) {
        let mut replace = Vec::new();
        let mut duplicates = self.replacing.into_iter();
        let answers = self.asked.iter().filter_map(|(i, duplicate, what)| {
            let answer = written.get(i)?;
            let own = if *duplicate { duplicates.next().map(|(_, task)| task) } else { self.tasks.get(*i).cloned() };
            let existed = answer.existed || *duplicate;
            if let (true, OnDuplicate::ReplacePolicy, Some(own)) = (existed, what, own) {
                replace.push((answer.id, own));
            }
            Some(Enqueued { id: answer.id, existed })
        });
        (answers.collect(), replace)
    }
}

impl Store {
    /// Writes tasks down. When it returns they are durable; the answers are in the order of the tasks. If one of them is
    /// not valid, none is written and the error says which.
    pub async fn insert(&self, new: Vec<NewTask>, now: Timestamp) -> Result<Vec<Enqueued>> {
        let mut batch = Batch::new(self, new, now)?;
        let mut written = HashMap::new();
        let (mut open, mut waiting) = (vec![batch.order()], Vec::new());
        while let Some(part) = open.pop() {
            match self.insert_with(Use::Insert, &batch, &part, now).await {
                Ok(answers) => written.extend(answers),
                // Another maker with our slot was quicker with one of the ids: give them new ones.
                Err(e) if e.fault() == Some(Fault::Unique) => {
                    batch.rename(&part, self.ids(), now);
                    open.push(part);
                }
                Err(e) if e.fault() == Some(Fault::Busy) && part.len() > 1 => {
                    let (one, other) = part.split_at(part.len() / 2);
                    open.extend([other.to_vec(), one.to_vec()]);
                }
                // A single row whose key someone else holds: the rest goes first.
                Err(e) if e.fault() == Some(Fault::Busy) => waiting.push(part),
                Err(e) => return Err(e),
            }
        }
        for part in waiting {
            written.extend(self.insert_with(Use::Write, &batch, &part, now).await?);
        }
        let (answers, replace) = batch.answers(&written);
        for (id, task) in replace {
            self.edit_policy(id, &task.policy, task.created_by.as_deref(), now).await.or_else(ignore_not_found)?;
        }
        Ok(answers)
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
        let batch = Batch::new(self, new, now)?;
        let doing = || format!("enqueueing {} in the caller's transaction", describe(&batch.tasks));
        let mut rest = batch.order();
        let mut written = HashMap::new();
        while !rest.is_empty() {
            let answers =
                insert_once(&mut c, &batch.tasks, &rest, now).await.map_err(|e| database_error(doing(), e))?;
            rest.retain(|i| !answers.contains_key(i));
            written.extend(answers);
        }
        let (answers, replace) = batch.answers(&written);
        for (id, task) in replace {
            let edit = super::task::policy_edit(id, &task.policy, task.created_by.as_deref(), now);
            c.execute(edit).await.map_err(|e| database_error(format!("replacing the policy of task {id}"), e))?;
        }
        Ok(answers)
    }

    /// A part of a batch, repeated until every row is written or found to exist.
    async fn insert_with(
        &self,
        wanted: Use,
        batch: &Batch,
        part: &[usize],
        now: Timestamp,
    ) -> Result<HashMap<usize, Enqueued>> {
        let tasks: Vec<&Task> = part.iter().filter_map(|i| batch.tasks.get(*i)).collect();
        let doing = format!("enqueueing {}", describe(tasks.iter().copied()));
        // PostgreSQL writes keys and rows in one statement, and a row without a key is one everywhere.
        let alone = self.dialect() == Dialect::Postgres || matches!(tasks[..], [Task { key: None, .. }]);
        let scope = if alone { Scope::Statement } else { Scope::Transaction };
        let mut written = HashMap::new();
        loop {
            let rest: Vec<usize> = part.iter().copied().filter(|i| !written.contains_key(i)).collect();
            if rest.is_empty() {
                return Ok(written);
            }
            let answers = retrying!(self.pools(), wanted, scope, doing, |c, tried| insert_try(
                c,
                &batch.tasks,
                &rest,
                tried,
                now
            )
            .await);
            written.extend(answers?);
        }
    }
}

fn ignore_not_found(e: Error) -> Result<()> {
    if matches!(e, Error::NotFound { .. }) { Ok(()) } else { Err(e) }
}

fn describe<'t>(tasks: impl IntoIterator<Item = &'t Task>) -> String {
    let mut tasks = tasks.into_iter();
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
    tasks: &[Task],
    part: &[usize],
    tried: u32,
    now: Timestamp,
) -> sqlx::Result<HashMap<usize, Enqueued>> {
    if tried == 0 {
        return insert_once(c, tasks, part, now).await;
    }
    let mut answers = find_written(c, tasks, part).await?;
    let rest: Vec<usize> = part.iter().copied().filter(|i| !answers.contains_key(i)).collect();
    match insert_once(c, tasks, &rest, now).await {
        Ok(more) => answers.extend(more),
        // The earlier try was still on its way and has been committed just now: look again.
        Err(e) if fault(&e) == Fault::Unique => {
            return Err(sqlx::Error::Protocol("an earlier try was committed meanwhile".into()));
        }
        Err(e) => return Err(e),
    }
    Ok(answers)
}

/// Writes what can be written. A task that is in no answer lost its key to a task that has ended meanwhile: try again.
pub(super) async fn insert_once(
    c: &mut Connection<'_>,
    tasks: &[Task],
    part: &[usize],
    now: Timestamp,
) -> sqlx::Result<HashMap<usize, Enqueued>> {
    let chosen: Vec<&Task> = part.iter().filter_map(|i| tasks.get(*i)).collect();
    let keys: Vec<(KeyHash, TaskId)> = chosen.iter().filter_map(|t| Some((t.key_hash()?, t.id))).collect();
    let lost = match c.dialect() {
        _ if keys.is_empty() => {
            insert_tasks(c, &chosen).await?;
            HashSet::new()
        }
        Dialect::Postgres => insert_postgres(c, &chosen, &keys, now).await?,
        Dialect::Sqlite | Dialect::MySql => {
            let lost = lost_keys(c, &keys, now).await?;
            let winners: Vec<&Task> = chosen.iter().copied().filter(|t| !lost.contains(&t.id)).collect();
            insert_tasks(c, &winners).await?;
            lost
        }
    };
    let losers: Vec<KeyHash> = keys.iter().filter(|(_, id)| lost.contains(id)).map(|(hash, _)| *hash).collect();
    let owners = key_owners(c, &losers).await?;
    let answer = |i: &usize| {
        let task = tasks.get(*i)?;
        if !lost.contains(&task.id) {
            return Some((*i, Enqueued { id: task.id, existed: false }));
        }
        let owner = *owners.get(&task.key_hash()?)?;
        Some((*i, Enqueued { id: owner, existed: owner != task.id }))
    };
    Ok(part.iter().filter_map(answer).collect())
}

async fn insert_tasks(c: &mut Connection<'_>, tasks: &[&Task]) -> sqlx::Result<()> {
    if tasks.is_empty() {
        return Ok(());
    }
    let rows = tasks.iter().map(|t| write_task(t)).collect();
    insert_rows(c, TASK_TABLE, &written_columns(), rows, "", &[]).await.map(|_| ())
}

/// Keys and rows in one statement. Gives the ids of the tasks whose keys were taken.
async fn insert_postgres(
    c: &mut Connection<'_>,
    tasks: &[&Task],
    keys: &[(KeyHash, TaskId)],
    now: Timestamp,
) -> sqlx::Result<HashSet<TaskId>> {
    let mut rows = Vec::with_capacity(tasks.len());
    for task in tasks {
        let mut row = write_task(task);
        row.push(Value::from(i64::from(task.key.is_some())));
        rows.push(row);
    }
    let columns = written_columns().join(", ");
    let (key_source, key_values) = unnest(keys.iter().map(|(hash, id)| vec![(*hash).into(), (*id).into()]).collect());
    let (source, values) = unnest(rows);
    let sql = format!(
        "WITH taken AS (
           INSERT INTO redrive_key (key_hash, task_id) SELECT * FROM {key_source}
           ON CONFLICT (key_hash) DO UPDATE SET task_id = excluded.task_id, expires_at = NULL WHERE redrive_key.expires_at <= ?
           RETURNING task_id)
         INSERT INTO {TASK_TABLE} ({columns})
         SELECT {columns} FROM {source} AS n({columns}, keyed) WHERE keyed = 0 OR id IN (SELECT task_id FROM taken)
         RETURNING id"
    );
    let rows = c.rows(query(sql).bind_all(key_values).bind(now).bind_all(values)).await?;
    let mut lost: HashSet<TaskId> = keys.iter().map(|(_, id)| *id).collect();
    for row in rows {
        lost.remove(&TaskId::from_i64(row.int()?));
    }
    Ok(lost)
}

/// Takes the keys that are free, or whose time is up. Gives the ids of the tasks whose keys were not.
async fn lost_keys(
    c: &mut Connection<'_>,
    keys: &[(KeyHash, TaskId)],
    now: Timestamp,
) -> sqlx::Result<HashSet<TaskId>> {
    let rows = keys.iter().map(|(hash, id)| vec![(*hash).into(), (*id).into()]).collect();
    let columns = ["key_hash", "task_id"];
    let mut lost: HashSet<TaskId> = keys.iter().map(|(_, id)| *id).collect();
    if c.dialect() == Dialect::Sqlite {
        let conflict = "ON CONFLICT (key_hash) DO UPDATE SET task_id = excluded.task_id, expires_at = NULL \
                        WHERE redrive_key.expires_at <= ? RETURNING task_id";
        for row in insert_rows(c, "redrive_key", &columns, rows, conflict, &[now.into()]).await? {
            lost.remove(&TaskId::from_i64(row.int()?));
        }
        return Ok(lost);
    }
    // MySQL returns nothing: the rows, which are locked now, say who has the keys.
    let conflict = "ON DUPLICATE KEY UPDATE task_id = IF(expires_at <= ?, VALUES(task_id), task_id), \
                    expires_at = IF(expires_at <= ?, NULL, expires_at)";
    insert_rows(c, "redrive_key", &columns, rows, conflict, &[now.into(), now.into()]).await?;
    let hashes: Vec<KeyHash> = keys.iter().map(|(hash, _)| *hash).collect();
    let owners = key_owners(c, &hashes).await?;
    keys.iter().filter(|(hash, id)| owners.get(hash) == Some(id)).for_each(|(_, id)| _ = lost.remove(id));
    Ok(lost)
}

/// Who has these keys now.
async fn key_owners(c: &mut Connection<'_>, hashes: &[KeyHash]) -> sqlx::Result<HashMap<KeyHash, TaskId>> {
    let mut owners = HashMap::new();
    for hashes in hashes.chunks(512) {
        let rows = match c.dialect() {
            Dialect::Postgres => {
                let all = Value::Hashes(hashes.iter().map(|h| Some(h.0)).collect());
                c.rows(query("SELECT key_hash, task_id FROM redrive_key WHERE key_hash = ANY(?)").bind(all)).await?
            }
            dialect => {
                // Filled up to a power of two with the last one, so that few different statements are prepared.
                let n = hashes.len().next_power_of_two();
                let marks = vec!["?"; n].join(", ");
                // A caller's transaction may read from an old snapshot; a locking read sees what is committed.
                let lock = if dialect == Dialect::MySql { "LOCK IN SHARE MODE" } else { "" };
                let sql = format!("SELECT key_hash, task_id FROM redrive_key WHERE key_hash IN ({marks}) {lock}");
                let fill = hashes.last().into_iter().cycle().take(n - hashes.len());
                c.rows(query(sql).bind_all(hashes.iter().chain(fill).copied())).await?
            }
        };
        for row in rows {
            let mut columns = row.columns();
            owners.insert(KeyHash(columns.hash()?), TaskId::from_i64(columns.int()?));
        }
    }
    Ok(owners)
}

/// Which of these an earlier try has written after all.
async fn find_written(
    c: &mut Connection<'_>,
    tasks: &[Task],
    part: &[usize],
) -> sqlx::Result<HashMap<usize, Enqueued>> {
    let ids: Vec<TaskId> = part.iter().filter_map(|i| tasks.get(*i)).map(|t| t.id).collect();
    let found = super::task::existing_ids(c, TASK_TABLE, &ids).await?;
    let answer = |i: &usize| {
        let id = tasks.get(*i)?.id;
        found.contains(&id).then_some((*i, Enqueued { id, existed: false }))
    };
    Ok(part.iter().filter_map(answer).collect())
}

/// Tasks that follow from the end of another, inside its transaction. One that exists already is left as it is.
pub(super) async fn insert_follow_ups(c: &mut Connection<'_>, tasks: &[Task], now: Timestamp) -> sqlx::Result<()> {
    let mut rest: Vec<usize> = (0..tasks.len()).collect();
    while !rest.is_empty() {
        let answers = insert_once(c, tasks, &rest, now).await?;
        rest.retain(|i| !answers.contains_key(i));
    }
    Ok(())
}
