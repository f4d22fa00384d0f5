//! Sagas as they are stored: reading, listing, counting and removing them. How they are written: `journal`.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value as Json;

use crate::clock::Timestamp;
use crate::crypt::{is_sealed, open};
use crate::error::{Error, Result};
use crate::new_task::{Maker, NewTask};
use crate::saga::{Definition, Event, SagaState};
use crate::task::Task;

use super::Store;
use super::db::{Columns, Connection, Row, query};
use super::host::verified;
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::row::{Listed, joined_on};
use super::search::Conditions;

/// A saga with its journal.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SagaRecord {
    /// What is known at a glance.
    #[serde(flatten)]
    pub summary: SagaSummary,
    /// What it consists of.
    pub definition: Definition,
    /// What it was started with.
    pub input: Json,
    /// What has happened to it.
    pub journal: Vec<Journaled>,
    /// What `input_hash` has.
    #[serde(skip)]
    pub(crate) input_hash: [u8; 16],
}

/// An event in a journal.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Journaled {
    /// Its number, from 1.
    pub seq: i64,
    /// When.
    pub at: Timestamp,
    /// What.
    #[serde(flatten)]
    pub event: Event,
}

/// A saga at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SagaSummary {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// How it stands.
    pub state: SagaState,
    /// How many events its journal has.
    pub seq: i64,
    /// When it was started.
    pub created_at: Timestamp,
    /// Since when it has been in its state.
    pub since: Timestamp,
    /// When it goes on by itself, if it waits for a time; or its deadline, if that comes first.
    pub look_at: Option<Timestamp>,
}

/// Which sagas to list. All that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SagaFilter {
    /// In one of these states.
    pub state: Option<SagaState>,
    /// Of this name.
    pub name: Option<String>,
    /// Whose id begins so.
    pub id_prefix: Option<String>,
    /// The page after this one: time and id of the last saga of the page before ([`SagaFilter::page_after`]).
    pub after: Option<(Timestamp, String)>,
}

impl SagaFilter {
    /// The page after the one that ends with this saga.
    #[must_use]
    pub fn page_after(mut self, last: &SagaSummary) -> Self {
        let at = if self.state.is_some() { last.since } else { last.created_at };
        self.after = Some((at, last.id.clone()));
        self
    }
}

const SUMMARY: &str = "id, name, state, seq, created_at, updated_at, deadline";
impl Store {
    /// A saga, with its journal.
    pub async fn saga(&self, id: &str) -> Result<Option<SagaRecord>> {
        Ok(self.load_sagas(&[id]).await?.pop())
    }

