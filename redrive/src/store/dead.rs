//! Dead letters: what waits for a person, and what the person does.
//!
//! *Invariants.* Redrive, resolve and discard take the letter out of `retry_dead` and into the archive in one transaction;
//! two people cannot both do it. A redriven task is a new one, linked to its origin; if a task with its key lives already,
//! the letter stays where it is and the answer names that twin.

use std::collections::HashSet;
use std::sync::Arc;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::id::{IdMap, TaskId};
use crate::policy::Policy;
use crate::settle::DeadReason;
use crate::task::{Status, StopRequest, Task};

use super::Store;
use super::archive::{self, EndedAs, reason_of};
use super::audit::{self, Record, check_by, storable_note};
use super::db::{Connection, Row, query};
use super::decode::Decoder;
use super::insert::insert_once;
use super::layout::{Archive, Tables};
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::row::{Listed, column_list, joined_on, locked, read_columns};
use super::settle_sql::delete_ids;

/// A dead letter.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadTask {
    /// The task as it was when it died.
    pub task: Task,
    /// When.
    pub dead_at: Timestamp,
    /// Why.
    pub reason: DeadReason,
    /// When people are reminded of it next.
    pub next_remind_time: Option<Timestamp>,
    /// How often they were.
    pub remind_count: u32,
    /// When someone said that they have seen it.
    pub acknowledged_at: Option<Timestamp>,
    /// Who has taken it over: people are not reminded of it any more.
    pub owner: Option<String>,
    /// What they noted.
    pub note: Option<String>,
}

/// What a redrive did with one letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redriven {
    /// It is a task again, under this id.
    As(TaskId),
    /// A task with its key lives already; the letter stays.
    Twin(TaskId),
    /// There is no such letter (any more).
    Gone,
}

pub(super) const COLUMNS: &str = "dead_at, dead_reason, next_remind_time, remind_count, acknowledged_at, owner, note";

impl Store {
    /// A dead letter, if there is one of this id.
    pub async fn get_dead(&self, id: TaskId) -> Result<Option<DeadTask>> {
        let doing = format!("reading dead letter {id}");
        retrying!(self.pools(), Use::Read, Scope::Statement, &doing, |c, _| Ok(read_letters(c, &[id], false)
            .await?
            .pop()))
    }

    /// Brings dead letters back as new tasks, due now: attempts and crashes from zero, duration from now, a deadline that
    /// has passed dropped, or all under another policy. The answers are in the order of the ids.
    pub async fn redrive(
        &self,
        ids: &[TaskId],
        policy: Option<Arc<Policy>>,
        by: &str,
        now: Timestamp,
    ) -> Result<Vec<Redriven>> {
        self.bring_back(ids, policy, by, None, now).await
    }

    pub(super) async fn bring_back(
        &self,
        ids: &[TaskId],
        policy: Option<Arc<Policy>>,
        by: &str,
        record: Option<&Record>,
        now: Timestamp,
    ) -> Result<Vec<Redriven>> {
        check_by(by)?;
        if let Some(policy) = &policy {
            policy.validate()?;
        }
        let new_ids: IdMap<TaskId> = ids.iter().map(|id| (*id, self.ids().next(id.shard(), now))).collect();
        let made: Vec<TaskId> = new_ids.values().copied().collect();
        let tables = self.make_room(&made).await?;
        let doing = format!("redriving {} dead letters", ids.len());
        let went = retrying!(self.pools(), Use::Write, Scope::Transaction, &doing, |c, tried| {
            let letters = read_letters(c, ids, true).await?;
            let revived: Vec<Task> = letters
                .iter()
                .filter_map(|l| Some(revive(l, *new_ids.get(&l.task.id)?, policy.as_ref(), by, now)))
                .collect();
            let mut went = insert_revived(c, &tables, &revived, now).await?;
            let entries = letters.into_iter().filter_map(|letter| redriven(letter, by, &went)).collect::<Vec<_>>();
            close(c, tables.archive(now), &entries, now).await?;
            if let Some(record) = record.filter(|_| !entries.is_empty()) {
                record.of_redriven(&went, policy.as_deref()).write(c, now).await?;
            }
            if tried > 0 {
                // An earlier try may have done it: its new tasks had our ids.
                let done = closed_already(c, tables.archive(now), ids, by, now).await?;
                went.extend(done.iter().filter_map(|id| Some((*id, Redriven::As(*new_ids.get(id)?)))));
            }
            Ok(went)
        })?;
        Ok(ids.iter().map(|id| went.get(id).copied().unwrap_or(Redriven::Gone)).collect())
    }

