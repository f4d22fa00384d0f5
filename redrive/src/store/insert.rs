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

use std::collections::HashMap;

use serde::Serialize;

use crate::bisect::Bisect;
use crate::clock::Timestamp;
use crate::error::{Error, Fault, Result};
use crate::id::{IdMaker, IdSet, TaskId};
use crate::new_task::{NewTask, OnDuplicate};
use crate::task::{KeyHash, Task};

use super::Store;
use super::db::{Connection, Dialect, database_error, fault, query, waits_for_table};
use super::key::{key_owners, lost_keys};
use super::layout::Tables;
use super::node::living;
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::row::{insert_rows, needed_columns, unnest, unnest_tasks};
use super::task::write_policy;
use super::turn::{self, TAKE_TURN, Turn};

/// How often tasks of a batch are given new ids, before it is said that they cannot be written.
const MOST_RENAMES: u32 = 32;

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
    /// In a box, as it is passed on many times.
    pub(crate) task: Box<Task>,
    pub(crate) on_duplicate: OnDuplicate,
    /// Whether a caller runs it, instead of the engine.
    pub(crate) held: bool,
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
        self.asked.get(i).map(|p| &*p.task)
    }

    /// What is to be written, in the order of the keys' hashes: batches that take them in one order cannot deadlock.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.asked.len()).filter(|i| self.twin.get(*i) == Some(&None)).collect();
        order.sort_by_cached_key(|i| self.task(*i).map(|t| (t.key_hash(), t.id)));
        order
    }

    fn ids(&self, part: &[usize]) -> Vec<TaskId> {
        part.iter().filter_map(|i| Some(self.task(*i)?.id)).collect()
    }

    fn rename(&mut self, part: &[usize], ids: &IdMaker, now: Timestamp) {
        for i in part {
            if let Some(p) = self.asked.get_mut(*i) {
                p.task.id = ids.next(p.task.shard(), now);
            }
        }
    }

    /// The tasks of a part that still have no answer. An answered task is durable: it is never written again.
    fn unanswered(&self, part: &[usize]) -> Vec<usize> {
        part.iter().copied().filter(|i| matches!(self.answers.get(*i), Some(None))).collect()
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
                Some((i, answer.id, (*p.task).clone()))
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
        let task = Box::new(new.into_task(&self.maker(), now)?);
        Ok(Prepared { task, on_duplicate, held: false })
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
        let (mut open, mut waiting, mut renamed) = (Bisect::of(batch.order()), Vec::new(), 0);
        let mut wanted = Use::Insert;
        while let Some(part) = open.next_part() {
            let written = self.insert_part(wanted, &mut batch, &part, now).await;
            let Err(e) = self.learn_from(written).await else {
                wanted = Use::Insert;
                continue;
            };
            // A part is written in rounds. An error belongs to the last round alone.
            let part = batch.unanswered(&part);
            let splits = match e.fault() {
                Some(Fault::Busy) => true,
                Some(Fault::Other) => callers == Callers::Many,
                _ => false,
            };
            match e.fault() {
                // The whole table is locked: each part would wait for it as long.
                Some(Fault::Busy) if waits_for_table(&e) && wanted == Use::Insert => {
                    wanted = Use::Write;
                    open.again(part);
                }
                Some(Fault::Busy) if waits_for_table(&e) => batch.fail(&part, &e.into_unavailable()),
                // Another maker with our slot was quicker with one of the ids: give them new ones.
                // Or a table of theirs is past its time: they had better be new.
                Some(Fault::Unique | Fault::NoTable) if renamed < MOST_RENAMES => {
                    renamed += 1;
                    batch.rename(&part, self.ids(), now);
                    open.again(part);
                }
                _ if splits && part.len() > 1 => _ = open.split(part),
                // A single row whose key someone else holds: the rest goes first.
                Some(Fault::Busy) if callers == Callers::One => waiting.push(part),
                _ => batch.fail(&part, &e),
            }
        }
        for part in waiting {
            if let Err(e) = self.insert_part(Use::Write, &mut batch, &part, now).await {
                let unwritten = batch.unanswered(&part);
                batch.fail(&unwritten, &e);
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
        let tables = self.make_room_in(&mut c, &batch.ids(&rest), now).await?;
        let doing = format!("enqueueing {} in the caller's transaction", describe(&batch, &rest));
        while !rest.is_empty() {
            let tasks: Vec<&Task> = rest.iter().filter_map(|i| batch.task(*i)).collect();
            let answers =
                insert_once(&mut c, &tables, &tasks, None, now).await.map_err(|e| database_error(&*doing, e))?;
            take_answers(&mut batch, &mut rest, answers);
        }
        batch.answer_twins();
        for (_, id, task) in batch.replacements() {
            if !tables.may_have(id) {
                continue; // a table that is dropped meanwhile is empty
            }
            let by = task.created_by.as_deref();
            let written = write_policy(&mut c, tables.of(id), id, &task.policy, by, now).await;
            written.map_err(|e| database_error(format!("replacing the policy of task {id}"), e))?;
        }
        batch.answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
    }

    /// A part of a batch, repeated until every row is written or found to exist.
    async fn insert_part(&self, wanted: Use, batch: &mut Batch, part: &[usize], now: Timestamp) -> Result<()> {
        let doing = format!("enqueueing {}", describe(batch, part));
        let tables = self.make_room(&batch.ids(part)).await?;
        let mut turn = self.turn(now).await?;
        let mut rest = part.to_vec();
        while !rest.is_empty() {
            let tasks: Vec<&Task> = rest.iter().filter_map(|i| batch.task(*i)).collect();
            // PostgreSQL does all in one statement, and a row without a key is one on SQLite.
            let alone = match self.dialect() {
                Dialect::Postgres => true,
                Dialect::Sqlite => matches!(tasks[..], [Task { key: None, .. }]),
                Dialect::MySql => false,
            };
            let scope = if alone { Scope::Statement } else { Scope::Transaction };
            turn.iter_mut().for_each(|turn| turn.begin(self.ids().next(0, now)));
            let answers = retrying!(self.pools(), wanted, scope, doing, |c, tried| {
                insert_try(c, &tables, &tasks, turn.as_ref(), tried, now).await
            });
            match answers {
                Ok(answers) => take_answers(batch, &mut rest, answers),
                Err(e) => {
                    self.end_turn(turn, Some(&e));
                    return Err(e);
                }
            }
            turn.iter_mut().for_each(Turn::end);
        }
        self.end_turn(turn, None);
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

/// One try. After the first, an earlier one may have been committed: its turn knows.
async fn insert_try(
    c: &mut Connection<'_>,
    tables: &Tables,
    tasks: &[&Task],
    turn: Option<&Turn>,
    tried: u32,
    now: Timestamp,
) -> sqlx::Result<Vec<Option<Enqueued>>> {
    let Some(turn) = turn.filter(|_| tried > 0) else {
        return insert_once(c, tables, tasks, turn, now).await;
    };
    if turn.is_committed(c).await? {
        return written_before(c, tables, tasks).await;
    }
    match insert_once(c, tables, tasks, Some(turn), now).await {
        // The earlier try is still on its way: wait for it, rather than write its rows under another turn.
        Err(e) if matches!(fault(&e), Fault::Busy | Fault::Unique) => Err(turn::taken()),
        result => result,
    }
}

/// What an earlier try has written: all, but what others had the keys of. If nobody has a key any more, its task may have been a duplicate, or
/// others have ended it. What was written as running for a node that lives is there until that node ends it: if it is gone, it was a duplicate,
/// and must not run without a row. Otherwise it is taken for its caller's own: if it was not, its call was made good by the key's owner; and
/// for a node that is dead it does not run here.
async fn written_before(
    c: &mut Connection<'_>,
    tables: &Tables,
    tasks: &[&Task],
) -> sqlx::Result<Vec<Option<Enqueued>>> {
    let hashes: Vec<KeyHash> = tasks.iter().filter_map(|t| t.key_hash()).collect();
    let owners = key_owners(c, &hashes).await?;
    let ours: Vec<TaskId> = tasks.iter().filter(|t| t.locked_by.is_some()).map(|t| t.id).collect();
    let there = super::task::existing_tasks(c, tables, &ours).await?;
    let living = living(c).await?; // after the rows: whoever lives now has not lost one of them to others before
    let is_living = |node| living.iter().any(|(living, _)| *living == node);
    let answer = |task: &&Task| {
        let owner = task.key_hash().map(|hash| owners.get(&hash).copied());
        let existed = match owner {
            None => false, // without a key there are no duplicates
            Some(Some(owner)) => owner != task.id,
            Some(None) => task.locked_by.is_some_and(is_living) && !there.contains(&task.id),
        };
        Some(Enqueued { id: owner.flatten().unwrap_or(task.id), existed })
    };
    Ok(tasks.iter().map(answer).collect())
}

/// Writes what can be written; an answer for each task. One that has none lost its key to a task that has ended
/// meanwhile: it is to be tried again.
pub(super) async fn insert_once(
    c: &mut Connection<'_>,
    tables: &Tables,
    tasks: &[&Task],
    turn: Option<&Turn>,
    now: Timestamp,
) -> sqlx::Result<Vec<Option<Enqueued>>> {
    let keys: Vec<(KeyHash, TaskId)> = tasks.iter().filter_map(|t| Some((t.key_hash()?, t.id))).collect();
    let lost = match c.dialect() {
        Dialect::Postgres => insert_postgres(c, tables, tasks, &keys, turn, now).await?,
        Dialect::Sqlite | Dialect::MySql => {
            if let Some(turn) = turn
                && c.execute(query(TAKE_TURN).bind_all(turn.values())).await? == 0
            {
                return Err(turn::taken());
            }
            let lost = lost_keys(c, &keys, now).await?;
            let winners: Vec<&Task> = tasks.iter().copied().filter(|t| !lost.contains(&t.id)).collect();
            insert_tasks(c, tables, &winners).await?;
            lost
        }
    };
    let losers: Vec<KeyHash> = keys.iter().filter(|(_, id)| lost.contains(id)).map(|(hash, _)| *hash).collect();
    // On PostgreSQL all is committed by now, but where the caller has a transaction: no error may say that nothing was written.
    let is_committed = c.dialect() == Dialect::Postgres && turn.is_some();
    let owners = key_owners(c, &losers).await.map_err(|e| if is_committed { turn::unheard(&e) } else { e })?;
    let answer = |task: &&Task| {
        if !lost.contains(&task.id) {
            return Some(Enqueued { id: task.id, existed: false });
        }
        let owner = *owners.get(&task.key_hash()?)?;
        Some(Enqueued { id: owner, existed: owner != task.id })
    };
    Ok(tasks.iter().map(answer).collect())
}

async fn insert_tasks(c: &mut Connection<'_>, tables: &Tables, tasks: &[&Task]) -> sqlx::Result<()> {
    let columns = needed_columns(tasks);
    let names: Vec<&str> = columns.iter().map(|c| c.name).collect();
    for (table, tasks) in tables.place(tasks.iter().copied(), |task| task.id) {
        let rows = tasks.iter().map(|t| columns.iter().map(|c| (c.value)(t)).collect()).collect();
        insert_rows(c, table, &names, rows, "", &[]).await?;
    }
    Ok(())
}

/// Turn, keys and rows in one statement, however many tables they go to. Gives the ids of the tasks whose keys were taken.
async fn insert_postgres(
    c: &mut Connection<'_>,
    tables: &Tables,
    tasks: &[&Task],
    keys: &[(KeyHash, TaskId)],
    turn: Option<&Turn>,
    now: Timestamp,
) -> sqlx::Result<IdSet> {
    let columns = needed_columns(tasks);
    let names = columns.iter().map(|c| c.name).collect::<Vec<_>>().join(", ");
    let (mut with, mut values) = (Vec::new(), Vec::new());
    // What the turn forbids is not written; in the caller's own transaction there is none.
    let mut if_turn = "TRUE";
    if let Some(turn) = turn {
        with.push(format!("turn AS ({TAKE_TURN} RETURNING 0::int8 AS id)"));
        values.extend(turn.values());
        if_turn = "EXISTS (SELECT 1 FROM turn)";
    }
    // Rows without a key are written in any case. (The OR also keeps the planner from making a join of it, which, with
    // hash joins off, would compare each with each.)
    let mut if_key = "";
    if !keys.is_empty() {
        let (source, hashes) = unnest(keys.iter().map(|(hash, id)| vec![(*hash).into(), (*id).into()]).collect());
        with.push(format!(
            "taken AS (INSERT INTO redrive_key (key_hash, task_id) SELECT * FROM {source} WHERE {if_turn} \
               ON CONFLICT (key_hash) DO UPDATE SET task_id = excluded.task_id, expires_at = NULL \
                 WHERE redrive_key.expires_at <= ? RETURNING task_id)"
        ));
        values.extend(hashes);
        values.push(now.into());
        if_key = "AND (task_key IS NULL OR id IN (SELECT task_id FROM taken))";
    }
    let mut inserts = Vec::new();
    for (table, tasks) in tables.place(tasks.iter().copied(), |task| task.id) {
        let (source, columns) = unnest_tasks(&tasks, &columns);
        values.extend(columns);
        inserts.push(format!(
            "INSERT INTO {table} ({names}) SELECT {names} FROM {source} AS n({names}) WHERE {if_turn} {if_key}"
        ));
    }
    // Where no key can be lost, the database need not say which rows it wrote.
    if let ([insert], true) = (&*inserts, keys.is_empty()) {
        let with = if with.is_empty() { String::new() } else { format!("WITH {}", with.join(", ")) };
        let written = c.execute(query(format!("{with} {insert}")).bind_all(values)).await?;
        return if written == 0 && turn.is_some() { Err(turn::taken()) } else { Ok(IdSet::default()) };
    }
    with.extend(inserts.iter().enumerate().map(|(i, insert)| format!("written_{i} AS ({insert})")));
    let telling = telling(!keys.is_empty(), turn.is_some());
    let rows = c.rows(query(format!("WITH {} {telling}", with.join(", "))).bind_all(values)).await?;
    let told = rows.iter().map(|row| Ok(TaskId::from_i64(row.int()?))).collect::<sqlx::Result<IdSet>>()?;
    if turn.is_some() && !told.contains(&TaskId::from_i64(0)) {
        return Err(turn::taken());
    }
    Ok(keys.iter().map(|(_, id)| *id).filter(|id| !told.contains(id)).collect())
}

/// A task is written if its key was taken: that, and whether it was our turn, is all that the database has to tell.
fn telling(keyed: bool, in_turn: bool) -> &'static str {
    match (keyed, in_turn) {
        (true, true) => "SELECT task_id FROM taken UNION ALL SELECT id FROM turn",
        (true, false) => "SELECT task_id FROM taken",
        (false, true) => "SELECT id FROM turn",
        (false, false) => "SELECT 1 WHERE FALSE",
    }
}

/// Tasks that follow from the end of another, inside its transaction. One that exists already is left as it is.
pub(super) async fn insert_follow_ups(
    c: &mut Connection<'_>,
    tables: &Tables,
    tasks: &[Task],
    now: Timestamp,
) -> sqlx::Result<()> {
    let mut rest: Vec<&Task> = tasks.iter().collect();
    while !rest.is_empty() {
        let answers = insert_once(c, tables, &rest, None, now).await?;
        rest = rest.into_iter().zip(answers).filter(|(_, answer)| answer.is_none()).map(|(task, _)| task).collect();
    }
    Ok(())
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use crate::store::Registration;
    use crate::task::Status;

    const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    /// The answer to an insert was lost. Of a task that is gone, and so is its key.
    #[tokio::test]
    async fn what_is_gone_was_a_duplicate_if_its_node_lives_and_was_ended_by_others_if_not() {
        let store = Store::open("sqlite::memory:").await.unwrap();
        let node = store.register(&Registration::default(), NOW).await.unwrap();
        let mut task = store.prepare(NewTask::new("pay", &()).unwrap().key("order-7"), NOW).unwrap().task;
        let tables = store.make_room(&[task.id]).await.unwrap();
        let ask = async |task: &Task| {
            let answers = retrying!(store.pools(), Use::Read, Scope::Statement, "asking again", |c, _| {
                written_before(c, &tables, &[task]).await
            });
            answers.unwrap().remove(0).unwrap()
        };
        let own = Enqueued { id: task.id, existed: false };
        assert_eq!(ask(&task).await, own, "it was written as pending: anybody may have run it");
        (task.status, task.locked_by) = (Status::Running, Some(node));
        assert_eq!(ask(&task).await, Enqueued { existed: true, ..own }, "it must not run without a row");
        store.retire(node).await.unwrap();
        assert_eq!(ask(&task).await, own, "others may have run it");
    }
}