    /// Several.
    pub(crate) async fn load_sagas(&self, ids: &[&str]) -> Result<Vec<SagaRecord>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let stored =
            retrying!(self.pools(), Use::Read, Scope::Statement, "reading sagas", |c, _| read_many(c, ids).await)?;
        stored.into_iter().map(|stored| self.unsealed(stored)).collect()
    }

    /// The same, read from a server that accepts writes: for whoever ends something because of what is not there.
    pub(crate) async fn verified_sagas(&self, ids: &[&str]) -> Result<Vec<SagaRecord>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let stored = retrying!(self.pools(), Use::Read, Scope::Statement, "reading sagas from the primary", |c, _| {
            verified(c).await?;
            read_many(c, ids).await
        })?;
        stored.into_iter().map(|stored| self.unsealed(stored)).collect()
    }

    /// Sagas at a glance, one page at a time: those of a state by when they came to it, else all by when they were started, the
    /// latest first.
    pub async fn sagas(&self, filter: &SagaFilter, limit: u32) -> Result<Vec<SagaSummary>> {
        let at = if filter.state.is_some() { "updated_at" } else { "created_at" };
        let mut all = Conditions::default();
        all.equal("state", filter.state.map(SagaState::as_str));
        all.equal("name", filter.name.as_deref());
        if let Some(prefix) = &filter.id_prefix {
            all.add(format!("SUBSTR(id, 1, {}) = ?", prefix.chars().count()), prefix.as_str());
        }
        if let Some((time, id)) = &filter.after {
            let values = vec![(*time).into(), (*time).into(), id.as_str().into()];
            all.add_all(format!("({at} < ? OR ({at} = ? AND id < ?))"), values);
        }
        let read =
            all.query(&format!("SELECT {SUMMARY} FROM redrive_saga"), &format!("ORDER BY {at} DESC, id DESC LIMIT ?"));
        let read = read.bind(limit);
        retrying!(self.pools(), Use::Read, Scope::Statement, "listing sagas", |c, _| {
            c.rows(read.clone()).await?.iter().map(|row| read_summary(&mut row.columns())).collect()
        })
    }

    /// How many sagas have not ended, by their state; of each state at most [`MOST_EXACT`](super::MOST_EXACT).
    pub async fn count_sagas(&self) -> Result<Vec<(SagaState, u64)>> {
        let mut counts = Vec::new();
        for state in SagaState::ALL.into_iter().filter(|state| !state.is_final()) {
            counts.push((state, self.count_in(state).await?));
        }
        Ok(counts)
    }

    /// How many wait for a person.
    pub(crate) async fn count_stuck_sagas(&self) -> Result<u64> {
        self.count_in(SagaState::Stuck).await
    }

    async fn count_in(&self, state: SagaState) -> Result<u64> {
        let sql = "SELECT COUNT(*) FROM (SELECT 1 AS one FROM redrive_saga WHERE state = ? LIMIT ?) AS some_of_them";
        let most = i64::try_from(super::MOST_EXACT).unwrap_or(i64::MAX);
        retrying!(self.pools(), Use::Read, Scope::Statement, "counting sagas", |c, _| {
            let count = c.row(query(sql).bind(state.as_str()).bind(most)).await?;
            count.map_or(Ok(0), |row| row.int().map(i64::unsigned_abs))
        })
    }

    /// Sagas whose time to be looked at has come, the earliest first, one page at a time: those after the last of the page before.
    pub(crate) async fn due_sagas(
        &self,
        last: Option<&(Timestamp, String)>,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<(Timestamp, String)>> {
        let mut all = Conditions::default();
        all.add("deadline <= ?", now);
        if let Some((time, id)) = last {
            let values = vec![(*time).into(), (*time).into(), id.as_str().into()];
            all.add_all("deadline >= ? AND (deadline > ? OR id > ?)", values);
        }
        let read = all.query("SELECT deadline, id FROM redrive_saga", "ORDER BY deadline, id LIMIT ?").bind(limit);
        retrying!(self.pools(), Use::Read, Scope::Statement, "looking for sagas whose time has come", |c, _| {
            c.rows(read.clone()).await?.iter().map(time_and_id).collect()
        })
    }

    /// Sagas that have been in a state since before this time, the longest first, one page at a time: those after the last of the page
    /// before.
    pub(crate) async fn sagas_since(
        &self,
        state: SagaState,
        last: Option<&(Timestamp, String)>,
        before: Timestamp,
        limit: u32,
    ) -> Result<Vec<(Timestamp, String)>> {
        let mut all = Conditions::default();
        all.equal("state", Some(state.as_str()));
        all.add("updated_at <= ?", before);
        if let Some((time, id)) = last {
            let values = vec![(*time).into(), (*time).into(), id.as_str().into()];
            all.add_all("updated_at >= ? AND (updated_at > ? OR id > ?)", values);
        }
        let read = all.query("SELECT updated_at, id FROM redrive_saga", "ORDER BY updated_at, id LIMIT ?").bind(limit);
        retrying!(self.pools(), Use::Read, Scope::Statement, "looking through the sagas under way", |c, _| {
            c.rows(read.clone()).await?.iter().map(time_and_id).collect()
        })
    }

    /// When the next saga is to be looked at, after this time.
    pub(crate) async fn next_due_saga(&self, after: Timestamp) -> Result<Option<Timestamp>> {
        let sql = "SELECT deadline FROM redrive_saga WHERE deadline > ? ORDER BY deadline LIMIT 1";
        retrying!(self.pools(), Use::Read, Scope::Statement, "looking for the next saga", |c, _| {
            Ok(c.row(query(sql).bind(after)).await?.map(|row| row.int()).transpose()?.map(Timestamp::from_millis))
        })
    }

    /// Removes sagas that ended before this time, with their journals; how many.
    pub async fn remove_sagas(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let mut removed = 0;
        for state in SagaState::ALL.into_iter().filter(|state| state.is_final()) {
            removed += retrying!(self.pools(), Use::Write, Scope::Transaction, "removing old sagas", |c, _| {
                let old = query("SELECT id FROM redrive_saga WHERE state = ? AND updated_at < ? LIMIT ?");
                let rows = c.rows(old.bind(state.as_str()).bind(before).bind(limit)).await?;
                for row in &rows {
                    let id = row.columns().text()?;
                    c.execute(query("DELETE FROM redrive_saga_event WHERE saga_id = ?").bind(id)).await?;
                    c.execute(query("DELETE FROM redrive_saga WHERE id = ?").bind(id)).await?;
                }
                Ok(rows.len() as u64)
            })?;
        }
        Ok(removed)
    }

    /// A task of a saga. Its params name work and have nothing in them to be encrypted.
    pub(crate) fn saga_task(&self, new: NewTask, now: Timestamp) -> Result<Task> {
        new.into_task(&Maker { keyring: None, ..self.maker() }, now)
    }

    /// Most bytes of an input or an output.
    pub(crate) fn max_params(&self) -> usize {
        self.options().max_params
    }

    /// As it is stored: encrypted, if everything is. What was written before it was stays as it is, and is read as it is.
    pub(crate) fn seal_saga(&self, id: &str, json: String) -> Result<String> {
        match self.keyring().filter(|ring| ring.encrypts_all()) {
            Some(ring) => ring.seal(id, &json),
            None => Ok(json),
        }
    }

    fn unsealed(&self, stored: Stored) -> Result<SagaRecord> {
        let id = &stored.summary.id;
        let plain = |text: String| match is_sealed(&text) {
            false => Ok(text),
            true => open(self.keyring(), id, &text).map_err(|why| unreadable(id, &why)),
        };
        let broken = |e: serde_json::Error| unreadable(id, &e.to_string());
        let definition = serde_json::from_str(&plain(stored.definition)?).map_err(broken)?;
        let input = serde_json::from_str(&plain(stored.input)?).map_err(broken)?;
        let mut journal = Vec::with_capacity(stored.events.len());
        for (seq, at, event) in stored.events {
            journal.push(Journaled { seq, at, event: serde_json::from_str(&plain(event)?).map_err(broken)? });
        }
        Ok(SagaRecord { summary: stored.summary, definition, input, journal, input_hash: stored.input_hash })
    }
}

