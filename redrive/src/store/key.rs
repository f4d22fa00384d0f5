//! Keys: who holds one, from the insert of a task until it ends, or longer.
//!
//! *State.* `redrive_key(key_hash, task_id, expires_at)`: a row for each living task that has a key, and, if asked
//! (`dedup_for`), for a while after it is done; then `expires_at` says until when.
//!
//! *Invariants.* A key's row is written in the transaction that writes its task's, and ends in the one that ends the task.
//! Keys are taken and ended in the order of their hashes, so that batches cannot deadlock. A key is ended only by its own
//! task.

use std::collections::{BTreeMap, HashMap};

use crate::clock::{Timestamp, millis};
use crate::id::{IdSet, TaskId};
use crate::settle::To;
use crate::task::KeyHash;

use super::db::{Connection, Dialect, Query, Value, query};
use super::row::insert_rows;
use super::settle::Settle;

/// Takes the keys that are free, or whose time is up. Gives the ids of the tasks whose keys were not.
pub(super) async fn lost_keys(
    c: &mut Connection<'_>,
    keys: &[(KeyHash, TaskId)],
    now: Timestamp,
) -> sqlx::Result<IdSet> {
    let rows = keys.iter().map(|(hash, id)| vec![(*hash).into(), (*id).into()]).collect();
    let columns = ["key_hash", "task_id"];
    let mut lost: IdSet = keys.iter().map(|(_, id)| *id).collect();
    if c.dialect() == Dialect::Sqlite {
        let conflict = "ON CONFLICT (key_hash) DO UPDATE SET task_id = excluded.task_id, expires_at = NULL \
                        WHERE redrive_key.expires_at <= ? RETURNING task_id";
        for row in insert_rows(c, "redrive_key", &columns, rows, conflict, &[now.into()]).await? {
            lost.remove(&TaskId::from_i64(row.int()?));
        }
        return Ok(lost);
    }
    // MySQL returns nothing: the rows, which are locked now, say who has the keys.
    let conflict = "ON DUPLICATE KEY UPDATE task_id = IF(expires_at <= ?, VALUES(task_id), task_id), \
                    expires_at = IF(expires_at <= ?, NULL, expires_at)";
    insert_rows(c, "redrive_key", &columns, rows, conflict, &[now.into(), now.into()]).await?;
    let hashes: Vec<KeyHash> = keys.iter().map(|(hash, _)| *hash).collect();
    let owners = key_owners(c, &hashes).await?;
    keys.iter().filter(|(hash, id)| owners.get(hash) == Some(id)).for_each(|(_, id)| _ = lost.remove(id));
    Ok(lost)
}

/// Who has these keys now.
pub(super) async fn key_owners(c: &mut Connection<'_>, hashes: &[KeyHash]) -> sqlx::Result<HashMap<KeyHash, TaskId>> {
    let mut owners = HashMap::new();
    for hashes in hashes.chunks(512) {
        let rows = match c.dialect() {
            Dialect::Postgres => {
                let all = Value::Hashes(hashes.iter().map(|h| Some(h.0)).collect());
                c.rows(query("SELECT key_hash, task_id FROM redrive_key WHERE key_hash = ANY(?)").bind(all)).await?
            }
            dialect => {
                // Filled up to a power of two with the last one, so that few different statements are prepared.
                let n = hashes.len().next_power_of_two();
                let marks = vec!["?"; n].join(", ");
                // A caller's transaction may read from an old snapshot; a locking read sees what is committed.
                let lock = if dialect == Dialect::MySql { "LOCK IN SHARE MODE" } else { "" };
                let sql = format!("SELECT key_hash, task_id FROM redrive_key WHERE key_hash IN ({marks}) {lock}");
                let fill = hashes.last().into_iter().cycle().take(n - hashes.len());
                c.rows(query(sql).bind_all(hashes.iter().chain(fill).copied())).await?
            }
        };
        for row in rows {
            let mut columns = row.columns();
            owners.insert(KeyHash(columns.hash()?), TaskId::from_i64(columns.int()?));
        }
    }
    Ok(owners)
}

/// Keys of tasks that end, by how long they outlive them (ms; 0: not at all).
pub(super) struct Keys(BTreeMap<i64, Vec<(KeyHash, TaskId)>>);

impl Keys {
    /// A key outlives only a task that is done: what is dead or cancelled may be asked for again.
    pub(super) fn of<'s>(settles: impl IntoIterator<Item = &'s Settle>) -> Self {
        let mut keys: BTreeMap<i64, Vec<(KeyHash, TaskId)>> = BTreeMap::new();
        for s in settles {
            let Some(hash) = s.task.key_hash() else { continue };
            let outlives = if s.change.to == To::Done { millis(s.task.dedup_for) } else { 0 };
            keys.entry(outlives).or_default().push((hash, s.task.id));
        }
        keys.values_mut().for_each(|keys| keys.sort_unstable()); // in one order everywhere: no deadlocks
        Self(keys)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, if all just go.
    pub(super) fn all_free(&self) -> Option<&[(KeyHash, TaskId)]> {
        match (self.0.len(), self.0.get(&0)) {
            (0, _) => Some(&[]),
            (1, Some(free)) => Some(free),
            _ => None,
        }
    }

    /// Ends the keys of the tasks that are gone, if they are still theirs.
    pub(super) async fn end(&self, c: &mut Connection<'_>, gone: &IdSet, now: Timestamp) -> sqlx::Result<()> {
        for (outlives, keys) in &self.0 {
            let keys: Vec<_> = keys.iter().filter(|(_, id)| gone.contains(id)).copied().collect();
            let until = (*outlives > 0).then(|| now.as_millis().saturating_add(*outlives));
            for keys in keys.chunks(512) {
                c.execute(end_keys_query(c.dialect(), keys, until)).await?;
            }
        }
        Ok(())
    }
}

fn end_keys_query(dialect: Dialect, keys: &[(KeyHash, TaskId)], until: Option<i64>) -> Query<'static> {
    let start = if until.is_some() { "UPDATE redrive_key SET expires_at = ?" } else { "DELETE FROM redrive_key" };
    let bound = |sql: String| query(sql).bind_all(until);
    // A key is unique and its owner is who we say: the pairs need not be matched one by one.
    if dialect == Dialect::Postgres {
        let hashes = Value::Hashes(keys.iter().map(|(hash, _)| Some(hash.0)).collect());
        let owners = Value::Ints(keys.iter().map(|(_, id)| Some(id.as_i64())).collect());
        return bound(format!("{start} WHERE key_hash = ANY(?) AND task_id = ANY(?)")).bind(hashes).bind(owners);
    }
    let n = keys.len().next_power_of_two();
    let filled = || keys.iter().chain(keys.last().into_iter().cycle()).take(n);
    let marks = vec!["?"; n].join(", ");
    let query = bound(format!("{start} WHERE key_hash IN ({marks}) AND task_id IN ({marks})"));
    query.bind_all(filled().map(|k| k.0)).bind_all(filled().map(|k| k.1))
}
