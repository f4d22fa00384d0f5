//! What a person does, under their name: each action and its record in the audit, in one transaction.
//!
//! The same as on [`Store`] itself, which programs use; there nobody answers for it. What is done to one task or letter has a
//! record of its own; several letters in one call have one together. For more than a few hundred see [`Bulk`](super::Bulk).

use std::sync::Arc;

use serde_json::{Value as Json, json};

use crate::clock::Timestamp;
use crate::error::Result;
use crate::id::{IdMap, TaskId};
use crate::policy::Policy;
use crate::task::{StopRequest, Task};

use super::archive::EndedAs;
use super::audit::{AuditEntry, Record, check_by};
use super::dead::Redriven;
use super::task::{Cancelled, not_found};
use super::{Store, remind};

/// Ids that a record names; the others it counts.
const NAMED: usize = 100;

/// A person at work on a store.
///
/// ```
/// use redrive::store::AuditFilter;
/// use redrive::{NewTask, Store};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redrive::Result<()> {
/// let (store, now) = (Store::open("sqlite::memory:").await?, "2027-01-01T00:00:00Z".parse()?);
/// let id = store.insert(vec![NewTask::new("charge", &7)?], now).await?[0].id;
/// store.acting("alice")?.noting("the order was cancelled").cancel(id, now).await?;
/// let audit = store.audits(&AuditFilter::default(), 10).await?;
/// assert_eq!((&*audit[0].entry.action, &*audit[0].entry.who), ("task.cancel", "alice"));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Acting<'s> {
    store: &'s Store,
    who: &'s str,
    note: Option<&'s str>,
}

impl Store {
    /// What is done by a person of this name, who answers for it.
    pub fn acting<'s>(&'s self, who: &'s str) -> Result<Acting<'s>> {
        check_by(who)?;
        Ok(Acting { store: self, who, note: None })
    }
}

impl<'s> Acting<'s> {
    /// And this is why. It is in the audit, and with letters that are closed.
    #[must_use]
    pub fn noting(self, note: &'s str) -> Self {
        Self { note: Some(note), ..self }
    }

    /// See [`Store::cancel`].
    pub async fn cancel(self, id: TaskId, now: Timestamp) -> Result<Cancelled> {
        let record = self.record("task.cancel", id.to_string(), None, None, now);
        self.store.stop(id, StopRequest::Cancel, Some(record), now).await
    }

    /// See [`Store::fail`].
    pub async fn fail(self, id: TaskId, now: Timestamp) -> Result<Cancelled> {
        let record = self.record("task.fail", id.to_string(), None, None, now);
        self.store.stop(id, StopRequest::Fail, Some(record), now).await
    }

    /// See [`Store::retry_now`].
    pub async fn retry_now(self, id: TaskId, now: Timestamp) -> Result<()> {
        let before = self.task(id).await?;
        let due = |due: Timestamp| Some(json!({ "next_retry_time": due }));
        let record = self.record("task.retry_now", id.to_string(), due(before.due), due(now), now);
        self.store.make_due(id, Some(self.who), Some(&record), now).await
    }

    /// See [`Store::edit_policy`].
    pub async fn edit_policy(self, id: TaskId, policy: &Arc<Policy>, now: Timestamp) -> Result<()> {
        let before = self.task(id).await?;
        let shown = |policy: &Policy| serde_json::to_value(policy).ok();
        let after = policy.in_place_of(&before.policy);
        let record = self.record("task.edit_policy", id.to_string(), shown(&before.policy), shown(&after), now);
        self.store.change_policy(id, policy, Some(self.who), Some(&record), now).await
    }

    /// See [`Store::redrive`].
    pub async fn redrive(self, ids: &[TaskId], policy: Option<Arc<Policy>>, now: Timestamp) -> Result<Vec<Redriven>> {
        let record = self.of_letters("dead.redrive", ids, now);
        self.store.bring_back(ids, policy, self.who, Some(&record), now).await
    }