fn unreadable(id: &str, why: &str) -> Error {
    Error::Conflict { doing: "read saga", id: id.to_owned(), why: why.to_owned() }
}

/// A saga as it is stored.
struct Stored {
    summary: SagaSummary,
    input_hash: [u8; 16],
    definition: String,
    input: String,
    events: Vec<(i64, Timestamp, String)>,
}

async fn read_many(c: &mut Connection<'_>, wanted: &[&str]) -> sqlx::Result<Vec<Stored>> {
    let listed =
        |c: &Connection<'_>| Listed::new(c.dialect(), &["id"], wanted.iter().map(|id| vec![(*id).into()]).collect());
    let s = listed(c);
    let columns = SUMMARY.split(", ").map(|column| format!("t.{column}")).collect::<Vec<_>>().join(", ");
    let table = joined_on(c.dialect(), "redrive_saga", "t.id = s.id");
    let sql = format!("SELECT {columns}, t.input_hash, t.definition, t.input FROM {} {table}", s.source);
    let mut all: HashMap<String, Stored> = HashMap::new();
    for row in c.rows(s.bind_to(query(sql))).await? {
        let mut columns = row.columns();
        let summary = read_summary(&mut columns)?;
        let input_hash = columns.hash()?;
        let (definition, input) = (columns.text()?.to_owned(), columns.text()?.to_owned());
        all.insert(summary.id.clone(), Stored { summary, input_hash, definition, input, events: Vec::new() });
    }
    let s = listed(c);
    let table = joined_on(c.dialect(), "redrive_saga_event", "t.saga_id = s.id");
    let sql = format!("SELECT t.saga_id, t.seq, t.at, t.event FROM {} {table} ORDER BY t.saga_id, t.seq", s.source);
    for row in c.rows(s.bind_to(query(sql))).await? {
        let mut columns = row.columns();
        let (id, seq) = (columns.text()?, columns.int()?);
        // The row was read first: what was written since is not part of it.
        if let Some(stored) = all.get_mut(id).filter(|stored| seq <= stored.summary.seq) {
            stored.events.push((seq, Timestamp::from_millis(columns.int()?), columns.text()?.to_owned()));
        }
    }
    Ok(all.into_values().collect())
}

fn time_and_id(row: &Row) -> sqlx::Result<(Timestamp, String)> {
    let mut columns = row.columns();
    Ok((Timestamp::from_millis(columns.int()?), columns.text()?.to_owned()))
}

fn read_summary(c: &mut Columns<'_>) -> sqlx::Result<SagaSummary> {
    let (id, name, state) = (c.text()?.to_owned(), c.text()?.to_owned(), c.text()?);
    let unknown = || sqlx::Error::Decode(format!("{state:?} is no state of a saga").into());
    Ok(SagaSummary {
        id,
        name,
        state: SagaState::named(state).ok_or_else(unknown)?,
        seq: c.int()?,
        created_at: Timestamp::from_millis(c.int()?),
        since: Timestamp::from_millis(c.int()?),
        look_at: c.opt_int()?.map(Timestamp::from_millis),
    })
}