    /// A person says that these are done. How many letters there were.
    pub async fn resolve(&self, ids: &[TaskId], by: &str, note: Option<&str>, now: Timestamp) -> Result<u64> {
        self.close_letters(ids, EndedAs::Resolved, by, note, None, now).await
    }

    /// A person drops these. How many letters there were.
    pub async fn discard(&self, ids: &[TaskId], by: &str, note: Option<&str>, now: Timestamp) -> Result<u64> {
        self.close_letters(ids, EndedAs::Discarded, by, note, None, now).await
    }

    pub(super) async fn close_letters(
        &self,
        ids: &[TaskId],
        how: EndedAs,
        by: &str,
        note: Option<&str>,
        record: Option<&Record>,
        now: Timestamp,
    ) -> Result<u64> {
        check_by(by)?;
        let doing = format!("closing {} dead letters", ids.len());
        let archive = self.tables().archive(now);
        retrying!(self.pools(), Use::Write, Scope::Transaction, &doing, |c, tried| {
            let letters = read_letters(c, ids, true).await?;
            let closed = letters.len() as u64;
            let entries: Vec<_> = letters.into_iter().map(|letter| closed_letter(letter, how, by, note)).collect();
            close(c, archive, &entries, now).await?;
            audit::write(c, record.filter(|_| closed > 0), now).await?;
            // An earlier try may have closed them all, and its answer was lost.
            match tried > 0 && closed == 0 {
                true => Ok(closed_already(c, archive, ids, by, now).await?.len() as u64),
                false => Ok(closed),
            }
        })
    }
}

pub(super) fn read_dead(row: &Row) -> sqlx::Result<DeadTask> {
    let mut columns = row.columns();
    let task = read_columns(&mut columns)?;
    let c = &mut Decoder::new(&mut columns);
    let dead_at = c.time("dead_at").unwrap_or_default();
    let reason = c.text("dead_reason");
    let reason = c.name("dead_reason", reason, reason_of(reason)).unwrap_or(DeadReason::Undecodable);
    let mut letter = DeadTask {
        task,
        dead_at,
        reason,
        next_remind_time: c.time("next_remind_time"),
        remind_count: c.number("remind_count"),
        acknowledged_at: c.time("acknowledged_at"),
        owner: c.opt_text("owner").map(str::to_owned),
        note: c.opt_text("note").map(str::to_owned),
    };
    c.mark(&mut letter.task);
    Ok(letter)
}

/// The letters of these ids, locked if they are to be moved.
async fn read_letters(c: &mut Connection<'_>, ids: &[TaskId], lock: bool) -> sqlx::Result<Vec<DeadTask>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let s = Listed::new(c.dialect(), &["id"], ids.iter().map(|id| vec![(*id).into()]).collect());
    let lock = if lock { locked(c.dialect()) } else { "" };
    let sql = format!(
        "SELECT {}, {COLUMNS} FROM {} {} ORDER BY t.id {lock}",
        column_list("t."),
        s.source,
        joined_on(c.dialect(), "retry_dead", "t.id = s.id")
    );
    c.rows(s.bind_to(query(sql))).await?.iter().map(read_dead).collect()
}

