//! What is old enough to go: a little at a time, so that nobody waits for it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::barrier;
use crate::clock::Timestamp;
use crate::duration;
use crate::error::{Problems, Result};
use crate::id::TaskId;
use crate::task::KeyHash;

use super::Store;
use super::db::{Connection, Dialect, query};
use super::pool::Use;
use super::retry::{Scope, retrying};

/// Rows of one kind that go in one round.
const ROUND: u32 = 1_000;
/// Keys that are looked at in one round: those of tasks that live stay, and there is no index of the others.
const KEYS: i64 = 10_000;
/// Dead nodes are remembered for so long, for people.
const REMEMBER_NODES: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long things are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Retention {
    /// Monthly tables are read for so long after their month, and then only while they have tasks. Default: 30 days.
    #[serde(with = "duration")]
    pub live_window: Duration,
    /// So many months before this one keep their tables, though they be empty. Default: 3.
    pub keep_months: u32,
    /// How long what has ended stays in the archive. Default: 90 days.
    pub keep_archive: Keep,
    /// How long dead letters wait for a person; then they are discarded. Default: for ever.
    pub keep_dead: Keep,
    /// How long the audit keeps what people did and what they were refused. Default: for ever.
    pub keep_audit: Keep,
    /// How long sagas that have ended are kept, with their journals. Default: 30 days.
    pub keep_sagas: Keep,
}

impl Default for Retention {
    fn default() -> Self {
        let days = |n: u64| Duration::from_secs(n * 24 * 3600);
        let (live_window, keep_archive) = (days(30), Keep::For(days(90)));
        Self {
            live_window,
            keep_months: 3,
            keep_archive,
            keep_dead: Keep::Forever,
            keep_audit: Keep::Forever,
            keep_sagas: Keep::For(days(30)),
        }
    }
}

impl Retention {
    /// What is wrong with these values.
    pub(crate) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        duration::check(self.live_window, "live_window", &mut problems);
        problems.require((1..=1200).contains(&self.keep_months), "keep_months", || "must be from 1 to 1200".into());
        let keeps = [
            ("keep_archive", self.keep_archive),
            ("keep_dead", self.keep_dead),
            ("keep_audit", self.keep_audit),
            ("keep_sagas", self.keep_sagas),
        ];
        for (field, keep) in keeps {
            if let Keep::For(time) = keep {
                duration::check(time, field, &mut problems);
            }
        }
        problems
    }
}

/// For how long: `"90d"` or `"forever"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// It does not go by itself.
    Forever,
    /// For this time.
    For(Duration),
}

impl Keep {
    /// What is older than this may go.
    pub(super) fn before(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Forever => None,
            Self::For(time) => Some(now - time),
        }
    }
}

impl Serialize for Keep {
    fn serialize<S: serde::Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Self::Forever => s.serialize_str("forever"),
            Self::For(time) => duration::serialize(time, s),
        }
    }
}

impl<'de> Deserialize<'de> for Keep {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        if text == "forever" {
            return Ok(Self::Forever);
        }
        let wrong =
            |e| serde::de::Error::custom(format!("{text:?} is neither \"forever\" nor a time such as \"90d\": {e}"));
        humantime::parse_duration(&text).map(Self::For).map_err(wrong)
    }
}

/// What a round of [`Store::sweep_old`] has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Entries of the archive.
    pub archived: u64,
    /// Dead letters; they are in the archive now.
    pub dead: u64,
    /// Keys that had outlived their tasks, and their time.
    pub keys: u64,
    /// Records of the audit.
    pub audited: u64,
    /// Sagas that have ended.
    pub sagas: u64,
    /// Rows of the barrier for participants that keep it in this database.
    pub barriers: u64,
    /// Nodes that have been dead for a week.
    pub nodes: u64,
}

/// How far a walk through the keys has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyWalk(Option<KeyHash>);

