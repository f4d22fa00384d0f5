//! Named locks with terms: at most one holder at a time by the clock, and a term that grows with each new holder, so
//! that what is written under the lock can be fenced by it.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::error::Result;

use super::Store;
use super::db::{Dialect, query};
use super::pool::Use;
use super::retry::{Scope, retrying};

/// A lock that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Its name.
    pub name: String,
    /// Who holds it.
    pub owner: String,
    /// Grows with each new holder.
    pub term: i64,
    /// Until when, unless renewed.
    pub expires_at: Timestamp,
}

impl Store {
    /// Takes a lock if it is free, expired, or ours already (then it is renewed, in the same term). `None`: someone else
    /// holds it.
    pub async fn lock(&self, name: &str, owner: &str, time: Duration, now: Timestamp) -> Result<Option<Lock>> {
        let doing = format!("taking the lock {name}");
        let expires_at = now + time;
        retrying!(self.pools(), Use::Write, Scope::Transaction, &doing, |c, _| {
            let first = match c.dialect() {
                Dialect::MySql => "INSERT IGNORE INTO redrive_lock (name, term, expires_at) VALUES (?, 0, 0)",
                _ => "INSERT INTO redrive_lock (name, term, expires_at) VALUES (?, 0, 0) ON CONFLICT (name) DO NOTHING",
            };
            c.execute(query(first).bind(name)).await?;
            // Its own statement each, so that no database's order of SET matters.
            let renew = "UPDATE redrive_lock SET expires_at = ? WHERE name = ? AND owner = ? AND expires_at > ?";
            let renewed = c.execute(query(renew).bind(expires_at).bind(name).bind(owner).bind(now)).await?;
            let take =
                "UPDATE redrive_lock SET term = term + 1, owner = ?, expires_at = ? WHERE name = ? AND expires_at <= ?";
            let taken = c.execute(query(take).bind(owner).bind(expires_at).bind(name).bind(now)).await?;
            if renewed + taken == 0 {
                return Ok(None);
            }
            let row = c.row(query("SELECT term FROM redrive_lock WHERE name = ?").bind(name)).await?;
            let term = row.map(|row| row.int()).transpose()?.ok_or(sqlx::Error::RowNotFound)?;
            Ok(Some(Lock { name: name.to_owned(), owner: owner.to_owned(), term, expires_at }))
        })
    }

    /// Who holds a lock at this time.
    pub async fn held_lock(&self, name: &str, now: Timestamp) -> Result<Option<Lock>> {
        let sql = "SELECT owner, term, expires_at FROM redrive_lock WHERE name = ? AND expires_at > ?";
        retrying!(self.pools(), Use::Read, Scope::Statement, &format!("looking at the lock {name}"), |c, _| {
            let Some(row) = c.row(query(sql).bind(name).bind(now)).await? else { return Ok(None) };
            let mut c = row.columns();
            let (owner, term) = (c.opt_text()?.unwrap_or_default().to_owned(), c.int()?);
            Ok(Some(Lock { name: name.to_owned(), owner, term, expires_at: Timestamp::from_millis(c.int()?) }))
        })
    }

    /// Gives a lock back, if it is still held in that term.
    pub async fn unlock(&self, lock: &Lock) -> Result<bool> {
        let doing = format!("giving back the lock {}", lock.name);
        retrying!(self.pools(), Use::Write, Scope::Statement, &doing, |c, _| {
            let sql = "UPDATE redrive_lock SET expires_at = 0, owner = NULL WHERE name = ? AND owner = ? AND term = ?";
            Ok(c.execute(query(sql).bind(&*lock.name).bind(&*lock.owner).bind(lock.term)).await? == 1)
        })
    }
}
