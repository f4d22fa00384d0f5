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
use super::db::{Connection, Dialect, Query, Row, Value, query};
use super::layout::Ids;
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::task::created;

/// Rows of one kind that go in one round.
const ROUND: u32 = 1_000;
/// Letters that do: they are read and moved with all they have.
const LETTERS: u32 = 100;
/// How long after its id was made a task may seem to have died before that, by other clocks.
const SLACK: Duration = Duration::from_secs(3600);
/// Keys that are looked at in one round: those of tasks that live stay, and there is no index of the others.
const KEYS: i64 = 10_000;
/// Notices that no channel has taken for so long are of no use any more.
const KEEP_NOTICES: Duration = Duration::from_secs(7 * 24 * 3600);
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
    /// Notices that have waited for a channel for a week.
    pub notices: u64,
    /// Nodes that have been dead for a week.
    pub nodes: u64,
}

impl Swept {
    /// Whether there is likely to be as much again.
    pub(crate) fn is_much(&self) -> bool {
        let rounds = [self.archived, self.keys, self.audited, self.sagas, self.barriers, self.notices];
        rounds.iter().any(|n| *n >= u64::from(ROUND)) || self.dead >= u64::from(LETTERS)
    }
}

/// How far a walk through the keys has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyWalk(Option<KeyHash>);

impl Store {
    /// Removes some of what is past its time. For one node at a time, again and again. What fails does not keep the rest from going;
    /// the last failure is told.
    pub async fn sweep_old(&self, retention: &Retention, walk: &mut KeyWalk, now: Timestamp) -> Result<Swept> {
        let mut failed = None;
        let mut count = |swept: Result<u64>| swept.map_err(|e| failed = Some(e)).unwrap_or(0);
        let swept = Swept {
            keys: count(self.expire_keys(walk, now).await),
            archived: count(self.delete_older("retry_archive", "ended_at", retention.keep_archive.before(now)).await),
            audited: count(self.delete_older("redrive_audit", "at", retention.keep_audit.before(now)).await),
            dead: count(self.discard_old(retention.keep_dead.before(now), now).await),
            sagas: match retention.keep_sagas.before(now) {
                Some(before) => count(self.remove_sagas(before, ROUND).await),
                None => 0,
            },
            barriers: count(self.expire_barriers().await),
            notices: count(self.drop_notices(now - KEEP_NOTICES).await),
            nodes: count(self.forget_nodes(now - REMEMBER_NODES).await),
        };
        failed.map_or(Ok(swept), Err)
    }

    async fn discard_old(&self, before: Option<Timestamp>, now: Timestamp) -> Result<u64> {
        let Some(before) = before else { return Ok(0) };
        let old = self.old_letters(before).await?;
        self.discard(&old, "retention", Some("it was kept for as long as the settings say"), now).await
    }

    async fn expire_barriers(&self) -> Result<u64> {
        let mut tx = self.begin().await?;
        let expired = barrier::expire_ended(&mut tx.connection(), barrier::KEEP, ROUND).await?;
        tx.commit().await?;
        Ok(expired)
    }

