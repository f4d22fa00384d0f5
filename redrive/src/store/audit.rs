//! What people did, and what they were refused.
//!
//! *Invariants.* What a person does to one task, letter, method or token is written down in the transaction that does it: one
//! is not there without the other. What they do to many has one record, which is there before anything is done and is brought
//! up to date after each batch (see `bulk`). A record never has params in it, and is small: JSON that is too long is replaced
//! by a word about its length.
//!
//! *Failure.* A record's id is made before the first try, and a second one with the same id changes nothing. So an answer that
//! was lost makes no second record.

use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::id::TaskId;
use crate::task::{limits, storable};

use super::Store;
use super::db::{Connection, Dialect, Row, query};
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::search::{Conditions, no_nul};
use super::task::created;

/// Bytes of `before` and of `after`.
const LONGEST_JSON: usize = 16 * 1024;
/// Bytes of a note.
const LONGEST_NOTE: usize = 4 * 1024;
const LONGEST_ACTION: usize = 100;
const LONGEST_TARGET: usize = 500;
const LONGEST_OUTCOME: usize = 100;

/// Something that a person did, or was refused.
///
/// ```
/// use redrive::store::{AuditEntry, AuditFilter};
/// use redrive::{Store, Timestamp};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redrive::Result<()> {
/// let store = Store::open("sqlite::memory:").await?;
/// let entry = AuditEntry::new("eve", "dead.discard", "7").refused("a viewer may not do that");
/// store.audit(&entry, store.now().await?).await?;
/// let of_eve = AuditFilter { who: Some("eve".into()), ..AuditFilter::default() };
/// assert_eq!(store.audits(&of_eve, 10).await?[0].entry, entry);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AuditEntry {
    /// Who.
    pub who: String,
    /// What, as `task.cancel`.
    pub action: String,
    /// To what: an id, a method, a token's name.
    pub target: String,
    /// What came of it.
    pub outcome: AuditOutcome,
    /// What it was before, as far as it was changed.
    pub before: Option<Json>,
    /// What it is now.
    pub after: Option<Json>,
    /// What they said about it.
    pub note: Option<String>,
}

/// What came of what a person wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditOutcome {
    /// It was done.
    Done,
    /// It was not, for this reason.
    Refused(String),
}

/// An entry that is written down.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Audited {
    /// Its name; sorted by time, like a task's.
    pub id: TaskId,
    /// When.
    pub at: Timestamp,
    /// What.
    #[serde(flatten)]
    pub entry: AuditEntry,
}

/// Which entries to list. All that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// By this person.
    pub who: Option<String>,
    /// Actions that begin so: `task.` or `task.cancel`.
    pub action: Option<String>,
    /// To this id, method or name.
    pub target: Option<String>,
    /// At this time or after.
    pub from: Option<Timestamp>,
    /// Before this time.
    pub before: Option<Timestamp>,
    /// The page after this one: the last id of the page before.
    pub after: Option<TaskId>,
}

impl AuditEntry {
    /// Something that was done. What is too long to be stored is cut.
    pub fn new(who: &str, action: &str, target: impl Into<String>) -> Self {
        Self {
            who: storable(who, limits::BY),
            action: storable(action, LONGEST_ACTION),
            target: storable(&target.into(), LONGEST_TARGET),
            outcome: AuditOutcome::Done,
            before: None,
            after: None,
            note: None,
        }
    }

    /// It was refused.
    #[must_use]
    pub fn refused(self, why: &str) -> Self {
        let why = storable(why, LONGEST_OUTCOME - REFUSED.len());
        Self { outcome: AuditOutcome::Refused(why), ..self }
    }

    /// What it was and what it is now. Never params.
    #[must_use]
    pub fn changed(self, before: impl Into<Option<Json>>, after: impl Into<Option<Json>>) -> Self {
        Self { before: before.into().map(bounded), after: after.into().map(bounded), ..self }
    }

    /// What was said about it.
    #[must_use]
    pub fn noting(self, note: Option<&str>) -> Self {
        Self { note: note.map(storable_note), ..self }
    }
}

/// A note as it can be stored, in the audit and elsewhere: not too long, and without NUL, which PostgreSQL does not take.
pub(super) fn storable_note(note: &str) -> String {
    storable(note, LONGEST_NOTE)
}

const REFUSED: &str = "refused: ";

fn bounded(json: Json) -> Json {
    match json.to_string().len() {
        short if short <= LONGEST_JSON => json,
        long => json!({ "left_out": format!("{long} bytes") }),
    }
}

/// An entry and the id under which it is written, however often that is tried.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) id: TaskId,
    pub(super) entry: AuditEntry,
}

impl Record {
    /// The same record of another change.
    pub(super) fn changed(&self, before: Option<Json>, after: Option<Json>) -> Self {
        Self { id: self.id, entry: self.entry.clone().changed(before, after) }
    }

    /// The same record, of a target that was read in the meantime.
    pub(super) fn of(mut self, target: &str) -> Self {
        self.entry.target = storable(target, LONGEST_TARGET);
        self
    }