impl Store {
    /// Removes some of what is past its time. For one node at a time, again and again.
    pub async fn sweep_old(&self, retention: &Retention, walk: &mut KeyWalk, now: Timestamp) -> Result<Swept> {
        let mut swept = Swept { keys: self.expire_keys(walk, now).await?, ..Swept::default() };
        if let Some(before) = retention.keep_archive.before(now) {
            swept.archived = self.delete_older("retry_archive", "ended_at", before).await?;
        }
        if let Some(before) = retention.keep_audit.before(now) {
            swept.audited = self.delete_older("redrive_audit", "at", before).await?;
        }
        if let Some(before) = retention.keep_dead.before(now) {
            let old = self.old_letters(before).await?;
            let note = "it was kept for as long as the settings say";
            swept.dead = self.discard(&old, "retention", Some(note), now).await?;
        }
        if let Some(before) = retention.keep_sagas.before(now) {
            swept.sagas = self.remove_sagas(before, ROUND).await?;
        }
        let mut tx = self.begin().await?;
        swept.barriers = barrier::expire_ended(&mut tx.connection(), barrier::KEEP, ROUND).await?;
        tx.commit().await?;
        swept.nodes = self.forget_nodes(now - REMEMBER_NODES).await?;
        Ok(swept)
    }

    /// Of the archive: from its single table; monthly ones are dropped whole.
    async fn delete_older(&self, table: &str, time: &str, before: Timestamp) -> Result<u64> {
        let sql = match self.dialect() {
            Dialect::MySql => format!("DELETE FROM {table} WHERE {time} < ? ORDER BY {time} LIMIT ?"),
            _ => format!(
                "DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE {time} < ? ORDER BY {time} LIMIT ?)"
            ),
        };
        retrying!(self.pools(), Use::Write, Scope::Statement, &format!("sweeping {table}"), |c, _| {
            c.execute(query(sql.clone()).bind(before).bind(ROUND)).await
        })
    }

    async fn old_letters(&self, before: Timestamp) -> Result<Vec<TaskId>> {
        let sql = "SELECT id FROM retry_dead WHERE dead_at < ? ORDER BY id LIMIT ?";
        retrying!(self.pools(), Use::Read, Scope::Statement, "looking for old dead letters", |c, _| {
            let rows = c.rows(query(sql).bind(before).bind(ROUND)).await?;
            rows.iter().map(|row| Ok(TaskId::from_i64(row.int()?))).collect()
        })
    }

    async fn expire_keys(&self, walk: &mut KeyWalk, now: Timestamp) -> Result<u64> {
        let from = walk.0.unwrap_or(KeyHash([0; 16]));
        let (removed, next) = retrying!(self.pools(), Use::Write, Scope::Transaction, "sweeping keys", |c, _| {
            expire_keys(c, from, now).await
        })?;
        walk.0 = next;
        Ok(removed)
    }

    async fn forget_nodes(&self, before: Timestamp) -> Result<u64> {
        retrying!(self.pools(), Use::Write, Scope::Statement, "forgetting dead nodes", |c, _| {
            c.execute(query("DELETE FROM redrive_node WHERE dead = 1 AND beat_at < ?").bind(before)).await
        })
    }
}

/// Removes keys whose time is up among the next ones; where to go on, if that was not the end.
async fn expire_keys(c: &mut Connection<'_>, from: KeyHash, now: Timestamp) -> sqlx::Result<(u64, Option<KeyHash>)> {
    let next = "SELECT key_hash FROM redrive_key WHERE key_hash >= ? ORDER BY key_hash LIMIT 1 OFFSET ?";
    let next = c.row(query(next).bind(from).bind(KEYS)).await?;
    let next = next.map(|row| row.columns().hash().map(KeyHash)).transpose()?;
    let old = "DELETE FROM redrive_key WHERE key_hash >= ? AND expires_at <= ?";
    let removed = match next {
        Some(next) => c.execute(query(format!("{old} AND key_hash < ?")).bind(from).bind(now).bind(next)).await?,
        None => c.execute(query(old).bind(from).bind(now)).await?,
    };
    Ok((removed, next))
}