    /// Of the archive: from its single table; monthly ones are dropped whole.
    async fn delete_older(&self, table: &str, time: &str, before: Option<Timestamp>) -> Result<u64> {
        let Some(before) = before else { return Ok(0) };
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

    /// There is no index of when they died; but who died before that was made before that.
    async fn old_letters(&self, before: Timestamp) -> Result<Vec<TaskId>> {
        let (made, bounds) = created(TaskId::first_at(before + SLACK), false, Ids::Mixed);
        let sql = format!("SELECT id FROM retry_dead WHERE {made} AND dead_at < ? ORDER BY id LIMIT ?");
        retrying!(self.pools(), Use::Read, Scope::Statement, "looking for old dead letters", |c, _| {
            let rows = c.rows(query(sql.clone()).bind_all(bounds.clone()).bind(before).bind(LETTERS)).await?;
            rows.iter().map(|row| Ok(TaskId::from_i64(row.int()?))).collect()
        })
    }

    /// One after the other, by their hashes: a DELETE over the range would wait, on MySQL, for everybody who writes in it.
    async fn expire_keys(&self, walk: &mut KeyWalk, now: Timestamp) -> Result<u64> {
        let from = walk.0.unwrap_or(KeyHash([0; 16]));
        let (expired, next) = retrying!(self.pools(), Use::Read, Scope::Statement, "looking for old keys", |c, _| {
            expired_keys(c, from, now).await
        })?;
        walk.0 = next; // also if somebody holds one of these: there will be another walk
        let mut removed = 0;
        for hashes in expired.chunks(ROUND as usize) {
            removed += retrying!(self.pools(), Use::Write, Scope::Statement, "removing old keys", |c, _| {
                c.execute(remove_keys_query(c.dialect(), hashes, now)).await
            })?;
        }
        Ok(removed)
    }

    /// Notices of tasks and of what happened, whether there are channels that failed or none. There is no index of when they were made,
    /// but a notice is not older than its task.
    async fn drop_notices(&self, before: Timestamp) -> Result<u64> {
        let (made, bounds) = created(TaskId::first_at(before + SLACK), false, Ids::Mixed);
        let old = format!("{} AND created_at < ?", made.replace("id ", "task_id "));
        let sql = match self.dialect() {
            Dialect::MySql => format!("DELETE FROM redrive_notice WHERE {old} ORDER BY task_id LIMIT ?"),
            _ => format!(
                "DELETE FROM redrive_notice WHERE task_id IN \
                 (SELECT task_id FROM redrive_notice WHERE {old} ORDER BY task_id LIMIT ?)"
            ),
        };
        retrying!(self.pools(), Use::Write, Scope::Statement, "removing old notices", |c, _| {
            c.execute(query(sql.clone()).bind_all(bounds.clone()).bind(before).bind(ROUND)).await
        })
    }

    async fn forget_nodes(&self, before: Timestamp) -> Result<u64> {
        retrying!(self.pools(), Use::Write, Scope::Statement, "forgetting dead nodes", |c, _| {
            c.execute(query("DELETE FROM redrive_node WHERE dead = 1 AND beat_at < ?").bind(before)).await
        })
    }
}

/// The keys whose time is up among the next ones, and where to go on, if that was not the end.
async fn expired_keys(
    c: &mut Connection<'_>,
    from: KeyHash,
    now: Timestamp,
) -> sqlx::Result<(Vec<KeyHash>, Option<KeyHash>)> {
    let hash = |row: &Row| row.columns().hash().map(KeyHash);
    let next = "SELECT key_hash FROM redrive_key WHERE key_hash >= ? ORDER BY key_hash LIMIT 1 OFFSET ?";
    let next = c.row(query(next).bind(from).bind(KEYS)).await?.as_ref().map(hash).transpose()?;
    let old = "SELECT key_hash FROM redrive_key WHERE key_hash >= ? AND expires_at <= ?";
    let old = match next {
        Some(next) => query(format!("{old} AND key_hash < ?")).bind(from).bind(now).bind(next),
        None => query(old).bind(from).bind(now),
    };
    let expired = c.rows(old).await?.iter().map(hash).collect::<sqlx::Result<_>>()?;
    Ok((expired, next))
}

/// Whoever has taken one of them over since keeps it.
fn remove_keys_query(dialect: Dialect, hashes: &[KeyHash], now: Timestamp) -> Query<'static> {
    let delete = "DELETE FROM redrive_key WHERE expires_at <= ? AND key_hash";
    if dialect == Dialect::Postgres {
        let hashes = Value::Hashes(hashes.iter().map(|hash| Some(hash.0)).collect());
        return query(format!("{delete} = ANY(?)")).bind(now).bind(hashes);
    }
    // The last one again and again: few different statements are prepared.
    let n = hashes.len().next_power_of_two();
    let padded = hashes.iter().chain(std::iter::repeat_n(hashes.last(), n).flatten()).take(n);
    query(format!("{delete} IN ({})", vec!["?"; n].join(", "))).bind(now).bind_all(padded.copied())
}