/// The new task that a letter becomes.
fn revive(letter: &DeadTask, id: TaskId, policy: Option<&Arc<Policy>>, by: &str, now: Timestamp) -> Task {
    let mut task = Task {
        id,
        status: Status::Pending,
        attempts: 0,
        crashes: 0,
        postponements: 0,
        due: now,
        created_at: now,
        updated_at: now,
        first_failed_at: None,
        last_error: None,
        history: Vec::new(),
        version: 0,
        locked_by: None,
        locked_at: None,
        stop: StopRequest::None,
        notified_at: None,
        // To whoever has seen the first it is the same again, however often it is brought back.
        key: letter.task.key.clone().or_else(|| Some(letter.task.origin_id.unwrap_or(letter.task.id).to_string())),
        origin_id: Some(letter.task.id),
        created_by: Some(by.to_owned()),
        updated_by: None,
        undecodable: None,
        ..letter.task.clone()
    };
    match policy {
        Some(policy) => task.policy = policy.in_place_of(&task.policy),
        None if task.policy.deadline.is_some_and(|deadline| deadline <= now) => {
            task.policy = Arc::new(Policy { deadline: None, ..(*task.policy).clone() });
        }
        None => {}
    }
    task
}

/// Writes the new tasks, keys and all; says for each letter what became of it.
async fn insert_revived(
    c: &mut Connection<'_>,
    tables: &Tables,
    revived: &[Task],
    now: Timestamp,
) -> sqlx::Result<IdMap<Redriven>> {
    let mut went = IdMap::default();
    let mut order: Vec<&Task> = revived.iter().collect();
    order.sort_by_cached_key(|t| (t.key_hash(), t.id));
    // Two letters may have had the same key: the first of them is the twin of the second.
    let mut seen = HashSet::new();
    let (first, again): (Vec<&Task>, Vec<&Task>) =
        order.into_iter().partition(|t| t.key_hash().is_none_or(|hash| seen.insert(hash)));
    for mut rest in [first, again] {
        while !rest.is_empty() {
            let answers = insert_once(c, tables, &rest, None, now).await?;
            let mut left = Vec::new();
            for (task, answer) in rest.into_iter().zip(answers) {
                match (answer, task.origin_id) {
                    (Some(answer), Some(origin)) if answer.existed => {
                        _ = went.insert(origin, Redriven::Twin(answer.id));
                    }
                    (Some(answer), Some(origin)) => _ = went.insert(origin, Redriven::As(answer.id)),
                    _ => left.push(task),
                }
            }
            rest = left;
        }
    }
    Ok(went)
}

/// A letter that a person has closed.
fn closed_letter(letter: DeadTask, how: EndedAs, by: &str, note: Option<&str>) -> archive::Entry {
    archive::Entry {
        dead_reason: Some(letter.reason),
        by: Some(by.to_owned()),
        note: note.map(storable_note).or(letter.note),
        ..archive::Entry::new(letter.task, how)
    }
}

/// A letter that was brought back; one with a living twin was not.
fn redriven(letter: DeadTask, by: &str, went: &IdMap<Redriven>) -> Option<archive::Entry> {
    let redriven_as = match went.get(&letter.task.id) {
        Some(Redriven::Twin(_)) => return None,
        Some(Redriven::As(id)) => Some(*id),
        Some(Redriven::Gone) | None => None,
    };
    Some(archive::Entry { redriven_as, ..closed_letter(letter, EndedAs::Redriven, by, None) })
}

/// Which of these were closed by this person at this moment.
async fn closed_already(
    c: &mut Connection<'_>,
    archive: Archive,
    ids: &[TaskId],
    by: &str,
    now: Timestamp,
) -> sqlx::Result<Vec<TaskId>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let s = Listed::new(c.dialect(), &["id"], ids.iter().map(|id| vec![(*id).into()]).collect());
    let table = joined_on(c.dialect(), archive, "t.id = s.id");
    let sql = format!("SELECT t.id FROM {} {table} WHERE t.ended_at = ? AND t.ended_by = ?", s.source);
    let rows = c.rows(s.bind_to(query(sql)).bind(now).bind(by)).await?;
    rows.iter().map(|row| Ok(TaskId::from_i64(row.int()?))).collect()
}

/// Moves letters to the archive.
async fn close(
    c: &mut Connection<'_>,
    archive: Archive,
    entries: &[archive::Entry],
    now: Timestamp,
) -> sqlx::Result<()> {
    archive::insert(c, archive, entries, now).await?;
    delete_ids(c, "retry_dead", &entries.iter().map(|e| e.task.id).collect()).await
}