    /// See [`Store::resolve`].
    pub async fn resolve(self, ids: &[TaskId], now: Timestamp) -> Result<u64> {
        let record = self.of_letters("dead.resolve", ids, now);
        self.store.close_letters(ids, EndedAs::Resolved, self.who, self.note, Some(&record), now).await
    }

    /// See [`Store::discard`].
    pub async fn discard(self, ids: &[TaskId], now: Timestamp) -> Result<u64> {
        let record = self.of_letters("dead.discard", ids, now);
        self.store.close_letters(ids, EndedAs::Discarded, self.who, self.note, Some(&record), now).await
    }

    /// They have seen this letter. Reminders go on: to have seen it is not to do something about it.
    pub async fn acknowledge(self, id: TaskId, now: Timestamp) -> Result<()> {
        let record = self.record("dead.acknowledge", id.to_string(), None, None, now);
        self.store.change_letter(id, remind::acknowledge(id, now), &record, now).await
    }

    /// This letter is now `owner`'s: nobody is reminded of it any more.
    pub async fn take_over(self, id: TaskId, owner: &str, now: Timestamp) -> Result<()> {
        check_by(owner)?;
        let letter = self.store.get_dead(id).await?.ok_or_else(|| remind::no_letter(id))?;
        let named = |owner: Option<&str>| Some(json!({ "owner": owner }));
        let record =
            self.record("dead.take_over", id.to_string(), named(letter.owner.as_deref()), named(Some(owner)), now);
        self.store.change_letter(id, remind::take_over(id, owner, now), &record, now).await
    }

    /// See [`Store::pause`].
    pub async fn pause(self, method: &str, now: Timestamp) -> Result<bool> {
        self.store.pause_noting(method, Some(self.who), self.note, now).await
    }

    /// See [`Store::resume`].
    pub async fn resume(self, method: &str, now: Timestamp) -> Result<bool> {
        self.store.resume_noting(method, Some(self.who), self.note, now).await
    }

    async fn task(&self, id: TaskId) -> Result<Task> {
        self.store.get(id).await?.ok_or_else(|| not_found(id))
    }

    fn record(
        &self,
        action: &str,
        target: impl Into<String>,
        before: Option<Json>,
        after: Option<Json>,
        now: Timestamp,
    ) -> Record {
        let entry = AuditEntry::new(self.who, action, target).changed(before, after).noting(self.note);
        self.store.record(entry, now)
    }

    /// One letter is named; of several it is said how many, and which.
    fn of_letters(&self, action: &str, ids: &[TaskId], now: Timestamp) -> Record {
        match ids {
            [one] => self.record(action, one.to_string(), None, None, now),
            _ => self.record(action, format!("{} letters", ids.len()), Some(json!({ "ids": named(ids) })), None, now),
        }
    }
}

fn named(ids: &[TaskId]) -> &[TaskId] {
    ids.get(..NAMED).unwrap_or(ids)
}

/// What is said of a redrive, with the policy that letters are given instead of their own.
pub(super) fn with_policy(mut said: Json, policy: Option<&Policy>) -> Json {
    if let (Some(fields), Some(policy)) = (said.as_object_mut(), policy) {
        fields.insert("policy".into(), json!(policy));
    }
    said
}

impl Record {
    /// With the tasks that letters have become, and the policy that they were given instead of their own.
    pub(super) fn of_redriven(&self, went: &IdMap<Redriven>, policy: Option<&Policy>) -> Self {
        let new = went.values().filter_map(|went| match went {
            Redriven::As(id) => Some(*id),
            Redriven::Twin(_) | Redriven::Gone => None,
        });
        let new: Vec<TaskId> = new.collect();
        let after = with_policy(json!({ "redriven": new.len(), "redriven_as": named(&new) }), policy);
        let entry = self.entry.clone();
        let before = entry.before.clone();
        Self { entry: entry.changed(before, after), id: self.id }
    }
}