    pub(super) async fn write(&self, c: &mut Connection<'_>, now: Timestamp) -> sqlx::Result<()> {
        let (insert, once) = match c.dialect() {
            Dialect::MySql => ("INSERT IGNORE", ""),
            Dialect::Sqlite | Dialect::Postgres => ("INSERT", "ON CONFLICT DO NOTHING"),
        };
        let sql = format!(
            "{insert} INTO redrive_audit (id, at, who, action, target, outcome, before_json, after_json, note) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) {once}"
        );
        let e = &self.entry;
        let text = |json: &Option<Json>| json.as_ref().map(Json::to_string);
        let insert = query(sql).bind(self.id).bind(now).bind(&*e.who).bind(&*e.action).bind(&*e.target);
        let insert = insert.bind(e.outcome.stored()).bind(text(&e.before)).bind(text(&e.after));
        c.execute(insert.bind(e.note.as_deref())).await.map(|_| ())
    }
}

/// Writes a record, if there is one to be written.
pub(super) async fn write(c: &mut Connection<'_>, record: Option<&Record>, now: Timestamp) -> sqlx::Result<()> {
    match record {
        Some(record) => record.write(c, now).await,
        None => Ok(()),
    }
}

impl AuditOutcome {
    fn stored(&self) -> String {
        match self {
            Self::Done => "done".into(),
            Self::Refused(why) => format!("{REFUSED}{why}"),
        }
    }

    fn read(stored: &str) -> Self {
        stored.strip_prefix(REFUSED).map_or(Self::Done, |why| Self::Refused(why.to_owned()))
    }
}

impl AuditFilter {
    fn conditions(&self, ids: super::layout::Ids) -> Conditions<'_> {
        let mut all = Conditions::default();
        all.equal("who", self.who.as_deref());
        all.equal("target", self.target.as_deref());
        if let Some(action) = &self.action {
            // Not LIKE: there is nothing to escape, and no collation to ask.
            all.add(format!("SUBSTR(action, 1, {}) = ?", action.chars().count()), action.as_str());
        }
        for (time, is_first) in [(self.from, true), (self.before, false)] {
            if let Some(time) = time {
                all.add_created(created(TaskId::first_at(time), is_first, ids));
            }
        }
        if let Some(after) = self.after {
            all.add("id < ?", after);
        }
        all
    }
}

impl Store {
    /// Writes down what a person did elsewhere, or was refused. What the store does for people it writes down itself.
    pub async fn audit(&self, entry: &AuditEntry, now: Timestamp) -> Result<TaskId> {
        let record = self.record(entry.clone(), now);
        retrying!(self.pools(), Use::Write, Scope::Statement, "writing the audit", |c, _| record.write(c, now).await)?;
        Ok(record.id)
    }

    /// What people did, newest first, one page at a time.
    pub async fn audits(&self, filter: &AuditFilter, limit: u32) -> Result<Vec<Audited>> {
        [&filter.who, &filter.action, &filter.target].into_iter().try_for_each(|text| no_nul(text.as_deref()))?;
        let conditions = filter.conditions(self.tables().ids());
        let columns = "id, at, who, action, target, outcome, before_json, after_json, note";
        let read = conditions.query(&format!("SELECT {columns} FROM redrive_audit"), "ORDER BY id DESC LIMIT ?");
        let read = read.bind(limit);
        retrying!(self.pools(), Use::Read, Scope::Statement, "reading the audit", |c, _| {
            c.rows(read.clone()).await?.iter().map(read_audited).collect()
        })
    }

    /// An entry with the id that it will have.
    pub(super) fn record(&self, entry: AuditEntry, now: Timestamp) -> Record {
        Record { id: self.new_id(None, now), entry }
    }

    /// What came of it by now.
    pub(super) async fn audit_again(&self, id: TaskId, after: Json) -> Result<()> {
        let after = bounded(after).to_string();
        retrying!(self.pools(), Use::Write, Scope::Statement, "bringing the audit up to date", |c, _| {
            let sql = "UPDATE redrive_audit SET after_json = ? WHERE id = ?";
            c.execute(query(sql).bind(&*after).bind(id)).await.map(|_| ())
        })
    }
}

/// Someone must answer for it, by a name that can be stored.
pub(super) fn check_by(by: &str) -> Result<()> {
    let most = limits::BY;
    if by.is_empty() || by.len() > most || by.contains('\0') {
        return Err(Error::invalid("by", format!("must be from 1 to {most} bytes, without NUL")));
    }
    Ok(())
}

fn read_audited(row: &Row) -> sqlx::Result<Audited> {
    let mut c = row.columns();
    let (id, at) = (TaskId::from_i64(c.int()?), Timestamp::from_millis(c.int()?));
    let (who, action, target) = (c.text()?.to_owned(), c.text()?.to_owned(), c.text()?.to_owned());
    let outcome = AuditOutcome::read(c.text()?);
    let json = |text: Option<&str>| text.and_then(|text| serde_json::from_str(text).ok());
    let (before, after) = (json(c.opt_text()?), json(c.opt_text()?));
    let note = c.opt_text()?.map(str::to_owned);
    Ok(Audited { id, at, entry: AuditEntry { who, action, target, outcome, before, after, note } })
}
