//! Settings that people have changed while nodes run: rows `set/PATH` of `redrive_setting`, which every node reads every two
//! seconds and lays over its file and its environment.
//!
//! What is stored was valid when it was set. What a newer or older build does not know is passed over by it, and said.

use serde::Serialize;
use serde_json::Value as Json;

use crate::clock::Timestamp;
use crate::error::{Error, Result};

use super::Store;
use super::audit::{AuditEntry, check_by};
use super::db::{Dialect, Row, query};
use super::method::{Paused, read_paused};
use super::pool::Use;
use super::retry::{Scope, retrying};

/// What the names of rows begin with.
const PREFIX: &str = "set/";
/// The most bytes of a path, and of a value.
const LONGEST_PATH: usize = 250;
const LONGEST_VALUE: usize = 60_000;

/// A field that somebody has set.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SetField {
    /// Which: `defaults.max_attempts`.
    pub path: String,
    /// To what.
    pub value: Json,
    /// When.
    pub since: Timestamp,
    /// By whom.
    pub by: Option<String>,
}

impl Store {
    /// What people want at the moment, in one look: the methods that are paused, and the fields that are set.
    pub(crate) async fn wishes(&self) -> Result<(Vec<Paused>, Vec<SetField>)> {
        let sql = "SELECT name, value, updated_at, updated_by FROM redrive_setting \
                   WHERE name LIKE 'pause/%' OR name LIKE 'set/%' ORDER BY name";
        retrying!(self.pools(), Use::Read, Scope::Statement, "reading what people have paused and set", |c, _| {
            let rows = c.rows(query(sql)).await?;
            let (mut paused, mut set) = (Vec::new(), Vec::new());
            for row in &rows {
                match row.columns().text()?.starts_with(PREFIX) {
                    true => set.push(read_field(row)?),
                    false => paused.push(read_paused(row)?),
                }
            }
            Ok((paused, set))
        })
    }

    /// What has been set, by path.
    pub async fn set_fields(&self) -> Result<Vec<SetField>> {
        let sql =
            "SELECT name, value, updated_at, updated_by FROM redrive_setting WHERE name LIKE 'set/%' ORDER BY name";
        retrying!(self.pools(), Use::Read, Scope::Statement, "reading settings", |c, _| {
            let rows = c.rows(query(sql)).await?;
            rows.iter().map(read_field).collect()
        })
    }

    /// Writes down what a field is set to, `None`: what the files say again. Whether it is valid is the caller's to know: see
    /// [`Engine::set`](crate::Engine::set).
    pub async fn set_field(&self, path: &str, value: Option<&Json>, by: &str, now: Timestamp) -> Result<()> {
        check_by(by)?;
        let (name, text) = (format!("{PREFIX}{path}"), value.map(ToString::to_string));
        super::search::no_nul(Some(path))?;
        if path.len() > LONGEST_PATH || text.as_ref().is_some_and(|text| text.len() > LONGEST_VALUE) {
            return Err(Error::invalid(path, "is too long"));
        }
        let entry = AuditEntry::new(by, if value.is_some() { "settings.set" } else { "settings.unset" }, path);
        let record = self.record(entry, now);
        retrying!(self.pools(), Use::Write, Scope::Transaction, &format!("setting {path}"), |c, _| {
            let before = c.row(query("SELECT value FROM redrive_setting WHERE name = ?").bind(&*name)).await?;
            let before = before.map(|row| row.columns().text().map(str::to_owned)).transpose()?;
            if before == text {
                return Ok(()); // it is so already, perhaps by our earlier try
            }
            match &text {
                None => c.execute(query("DELETE FROM redrive_setting WHERE name = ?").bind(&*name)).await?,
                Some(text) => {
                    let sql = put(c.dialect());
                    c.execute(query(sql).bind(&*name).bind(now).bind(by).bind(&**text)).await?
                }
            };
            record.changed(before.map(read_json), value.cloned()).write(c, now).await
        })
    }
}

/// Somebody else may set the same field in this moment: the later one wins.
const fn put(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::MySql => {
            "INSERT INTO redrive_setting (name, version, updated_at, updated_by, value) VALUES (?, 1, ?, ?, ?) \
             ON DUPLICATE KEY UPDATE updated_at = VALUES(updated_at), updated_by = VALUES(updated_by), value = VALUES(value)"
        }
        Dialect::Sqlite | Dialect::Postgres => {
            "INSERT INTO redrive_setting (name, version, updated_at, updated_by, value) VALUES (?, 1, ?, ?, ?) \
             ON CONFLICT (name) DO UPDATE SET updated_at = excluded.updated_at, updated_by = excluded.updated_by, \
             value = excluded.value"
        }
    }
}

fn read_field(row: &Row) -> sqlx::Result<SetField> {
    let mut c = row.columns();
    let path = c.text()?.trim_start_matches(PREFIX).to_owned();
    let value = read_json(c.text()?.to_owned());
    Ok(SetField { path, value, since: Timestamp::from_millis(c.int()?), by: c.opt_text()?.map(str::to_owned) })
}

/// What is no JSON, though it should be, is a text: the settings will refuse it.
fn read_json(text: String) -> Json {
    serde_json::from_str(&text).unwrap_or(Json::String(text))
}
