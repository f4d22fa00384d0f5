//! The key under which consoles seal their cookies: 32 random bytes in a row of `redrive_setting`, so that all servers of a
//! database have the same one and a restart logs nobody out. What is sealed is a token, which is in no row: who can read the
//! database can open cookies that they see, and make none. Whoever deletes the row logs everybody out, when servers restart.

use crate::clock::Timestamp;
use crate::error::{Error, Result};

use super::Store;
use super::db::{Dialect, query};
use super::pool::Use;
use super::retry::{Scope, retrying};

const NAME: &str = "console/key";

impl Store {
    /// The key for the console's cookies. The first to ask makes it.
    pub async fn console_key(&self, now: Timestamp) -> Result<[u8; 32]> {
        let mut new = [0; 32];
        getrandom::fill(&mut new).map_err(|_| Error::invalid("key", "the system gives no random numbers"))?;
        let new = blake3::Hash::from_bytes(new).to_hex();
        let insert = match self.dialect() {
            Dialect::MySql => {
                "INSERT IGNORE INTO redrive_setting (name, version, updated_at, value) VALUES (?, 1, ?, ?)"
            }
            Dialect::Sqlite | Dialect::Postgres => {
                "INSERT INTO redrive_setting (name, version, updated_at, value) VALUES (?, 1, ?, ?) ON CONFLICT (name) DO NOTHING"
            }
        };
        let read = "SELECT value FROM redrive_setting WHERE name = ?";
        let stored = retrying!(self.pools(), Use::Write, Scope::Transaction, "reading the console's key", |c, _| {
            if let Some(row) = c.row(query(read).bind(NAME)).await? {
                return Ok(Some(row.columns().text()?.to_owned()));
            }
            c.execute(query(insert).bind(NAME).bind(now).bind(new.as_str())).await?;
            let row = c.row(query(read).bind(NAME)).await?;
            row.map(|row| row.columns().text().map(str::to_owned)).transpose()
        })?;
        let key = stored.and_then(|hex| blake3::Hash::from_hex(hex.trim()).ok());
        key.map(Into::into).ok_or_else(|| Error::invalid(NAME, "is not a key; delete its row of redrive_setting"))
    }
}
